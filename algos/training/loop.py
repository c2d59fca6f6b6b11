"""The training loop as a generator; its caller decides when to log, evaluate and save."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Real
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from orlog.algos.algorithms import own_errors
from orlog.algos.relu_networks import Precision, products_in
from orlog.algos.repeated_updates import updates_of
from orlog.errors import AlgorithmError, DivergedError
from orlog.manifests.names import counted


class Trainable(Protocol):
    """The part of an algorithm that the loop uses."""

    def update(self, batch: Any) -> Mapping[str, Tensor | float] | None:
        """Take one gradient step; return numbers of the batch to log, by name, or nothing."""


def train(
    algorithm: Trainable,
    batches: Iterable[Any],
    *,
    first_step: int = 0,
    last_step: int,
    every: int,
    sums: dict[str, Tensor | float] | None = None,
    pauses: Callable[[], bool] = lambda: False,
    precision: Precision = "float32",
) -> Iterator[tuple[int, dict[str, float]]]:
    """Take the updates after `first_step` up to `last_step`; yield (step, metrics) now and then.

    Yields after each multiple of `every` and after the last step, with the means of the metrics
    over the updates since the last such yield. `batches` must begin with the batch of step
    `first_step`. `pauses` is called after each update; if it returns true, (step, {}) is also yielded.

    `sums` are the sums of the metrics since the last multiple of `every`. The loop updates them in
    place, so that a caller can save them between two multiples and resume from there.
    """
    sums = {} if sums is None else sums
    kind = type(algorithm)
    update = updates_of(algorithm)
    count, step = first_step % every if sums else 0, first_step
    for step, batch in enumerate(itertools.islice(batches, last_step - first_step), first_step + 1):
        with own_errors(kind), products_in(precision):
            _add(sums, update(batch), kind)
        count += 1
        if step % every == 0 or step == last_step:
            means = {name: float(total) / count for name, total in sums.items()}
            diverged = [name for name, value in means.items() if not abs(value) < float("inf")]
            if diverged:
                raise DivergedError(
                    f"{diverged[0]} is not finite after {counted(step, 'step')}: the run has diverged; lower "
                    "the learning rate.",
                    step=step,
                    metric=diverged[0],
                )
            sums.clear()
            count = 0
            yield step, means
        elif pauses():
            yield step, {}
    if step < last_step:
        raise ValueError(f"the loader gave no more batches after step {step} of {last_step}.")


def _add(sums: dict[str, Tensor | float], metrics: Any, kind: type[Any]) -> None:
    """Add metrics to their sums; on a GPU all in one call, since each call takes longer than its sum.

    Raises AlgorithmError if an algorithm returns something else than numbers by their names.
    """
    if metrics is None:
        return
    if not isinstance(metrics, Mapping):
        raise _odd_metrics(kind, f"found {type(metrics).__name__}")
    there = [total for name in metrics if isinstance(total := sums.get(name), Tensor) and total.is_cuda]
    if there and len(there) == len(metrics):
        with torch.no_grad():
            torch._foreach_add_(there, tuple(metrics.values()))
        return
    for name, value in metrics.items():
        if isinstance(value, Tensor) and value.numel() == 1:
            number = value.detach().reshape(())
            sums[name] = sums[name] + number if name in sums else number.clone()
        elif isinstance(value, Real | np.ndarray) and getattr(value, "size", 1) == 1:
            sums[name] = sums.get(name, 0.0) + float(value)
        else:
            shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
            raise _odd_metrics(kind, f"{name!r} is a {type(value).__name__}{shape}")


def _odd_metrics(kind: type[Any], what: str) -> AlgorithmError:
    return AlgorithmError(
        f"{kind.__name__}.update: expected a dict with one number for each name, such as "
        f"{{'policy/loss': loss}}, or nothing; {what}."
    )
