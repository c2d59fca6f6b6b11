"""A pool of worker processes that ends with its parent, however the parent ends; and the processor."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import os
import pickle
import platform
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
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
    """Return whether this system has the semaphores of Python's pools.

    Linux keeps them in `/dev/shm`, which is missing or read-only in some containers.
    """
    try:
        multiprocessing.get_context("spawn").Lock()
    except (ImportError, OSError):
        return False
    return True


class _Processes(ThreadPoolExecutor):
    """Threads that each have a freshly started process, so that one that is killed ends no work but its own."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, initializer=_leave_interrupts)
        self._of_thread = threading.local()
        self._started: list[ProcessPoolExecutor] = []
        self._awaited, self._alive = multiprocessing.Pipe(
            duplex=False
        )  # processes end when it closes

    def submit(
        self, function: Callable[..., Result], /, *arguments: Any, **named: Any
    ) -> Future[Result]:
        """Begin work in a process that has none, or in a new one if there may be more."""
        return super().submit(self._work, functools.partial(function, *arguments, **named))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes once their work is done, or what of it is not cancelled."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        for process in self._started:
            process.shutdown(wait)

    def kill(self) -> None:
        """End the processes at once, whatever they do."""
        self._alive.close()
        for pool in [*self._started]:
            for process in [*(pool._processes or {}).values()]:  # which may not watch the pipe yet
                process.kill()
        self.shutdown(cancel_futures=True)

    def _work(self, work: Callable[[], Result]) -> Result:
        # Pickled here: a process that cannot read what a pool sends it ends without saying why.
        pickled = pickle.dumps(work, pickle.HIGHEST_PROTOCOL)
        try:
            future = self._process().submit(_do_pickled, pickled)
        except BrokenProcessPool:  # it was killed while it did nothing
            del self._of_thread.process
            future = self._process().submit(_do_pickled, pickled)
        try:
            result: Result = future.result()
        except BrokenProcessPool:
            del self._of_thread.process
            raise
        return result

    def _process(self) -> ProcessPoolExecutor:
        """Return the process of this thread."""
        if self._alive.closed:
            raise BrokenProcessPool("the pool was ended.")
        if not hasattr(self._of_thread, "process"):
            self._of_thread.process = ProcessPoolExecutor(
                1,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_follow_parent,
                initargs=(self._awaited,),
            )
            self._started.append(self._of_thread.process)
        process: ProcessPoolExecutor = self._of_thread.process
        return process


def _do_pickled(work: bytes) -> Any:
    return pickle.loads(work)()  # noqa: S301 (the parent made it)


def _leave_interrupts() -> None:
    """Let processes that this thread starts not see Ctrl-C: before they ignore it, it would print a traceback."""
    if os.name == "posix":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


@contextlib.contextmanager
def process_pool(workers: int) -> Iterator[Executor]:
    """Yield a pool of freshly started processes; an error or Ctrl-C inside kills them at once.

    The script that calls this needs `if __name__ == "__main__":`, as with any started process. A process is
    started when there is work for it, and takes more afterwards.

    Raises WorkerDiedError if a worker was killed.
    """
    if os.name == "posix":
        # Python's tracker would warn of semaphores that killed processes leave; it removes them.
        sys.warnoptions.append("ignore:resource_tracker")
        resource_tracker.ensure_running()
        sys.warnoptions.remove("ignore:resource_tracker")
    pool = _Processes(workers)
    _OPEN.add(pool)
    _end_with_interpreter()
    try:
        yield pool
    except BaseException as error:
        pool.kill()
        if isinstance(error, BrokenProcessPool):
            raise WorkerDiedError(
                "a worker process was killed, often because memory ran out; no unfinished work was "
                "left. Run the same command again; if it happens again, use workers=1."
            ) from error
        raise
    pool.shutdown()


_OPEN: weakref.WeakSet[_Processes] = weakref.WeakSet()


@functools.cache
def _end_with_interpreter() -> None:
    """Kill processes before Python waits for them: an error may leave a generator that uses a pool waiting."""

    def kill_all() -> None:
        for pool in [*_OPEN]:
            pool.kill()

    # Not `atexit`, which comes after the waiting; the pools of Python use it too.
    threading._register_atexit(kill_all)  # type: ignore[attr-defined]


def _follow_parent(awaited: Connection) -> None:
    """Leave Ctrl-C to the parent, and exit when it closes its end of a pipe, or ends, even if it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel, awaited])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@functools.cache
def processor_name() -> str:
    """Return the model of this machine's processor, or its architecture where that is not known.

    Floating-point results agree to the bit on processors of one kind only: libraries choose other
    instructions on others.
    """
    if platform.system() == "Linux":
        with contextlib.suppress(OSError):
            for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
                key, _, value = line.partition(":")
                if key.strip() == "model name" and value.strip():
                    return " ".join(value.split())
    if platform.system() == "Darwin":
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            found = subprocess.run(
                ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"],
                check=True,
                capture_output=True,
                encoding="utf-8",
            )
            return found.stdout.strip()
    return platform.processor() or platform.machine() or "unknown"
