"""A stored version of a dataset, opened for reading; columns of several parts read as one."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from orlog.datasets.columns.schema import Schema, schema_of
from orlog.datasets.columns.values import Block
from orlog.datasets.home.folders import FolderSeen, present_objects
from orlog.datasets.store.chunk_hashes import check_sizes, has_chunk_hashes, layouts, metadata_objects
from orlog.datasets.store.encoding import LARGEST_METADATA
from orlog.datasets.store.hdf5 import Hdf5Reader
from orlog.datasets.store.objects import check_places, check_sha256, mismatch
from orlog.datasets.store.videos import VideoReader, index_spec, video_blake3
from orlog.datasets.store.zarr_reader import ZarrReader, hash_values, placed
from orlog.errors import IntegrityError, ManifestError, SchemaError, clause
from orlog.manifests.columns import ColumnSpec, axis_of, expected_rows, is_offsets, offsets_of, row_ends
from orlog.manifests.manifest import MANIFEST_FILE, Column, Manifest, StoredObject, part_folder, parts_of, read_manifest

if TYPE_CHECKING:
    from orlog.datasets.download.in_place import Coming, Elsewhere

LARGE_BYTES = 2**20  # of rows that are read in one go


class StoredVersion:
    """One version of a dataset in its folder, whole or only partly downloaded.

    Opening checks the manifest's digest, path and size of every object, the bytes of all
    metadata, and that columns, spaces, totals and lengths agree. Rows are checked as they are read.
    Errors of reading are IntegrityError if a file is missing, cut or damaged, and NotFoundError if the
    version was deleted since it was opened.

    Attributes:
        folder: Where it lies.
        manifest: Its manifest.
        digest: `sha256:..` of the manifest.
        schema: Its columns.
        elsewhere: Where its shards are, if they are not in the folder.
    """

    def __init__(self, folder: Path, manifest: Manifest | None = None, elsewhere: Elsewhere | None = None) -> None:
        """Open the version in `folder`; pass its manifest if it has been read already."""
        self.folder = folder
        self.elsewhere = elsewhere
        self._seen = FolderSeen(folder)
        try:
            self._open(manifest)
        except IntegrityError as error:
            self._seen.check(error)
            raise

    def _open(self, manifest: Manifest | None) -> None:
        folder = self.folder
        self.manifest = manifest or read_manifest(folder / MANIFEST_FILE)
        self.digest = self.manifest.digest
        self._columns = {column.name: column for column in self.manifest.columns}
        self.schema = schema_of_manifest(self.manifest, folder)
        parts = parts_of(self.manifest)
        # The first row of each part in a column, followed by the number of all rows.
        self._first_rows = {
            name: [*itertools.accumulate((stored.columns[name].rows for stored in parts), initial=0)]
            for name in self._columns
        }
        if self.elsewhere is None:
            present = present_objects(folder, self.manifest)
        else:
            present = metadata_objects(self.manifest)
        _check_objects(folder, present)
        self._readers = [self._open_part(part) for part in range(len(parts))]
        if self.elsewhere is not None and has_chunk_hashes(self.manifest):
            places = layouts(self.chunks_of_shards())
            check_sizes(self.manifest, places)
            self.elsewhere.layouts.update(places)
        steps, lengths = self.manifest.total_steps, self.lengths
        # Each length is compared too, since a sum of larger ones could wrap around to the total.
        if (lengths < 1).any() or (lengths > steps).any() or int(lengths.sum()) != steps:
            where = f"{self.folder}: column episodes/lengths, at least 1 in each episode, in all"
            raise mismatch(where, "episodes/lengths", steps, int(lengths.sum()))

    def _open_part(self, part: int) -> ZarrReader | Hdf5Reader:
        advice = ""
        try:
            reader = open_reader(self.folder, self.manifest, part, self.elsewhere)
            if isinstance(reader, ZarrReader):
                # Its metadata were compared with the manifest, so no disk is at fault.
                advice = "ask its author for a version that follows store format 1"
                for name in self._columns:
                    reader.check_shards(name)
        except IntegrityError as error:
            raise self._located(error, part, advice) from error
        return reader

    def __getstate__(self) -> dict[str, object]:
        """Leave out what can be read again: it would travel with each job."""
        return {name: vars(self)[name] for name in vars(self).keys() - {"lengths", "starts", "videos"}}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Take another folder on another machine, where the version is read in place."""
        vars(self).update(state)
        if self.elsewhere is not None and self.elsewhere.folder != self.folder:
            self.folder = self.elsewhere.folder
            self._seen = FolderSeen(self.folder)

    @property
    def identity(self) -> str:
        """What tells its rows from those of others."""
        return self.digest

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Steps of each episode, (E,) int64."""
        lengths = self.read("episodes/lengths")
        lengths.flags.writeable = False
        return lengths

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """First step of each episode, (E,) int64."""
        starts: np.ndarray = self.lengths.cumsum() - self.lengths
        starts.flags.writeable = False
        return starts

    def rows(self, name: str) -> int:
        """Return the number of rows of a column."""
        return self._columns[name].rows

    def read(self, name: str, start: int = 0, stop: int | None = None, *, out: np.ndarray | None = None) -> np.ndarray:
        """Return rows `start` to `stop - 1` of a column, all by default; in `out` if it is given."""
        column, stop, part = self._columns[name], self._stop(name, start, stop), 0
        if name in self.manifest.videos:
            return self._frames(name, np.arange(start, stop), out)
        firsts = self._first_rows[name]
        try:
            if len(self._readers) == 1 and start < stop:
                return self._readers[0].read(name, start, stop, out=out)
            if out is None:
                out = np.empty((stop - start, *column.shape), column.dtype)
            for part, reader in enumerate(self._readers):
                first, last = max(start, firsts[part]), min(stop, firsts[part + 1])
                if first < last:
                    values = out[first - start : last - start]
                    reader.read(name, first - firsts[part], last - firsts[part], out=values)
                    values[...] = self._rebased(name, part, values)
        except IntegrityError as error:
            raise self._located(error, part) from error
        return out

    def _stop(self, name: str, start: int, stop: int | None) -> int:
        """Return the row after the last one of a range, which must lie inside the column."""
        rows = self._columns[name].rows
        stop = rows if stop is None else stop
        if not 0 <= start <= stop <= rows:
            raise IndexError(f"{name}: expected rows within 0 to {rows}, found {start} to {stop}.")
        return stop

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return any rows of a column, in the order asked for."""
        column = self._columns[name]
        check_rows_inside(name, rows, column.rows)
        if name in self.manifest.videos:
            return self._frames(name, rows)
        part, firsts = 0, self._first_rows[name]
        try:
            if len(self._readers) == 1:
                return self._readers[0].read_rows(name, rows)
            out = np.empty((len(rows), *column.shape), column.dtype)
            for part, reader in enumerate(self._readers):
                inside = (rows >= firsts[part]) & (rows < firsts[part + 1])
                if inside.any():
                    values = reader.read_rows(name, rows[inside] - firsts[part])
                    out[inside] = self._rebased(name, part, values)
        except IntegrityError as error:
            raise self._located(error, part) from error
        return out

    def frame_index(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return file, time stamp and that of the key frame before it of rows of a column of videos, (rows, 3) int64."""
        try:
            return self._readers[0].read_rows(name, rows)
        except IntegrityError as error:
            raise self._located(error, 0) from error

    def read_frame_index(self, name: str, episodes: np.ndarray) -> np.ndarray:
        """Return what `frame_index` does of all rows of some episodes, one after the other."""
        starts, stops = self._row_ranges(name, episodes)
        rows = [np.arange(*pair) for pair in zip(starts.tolist(), stops.tolist(), strict=True)]
        return self.frame_index(name, np.concatenate([np.empty(0, np.int64), *rows]))

    def _frames(self, name: str, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return the frames of rows of a column of videos, decoded."""

        def where(position: int) -> str:
            ends = row_ends(name, self.lengths)
            episode = int(ends.searchsorted(rows[position], "right"))
            first = int(ends[episode - 1]) if episode else 0
            return f"frame {rows[position] - first} of episode {episode}"

        index = self.frame_index(name, rows)
        try:
            return self.videos.read(name, index, out, where)
        except IntegrityError as error:
            raise self._located(error, 0) from error

    @functools.cached_property
    def videos(self) -> VideoReader:
        """What reads the frames of videos."""
        return VideoReader(self.folder, self.manifest, self.elsewhere)

    def read_episodes(self, name: str, episodes: np.ndarray, *, out: np.ndarray | None = None) -> np.ndarray:
        """Return the rows of some episodes, one after the other; offsets are rebased onto them."""
        starts, stops = self._row_ranges(name, episodes)
        values = self._read_ranges(name, starts, stops, out)
        if not is_offsets(name):
            return values
        before, ends = self._end_before(name, starts), self._end_before(name, stops)
        counts = ends - before
        shift: np.ndarray = before - (counts.cumsum() - counts)
        rebased: np.ndarray = values - np.repeat(shift, stops - starts)
        return rebased

    def first_rows(self, name: str, episodes: np.ndarray) -> np.ndarray:
        """Return the first row of each of some episodes in a column."""
        return self._row_ranges(name, episodes)[0]

    def count_rows(self, name: str, episodes: np.ndarray) -> int:
        """Return the number of rows of some episodes in a column."""
        starts, stops = self._row_ranges(name, episodes)
        return int((stops - starts).sum())

    def read_block(self, episodes: np.ndarray, names: list[str]) -> Block:
        """Return the rows of some episodes in several columns."""
        self.bring(names, episodes)
        return {name: self.read_episodes(name, episodes) for name in names}

    def chunks_of_shards(self) -> dict[str, tuple[int, int]]:
        """Return how many chunks each shard holds and has room for, by its path; none in the container hdf5."""
        return {
            part_folder(part) + path: counts
            for part, reader in enumerate(self._readers)
            if isinstance(reader, ZarrReader)
            for path, counts in reader.shards().items()
        }

    def bring(
        self,
        names: Iterable[str],
        episodes: np.ndarray,
        indexes: Container[str] = (),
        ahead: list[Coming] | None = None,
    ) -> None:
        """Fetch the rows of some episodes in several columns, many ranges at once."""
        if self.elsewhere is None or not len(episodes):
            return
        # Where values of any length lie is known once their offsets are here, which may have offsets too.
        by_depth: dict[int, list[str]] = {}
        for name in names:
            by_depth.setdefault(name.count("@values"), []).append(name)
        for _, level in sorted(by_depth.items()):
            ranges = {name: _joined(*self._row_ranges(name, episodes)) for name in level}
            for part, reader in enumerate(self._readers):
                assert isinstance(reader, ZarrReader)
                wanted: dict[str, list[int]] = {}
                for name, rows in ranges.items():
                    begin, end = self._first_rows[name][part : part + 2]
                    chunks = (
                        reader.chunks_of(name, max(start, begin) - begin, min(stop, end) - begin)
                        for start, stop in rows
                    )
                    wanted[name] = sorted({*itertools.chain(*chunks)})
                reader.bring(wanted, indexes, ahead)

    def hash_column(self, part: int, name: str, see: Callable[[np.ndarray], None] = lambda _: None) -> str:
        """Return the hex BLAKE3 of all values of a column of one part, in constant memory; `see` gets each block."""
        rows = parts_of(self.manifest)[part].columns[name].rows
        read = functools.partial(self._readers[part].read, name)
        try:
            digest = hash_values(read, stored_spec(self.manifest, self._columns[name]), rows, see)
            return video_blake3(self.manifest.objects, name, digest) if name in self.manifest.videos else digest
        except IntegrityError as error:
            self._seen.check(error)
            raise

    def _row_ranges(self, name: str, episodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each episode in a column, its first row and the row after its last."""
        offsets = offsets_of(name)
        if offsets is not None:
            starts, stops = self._row_ranges(offsets, episodes)
            starts, stops = self._end_before(offsets, starts), self._end_before(offsets, stops)
            rows = self._columns[name].rows
            if (starts > stops).any() or (len(stops) and (starts.min() < 0 or stops.max() > rows)):
                raise IntegrityError(
                    f"{self.folder}: column {offsets} does not count the {rows} rows of {name}.", file=offsets
                )
            return starts, stops
        axis = axis_of(name)
        if axis == "episode":
            return episodes, episodes + 1
        starts = self.starts[episodes]
        stops = starts + self.lengths[episodes]
        if axis == "observation":
            return starts + episodes, stops + episodes + 1
        return starts, stops

    def _end_before(self, offsets: str, rows: np.ndarray) -> np.ndarray:
        """Return where the values end that precede each of these rows of an offsets column."""
        ends = self.read_rows(offsets, np.maximum(rows - 1, 0)) if rows.any() else rows
        return np.where(rows > 0, ends, 0)

    def _read_ranges(self, name: str, starts: np.ndarray, stops: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        """Return ranges of rows, one after the other: large ones each, and all small ones by the chunks they share."""
        column = self._columns[name]
        if len(starts) == 0:
            return self.read(name, 0, 0, out=out)
        if (starts[1:] == stops[:-1]).all():
            return self.read(name, int(starts[0]), int(stops[-1]), out=out)
        counts = stops - starts
        positions = counts.cumsum() - counts
        rows = np.arange(int(counts.sum())) + np.repeat(starts - positions, counts)
        is_large = counts * spec_of(column).dtype.itemsize * math.prod(column.shape) >= LARGE_BYTES
        if not is_large.any():
            return placed(self.read_rows(name, rows), out)
        if out is None:
            out = np.empty((len(rows), *column.shape), column.dtype)
        for first, place, count in np.stack([starts, positions, counts], 1)[is_large].tolist():
            self.read(name, first, first + count, out=out[place : place + count])
        small = np.repeat(~is_large, counts)
        out[small] = self.read_rows(name, rows[small])
        return out

    def _rebased(self, name: str, part: int, values: np.ndarray) -> np.ndarray:
        if part == 0 or not is_offsets(name):
            return values
        counted = next(other for other in self._columns if offsets_of(other) == name)
        rebased: np.ndarray = values + self._first_rows[counted][part]
        return rebased

    def _located(self, error: IntegrityError, part: int, advice: str = "") -> IntegrityError:
        """Return an error of a part that names the folder and the command to run; a deletion is raised instead."""
        if self.elsewhere is not None:
            raise error  # it names the places already
        self._seen.check(error)
        advice = advice or f"run: orlog verify {self.folder} --values"
        return IntegrityError(
            f"{self.folder / part_folder(part)}: {clause(error)}; {advice}",
            file=part_folder(part) + error.file,
            expected=error.expected,
            found=error.found,
        )


def check_rows_inside(name: str, rows: np.ndarray, count: int) -> None:
    """Raise IndexError if a column of so many rows lacks some of these."""
    if len(rows) and not (rows.min() >= 0 and rows.max() < count):
        raise IndexError(f"{name}: it has {count} rows, found rows {rows.min()} to {rows.max()}.")


def open_reader(
    folder: Path, manifest: Manifest, part: int, elsewhere: Elsewhere | None = None
) -> ZarrReader | Hdf5Reader:
    """Return what reads the columns of a part."""
    prefix, totals = part_folder(part), parts_of(manifest)[part].columns
    rows = {stored_spec(manifest, column): totals[column.name].rows for column in manifest.columns}
    if manifest.container == "hdf5":
        return Hdf5Reader(folder / prefix, rows)
    sizes = {
        item.path.removeprefix(prefix): item.size_bytes for item in manifest.objects if item.path.startswith(prefix)
    }
    return ZarrReader(folder / prefix, rows, sizes, elsewhere, prefix)


def schema_of_manifest(manifest: Manifest, folder: Path) -> Schema:
    """Return the schema of a version, after comparing columns with spaces and totals."""
    for column in manifest.columns:
        if offsets_of(column.name) is not None:
            continue
        for part in parts_of(manifest):
            rows = expected_rows(column.name, part.episodes, part.steps)
            listed = part.columns[column.name].rows
            if listed != rows:
                raise ManifestError(
                    f"{folder}: column {column.name}: the totals require {rows} rows, the manifest lists {listed}.",
                    file=MANIFEST_FILE,
                )
    specs = [spec_of(column) for column in manifest.columns]
    try:
        return schema_of(*manifest.spaces, specs, manifest.variable_columns, is_layer=manifest.base is not None)
    except SchemaError as error:
        raise ManifestError(f"{folder}: {clause(error)}.", file=MANIFEST_FILE) from error


def spec_of(column: Column) -> ColumnSpec:
    """Return a column of a manifest as it is stored."""
    return ColumnSpec(column.name, np.dtype(column.dtype), tuple(column.shape))


def stored_spec(manifest: Manifest, column: Column) -> ColumnSpec:
    """Return what the container holds of a column: of videos, the index."""
    return index_spec(column.name) if column.name in manifest.videos else spec_of(column)


def _check_objects(folder: Path, objects: Sequence[StoredObject]) -> None:
    """Check the existence and size of every object, and the bytes of Zarr's metadata."""
    problem = check_places(folder, objects)
    for item in objects:
        if not item.path.endswith("zarr.json"):
            continue
        if item.size_bytes > LARGEST_METADATA:
            raise ManifestError(
                f"{folder}: {item.path}: expected at most {LARGEST_METADATA} bytes of metadata, "
                f"found {item.size_bytes}.",
                file=item.path,
            )
        problem = problem or check_sha256(folder, item)
    if problem is not None:
        where, advice = f"{folder}: {problem.file}", f"run: orlog verify {folder}"
        raise mismatch(where, problem.file, problem.expected, problem.found, advice)


def _joined(starts: np.ndarray, stops: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    firsts, lasts = starts[[0, *edges]], stops[[*(edges - 1), -1]]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
