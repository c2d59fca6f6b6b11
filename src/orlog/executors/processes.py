"""Runs jobs in processes on this machine, a few at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
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
    busy: dict[Future[Output], tuple[int, Item]] = {}
    with process_pool(workers or cores()) as pool:
        while True:
            for index, job in itertools.islice(waiting, (workers or cores()) - len(busy)):
                # What a process downloads may need the queries of signed URLs.
                future = pool.submit(_run, function, job, given_queries())
                busy[future] = index, job
            if not busy:
                return
            done, _ = wait(busy, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                index, _ = busy.pop(future)
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    error = WorkerDiedError(
                        "its process was killed, often because memory ran out; run the same "
                        "command again with fewer workers, and with resume=True unless it is a sweep."
                    )
                elif error is not None and not isinstance(error, Exception):
                    raise error
                yield index, future.result() if error is None else error
            for _, job in busy.values():
                running(job)


def _run(function: Callable[[Item], Output], job: Item, queries: dict[str, str]) -> Output:
    take_queries(queries)
    return function(job)
