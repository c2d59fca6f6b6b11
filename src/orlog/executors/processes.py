"""Runs jobs in processes on this machine, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from typing import TypeVar

from orlog.processes import process_pool

__all__ = ["execute"]

Item = TypeVar("Item")
Output = TypeVar("Output")


def execute(
    function: Callable[[Item], Output],
    jobs: Sequence[Item],
    *,
    workers: int,
    running: Callable[[Item], None],
) -> Iterator[tuple[int, Output]]:
    """Yield (position, result) of each job as it finishes; the first error ends all of them."""
    with process_pool(min(workers, len(jobs))) as pool:
        positions = {pool.submit(function, job): index for index, job in enumerate(jobs)}
        unfinished = set(positions)
        while unfinished:
            done, unfinished = wait(unfinished, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                yield positions[future], future.result()
            for future in unfinished:
                running(jobs[positions[future]])
