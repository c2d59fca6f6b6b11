"""Jobs for any executor, their results in order.

An executor runs jobs somewhere: `execute` of a module in `orlog/executors/`, or any function that is called as
`execute_here` is. Results do not depend on how many jobs run at a time, or on the order in which they end.
"""

from __future__ import annotations

import functools
import itertools
import platform
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from orlog.base.processes import ProcessPool, cores, has_semaphores, result_or_error
from orlog.errors import StorageError, WorkerDiedError

Item = TypeVar("Item")
Result = TypeVar("Result")
Handle = TypeVar("Handle")

Execute: TypeAlias = Callable[..., Iterable[tuple[int, Any]]]
"""Runs jobs somewhere: `execute` of a module in `orlog/executors/`, which datasets do not import."""

ATTEMPTS = 2
"""How often a job is begun whose process on this machine is killed; clusters begin lost jobs again by themselves."""


def do_jobs(
    function: Callable[[Item], Result],
    jobs: Iterable[Item],
    *,
    execute: Execute | None = None,
    workers: int | None = None,
) -> Iterator[Result]:
    """Yield the result of each job, in the order of jobs.

    At most as many results wait in memory for an earlier one as jobs were running at a time: then no other job is
    begun.

    Args:
        function: Does one job; it, the jobs and the results can be pickled.
        jobs: What to do; the next one is taken when there is room for it.
        execute: Executor; processes of this machine by default, or this process itself for one worker.
        workers: Jobs at a time; by default as many as the executor has room for.

    Raises whatever the first job raised that failed; WorkerDiedError if the process of one was killed again and again.
    """
    if execute is None and workers == 1:
        yield from map(function, jobs)
        return
    ahead = workers or cores()  # jobs that wait for a process while the caller works on results
    execute = execute or functools.partial(execute_here, ahead=ahead, attempts=ATTEMPTS)
    supply = _Supply(jobs)
    following = 0
    # Only the loop holds what the executor yields, so an executor ends with the loop, by an error too.
    for index, result in execute(function, supply, workers=workers, running=lambda _job: None):
        if isinstance(result, Exception):
            raise result
        supply.ended += 1
        supply.early[index] = result
        while following in supply.early:
            yield supply.early.pop(following)
            following += 1
    if following < supply.taken or any(True for _ in supply.jobs):
        raise WorkerDiedError(f"the executor ended after {following} jobs without doing the others.")


class _Supply(Generic[Item]):
    """Jobs for an executor; there are none for a while when too many results wait for an earlier one."""

    def __init__(self, jobs: Iterable[Item]) -> None:
        self.jobs = iter(jobs)
        self.early: dict[int, Any] = {}
        self.taken = self.ended = self._most = 0

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self.early and len(self.early) >= self._most:
            raise StopIteration
        job = next(self.jobs)
        self.taken += 1
        self._most = max(self._most, self.taken - self.ended)
        return job


def execute_here(
    function: Callable[[Item], Result],
    jobs: Iterable[Item],
    *,
    workers: int | None,
    running: Callable[[Item], None],
    ahead: int = 0,
    attempts: int = 1,
) -> Iterator[tuple[int, Result | Exception]]:
    """Yield (position, result) of each job as it finishes in a process of this machine, or its error.

    A process is started when there is a job for it, and takes others afterwards. One that is killed
    ends no job but its own, which is begun so many `attempts` times. `workers` is the number of cores by default;
    `ahead` jobs wait for a process, so that none is idle while the caller works on results.
    """
    if not has_semaphores():
        warnings.warn(
            "jobs run in this process, one after the other: this system has no semaphores, without which no others "
            "can be started; on Linux, mount /dev/shm so that it can be written to.",
            stacklevel=2,
        )
        for index, job in enumerate(jobs):
            running(job)
            yield index, result_or_error(function, job)
        return
    at_a_time = workers or cores()
    with ProcessPool(at_a_time) as pool:
        yield from keep_busy(
            jobs,
            room=lambda: at_a_time + ahead,
            begin=lambda job: pool.submit(function, job),
            ended=lambda busy: wait(busy, timeout=0.5, return_when=FIRST_COMPLETED)[0],
            result=functools.partial(result_or_error, Future.result),
            running=running,
            attempts=attempts,
        )


def keep_busy(
    jobs: Iterable[Item],
    *,
    room: Callable[[], int],
    begin: Callable[[Item], Handle],
    ended: Callable[[Sequence[Handle]], Iterable[Handle]],
    result: Callable[[Handle], Result | Exception],
    running: Callable[[Item], None],
    cancel: Callable[[Handle], None] = lambda _handle: None,
    attempts: int = 1,
) -> Iterator[tuple[int, Result | Exception]]:
    """Yield (position, result) of each job as it ends; for executors, which say how one is begun and seen to end.

    Args:
        jobs: What to do; the next one is taken when there is room for it.
        room: How many may be begun and not yet ended.
        begin: Begins a job, and returns what stands for it.
        ended: Waits a little, and returns which of those that were begun have ended.
        result: What a job gave that has ended, or the error that it raised.
        running: Called now and then with each job that is running.
        cancel: Ends a job, where no more results are wanted.
        attempts: How often a job is begun that ends with a WorkerDiedError.
    """
    waiting = enumerate(jobs)
    busy: dict[Handle, tuple[int, Item, int]] = {}
    try:
        while True:
            for index, job in itertools.islice(waiting, max(0, room() - len(busy))):
                busy[begin(job)] = index, job, 1
            if not busy:
                return
            for handle in ended([*busy]):
                index, job, attempt = busy.pop(handle)
                outcome = result(handle)
                if isinstance(outcome, WorkerDiedError) and attempt < attempts:
                    busy[begin(job)] = index, job, attempt + 1
                else:
                    yield index, outcome
            for _, job, _ in busy.values():
                running(job)
    finally:
        for handle in busy:
            cancel(handle)


def check_seen(*folders: Path) -> None:
    """Raise StorageError if this machine does not see a folder that another one gave it work in."""
    for folder in folders:
        if not folder.is_dir():
            raise StorageError(
                f"{folder}: {platform.node()} does not see this folder; put it on a disk that all machines "
                "of the cluster share."
            )
