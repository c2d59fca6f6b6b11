"""What the name of a column says: what counts its rows, and which column holds its offsets."""

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
    """Name, type of the numbers and shape of one row of a stored column."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """Return type and shape."""
        return f"{self.dtype} {self.shape}"


def axis_of(name: str) -> Axis:
    """Return what counts the rows of a column, unless `offsets_of` names a column that does."""
    root = name.partition("/")[0].partition("@")[0]
    if root == "observations":
        return "observation"
    return "episode" if root == "episodes" else "step"


def is_offsets(name: str) -> bool:
    """Return whether a column holds the offsets of values of any length."""
    return name.endswith("@offsets")


def offsets_of(name: str) -> str | None:
    """Return the offsets column that counts the rows of a column; None where its axis does."""
    path, values, _ = name.rpartition("@values")
    return f"{path}@offsets" if values else None


def has_offsets(name: str) -> bool:
    """Return whether a column belongs to values of any length: their offsets, or the values."""
    return is_offsets(name) or offsets_of(name) is not None


def expected_rows(name: str, episodes: int, steps: int) -> int:
    """Return how many rows a column has; only for columns that no offsets count."""
    return {"step": steps, "observation": steps + episodes, "episode": episodes}[axis_of(name)]
