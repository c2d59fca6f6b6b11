"""What the name of a column says: what counts its rows, and which column holds its offsets."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

__all__ = [
    "Axis",
    "ColumnSpec",
    "axis_of",
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


def offsets_of(name: str) -> str | None:
    """Return the offsets column that counts the rows of a column; None where its axis does."""
    path, values, _ = name.rpartition("@values")
    return f"{path}@offsets" if values else None
