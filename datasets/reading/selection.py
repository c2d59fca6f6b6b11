"""`Selection`: chosen episodes of stored versions and their rows; what it takes to derive it; random orders by seed."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

import gymnasium
import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.columns.schema import Schema
from orlog.datasets.store.version import StoredVersion
from orlog.datasets.store.zarr_reader import placed
from orlog.errors import IntegrityError, clause
from orlog.manifests.columns import axis_of, is_offsets, offsets_column, values_column
from orlog.manifests.manifest import Manifest
from orlog.manifests.roles import columns_with

Operation: TypeAlias = dict[str, Any]

MOST_EPISODES = 2**26
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The episodes of a view, in its order.

    Attributes:
        versions: The stored versions that episodes come from.
        source: For each episode, the index of its version in `versions`.
        index: For each episode, its index in that version.
        component: For each episode, its component of a weighted mixture; all 0 without a mixture.
        weights: Probability that a sampled step comes from each component; empty without a mixture.
    """

    versions: tuple[StoredVersion, ...]
    source: np.ndarray
    index: np.ndarray
    component: np.ndarray
    weights: tuple[float, ...] = ()

    def take(self, episodes: np.ndarray) -> Selection:
        """Return these episodes, by position, in this order."""
        return dataclasses.replace(
            self,
            source=self.source[episodes],
            index=self.index[episodes],
            component=self.component[episodes],
        )

    def lengths(self) -> np.ndarray:
        """Return the steps of each episode, (E,) int64."""
        lengths = np.empty(len(self.index), np.int64)
        for number, stored in enumerate(self.versions):
            inside = self.source == number
            lengths[inside] = stored.lengths[self.index[inside]]
        return lengths

    def runs(self, episodes: np.ndarray) -> Iterator[tuple[StoredVersion, np.ndarray]]:
        """Yield (version, its episodes) for each run of episodes of one version."""
        source, index = self.source[episodes], self.index[episodes]
        edges = [*np.flatnonzero(np.diff(source, prepend=-1)).tolist(), len(episodes)]
        for first, last in itertools.pairwise(edges):
            yield self.versions[source[first]], index[first:last]

    def read(self, name: str, episodes: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return a column's rows of some episodes; in `out` if given, except for offsets.

        Raises IntegrityError if a file is damaged.
        """
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

    def read_range(
        self, name: str, ends: np.ndarray, start: int, stop: int, out: np.ndarray | None
    ) -> np.ndarray:
        """Return rows `start` to `stop - 1` of a column; `ends` are its `row_ends`.

        Raises IntegrityError if a file is damaged.
        """
        first, last = np.searchsorted(ends, [start, stop - 1], "right")
        episodes = np.arange(first, last + 1 if start < stop else first)
        before = int(ends[first - 1]) if first else 0
        if out is not None and len(episodes) and (start, stop) == (before, ends[last]):
            return self.read(name, episodes, out)
        return placed(self.read(name, episodes)[start - before : stop - before], out)

    def read_rows(self, name: str, ends: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return any rows of a column, all of which it has; `ends` are its `row_ends`.

        Raises IntegrityError if a file is damaged.
        """
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


class Source(Protocol):
    """What deriving and handing over takes of a dataset; `Dataset` provides it."""

    digest: str
    schema: Schema
    operation: Operation | None
    view_file: Path | None

    @property
    def parents(self) -> tuple[Self, ...]:
        """The datasets that a view was made from."""

    @property
    def name(self) -> str:
        """Name without version."""

    @property
    def version(self) -> str:
        """Content version."""

    @property
    def manifest(self) -> Manifest:
        """The manifest of a version, or of the version that a view is of."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Gymnasium space of observations."""

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Gymnasium space of actions."""

    @property
    def roles(self) -> Mapping[str, str]:
        """What columns mean."""

    @property
    def total_episodes(self) -> int:
        """Number of episodes."""

    @property
    def mixture(self) -> tuple[np.ndarray, tuple[float, ...]] | None:
        """Component of each episode and weight of each component, if steps are weighted."""

    def column(self, name: str) -> np.ndarray:
        """Return all rows of a column."""

    def selection(self) -> Selection:
        """Return the episodes as positions in stored versions."""

    def iterate_episodes(self, episodes: Iterable[int] | None = None) -> Iterator[Episode]:
        """Yield episodes."""


def seeded_order(seed: int, count: int) -> np.ndarray:
    """Return a random order of `count` items that depends only on the seed.

    It sorts raw words of Philox, which never change. NumPy's own permutations may change between
    its versions, and saved splits must not.

    Raises ValueError if the seed is negative.
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


def success_column(dataset: Source) -> str | None:
    """Return the column that says which episodes succeeded, one of episodes if there is one; None if none does."""
    columns = columns_with(dataset.roles, "success")
    return min(columns, key=lambda name: axis_of(name) != "episode", default=None)


def success_of(dataset: Source, column: str) -> np.ndarray:
    """Return whether each episode succeeded, (E,) bool, by `success_column`.

    One of steps says it by any step of an episode, or where it is called `is_success` by the last one.
    """
    succeeded: np.ndarray = dataset.column(column) > 0
    if axis_of(column) == "step":
        ends = dataset.column("episodes/lengths").cumsum()
        before = np.append(0, succeeded.cumsum())[np.append(0, ends)]
        is_last_alone = column.endswith("/is_success")
        succeeded = succeeded[ends - 1] if is_last_alone else np.diff(before) > 0
    return succeeded


def episode_column(dataset: Source, name: str) -> np.ndarray:
    """Return a column of episodes; text as an array of text."""
    if dataset.schema.variable.get(name) != "text":
        return dataset.column(name)
    ends = dataset.column(offsets_column(name)).tolist()
    data = dataset.column(values_column(name)).tobytes()
    pairs = itertools.pairwise([0, *ends])
    try:
        texts = [data[start:end].decode() for start, end in pairs]
    except UnicodeDecodeError as error:
        problem = f"{dataset.name}: column {name}: not UTF-8: {clause(error)}."
        raise IntegrityError(problem) from error
    # As objects: an array of text would take the longest text's size for each episode.
    column = np.empty(len(texts), object)
    column[:] = texts
    return column
