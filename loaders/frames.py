"""Random transitions of images whose frames are stacked as they are gathered; each is stored once.

    slot         0    1    2    3    4         stack = 4, step s of an episode that begins at b:
    row of       b    b    b   s=b  s+1        before its beginning, its first frame is repeated
                 |-- observation ---|
                      |- next observation -|   one gather of stack + 1 frames, two views of it

Stacks of the last frames are from DQN (Mnih et al. 2015, "Human-level control through deep
reinforcement learning").
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from orlog.datasets.dataset import Dataset
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays, Leaf, read_arrays
from orlog.loaders.batch import StructuredBatch
from orlog.loaders.batches import Batches
from orlog.loaders.transitions import choose_steps

__all__ = ["FrameSampler", "frame_stacks"]


class FrameSampler:
    """Chooses steps and gathers them with the frames before them."""

    def __init__(
        self,
        arrays: Arrays,
        stack: int,
        *,
        keys: Sequence[str] | None = None,
        discount: float = 0.99,
    ) -> None:
        """Find what to stack.

        Raises:
            ValueError: a stack below 1, a discount outside [0, 1], or a key that is not there.
            SchemaError: no observation is an image, and no key is named.
        """
        if stack < 1 or not 0 <= discount <= 1:
            raise ValueError(
                f"stack must be >= 1 and discount in [0, 1], found {stack} and {discount}"
            )
        self.kind = f"frames 1 stack={stack}"
        self.draws = 1 if arrays.mixture is None else 2
        self.arrays = arrays
        self._discount = discount
        self._stacked = _find_leaves(arrays, keys)
        plain = {
            key: leaf for key, leaf in arrays.observation_leaves.items() if key not in self._stacked
        }
        self._plain = dataclasses.replace(arrays, observation_leaves=plain) if plain else None
        self._slots = torch.arange(1 - stack, 2, device=arrays.rows.device)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Int64[Tensor, "items two"]:
        """Return the row of each item's step and that of the first step of its episode."""
        steps = choose_steps(self.arrays, uniform)
        rows = np.take(self.arrays.step_rows, steps)
        first_rows = np.take(self.arrays.first_rows, rows - steps)
        return torch.from_numpy(np.stack([rows, first_rows], 1))

    def gather(self, chosen: Int64[Tensor, "items two"]) -> StructuredBatch:
        """Return the transitions of some rows, frames stacked."""
        arrays = self.arrays
        rows, first_rows = chosen.unbind(1)
        observations: dict[str, Tensor] = {}
        following: dict[str, Tensor] = {}
        frame_rows = torch.maximum(rows.unsqueeze(1) + self._slots, first_rows.unsqueeze(1))
        for key, leaf in self._stacked.items():
            frames = _frames(arrays, leaf, frame_rows)
            observations[key], following[key] = frames[:, :-1], frames[:, 1:]
        if self._plain is not None:
            observations |= self._by_key(rows)
            following |= self._by_key(rows + 1)
        ends = arrays.rows[:, -3:].index_select(0, rows)
        rewards, terminations, truncations = ends.unbind(1)
        return StructuredBatch(
            observations=observations.get("", observations),
            actions=arrays.actions(rows),
            rewards=rewards,
            next_observations=following.get("", following),
            terminations=terminations,
            truncations=truncations,
            discounts=torch.full_like(rewards, self._discount),
        )

    def _by_key(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the observations that are not stacked."""
        assert self._plain is not None
        found = self._plain.observations(rows)
        assert isinstance(found, dict)
        return found


def _frames(arrays: Arrays, leaf: Leaf, rows: Int64[Tensor, "items slots"]) -> Tensor:
    """Return one part of the observations of some rows, `[items, slots, ...]`."""
    if leaf.column:
        frames = arrays.others[leaf.column].index_select(0, rows.view(-1))
        return frames.view(*rows.shape, *frames.shape[1:])
    frames = arrays.rows[:, leaf.place].index_select(0, rows.view(-1))
    return frames.view(*rows.shape, *leaf.shape)


def _find_leaves(arrays: Arrays, keys: Sequence[str] | None) -> dict[str, Leaf]:
    """Return what is stacked: the named parts of observations, or all images."""
    leaves = arrays.observation_leaves
    name = arrays.name or "this dataset"
    if keys is None:
        images = {key: leaf for key, leaf in leaves.items() if _is_image(arrays, leaf)}
        if not images:
            found = f"its parts are {sorted(leaves)}" if leaves else "they are one flat vector"
            raise SchemaError(
                f"{name}: no observation is an image (uint8 of two or three dimensions), {found}; "
                "name what to stack with keys=, or use orlog.transitions"
            )
        return images
    if not keys:
        raise ValueError("keys is empty: name what to stack, or leave it out for all images")
    for key in keys:
        if key not in leaves:
            near = difflib.get_close_matches(key, leaves, cutoff=0.0) or ["none: one flat vector"]
            raise ValueError(f"{name}: observations have no part {key!r}; nearest: {near}")
    return {key: leaves[key] for key in keys}


def _is_image(arrays: Arrays, leaf: Leaf) -> bool:
    if not leaf.column:
        return False
    frames = arrays.others[leaf.column]
    return frames.dtype == torch.uint8 and frames.ndim >= 3


def frame_stacks(
    data: Dataset | Arrays,
    batch_size: int = 64,
    *,
    stack: int = 4,
    seed: int,
    start: int = 0,
    keys: Sequence[str] | None = None,
    discount: float = 0.99,
    rank: int = 0,
    ranks: int = 1,
) -> Batches[StructuredBatch]:
    """Return an endless stream of random transitions whose images are stacks of the last frames.

    Images in observations and next observations are `[batch, stack, height, width, channels]`, the
    newest last, as stored (uint8 stays uint8). A stack never reaches into another episode: before
    an episode's beginning its first frame is repeated. What is no image is given as it is. The
    observations and next observations of an item share the memory of the frames that both have, so
    copy them before changing one in place.

    Args:
        data: What to sample from.
        batch_size: Transitions in a batch, of all ranks together.
        stack: Frames in an observation.
        seed: Seed of the stream.
        start: First batch, to go on where a run stopped.
        keys: Which parts of an observation are stacked, all images by default. The key of a nested
            part is as in a batch, and that of a space without keys is empty.
        discount: What `discounts` of a batch holds.
        rank: Which slice of each batch this process takes.
        ranks: Number of slices.

    Raises:
        SchemaError: no image to stack, values that are no numbers of a fixed shape, or numbers that
            are not finite.
        IntegrityError: an object is damaged.
        ValueError: a number is out of range, or no part of observations has that key.
    """
    arrays = data if isinstance(data, Arrays) else read_arrays(data)
    return Batches(
        FrameSampler(arrays, stack, keys=keys, discount=discount),
        data.digest,
        batch_size=batch_size,
        seed=seed,
        start=start,
        rank=rank,
        ranks=ranks,
    )
