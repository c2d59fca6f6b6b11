"""Rows of one column of an episode that are read when they are asked for, where an episode is read in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from orlog.datasets.columns.blocks import Block
from orlog.datasets.store.version import StoredVersion
from orlog.manifests.columns import axis_of, offsets_of

LARGE_BYTES = 2**20
"""Of an episode's rows in a column, from which on they are read when asked for."""


class LazyRows(np.lib.mixins.NDArrayOperatorsMixin):
    """Rows of a column, `[rows, ..]`, like an array: slices, rows and lists of rows fetch only these.

    Arithmetic, methods of arrays such as `mean`, and everything else that NumPy does with it read all rows first.
    """

    def __init__(self, stored: StoredVersion, name: str, first: int, rows: int) -> None:
        self._stored, self._name, self._first = stored, name, first
        spec = stored.schema.columns()[name]
        self.shape: tuple[int, ...] = (rows, *spec.shape)
        self.dtype: np.dtype[Any] = spec.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __repr__(self) -> str:
        """Return shape and dtype."""
        return f"LazyRows({self._name}, {self.dtype}{list(self.shape)})"

    def __getitem__(self, key: Any) -> Any:
        """Return what an array of all rows would; only the rows that the first index chooses are read."""
        first, *others = key if isinstance(key, tuple) else (key,)
        if first is None or first is Ellipsis:
            return np.asarray(self)[key]
        rows = np.arange(len(self))[first]
        if isinstance(first, slice) and first.step in (None, 1):
            begin = self._first + (int(rows[0]) if len(rows) else 0)
            values = self._stored.read(self._name, begin, begin + len(rows))
        else:
            values = self._stored.read_rows(self._name, self._first + np.ravel(rows))
            values = values.reshape(*np.shape(rows), *self.shape[1:])
        if not others:
            return values
        return values[(slice(None),) * np.ndim(rows) + tuple(others)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return all rows; NumPy calls it."""
        values = self._stored.read(self._name, self._first, self._first + len(self))
        return values if dtype is None else values.astype(dtype, copy=bool(copy))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **others: Any) -> Any:
        """Return what a function of NumPy gives for all rows; operators call it."""
        arrays = [np.asarray(each) if isinstance(each, LazyRows) else each for each in inputs]
        return getattr(ufunc, method)(*arrays, **others)

    def __getattr__(self, name: str) -> Any:
        """Return what an array of all rows has by this name."""
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"LazyRows has no attribute {name!r}", name=name, obj=self)
        return getattr(np.asarray(self), name)


def lazy_block(stored: StoredVersion, episode: int, names: list[str]) -> Block:
    """Return the columns of an episode as `StoredVersion.read_block`, large ones of observations as `LazyRows`."""
    chosen = np.array([episode])
    lazy: dict[str, Any] = {}
    specs = stored.schema.columns()
    for name in names:
        if axis_of(name) == "observation" and offsets_of(name) is None and "@" not in name:
            rows = stored.count_rows(name, chosen)
            size = rows * int(np.prod(specs[name].shape)) * specs[name].dtype.itemsize
            if size >= LARGE_BYTES:
                lazy[name] = LazyRows(stored, name, int(stored.first_rows(name, chosen)[0]), rows)
    stored.bring(names, chosen, indexes=lazy)  # of all columns at once
    block = stored.read_block(chosen, [name for name in names if name not in lazy])
    return {**block, **lazy}
