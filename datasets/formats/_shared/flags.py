"""Flags of files that may store them as numbers."""

from __future__ import annotations

import numpy as np

from orlog.errors import SchemaError


def flags_of(values: np.ndarray, name: str, where: str, *, first: int = 0) -> np.ndarray:
    """Return numbers as flags, of the same shape.

    Args:
        values: Booleans or numbers; what is not 0 is true.
        name: What errors call them.
        where: What errors call the file.
        first: Which row of the file their first one is.

    Raises SchemaError if one is NaN, which says neither, or they are no numbers.
    """
    if values.dtype.kind not in "biuf":
        raise SchemaError(f"{where}, {name}: expected 0 or 1, found {values.dtype}.")
    if values.dtype.kind == "f" and np.isnan(values).any():
        row = first + int(np.argwhere(np.isnan(values))[0][0])
        raise SchemaError(f"{where}, {name}: expected 0 or 1, found nan at row {row}.")
    return values.astype(bool)
