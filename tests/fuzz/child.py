"""A process that opens hostile documents, watched: its end, its time, its memory and its paths."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import resource
import site
import sys
import sysconfig
import time
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple

LONGEST = 60
MOST_BYTES = 2**29


def _make_outside():
    Path("../new").mkdir()
    Path("../new").rmdir()


PROBES = {
    "crash": os.abort,
    "large": lambda: b"x" * (MOST_BYTES + 2**26),
    "too large": lambda: bytes(2**40),
    "other error": lambda: int("x"),
    "open outside": lambda: Path("../outside/secret").read_text(),
    "look outside": lambda: Path("../outside/secret").is_file(),
    "make outside": _make_outside,
}
SEES = ("stat", "lstat", "access", "readlink")


class Answer(NamedTuple):
    """What came of one document.

    Attributes:
        outcome: `right`, the name of an OrlogError, or what went wrong.
        is_good: Whether it is one of the first two.
    """

    outcome: str
    is_good: bool


class Child:
    """Opens documents in a process of its own, so that a crash or hang there is seen here.

    Attributes:
        counts: How often each outcome came.
    """

    def __init__(self, folder):
        self.folder = folder.resolve()
        self.counts = {}
        self._start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._pipe.close()  # which ends it, unless it hangs
        self._process.join(1)
        self._process.kill()
        self._process.join()

    def check(self, kind, data):
        """Open a document, or one that some steps make; a process that dies or hangs is replaced.

        A kind in `PROBES` does wrong, to see that it is seen.
        """
        answer = self._ask(kind, data)
        self.counts[answer.outcome] = self.counts.get(answer.outcome, 0) + 1
        return answer

    def _ask(self, kind, data):
        try:
            self._pipe.send((kind, data))
            if self._pipe.poll(LONGEST):
                return Answer(*self._pipe.recv())
            outcome = f"hangs for {LONGEST} seconds"
        except (EOFError, OSError):
            self._process.join(LONGEST)
            outcome = f"ended the process with code {self._process.exitcode}"
        self.__exit__()
        self._start()
        return Answer(outcome, False)

    def _start(self):
        work = self.folder / f"work-{time.monotonic_ns()}" / "inside"
        work.mkdir(parents=True)
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        self._process.start()
        theirs.close()
        assert self._pipe.recv() == "ready"


class _Watch:
    """Notes paths outside of a folder that this process opens, looks at or changes."""

    def __init__(self, folder):
        self.escapes = []
        self.is_on = False
        paths = {*sys.path, *site.getsitepackages(), *sysconfig.get_paths().values(), sys.prefix}
        source = Path(__file__).resolve().parents[2]
        allowed = {folder, source, *(Path(path).resolve() for path in paths if path)}
        # The devices, but not what lies in memory there, as the folders of tests may.
        devices = [path for path in Path("/dev").iterdir() if path.name != "shm"]
        self._allowed = tuple(f"{path}{os.sep}" for path in {*allowed, *devices, Path("/proc")})
        # Links on the way are looked for.
        self._parents = {str(parent) for parent in (folder, *folder.parents)}
        for name in SEES:
            setattr(os, name, self._watched(getattr(os, name)))
        sys.addaudithook(self._hear)

    def _watched(self, real):
        def watched(path, *arguments, **options):
            self._note(real.__name__, path)
            return real(path, *arguments, **options)

        return watched

    def _hear(self, event, arguments):
        if event == "open" or event.startswith(("os.", "shutil.")):
            for argument in arguments[:2]:
                self._note(event, argument)

    def _note(self, event, path):
        if not self.is_on or not isinstance(path, str | bytes | os.PathLike):
            return
        text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 (it must not look at links)
        is_mode = event == "open" and len(os.fsdecode(path)) <= 3
        if not (is_mode or text in self._parents or f"{text}/".startswith(self._allowed)):
            self.escapes.append(f"{event} {text}")


def _serve(pipe, work):
    os.chdir(work)
    warnings.simplefilter("ignore")
    outside = work.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    from orlog.errors import OrlogError
    from tests.fuzz.documents import Workplace

    os.fsync = lambda _: None  # half of the time, and for nothing here
    place = Workplace(work)
    watch = _Watch(work)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 4 * MOST_BYTES, resource.RLIM_INFINITY))
    pipe.send("ready")
    while True:
        try:
            kind, data = pipe.recv()
        except EOFError:
            return
        if not isinstance(data, bytes):
            data = place.damaged(kind, data)
        before = _reset_peak()
        watch.is_on = True
        try:
            if kind in PROBES:
                PROBES[kind]()
            else:
                place.check(kind, data)
            answer = ("right", True)
        except OrlogError as error:
            is_told = len(str(error)) < 10_000
            answer = (type(error).__name__, True) if is_told else ("a message without end", False)
        except BaseException:  # noqa: BLE001 (that is what is looked for)
            answer = (traceback.format_exc(), False)
        watch.is_on = False
        if _peak_bytes() - before > MOST_BYTES:
            answer = (f"took {_peak_bytes() - before} bytes", False)
        left = sorted(path.name for path in work.parent.iterdir())
        if watch.escapes or left != ["inside", "outside"] or len(list(outside.iterdir())) != 1:
            answer = (f"left its folder: {watch.escapes} {left}", False)
            watch.escapes = []
        pipe.send(answer)


def _peak_bytes():
    """Return the most memory that this process had since `_reset_peak`."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024


def _reset_peak():
    with contextlib.suppress(OSError):  # then it is the most since the process began
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()
