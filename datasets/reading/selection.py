"""`Selection`: chosen episodes of stored versions and their rows; and random orders by seed."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator

import numpy as np

from orlog.datasets.store.version import StoredVersion
from orlog.manifests.columns import is_offsets


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
        """Return any rows of a column; `ends` are its `row_ends`.

        Raises IndexError if there is no such row; IntegrityError if a file is damaged.
        """
        check_rows(name, rows, int(ends[-1]) if len(ends) else 0)
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
    order = np.argsort(
        words
    )  # several times as fast as stable, which differs for equal words alone
    in_order = words[order]
    if (in_order[1:] == in_order[:-1]).any():
        order = np.argsort(words, kind="stable")
    return order


def placed(values: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """Return values, copied into `out` if it is given."""
    if out is None:
        return values
    out[:] = values
    return out


def check_range(name: str, start: int, stop: int, rows: int) -> None:
    """Raise IndexError unless `start` to `stop` is a range within a column of `rows` rows."""
    if not 0 <= start <= stop <= rows:
        raise IndexError(f"{name}: expected rows within 0 to {rows}, found {start} to {stop}.")


def check_rows(name: str, rows: np.ndarray, count: int) -> None:
    """Raise IndexError unless a column of `count` rows has all of these rows."""
    if len(rows) and not (rows.min() >= 0 and rows.max() < count):
        raise IndexError(f"{name}: it has {count} rows, found rows {rows.min()} to {rows.max()}.")


def by_episode(name: str) -> str:
    """Return the code that reads a column's values from an episode."""
    root, _, key = name.partition("/")
    if root == "infos":
        return f'ds[0].infos["{key}"]'
    if root == "episodes":
        return f'ds[0].metadata["{key}"]'
    if root == "observations":
        return "ds[0].observations (texts also by orlog.load_arrays(ds).texts)"
    return f"ds[0].{root.partition('@')[0]}"
