"""Random chunks of actions in an endless stream of batches, for policies that plan several steps.

    step      s    s+1  s+2 | final         length=5, two steps before an episode's end:
    slot      0    1    2     3    4
    actions   a    a    a     0    0        valid  1 1 1 0 0

    rewards = sum of discount^k * reward of step s + k, over the valid slots   (summed once, float64)
    value   = rewards + discounts * (1 - terminations) * V(next_observations)

As in Q-chunking (Li, Zhou and Levine 2025, https://arxiv.org/abs/2507.07969), whose critics learn
from full chunks only: those whose last slot is valid. The authors' code fills the other slots with
steps of the next episode, which its `valid` marks; here they hold zeros, and rewards, ends and next
observations are those of the steps that the episode has left.
"""

from __future__ import annotations

import dataclasses
from typing import Unpack

import numpy as np
from jaxtyping import Float64, Int64

from orlog.datasets.reading.opening import Given
from orlog.loaders.arrays import Arrays, as_arrays
from orlog.loaders.batch import Batch
from orlog.loaders.streams import Batches, Sampler, StreamOptions, as_length, takes_stream_options
from orlog.loaders.tensors import Tensor, torch
from orlog.loaders.transitions import TransitionSampler


class ChunkSampler(Sampler):
    """Chooses steps and gathers the chunks that start there."""

    def __init__(self, arrays: Arrays, length: int, discount: float) -> None:
        """Sum the rewards, which takes 4 bytes a step."""
        super().__init__(arrays)
        length = as_length(length, discount, arrays)
        self.kind = f"action chunks 1 length={length}"
        # Two rows an item, also where it is one step.
        self._outcomes = TransitionSampler(arrays, length, discount, discounts=True)
        self._slots = torch.arange(length, device=arrays.rows.device)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Int64[Tensor, "items two"]:
        """Return the row of each item's first step, and the row of its next observation."""
        return self._outcomes.choose(uniform)

    def rows_of(self, chosen: Int64[Tensor, "items two"]) -> Int64[Tensor, "items length"]:
        """Return the rows of the slots of some items."""
        rows = chosen[:, :1] + self._slots
        return rows.masked_fill_(rows >= chosen[:, 1:], self.arrays.empty_row)

    def gather(self, chosen: Int64[Tensor, "items two"]) -> Batch:
        """Return the chunks of some items."""
        batch = self._outcomes.gather(chosen)
        places = chosen[:, :1] + self._slots
        valid = places < chosen[:, 1:]
        # Slots after the end take any row inside of the matrix: they are cleared.
        actions = self.arrays.actions(torch.minimum(places, chosen[:, 1:]))
        empty = ~valid.reshape(*valid.shape, *[1] * (actions.ndim - 2))
        return dataclasses.replace(batch, actions=actions.masked_fill_(empty, 0), valid=valid)


@takes_stream_options
def action_chunks(
    data: Given | Arrays,
    batch_size: int = 256,
    *,
    seed: int,
    length: int = 5,
    discount: float = 0.99,
    **stream: Unpack[StreamOptions],
) -> Batches[Batch]:
    """Return an endless stream of random chunks of `length` actions, with replacement.

    Every step is as likely to be the first of a chunk as any other, or as a mixture weights it
    (`orlog.combine_datasets`). A chunk never leaves its episode: slots after its end hold zeros and
    are False in `valid`.

    `StreamOptions` describes the arguments, and what is raised, that all kinds of sampling share.

    Args:
        batch_size: Chunks in a batch.
        length: Actions in a chunk.
        discount: Discount of a step, for `rewards` and `discounts`.

    Raises:
        ValueError: no episode is that long.
    """
    arrays = as_arrays(data, stream.get("infos", ()))
    return Batches(ChunkSampler(arrays, length, discount), arrays.digest, batch_size=batch_size, seed=seed, **stream)
