"""A pool of worker processes that ends with its parent, however the parent ends; and the processor."""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import os
import pickle
import platform
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
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


class _Processes(Executor):
    """Freshly started processes, each behind a pipe and a thread of this one that waits for it.

    It needs no semaphores, as Python's own pool does: Linux keeps these in `/dev/shm`, which is missing or
    read-only in some containers. A process that is killed ends no work but its own.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._waiting = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._started: list[tuple[SpawnProcess, Connection]] = []
        self._is_over = False
        # An error may leave a generator that uses the pool waiting, and Python waits for processes.
        atexit.register(self.kill)

    def submit(
        self, function: Callable[..., Result], /, *arguments: Any, **named: Any
    ) -> Future[Result]:
        """Begin work in a process that has none, or in a new one if there may be more."""
        future: Future[Result] = Future()
        self._waiting.put((future, functools.partial(function, *arguments, **named)))
        if len(self._threads) < self._workers:
            self._threads.append(threading.Thread(target=self._work_off, daemon=True))
            self._threads[-1].start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes once their work is done, or what of it is not cancelled."""
        if cancel_futures:
            self._cancel()
        for _ in self._threads:
            self._waiting.put(None)
        if not wait:
            return
        for thread in self._threads:
            thread.join()
        for process, pipe in self._started:
            pipe.close()
            process.join()
        atexit.unregister(self.kill)

    def kill(self) -> None:
        """End the processes at once, whatever they do."""
        with self._lock:
            self._is_over = True
            for process, _ in self._started:
                process.kill()
        self.shutdown(wait=False, cancel_futures=True)
        atexit.unregister(self.kill)

    def _cancel(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                given = self._waiting.get_nowait()
                if given is not None:
                    given[0].cancel()

    def _work_off(self) -> None:
        """Have work done by one process after the other, as long as there is any."""
        pipe: Connection | None = None
        while (given := self._waiting.get()) is not None:
            future, work = given
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if pipe is None or not _is_sent(pipe, work):  # it was killed while it did nothing
                    pipe = self._start()
                    pipe.send(work)
                is_done, outcome = pipe.recv()
            except (EOFError, ConnectionError):
                pipe = None
                future.set_exception(BrokenProcessPool("a process was killed while it worked."))
            except BaseException as error:  # noqa: BLE001 (such as work that cannot be pickled)
                future.set_exception(error)
            else:
                (future.set_result if is_done else future.set_exception)(outcome)

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,))
        with self._lock:
            if self._is_over:
                raise BrokenProcessPool("the pool was ended.")
            with _quietly():
                process.start()
            self._started.append((process, pipe))
        theirs.close()  # or the end of the process would not be seen
        return pipe


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Start a process so that neither Ctrl-C nor a kill makes Python print anything about it."""
    if os.name != "posix":
        yield
        return
    # Python's tracker would warn of semaphores that packages make and killed processes leave; it removes them.
    sys.warnoptions.append("ignore:resource_tracker")
    resource_tracker.ensure_running()
    sys.warnoptions.remove("ignore:resource_tracker")
    # Held back until the process ignores it; before that it would print a traceback.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_sent(pipe: Connection, work: object) -> bool:
    try:
        pipe.send(work)
    except ConnectionError:
        return False
    return True


def _serve(pipe: Connection) -> None:
    """Do the work that comes through a pipe, until its other end is closed."""
    _follow_parent()
    while True:
        answer: tuple[bool, object]
        try:
            work = pipe.recv()
        except EOFError:
            return
        except Exception as error:  # noqa: BLE001 (as below: such as a module that is not here)
            answer = False, error
        else:
            answer = _outcome(work)
        try:
            pipe.send_bytes(
                ForkingPickler.dumps(answer, pickle.HIGHEST_PROTOCOL)
            )  # copies arrays once
        except ConnectionError:  # who asked was killed
            return
        except Exception as error:  # noqa: BLE001 (such as a result that cannot be pickled)
            pipe.send((False, error))


def _outcome(work: Callable[[], object]) -> tuple[bool, object]:
    """Return whether work was done, and what it gave or the error that it raised."""
    try:
        return True, work()
    except BaseException as error:  # noqa: BLE001 (it is raised where the result is asked for)
        error.add_note("".join(traceback.format_exception(error)))
        return False, error


@contextlib.contextmanager
def process_pool(workers: int) -> Iterator[Executor]:
    """Yield a pool of freshly started processes; an error or Ctrl-C inside kills them at once.

    The script that calls this needs `if __name__ == "__main__":`, as with any started process. A process is
    started when there is work for it, and takes more afterwards.

    Raises WorkerDiedError if a worker was killed.
    """
    pool = _Processes(workers)
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


def _follow_parent() -> None:
    """Leave Ctrl-C to the parent, and exit when the parent ends, even if it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
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
