"""Random transitions of a dataset as an endless stream of batches: uniform, or as a mixture says."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from orlog.datasets.dataset import Dataset
from orlog.loaders.arrays import Arrays, load_arrays
from orlog.loaders.batch import Batch, NStepBatch, StructuredBatch
from orlog.loaders.batches import BLOCK as BLOCK
from orlog.loaders.batches import Batches

__all__ = ["NStepSampler", "TransitionSampler", "Transitions", "choose_steps", "transitions"]


class TransitionSampler:
    """Chooses steps and gathers them with what followed."""

    kind = "transitions 1"

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.draws = 1 if arrays.mixture is None else 2
        self._view = arrays.transitions
        obs, act = arrays.obs_dim, arrays.action_dim
        self._sizes = [obs, act, 1, 1, 1, obs]

    def __reduce__(self) -> tuple[type[TransitionSampler], tuple[Arrays]]:
        """Leave the view to be made again: pickled, it would take all rows along."""
        return TransitionSampler, (self.arrays,)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> torch.Tensor:
        """Return the row of each item's step."""
        return torch.from_numpy(np.take(self.arrays.step_rows, choose_steps(self.arrays, uniform)))

    def gather(self, chosen: torch.Tensor) -> Batch:
        """Return the transitions of some rows."""
        obs, act, reward, term, trunc, next_obs = self._view.index_select(
            0, chosen
        ).split_with_sizes(self._sizes, 1)
        return Batch(
            observations=obs,
            actions=act,
            rewards=reward.squeeze(1),
            next_observations=next_obs,
            terminations=term.squeeze(1),
            truncations=trunc.squeeze(1),
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
        if n_steps < 1 or not 0 <= discount <= 1:
            raise ValueError(
                f"n_steps must be >= 1 and discount in [0, 1], found {n_steps} and {discount}"
            )
        self.kind = f"transitions 1 n_steps={n_steps}" if n_steps > 1 else "transitions 1"
        self.draws = 1 if arrays.mixture is None else 2
        self.arrays = arrays
        self._behind, self._ends = _sum_steps(arrays, n_steps, discount)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> torch.Tensor:
        """Return the row of each item's step."""
        return torch.from_numpy(np.take(self.arrays.step_rows, choose_steps(self.arrays, uniform)))

    def gather(self, chosen: torch.Tensor) -> NStepBatch | StructuredBatch:
        """Return the transitions of some rows."""
        arrays = self.arrays
        behind = self._behind.index_select(0, chosen)
        rewards, terminations, truncations, discounts = self._ends.index_select(0, chosen).unbind(1)
        ends = {
            "rewards": rewards,
            "terminations": terminations,
            "truncations": truncations,
            "discounts": discounts,
        }
        if not arrays.is_flat:
            return StructuredBatch(
                observations=arrays.observations(chosen),
                actions=arrays.actions(chosen),
                next_observations=arrays.observations(behind),
                **ends,
            )
        numbers = arrays.obs_dim + arrays.action_dim
        observations, actions = (
            arrays.rows[:, :numbers]
            .index_select(0, chosen)
            .split_with_sizes([arrays.obs_dim, arrays.action_dim], 1)
        )
        return NStepBatch(
            observations=observations,
            actions=actions,
            next_observations=arrays.rows[:, : arrays.obs_dim].index_select(0, behind),
            **ends,
        )


def _sum_steps(arrays: Arrays, n_steps: int, discount: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each row the row behind its steps, and their (reward, end flags, discount)."""
    columns = arrays.columns
    rows = np.arange(len(arrays.rows))
    behind = np.minimum(rows + n_steps, arrays.last_rows)
    values = arrays.rows.cpu().numpy()
    rewards = values[:, columns["rewards"]].astype(np.float64).squeeze(1)
    total = np.zeros(len(rows))
    for ahead in range(n_steps):
        inside = np.flatnonzero(rows + ahead < arrays.last_rows)
        total[inside] += discount**ahead * rewards[inside + ahead]
    ends = np.zeros((len(rows), 4), np.float32)
    ends[:, 0] = total
    last = np.maximum(behind - 1, 0)
    ends[:, 1] = values[last, columns["terminations"].start]
    ends[:, 2] = values[last, columns["truncations"].start]
    ends[:, 3] = np.power(discount, behind - rows)
    device = arrays.rows.device
    return torch.from_numpy(behind).to(device), torch.from_numpy(ends).to(device)


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
    for several streams call `load_arrays` once and give them its result.

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
    arrays = data if isinstance(data, Arrays) else load_arrays(data)
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
