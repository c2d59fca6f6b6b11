"""A process that does what it is told, watched: its end, its time and its memory, so that a crash or hang there is seen here."""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
import signal
import time
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple

LONGEST = 5.0  # seconds of the processor
ENDS = 7.0  # the same; a process that takes so long for one thing is ended
HANGS = 60  # seconds that a process may wait for something
MOST_BYTES = 2**29


class Answer(NamedTuple):
    """What came of one thing: `right`, the name of an OrlogError, or what went wrong; and whether it is one of the first two."""

    outcome: str
    is_good: bool


class Watched:
    """A process in which `start(folder)` makes a function that is called for each thing; one that dies or hangs is replaced.

    `counts` are how often each outcome came.
    """

    def __init__(self, folder, start):
        self.folder, self._make = folder.resolve(), start
        self.counts = {}
        self._start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._pipe.close()  # which ends it, unless it hangs
        self._process.join(1)
        self._process.kill()
        self._process.join()

    def ask(self, *thing):
        """Return what comes of a thing; the function returns a text if something is wrong, or raises an OrlogError."""
        try:
            self._pipe.send(thing)
            if self._pipe.poll(HANGS):
                answer = Answer(*self._pipe.recv())
                self.counts[answer.outcome] = self.counts.get(answer.outcome, 0) + 1
                return answer
            outcome = f"hangs for {HANGS} seconds"
        except (EOFError, OSError):
            self._process.join(HANGS)
            outcome = f"ended the process with code {self._process.exitcode}"
        self.__exit__()
        self._start()
        return Answer(outcome, False)

    def _start(self):
        work = self.folder / f"work-{time.monotonic_ns()}" / "inside"
        work.mkdir(parents=True)
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(theirs, self._make, work), daemon=True)
        self._process.start()
        theirs.close()
        assert self._pipe.recv() == "ready"


def limit_memory(times=4):
    """Let this process take a few times what a thing may."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + times * MOST_BYTES, resource.RLIM_INFINITY))


def _serve(pipe, start, work):
    from orlog.errors import OrlogError

    warnings.simplefilter("ignore")
    do = start(work)
    limit_memory(6)
    pipe.send("ready")
    while True:
        try:
            thing = pipe.recv()
        except EOFError:
            return
        before, began = _reset_peak(), time.process_time()
        is_sound = thing[-1] is None  # which may take its time
        signal.setitimer(signal.ITIMER_PROF, 0 if is_sound else ENDS)  # its signal ends this process
        try:
            wrong = do(*thing)
            answer = (wrong, False) if wrong else ("right", True)
        except OrlogError as error:
            answer = (type(error).__name__, True) if len(str(error)) < 10_000 else ("a message without end", False)
        except BaseException:  # noqa: BLE001 (that is what is looked for)
            answer = (traceback.format_exc(), False)
        signal.setitimer(signal.ITIMER_PROF, 0)
        spent, grown = time.process_time() - began, _peak_bytes() - before
        if not is_sound and (spent > LONGEST or grown > getattr(do, "most", MOST_BYTES)):
            answer = (f"took {spent:.1f} seconds and {grown:,} bytes of memory", False)
        pipe.send(answer)


def _peak_bytes():
    """Return the most memory that this process had since `_reset_peak`."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024


def _reset_peak():
    with contextlib.suppress(OSError):  # then it is the most since the process began
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()
