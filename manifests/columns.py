"""What a column's name says: the axis of its rows, and which column holds its offsets."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

__all__ = [
    "Axis",
    "ColumnSpec",
    "axis_of",
    "expected_rows",
    "has_offsets",
    "is_offsets",
    "offsets_of",
]

Axis = Literal["step", "observation", "episode"]


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A stored column: its name, the dtype of its numbers and the shape of one row."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """Return dtype and shape."""
        return f"{self.dtype} {self.shape}"


def axis_of(name: str) -> Axis:
    """Return a column's axis, which counts its rows unless `offsets_of` names a column for that."""
    root = name.partition("/")[0].partition("@")[0]
    if root == "observations":
        return "observation"
    return "episode" if root == "episodes" else "step"


def is_offsets(name: str) -> bool:
    """Return whether a column holds the offsets of variable-length values."""
    return name.endswith("@offsets")


def offsets_of(name: str) -> str | None:
    """Return the offsets column that counts a column's rows; None if its axis counts them."""
    path, values, _ = name.rpartition("@values")
    return f"{path}@offsets" if values else None


def has_offsets(name: str) -> bool:
    """Return whether a column holds variable-length values or their offsets."""
    return is_offsets(name) or offsets_of(name) is not None


def expected_rows(name: str, episodes: int, steps: int) -> int:
    """Return how many rows a column has; only for columns whose axis counts their rows."""
    return {"step": steps, "observation": steps + episodes, "episode": episodes}[axis_of(name)]
