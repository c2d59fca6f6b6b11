"""Samples per second of orlog's transitions against plain gathers of the same columns.

All candidates give torch tensors of the same transitions, index generation included, on one
thread, in turns within one run. The last one is the physical limit of a single gather with stored
next observations, which needs nearly twice the memory.

    python benchmarks/loader.py
"""

from __future__ import annotations

import functools
import json
import statistics
import time
from collections.abc import Callable

import torch

import orlog
from orlog.runs import code_versions

ROUNDS = 7
SECONDS = 0.5


def main() -> None:
    """Print one JSON object."""
    torch.set_num_threads(1)
    dataset = orlog.load_dataset("pointmaze/umaze-v1")
    started = time.perf_counter()
    dataset = orlog.load_dataset("pointmaze/umaze-v1")
    first = next(iter(orlog.transitions(dataset, 256, seed=0)))
    first_batch_s = time.perf_counter() - started
    packed = orlog.transitions(dataset, 256, seed=0).packed
    steps = torch.from_numpy(packed.step_rows)
    whole = packed.transitions[steps].contiguous()
    sizes = [
        first.observations.shape[1],
        first.actions.shape[1],
        1,
        1,
        1,
        first.observations.shape[1],
    ]
    columns = [part.contiguous() for part in whole.split_with_sizes(sizes, 1)]
    five = [columns[0], columns[1], columns[2], columns[5], columns[3]]

    results = {}
    for batch_size in (256, 4096):
        candidates: dict[str, Callable[[], object]] = {
            "orlog.transitions": functools.partial(
                next, iter(orlog.transitions(dataset, batch_size, seed=0))
            ),
            "index_select, 5 arrays": functools.partial(gather_five, five, batch_size),
            "index_select, packed with next observations": functools.partial(
                gather_packed, whole, sizes, batch_size
            ),
        }
        rates = measure(candidates, batch_size)
        base = rates["index_select, 5 arrays"]
        results[batch_size] = {
            name: {"transitions_per_s": round(rate), "ratio_to_5_arrays": round(rate / base, 2)}
            for name, rate in rates.items()
        }
    print(
        json.dumps(
            {
                "dataset": str(dataset),
                "first_batch_s": round(first_batch_s, 3),
                "packed_mb": round(packed.rows.numel() * 4 / 1e6, 1),
                "threads": 1,
                "versions": code_versions(),
                "by_batch_size": results,
            },
            indent=1,
        )
    )


def gather_five(columns: list[torch.Tensor], batch_size: int) -> list[torch.Tensor]:
    """Return a random batch from five arrays, as replay buffers keep them."""
    index = torch.randint(0, len(columns[0]), (batch_size,))
    return [column.index_select(0, index) for column in columns]


def gather_packed(
    whole: torch.Tensor, sizes: list[int], batch_size: int
) -> tuple[torch.Tensor, ...]:
    """Return a random batch from rows that hold next observations too."""
    index = torch.randint(0, len(whole), (batch_size,))
    return whole.index_select(0, index).split_with_sizes(sizes, 1)


def measure(candidates: dict[str, Callable[[], object]], batch_size: int) -> dict[str, float]:
    """Return the median rate of each candidate over rounds in which they take turns."""
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(ROUNDS):
        for name, call in candidates.items():
            count, started = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - started) < SECONDS:
                for _ in range(20):
                    call()
                count += 20
            rates[name].append(count * batch_size / elapsed)
    return {name: statistics.median(values) for name, values in rates.items()}


if __name__ == "__main__":
    main()
