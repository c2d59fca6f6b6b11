"""Runs jobs in processes on this machine, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from orlog.base.jobs import execute_here
from orlog.datasets.download.http import bringing_queries

Item = TypeVar("Item")
Output = TypeVar("Output")


def execute(
    function: Callable[[Item], Output], jobs: Iterable[Item], *, workers: int | None, running: Callable[[Item], None]
) -> Iterator[tuple[int, Output | Exception]]:
    """Yield (position, result) of each job as it finishes, or the error that it raised; as `execute_here`.

    What a process downloads may need the queries of signed URLs, which it is told.
    """
    return execute_here(bringing_queries(function), jobs, workers=workers, running=running)
