"""Random transitions with the return that the data reached from there, for Cal-QL."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Unpack, overload

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from orlog.datasets.reading.opening import Given
from orlog.loaders.arrays.arrays import Arrays, as_arrays
from orlog.loaders.batch import Batch, ReturnBatch, StructuredBatch, StructuredReturnBatch
from orlog.loaders.sampling.n_steps import NStepSampler
from orlog.loaders.sampling.options import StreamOptions, takes_stream_options
from orlog.loaders.sampling.streams import Batches
from orlog.loaders.sequences import returns_to_go
from orlog.loaders.transitions import TransitionSampler


class ReturnSampler:
    """Chooses the steps that `transitions` would choose, and gathers their returns too."""

    def __init__(self, arrays: Arrays, discount: float) -> None:
        """Sum the returns, which takes 4 bytes a step.

        Raises ValueError if the discount lies outside [0, 1].
        """
        if not 0 <= discount <= 1:
            raise ValueError(f"discount must lie in [0, 1], found {discount}.")
        self.arrays = arrays
        self._steps: Any = (
            TransitionSampler(arrays) if arrays.is_flat else NStepSampler(arrays, 1, discount)
        )
        self.kind, self.draws = self._steps.kind, self._steps.draws
        self._returns = returns_to_go(arrays, discount)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Tensor:
        """Return what the sampler of transitions chooses for each item."""
        chosen: Tensor = self._steps.choose(uniform)
        return chosen

    def gather(self, chosen: Tensor) -> ReturnBatch | StructuredReturnBatch:
        """Return the transitions of some items."""
        return self._with_returns(self._steps.gather(chosen), chosen)

    def gather_many(
        self, chosen: Tensor, size: int
    ) -> Iterator[ReturnBatch | StructuredReturnBatch]:
        """Yield the transitions of `size` items each, views of a few gathered blocks."""
        made = self._steps.gather_many(chosen, size)
        for batch, items in zip(made, torch.split(chosen, size), strict=True):
            yield self._with_returns(batch, items)

    def _with_returns(self, batch: Any, items: Tensor) -> ReturnBatch | StructuredReturnBatch:
        rows = items if items.ndim == 1 else items[:, 0]
        found: ReturnBatch | StructuredReturnBatch
        found = with_returns(batch, self._returns.index_select(0, rows))
        return found


@overload
def with_returns(batch: Batch, returns: Tensor) -> ReturnBatch: ...


@overload
def with_returns(batch: StructuredBatch, returns: Tensor) -> StructuredReturnBatch: ...


def with_returns(batch: Any, returns: Tensor) -> Any:
    """Return a batch with returns added: a `ReturnBatch` or a `StructuredReturnBatch`."""
    kind: Any = StructuredReturnBatch if isinstance(batch, StructuredBatch) else ReturnBatch
    names = [field.name for field in dataclasses.fields(kind) if field.name != "returns_to_go"]
    return kind(**{name: getattr(batch, name) for name in names}, returns_to_go=returns)


@takes_stream_options
def return_transitions(
    data: Given | Arrays,
    batch_size: int = 256,
    *,
    seed: int,
    discount: float = 0.99,
    **stream: Unpack[StreamOptions],
) -> Batches[ReturnBatch | StructuredReturnBatch]:
    """Return the endless stream of `transitions`, each with the return of the data from there.

    `StreamOptions` describes the arguments, and what is raised, that all kinds of sampling share.

    Args:
        batch_size: Transitions in a batch.
        discount: Discount of a step in the returns.
    """
    arrays = as_arrays(data, stream.get("infos", ()))
    return Batches(
        ReturnSampler(arrays, discount), arrays.digest, batch_size=batch_size, seed=seed, **stream
    )
