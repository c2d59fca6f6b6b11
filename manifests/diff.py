"""What differs between two versions of a dataset: metadata, columns and episodes.

The manifests show most of it: columns with equal hashes hold equal values. Only columns that
differ are read, a few megabytes at a time, and only where parts of the two versions differ.

Episodes are compared at equal index first. Those that differ are then paired by content:

    before   a b c d e
    after    a d C b e f

0 and 4 are unchanged, 1 moved to 3 and 3 to 1, 2 is changed, 5 is added. An index without a
counterpart in the other version is removed or added.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

from orlog.manifests.columns import (
    axis_of,
    little_endian_bytes,
    offsets_of,
    path_of_offsets,
    values_column,
)
from orlog.manifests.manifest import Column, Manifest

BLOCK_BYTES = 2**24
LENGTHS = "episodes/lengths"
Change = Literal["added", "removed", "changed"]


class Readable(Protocol):
    """What a comparison needs of a `Dataset`."""

    @property
    def manifest(self) -> Manifest:
        """Everything known about the dataset."""

    @property
    def operation(self) -> object | None:
        """The operation that made a view; None for a stored version."""

    @property
    def episode_lengths(self) -> np.ndarray:
        """Steps of each episode."""

    def column(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return rows of a column."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between two manifests.

    Attributes:
        kind: `metadata`: a field of the manifest. `column`: a column's dtype or shape, or whether
            it exists. `values`: the values of a column that both have.
        name: Path of the field, such as `environment.versions.mujoco`, or name of the column.
        change: What happened to it.
        before: The first version's, as JSON; None if it was added.
        after: The second version's, as JSON; None if it was removed.
    """

    kind: Literal["metadata", "column", "values"]
    name: str
    change: Change
    before: Any
    after: Any


@dataclasses.dataclass(frozen=True, slots=True)
class EpisodeRange:
    """Episodes `start` to `stop - 1`."""

    start: int
    stop: int

    def __len__(self) -> int:
        """Return the number of episodes."""
        return self.stop - self.start

    def __str__(self) -> str:
        """Return `3` or `3 to 7`, both included."""
        return str(self.start) if len(self) == 1 else f"{self.start} to {self.stop - 1}"


@dataclasses.dataclass(frozen=True, slots=True)
class MovedEpisodes:
    """Equal episodes at different indexes: `before` in the first version, `after` in the second."""

    before: EpisodeRange
    after: EpisodeRange


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DatasetDiff:
    """What differs between two versions; episodes are compared in the columns that both have.

    Attributes:
        before: Name, version and digest of the first.
        after: The same of the second.
        differences: Differences between the manifests; `values` only where values really differ.
        unchanged: Number of episodes that are equal at equal index.
        changed: Episodes whose values differ, and that are not elsewhere in the other version.
        changed_columns: For each column, in how many of the changed episodes it differs.
        added: Episodes of the second that the first does not have.
        removed: Episodes of the first that the second does not have.
        moved: Episodes that both have, at different indexes.
    """

    before: str
    after: str
    differences: list[Difference]
    unchanged: int
    changed: list[EpisodeRange]
    changed_columns: dict[str, int]
    added: list[EpisodeRange]
    removed: list[EpisodeRange]
    moved: list[MovedEpisodes]

    @property
    def is_append(self) -> bool:
        """Whether the second has all episodes of the first, and further ones after them."""
        return bool(self.added) and not (self.changed or self.removed or self.moved)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; ranges are {"start": first, "stop": last + 1}."""
        return {**dataclasses.asdict(self), "is_append": self.is_append}


def diff_manifests(a: Manifest, b: Manifest) -> list[Difference]:
    """Return how two manifests differ: fields, then columns, then values, each sorted by name.

    Equal values that are split into different parts have different hashes; they are listed here,
    and `diff_datasets` compares them.
    """
    differences = _compare("metadata", _fields(a), _fields(b))
    columns = [{column.name: _describe(column) for column in one.columns} for one in (a, b)]
    differences += _compare("column", *columns)
    for name in _common_columns(a, b):
        old, new = a.column(name), b.column(name)
        if (old.rows, old.blake3) != (new.rows, new.blake3):
            differences.append(
                Difference(
                    kind="values",
                    name=name,
                    change="changed",
                    before=_describe_values(old),
                    after=_describe_values(new),
                )
            )
    return differences


def diff_datasets(a: Readable, b: Readable) -> DatasetDiff:
    """Return what differs between two stored versions, down to episodes.

    Memory is bounded by 32 MiB of rows and some 200 bytes per episode.

    Raises ValueError if one of them is a view; IntegrityError if damage was found in the rows read.
    """
    for one in (a, b):
        if one.operation is not None:
            raise ValueError(
                f"{_title(one.manifest)}: a view cannot be compared; compare the versions that it "
                "was made from, or store it as a version first; run: orlog save VIEW NAME@VERSION"
            )
    first, second = _Episodes(a), _Episodes(b)
    masks = _differing(first, second)
    both = min(first.total, second.total)
    differs = np.zeros(both, bool)
    for mask in masks.values():
        differs |= mask
    unequal = np.flatnonzero(differs)
    left_a = np.concatenate([unequal, np.arange(both, first.total)])
    left_b = np.concatenate([unequal, np.arange(both, second.total)])
    order = sorted(
        _common_columns(a.manifest, b.manifest), key=lambda name: (name not in masks, name)
    )
    moved_a, moved_b = _pair(first, second, left_a, left_b, order)
    left_a, left_b = np.setdiff1d(left_a, moved_a), np.setdiff1d(left_b, moved_b)
    changed = np.intersect1d(left_a, left_b)
    counts = {name: int(mask[changed].sum()) for name, mask in masks.items()}
    return DatasetDiff(
        before=_title(a.manifest),
        after=_title(b.manifest),
        differences=[
            one
            for one in diff_manifests(a.manifest, b.manifest)
            if one.kind != "values" or first.total != second.total or masks[one.name].any()
        ],
        unchanged=both - len(unequal),
        changed=_ranges(changed),
        changed_columns={name: count for name, count in counts.items() if count},
        added=_ranges(np.setdiff1d(left_b, changed)),
        removed=_ranges(np.setdiff1d(left_a, changed)),
        moved=_moves(moved_a, moved_b),
    )


def _title(manifest: Manifest) -> str:
    return f"{manifest.name}@{manifest.version} ({manifest.digest})"


def _fields(manifest: Manifest) -> dict[str, Any]:
    """Return every field except the columns, by its dotted path."""
    body = msgspec.to_builtins(manifest)
    del body["columns"]
    objects = msgspec.json.encode(body["objects"])
    body["objects"] = (
        f"{len(manifest.objects)} files, {manifest.size_bytes} bytes, sha256 "
        f"{hashlib.sha256(objects).hexdigest()[:12]}"
    )
    body["parts"] = [part.episodes for part in manifest.parts] or [manifest.total_episodes]
    return dict(_flat(body, ""))


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


def _compare(
    kind: Literal["metadata", "column"], old: dict[str, Any], new: dict[str, Any]
) -> list[Difference]:
    differences = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if (name in old, before) == (name in new, after) and type(before) is type(after):
            continue
        change: Change = "changed"
        if name not in old or name not in new:
            change = "removed" if name in old else "added"
        differences.append(
            Difference(kind=kind, name=name, change=change, before=before, after=after)
        )
    return differences


def _describe(column: Column) -> str:
    return f"{column.dtype} {tuple(column.shape)}"


def _describe_values(column: Column) -> str:
    return f"{column.rows} rows, blake3 {column.blake3[:12]}"


def _common_columns(a: Manifest, b: Manifest) -> list[str]:
    """Return the columns that both have with the same dtype and shape, sorted."""
    other = {column.name: _describe(column) for column in b.columns}
    return [column.name for column in a.columns if other.get(column.name) == _describe(column)]


class _Episodes:
    """Reads the rows of single episodes in any column."""

    def __init__(self, source: Readable) -> None:
        self.source = source
        self.manifest = source.manifest
        self.total = self.manifest.total_episodes
        self._bounds: dict[str, np.ndarray] = {}

    def bounds(self, name: str) -> np.ndarray:
        """Return the first row of each episode in a column, and the end of the last: (E + 1,)."""
        offsets = offsets_of(name)
        key = offsets or axis_of(name)
        if key not in self._bounds:
            if offsets is None:
                self._bounds[key] = self._axis_bounds(name)
            else:
                self._bounds[key] = self._ends(offsets, self.bounds(offsets))
        return self._bounds[key]

    def hashes(self, name: str, episodes: np.ndarray, seeds: list[bytes]) -> list[bytes]:
        """Return a hash of each episode's entry in `seeds` and its rows in a column.

        Episodes are in ascending order. Offsets are counted from the start of their episode.
        """
        if len(episodes) == 0:
            return []
        bounds = self.bounds(name)
        values = self._bounds_of_counted(name)
        row_bytes = self._row_bytes(name)
        last = int(bounds[episodes[-1] + 1])
        low = high = 0
        view = memoryview(b"")
        found = []
        for episode, seed in zip(episodes.tolist(), seeds, strict=True):
            digest = hashlib.blake2b(seed, digest_size=16)
            row, stop = int(bounds[episode]), int(bounds[episode + 1])
            while row < stop:
                if not low <= row < high:
                    low, high = row, min(last, row + max(1, BLOCK_BYTES // max(1, row_bytes)))
                    block = self.source.column(name, low, high)
                    view = little_endian_bytes(block)
                end = min(stop, high)
                if values is None:
                    digest.update(view[(row - low) * row_bytes : (end - low) * row_bytes])
                else:
                    rows = np.frombuffer(view, "<i8")[row - low : end - low]
                    digest.update((rows - values[episode]).tobytes())
                row = end
            found.append(digest.digest())
        return found

    def _axis_bounds(self, name: str) -> np.ndarray:
        episodes = np.arange(self.total + 1)
        axis = axis_of(name)
        if axis == "episode":
            return episodes
        steps = np.concatenate([[0], self.source.episode_lengths.cumsum()])
        return steps + episodes if axis == "observation" else steps

    def _ends(self, offsets: str, bounds: np.ndarray) -> np.ndarray:
        """Return where each episode's values start, and where those of the last one end."""
        wanted = bounds - 1
        found = np.zeros(len(bounds), np.int64)
        rows = self.manifest.column(offsets).rows
        for low in range(0, rows, BLOCK_BYTES // 8):
            high = min(rows, low + BLOCK_BYTES // 8)
            here = slice(*np.searchsorted(wanted, [low, high]).tolist())
            found[here] = self.source.column(offsets, low, high)[wanted[here] - low]
        return found

    def _bounds_of_counted(self, name: str) -> np.ndarray | None:
        """Return the bounds of the values that an offsets column counts; None for other columns."""
        path = path_of_offsets(name)
        return None if path is None else self.bounds(values_column(path))

    def _row_bytes(self, name: str) -> int:
        column = self.manifest.column(name)
        return np.dtype(column.dtype).itemsize * math.prod(column.shape)


def _differing(a: _Episodes, b: _Episodes) -> dict[str, np.ndarray]:
    """Return which episodes differ at equal index, for each column that can differ."""
    both = min(a.total, b.total)
    masks = {}
    for name in _common_columns(a.manifest, b.manifest):
        equal = min(both, _known_equal(a.manifest, b.manifest, name))
        if equal == a.total == b.total:
            continue
        episodes = np.arange(equal, both)
        seeds = [b""] * len(episodes)
        pairs = zip(a.hashes(name, episodes, seeds), b.hashes(name, episodes, seeds), strict=True)
        masks[name] = np.zeros(both, bool)
        masks[name][equal:] = np.fromiter((x != y for x, y in pairs), bool, len(episodes))
    return masks


def _known_equal(a: Manifest, b: Manifest, name: str) -> int:
    """Return how many first episodes surely have equal rows in a column, by their hashes alone.

    Equal values are not enough: the columns that say where episodes begin must be equal too.
    """
    equal = 0
    for one, other in zip(_parts(a, name), _parts(b, name), strict=False):
        if one != other:
            break
        equal += one[0]
    counter = offsets_of(name) or (None if axis_of(name) == "episode" else LENGTHS)
    if counter is None or counter == name:
        return equal
    return min(equal, _known_equal(a, b, counter))


def _parts(manifest: Manifest, name: str) -> list[tuple[int, int, str]]:
    """Return episodes, rows and hash of each part of a column."""
    if not manifest.parts:
        column = manifest.column(name)
        return [(manifest.total_episodes, column.rows, column.blake3)]
    return [
        (part.episodes, part.columns[name].rows, part.columns[name].blake3)
        for part in manifest.parts
    ]


def _pair(
    a: _Episodes, b: _Episodes, left_a: np.ndarray, left_b: np.ndarray, columns: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the episodes of both that are equal in all columns, paired in ascending order.

    Each column is hashed into the hashes so far, and episodes without a match in the other version
    are dropped after each, so that most columns are read for few episodes.
    """
    hashes_a, hashes_b = [b""] * len(left_a), [b""] * len(left_b)
    for name in columns:
        if len(left_a) == 0 or len(left_b) == 0:
            break
        hashes_a, hashes_b = a.hashes(name, left_a, hashes_a), b.hashes(name, left_b, hashes_b)
        common = set(hashes_a) & set(hashes_b)
        left_a, hashes_a = _kept(left_a, hashes_a, common)
        left_b, hashes_b = _kept(left_b, hashes_b, common)
    places: defaultdict[bytes, deque[int]] = defaultdict(deque)
    for episode, found in zip(left_b.tolist(), hashes_b, strict=True):
        places[found].append(episode)
    pairs = [
        (episode, places[found].popleft())
        for episode, found in zip(left_a.tolist(), hashes_a, strict=True)
        if places[found]
    ]
    paired = np.array(pairs, np.int64).reshape(-1, 2)
    return paired[:, 0], paired[:, 1]


def _kept(
    episodes: np.ndarray, hashes: list[bytes], common: set[bytes]
) -> tuple[np.ndarray, list[bytes]]:
    keep = [one in common for one in hashes]
    return episodes[np.array(keep, bool)], [one for one in hashes if one in common]


def _ranges(episodes: np.ndarray) -> list[EpisodeRange]:
    return [
        EpisodeRange(int(run[0]), int(run[-1]) + 1)
        for run in np.split(episodes, np.flatnonzero(np.diff(episodes) != 1) + 1)
        if len(run)
    ]


def _moves(before: np.ndarray, after: np.ndarray) -> list[MovedEpisodes]:
    """Return runs of episodes that moved together."""
    edges = np.flatnonzero((np.diff(before) != 1) | (np.diff(after) != 1)) + 1
    return [
        MovedEpisodes(
            EpisodeRange(int(old[0]), int(old[-1]) + 1), EpisodeRange(int(new[0]), int(new[-1]) + 1)
        )
        for old, new in zip(np.split(before, edges), np.split(after, edges), strict=True)
        if len(old)
    ]
