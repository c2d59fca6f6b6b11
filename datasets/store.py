"""The store: the columns of one dataset version as a Zarr v3 group, format 1.

    VERSION FOLDER/
      manifest.json                      lists every other file with size and SHA-256
      zarr.json                          the group; attributes {"orlog_format": 1}
      observations/NAME/zarr.json        S + E rows: one more than steps in each episode
      observations/NAME/c/0/0            shards: chunks of about 1 MiB, 16 to a shard
      actions, rewards, terminations, truncations, infos/NAME            S rows
      episodes/lengths, episodes/seeds, episodes/returns                 E rows

Each inner chunk is bit-shuffled, compressed by zstd inside Blosc and closed by a CRC-32C; nothing
is lossy. A chunk holds the largest power of two of rows that keeps it within 1 MiB.

Writing goes through zarr-python's own pipeline, because the order of chunks inside a shard, and so
the digest, must not depend on what is installed. Reading uses zarrs where it is installed (seven
times faster on 1 M steps), after the sums have been checked (`shards.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from orlog.datasets.manifest import Column, StoredObject
from orlog.datasets.shards import check_chunks
from orlog.errors import IntegrityError, SchemaError, StorageError

__all__ = [
    "ColumnSpec",
    "Store",
    "StoreWriter",
    "check_values",
    "list_objects",
    "storage_errors",
    "sync",
]

CHUNK_BYTES = 2**20
CHUNKS_PER_SHARD = 16
WRITER = "zarr.core.codec_pipeline.BatchedCodecPipeline"
READER = "zarrs.ZarrsCodecPipeline" if importlib.util.find_spec("zarrs") else WRITER

Axis = Literal["step", "observation", "episode"]


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnSpec:
    """Name, type and meaning of the rows of a column that is to be written.

    Attributes:
        name: Path of the column.
        dtype: Type of its numbers.
        shape: Shape of one row.
        axis: What a row stands for: a step, an observation (one more per episode) or an episode.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    axis: Axis

    @property
    def chunk_rows(self) -> int:
        """Rows of an inner chunk: the largest power of two within 1 MiB, at least one."""
        row_bytes = self.dtype.itemsize * math.prod(self.shape)
        return 1 << (max(1, CHUNK_BYTES // max(1, row_bytes)).bit_length() - 1)


class StoreWriter:
    """Writes columns into a new folder, a shard at a time, hashing values as they come.

    Memory is bounded by one shard per column (16 MiB of values). Nothing is read back.
    """

    def __init__(self, folder: Path, columns: list[ColumnSpec]) -> None:
        self.folder = folder
        with _pipeline(WRITER), storage_errors(folder):
            group = zarr.open_group(
                folder, mode="w-", zarr_format=3, attributes={"orlog_format": 1}
            )
            self._columns = {spec.name: _ColumnWriter(group, spec) for spec in columns}

    def append(self, name: str, rows: np.ndarray) -> None:
        """Append rows to a column.

        Raises:
            SchemaError: the rows have another type or shape than the column.
            StorageError: the disk is full.
        """
        with _pipeline(WRITER), storage_errors(self.folder):
            self._columns[name].append(rows)

    def finish(self) -> list[Column]:
        """Write what is left, make everything durable and return the columns for the manifest."""
        with _pipeline(WRITER), storage_errors(self.folder):
            columns = [writer.finish() for _, writer in sorted(self._columns.items())]
            for path in sorted(self.folder.rglob("*")):
                sync(path)
            sync(self.folder)
        return columns


class _ColumnWriter:
    def __init__(self, group: zarr.Group, spec: ColumnSpec) -> None:
        self.spec = spec
        self._array = group.create_array(
            spec.name,
            shape=(0, *spec.shape),
            dtype=spec.dtype,
            chunks=(spec.chunk_rows, *spec.shape),
            shards=(spec.chunk_rows * CHUNKS_PER_SHARD, *spec.shape),
            compressors=[
                BloscCodec(
                    cname="zstd", clevel=3, shuffle="bitshuffle", typesize=spec.dtype.itemsize
                ),
                Crc32cCodec(),
            ],
            filters=None,
            # A chunk of zeros is a chunk like any other: it must be there, with its checksum.
            config={"write_empty_chunks": True},
        )
        self._rows = 0
        self._waiting: list[np.ndarray] = []
        self._waiting_rows = 0
        self._hash = hashlib.sha256()

    def append(self, rows: np.ndarray) -> None:
        spec = self.spec
        if rows.dtype != spec.dtype or rows.shape[1:] != spec.shape:
            raise SchemaError(
                f"column {spec.name}: expected rows of {spec.dtype} {spec.shape}, found "
                f"{rows.dtype} {rows.shape[1:]}"
            )
        self._hash.update(_little_endian_bytes(rows))
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        shard_rows = spec.chunk_rows * CHUNKS_PER_SHARD
        if self._waiting_rows >= shard_rows:
            self._write(self._waiting_rows - self._waiting_rows % shard_rows)

    def finish(self) -> Column:
        if self._waiting_rows:
            self._write(self._waiting_rows)
        return Column(
            name=self.spec.name,
            dtype=self.spec.dtype.name,
            shape=list(self.spec.shape),
            rows=self._rows,
            sha256=self._hash.hexdigest(),
        )

    def _write(self, rows: int) -> None:
        waiting = np.concatenate(self._waiting)
        self._array.resize((self._rows + rows, *self.spec.shape))
        self._array[self._rows : self._rows + rows] = waiting[:rows]
        self._rows += rows
        self._waiting = [waiting[rows:].copy()]
        self._waiting_rows -= rows


class Store:
    """Reads the columns of a store; every chunk is checked before it is decoded.

    Errors name the dataset, the file, what was expected and found, and what to do next.
    """

    def __init__(self, folder: Path, columns: list[Column], objects: list[StoredObject]) -> None:
        self.folder = folder
        self._columns = {column.name: column for column in columns}
        self._sizes = {item.path: item.size_bytes for item in objects}
        self._arrays: dict[str, zarr.Array[Any]] = {}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return rows `start` to `stop - 1` of a column, all by default.

        Raises:
            KeyError: there is no such column.
            IntegrityError: an object is missing, cut or damaged.
        """
        column = self._columns[name]
        stop = column.rows if stop is None else stop
        if not 0 <= start <= stop <= column.rows:
            raise IndexError(f"{name}: rows {start} to {stop} of {column.rows}")
        if start == stop:
            return np.empty((0, *column.shape), column.dtype)
        array = self._array(column)
        self._check(name, array, start, stop)
        try:
            return np.asarray(array[start:stop])
        except Exception as error:  # decoders raise anything on wrong bytes, SystemError included
            raise IntegrityError(
                f"{self.folder}: column {name} cannot be decoded: {error}; run: orlog verify "
                f"{self.folder}",
                file=name,
            ) from error

    def _array(self, column: Column) -> zarr.Array[Any]:
        if column.name not in self._arrays:
            try:
                with _pipeline(READER):
                    array = zarr.open_array(self.folder / column.name, mode="r", zarr_format=3)
            except (ValueError, KeyError, TypeError, OSError) as error:
                raise IntegrityError(
                    f"{self.folder}: column {column.name} cannot be opened: {error}; run: orlog "
                    f"verify {self.folder}",
                    file=f"{column.name}/zarr.json",
                ) from error
            expected = (column.dtype, (column.rows, *column.shape))
            found = (np.dtype(array.dtype).name, array.shape)
            if expected != found:
                raise IntegrityError(
                    f"{self.folder}: column {column.name}: the manifest says {expected}, the array "
                    f"says {found}; the manifest does not belong to this store",
                    file=f"{column.name}/zarr.json",
                    expected=str(expected),
                    found=str(found),
                )
            self._arrays[column.name] = array
        return self._arrays[column.name]

    def _check(self, name: str, array: zarr.Array[Any], start: int, stop: int) -> None:
        """Check size and sums of every shard that holds these rows."""
        if array.shards is None or not array.chunks[1:] == array.shards[1:] == array.shape[1:]:
            raise IntegrityError(
                f"{self.folder}: column {name}: its chunks do not hold whole rows in shards, as "
                "those of format 1 do",
                file=f"{name}/zarr.json",
            )
        chunk_rows, shard_rows = array.chunks[0], array.shards[0]
        per_shard = shard_rows // chunk_rows
        zeros = "/0" * (array.ndim - 1)
        for shard in range(start // shard_rows, (stop - 1) // shard_rows + 1):
            path = f"{name}/c/{shard}{zeros}"
            self._check_size(path)
            first_row = shard * shard_rows
            first = max(0, start - first_row) // chunk_rows
            last = (min(stop - first_row, shard_rows) - 1) // chunk_rows + 1
            try:
                check_chunks(self.folder / path, per_shard, first, last, name=path)
            except IntegrityError as error:
                raise IntegrityError(
                    f"{self.folder}: {error}; run: orlog verify {self.folder}",
                    file=path,
                    expected=error.expected,
                    found=error.found,
                ) from error

    def _check_size(self, path: str) -> None:
        expected = self._sizes.get(path)
        file = self.folder / path
        found = file.stat().st_size if file.is_file() else None
        if expected is None or found != expected:
            raise IntegrityError(
                f"{self.folder}: {path}: expected "
                f"{'nothing, it is not in the manifest' if expected is None else f'{expected} bytes'}"
                f", found {'no file' if found is None else f'{found} bytes'}; run: orlog verify "
                f"{self.folder}",
                file=path,
                expected=str(expected),
                found=str(found),
            )


def check_values(folder: Path, columns: list[Column], objects: list[StoredObject]) -> None:
    """Decode every column of a store and compare its values with what was given to the writer.

    Raises:
        IntegrityError: what was written does not decode to what was given.
    """
    store = Store(folder, columns, objects)
    for column in columns:
        digest = hashlib.sha256()
        for start in range(0, column.rows, 2**20):
            values = store.read(column.name, start, min(column.rows, start + 2**20))
            digest.update(_little_endian_bytes(values))
        if digest.hexdigest() != column.sha256:
            raise IntegrityError(
                f"{folder}: column {column.name} was not written as it was given; the disk or a "
                "codec is at fault. Nothing was kept; run the same command again",
                file=column.name,
                expected=column.sha256,
                found=digest.hexdigest(),
            )


def _little_endian_bytes(values: np.ndarray) -> memoryview:
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


def list_objects(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield (path inside the folder, file) of everything in a store but folders, sorted."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix(), path


def sync(path: Path) -> None:
    """Make a file or folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Turn a full or unwritable disk into a StorageError that names the folder."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"{folder}: cannot write: {error.strerror or error}; free some space or set ORLOG_HOME "
            "to another disk, then run the same command again",
            errno=error.errno,
        ) from error


# Zarr's configuration belongs to the process: two threads that set and restore it in turns would
# leave it changed, and one could make its arrays with the other's pipeline.
_configuring = threading.RLock()


@contextlib.contextmanager
def _pipeline(path: str) -> Iterator[None]:
    """Let Zarr open, make and write arrays with a codec pipeline; an array keeps the one it got."""
    with _configuring, zarr.config.set({"codec_pipeline.path": path}):
        yield
