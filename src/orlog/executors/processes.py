"""Runs jobs in processes on this machine, a few at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from orlog.base.jobs import execute_here
from orlog.datasets.download.credentials import given_queries, take_queries

Item = TypeVar("Item")
Output = TypeVar("Output")


def execute(
    function: Callable[[Item], Output],
    jobs: Iterable[Item],
    *,
    workers: int | None,
    running: Callable[[Item], None],
) -> Iterator[tuple[int, Output | Exception]]:
    """Yield (position, result) of each job as it finishes, or the error that it raised; as `execute_here`.

    What a process downloads may need the queries of signed URLs, which it is told.
    """
    told = functools.partial(_run, function, given_queries())
    return execute_here(told, jobs, workers=workers, running=running)


def _run(function: Callable[[Item], Output], queries: dict[str, str], job: Item) -> Output:
    take_queries(queries)
    return function(job)
