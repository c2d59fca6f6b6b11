"""Stores of random bytes, and a quick server of them that counts what it is asked for."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import math
import os
import re
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from orlog.manifests.manifest import StoredObject

ROOT = Path(__file__).resolve().parents[1]
COUNT = "/asked-bytes"
ROUNDS = "/asked-rounds"
BLOCK_BYTES = 2**24
PIECE_BYTES = 2**18


def write_object(folder: Path, path: str, size: int, seed: int = 0) -> StoredObject:
    """Write random bytes, and return what a manifest says of them."""
    from orlog.manifests.manifest import StoredObject

    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    digest = hashlib.sha256()
    with (folder / path).open("wb") as file:
        for start in range(0, size, BLOCK_BYTES):
            block = generator.bytes(min(BLOCK_BYTES, size - start))
            digest.update(block)
            file.write(block)
    return StoredObject(path=path, size_bytes=size, sha256=digest.hexdigest())


def make_store(folder: Path, sizes: Mapping[str, int]) -> list[str]:
    """Write a version with objects of these sizes and no columns; return the objects' files."""
    from orlog.manifests.manifest import MANIFEST_FILE, Manifest

    # No two are alike, or one transfer would do for both.
    items = [write_object(folder, path, sizes[path], seed) for seed, path in enumerate(sorted(sizes))]
    space = {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"}
    manifest = Manifest(
        manifest_version=1,
        name="bench/transfer-v0",
        version="1.0.0",
        description="",
        license="CC0-1.0",
        container="zarr",
        format_version=1,
        total_episodes=0,
        total_steps=0,
        observation_space=space,
        action_space=space,
        environment=None,
        behavior_policy="",
        recipe=None,
        lineage=[],
        columns=[],
        objects=items,
    )
    (folder / MANIFEST_FILE).write_text(manifest.to_json(), "utf-8")
    return [str(folder / item.path) for item in items]


def check_file(path: Path, item: StoredObject) -> None:
    """Check that a downloaded file is what was served."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != item.sha256:
            raise AssertionError(f"{path} is not what was served")


@contextlib.contextmanager
def serve(folder: Path, latency: float = 0.0, rate: float = 0.0) -> Iterator[str]:
    """Serve a folder, each answer after so many seconds, and all together at so many bytes a second; give the URL."""
    command = [sys.executable, "-m", "benchmarks.serving", str(folder), str(latency), str(rate)]
    with subprocess.Popen(  # noqa: S603  # our own interpreter and code
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def asked_bytes(url: str) -> int:
    """Return how many bytes a server was asked for so far."""
    with urllib.request.urlopen(url + COUNT) as answer:  # noqa: S310  # our own server
        return int(answer.read())


def asked_rounds(url: str) -> tuple[int, int]:
    """Return how many requests a server had since it was last asked this, and how many had to wait for one another."""
    with urllib.request.urlopen(url + ROUNDS) as answer:  # noqa: S310  # our own server
        requests, rounds = map(int, answer.read().split())
    return requests, rounds


def chain_of(spans: Sequence[tuple[float, float]]) -> int:
    """Return how many of some spans of time follow one another at most, none beginning before the last one ended."""
    count, free = 0, -math.inf
    for began, ended in sorted(spans, key=lambda one: one[1]):
        if began >= free:
            count, free = count + 1, ended
    return count


def main() -> None:
    """Serve until this process is ended."""
    folder, latency, rate = sys.argv[1:]
    bound = {"folder": Path(folder), "latency": float(latency), "rate": float(rate)}
    handler = type("Bound", (_Handler,), bound)
    http.server.ThreadingHTTPServer.request_queue_size = 128  # or who is one too many waits for 1 s
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


class _Handler(http.server.BaseHTTPRequestHandler):
    folder: Path
    latency: float
    rate: float
    paid_until = [0.0]  # noqa: RUF012 (one for all requests)
    paying = threading.Lock()
    asked_bytes = [0]  # noqa: RUF012 (one for all requests)
    spans: list[tuple[float, float]] = []  # noqa: RUF012 (one for all requests)
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # who is killed says no goodbye
            super().handle()

    def do_GET(self) -> None:
        if self.path == COUNT:
            self._say(str(self.asked_bytes[0]))
        elif self.path == ROUNDS:
            spans, self.spans[:] = [*self.spans], []
            self._say(f"{len(spans)} {chain_of(spans)}")
        else:
            began = time.monotonic()
            self._answer()
            self.spans.append((began, time.monotonic()))

    def do_HEAD(self) -> None:
        file = self._file()
        time.sleep(self.latency)
        self._begin(200 if file.is_file() else 404, file.stat().st_size if file.is_file() else 0)

    def _file(self) -> Path:
        return self.folder / urllib.parse.unquote(self.path).lstrip("/")

    def _say(self, text: str) -> None:
        self._begin(200, len(text))
        self.wfile.write(text.encode())

    def _answer(self) -> None:
        time.sleep(self.latency)
        if not self._file().is_file():
            self._begin(404, 0)
            return
        with self._file().open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            start, stop = 0, size
            if asked and not asked[1]:  # the last bytes
                start = size - int(asked[2])
            elif asked:
                start, stop = int(asked[1]), int(asked[2]) + 1 if asked[2] else size
            self.asked_bytes[0] += stop - start
            place = f"bytes {start}-{stop - 1}/{size}" if asked else ""
            self._begin(206 if asked else 200, stop - start, place)
            while start < stop:
                most = min(stop - start, PIECE_BYTES) if self.rate else stop - start
                sent = os.sendfile(self.connection.fileno(), file.fileno(), start, most)
                start += sent
                self._pay(sent)

    def _pay(self, size: int) -> None:
        """Wait until the link has carried so many bytes more."""
        if not self.rate:
            return
        with self.paying:
            now = time.monotonic()
            self.paid_until[0] = max(self.paid_until[0], now - 0.02) + size / self.rate
            wait = self.paid_until[0] - now
        if wait > 0:
            time.sleep(wait)

    def _begin(self, status: int, length: int, place: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if place:
            self.send_header("Content-Range", place)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    main()
