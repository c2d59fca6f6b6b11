"""A pool of worker processes that ends with its parent; signals that ask this process to stop; and the processor."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import platform
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from orlog.errors import WorkerDiedError

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def result_or_error(function: Callable[[Item], Result], item: Item) -> Result | Exception:
    """Return what a function returns, or the error that it raised, to be sent to another machine."""
    try:
        return function(item)
    except Exception as error:  # noqa: BLE001 (whatever it is, who asked for the work is told)
        return error


def has_semaphores() -> bool:
    """Say whether this system has what other processes need to be started: some containers lack /dev/shm."""
    if os.name == "posix":
        # Python's tracker would warn of semaphores that killed processes leave; it removes them.
        sys.warnoptions.append("ignore:resource_tracker")
        resource_tracker.ensure_running()
        sys.warnoptions.remove("ignore:resource_tracker")
    try:
        multiprocessing.get_context("spawn").Lock()
    except (ImportError, OSError):
        return False
    return True


class ProcessPool(ThreadPoolExecutor):
    """Threads that each have a freshly started process, so that one that is killed ends no work but its own.

    The script that uses it needs `if __name__ == "__main__":`, as with any started process. A process is started
    when there is work for it, and takes more afterwards. An error or Ctrl-C in the `with` block kills them at once.
    """

    def __init__(self, workers: int) -> None:
        """Start no process yet."""
        super().__init__(workers, initializer=_leave_interrupts)
        self._of_thread = threading.local()
        self._started: list[ProcessPoolExecutor] = []
        self._is_killed = False
        self._lock = threading.Lock()
        _open_pools.add(self)

    def submit(self, function: Callable[..., Result], /, *arguments: Any, **named: Any) -> Future[Result]:
        """Begin work in a process that has none, or in a new one; its future raises WorkerDiedError if that is killed."""
        # Pickled here: a process that cannot read what a pool sends it ends without saying why.
        pickled = pickle.dumps(functools.partial(function, *arguments, **named), pickle.HIGHEST_PROTOCOL)
        return super().submit(self._work, pickled)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """End the processes once their work is done; at once after an error."""
        if kind is not None:
            self.kill()
        self.shutdown()
        for process in self._started:
            process.shutdown()
        _open_pools.discard(self)

    def kill(self) -> None:
        """End the processes at once, whatever they do."""
        with self._lock:
            self._is_killed = True
            for pool in self._started:
                for process in [*(pool._processes or {}).values()]:
                    # On Linux, what it started too: glfw, while it is imported, starts a Python that would complain.
                    for listing in Path(f"/proc/{process.pid}/task").glob("*/children"):
                        with contextlib.suppress(OSError):
                            for child in listing.read_text("ascii").split():
                                os.kill(int(child), signal.SIGKILL)
                    process.kill()
        self.shutdown(cancel_futures=True)

    def _work(self, pickled: bytes) -> Any:
        """Do work in the process of this thread, or in a new one if it was killed."""
        with self._lock:  # so that `kill` sees every process
            if self._is_killed:
                raise WorkerDiedError("the pool was ended.")
            pool: Any = getattr(self._of_thread, "pool", None)
            if not pool or pool._broken or not all(process.is_alive() for process in pool._processes.values()):
                spawning = multiprocessing.get_context("spawn")
                pool = self._of_thread.pool = ProcessPoolExecutor(1, spawning, _follow_parent)
                self._started.append(pool)
            future = pool.submit(_do_pickled, pickled)
        try:
            return future.result()
        except BrokenProcessPool:
            raise WorkerDiedError(
                "its process was killed, often because memory ran out; run the same "
                "command again with fewer workers, and with resume=True unless it is a sweep."
            ) from None


_open_pools: set[ProcessPool] = set()


def _kill_all() -> None:
    for pool in [*_open_pools]:
        pool.kill()


# Before Python waits for processes, as `atexit` is not: an error may leave a generator that uses a pool waiting.
threading._register_atexit(_kill_all)  # type: ignore[attr-defined]


def _do_pickled(work: bytes) -> Any:
    return pickle.loads(work)()  # noqa: S301 (the parent made it)


def _leave_interrupts() -> None:
    """Let processes that this thread starts not see Ctrl-C: before they ignore it, it would print a traceback."""
    if os.name == "posix":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


def _follow_parent() -> None:
    """Leave Ctrl-C to the parent, and exit when it ends, even if it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@functools.cache
def processor_name() -> str:
    """Return the model of this machine's processor, or its architecture where that is not known.

    Floating-point results agree to the bit on processors of one kind only: libraries choose other
    instructions on others.
    """
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        if platform.system() == "Darwin":
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.check_output(command, encoding="utf-8").strip()  # noqa: S603
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
        if model := re.search(r"^model name\s*: *(\S.*)", text, re.MULTILINE):
            return " ".join(model[1].split())
    return platform.processor() or platform.machine() or "unknown"


class StopRequest:
    """Records the first signal that asks a process to stop; a second one acts as usual.

    Attributes:
        signal: Number of the signal received; 0 if there was none.
    """

    def __init__(self) -> None:
        self.signal = 0

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Record signals instead of being ended by them. Only the main thread can do this."""
        self._usual = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            self._act_as_usual()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        self._act_as_usual()

    def _act_as_usual(self) -> None:
        for number, handler in self._usual.items():
            signal.signal(number, handler)
