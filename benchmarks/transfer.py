"""Verifying, downloading and resuming beside the tools that one would take without orlog.

Everything lies on a memory disk, so that neither disk nor network sets the pace. The server
(serving.py) is a process of its own on loopback: a thread for each connection, `os.sendfile`,
no limit of bandwidth. Peers are given the same files; candidates take turns in rounds, each in a
fresh process. Starting Python and importing is not counted; of programs that are not Python all is,
which is a few milliseconds. Downloaded files are compared with what was served.

The stores hold random bytes in the sizes that are asked for, listed by a manifest without columns:
`verify_folder` and `download_version` ask no more of them.

    python -m benchmarks.transfer --peers-python PEERS
    python -m benchmarks.transfer --quick                   small, and writes no results

    PEERS    pip install numpy pooch==1.9.0 requests huggingface_hub==2.4.0

curl, sha256sum and openssl must be installed; wget and aria2c are measured where they are.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.serving import asked_bytes, check_file, make_store, serve, write_object
from benchmarks.store import (
    ANSWER,
    ROOT,
    OtherCores,
    machine,
    module,
    print_table,
    report,
    scratch_folder,
    wait_until_quiet,
)

if TYPE_CHECKING:
    from rich.console import Console

    from orlog.manifests.manifest import StoredObject

MEMORY_DISK = Path("/dev/shm")  # noqa: S108 (only where the folder for generated data is made)
PROCESSES = os.cpu_count() or 1
LATENCY, JOBS = 0.2, 16
SETTLED = 2.5  # seconds; what is younger is not remembered by a verification
PEERS = ("huggingface_hub", "pooch")

Calls = dict[str, Callable[[], float]]


def main() -> None:
    """Measure everything, print it, and write it to the results."""
    from rich.console import Console

    parser = argparse.ArgumentParser(description="Measure orlog's transfers beside its peers.")
    parser.add_argument("--peers-python", default="", metavar="PATH")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wait", type=float, default=15, help="seconds to wait for a quiet CPU")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the bytes")
    parser.add_argument("--scratch", type=Path, help="where generated data is kept")
    options = parser.parse_args()
    if options.scratch is None and os.access(MEMORY_DISK, os.W_OK):
        tempfile.tempdir = str(MEMORY_DISK)
    small = contextlib.nullcontext(Console(width=140, highlight=False, markup=False))
    with small if options.quick else report("transfer") as console, scratch_folder(options.scratch) as scratch:
        os.environ["ORLOG_HOME"] = str(scratch / "home")
        bench = Bench(console, scratch, options)
        with OtherCores() as others:
            bench.verify()
            bench.download()
            bench.many_requests()
            bench.resume()
        if not options.peers_python:
            console.print("left out: pooch and huggingface_hub: no --peers-python was given")
        console.print(f"medians of {options.rounds} rounds; {versions(options.peers_python)}")
        console.print(machine([others.cores]))


class Bench:
    """The sections of the report, over files that are made in a scratch folder in memory."""

    def __init__(self, console: Console, scratch: Path, options: argparse.Namespace) -> None:
        self.console, self.options = console, options
        self.folder, self.target = scratch / "served", scratch / "target"
        self.part = 100 if options.quick else 1

    def verify(self) -> None:
        """Compare the hashing of stores with that of plain tools."""
        for title, sizes in (
            ("64 objects of 16 MB", {f"c.{n}": 16 * 10**6 // self.part for n in range(64)}),
            ("1 object of 1 GB", {"c.0": 10**9 // self.part}),
            ("10,000 objects of 2.5 KB", {f"many/{n // 100}/c.{n}": 2500 for n in range(10_000)}),
        ):
            files = make_store(self.folder, sizes)
            time.sleep(SETTLED)
            place = str(self.folder)
            calls: Calls = {
                "orlog verify": functools.partial(in_child, "verify", place, "full"),
                "sha256sum": functools.partial(hash_with, files, "sha256sum"),
                "openssl": functools.partial(hash_with, files, "openssl", "dgst", "-sha256"),
            }
            found = self._measure(calls)
            self._table(f"verify, {title}", found, sum(sizes.values()), "sha256sum")
            rate = found["sha256sum"] / found["orlog verify"]
            self._goal("rate of sha256sum", f"{rate:.0%}", "at least 90%", rate >= 0.9)
            if len(sizes) > 1000:
                quick = functools.partial(in_child, "verify", place, "quick")
                seconds = self._measure({"quick": quick})["quick"]
                self._goal("verify --quick", f"{seconds:.2f} s", "at most 0.5 s", seconds <= 0.5)
            shutil.rmtree(self.folder)
        self.console.print(
            f"sha256sum and openssl run as {PROCESSES} processes (xargs -P {PROCESSES}), as many as "
            "orlog has threads; orlog reads the manifest and looks for strange files besides."
        )

    def download(self) -> None:
        """Compare the transfer of one large object in one stream."""
        item = write_object(self.folder, "object", 10**9 // self.part)
        curl = ["curl", "-sf", "-o", str(self.target)]
        with serve(self.folder) as url:
            arguments = self._arguments(url, item)
            calls: Calls = {
                "curl": lambda: run([*curl, arguments[0]]),
                "orlog, hashing off": functools.partial(in_child, "unhashed", *arguments),
                "orlog": functools.partial(in_child, "fetch", *arguments),
                "curl, sha256sum": lambda: run([*curl, arguments[0]]) + run(["sha256sum", str(self.target)]),
            }
            for peer in PEERS if self.options.peers_python else ():
                python = self.options.peers_python
                calls[peer] = functools.partial(in_child, peer, *arguments, python=python)
            found = self._measure(calls, lambda: check_file(self.target, item))
        self._table("download, 1 object of 1 GB, one stream", found, item.size_bytes, "curl")
        rate = found["curl"] / found["orlog, hashing off"]
        self._goal("rate of curl, hashing off", f"{rate:.0%}", "at least 80%", rate >= 0.8)
        for peer in (name for name in PEERS if name in found):
            times = found[peer] / found["orlog"]
            self._goal(f"{peer}'s time", f"{times:.1f} times orlog's", "more than 1", times > 1)
        self.console.print(
            "hashing off: SHA-256 is replaced by an object that does nothing and says what is "
            "expected. curl and huggingface_hub (http_get) check no hash; pooch reads the file "
            "again for it; orlog hashes as bytes come. All have their default settings."
        )
        shutil.rmtree(self.folder)

    def many_requests(self) -> None:
        """Compare transfers of several objects side by side where each answer takes a while."""
        sizes = {f"c.{n:02}": 64 * 10**6 // self.part for n in range(16)}
        make_store(self.folder, sizes)
        here = str(self.target)
        curl = ["curl", "-f", "--no-progress-meter", "--output-dir", here, "--remote-name-all"]
        parallel = [*curl, "--parallel", "--parallel-max", str(JOBS)]
        with serve(self.folder, LATENCY) as url:
            urls = [f"{url}/{path}" for path in sizes]
            one, side_by_side = "orlog, one stream", f"orlog, {JOBS} streams"
            calls: Calls = {
                one: functools.partial(in_child, "download", url, here, "1"),
                side_by_side: functools.partial(in_child, "download", url, here, str(JOBS)),
                "curl, one stream": functools.partial(run, [*curl, *urls]),
                f"curl, {JOBS} streams": functools.partial(run, [*parallel, *urls]),
            }
            wget = ["wget", "-q", "-P", here, *urls]
            aria = ["aria2c", "-q", "-x", "1", "-j", str(JOBS), "-d", here, "-Z", *urls]
            for name, command in (("wget, one stream", wget), (f"aria2c, {JOBS} streams", aria)):
                if shutil.which(command[0]):
                    calls[name] = functools.partial(run, command)
            found = self._measure(calls, folder=self.target)
        title = f"download, 16 objects of 64 MB, each answer after {LATENCY * 1000:.0f} ms"
        self._table(title, found, sum(sizes.values()), one)
        speed = found[one] / found[side_by_side]
        self._goal("rate of one stream", f"{speed:.1f} times", "at least 4 times", speed >= 4)
        self.console.print("orlog checks SHA-256, the others nothing; its manifest is not counted.")
        shutil.rmtree(self.folder)

    def resume(self) -> None:
        """Count what is asked for again after a process was killed in a transfer."""
        item = write_object(self.folder, "object", 10**9 // self.part)
        shares = []
        with serve(self.folder) as url:
            arguments = self._arguments(url, item)
            for _ in range(self.options.rounds):
                self.target.unlink(missing_ok=True)
                with contextlib.suppress(subprocess.CalledProcessError):
                    in_child("killed", *arguments)
                before = asked_bytes(url)
                in_child("fetch", *arguments)
                check_file(self.target, item)
                shares.append((asked_bytes(url) - before) / item.size_bytes)
        self.console.print("\nresume, 1 object of 1 GB, the process killed at 90 %\n")
        share = statistics.median(shares)
        self._goal("asked for again", f"{share:.1%} of its bytes", "at most 11%", share <= 0.11)

    def _arguments(self, url: str, item: StoredObject) -> list[str]:
        return [f"{url}/{item.path}", str(self.target), item.sha256, str(item.size_bytes)]

    def _measure(
        self, calls: Calls, check: Callable[[], object] = lambda: None, folder: Path | None = None
    ) -> dict[str, float]:
        """Return the median seconds of each candidate over rounds in which they take turns."""
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(self.options.rounds):
            for name, call in calls.items():
                if folder is not None:
                    folder.mkdir()
                wait_until_quiet(self.options.wait)
                seconds[name].append(call())
                check()
                self.target.unlink(missing_ok=True) if folder is None else shutil.rmtree(folder)
        return {name: statistics.median(times) for name, times in seconds.items()}

    def _table(self, title: str, found: Mapping[str, float], size: int, base: str) -> None:
        rows = {
            name: [f"{seconds:.3f}", f"{size / seconds / 1e6:,.0f}", f"{found[base] / seconds:.2f}"]
            for name, seconds in found.items()
        }
        self.console.print(f"\n{title} ({size / 1e6:,.0f} MB)")
        print_table(self.console, ("s", "MB/s", f"of {base}"), rows)

    def _goal(self, what: str, found: str, goal: str, is_reached: bool) -> None:
        verdict = "reached" if is_reached else "NOT REACHED"
        self.console.print(f"{what}: {found}, goal {goal}: {verdict}")


# The candidates; each returns its seconds.


def in_child(name: str, *arguments: str, python: str = sys.executable) -> float:
    """Run one of `CHILDREN` in a fresh process, which measures itself."""
    command = [python, "-m", "benchmarks.transfer", "--child", name, *arguments]
    done = subprocess.run(  # noqa: S603  # our own code, by interpreters that the user named
        command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(ANSWER))
    return float(json.loads(line.removeprefix(ANSWER)))


def run(command: Sequence[str], given: str = "") -> float:
    """Run a program of the system."""
    started = time.perf_counter()
    subprocess.run(command, input=given, stdout=subprocess.DEVNULL, text=True, check=True)  # noqa: S603
    return time.perf_counter() - started


def hash_with(files: Sequence[str], *command: str) -> float:
    """Hash files with a program, in as many processes as there are cores."""
    at_once = max(1, len(files) // (4 * PROCESSES))
    options = ["-0", "-P", str(PROCESSES), "-n", str(at_once)]
    return run(["xargs", *options, *command], "\0".join(files))


def versions(peers_python: str) -> str:
    """Return the versions of everything that was measured."""
    code = "import importlib.metadata as m, sys; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    pythons = [[sys.executable, "-c", code, "orlog", "urllib3"]]
    pythons += [[peers_python, "-c", code, *PEERS]] if peers_python else []
    told = [subprocess.check_output(command, text=True).strip() for command in pythons]  # noqa: S603
    for words in ("curl -V", "sha256sum --version", "openssl version", "wget -V", "aria2c -v"):
        if shutil.which(words.split()[0]):
            text = subprocess.check_output(words.split(), text=True)  # noqa: S603
            told.append(" ".join([words.split()[0], *re.findall(r"\b\d+\.[\d.]*\d", text)[:1]]))
    return ", ".join(told)


# The children, which import what they need before they look at the clock.


def verify_child(folder: str, kind: str) -> float:
    """Verify a store."""
    from orlog.datasets.store.verify import verify_folder

    started = time.perf_counter()
    _, problems = verify_folder(Path(folder), quick=kind == "quick")
    seconds = time.perf_counter() - started
    assert not problems, problems
    return seconds


def fetch_child(kind: str, url: str, target: str, sha256: str, size: str) -> float:
    """Fetch one object, as it is, without hashing, or until it is killed at 90 %."""
    module("urllib3")
    from orlog.datasets.download import transfer as transport
    from orlog.datasets.download.transfer import Expected, Mirror

    if kind == "unhashed":
        nothing = types.SimpleNamespace(update=lambda _: None, hexdigest=lambda: sha256)
        vars(transport)["hashlib"] = types.SimpleNamespace(sha256=lambda: nothing)
    root, _, path = url.rpartition("/")
    item = Expected(path=path, size_bytes=int(size), sha256=sha256)
    done = 0

    def progress(count: int) -> None:
        nonlocal done
        done += count
        if kind == "killed" and done >= 0.9 * int(size):
            os.kill(os.getpid(), signal.SIGKILL)

    started = time.perf_counter()
    transport.fetch_object([Mirror(root)], item, Path(target), progress=progress)
    return time.perf_counter() - started


def download_child(url: str, home: str, jobs: str) -> float:
    """Download a version into an empty home."""
    from orlog.datasets.download.download import download_version
    from orlog.datasets.download.sources import source_of_url
    from orlog.datasets.download.transfer import TransferOptions

    os.environ["ORLOG_HOME"] = home
    source = source_of_url(url)
    started = time.perf_counter()
    download_version(source, TransferOptions(jobs=int(jobs)))
    return time.perf_counter() - started


def hub_child(url: str, target: str, _: str, size: str) -> float:
    """Fetch with what `hf_hub_download` fetches with over HTTP."""
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    http_get = module("huggingface_hub.file_download").http_get
    started = time.perf_counter()
    with Path(target).open("wb") as file:
        http_get(url, file, expected_size=int(size))
    return time.perf_counter() - started


def pooch_child(url: str, target: str, sha256: str, _: str) -> float:
    """Fetch with pooch, which checks the hash."""
    pooch = module("pooch")
    place = Path(target)
    downloader = pooch.HTTPDownloader(progressbar=False)
    started = time.perf_counter()
    pooch.retrieve(url, f"sha256:{sha256}", place.name, place.parent, downloader=downloader)
    return time.perf_counter() - started


CHILDREN: dict[str, Callable[..., float]] = {
    "verify": verify_child,
    "download": download_child,
    "huggingface_hub": hub_child,
    "pooch": pooch_child,
    **{kind: functools.partial(fetch_child, kind) for kind in ("fetch", "unhashed", "killed")},
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(ANSWER + json.dumps(CHILDREN[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
