"""Versions by URL, from real servers: right bytes or an error that names the URL, never a half."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import orlog
from orlog.datasets.fetch import is_url
from orlog.datasets.home import datasets_folder
from orlog.datasets.lock import LockedDataset, write_lock
from orlog.errors import IntegrityError, LockError, ManifestError, NotFoundError

MINI = "pointmaze/umaze-mini-v1"
Change: TypeAlias = Callable[[bytes], bytes]


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files; what `changes` says for the end of a path is done to the bytes on the way."""

    changes: dict[str, Change] = {}  # noqa: RUF012 (set by each test)
    cut_after: int | None = None

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        for end, change in self.changes.items():
            if self.path.endswith(end):
                data = change(data)
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.cut_after is not None and not self.path.endswith(".json"):
            data = data[: self.cut_after]
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def serve(built_mini: Path) -> Iterator[tuple[str, type[Handler]]]:
    """Return the URL of the small dataset on a server of this test, and its handler."""
    handler = type("OneHandler", (Handler,), {"changes": {}})
    root = built_mini.parents[2]
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(root))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/{MINI}/1.0.0", handler
    server.shutdown()
    server.server_close()
    thread.join()


def leftovers(home: Path) -> list[str]:
    return sorted(
        path.name for path in home.rglob("*") if path.is_file() and not path.name.endswith(".lock")
    )


@pytest.mark.parametrize("end", ["", "/", "/manifest.json"])
def test_a_version_is_fetched_whole_and_then_opened_by_name(
    serve: tuple[str, type[Handler]], built_mini: Path, end: str
) -> None:
    done: list[tuple[int, int]] = []
    ds = orlog.load_dataset(serve[0] + end, progress=lambda part, whole: done.append((part, whole)))
    assert ds.digest == orlog.load_dataset(built_mini).digest
    assert ds.folder == datasets_folder() / MINI / "1.0.0"
    assert done[-1] == (ds.manifest.size_bytes, ds.manifest.size_bytes)
    assert orlog.load_dataset(MINI).digest == ds.digest
    assert orlog.verify_store(ds.folder)[1] == []


def test_a_file_url_is_a_registry_too(built_mini: Path) -> None:
    assert orlog.load_dataset(f"file://{built_mini}").name == MINI


def test_what_is_here_is_not_fetched_again(serve: tuple[str, type[Handler]]) -> None:
    url, handler = serve
    orlog.load_dataset(url)
    handler.changes = {"/c.0": lambda _: b"", "/c.0.0": lambda _: b""}
    assert orlog.load_dataset(url).total_episodes == 67


@pytest.mark.parametrize(
    "change",
    [
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda _: b"",
        lambda data: data * 50,
    ],
    ids=["altered", "short", "long", "empty", "very long"],
)
def test_other_bytes_are_refused_and_nothing_is_kept(
    serve: tuple[str, type[Handler]], home: Path, change: Change
) -> None:
    url, handler = serve
    handler.changes = {"rewards/c.0": change}
    with pytest.raises(IntegrityError, match=r"http.*rewards/c.0: expected \d+ bytes") as caught:
        orlog.load_dataset(url)
    assert caught.value.file == "rewards/c.0"
    assert leftovers(home) == []
    handler.changes = {}
    assert orlog.load_dataset(url).total_episodes == 67


def test_a_connection_that_breaks_is_said_and_nothing_is_kept(
    serve: tuple[str, type[Handler]], home: Path
) -> None:
    url, handler = serve
    handler.cut_after = 100
    with pytest.raises((NotFoundError, IntegrityError), match="http://"):
        orlog.load_dataset(url)
    assert leftovers(home) == []


def test_a_manifest_from_outside_is_checked(serve: tuple[str, type[Handler]], home: Path) -> None:
    url, handler = serve

    def escape(data: bytes) -> bytes:
        body = json.loads(data)
        body["objects"][0]["path"] = "../../../escape"
        return json.dumps(body).encode()

    for change in (escape, lambda _: b"[" * 10_000, lambda _: b"\xff", lambda data: data[:-20]):
        handler.changes = {"manifest.json": change}
        with pytest.raises(ManifestError, match=r"http://.*manifest\.json"):
            orlog.load_dataset(url)
    assert leftovers(home) == []


def test_nothing_there_says_so(serve: tuple[str, type[Handler]]) -> None:
    url, _ = serve
    with pytest.raises(NotFoundError, match=r"http.*2\.0\.0/manifest\.json: cannot be read"):
        orlog.load_dataset(url.replace("1.0.0", "2.0.0"))
    with pytest.raises(NotFoundError, match="cannot be read"):
        orlog.load_dataset("http://127.0.0.1:9/lab/x-v1/1.0.0")
    with pytest.raises(NotFoundError, match="cannot be read"):
        orlog.load_dataset("nothing://here/lab/x-v1/1.0.0")


def test_other_bytes_under_the_same_version_are_refused(
    serve: tuple[str, type[Handler]], reseal: Callable[..., Path], mini_folder: Path
) -> None:
    reseal(mini_folder, lambda body: body.update(description="another"))
    here = orlog.load_dataset(MINI).digest
    with pytest.raises(IntegrityError, match="a version never changes"):
        orlog.load_dataset(serve[0])
    assert orlog.load_dataset(MINI).digest == here


def test_the_lock_holds_for_urls(
    serve: tuple[str, type[Handler]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = LockedDataset(version="1.0.0", digest="sha256:" + "0" * 64)
    write_lock(tmp_path / "orlog.lock", {MINI: pin})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LockError, match="orlog lock --update"):
        orlog.load_dataset(serve[0])


def test_names_and_paths_are_no_urls(tmp_path: Path) -> None:
    assert not any(is_url(one) for one in (MINI, f"{MINI}@1.0.0", "./a://b", "/a", tmp_path, "~/a"))
    assert all(map(is_url, ["https://a/b", "s3://a/b", "file:///a"]))
