"""The training loop, as a generator: what to log, when to evaluate and save is the caller's."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import torch

from orlog.algos.algorithms import Algorithm
from orlog.loaders.batch import Batch

__all__ = ["train"]


def train(
    algorithm: Algorithm,
    batches: Iterable[Batch],
    *,
    first_step: int = 0,
    last_step: int,
    every: int,
) -> Iterator[tuple[int, dict[str, float]]]:
    """Take the updates after `first_step` up to `last_step`; yield (step, metrics) now and then.

    Yields after each multiple of `every` and after the last step. Metrics are means over the
    updates since the last yield. `batches` must begin with the batch of step `first_step`.

    Raises:
        FloatingPointError: a metric is not finite; the run has diverged.
        ValueError: the batches run out before the last step.
    """
    sums: dict[str, torch.Tensor] = {}
    count, step = 0, first_step
    for step, batch in enumerate(itertools.islice(batches, last_step - first_step), first_step + 1):
        metrics = algorithm.update(batch)
        count += 1
        for name, value in metrics.items():
            sums[name] = sums[name] + value if name in sums else value.clone()
        if step % every == 0 or step == last_step:
            means = {name: float(total) / count for name, total in sums.items()}
            diverged = [name for name, value in means.items() if not abs(value) < float("inf")]
            if diverged:
                raise FloatingPointError(
                    f"{diverged[0]} is not finite after {step} steps: the run has diverged; lower "
                    "the learning rate"
                )
            yield step, means
            sums, count = {}, 0
    if step < last_step:
        raise ValueError(f"the batches ran out after step {step} of {last_step}")
