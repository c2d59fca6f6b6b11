"""Work in pieces: jobs for any executor, what they give used at once, and those that were lost done again.

An executor runs jobs somewhere: `execute` of a module in `orlog/executors/`, or any function that is called as
`execute_here` is. What jobs give does not depend on how many run at a time, on the order in which they end, or
on workers that are lost.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import platform
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from orlog.base.processes import cores, has_semaphores, process_pool, result_or_error
from orlog.errors import StorageError, WorkerDiedError

Item = TypeVar("Item")
Result = TypeVar("Result")
Handle = TypeVar("Handle")

Execute: TypeAlias = Callable[..., Iterable[tuple[int, Any]]]
"""Runs jobs somewhere: `execute` of a module in `orlog/executors/`, which datasets do not import."""

ATTEMPTS = 2
"""How often a job is begun whose process or machine is lost; Ray by itself begins it four times."""
AHEAD = 3
"""Jobs that wait for each process of this machine, while the caller works on results; one if these are in order."""


def do_jobs(
    function: Callable[[Item], Result],
    jobs: Iterable[Item],
    *,
    execute: Execute | None = None,
    workers: int | None = None,
    in_order: bool = False,
) -> Iterator[tuple[int, Result]]:
    """Yield (position in jobs, result) of each job: as they end, or in the order of jobs.

    In order, at most as many results wait in memory for an earlier one as jobs were running at a time: then no
    other job is begun. A job whose worker was killed, or whose machine was lost, is begun once more, and costs
    no other job anything.

    Args:
        function: Does one job; it, the jobs and the results can be pickled.
        jobs: What to do; the next one is taken when there is room for it.
        execute: Executor; processes of this machine by default, or this process itself for one worker.
        workers: Jobs at a time; by default as many as the executor has room for.
        in_order: Whether results come in the order of jobs.

    Raises whatever the first job raised that failed; WorkerDiedError if one was lost again and again.
    """
    if execute is None and workers == 1:
        yield from ((index, function(job)) for index, job in enumerate(jobs))
        return
    supply = _Supply(jobs)
    early: dict[int, Result] = {}
    following = 0
    while supply.has_more():
        ahead = (1 if in_order else AHEAD) * (workers or cores())
        how = execute or functools.partial(execute_here, ahead=ahead)
        ended = how(function, supply, workers=workers, running=lambda _job: None)
        with _ended_with(iter(ended)) as results:
            for position, found in results:
                taken = supply.done(position)
                if isinstance(found, WorkerDiedError) and supply.may_try_again(taken):
                    continue
                if isinstance(found, Exception):
                    raise found
                assert taken is not None, f"no job {position} was taken"
                index, _ = taken
                if not in_order:
                    yield index, found
                    continue
                early[index] = found
                while following in early:
                    supply.early = len(early) - 1
                    yield following, early.pop(following)
                    following += 1
                supply.early = len(early)
        supply.restart()


@contextlib.contextmanager
def _ended_with(results: Iterator[Result]) -> Iterator[Iterator[Result]]:
    """Yield results; end what makes them when no more are wanted."""
    try:
        yield results
    finally:
        if isinstance(results, Generator):
            results.close()


class _Supply(Generic[Item]):
    """Jobs for an executor, which takes them one by one; it may have none for a while, and go on later.

    Attributes:
        early: Results that wait for an earlier one.
    """

    def __init__(self, jobs: Iterable[Item]) -> None:
        self.early = 0
        self._new = enumerate(jobs)
        self._first: tuple[int, Item] | None = None
        self._again: deque[tuple[int, Item]] = deque()
        self._tries: dict[int, int] = {}
        self._running: dict[int, tuple[int, Item]] = {}  # by position in what this executor took
        self._taken = self._most = 0

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        # While results wait for an earlier one, it is running or waits here to be begun again.
        if not self._again and self.early and self.early >= self._most:
            raise StopIteration
        if not self.has_more():
            raise StopIteration
        if self._again:
            index, job = self._again.popleft()
        else:
            assert self._first is not None
            (index, job), self._first = self._first, None
        self._running[self._taken] = index, job
        self._taken += 1
        self._most = max(self._most, len(self._running))
        return job

    def has_more(self) -> bool:
        """Return whether there are jobs that no executor has taken."""
        if not self._again and self._first is None:
            self._first = next(self._new, None)
        return bool(self._again) or self._first is not None

    def done(self, position: int) -> tuple[int, Item] | None:
        """Note that a job ended, by its position in what the executor took; return its own, and the job."""
        return self._running.pop(position, None)

    def may_try_again(self, taken: tuple[int, Item] | None) -> bool:
        """Put a job that was lost in front of the others; return False if it was lost too often."""
        if taken is None:
            return False
        self._tries[taken[0]] = self._tries.get(taken[0], 1) + 1
        if self._tries[taken[0]] > ATTEMPTS:
            return False
        self._again.append(taken)
        return True

    def restart(self) -> None:
        """Note that the executor ended: another call of it counts from 0."""
        if self._running or not self._taken:
            lost = f"{len(self._running)} of its jobs" if self._running else "any job"
            raise WorkerDiedError(f"the executor ended without the results of {lost}.")
        self._taken = 0


def execute_here(
    function: Callable[[Item], Result],
    jobs: Iterable[Item],
    *,
    workers: int | None,
    running: Callable[[Item], None],
    ahead: int = 0,
) -> Iterator[tuple[int, Result | Exception]]:
    """Yield (position, result) of each job as it finishes in a process of this machine, or its error.

    A process is started when there is a job for it, and takes others afterwards. One that is killed
    ends no job but its own. `workers` is the number of cores by default; `ahead` jobs wait for a process, so
    that none is idle while the caller works on results.
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
    with process_pool(workers or cores()) as pool:
        yield from keep_busy(
            jobs,
            room=lambda: (workers or cores()) + ahead,
            begin=lambda job: pool.submit(function, job),
            ended=lambda busy: wait(busy, timeout=0.5, return_when=FIRST_COMPLETED)[0],
            result=_result_of,
            running=running,
        )


def _result_of(future: Future[Result]) -> Result | Exception:
    """Return what a job gave in its process, or the error in its place."""
    error = future.exception()
    if isinstance(error, BrokenProcessPool):
        return WorkerDiedError(
            "its process was killed, often because memory ran out; run the same "
            "command again with fewer workers, and with resume=True unless it is a sweep."
        )
    if error is not None and not isinstance(error, Exception):
        raise error
    return future.result() if error is None else error


def keep_busy(
    jobs: Iterable[Item],
    *,
    room: Callable[[], int],
    begin: Callable[[Item], Handle],
    ended: Callable[[Sequence[Handle]], Iterable[Handle]],
    result: Callable[[Handle], Result | Exception],
    running: Callable[[Item], None],
    cancel: Callable[[Handle], None] = lambda _handle: None,
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
    """
    waiting = enumerate(jobs)
    busy: dict[Handle, tuple[int, Item]] = {}
    try:
        while True:
            for index, job in itertools.islice(waiting, max(0, room() - len(busy))):
                busy[begin(job)] = index, job
            if not busy:
                return
            for handle in ended([*busy]):
                index, _ = busy.pop(handle)
                yield index, result(handle)
            for _, job in busy.values():
                running(job)
    finally:
        for handle in busy:
            cancel(handle)


def groups_of(
    items: Iterable[Item], size_of: Callable[[Item], int], size: int
) -> Iterator[Sequence[Item]]:
    """Yield items in groups of neighbors, each of about a size: a job should take seconds, not less."""
    group: list[Item] = []
    total = 0
    for item in items:
        group.append(item)
        total += size_of(item)
        if total >= size:
            yield group
            group, total = [], 0
    if group:
        yield group


def check_seen(*folders: Path) -> None:
    """Raise StorageError if this machine does not see a folder that another one gave it work in."""
    for folder in folders:
        if not folder.is_dir():
            raise StorageError(
                f"{folder}: {platform.node()} does not see this folder; put it on a disk that all machines "
                "of the cluster share."
            )
