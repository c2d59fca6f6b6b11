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
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from orlog.manifests.columns import axis_of, little_endian_bytes, offsets_of, path_of_offsets, values_column
from orlog.manifests.manifest import Column, Manifest, parts_of

if TYPE_CHECKING:
    from orlog.datasets.reading.dataset import Dataset

BLOCK_BYTES = 2**24
LENGTHS = "episodes/lengths"
Change = Literal["added", "removed", "changed"]


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
    forms = [{column.name: _form(column) for column in manifest.columns} for manifest in (a, b)]
    values = [
        {
            name: f"{column.rows} rows, blake3 {column.blake3[:12]}"
            for name in _common_columns(a, b)
            for column in [manifest.column(name)]
        }
        for manifest in (a, b)
    ]
    return [*_compare("metadata", _fields(a), _fields(b)), *_compare("column", *forms), *_compare("values", *values)]


def diff_datasets(a: Dataset, b: Dataset) -> DatasetDiff:
    """Return what differs between two stored versions, down to episodes.

    Memory is bounded by 32 MiB of rows and some 200 bytes per episode.

    Raises ValueError if one of them is a view; IntegrityError if damage was found in the rows read.
    """
    for source in (a, b):
        if source.operation is not None:
            raise ValueError(
                f"{_title(source.manifest)}: a view cannot be compared; compare the versions that it "
                "was made from, or store it as a version first; run: orlog save VIEW NAME@VERSION"
            )
    first, second = _Episodes(a), _Episodes(b)
    masks = _differing(first, second)
    both = min(first.total, second.total)
    unequal = np.flatnonzero(np.any([np.zeros(both, bool), *masks.values()], axis=0))
    left_a, left_b = (np.concatenate([unequal, np.arange(both, each.total)]) for each in (first, second))
    order = sorted(_common_columns(a.manifest, b.manifest), key=lambda name: (name not in masks, name))
    moved_a, moved_b = _pair(first, second, left_a, left_b, order)
    left_a, left_b = np.setdiff1d(left_a, moved_a), np.setdiff1d(left_b, moved_b)
    changed = np.intersect1d(left_a, left_b)
    counts = {name: int(mask[changed].sum()) for name, mask in masks.items()}
    return DatasetDiff(
        before=_title(a.manifest),
        after=_title(b.manifest),
        differences=[
            difference
            for difference in diff_manifests(a.manifest, b.manifest)
            if difference.kind != "values" or first.total != second.total or masks[difference.name].any()
        ],
        unchanged=both - len(unequal),
        changed=_ranges(changed),
        changed_columns={name: count for name, count in counts.items() if count},
        added=_ranges(np.setdiff1d(left_b, changed)),
        removed=_ranges(np.setdiff1d(left_a, changed)),
        moved=[MovedEpisodes(*_ranges(old), *_ranges(new)) for old, new in _runs(moved_a, moved_b)],
    )


def _title(manifest: Manifest) -> str:
    return f"{manifest.name}@{manifest.version} ({manifest.digest})"


def _form(column: Column) -> str:
    return f"{column.dtype} {tuple(column.shape)}"


def _common_columns(a: Manifest, b: Manifest) -> list[str]:
    """Return the columns that both have with the same dtype and shape, sorted."""
    other = {column.name: _form(column) for column in b.columns}
    return [column.name for column in a.columns if other.get(column.name) == _form(column)]


def _fields(manifest: Manifest) -> dict[str, Any]:
    """Return every field except the columns, by its dotted path."""
    body = msgspec.to_builtins(manifest)
    del body["columns"]
    objects = msgspec.json.encode(body["objects"])
    body["objects"] = (
        f"{len(manifest.objects)} files, {manifest.size_bytes} bytes, sha256 {hashlib.sha256(objects).hexdigest()[:12]}"
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
    kind: Literal["metadata", "column", "values"], old: dict[str, Any], new: dict[str, Any]
) -> Iterator[Difference]:
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if (name in old, before) == (name in new, after) and type(before) is type(after):
            continue
        change: Change = "changed"
        if name not in old or name not in new:
            change = "removed" if name in old else "added"
        yield Difference(kind=kind, name=name, change=change, before=before, after=after)


class _Episodes:
    """Reads the rows of single episodes in any column."""

    def __init__(self, source: Dataset) -> None:
        self.source, self.manifest = source, source.manifest
        self.total = self.manifest.total_episodes
        episodes = np.arange(self.total + 1)
        steps = np.concatenate([[0], source.episode_lengths.cumsum()])
        self._bounds = {"episode": episodes, "step": steps, "observation": steps + episodes}

    def bounds(self, name: str) -> np.ndarray:
        """Return the first row of each episode in a column, and the end of the last: (E + 1,)."""
        offsets = offsets_of(name)
        if offsets is None:
            return self._bounds[axis_of(name)]
        if offsets not in self._bounds:
            wanted = self.bounds(offsets) - 1
            ends = np.zeros(len(wanted), np.int64)
            rows = self.manifest.column(offsets).rows
            for low in range(0, rows, BLOCK_BYTES // 8):
                high = min(rows, low + BLOCK_BYTES // 8)
                here = slice(*np.searchsorted(wanted, [low, high]).tolist())
                ends[here] = self.source.column(offsets, low, high)[wanted[here] - low]
            self._bounds[offsets] = ends
        return self._bounds[offsets]

    def hashes(self, name: str, episodes: np.ndarray, seeds: list[bytes]) -> list[bytes]:
        """Return a hash of each episode's entry in `seeds` and its rows in a column.

        Episodes are in ascending order. Offsets are counted from the start of their episode.
        """
        if len(episodes) == 0:
            return []
        bounds, path = self.bounds(name), path_of_offsets(name)
        values = None if path is None else self.bounds(values_column(path))
        column = self.manifest.column(name)
        row_bytes = np.dtype(column.dtype).itemsize * math.prod(column.shape)
        last = int(bounds[episodes[-1] + 1])
        low = high = 0
        view = memoryview(b"")
        hashes = []
        for episode, seed in zip(episodes.tolist(), seeds, strict=True):
            digest = hashlib.blake2b(seed, digest_size=16)
            row, stop = int(bounds[episode]), int(bounds[episode + 1])
            while row < stop:
                if not low <= row < high:
                    low, high = row, min(last, row + max(1, BLOCK_BYTES // max(1, row_bytes)))
                    block = self.source.column(name, low, high)
                    view = little_endian_bytes(block)
                end = min(stop, high)
                part = view[(row - low) * row_bytes : (end - low) * row_bytes]
                if values is not None:
                    part = little_endian_bytes(np.frombuffer(part, "<i8") - values[episode])
                digest.update(part)
                row = end
            hashes.append(digest.digest())
        return hashes


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
    for part, other in zip(parts_of(a), parts_of(b), strict=False):
        if (part.episodes, part.columns[name]) != (other.episodes, other.columns[name]):
            break
        equal += part.episodes
    counter = offsets_of(name) or (None if axis_of(name) == "episode" else LENGTHS)
    if counter is None or counter == name:
        return equal
    return min(equal, _known_equal(a, b, counter))


def _pair(
    a: _Episodes, b: _Episodes, left_a: np.ndarray, left_b: np.ndarray, columns: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the episodes of both that are equal in all columns, paired in ascending order.

    Each column is hashed into the hashes so far, and episodes without a match in the other version
    are dropped after each, so that most columns are read for few episodes.
    """
    hashes_a, hashes_b = (dict.fromkeys(left.tolist(), b"") for left in (left_a, left_b))
    for name in columns:
        if not hashes_a or not hashes_b:
            break
        hashes_a, hashes_b = (
            dict(zip(hashes, each.hashes(name, np.array([*hashes], int), [*hashes.values()]), strict=True))
            for each, hashes in ((a, hashes_a), (b, hashes_b))
        )
        common = {*hashes_a.values()} & {*hashes_b.values()}
        hashes_a, hashes_b = (
            {episode: each for episode, each in hashes.items() if each in common} for hashes in (hashes_a, hashes_b)
        )
    places: defaultdict[bytes, deque[int]] = defaultdict(deque)
    for episode, each in hashes_b.items():
        places[each].append(episode)
    pairs = [(episode, places[each].popleft()) for episode, each in hashes_a.items() if places[each]]
    paired = np.array(pairs, np.int64).reshape(-1, 2)
    return paired[:, 0], paired[:, 1]


def _runs(*episodes: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the parts of equally long arrays in which all of them count up by one."""
    edges = np.flatnonzero(np.any([np.diff(each) != 1 for each in episodes], axis=0)) + 1
    parts = zip(*(np.split(each, edges) for each in episodes), strict=True)
    return (part for part in parts if len(part[0]))


def _ranges(episodes: np.ndarray) -> list[EpisodeRange]:
    return [EpisodeRange(int(run[0]), int(run[-1]) + 1) for (run,) in _runs(episodes)]
