"""`Selection`: chosen episodes of stored versions and their rows; random orders by seed; who succeeded."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from orlog.datasets.columns.values import Block
from orlog.datasets.store.version import StoredVersion, check_rows_inside
from orlog.datasets.store.zarr_reader import placed
from orlog.errors import IntegrityError, clause
from orlog.manifests.columns import (
    axis_of,
    has_offsets,
    is_offsets,
    offsets_column,
    offsets_of,
    row_ends,
    values_column,
)
from orlog.manifests.roles import columns_with

if TYPE_CHECKING:
    from orlog.datasets.reading.dataset import Dataset

MOST_EPISODES = 2**26
ROUNDING = 1e-9
LARGE_BYTES = 2**20
"""Of an episode's rows in a column, from which on they are read when they are asked for."""


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """Episodes of stored versions, in an order.

    Attributes:
        versions: The stored versions that episodes come from.
        source: For each episode, the index of its version in `versions`.
        index: For each episode, its index in that version.
        component: For each episode, its component of a weighted mixture; all 0 without a mixture.
        weights: Probability that a sampled step comes from each component; empty without a mixture.
        is_whole: Whether these are all episodes of one version, in its order.
    """

    versions: tuple[StoredVersion, ...]
    source: np.ndarray
    index: np.ndarray
    component: np.ndarray
    weights: tuple[float, ...] = ()
    is_whole: bool = False

    @classmethod
    def of(cls, stored: StoredVersion) -> Selection:
        """Return all episodes of a version."""
        count = stored.manifest.total_episodes
        zeros = np.zeros(count, np.int64)
        return cls((stored,), zeros, np.arange(count), zeros, is_whole=True)

    def __reduce__(self) -> tuple[Callable[..., Selection], tuple[Any, ...]]:
        """Leave out what follows from a whole version: it would travel with each job."""
        if self.is_whole:
            return Selection.of, self.versions
        return Selection, (self.versions, self.source, self.index, self.component, self.weights)

    def take(self, episodes: np.ndarray) -> Selection:
        """Return these episodes, by position, in this order."""
        return dataclasses.replace(
            self,
            source=self.source[episodes],
            index=self.index[episodes],
            component=self.component[episodes],
            is_whole=False,
        )

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Steps of each episode, (E,) int64, not writeable."""
        if self.is_whole:
            return self.versions[0].lengths
        lengths = np.empty(len(self.index), np.int64)
        for number, stored in enumerate(self.versions):
            inside = self.source == number
            lengths[inside] = stored.lengths[self.index[inside]]
        lengths.flags.writeable = False
        return lengths

    def runs(self, episodes: np.ndarray) -> Iterator[tuple[StoredVersion, np.ndarray]]:
        """Yield (version, its episodes) for each run of episodes of one version."""
        if self.is_whole:
            yield self.versions[0], episodes
            return
        source, index = self.source[episodes], self.index[episodes]
        edges = [*np.flatnonzero(np.diff(source, prepend=-1)).tolist(), len(episodes)]
        for first, last in itertools.pairwise(edges):
            yield self.versions[source[first]], index[first:last]

    def count_rows(self, name: str) -> int:
        """Return the number of rows of a column."""
        if self.is_whole:
            return self.versions[0].rows(name)
        runs = self.runs(np.arange(len(self.index)))
        return sum(stored.count_rows(name, some) for stored, some in runs)

    def read_episodes(self, name: str, episodes: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return a column's rows of some episodes; in `out` if given, except for offsets."""
        pieces = []
        counted = rows = 0
        for stored, some in self.runs(episodes):
            place = None if out is None else out[rows : rows + stored.count_rows(name, some)]
            values = stored.read_episodes(name, some, out=place)
            rows += len(values)
            if is_offsets(name) and len(values):
                values = values + counted
                counted = int(values[-1])
            pieces.append(values)
        if out is not None:
            return out
        if not pieces:
            return self.versions[0].read(name, 0, 0)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def read(self, name: str, start: int, stop: int, out: np.ndarray | None) -> np.ndarray:
        """Return rows `start` to `stop - 1` of a column."""
        if self.is_whole:
            return self.versions[0].read(name, start, stop, out=out)
        if has_offsets(name):
            values = self.read_episodes(name, np.arange(len(self.index)))
            return placed(values[start:stop], out)
        ends = row_ends(name, self.lengths)
        first, last = np.searchsorted(ends, [start, stop - 1], "right")
        episodes = np.arange(first, last + 1 if start < stop else first)
        before = int(ends[first - 1]) if first else 0
        if out is not None and len(episodes) and (start, stop) == (before, ends[last]):
            return self.read_episodes(name, episodes, out)
        return placed(self.read_episodes(name, episodes)[start - before : stop - before], out)

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return any rows of a column, in the order asked for; an IndexError if it has no such rows."""
        if self.is_whole:
            return self.versions[0].read_rows(name, rows)
        check_rows_inside(name, rows, self.count_rows(name))
        if has_offsets(name):
            return np.take(self.read_episodes(name, np.arange(len(self.index))), rows, axis=0)
        ends = row_ends(name, self.lengths)
        episode = np.searchsorted(ends, rows, "right")
        into = rows - np.where(episode > 0, ends[episode - 1], 0)
        spec = self.versions[0].schema.columns()[name]
        out = np.empty((len(rows), *spec.shape), spec.dtype)
        source, index = self.source[episode], self.index[episode]
        for number, stored in enumerate(self.versions):
            inside = source == number
            if inside.any():
                first = stored.first_rows(name, index[inside])
                out[inside] = stored.read_rows(name, first + into[inside])
        return out


class LazyRows(np.lib.mixins.NDArrayOperatorsMixin):
    """Rows of a column of an episode that is read in place, or of videos, `[rows, ..]`: only those asked for are read.

    Arithmetic, methods of arrays such as `mean`, and everything else that NumPy does with it read all rows first.
    """

    def __init__(self, stored: StoredVersion, name: str, first: int, rows: int) -> None:
        self._stored, self._name, self._first = stored, name, first
        spec = stored.schema.columns()[name]
        self.shape: tuple[int, ...] = (rows, *spec.shape)
        self.dtype: np.dtype[Any] = spec.dtype
        self.ndim = len(self.shape)
        self.nbytes = int(np.prod(self.shape)) * self.dtype.itemsize

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
        return values[(slice(None),) * np.ndim(rows) + tuple(others)] if others else values

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


def lazy_block(stored: StoredVersion, episode: int, names: list[str], among: Container[str] | None = None) -> Block:
    """Return the columns of an episode as `StoredVersion.read_block`, large ones of observations as `LazyRows`.

    Only those `among` some names are read later, if any are given.
    """
    chosen = np.array([episode])
    lazy: dict[str, Any] = {}
    for name in names:
        if (
            axis_of(name) == "observation"
            and offsets_of(name) is None
            and "@" not in name
            and (among is None or name in among)
        ):
            first, count = int(stored.first_rows(name, chosen)[0]), stored.count_rows(name, chosen)
            rows = LazyRows(stored, name, first, count)
            if rows.nbytes >= LARGE_BYTES:
                lazy[name] = rows
    stored.bring(names, chosen, indexes=lazy)  # of all columns at once
    return {**stored.read_block(chosen, [name for name in names if name not in lazy]), **lazy}


def seeded_order(seed: int, count: int) -> np.ndarray:
    """Return a random order of `count` items that depends only on the seed.

    It sorts raw words of Philox, which never change. NumPy's own permutations may change between
    its versions, and saved splits must not.
    """
    if seed < 0:
        raise ValueError(f"a seed is not negative, found {seed}.")
    key = int.from_bytes(hashlib.sha256(f"orlog order 1\n{seed}".encode()).digest()[:16], "little")
    words = np.random.Philox(key=key).random_raw(count)
    # Several times as fast as a stable sort, which differs for equal words alone.
    order = np.argsort(words)
    in_order = words[order]
    if (in_order[1:] == in_order[:-1]).any():
        order = np.argsort(words, kind="stable")
    return order


def success_column(dataset: Dataset) -> str | None:
    """Return the column that says which episodes succeeded, one of episodes if there is one; None if none does."""
    columns = columns_with(dataset.roles, "success")
    return min(columns, key=lambda name: axis_of(name) != "episode", default=None)


def success_of(dataset: Dataset, column: str) -> np.ndarray:
    """Return whether each episode succeeded, (E,) bool, by `success_column`.

    One of steps says it by any step of an episode, or where it is called `is_success` by the last one.
    """
    succeeded: np.ndarray = dataset.column(column) > 0
    if axis_of(column) == "step":
        ends = dataset.episode_lengths.cumsum()
        before = np.append(0, succeeded.cumsum())[np.append(0, ends)]
        is_last_alone = column.endswith("/is_success")
        succeeded = succeeded[ends - 1] if is_last_alone else np.diff(before) > 0
    return succeeded


def episode_column(dataset: Dataset, name: str) -> np.ndarray:
    """Return a column of episodes; text as an array of text."""
    if dataset.schema.variable.get(name) != "text":
        return dataset.column(name)
    ends = dataset.column(offsets_column(name)).tolist()
    data = dataset.column(values_column(name)).tobytes()
    # As objects: an array of text would take the longest text's size for each episode.
    column = np.empty(len(ends), object)
    try:
        column[:] = [data[start:end].decode() for start, end in itertools.pairwise([0, *ends])]
    except UnicodeDecodeError as error:
        problem = f"{dataset.name}: column {name}: not UTF-8: {clause(error)}."
        raise IntegrityError(problem) from error
    return column
