"""Random transitions of a dataset as an endless stream of batches: uniform, or as a mixture says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from orlog.datasets.dataset import Dataset
from orlog.loaders.arrays import Arrays, read_arrays
from orlog.loaders.batch import Batch, NStepBatch, StructuredBatch
from orlog.loaders.batches import BLOCK as BLOCK
from orlog.loaders.batches import Batches
from orlog.loaders.gathering import gather_rows

__all__ = ["NStepSampler", "TransitionSampler", "Transitions", "choose_steps", "transitions"]

MOST_STEPS = 2**24  # as float32 counts them
_BLOCK_BYTES = 3 << 20  # gathered at once; its batches are views of it


class TransitionSampler:
    """Chooses steps and gathers them with what followed."""

    kind = "transitions 1"

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.draws = 1 if arrays.mixture is None else 2
        self._view = arrays.transitions
        obs, act = arrays.obs_dim, arrays.action_dim
        self._sizes = [obs, act, 3, obs]
        self._at_once = max(1, _BLOCK_BYTES // (self._view.shape[1] * self._view.itemsize))

    def __reduce__(self) -> tuple[type[TransitionSampler], tuple[Arrays]]:
        """Leave the view to be made again: pickled, it would take all rows along."""
        return TransitionSampler, (self.arrays,)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> torch.Tensor:
        """Return the row of each item's step."""
        return torch.from_numpy(np.take(self.arrays.step_rows, choose_steps(self.arrays, uniform)))

    def gather(self, chosen: torch.Tensor) -> Batch:
        """Return the transitions of some rows."""
        return next(self.gather_many(chosen, max(1, len(chosen))))

    def gather_many(self, chosen: torch.Tensor, size: int) -> Iterator[Batch]:
        """Yield the transitions of `size` rows each, views of a few gathered blocks."""
        for rows in torch.split(chosen, max(1, self._at_once // size) * size):
            block = gather_rows(self._view, rows).view(-1, size, self._view.shape[1])
            obs, act, ends, next_obs = block.split_with_sizes(self._sizes, 2)
            columns = (obs, act, *ends.unbind(2), next_obs)
            for one in zip(*(column.unbind(0) for column in columns), strict=True):
                yield Batch(
                    observations=one[0],
                    actions=one[1],
                    rewards=one[2],
                    terminations=one[3],
                    truncations=one[4],
                    next_observations=one[5],
                )


class NStepSampler:
    """Chooses steps and gathers them with what came of the next `n_steps`, ends of episodes kept.

    Rewards are summed once, in float64, for every step.
    """

    def __init__(self, arrays: Arrays, n_steps: int, discount: float) -> None:
        """Prepare the sums.

        Raises:
            ValueError: less than one step, or a discount outside [0, 1].
        """
        if not 1 <= n_steps <= MOST_STEPS or not 0 <= discount <= 1:
            raise ValueError(
                f"n_steps must be in [1, {MOST_STEPS}] and discount in [0, 1], found {n_steps} and {discount}"
            )
        self.kind = f"transitions 1 n_steps={n_steps}" if n_steps > 1 else "transitions 1"
        self.draws = 1 if arrays.mixture is None else 2
        self.arrays = arrays
        self._ends = _sum_steps(arrays, n_steps, discount)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> torch.Tensor:
        """Return the row of each item's step."""
        return torch.from_numpy(np.take(self.arrays.step_rows, choose_steps(self.arrays, uniform)))

    def gather(self, chosen: torch.Tensor) -> NStepBatch | StructuredBatch:
        """Return the transitions of some rows."""
        return next(self.gather_many(chosen, max(1, len(chosen))))

    def gather_many(
        self, chosen: torch.Tensor, size: int
    ) -> Iterator[NStepBatch | StructuredBatch]:
        """Yield the transitions of `size` rows each, views of a few gathered blocks."""
        arrays = self.arrays
        obs, numbers = arrays.obs_dim, arrays.obs_dim + arrays.action_dim
        at_once = max(1, _BLOCK_BYTES // (4 * (numbers + obs + 4))) if arrays.is_flat else 1
        for rows in torch.split(chosen, max(1, at_once // size) * size):
            found = gather_rows(self._ends, rows)
            behind = rows + found[:, 4].to(torch.int64)
            ends = found.view(-1, size, 5)[:, :, :4].unbind(2)
            if not arrays.is_flat:
                rewards, terminations, truncations, discounts = ends
                yield StructuredBatch(
                    observations=arrays.observations(rows),
                    actions=arrays.actions(rows),
                    next_observations=arrays.observations(behind),
                    rewards=rewards[0],
                    terminations=terminations[0],
                    truncations=truncations[0],
                    discounts=discounts[0],
                )
                continue
            now = gather_rows(arrays.rows[:, :numbers], rows).view(-1, size, numbers)
            later = gather_rows(arrays.rows[:, :obs], behind).view(-1, size, obs)
            columns = (now[:, :, :obs], now[:, :, obs:], later, *ends)
            for one in zip(*(column.unbind(0) for column in columns), strict=True):
                yield NStepBatch(
                    observations=one[0],
                    actions=one[1],
                    next_observations=one[2],
                    rewards=one[3],
                    terminations=one[4],
                    truncations=one[5],
                    discounts=one[6],
                )


def _sum_steps(arrays: Arrays, n_steps: int, discount: float) -> torch.Tensor:
    """Return for each row the reward, end flags, discount and number of its steps."""
    columns = arrays.columns
    rows = np.arange(len(arrays.rows))
    behind = np.minimum(rows + n_steps, arrays.last_rows)
    values = arrays.rows.cpu().numpy()
    rewards = values[:, columns["rewards"]].astype(np.float64).squeeze(1)
    total = np.zeros(len(rows))
    for ahead in range(n_steps):
        inside = np.flatnonzero(rows + ahead < arrays.last_rows)
        total[inside] += discount**ahead * rewards[inside + ahead]
    # All in one row, so that a random item costs one access to memory.
    ends = np.zeros((len(rows), 5), np.float32)
    ends[:, 0] = total
    last = np.maximum(behind - 1, 0)
    ends[:, 1] = values[last, columns["terminations"].start]
    ends[:, 2] = values[last, columns["truncations"].start]
    ends[:, 3] = np.power(discount, behind - rows)
    ends[:, 4] = behind - rows
    return torch.from_numpy(ends).to(arrays.rows.device)


class Transitions(Batches[Any]):
    """An endless stream of batches of transitions: `Batch`, `NStepBatch` or `StructuredBatch`.

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
        **place: int,
    ) -> None:
        is_plain = n_steps == 1 and packed.is_flat
        sampler: Any = (
            TransitionSampler(packed) if is_plain else NStepSampler(packed, n_steps, discount)
        )
        super().__init__(sampler, digest, **place)
        self.packed = packed


def choose_steps(arrays: Arrays, uniform: np.ndarray) -> np.ndarray:
    """Return a random step for each row of uniform numbers, as the mixture says if there is one.

    Without a mixture the first number of a row decides, with one the first two.
    """
    mixture = arrays.mixture
    if mixture is None:
        steps: np.ndarray = (uniform[:, 0] * len(arrays.step_rows)).astype(np.int64)
        return steps
    return mixture.choose(uniform)


def transitions(
    data: Dataset | Arrays,
    batch_size: int = 256,
    *,
    seed: int,
    start: int = 0,
    n_steps: int = 1,
    discount: float = 0.99,
    rank: int = 0,
    ranks: int = 1,
) -> Transitions:
    """Return an endless stream of random transitions, with replacement.

    Every step is as likely as any other, unless the dataset is a weighted mixture
    (`orlog.combine_datasets`). Of a dataset all steps are read into RAM first (4 bytes a number):
    for several streams call `read_arrays` once and give them its result.

    Args:
        data: What to sample from.
        batch_size: Transitions in a batch, of all ranks together.
        seed: Seed of the stream.
        start: First batch, to go on where a run stopped.
        n_steps: Steps that an item goes over; over 1 batches are `NStepBatch`.
        discount: Discount of a step, for `n_steps` over 1.
        rank: Which slice of each batch this process takes.
        ranks: Number of slices.

    Raises:
        SchemaError: values that are no numbers of a fixed shape, or numbers that are not finite.
        IntegrityError: an object is damaged.
        ValueError: a number is out of range.
    """
    arrays = data if isinstance(data, Arrays) else read_arrays(data)
    return Transitions(
        arrays,
        data.digest,
        n_steps=n_steps,
        discount=discount,
        batch_size=batch_size,
        seed=seed,
        start=start,
        rank=rank,
        ranks=ranks,
    )
