"""Random transitions of a dataset as an endless stream of batches: uniform, or as a mixture says.

Batch `b` is a pure function of (dataset digest, seed, batch size, b): there is no sampler state,
and resuming is starting at `b`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from orlog.datasets.dataset import Dataset
from orlog.loaders.batch import Batch
from orlog.loaders.draws import draw, draw_uniform, stream_key
from orlog.loaders.packed import Mixture, PackedTransitions, pack

__all__ = ["Transitions", "transitions"]

BLOCK = 64  # batches whose rows are drawn at once: the cost of a generator is shared by them


class Transitions:
    """An endless stream of uniform batches over transitions in RAM. `transitions` makes it.

    Iterating starts at batch `start` each time; `batch(b)` gives any batch.

    Attributes:
        packed: The transitions in memory.
        batch_size: Transitions in a batch.
        seed: Seed of the stream.
        start: First batch of an iteration.
    """

    def __init__(
        self, packed: PackedTransitions, digest: str, *, batch_size: int, seed: int, start: int = 0
    ) -> None:
        if batch_size < 1 or seed < 0 or start < 0:
            raise ValueError(
                "batch_size must be >= 1, seed and start >= 0, found "
                f"{batch_size}, {seed} and {start}"
            )
        self.packed = packed
        self.batch_size = batch_size
        self.seed = seed
        self.start = start
        self._key = stream_key(digest, seed)
        self._view = packed.transitions
        obs, act = packed.obs_dim, packed.action_dim
        self._sizes = [obs, act, 1, 1, 1, obs]

    def __iter__(self) -> Iterator[Batch]:
        """Yield batch `start`, `start + 1`, ... without end."""
        index = self.start
        while True:
            rows = self._rows(index, BLOCK - index % BLOCK)
            for one in torch.split(rows, self.batch_size):
                yield self._gather(one)
            index += len(rows) // self.batch_size

    def batch(self, index: int) -> Batch:
        """Return batch `index`: the same as iterating to it."""
        return self._gather(self._rows(index, 1))

    def _rows(self, first: int, batches: int) -> torch.Tensor:
        """Return the rows of some batches, one after the other."""
        first, count = first * self.batch_size, batches * self.batch_size
        mixture = self.packed.mixture
        if mixture is None:
            steps = draw(self._key, first, count, len(self.packed.step_rows))
        else:
            steps = _draw_from(mixture, self._key, first, count)
        return torch.from_numpy(np.take(self.packed.step_rows, steps))

    def _gather(self, rows: torch.Tensor) -> Batch:
        obs, act, reward, term, trunc, next_obs = self._view.index_select(0, rows).split_with_sizes(
            self._sizes, 1
        )
        return Batch(
            observations=obs,
            actions=act,
            rewards=reward.squeeze(1),
            next_observations=next_obs,
            terminations=term.squeeze(1),
            truncations=trunc.squeeze(1),
        )


def _draw_from(mixture: Mixture, key: int, first: int, count: int) -> np.ndarray:
    """Return steps: each takes two draws, one for its component and one inside of it."""
    words = draw_uniform(key, 2 * first, 2 * count)
    component = np.searchsorted(mixture.up_to, words[0::2], side="right")
    inside = (words[1::2] * mixture.sizes[component]).astype(np.int64)
    steps: np.ndarray = np.take(mixture.steps, mixture.first[component] + inside)
    return steps


def transitions(
    dataset: Dataset, batch_size: int = 256, *, seed: int, start: int = 0
) -> Transitions:
    """Return an endless stream of random transitions, with replacement.

    Every step is as likely as any other, unless the dataset is a weighted mixture
    (`orlog.combine_datasets`).

    Reads all transitions into RAM once (4 bytes a number). Give the same `Transitions` to several
    runs, or pass its `packed` on, rather than calling this twice.

    Args:
        dataset: What to sample from.
        batch_size: Transitions in a batch.
        seed: Seed of the stream.
        start: First batch, to go on where a run stopped.

    Raises:
        SchemaError: spaces other than Box, or numbers that are not finite.
        IntegrityError: an object is damaged.
    """
    return Transitions(pack(dataset), dataset.digest, batch_size=batch_size, seed=seed, start=start)
