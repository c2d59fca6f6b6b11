"""A dataset's transitions as one float32 matrix in memory, nothing stored twice.

    row of step t of episode e  =  t + e           columns: | observation | action | r | term | trunc |
                                                            |<--- width -------------------------->|
    the row behind an episode's last step holds its final observation and zeros

A transition is `width + observation` numbers in a row of memory: its own row and the observation at
the start of the next. One gather over an overlapping view therefore gives a whole batch, with half
of the memory that stored next observations would take.
"""

from __future__ import annotations

import dataclasses
import math

import gymnasium
import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from orlog.datasets.dataset import Dataset
from orlog.datasets.spaces import leaf_spaces
from orlog.errors import SchemaError

__all__ = ["Mixture", "PackedTransitions", "pack"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The components of a weighted mixture of datasets.

    Attributes:
        steps: Every step, component by component.
        first: Where each component starts in `steps`.
        sizes: Number of steps of each component.
        up_to: Sum of the weights up to and with each component; the last one is 1.
    """

    steps: Int64[np.ndarray, " steps"]
    first: Int64[np.ndarray, " components"]
    sizes: Int64[np.ndarray, " components"]
    up_to: Float64[np.ndarray, " components"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PackedTransitions:
    """All transitions of a dataset in RAM.

    Attributes:
        rows: The matrix drawn above.
        step_rows: Row of each step.
        obs_dim: Numbers in a flattened observation.
        action_dim: Numbers in a flattened action.
        mixture: How steps are weighted; None where each is as likely as any other.
    """

    rows: Float32[Tensor, "steps_and_episodes width"]
    step_rows: Int64[np.ndarray, " steps"]
    obs_dim: int
    action_dim: int
    mixture: Mixture | None = None

    @property
    def transitions(self) -> Float32[Tensor, "steps_and_episodes width_and_obs"]:
        """The overlapping view; its last row is left out, since nothing follows it."""
        count, width = self.rows.shape
        return self.rows.as_strided((count - 1, width + self.obs_dim), (width, 1))

    def observation_statistics(
        self,
    ) -> tuple[Float32[Tensor, " obs"], Float32[Tensor, " obs"]]:
        """Return mean and standard deviation over the observation of every step."""
        total = np.zeros(self.obs_dim)
        squares = np.zeros(self.obs_dim)
        matrix = self.rows.numpy()
        # Two passes in blocks of float64: a sum of float32 over millions of rows would drift.
        for first in range(0, len(self.step_rows), 65536):
            total += matrix[self.step_rows[first : first + 65536], : self.obs_dim].sum(
                0, dtype=np.float64
            )
        mean = total / len(self.step_rows)
        for first in range(0, len(self.step_rows), 65536):
            block = matrix[self.step_rows[first : first + 65536], : self.obs_dim] - mean
            squares += np.square(block).sum(0)
        std = np.sqrt(squares / len(self.step_rows))
        return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(std.astype(np.float32))


def pack(dataset: Dataset) -> PackedTransitions:
    """Read a dataset's transitions into one matrix.

    Raises:
        SchemaError: spaces other than Box, numbers that are not finite, or end flags inside an
            episode.
        IntegrityError: an object is damaged.
    """
    if dataset.total_steps == 0:
        raise SchemaError(f"{dataset.name}: no steps to sample from")
    obs = _leaves(dataset, dataset.observation_space, "observations")
    actions = _leaves(dataset, dataset.action_space, "actions")
    obs_dim, action_dim = sum(size for _, size in obs), sum(size for _, size in actions)
    lengths = dataset.episode_lengths
    step_rows = np.arange(dataset.total_steps) + np.repeat(np.arange(len(lengths)), lengths)
    matrix = np.zeros((dataset.total_steps + len(lengths), obs_dim + action_dim + 3), np.float32)

    position = 0
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is found below
        for name, size in obs:
            values = dataset.column(name)
            matrix[:, position : position + size] = values.reshape(len(matrix), size)
            position += size
        for name, size in [*actions, ("rewards", 1), ("terminations", 1), ("truncations", 1)]:
            values = dataset.column(name)
            if name in ("terminations", "truncations"):
                _check_flags(dataset, name, values)
            matrix[step_rows, position : position + size] = values.reshape(len(step_rows), size)
            position += size
    if not np.isfinite(matrix).all():
        row = int(np.flatnonzero(~np.isfinite(matrix).all(1))[0])
        episode = (
            int(np.searchsorted(dataset.episode_starts + np.arange(len(lengths)), row, "right")) - 1
        )
        raise SchemaError(
            f"{dataset.name}: a number that is not finite in float32 in episode {episode}, step "
            f"{row - int(dataset.episode_starts[episode]) - episode}; filter the episode out first"
        )
    return PackedTransitions(
        rows=torch.from_numpy(matrix),
        step_rows=step_rows,
        obs_dim=obs_dim,
        action_dim=action_dim,
        mixture=_mixture(dataset),
    )


def _mixture(dataset: Dataset) -> Mixture | None:
    if dataset.mixture is None:
        return None
    component, weights = dataset.mixture
    of_step = np.repeat(component, dataset.episode_lengths)
    sizes = np.bincount(of_step, minlength=len(weights))
    if ((sizes == 0) & (np.array(weights) > 0)).any():
        empty = int(((sizes == 0) & (np.array(weights) > 0)).argmax())
        raise SchemaError(
            f"{dataset.name}: component {empty} of the mixture has weight {weights[empty]:g} but no "
            "steps left; filter before combine_datasets, or leave it out"
        )
    up_to = np.cumsum(weights) / np.sum(weights)
    up_to[-1] = 1.0
    return Mixture(
        steps=np.argsort(of_step, kind="stable"),
        first=sizes.cumsum() - sizes,
        sizes=sizes,
        up_to=up_to,
    )


def _leaves(dataset: Dataset, space: gymnasium.Space[object], path: str) -> list[tuple[str, int]]:
    """Return (column, numbers in a row) of each leaf."""
    leaves = []
    for name, leaf in leaf_spaces(space, path):
        if not isinstance(leaf, gymnasium.spaces.Box):
            raise SchemaError(
                f"{dataset.name}: column {name} is a {type(leaf).__name__}; transitions are packed "
                "from Box spaces only"
            )
        leaves.append((name, math.prod(leaf.shape)))
    return leaves


def _check_flags(dataset: Dataset, name: str, flags: np.ndarray) -> None:
    """An episode ends where a flag is true, so a flag elsewhere would leak the next episode."""
    last = np.zeros(len(flags), np.bool_)
    last[dataset.episode_starts + dataset.episode_lengths - 1] = True
    wrong = flags & ~last
    if wrong.any():
        step = int(wrong.argmax())
        episode = int(np.searchsorted(dataset.episode_starts, step, "right")) - 1
        raise SchemaError(
            f"{dataset.name}: column {name} is true at step "
            f"{step - int(dataset.episode_starts[episode])} of episode {episode}, which goes on"
        )
