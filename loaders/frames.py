"""Random transitions with stacks of image frames, built on the fly: each frame is stored once.

    slot         0    1    2    3    4         stack = 4, step s of an episode that begins at b:
    row of       b    b    b   s=b  s+1        before its beginning, its first frame is repeated
                 |-- observation ---|
                      |- next observation -|   one gather of stack + 1 frames, two views of it

For n steps the next observation ends at row s + n, or at the episode's final observation, and is
gathered separately. Frame stacks are from DQN (Mnih et al. 2015, "Human-level control through deep
reinforcement learning"), n steps with them from Rainbow (Hessel et al. 2018, "Rainbow: Combining
improvements in deep reinforcement learning").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from orlog.errors import SchemaError
from orlog.loaders.arguments import as_integer, as_steps
from orlog.loaders.arrays import Arrays, Leaf
from orlog.loaders.batch import Batch
from orlog.loaders.gathering import gather_rows
from orlog.loaders.steps import TransitionSampler
from orlog.manifests.names import did_you_mean


class FrameSampler:
    """Chooses steps and gathers them with the frames before them."""

    def __init__(
        self,
        arrays: Arrays,
        stack: int,
        *,
        keys: Sequence[str] | None = None,
        n_steps: int = 1,
        discount: float = 0.99,
        **more: bool,
    ) -> None:
        """Find what to stack, and sum the rewards, which takes 4 bytes a step; `more` is as in `TransitionSampler`.

        Raises ValueError for a stack below 1, less than one step, a discount outside [0, 1], or an unknown
        key; SchemaError if no observation is an image, and no key is named.
        """
        stack, n_steps = as_integer("stacks", stack), as_steps(n_steps, discount)
        if stack < 1:
            raise ValueError(f"stacks must be >= 1, found {stack}.")
        self.kind = f"frames 1 stack={stack}" + (f" n_steps={n_steps}" if n_steps > 1 else "")
        self.draws = 1 if arrays.mixture is None else 2
        self.arrays = arrays
        self._stacked = _find_leaves(arrays, keys)
        plain = {key: leaf for key, leaf in arrays.observation_leaves.items() if key not in self._stacked}
        self._plain = dataclasses.replace(arrays, observation_leaves=plain) if plain else None
        self._slots = torch.arange(1 - stack, 2, device=arrays.rows.device)
        self._is_one_step = n_steps == 1
        self._discount = discount
        self._transitions = TransitionSampler(arrays, n_steps, discount, **more)
        self._further = [name for name in self._transitions.extra if name != "discounts"]

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Int64[Tensor, "items three"]:
        """Return for each item the rows of its step, its next observation, and its first frame."""
        steps = self.arrays.choose_steps(uniform)
        items = self._transitions.pairs_of(steps)
        first_rows = np.take(self.arrays.first_rows, items[:, 0].numpy() - steps)
        # So that each of the three is contiguous in memory.
        return torch.cat([items.T, torch.from_numpy(first_rows).unsqueeze(0)]).T

    def gather(self, chosen: Int64[Tensor, "items three"]) -> Batch:
        """Return the transitions of some rows, frames stacked."""
        return next(self.gather_many(chosen, max(1, len(chosen))))

    def gather_many(self, chosen: Int64[Tensor, "items three"], size: int) -> Iterator[Batch]:
        """Yield the transitions of `size` rows each: frames batch by batch, what is small for all at once."""
        arrays = self.arrays
        rows, later, first_rows = chosen.unbind(1)
        first_rows = first_rows.unsqueeze(1)
        stack_rows = torch.maximum(rows.unsqueeze(1) + self._slots, first_rows)
        if self._is_one_step:  # the next stack shares all but one of its frames
            behind_rows = stack_rows[:, 1:]
            rewards, terminations, truncations = gather_rows(arrays.rows[:, -3:], rows).unbind(1)
            discounts = torch.full_like(rewards, self._discount)
        else:
            behind_rows = torch.maximum(later.unsqueeze(1) + self._slots[:-1], first_rows)
            stack_rows = stack_rows[:, :-1]
            rewards, discounts = self._transitions.sums_and_discounts(chosen[:, :2])
            terminations, truncations = self._transitions.flags(chosen[:, :2]).unbind(1)
        small = [rewards, terminations, truncations, discounts, arrays.actions(rows)]
        small += self._transitions.further(chosen[:, :2])
        of_rows = stack_rows, behind_rows, rows, later
        several = [torch.split(one, size) for one in (*of_rows, *small)]
        for stacks, behind, own, after, *others in zip(*several, strict=True):
            observations, following = self._frames(stacks, behind)
            if self._plain is not None:
                observations |= self._by_key(own)
                following |= self._by_key(after)
            rewards, terminations, truncations, discounts, actions, *further = others
            yield Batch(
                observations.get("", observations),
                actions,
                rewards,
                terminations,
                truncations,
                following.get("", following),
                discounts,
                **dict(zip(self._further, further, strict=True)),
            )

    def _frames(
        self, rows: Int64[Tensor, "items slots"], behind_rows: Int64[Tensor, "items stack"]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the stacks of observations and of next observations; `rows` has both, if they share frames."""
        observations, following = {}, {}
        for key, leaf in self._stacked.items():
            frames = _frames(self.arrays, leaf, rows)
            if self._is_one_step:
                observations[key], following[key] = frames[:, :-1], frames[:, 1:]
            else:
                observations[key] = frames
                following[key] = _frames(self.arrays, leaf, behind_rows)
        return observations, following

    def _by_key(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the observations that are not stacked."""
        assert self._plain is not None
        found = self._plain.observations(rows)
        assert isinstance(found, dict)
        return found


def _frames(arrays: Arrays, leaf: Leaf, rows: Int64[Tensor, "items slots"]) -> Tensor:
    """Return one part of the observations of some rows, `[items, slots, ...]`."""
    return torch.unflatten(arrays.leaf(leaf, rows.reshape(-1)), 0, rows.shape)


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
                + ("name the parts to stack with stacked=, or" if leaves else "stack with orlog.sequences, or")
                + " use orlog.transitions."
            )
        return images
    if isinstance(keys, str):
        raise TypeError(f"stacked must be a list of parts of an observation, found the text {keys!r}.")
    if not keys:
        raise ValueError("stacked is empty; name the parts to stack, or leave it out to stack all images.")
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"each of stacked must be the name of a part, found {type(key).__name__} {key!r:.80}.")
        if key not in leaves:
            known = [one for one in leaves if one]
            found = "are one tensor, so leave stacked out" if leaves else "are one flat vector"
            if known:
                found = f"have the parts {', '.join(known)}"
            end = did_you_mean(key, known) or "."
            raise ValueError(f"{name}: observations {found}, found {key!r} in stacked{end}")
    return {key: leaves[key] for key in keys}


def _is_image(arrays: Arrays, leaf: Leaf) -> bool:
    if not leaf.column:
        return False
    frames = arrays.others[leaf.column]
    return frames.dtype == torch.uint8 and frames.ndim >= 3
