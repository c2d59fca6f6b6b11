"""The steps that an algorithm took in an environment: a matrix in memory, and a file that only grows.

    row   | observation | action | reward | termination | truncation | next observation |   float32

Frames and integers of observations are kept beside the matrix as they are, those of an observation and
of the next one side by side. Rewards are as the environment gave them; batches hold those that the
algorithm is trained with. The file holds the rows one after the other, each with its frames and
integers. A checkpoint names how many of them belong to it and their SHA-256, so a kill while rows are
appended loses nothing: later ones are cut off when it goes on.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from orlog.base.files import sync
from orlog.errors import CheckpointError
from orlog.loaders.arrays import Leaf
from orlog.loaders.batch import Batch

Values: TypeAlias = Tensor | dict[str, Tensor]


class Replay:
    """Steps taken in an environment, in order, with room for a known number of them.

    Attributes:
        count: Steps that it holds.
        finished: Steps of episodes that have ended.
        ends: Where each ended episode ends: the number of steps up to then.
        returns: Undiscounted return of each ended episode, of rewards as the environment gave them.
    """

    def __init__(
        self,
        capacity: int,
        obs_dim: int,
        action_dim: int,
        *,
        reward_scale: float = 1.0,
        reward_shift: float = 0.0,
        discount: float = 1.0,
        leaves: Mapping[str, Leaf] = MappingProxyType({}),
        others: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """Make room; `leaves` and `others` are those of the data's `Arrays`, whose form is kept."""
        self._leaves = leaves
        self._others = {}
        for column in (leaf.column for leaf in leaves.values() if leaf.column):
            shape, dtype = others[column].shape[1:], others[column][:0].cpu().numpy().dtype
            # NumPy's zeros take no memory before they are written.
            self._others[column] = torch.from_numpy(np.zeros((capacity, 2, *shape), dtype))
        self._obs, self._numbers = obs_dim, obs_dim + action_dim
        self._rows = torch.zeros(capacity, 2 * obs_dim + action_dim + 3)
        self._scale, self._shift = reward_scale, reward_shift
        # Steps of an episode that still runs have no return yet: a bound of -infinity bounds nothing.
        self._returns = torch.full((capacity,), -torch.inf)
        self._discount = discount
        self._saved, self._digest = 0, hashlib.sha256()
        self.count = self.finished = 0
        self.ends: list[int] = []
        self.returns: list[float] = []

    def add(
        self,
        observation: Values,
        action: Float32[np.ndarray, " act"],
        reward: float,
        next_observation: Values,
        *,
        terminated: bool,
        truncated: bool,
    ) -> None:
        """Append a step, whose observations are as in a batch of one.

        A task that ended was not cut, so termination goes before truncation.
        """
        ends = (reward, float(terminated), float(truncated and not terminated))
        before, after = (self._keep(one, which) for which, one in enumerate((observation, next_observation)))
        row = np.concatenate([before, action, ends, after], dtype=np.float32)
        self._rows[self.count] = torch.from_numpy(row)
        self.count += 1
        if terminated or truncated:
            self._finish()

    def _keep(self, observation: Values, which: int) -> np.ndarray:
        """Keep the frames and integers of an observation, and return its numbers."""
        given = observation if isinstance(observation, dict) else {"": observation}
        numbers = [np.empty(0, np.float32)]
        for key, values in given.items():
            leaf = self._leaves.get(key, Leaf())
            if leaf.column:
                self._others[leaf.column][self.count, which] = values[0].cpu()
            else:
                numbers.append(values.reshape(-1).cpu().numpy())
        return np.concatenate(numbers)

    def _finish(self) -> None:
        rewards = self._rows[self.finished : self.count, self._numbers]
        self.returns.append(float(rewards.double().sum()))
        total, to_go = 0.0, []
        for reward in (rewards * self._scale + self._shift).flip(0).tolist():
            total = reward + self._discount * total
            to_go.append(total)
        self._returns[self.finished : self.count] = torch.tensor(to_go[::-1])
        self.ends.append(self.count)
        self.finished = self.count

    def batch(self, chosen: Int64[Tensor, " batch"]) -> Batch:
        """Return some of the steps."""
        rows, numbers = self._rows.index_select(0, chosen), self._numbers
        fields: dict[str, Any] = {
            "observations": self._observations(rows[:, : self._obs], chosen, 0),
            "actions": rows[:, self._obs : numbers],
            "rewards": rows[:, numbers] * self._scale + self._shift,
            "terminations": rows[:, numbers + 1],
            "truncations": rows[:, numbers + 2],
            "next_observations": self._observations(rows[:, numbers + 3 :], chosen, 1),
        }
        if not self._leaves:
            return Batch(**fields)
        return Batch(**fields, discounts=torch.full((len(chosen),), self._discount))

    def _observations(self, numbers: Tensor, chosen: Tensor, which: int) -> Values:
        """Return observations of some of the steps in the form of the data's."""
        if not self._leaves:
            return numbers
        found = {
            key: self._others[leaf.column][chosen, which]
            if leaf.column
            else numbers[:, leaf.place].reshape(len(chosen), *leaf.shape)
            for key, leaf in self._leaves.items()
        }
        return found.get("", found)

    def returns_to_go(self, chosen: Int64[Tensor, " batch"]) -> Float32[Tensor, " batch"]:
        """Return the discounted return from some of the steps to the ends of their episodes."""
        return self._returns.index_select(0, chosen)

    def save(self, path: Path) -> dict[str, str]:
        """Append the steps that the file lacks, durably; return how to find them again as text."""
        new = self._bytes(self._saved, self.count).tobytes()
        with path.open("r+b" if self._saved else "wb") as file:
            file.seek(self._saved * self._row_bytes)
            file.truncate()
            file.write(new)
        sync(path)
        self._digest.update(new)
        self._saved = self.count
        return {"online_steps": str(self.count), "online_sha256": self._digest.hexdigest()}

    def load(self, path: Path, saved: dict[str, str]) -> None:
        """Take the steps that a checkpoint names from the file, which must hold them unchanged."""
        count = int(saved.get("online_steps", "0"))
        try:
            with path.open("rb") as file:
                data = file.read(count * self._row_bytes)
        except FileNotFoundError:
            data = b""
        digest = hashlib.sha256(data)
        if count > len(self._rows) or digest.hexdigest() != saved.get("online_sha256"):
            raise CheckpointError(
                f"{path}: it does not hold the {count:,} steps that the checkpoint names; restore the "
                "file, or run again in another folder."
            )
        read = np.frombuffer(data, np.uint8).reshape(count, self._row_bytes)
        first = 0
        for one in self._kept:
            size = one[:1].nbytes
            rows = one[:count].numpy()
            rows[:] = read[:, first : first + size].copy().view(rows.dtype).reshape(rows.shape)
            first += size
        rows = self._rows[:count].numpy()
        ends = np.flatnonzero(rows[:, self._numbers + 1 : self._numbers + 3].any(1)) + 1
        for end in ends.tolist():
            self.count = end
            self._finish()
        self.count = self._saved = count
        self._digest = digest

    def _bytes(self, first: int, last: int) -> UInt8[np.ndarray, "steps bytes"]:
        """Return the bytes of some steps, as the file holds them."""
        count = last - first
        rows = [one[first:last].numpy().reshape(-1).view(np.uint8).reshape(count, one[:1].nbytes) for one in self._kept]
        return np.concatenate(rows, 1)

    @property
    def _row_bytes(self) -> int:
        return sum(one[:1].nbytes for one in self._kept)

    @property
    def _kept(self) -> list[Tensor]:
        """What is kept of each step."""
        return [self._rows, *self._others.values()]


def mixed(prior: Any, online: Any, from_online: Tensor | None) -> Any:
    """Return rows of the data (`prior`) and of the environment (`online`) as one batch.

    `from_online` says for each place whether its row is taken from `online`, where both have a row for
    each place; None puts the rows one after the other.
    """

    def join(one: Any, other: Any) -> Any:
        if isinstance(one, dict):
            return {key: join(one[key], other[key]) for key in one}
        if from_online is None:
            return torch.cat([one, other])
        return torch.where(from_online.view(-1, *[1] * (one.ndim - 1)), other, one)

    names = [one.name for one in dataclasses.fields(online)]
    there = {name: value for name in names if (value := getattr(online, name)) is not None}
    changed = {name: join(getattr(prior, name), value) for name, value in there.items()}
    return dataclasses.replace(prior, **changed)
