"""Random windows around steps in an endless stream of batches, for policies that see and plan several.

    step          s-2  s-1   s   s+1  s+2 | final        s is the last step but two of its episode
    observations       [-1]  [0]                         observations=(-1, 0)
    actions            [-1]  [0]  [1]  [2]  (3)  (4)     actions=range(-1, 5): two are not there

Offsets are in steps, in any order, as LeRobot's `delta_timestamps` are in seconds: `range(-1, 15)` is what
Diffusion Policy (Chi et al. 2023, https://arxiv.org/abs/2303.04137) plans from two observations. Where an
episode has no such step, the nearest one is repeated, or zeros are given. The final observation of an
episode is an observation like others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Unpack

import numpy as np
from jaxtyping import Float64, Int64

from orlog.datasets.reading.opening import Given
from orlog.errors import wrong_type
from orlog.loaders.arrays import Arrays, as_arrays, refuse_missing_finals
from orlog.loaders.batch import WindowBatch, each
from orlog.loaders.gathering import gather_around, nearest_rows
from orlog.loaders.streams import Batches, Sampler, StreamOptions, as_integer, check_choice, takes_stream_options
from orlog.loaders.tensors import Tensor, torch

_FARTHEST = 2**31  # steps


class WindowSampler(Sampler):
    """Chooses steps and gathers what lies around them."""

    kind = "windows 1"  # which steps are drawn depends on no setting

    def __init__(
        self,
        arrays: Arrays,
        observations: Iterable[int],
        actions: Iterable[int],
        *,
        padding: Literal["edge", "zero"] = "edge",
        rewards: bool = False,
    ) -> None:
        super().__init__(arrays)
        check_choice("padding", padding, ("edge", "zero"))
        seen, planned = as_offsets("observations", observations), as_offsets("actions", actions)
        if max(seen) > 0:
            refuse_missing_finals(arrays, "an observation after a step")
        self._seen = torch.tensor(seen, device=arrays.rows.device)
        self._planned = torch.tensor(planned, device=arrays.rows.device)
        self._has_zeros, self._with_rewards = padding == "zero", rewards

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Int64[Tensor, "items three"]:
        """Return for each item the rows of its step, and of the first and the final one of its episode."""
        arrays = self.arrays
        steps = arrays.choose_steps(uniform)
        rows = arrays.step_table.take(steps)
        episodes = rows - steps  # one row more for each episode before
        final_rows = np.take(arrays.final_rows, episodes)
        first_rows = final_rows - np.take(arrays.lengths, episodes)
        # Stacked so that each of the three is contiguous in memory.
        return torch.from_numpy(np.stack([rows, first_rows, final_rows]).T)

    def rows_of(self, chosen: Int64[Tensor, "items three"]) -> Int64[Tensor, "items actions"]:
        """Return the rows of the steps of `actions`."""
        rows, valid = nearest_rows(chosen, self._planned, before_last=1)
        return rows.masked_fill_(~valid, self.arrays.empty_row)

    def gather(self, chosen: Int64[Tensor, "items three"]) -> WindowBatch:
        """Return the windows of some items."""
        arrays, obs, zeros = self.arrays, self.arrays.obs_dim, self._has_zeros
        observations: Any
        rewards: Tensor | None
        if arrays.is_flat:
            observations, seen = gather_around(arrays.rows[:, :obs], chosen, self._seen, zeros=zeros)
            source = arrays.rows[:, obs : obs + arrays.action_dim + self._with_rewards]
            actions, valid = gather_around(source, chosen, self._planned, before_last=1, zeros=zeros)
            if not self._with_rewards:
                return WindowBatch(observations, actions, seen, valid)
            rewards = actions[..., -1].masked_fill_(~valid, 0)
            return WindowBatch(observations, actions[..., :-1], seen, valid, rewards)
        rows, seen = nearest_rows(chosen, self._seen, before_last=0)
        observations = arrays.observations(rows)
        if zeros:
            observations = each(
                observations, lambda part: part.masked_fill_(~seen.reshape(*seen.shape, *[1] * (part.ndim - 2)), 0)
            )
        rows, valid = nearest_rows(chosen, self._planned, before_last=1)
        rewards = arrays.rows[:, -3][rows].masked_fill_(~valid, 0) if self._with_rewards else None
        actions = arrays.actions(rows.masked_fill_(~valid, arrays.empty_row) if zeros else rows)
        return WindowBatch(observations, actions, seen, valid, rewards)


def as_offsets(name: str, offsets: Any) -> list[int]:
    """Return offsets in steps as a list of Python ints; raises if there are none, or one is given twice."""
    if isinstance(offsets, str) or not isinstance(offsets, Iterable):
        raise wrong_type(name, "offsets in steps such as (-1, 0)", offsets)
    steps = [as_integer(f"each of {name}", offset) for offset in offsets]
    if not steps or len(set(steps)) < len(steps) or max(map(abs, steps)) >= _FARTHEST:
        raise ValueError(f"{name}: expected different offsets in steps such as (-1, 0), found {steps}.")
    return steps


@takes_stream_options
def windows(
    data: Given | Arrays,
    batch_size: int = 64,
    *,
    seed: int,
    observations: Iterable[int] = (-1, 0),
    actions: Iterable[int] = range(-1, 15),
    padding: Literal["edge", "zero"] = "edge",
    rewards: bool = False,
    **stream: Unpack[StreamOptions],
) -> Batches[WindowBatch]:
    """Return an endless stream of observations and actions around random steps, with replacement.

    Every step is drawn as often as any other, or as a mixture weights it (`orlog.combine_datasets`), and
    which ones are drawn depends on no offset. A window never leaves its episode. Infos are those of the
    steps of `actions`.

    `StreamOptions` describes the arguments, and what is raised, that all kinds of sampling share.

    Args:
        batch_size: Windows in a batch.
        observations: Which observations to give, in steps after the drawn one; 1 may be the final one.
        actions: Which actions to give, in steps after the drawn one.
        padding: What is given where the episode has no such step: "edge" for the nearest one, "zero" for
            zeros.
        rewards: Also give the rewards of the steps of `actions`.

    Raises:
        ValueError: no offsets, one that is given twice, or an unknown padding.
    """
    arrays = as_arrays(data, stream.get("infos", ()))
    sampler = WindowSampler(arrays, observations, actions, padding=padding, rewards=rewards)
    return Batches(sampler, arrays.digest, batch_size=batch_size, seed=seed, **stream)
