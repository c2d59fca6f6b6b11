"""The default container: columns as Zarr v3 arrays in a folder, a shard to a file.

    FOLDER/zarr.json                   the group; attributes {"orlog_format": 1}
    FOLDER/observations/zarr.json      an array, or a group where the space is a Dict or Tuple
    FOLDER/observations/c.0.0          its shards

Writing is a stream with bounded memory: rows fill a shard per column, full shards are compressed,
hashed and made durable by a few threads. Equal rows give equal bytes, however they came.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import blake3
import numpy as np

from orlog.datasets.columns.bounds import Bounds, count_outside, merge_outside
from orlog.datasets.columns.values import ColumnSpec
from orlog.datasets.store.encoding import SHARD_BYTES, Compression, Encoding, choose_encoding
from orlog.datasets.store.shards import (
    Shard,
    choose_for_images,
    encode_shard,
    undo_difference,
)
from orlog.errors import IntegrityError, SchemaError, StorageError
from orlog.files import (
    little_endian_bytes,
    storage_errors,
)
from orlog.manifests.manifest import Outside, StoredObject

__all__ = ["LARGEST_METADATA", "WrittenColumn", "ZarrReader", "ZarrWriter"]

THREADS = min(8, os.cpu_count() or 1)
CHUNKS_FOR_THREADS = 4
SMALL_CHUNK_BYTES = 2**16
OPEN_SHARDS = 128
LARGEST_METADATA = 2**20
SYNCS = 8
OPEN_FILES = 64
# Of all readers together, since the number of open files is limited for the whole process.
_open_shards: dict[tuple[object, str], Shard] = {}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WrittenColumn:
    """What became of a column that was written.

    Attributes:
        spec: Name, dtype and row shape.
        rows: Number of rows.
        blake3: Hex BLAKE3 of all values, row by row, little-endian.
        non_finite: How many of its numbers are infinite or not a number.
        outside: Its numbers outside of their bounds; None where there are none.
        objects: Its files, paths relative to the container's folder.
    """

    spec: ColumnSpec
    rows: int
    blake3: str
    non_finite: int
    outside: Outside | None
    objects: list[StoredObject]


class ZarrWriter:
    """Writes columns into a folder, a shard at a time.

    Memory is bounded by a shard (16 MiB) per column and a few in flight. `flush` waits until all
    full shards are durable; `finish` writes the rest and the metadata.
    """

    def __init__(
        self,
        folder: Path,
        encodings: Mapping[str, Encoding] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        """Make the folder, if it is not there.

        Args:
            folder: Where the container will lie.
            encodings: How to store some columns; the rule of `choose_encoding` holds for others.
            bounds: Of some columns; what lies outside is written and counted.
        """
        self._bounds = dict(bounds or {})
        self.folder = folder
        self.columns: dict[str, ColumnWriter] = {}
        self._encodings = dict(encodings or {})
        self._broken = self._torn = False
        self._workers = _Workers()
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def add_column(self, spec: ColumnSpec) -> ColumnWriter:
        """Start a column without rows."""
        given = self._encodings.get(spec.name)
        encoding = given or choose_encoding(spec.name, spec.dtype, spec.shape)
        try:
            encoding.check(spec.dtype, spec.shape)
        except ValueError as error:
            raise SchemaError(f"column {spec.name} cannot be encoded like that: {error}") from error
        self.columns[spec.name] = ColumnWriter(
            self.folder, spec, encoding, self._workers, self._bounds.get(spec.name)
        )
        is_image = encoding.difference_axis is not None
        self.columns[spec.name].frames_decide = is_image and given is None
        return self.columns[spec.name]

    def append(self, block: Mapping[str, np.ndarray]) -> None:
        """Append rows to each of the columns that the block names.

        Raises:
            SchemaError: rows have another dtype or shape than the column.
            StorageError: the disk is full.
        """
        with self._all_or_broken():
            try:
                for name, rows in block.items():
                    self.columns[name].append(rows)
            except BaseException:  # Ctrl-C too: some columns may have the rows and others not
                self._torn = True
                raise

    def flush(self) -> None:
        """Wait until every full shard is durable."""
        with self._all_or_broken(even_torn=True):
            for column in self.columns.values():
                column.wait()
            self._workers.wait_for_disk()

    def finish(self) -> tuple[list[WrittenColumn], list[StoredObject]]:
        """Write what is left, and the metadata.

        Returns:
            The columns sorted by name, and the metadata files of the groups they lie in.
        """
        with self._all_or_broken():
            try:
                largest_first = sorted(
                    self.columns.values(), key=lambda column: -column.pending.nbytes
                )
                for column in largest_first:
                    column.write_rest()
                groups = [self._write_group(name) for name in _groups(list(self.columns))]
                written = [self.columns[name].finish() for name in sorted(self.columns)]
                self._workers.wait_for_disk()
            finally:
                self.close()
        return written, groups

    def _write_group(self, name: str) -> StoredObject:
        attributes = {} if name else {"orlog_format": 1}
        body = {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
        return self._workers.write(self.folder, f"{name}zarr.json", [_to_bytes(body)])

    def close(self) -> None:
        """Stop the threads; what was not written is dropped."""
        self._workers.close()

    @contextlib.contextmanager
    def _all_or_broken(self, *, even_torn: bool = False) -> Iterator[None]:
        """Refuse to go on after a failure: some columns may lack rows that others have.

        Rows from before an interruption are sound, so `even_torn` may still make them durable.
        """
        if self._broken or (self._torn and not even_torn):
            raise StorageError(
                f"{self.folder}: an earlier write failed, so nothing more is taken; what was "
                "acknowledged is kept: start again with resume=True"
            )
        try:
            with storage_errors(self.folder):
                yield
        except Exception:
            self._broken = True
            raise


class _Workers:
    """Threads that write shards, threads that wait for the disk, and memory to be used again."""

    def __init__(self) -> None:
        self.writing = concurrent.futures.ThreadPoolExecutor(THREADS, "orlog-write")
        self._syncing = concurrent.futures.ThreadPoolExecutor(SYNCS, "orlog-sync")
        self._synced: collections.deque[concurrent.futures.Future[None]] = collections.deque()
        self._open_files = threading.Semaphore(OPEN_FILES)
        self._spare: list[np.ndarray] = []

    def take_memory(self, size_bytes: int) -> np.ndarray:
        """Return memory for the rows of a shard; new pages would cost as much as a copy."""
        for position, memory in enumerate(self._spare):
            if memory.nbytes >= size_bytes:
                return self._spare.pop(position)
        # Not `np.empty`: it asks for huge pages, and the kernel then stops us to make room for them.
        return np.zeros(max(size_bytes, SHARD_BYTES), np.uint8)

    def give_back(self, memory: np.ndarray) -> None:
        """Keep memory for the next shard, of whatever column."""
        self._spare.append(memory)

    def write(self, folder: Path, name: str, pieces: Iterable[bytes]) -> StoredObject:
        """Write a file of a folder; it is not durable before `wait_for_disk`."""
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with contextlib.ExitStack() as after_errors:
            self._open_files.acquire()
            after_errors.callback(self._open_files.release)
            file = after_errors.enter_context(path.open("wb"))
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
                size += len(piece)
            file.flush()
            after_errors.pop_all()
        self._synced.append(self._syncing.submit(self._sync_and_close, file))
        return StoredObject(path=name, size_bytes=size, sha256=digest.hexdigest())

    def _sync_and_close(self, file: BinaryIO) -> None:
        try:
            with file:
                os.fsync(file.fileno())
        finally:
            self._open_files.release()

    def wait_for_disk(self, unfinished: int = 0) -> None:
        """Wait until all files written so far are durable, but for the last `unfinished`."""
        while len(self._synced) > unfinished:
            self._synced.popleft().result()

    def close(self) -> None:
        """Stop the threads; what was not written is dropped."""
        self.writing.shutdown(cancel_futures=True)
        self._syncing.shutdown()


# Numbers of a shard that are not finite, and those outside of their bounds by column.
_Counts: TypeAlias = tuple[int, dict[str, Outside]]


class _Handed(NamedTuple):
    """A shard that the threads are working on."""

    memory: np.ndarray
    written: concurrent.futures.Future[tuple[StoredObject, _Counts]]


class ColumnWriter:
    """The shards of one column; `ZarrWriter` makes it.

    Attributes:
        spec: Name, dtype and row shape.
        encoding: How rows are stored; of images it is chosen when the first shard is full.
        frames_decide: Whether that choice is still open to be made, and made again.
        handed_rows: Rows in shards that the threads write or have written.
    """

    def __init__(
        self,
        folder: Path,
        spec: ColumnSpec,
        encoding: Encoding,
        workers: _Workers,
        bounds: Bounds | None = None,
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
        self._running: collections.deque[_Handed] = collections.deque()
        self._written: list[StoredObject] = []
        self._non_finite = 0
        self._outside: dict[str, Outside] = {}

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        return self.handed_rows + self._filled

    @property
    def pending(self) -> np.ndarray:
        """Rows that are in no full shard yet."""
        return self._buffer[: self._filled]

    def restore(self, full_shards: int, pending: np.ndarray) -> None:
        """Go on from shards that are on the disk, and rows behind them that are not.

        Raises:
            IntegrityError: a shard is missing or damaged.
        """
        encoding = self.encoding
        for shard in range(full_shards):
            values, item = self.read_shard(shard, encoding.shard_rows)
            self._written.append(item)
            self._hash.update(little_endian_bytes(values))
            self._add_counts(self._count(values))
            self.handed_rows += encoding.shard_rows
        self.append(pending)

    def read_shard(self, shard: int, rows: int) -> tuple[np.ndarray, StoredObject]:
        """Return the first rows of a shard on the disk, and its record.

        Raises:
            IntegrityError: it is missing or damaged.
        """
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

    def drop_from(self, row: int) -> None:
        """Drop this row and those behind it, none of which may have been handed over."""
        self._filled = min(self._filled, row - self.handed_rows)

    def append(self, rows: np.ndarray) -> None:
        """Append rows; full shards are handed to the threads."""
        spec = self.spec
        is_of_type = rows.dtype == spec.dtype or rows.dtype.newbyteorder("=") == spec.dtype
        if not is_of_type or rows.shape[1:] != spec.shape:
            raise SchemaError(
                f"column {spec.name}: expected rows of {spec.dtype} {spec.shape}, found "
                f"{rows.dtype} {rows.shape[1:]}"
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
        """Hand over the rows that fill no shard, and write the metadata."""
        if self._filled:
            self._submit()
        metadata = _to_bytes(array_metadata(self.spec, self.rows, self.encoding))
        name = f"{self.spec.name}/zarr.json"
        self._written.append(self._workers.write(self._folder, name, [metadata]))

    def wait(self) -> None:
        """Wait until every shard that was handed over is written, if not on the disk yet."""
        while self._running:
            self._collect()

    def finish(self) -> WrittenColumn:
        """Return what became of the column, after `write_rest`."""
        self.wait()
        return WrittenColumn(
            spec=self.spec,
            rows=self.rows,
            blake3=self._hash.hexdigest(),
            non_finite=self._non_finite,
            outside=self._outside.get(self.spec.name),
            objects=sorted(self._written, key=lambda item: item.path),
        )

    def _take_buffer(self) -> None:
        size = self.encoding.shard_rows * self._row_bytes
        self._memory = self._workers.take_memory(size)
        rows = self._memory[:size].view(self.spec.dtype)
        self._buffer = rows.reshape(self.encoding.shard_rows, *self.spec.shape)

    def _submit(self) -> None:
        values = self.pending
        if values.nbytes == 0:  # rows without numbers take no shards
            self.handed_rows, self._filled = self.rows, 0
            return
        if self.frames_decide and self.handed_rows == 0:
            self.encoding = choose_for_images(values, self._choices)
        shard = self.handed_rows // self.encoding.shard_rows
        written = self._workers.writing.submit(self._write, shard, values)
        self._running.append(_Handed(self._memory, written))
        self._hash.update(little_endian_bytes(values))
        while len(self._running) > THREADS or (self._running and self._running[0].written.done()):
            self._collect()
        self._take_buffer()
        self.handed_rows, self._filled = self.rows, 0

    def _collect(self) -> None:
        handed = self._running.popleft()
        item, counts = handed.written.result()
        self._workers.give_back(handed.memory)
        self._workers.wait_for_disk(unfinished=SYNCS)
        self._written.append(item)
        self._add_counts(counts)

    def _write(self, shard: int, values: np.ndarray) -> tuple[StoredObject, _Counts]:
        counts = self._count(values)
        pieces = encode_shard(values, self.encoding)
        return self._workers.write(self._folder, shard_path(self.spec, shard), pieces), counts

    def _count(self, values: np.ndarray) -> _Counts:
        outside = None if self._bounds is None else count_outside(values, self._bounds)
        return _count_non_finite(values), {} if outside is None else {self.spec.name: outside}

    def _add_counts(self, counts: _Counts) -> None:
        self._non_finite += counts[0]
        self._outside = merge_outside([self._outside, counts[1]])


def shard_path(spec: ColumnSpec, shard: int) -> str:
    """Return the path of a shard inside the container's folder."""
    return f"{spec.name}/c.{shard}{'.0' * len(spec.shape)}"


def array_metadata(spec: ColumnSpec, rows: int, encoding: Encoding) -> dict[str, Any]:
    """Return what the `zarr.json` of a column says, in zarr-python's order."""
    dtype = spec.dtype
    little: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
    number_codec = little if dtype.itemsize > 1 else {"name": "bytes"}
    codecs: list[dict[str, Any]] = [number_codec]
    if encoding.difference_axis is not None:
        axis = {"axis": encoding.difference_axis}
        codecs.insert(0, {"name": "orlog.difference", "configuration": axis})
    if encoding.compression != "none":
        configuration = {
            "typesize": dtype.itemsize,
            "cname": encoding.compression,
            "clevel": encoding.level,
            "shuffle": "bitshuffle" if encoding.bit_shuffle else "noshuffle",
            "blocksize": encoding.block_bytes,
        }
        codecs.append({"name": "blosc", "configuration": configuration})
    codecs.append({"name": "crc32c"})
    sharding = {
        "chunk_shape": [encoding.chunk_rows, *spec.shape],
        "codecs": codecs,
        "index_codecs": [little, {"name": "crc32c"}],
        "index_location": "end",
    }
    shard_shape = {"chunk_shape": [encoding.shard_rows, *spec.shape]}
    zero = {"b": False, "f": 0.0}.get(dtype.kind, 0)
    return {
        "shape": [rows, *spec.shape],
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": shard_shape},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": zero,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def read_encoding(data: bytes, spec: ColumnSpec, rows: int) -> Encoding:
    """Return the encoding that a `zarr.json` states; nothing else in it may differ from format 1.

    Raises:
        ValueError: it is not what format 1 writes for these rows.
    """
    try:
        body = json.loads(data)
        sharding = body["codecs"][0]["configuration"]
        chunk_rows = sharding["chunk_shape"][0]
        shard_rows = body["chunk_grid"]["configuration"]["chunk_shape"][0]
        compression: Compression = "none"
        bit_shuffle, axis = True, None
        for codec in sharding["codecs"]:
            if codec["name"] == "blosc":
                compression = codec["configuration"]["cname"]
                bit_shuffle = codec["configuration"]["shuffle"] == "bitshuffle"
            elif codec["name"] == "orlog.difference":
                axis = codec["configuration"]["axis"]
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"no metadata of an array of format 1: {error!r}") from error
    if type(chunk_rows) is not int or type(shard_rows) is not int or chunk_rows < 1:
        raise ValueError("chunks of no rows")
    encoding = Encoding(
        chunk_rows=chunk_rows,
        chunks_per_shard=max(1, shard_rows // chunk_rows),
        compression=compression,
        bit_shuffle=bit_shuffle,
        difference_axis=axis,
    )
    encoding.check(spec.dtype, spec.shape)
    if array_metadata(spec, rows, encoding) != body:
        raise ValueError(f"its metadata are not those of {rows} rows of {spec.dtype} {spec.shape}")
    return encoding


def _to_bytes(body: dict[str, Any]) -> bytes:
    return json.dumps(body, indent=2).encode()


def _count_non_finite(values: np.ndarray) -> int:
    if values.dtype.kind != "f":
        return 0
    with np.errstate(over="ignore", invalid="ignore"):
        if math.isfinite(values.sum()):  # much quicker, and rarely wrong: only if sums overflow
            return 0
    return values.size - int(np.count_nonzero(np.isfinite(values)))


def _groups(columns: list[str]) -> list[str]:
    """Return the folders that hold arrays or other groups, the container's own, "", first."""
    parents = {parent.as_posix() for name in columns for parent in PurePosixPath(name).parents}
    return sorted({"", *(f"{parent}/" for parent in parents if parent != ".")})


class ZarrReader:
    """Reads the columns of a container; every chunk is checked before it is decoded.

    Safe in threads, after a fork, and to pickle: open files stay behind.
    """

    def __init__(
        self, folder: Path, rows: Mapping[ColumnSpec, int], sizes: Mapping[str, int]
    ) -> None:
        """Remember what there is; nothing is opened yet.

        Args:
            folder: Where the container lies.
            rows: The columns, and how many rows each has.
            sizes: Size in bytes of every file, by path inside the folder.
        """
        self.folder = folder
        self._specs = {spec.name: spec for spec in rows}
        self._rows = {spec.name: count for spec, count in rows.items()}
        self._sizes = sizes
        self._encodings: dict[str, Encoding] = {}
        self._key = object()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_key": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._key = object()

    def encoding(self, name: str) -> Encoding:
        """Return how a column is stored.

        Raises:
            IntegrityError: its metadata are not those of format 1, or do not fit the manifest.
        """
        if name not in self._encodings:
            path = self.folder / name / "zarr.json"
            try:
                self._encodings[name] = read_encoding(
                    path.read_bytes(), self._specs[name], self._rows[name]
                )
            except (OSError, ValueError) as error:
                raise IntegrityError(
                    f"{path}: column {name} cannot be opened: {error}",
                    file=f"{name}/zarr.json",
                ) from error
        return self._encodings[name]

    def check_shards(self, name: str) -> None:
        """Compare the number of rows with the shards there are, before anything is allocated.

        Raises:
            IntegrityError: shards are missing from the manifest, or there are too many.
        """
        spec, encoding = self._specs[name], self.encoding(name)
        numbers = spec.dtype.itemsize * math.prod(spec.shape)
        shards = -(-self._rows[name] // encoding.shard_rows) if numbers else 0
        listed = sum(1 for path in self._sizes if path.startswith(f"{name}/c."))
        if listed != shards or any(
            shard_path(spec, shard) not in self._sizes for shard in range(shards)
        ):
            raise IntegrityError(
                f"column {name}: {self._rows[name]} rows take {shards} shards, the manifest lists "
                f"{listed}",
                file=f"{name}/zarr.json",
                expected=f"{shards} shards",
                found=f"{listed} shards",
            )

    def read(
        self, name: str, start: int, stop: int, *, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return rows `start` to `stop - 1` of a column.

        Args:
            name: The column.
            start: First row.
            stop: Row behind the last one.
            out: Where they go, contiguous and of their shape and type; a new array by default.

        Raises:
            IntegrityError: an object is missing, cut or damaged.
        """
        spec, encoding = self._specs[name], self.encoding(name)
        if out is None:
            out = np.empty((stop - start, *spec.shape), spec.dtype)
        if start == stop or out.nbytes == 0:
            return out
        rows = encoding.chunk_rows
        chunks = range(start // rows, (stop - 1) // rows + 1)
        if out.nbytes // len(chunks) < SMALL_CHUNK_BYTES:
            self._read_small(spec, encoding, out, start, stop)
            return out
        decode = functools.partial(self._decode_into, spec, encoding, out, start, stop)
        if len(chunks) < CHUNKS_FOR_THREADS or THREADS == 1:
            for chunk in chunks:
                decode(chunk)
        else:
            with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
                for _ in pool.map(decode, chunks):
                    pass
        return out

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return any rows of a column, in the order asked for.

        Raises:
            IntegrityError: an object is missing, cut or damaged.
        """
        spec, encoding = self._specs[name], self.encoding(name)
        out = np.empty((len(rows), *spec.shape), spec.dtype)
        if out.nbytes == 0:
            return out
        if encoding.chunk_rows == 1:
            for position, chunk in enumerate(rows.tolist()):
                self._decode(spec, encoding, chunk, out[position : position + 1], undo=False)
            if encoding.difference_axis is not None:
                undo_difference(out, encoding.difference_axis)
            return out
        scratch = np.empty((encoding.chunk_rows, *spec.shape), spec.dtype)
        order = np.argsort(rows, kind="stable")
        chunk_of = rows[order] // encoding.chunk_rows
        edges = np.flatnonzero(np.diff(chunk_of, prepend=-1)).tolist()
        for first, last in zip(edges, [*edges[1:], len(rows)], strict=True):
            chunk = int(chunk_of[first])
            self._decode(spec, encoding, chunk, scratch)
            wanted = order[first:last]
            out[wanted] = scratch[rows[wanted] - chunk * encoding.chunk_rows]
        return out

    def _read_small(
        self, spec: ColumnSpec, encoding: Encoding, out: np.ndarray, start: int, stop: int
    ) -> None:
        """Decode many small chunks in row, most of them whole."""
        rows = encoding.chunk_rows
        first, last = -(-start // rows), stop // rows
        for chunk in {start // rows, (stop - 1) // rows}:
            if not first <= chunk < last:
                self._decode_into(spec, encoding, out, start, stop, chunk)
        while first < last:
            shard, inside = divmod(first, encoding.chunks_per_shard)
            end = min(last, (shard + 1) * encoding.chunks_per_shard)
            part = out[first * rows - start : end * rows - start]
            self._shard(spec, encoding, shard).decode_many(inside, part, encoding)
            first = end

    def _decode_into(
        self,
        spec: ColumnSpec,
        encoding: Encoding,
        out: np.ndarray,
        start: int,
        stop: int,
        chunk: int,
    ) -> None:
        """Decode the part of a chunk that lies between rows `start` and `stop` into `out`."""
        first_row = chunk * encoding.chunk_rows
        first, last = max(start, first_row), min(stop, first_row + encoding.chunk_rows)
        if last - first == encoding.chunk_rows:
            self._decode(spec, encoding, chunk, out[first - start : last - start])
        else:
            scratch = np.empty((encoding.chunk_rows, *spec.shape), spec.dtype)
            self._decode(spec, encoding, chunk, scratch)
            out[first - start : last - start] = scratch[first - first_row : last - first_row]

    def _decode(
        self,
        spec: ColumnSpec,
        encoding: Encoding,
        chunk: int,
        out: np.ndarray,
        *,
        undo: bool = True,
    ) -> None:
        shard, inside = divmod(chunk, encoding.chunks_per_shard)
        self._shard(spec, encoding, shard).decode(inside, out, encoding, undo=undo)

    def _shard(self, spec: ColumnSpec, encoding: Encoding, shard: int) -> Shard:
        name = shard_path(spec, shard)
        found = _open_shards.get((self._key, name))
        if found is not None:
            return found
        if name not in self._sizes:
            raise IntegrityError(f"{name}: not in the manifest", file=name)
        opened = Shard(self.folder / name, encoding.chunks_per_shard, self._sizes[name], name=name)
        # Without a lock, since a fork would copy a held one; single steps of a dict are whole.
        if len(_open_shards) >= OPEN_SHARDS:
            _open_shards.pop(next(iter(list(_open_shards))), None)
        _open_shards[self._key, name] = opened
        return opened
