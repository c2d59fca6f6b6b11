"""Finds the column and the episodes whose values an object of a store holds.

    parts/1/rewards/c.3     shard 3 of rewards in part 1: rows 3 x shard_rows, .. of that part
                            -> steps -> by the part's episodes/lengths -> episodes

Only undamaged objects are read for this, so an answer is either right or "not known".
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Collection
from pathlib import Path

import numpy as np

from orlog.datasets.store.zarr_metadata import LARGEST_METADATA, PATH, SHARD
from orlog.datasets.store.zarr_reader import ZarrReader
from orlog.errors import IntegrityError, OrlogError
from orlog.manifests.columns import ColumnSpec, axis_of, offsets_of
from orlog.manifests.manifest import Manifest, part_folder, parts_of

ROWS_AT_ONCE = 2**17
BLOCKS_KEPT = 16


class DamageFinder:
    """Finds what the objects of one store hold, as far as undamaged objects show it."""

    def __init__(self, folder: Path, manifest: Manifest, damaged: Collection[str]) -> None:
        """Prepare for a store; `damaged` are the paths of all that differs from its manifest."""
        self._folder = folder
        self._container = manifest.container
        self._parts = parts_of(manifest)
        self._specs = {
            column.name: ColumnSpec(column.name, np.dtype(column.dtype), tuple(column.shape))
            for column in manifest.columns
        }
        self._sizes = {item.path: item.size_bytes for item in manifest.objects}
        self._damaged = frozenset(damaged)
        self._damaged_folders = {path.rpartition("/")[0] for path in damaged}
        self._reader = functools.cache(self._open)
        self._episode_ends = functools.cache(self._read_episode_ends)
        self._ends = functools.lru_cache(BLOCKS_KEPT)(self._read_ends)

    def find(self, path: str) -> tuple[str | None, tuple[int, int] | None]:
        """Return the column, and the first and last episode, whose values a path such as `parts/1/rewards` holds.

        The column is None if it holds none or several; the episodes are None if it holds no values or they
        are not known. Metadata of a column count as all its values.
        """
        match = PATH.fullmatch(path)
        part = int(match["part"] or 0) if match else 0
        if match is None or part >= len(self._parts):
            return None, None
        inside = match["inside"]
        if self._container == "hdf5" and inside == "data.h5" and path in self._sizes:
            return None, self._all_episodes(part)
        column = inside.removesuffix("/zarr.json")
        if column in self._specs and (column == inside or path in self._sizes):
            return column, self._all_episodes(part)
        shard = SHARD.fullmatch(inside)
        if shard is None or shard["column"] not in self._specs or path not in self._sizes:
            return None, None
        column = shard["column"]
        try:
            return column, self._episodes_of(part, column, int(shard["number"]))
        except (OrlogError, OSError):
            return column, None

    def _all_episodes(self, part: int) -> tuple[int, int] | None:
        first = sum(one.episodes for one in self._parts[:part])
        count = self._parts[part].episodes
        return (first, first + count - 1) if count else None

    def _episodes_of(self, part: int, name: str, number: int) -> tuple[int, int]:
        """Return the first and last episode in a shard of a column.

        Raises IntegrityError if they cannot be determined.
        """
        if f"{part_folder(part)}{name}/zarr.json" in self._damaged:
            raise IntegrityError(f"{name}: its metadata are damaged.")
        shard_rows = self._reader(part, name).encoding(name).shard_rows
        first = number * shard_rows
        last = min(self._parts[part].columns[name].rows, first + shard_rows) - 1
        if first > last:
            raise IntegrityError(f"{name}: no rows in shard {number}.")
        first, last = self._episodes_of_rows(part, name, first, last)
        if last >= self._parts[part].episodes:
            raise IntegrityError(f"{name}: more rows than its episodes have.")
        before = sum(one.episodes for one in self._parts[:part])
        return before + first, before + last

    def _episodes_of_rows(self, part: int, name: str, first: int, last: int) -> tuple[int, int]:
        """Return the episodes of a part that two rows of a column belong to."""
        offsets = offsets_of(name)
        if offsets is not None:
            rows = range(self._rows(part, offsets))
            first, last = (
                bisect.bisect_right(rows, value, key=functools.partial(self._end, part, offsets))
                for value in (first, last)
            )
            return self._episodes_of_rows(part, offsets, first, last)
        axis = axis_of(name)
        if axis == "episode":
            return first, last
        ends = self._episode_ends(part, axis == "observation")
        return int(ends.searchsorted(first, "right")), int(ends.searchsorted(last, "right"))

    def _end(self, part: int, offsets: str, row: int) -> int:
        """Return where the values of a row end."""
        block, inside = divmod(row, ROWS_AT_ONCE)
        return int(self._ends(part, offsets, block)[inside])

    def _read_ends(self, part: int, offsets: str, block: int) -> np.ndarray:
        start = block * ROWS_AT_ONCE
        stop = min(self._rows(part, offsets), start + ROWS_AT_ONCE)
        return self._read(part, offsets, start, stop)

    def _read_episode_ends(self, part: int, with_last_observations: bool) -> np.ndarray:
        """Return the row after the last one of each episode of a part."""
        lengths = self._read(part, "episodes/lengths", 0, self._rows(part, "episodes/lengths"))
        ends: np.ndarray = (lengths + int(with_last_observations)).cumsum()
        return ends

    def _rows(self, part: int, name: str) -> int:
        if self._specs.get(name) != ColumnSpec(name, np.dtype(np.int64), ()):
            raise IntegrityError(f"{name}: no column of integers.")
        return self._parts[part].columns[name].rows

    def _read(self, part: int, name: str, start: int, stop: int) -> np.ndarray:
        """Return rows of a column, all files of which are undamaged."""
        if f"{part_folder(part)}{name}" in self._damaged_folders:
            raise IntegrityError(f"{name}: damaged itself.")
        reader = self._reader(part, name)
        reader.check_shards(name)
        return reader.read(name, start, stop)

    def _open(self, part: int, name: str) -> ZarrReader:
        prefix = part_folder(part)
        below = f"{prefix}{name}/"
        sizes = {
            path.removeprefix(prefix): size
            for path, size in self._sizes.items()
            if path.startswith(below)
        }
        if sizes.get(f"{name}/zarr.json", LARGEST_METADATA + 1) > LARGEST_METADATA:
            raise IntegrityError(f"{name}: no metadata.")
        rows = {self._specs[name]: self._parts[part].columns[name].rows}
        return ZarrReader(self._folder / prefix, rows, sizes)
