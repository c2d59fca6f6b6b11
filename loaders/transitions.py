"""Random transitions in an endless stream of batches, uniform or by a mixture's weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from orlog.datasets.reading.opening import Given
from orlog.errors import SchemaError
from orlog.loaders.arrays.arrays import Arrays, as_arrays
from orlog.loaders.arrays.gathering import gather_rows
from orlog.loaders.batch import Batch, NextActionBatch, StructuredNextActionBatch
from orlog.loaders.sampling.arguments import as_steps
from orlog.loaders.sampling.blocks import gather_in_blocks
from orlog.loaders.sampling.n_steps import NStepSampler
from orlog.loaders.sampling.options import StreamOptions, takes_stream_options
from orlog.loaders.sampling.streams import BLOCK as BLOCK
from orlog.loaders.sampling.streams import Batches


class TransitionSampler:
    """Chooses steps and gathers them with their next observations, and next actions if asked."""

    kind = "transitions 1"

    def __init__(self, arrays: Arrays, next_actions: bool = False) -> None:
        self.arrays = arrays
        self.draws = 1 if arrays.mixture is None else 2
        self._next_actions = next_actions
        obs, act = arrays.obs_dim, arrays.action_dim
        self._sizes = [obs, act, 3, obs]
        self._view = arrays.transitions
        if next_actions:
            # They follow the next observation in memory: zeros after an episode's last step.
            self._sizes.append(act)
            self._view = arrays.windows(1, obs + act)
            self._final_rows = torch.from_numpy(arrays.final_rows).to(arrays.rows.device)

    def __reduce__(self) -> tuple[type[TransitionSampler], tuple[Arrays, bool]]:
        """Leave the view out of a pickle, since it would carry all rows; it is made again."""
        return TransitionSampler, (self.arrays, self._next_actions)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Int64[Tensor, " items"]:
        """Return the row of each item's step."""
        return self.items_of(self.arrays.choose_steps(uniform))

    def items_of(self, steps: Int64[np.ndarray, " items"]) -> Int64[Tensor, " items"]:
        """Return what `choose` would return for some steps."""
        return torch.from_numpy(self.arrays.step_table.take(steps))

    def gather(self, chosen: Tensor) -> Batch:
        """Return the transitions of some rows."""
        return next(self.gather_many(chosen, max(1, len(chosen))))

    def gather_many(self, chosen: Tensor, size: int) -> Iterator[Batch]:
        """Yield the transitions of `size` rows each, views of a few gathered blocks."""
        item_bytes = self._view.shape[1] * self._view.itemsize
        make = _batch_with_next_actions if self._next_actions else _batch
        return gather_in_blocks(make, self._columns, chosen, size=size, item_bytes=item_bytes)

    def _columns(self, rows: Int64[Tensor, " items"]) -> tuple[Tensor, ...]:
        """Return the arguments of `_batch`: views of one gathered block."""
        obs, act, ends, *following = gather_rows(self._view, rows).split_with_sizes(self._sizes, 1)
        if self._next_actions:
            ends_at = self._final_rows[torch.searchsorted(self._final_rows, rows)]
            following.append((ends_at != rows + 1).float())
        return obs, act, *ends.unbind(1), *following


def _batch(
    observations: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminations: Tensor,
    truncations: Tensor,
    next_observations: Tensor,
) -> Batch:
    return Batch(
        observations=observations,
        actions=actions,
        rewards=rewards,
        next_observations=next_observations,
        terminations=terminations,
        truncations=truncations,
    )


def _batch_with_next_actions(
    observations: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminations: Tensor,
    truncations: Tensor,
    next_observations: Tensor,
    next_actions: Tensor,
    has_next_action: Tensor,
) -> NextActionBatch:
    return NextActionBatch(
        observations=observations,
        actions=actions,
        rewards=rewards,
        next_observations=next_observations,
        terminations=terminations,
        truncations=truncations,
        next_actions=next_actions,
        has_next_action=has_next_action,
    )


class _StructuredNextActionSampler:
    """Chooses steps and gathers them with their next actions where values are not flat vectors."""

    def __init__(self, arrays: Arrays, discount: float) -> None:
        self.arrays, self._steps = arrays, NStepSampler(arrays, 1, discount)
        self.kind, self.draws = self._steps.kind, self._steps.draws
        self._final_rows = torch.from_numpy(arrays.final_rows).to(arrays.rows.device)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Int64[Tensor, "items two"]:
        """Return the row of each item's step, and the row of its next observation."""
        return self._steps.choose(uniform)

    def gather(self, chosen: Int64[Tensor, "items two"]) -> StructuredNextActionBatch:
        """Return the transitions of some items."""
        batch, next_rows = self._steps.gather(chosen), chosen[:, 1].contiguous()
        ends_at = self._final_rows[torch.searchsorted(self._final_rows, next_rows)]
        return StructuredNextActionBatch(
            **{field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)},
            next_actions=self.arrays.actions(next_rows),  # zeros at final observations
            has_next_action=(ends_at != next_rows).float(),
        )


class Transitions(Batches[Any]):
    """An endless stream of batches of transitions: `Batch`, or one of its kin.

    `transitions` makes it.

    Attributes:
        packed: The transitions in memory.
    """

    def __init__(
        self,
        packed: Arrays,
        digest: str,
        *,
        n_steps: int = 1,
        discount: float = 0.99,
        next_actions: bool = False,
        **place: Any,
    ) -> None:
        n_steps = as_steps(n_steps, discount)
        is_plain = n_steps == 1 and packed.is_flat
        if next_actions and n_steps != 1:
            raise SchemaError(
                f"{packed.name or 'this dataset'}: next actions are given only with single steps; "
                "leave out next_actions, or take orlog.sequences."
            )
        sampler: Any
        if is_plain:
            sampler = TransitionSampler(packed, next_actions)
        elif next_actions:
            sampler = _StructuredNextActionSampler(packed, discount)
        else:
            sampler = NStepSampler(packed, n_steps, discount)
        super().__init__(sampler, digest, **place)
        self.packed = packed


@takes_stream_options
def transitions(
    data: Given | Arrays,
    batch_size: int = 256,
    *,
    seed: int,
    n_steps: int = 1,
    discount: float = 0.99,
    next_actions: bool = False,
    **stream: Unpack[StreamOptions],
) -> Transitions:
    """Return an endless stream of random transitions, with replacement.

    Every step is as likely as any other, unless the dataset is a weighted mixture
    (`orlog.combine_datasets`).

    `StreamOptions` describes the arguments, and what is raised, that all kinds of sampling share.

    Args:
        batch_size: Transitions in a batch.
        n_steps: Steps that an item spans; above 1, batches are `NStepBatch`.
        discount: Discount of a step, for `discounts` of batches that have them.
        next_actions: Also return the actions that the data took next: batches are `NextActionBatch`,
            or `StructuredNextActionBatch`.

    Raises:
        SchemaError: next actions are asked for where items are not single steps.
    """
    arrays = as_arrays(data, stream.get("infos", ()))
    return Transitions(
        arrays,
        arrays.digest,
        n_steps=n_steps,
        discount=discount,
        next_actions=next_actions,
        batch_size=batch_size,
        seed=seed,
        **stream,
    )
