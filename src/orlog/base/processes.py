"""A pool of worker processes that ends with its parent, however the parent ends; and the processor."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import os
import platform
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from orlog.errors import WorkerDiedError

Item = TypeVar("Item")
Result = TypeVar("Result")

Execute: TypeAlias = Callable[..., Iterable[tuple[int, Any]]]
"""Runs jobs somewhere: `execute` of a module in `orlog/executors/`, which datasets do not import."""


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


def _nothing() -> None:
    """Prepare nothing."""


@contextlib.contextmanager
def process_pool(
    workers: int, prepare: Callable[[], object] = _nothing
) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of freshly started processes; an error or Ctrl-C inside kills them at once.

    The script that calls this needs `if __name__ == "__main__":`, as with any started process. Each process
    calls `prepare` first, which reaches it through a pipe.

    Raises WorkerDiedError if a worker was killed.
    """
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(prepare,),
    )
    try:
        yield pool
    except BaseException as error:
        # If Ctrl-C comes while the pool starts its processes, its own shutdown waits for them
        # forever.
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise WorkerDiedError(
                "a worker process was killed, often because memory ran out; no unfinished work was "
                "left. Run the same command again; if it happens again, use --workers 1."
            ) from error
        raise
    pool.shutdown()


def map_in_order(
    pool: ProcessPoolExecutor,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    ahead: int,
) -> Iterator[Result]:
    """Yield `function(item)` in the order of items, with at most `ahead` results in memory.

    A caller that stops early leaves undone what no process has begun.
    """
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for one in waiting:
            one.cancel()


def _begin(prepare: Callable[[], object]) -> None:
    _follow_parent()
    prepare()


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
