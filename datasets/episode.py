"""One episode in memory, as a recipe makes it and as `dataset[i]` gives it."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import numpy as np

__all__ = ["Columns", "Episode"]

# A column of a plain space is one array; a column of a Dict or Tuple space is a dict of columns.
Columns: TypeAlias = "np.ndarray | dict[str, Columns]"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One run from reset to termination, truncation or the end of the recording.

    Attributes:
        observations: T + 1 rows; the last row is the observation after the last action. A dict of
            arrays where the observation space is a Dict.
        actions: T rows.
        rewards: (T,) in the environment's unit.
        terminations: (T,) bool; true where the task itself ended, at the last step only.
        truncations: (T,) bool; true where the episode was cut off, at the last step only.
        infos: Extra columns of T rows each.
        seed: What the environment was reset with; None where it is not known.
    """

    observations: Columns
    actions: Columns
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    infos: dict[str, np.ndarray]
    seed: int | None

    def __len__(self) -> int:
        """Return the number of steps T."""
        return len(self.rewards)
