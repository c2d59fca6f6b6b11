"""Transitions over one step or several, in memory: what every stream of transitions chooses and gathers.

    row       r0   r1   r2   final | r0 ..           three steps ahead of r0: the final observation
               |---------------->|                   of r1: the final observation too, after two

    rewards = sum of discount^k * reward of step k, k = 0 .. steps - 1        (summed once, float64)
    value   = rewards + discount^steps * (1 - terminations) * V(next_observations)

If an episode ends sooner, the steps that it has left are used. Sutton 1988, "Learning to predict by
the methods of temporal differences".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from orlog.loaders.arguments import as_steps
from orlog.loaders.arrays import Arrays
from orlog.loaders.batch import Batch
from orlog.loaders.blocks import gather_in_blocks
from orlog.loaders.gathering import gather_rows
from orlog.loaders.sums import returns_to_go as returns_of
from orlog.loaders.sums import sum_rewards


class TransitionSampler:
    """Chooses steps and gathers them with the outcome of the next `n_steps`.

    A single step of flat vectors is one row of memory, and chosen by its number. Else two rows are chosen, that of the
    step and that of its next observation.

    Attributes:
        n_steps: Steps that an item spans.
        extra: Names of the fields that batches have beside those that all have.
    """

    def __init__(
        self,
        arrays: Arrays,
        n_steps: int = 1,
        discount: float = 0.99,
        *,
        next_actions: bool = False,
        returns_to_go: bool = False,
        discounts: bool = False,
    ) -> None:
        """Sum rewards and returns where they are asked for, which takes 4 bytes a step each.

        `discounts` gives them with single steps of flat vectors too.

        Raises ValueError for less than one step, or a discount outside [0, 1]; TypeError if the number of steps is no
        integer.
        """
        n_steps = as_steps(n_steps, discount)
        self.kind = f"transitions 1 n_steps={n_steps}" if n_steps > 1 else "transitions 1"
        self.draws = 1 if arrays.mixture is None else 2
        self.arrays, self.n_steps, self._discount = arrays, n_steps, discount
        self._is_row = n_steps == 1 and arrays.is_flat and not discounts
        self._with_actions = next_actions
        self.extra = [] if self._is_row else ["discounts"]
        self.extra += ["next_actions", "has_next_action"] if next_actions else []
        self._returns = None
        if returns_to_go:
            self.extra.append("returns_to_go")
            self._returns = returns_of(arrays, discount)
        if not self._is_row:
            _ = self._sums  # before worker processes take a copy

    def __getstate__(self) -> dict[str, Any]:
        """Leave the view out of a pickle, since it would carry all rows; it is made again."""
        return {name: value for name, value in self.__dict__.items() if name != "_view"}

    @functools.cached_property
    def _view(self) -> Tensor:
        """What is gathered for an item that is one row."""
        arrays = self.arrays
        if not self._with_actions:
            return arrays.transitions
        # They follow the next observation in memory: zeros after an episode's last step.
        return arrays.windows(1, arrays.obs_dim + arrays.action_dim)

    @functools.cached_property
    def _final_rows(self) -> Tensor:
        return torch.from_numpy(self.arrays.final_rows).to(self.arrays.rows.device)

    @functools.cached_property
    def _steps(self) -> int:
        return min(self.n_steps, int(self.arrays.lengths.max()))

    @functools.cached_property
    def _sums(self) -> Tensor:
        sums = sum_rewards(self.arrays, self._steps, self._discount)
        return sums.to(self.arrays.rows.device)

    @functools.cached_property
    def _discounts(self) -> Tensor:
        powers = np.power(self._discount, np.arange(self._steps + 1)).astype(np.float32)
        return torch.from_numpy(powers).to(self.arrays.rows.device)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Tensor:
        """Return the row of each item's step, and that of its next observation where it needs two."""
        return self.items_of(self.arrays.choose_steps(uniform))

    def items_of(self, steps: Int64[np.ndarray, " items"]) -> Tensor:
        """Return what `choose` would return for some steps."""
        if self._is_row:
            return torch.from_numpy(self.arrays.step_table.take(steps))
        return self.pairs_of(steps)

    def pairs_of(self, steps: Int64[np.ndarray, " items"]) -> Int64[Tensor, "items two"]:
        """Return the row of each step, and that of its next observation."""
        arrays = self.arrays
        items = np.empty((2, len(steps)), np.int64)  # so that each of the two is contiguous
        rows, next_rows = items
        rows[:] = arrays.step_table.take(steps)
        np.minimum(rows + self._steps, np.take(arrays.final_rows, rows - steps), out=next_rows)
        return torch.from_numpy(items).T

    def gather(self, chosen: Tensor) -> Batch:
        """Return the transitions of some items."""
        return self._make(*self._columns(chosen))

    def gather_many(self, chosen: Tensor, size: int) -> Iterator[Batch]:
        """Yield the transitions of `size` items each, views of a few gathered blocks."""
        if not self.arrays.is_flat:
            yield from map(self.gather, torch.split(chosen, size))
            return
        numbers = 2 * self.arrays.obs_dim + self.arrays.action_dim + 4
        item_bytes = 4 * (numbers + self._with_actions * self.arrays.action_dim)
        yield from gather_in_blocks(self._make, self._columns, chosen, size=size, item_bytes=item_bytes)

    @property
    def _make(self) -> Callable[..., Batch]:
        """What makes a batch of its fields in the order in which `_columns` returns them."""
        if self.extra in ([], ["discounts"]):
            return Batch  # by position, which takes less time
        return lambda *columns: Batch(*columns[:6], **dict(zip(self.extra, columns[6:], strict=True)))

    def _columns(self, chosen: Tensor) -> list[Any]:
        """Return the fields of a batch, those of `extra` after the six that all have."""
        if not self.arrays.is_flat:
            return self._part_columns(chosen)
        return self._row_columns(chosen) if self._is_row else self._pair_columns(chosen)

    def _row_columns(self, rows: Int64[Tensor, " items"]) -> list[Tensor]:
        """Return the fields of items that are one row each: views of one gathered block."""
        obs, act = self.arrays.obs_dim, self.arrays.action_dim
        sizes = [obs, act, 3, obs, *([act] if self._with_actions else [])]
        own, actions, ends, *following = gather_rows(self._view, rows).split_with_sizes(sizes, 1)
        columns = [own, actions, *ends.unbind(1), *following]
        if self._with_actions:
            columns.append(self._has_next_action(rows + 1))
        return columns + self._returns_of(rows)

    def _pair_columns(self, items: Int64[Tensor, "items two"]) -> list[Tensor]:
        """Return the fields of items of two rows of flat vectors."""
        arrays, rows = self.arrays, items[:, 0]
        obs, numbers = arrays.obs_dim, arrays.obs_dim + arrays.action_dim
        now = gather_rows(arrays.rows[:, :numbers], rows)
        later = gather_rows(arrays.flags_and_next_observations, items[:, 1] - 1)
        rewards, discounts = self.sums_and_discounts(items)
        columns = [now[:, :obs], now[:, obs:], rewards, later[:, 0], later[:, 1], later[:, 2:]]
        return [*columns, discounts, *self.further(items)]

    def _part_columns(self, items: Int64[Tensor, "items two"]) -> list[Any]:
        """Return the fields of items whose observations or actions are not flat vectors."""
        rows, next_rows = items.unbind(1)
        rewards, discounts = self.sums_and_discounts(items)
        now, actions = self.arrays.observations(rows), self.arrays.actions(rows)
        columns = [now, actions, rewards, *self.flags(items).unbind(1)]
        columns += [self.arrays.observations(next_rows), discounts]
        return [*columns, *self.further(items)]

    def further(self, items: Int64[Tensor, "items two"]) -> list[Tensor]:
        """Return the fields after `discounts` that were asked for, in the order of `extra`."""
        if not self._with_actions:
            return self._returns_of(items[:, 0])
        rows, next_rows = items[:, 0], items[:, 1].contiguous()
        # Those of final observations are zeros.
        following = [self.arrays.actions(next_rows), self._has_next_action(next_rows)]
        return following + self._returns_of(rows)

    def _has_next_action(self, next_rows: Int64[Tensor, " items"]) -> Float32[Tensor, " items"]:
        """Return 1 where the next row is a step, 0 where it is a final observation."""
        ends_at = self._final_rows[torch.searchsorted(self._final_rows, next_rows)]
        return (ends_at != next_rows).float()

    def _returns_of(self, rows: Int64[Tensor, " items"]) -> list[Tensor]:
        return [] if self._returns is None else [self._returns.index_select(0, rows)]

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
