"""What a column's name says, which names authors may give, and the bytes of a column's rows.

A column is named by its path. What its rows stand for follows from the name:

    observations, observations/..    observations: steps + episodes of them
    episodes/..                      episodes
    everything else                  steps
    PATH@values, PATH@values/..      values, counted by the column PATH@offsets

Row i of an offsets column (int64) says where the values of row i end; those of row 0 start at 0:

    PATH             "to", "", "be"
    PATH@offsets     2, 2, 4
    PATH@values      t o b e
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Literal

import numpy as np

Axis = Literal["step", "observation", "episode"]

FLAGS = ("terminations", "truncations")
ALWAYS = ("episodes/lengths", "episodes/returns", "episodes/seeds")  # of every dataset's episodes
_LONGEST_NAME = 180
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


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


def can_be_named(name: str) -> bool:
    """Return whether an author may add a column of this name."""
    return (
        _NAME.fullmatch(name) is not None
        and name not in ALWAYS
        and len(name) <= _LONGEST_NAME
        and "zarr.json" not in name.lower().split("/")
    )


def part_column(path: str, part: str) -> str:
    """Return the name of one of the columns that together store the values at a path."""
    return f"{path}@{part}"


def offsets_column(path: str) -> str:
    """Return the name of the column that counts the variable-length values at a path."""
    return part_column(path, "offsets")


def values_column(path: str) -> str:
    """Return the name of the column of the variable-length values at a path, or its start."""
    return part_column(path, "values")


def is_part(name: str) -> bool:
    """Return whether a column is one of those that together store the values at a path."""
    return "@" in name


def is_offsets(name: str) -> bool:
    """Return whether a column holds the offsets of variable-length values."""
    return name.endswith("@offsets")


def is_values(name: str) -> bool:
    """Return whether a column's rows are themselves the variable-length values of a path."""
    return name.endswith("@values")


def path_of_offsets(name: str) -> str | None:
    """Return the path whose values an offsets column counts; None for other columns."""
    return name.removesuffix("@offsets") if is_offsets(name) else None


def offsets_of(name: str) -> str | None:
    """Return the offsets column that counts a column's rows; None if its axis counts them."""
    path, values, _ = name.rpartition("@values")
    return offsets_column(path) if values else None


def has_offsets(name: str) -> bool:
    """Return whether a column holds variable-length values or their offsets."""
    return is_offsets(name) or offsets_of(name) is not None


def expected_rows(name: str, episodes: int, steps: int) -> int:
    """Return how many rows a column has; only for columns whose axis counts their rows."""
    return {"step": steps, "observation": steps + episodes, "episode": episodes}[axis_of(name)]


def row_ends(name: str, lengths: np.ndarray) -> np.ndarray:
    """Return the row after each episode's last one, in a column whose rows no offsets count."""
    more = {"step": 0, "observation": 1}
    axis = axis_of(name)
    rows = lengths + more[axis] if axis in more else np.ones_like(lengths)
    ends: np.ndarray = rows.cumsum()
    return ends


def little_endian_bytes(values: np.ndarray) -> memoryview:
    """Return an array's bytes, row by row, little-endian; copies only if it is not so already."""
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data
