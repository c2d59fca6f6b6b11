"""Runs jobs in processes on this machine, a few at a time."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from orlog.base.processes import cores, process_pool
from orlog.datasets.download.credentials import given_queries, take_queries
from orlog.errors import WorkerDiedError

Item = TypeVar("Item")
Output = TypeVar("Output")


def execute(
    function: Callable[[Item], Output],
    jobs: Iterable[Item],
    *,
    workers: int | None,
    running: Callable[[Item], None],
) -> Iterator[tuple[int, Output | Exception]]:
    """Yield (position, result) of each job as it finishes, or the error that it raised.

    A process is started when there is a job for it, and takes others afterwards. One that is killed
    ends no job but its own. `workers` is the number of cores by default.
    """
    waiting = enumerate(jobs)
    busy: dict[Future[Output], tuple[int, Item, Executor]] = {}
    with contextlib.ExitStack() as stack:
        # One pool for each process: a pool whose process was killed gives up all of its work.
        idle: list[Executor] = []
        while True:
            for index, job in itertools.islice(waiting, (workers or cores()) - len(busy)):
                future, pool = _submit(function, job, idle, stack)
                busy[future] = index, job, pool
            if not busy:
                return
            done, _ = wait(busy, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                index, _, pool = busy.pop(future)
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    error = WorkerDiedError(
                        "its process was killed, often because memory ran out; run the same "
                        "command again with fewer --workers, and with --resume unless it is a sweep."
                    )
                elif error is not None and not isinstance(error, Exception):
                    raise error
                else:
                    idle.append(pool)
                yield index, future.result() if error is None else error
            for _, job, _ in busy.values():
                running(job)


def _submit(
    function: Callable[[Item], Output], job: Item, idle: list[Executor], stack: contextlib.ExitStack
) -> tuple[Future[Output], Executor]:
    """Begin a job in an idle process, or in a new one; return its future and its pool."""
    while True:
        # What a process downloads may need the queries of signed URLs.
        prepare = functools.partial(take_queries, given_queries())
        pool = idle.pop() if idle else stack.enter_context(process_pool(1, prepare))
        with contextlib.suppress(BrokenProcessPool):  # it was killed while it had nothing to do
            return pool.submit(function, job), pool
