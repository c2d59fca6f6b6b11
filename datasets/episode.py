"""One episode in memory, as authors give it and as `dataset[i]` returns it."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Columns", "Episode"]

# Values of a space over some rows. Numbers: one array. Dict: a dict of columns. Tuple: a tuple of
# columns. Text, Sequence, Graph and OneOf: a list with an entry per row. Which of these it is the space says,
# so a union would only make every reader of an episode cast.
Columns: TypeAlias = Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One run from reset to termination, truncation or the end of the recording.

    Attributes:
        observations: T + 1 rows; the last row is the observation after the last action. A dict of
            arrays where the observation space is a Dict, a tuple of them where it is a Tuple.
        actions: T rows.
        rewards: (T,) in the environment's unit.
        terminations: (T,) bool; true where the task itself ended, at the last step only.
        truncations: (T,) bool; true where the episode was cut off, at the last step only.
        infos: Extra columns of T rows each: arrays, lists of text, or lists of arrays of any
            length.
        seed: What the environment was reset with; None where it is not known.
        metadata: What holds for the whole episode: numbers, arrays or text by name.
        index: Where it stands in the dataset or view it was read from; not written.
    """

    observations: Columns
    actions: Columns
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    infos: dict[str, Columns] = dataclasses.field(default_factory=dict)
    seed: int | None = None
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    index: int | None = None

    def __len__(self) -> int:
        """Return the number of steps T."""
        return len(self.rewards)
