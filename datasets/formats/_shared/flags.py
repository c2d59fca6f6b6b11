"""How episodes ended: flags that files may store as numbers, and what is taken where they say nothing."""

from __future__ import annotations

import numpy as np

from orlog.datasets.formats._shared.episodes import Options
from orlog.errors import SchemaError


def flags_of(values: np.ndarray, name: str, where: str, *, first: int = 0) -> np.ndarray:
    """Return booleans or numbers as flags, of the same shape: what is not 0 is true.

    NaN says neither and is refused; `first` is the row of the file that they start with.
    """
    if values.dtype.kind not in "biuf":
        raise SchemaError(f"{where}, {name}: expected 0 or 1, found {values.dtype}.")
    if values.dtype.kind == "f" and np.isnan(values).any():
        row = first + int(np.argwhere(np.isnan(values))[0][0])
        raise SchemaError(f"{where}, {name}: expected 0 or 1, found nan at row {row}.")
    return values.astype(bool)


HOW = {
    "terminated": "ended by the task",
    "truncated": "cut off",
    "unknown": "neither ended nor cut off",
}


def unknown_ends(options: Options, default: str) -> str:
    """Return the sentence about episodes of which nothing says how they ended: as `--ends` says, or else so."""
    if options.ends:
        return f"Nothing says how episodes ended: all were taken to be {HOW[options.ends]}, as --ends says."
    return (
        f"Nothing says how episodes ended: all were taken to be {HOW[default]} (--ends says it "
        "otherwise)."
    )


def unknown_end(options: Options, default: str, steps: int) -> str:
    """Return how an episode ended of which nothing says it: as `--ends` says, by `--horizon`, or else so."""
    if options.ends:
        return options.ends
    return "truncated" if options.horizon is not None and steps >= options.horizon else default
