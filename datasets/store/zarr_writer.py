"""Writes columns as Zarr v3 arrays in a folder, one file per shard, in bounded memory.

Rows fill a shard per column; a few threads compress full shards, hash them and make them durable.
Equal rows give equal bytes, however they are split over calls.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import blake3
import numpy as np

from orlog.base.files import make_folder, storage_errors, sync
from orlog.datasets.columns.bounds import Bounds, count_outside, lies_inside, merge_outside
from orlog.datasets.columns.schema import Schema
from orlog.datasets.store.encoding import SHARD_BYTES, Encoding, array_metadata, choose_encoding, to_bytes
from orlog.datasets.store.objects import group_folders, shard_path
from orlog.datasets.store.shards import Shard, choose_for_images, encode_shard
from orlog.errors import SchemaError, StorageError, clause
from orlog.manifests.columns import ColumnSpec, little_endian_bytes
from orlog.manifests.manifest import Outside, Part, StoredObject

THREADS = min(8, os.cpu_count() or 1)
SYNCS = 8
_Shard: TypeAlias = tuple[StoredObject, int, Outside | None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPart:
    """A part that is on disk."""

    schema: Schema
    part: Part
    objects: list[StoredObject]
    non_finite: dict[str, int]
    outside: dict[str, Outside] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WrittenColumn:
    """A column that is on disk."""

    spec: ColumnSpec
    rows: int
    blake3: str
    non_finite: int
    outside: Outside | None
    objects: list[StoredObject]


class ZarrWriter:
    """Writes columns into a folder, a shard at a time."""

    def __init__(
        self, folder: Path, encodings: Mapping[str, Encoding] | None = None, bounds: Mapping[str, Bounds] | None = None
    ) -> None:
        """Create the folder, if it does not exist."""
        self._bounds = dict(bounds or {})
        self.folder = folder
        self.columns: dict[str, ColumnWriter] = {}
        self._encodings = dict(encodings or {})
        self._broken = self._torn = False
        self._workers = _Workers()
        with storage_errors(folder):
            make_folder(folder)

    def add_column(self, spec: ColumnSpec) -> ColumnWriter:
        """Start a column without rows."""
        given = self._encodings.get(spec.name)
        encoding = given or choose_encoding(spec.name, spec.dtype, spec.shape)
        try:
            encoding.check(spec.dtype, spec.shape)
        except ValueError as error:
            problem = f"column {spec.name} cannot have this encoding: {clause(error)}."
            raise SchemaError(problem) from error
        bounds = self._bounds.get(spec.name)
        column = ColumnWriter(self.folder, spec, encoding, self._workers, bounds)
        column.frames_decide = encoding.difference_axis is not None and given is None
        self.columns[spec.name] = column
        return column

    def append(self, block: Mapping[str, np.ndarray]) -> None:
        """Append rows to each of the columns that the block names."""
        with self._all_or_broken():
            try:
                for name, rows in block.items():
                    self.columns[name].append(rows)
            except BaseException:  # Ctrl-C too: only some columns may have the rows
                self._torn = True
                raise

    def flush(self) -> None:
        """Wait until every full shard is durable."""
        with self._all_or_broken(even_torn=True):
            for column in self.columns.values():
                column.wait()
            self._workers.wait_for_disk()

    def finish(self) -> tuple[list[WrittenColumn], list[StoredObject]]:
        """Write the remaining rows, and the metadata."""
        with self._all_or_broken():
            try:
                largest_first = sorted(self.columns.values(), key=lambda column: -column.pending.nbytes)
                for column in largest_first:
                    column.write_rest()
                groups = []
                for name in group_folders(self.columns):
                    body = {"attributes": {} if name else {"orlog_format": 1}, "zarr_format": 3, "node_type": "group"}
                    groups.append(self._workers.write(self.folder, f"{name}zarr.json", [to_bytes(body)]))
                written = [self.columns[name].finish() for name in sorted(self.columns)]
                self._workers.wait_for_disk()
            finally:
                self.close()
        return written, groups

    def close(self) -> None:
        """Stop the threads and free the memory; what was not written is dropped."""
        self._workers.close()
        for column in self.columns.values():
            column.drop_memory()

    @contextlib.contextmanager
    def _all_or_broken(self, *, even_torn: bool = False) -> Iterator[None]:
        """Refuse further writes after a failure: some columns may lack rows that others have."""
        if self._broken or (self._torn and not even_torn):
            raise StorageError(
                f"{self.folder}: an earlier write failed, so nothing more is accepted; what was "
                "acknowledged is kept: start again with resume=True."
            )
        try:
            with storage_errors(self.folder):
                yield
        except Exception:
            self._broken = True
            raise


class _Workers:
    """Threads that write shards, threads that wait for the disk, and memory for reuse."""

    def __init__(self) -> None:
        self.writing = concurrent.futures.ThreadPoolExecutor(THREADS, "orlog-write")
        self._syncing = concurrent.futures.ThreadPoolExecutor(SYNCS, "orlog-sync")
        self._synced: collections.deque[concurrent.futures.Future[None]] = collections.deque()
        self.spare: list[np.ndarray] = []

    def take_memory(self, size_bytes: int) -> np.ndarray:
        """Return memory for the rows of a shard, reused if possible: new pages cost a copy."""
        for position, memory in enumerate(self.spare):
            if memory.nbytes >= size_bytes:
                return self.spare.pop(position)
        # Not `np.empty`: it requests huge pages, and the kernel then stalls us to make room.
        return np.zeros(max(size_bytes, SHARD_BYTES), np.uint8)

    def write(self, folder: Path, name: str, pieces: Iterable[bytes]) -> StoredObject:
        """Write a file into a folder; it is durable only after `wait_for_disk`."""
        path = folder / name
        make_folder(path.parent)
        path.unlink(missing_ok=True)  # a version may have a link to what was recorded before
        digest, size = hashlib.sha256(), 0
        with path.open("xb") as file:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
                size += len(piece)
        self._synced.append(self._syncing.submit(sync, path))
        return StoredObject(path=name, size_bytes=size, sha256=digest.hexdigest())

    def wait_for_disk(self, unfinished: int = 0) -> None:
        """Wait until all files written so far are durable, except the last `unfinished`."""
        while len(self._synced) > unfinished:
            self._synced.popleft().result()

    def close(self) -> None:
        """Stop the threads; what was not written is dropped."""
        self.writing.shutdown(cancel_futures=True)
        self._syncing.shutdown()
        self.spare.clear()


class ColumnWriter:
    """Writes the shards of one column; `ZarrWriter` creates it."""

    def __init__(
        self, folder: Path, spec: ColumnSpec, encoding: Encoding, workers: _Workers, bounds: Bounds | None = None
    ) -> None:
        self.spec = spec
        self._bounds = bounds
        self.encoding = encoding
        self.frames_decide = False
        self._choices = encoding
        self._folder = folder
        self._workers = workers
        self._row_bytes = spec.dtype.itemsize * math.prod(spec.shape)
        self._take_buffer()
        self._filled = self.handed_rows = 0
        self._hash = blake3.blake3()
        # Memory of the shards that the threads are working on, and what comes of it.
        self._running: collections.deque[tuple[np.ndarray, concurrent.futures.Future[_Shard]]] = collections.deque()
        self._written: list[StoredObject] = []
        self._non_finite = 0
        self._outside: list[Outside] = []

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        return self.handed_rows + self._filled

    @property
    def pending(self) -> np.ndarray:
        """Rows that are not in a full shard yet."""
        return self._buffer[: self._filled]

    def restore(self, full_shards: int, pending: np.ndarray) -> None:
        """Continue after full shards that are on disk, with the rows that follow them."""
        encoding = self.encoding
        for shard in range(full_shards):
            values, item = self.read_shard(shard, encoding.shard_rows)
            self._written.append(item)
            self._hash.update(little_endian_bytes(values))
            self._add_counts(*self._count(values))
            self.handed_rows += encoding.shard_rows
        self.append(pending)

    def drop_from(self, row: int) -> None:
        """Drop this row and all after it, none of which may be in a full shard."""
        self._filled = min(self._filled, row - self.handed_rows)

    def read_shard(self, shard: int, rows: int) -> tuple[np.ndarray, StoredObject]:
        """Return the first rows of a shard on disk, and its `StoredObject`."""
        name = shard_path(self.spec, shard)
        path = self._folder / name
        size = path.stat().st_size if path.is_file() else 0
        opened = Shard(path, self.encoding.chunks_per_shard, size, name=name)
        values = np.empty((self.encoding.shard_rows, *self.spec.shape), self.spec.dtype)
        each = self.encoding.chunk_rows
        for chunk in range(-(-rows // each)):
            opened.decode(chunk, values[chunk * each : (chunk + 1) * each], self.encoding)
        data = path.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        return values[:rows], StoredObject(path=name, size_bytes=len(data), sha256=sha256)

    def append(self, rows: np.ndarray) -> None:
        """Append rows; full shards are handed to the threads."""
        spec = self.spec
        is_of_type = rows.dtype == spec.dtype or rows.dtype.newbyteorder("=") == spec.dtype
        if not is_of_type or rows.shape[1:] != spec.shape:
            raise SchemaError(
                f"column {spec.name}: expected rows of {spec.dtype} {spec.shape}, found {rows.dtype} {rows.shape[1:]}."
            )
        first = 0
        while first < len(rows):
            count = min(len(rows) - first, len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + count] = rows[first : first + count]
            self._filled += count
            first += count
            if self._filled == len(self._buffer):
                self._submit()

    def write_rest(self) -> None:
        """Hand over the rows of the last, unfilled shard, and write the metadata."""
        if self._filled:
            self._submit()
        metadata = to_bytes(array_metadata(self.spec, self.rows, self.encoding))
        name = f"{self.spec.name}/zarr.json"
        self._written.append(self._workers.write(self._folder, name, [metadata]))

    def wait(self) -> None:
        """Wait until every shard that was handed over is written, but not until it is durable."""
        while self._running:
            self._collect()

    def finish(self) -> WrittenColumn:
        """Wait for all shards and describe the column; call it after `write_rest`."""
        self.wait()
        name = self.spec.name
        outside = merge_outside({name: count} for count in self._outside)
        return WrittenColumn(
            spec=self.spec,
            rows=self.rows,
            blake3=self._hash.hexdigest(),
            non_finite=self._non_finite,
            outside=outside.get(name),
            objects=sorted(self._written, key=lambda item: item.path),
        )

    def _take_buffer(self) -> None:
        size = self.encoding.shard_rows * self._row_bytes
        self._memory = self._workers.take_memory(size)
        rows = self._memory[:size].view(self.spec.dtype)
        self._buffer = rows.reshape(self.encoding.shard_rows, *self.spec.shape)

    def drop_memory(self) -> None:
        """Free the memory for rows now: a writer may lie in a cycle that Python finds late."""
        self._filled = 0
        self._buffer = self._memory = self._buffer[:0].copy()
        self._running.clear()

    def _submit(self) -> None:
        values = self.pending
        if values.nbytes == 0:  # rows without numbers need no shards
            self.handed_rows, self._filled = self.rows, 0
            return
        if self.frames_decide and self.handed_rows == 0:
            self.encoding = choose_for_images(values, self._choices)
        shard = self.handed_rows // self.encoding.shard_rows
        written = self._workers.writing.submit(self._write, shard, values)
        self._running.append((self._memory, written))
        self._hash.update(little_endian_bytes(values))
        while len(self._running) > THREADS or (self._running and self._running[0][1].done()):
            self._collect()
        self._take_buffer()
        self.handed_rows, self._filled = self.rows, 0

    def _collect(self) -> None:
        memory, written = self._running.popleft()
        item, non_finite, outside = written.result()
        self._workers.spare.append(memory)
        self._workers.wait_for_disk(unfinished=SYNCS)
        self._written.append(item)
        self._add_counts(non_finite, outside)

    def _write(self, shard: int, values: np.ndarray) -> _Shard:
        path, pieces = shard_path(self.spec, shard), encode_shard(values, self.encoding)
        return self._workers.write(self._folder, path, pieces), *self._count(values)

    def _count(self, values: np.ndarray) -> tuple[int, Outside | None]:
        """Return how many numbers are not finite, and those outside their bounds."""
        bounds = self._bounds
        if bounds is not None and lies_inside(values, bounds):
            return 0 if bounds.are_finite else count_non_finite(values), None
        outside = None if bounds is None else count_outside(values, bounds)
        return count_non_finite(values), outside

    def _add_counts(self, non_finite: int, outside: Outside | None) -> None:
        self._non_finite += non_finite
        self._outside += [] if outside is None else [outside]


def count_non_finite(values: np.ndarray) -> int:
    """Return how many numbers are infinite or not a number."""
    if values.dtype.kind != "f":
        return 0
    with np.errstate(over="ignore", invalid="ignore"):
        if math.isfinite(values.sum()):  # much quicker; finite rows rarely overflow
            return 0
    return values.size - int(np.count_nonzero(np.isfinite(values)))
