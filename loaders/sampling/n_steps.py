"""Transitions over several steps: discounted rewards, and the observation after them.

    row       r0   r1   r2   final | r0 ..           three steps ahead of r0: the final observation
               |---------------->|                   of r1: the final observation too, after two

    rewards = sum of discount^k * reward of step k, k = 0 .. steps - 1        (summed once, float64)
    value   = rewards + discount^steps * (1 - terminations) * V(next_observations)

If an episode ends sooner, the steps that it has left are used. Sutton 1988, "Learning to predict by
the methods of temporal differences".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from orlog.loaders.arrays.arrays import Arrays
from orlog.loaders.arrays.gathering import gather_rows
from orlog.loaders.batch import NStepBatch, StructuredBatch
from orlog.loaders.sampling.arguments import as_steps
from orlog.loaders.sampling.blocks import gather_in_blocks

_BLOCK_ROWS = 2**20  # summed at once, in float64


class NStepSampler:
    """Chooses steps and gathers them with the outcome of the next `n_steps`."""

    def __init__(self, arrays: Arrays, n_steps: int, discount: float) -> None:
        """Sum the rewards, which takes 4 bytes a step.

        Raises ValueError for less than one step, or a discount outside [0, 1]; TypeError if the number of
        steps is no integer.
        """
        n_steps = as_steps(n_steps, discount)
        self.kind = f"transitions 1 n_steps={n_steps}" if n_steps > 1 else "transitions 1"
        self.draws = 1 if arrays.mixture is None else 2
        self.arrays = arrays
        self.n_steps, self._n_steps = n_steps, min(n_steps, int(arrays.lengths.max()))
        device = arrays.rows.device
        self._sums = sum_rewards(arrays, self._n_steps, discount).to(device)
        powers = np.power(discount, np.arange(self._n_steps + 1))
        self._discounts = torch.from_numpy(powers.astype(np.float32)).to(device)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Int64[Tensor, "items two"]:
        """Return the row of each item's step, and the row of its next observation."""
        return self.items_of(self.arrays.choose_steps(uniform))

    def items_of(self, steps: Int64[np.ndarray, " items"]) -> Int64[Tensor, "items two"]:
        """Return what `choose` would return for some steps."""
        arrays = self.arrays
        items = np.empty((2, len(steps)), np.int64)  # so that each of the two is contiguous
        rows, next_rows = items
        rows[:] = arrays.step_table.take(steps)
        np.minimum(rows + self._n_steps, np.take(arrays.final_rows, rows - steps), out=next_rows)
        return torch.from_numpy(items).T

    def gather(self, chosen: Int64[Tensor, "items two"]) -> NStepBatch | StructuredBatch:
        """Return the transitions of some items."""
        return next(self.gather_many(chosen, max(1, len(chosen))))

    def gather_many(
        self, chosen: Int64[Tensor, "items two"], size: int
    ) -> Iterator[NStepBatch | StructuredBatch]:
        """Yield the transitions of `size` items each, views of a few gathered blocks."""
        arrays = self.arrays
        if not arrays.is_flat:
            yield from map(self._gather_parts, torch.split(chosen, size))
            return
        item_bytes = 4 * (2 * arrays.obs_dim + arrays.action_dim + 4)
        yield from gather_in_blocks(
            _n_step_batch, self._flat_columns, chosen, size=size, item_bytes=item_bytes
        )

    def _flat_columns(self, items: Int64[Tensor, "items two"]) -> tuple[Tensor, ...]:
        """Return the arguments of `_n_step_batch`."""
        arrays = self.arrays
        obs, numbers = arrays.obs_dim, arrays.obs_dim + arrays.action_dim
        now = gather_rows(arrays.rows[:, :numbers], items[:, 0])
        later = gather_rows(arrays.flags_and_next_observations, items[:, 1] - 1)
        rewards, discounts = self.sums_and_discounts(items)
        return (
            now[:, :obs],
            now[:, obs:],
            rewards,
            later[:, 2:],
            later[:, 0],
            later[:, 1],
            discounts,
        )

    def _gather_parts(self, items: Int64[Tensor, "items two"]) -> StructuredBatch:
        """Return transitions whose observations or actions are not flat vectors."""
        rows, next_rows = items.unbind(1)
        rewards, discounts = self.sums_and_discounts(items)
        terminations, truncations = self.flags(items).unbind(1)
        return StructuredBatch(
            observations=self.arrays.observations(rows),
            actions=self.arrays.actions(rows),
            next_observations=self.arrays.observations(next_rows),
            rewards=rewards,
            terminations=terminations,
            truncations=truncations,
            discounts=discounts,
        )

    def sums_and_discounts(
        self, items: Int64[Tensor, "items two"]
    ) -> tuple[Float32[Tensor, " items"], Float32[Tensor, " items"]]:
        """Return the discounted sums of rewards, and the discounts of the value after them."""
        rows, next_rows = items.unbind(1)
        sums = gather_rows(self._sums.unsqueeze(1), rows).squeeze(1)
        return sums, self._discounts.index_select(0, next_rows - rows)

    def flags(self, items: Int64[Tensor, "items two"]) -> Float32[Tensor, "items two"]:
        """Return whether the task ended, or the episode was cut, at the last step of each item."""
        return self.arrays.rows[:, -2:].index_select(0, items[:, 1] - 1)


def _n_step_batch(
    observations: Tensor,
    actions: Tensor,
    rewards: Tensor,
    next_observations: Tensor,
    terminations: Tensor,
    truncations: Tensor,
    discounts: Tensor,
) -> NStepBatch:
    return NStepBatch(
        observations=observations,
        actions=actions,
        rewards=rewards,
        next_observations=next_observations,
        terminations=terminations,
        truncations=truncations,
        discounts=discounts,
    )


def sum_rewards(
    arrays: Arrays, steps: int, discount: float, dtype: type[np.floating[Any]] = np.float32
) -> Float[Tensor, " rows"]:
    """Return for each row the discounted sum of its next rewards, within its episode.

    Terms are added one by one, not taken as differences of running sums, so equal rewards have
    equal sums.
    """
    rewards = arrays.rows[:, arrays.columns["rewards"].start].cpu().numpy()
    total = np.empty(len(rewards), dtype)
    with arrays.in_order():
        for first in range(0, len(total), _BLOCK_ROWS):
            last = min(first + _BLOCK_ROWS, len(total))
            own = rewards[first : last + steps].astype(np.float64)
            begin, end = np.searchsorted(arrays.final_rows, [first, first + len(own)])
            ends = arrays.final_rows[begin:end] - first
            own[ends] = 0
            summed = own.copy()
            for _ in range(steps - 1):
                summed[:-1] = own[:-1] + discount * summed[1:]
                summed[ends] = 0
            total[first:last] = summed[: last - first]
    return torch.from_numpy(total)
