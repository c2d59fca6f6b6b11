"""Reads the default container: columns as Zarr v3 arrays in a folder, one file per shard.

FOLDER/zarr.json                   the group; attributes {"orlog_format": 1}
FOLDER/observations/zarr.json      an array, or a group if the space is a Dict or Tuple
FOLDER/observations/c.0.0          its shards
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import itertools
import math
import os
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import blake3
import numpy as np

from orlog.datasets.store.encoding import LARGEST_METADATA, Encoding, read_encoding
from orlog.datasets.store.objects import mismatch, shard_path
from orlog.datasets.store.shards import Shard, undo_difference
from orlog.errors import IntegrityError, clause
from orlog.manifests.columns import ColumnSpec, little_endian_bytes

if TYPE_CHECKING:
    from orlog.datasets.download.in_place import Coming, Elsewhere

THREADS = min(8, os.cpu_count() or 1)
CHUNKS_FOR_THREADS = 4
SMALL_CHUNK_BYTES = 2**16
OPEN_SHARDS = 128
VALUES_AT_ONCE = 2**25  # bytes
# Shared by all readers, since the number of open files is limited per process.
_open_shards: dict[tuple[object, str], Shard] = {}
_opening: dict[tuple[int, object, str], threading.Lock] = {}


class _Column(NamedTuple):
    """A column that is read: its rows as they are, and as they are stored."""

    spec: ColumnSpec
    encoding: Encoding

    def rows(self, count: int) -> np.ndarray:
        """Return memory for some rows."""
        return np.empty((count, *self.spec.shape), self.spec.dtype)


class ZarrReader:
    """Reads the columns of a container; every chunk is checked before it is decoded."""

    def __init__(
        self,
        folder: Path,
        rows: Mapping[ColumnSpec, int],
        sizes: Mapping[str, int],
        elsewhere: Elsewhere | None = None,
        prefix: str = "",
    ) -> None:
        """Remember columns and their rows, and files with their bytes; nothing is opened yet."""
        self.folder = folder
        self._elsewhere, self._prefix = elsewhere, prefix
        self._rows = {spec.name: (spec, count) for spec, count in rows.items()}
        self._sizes = sizes
        self._columns: dict[str, _Column] = {}
        self._key = object()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_key": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._key = object()

    def __del__(self, opened: dict[tuple[object, str], Shard] = _open_shards) -> None:
        # A default, since a module may have lost its names when the interpreter stops.
        key = self._key
        for place in [place for place in opened.copy() if place[0] is key]:
            opened.pop(place, None)

    def encoding(self, name: str) -> Encoding:
        """Return how a column is stored."""
        return self._column(name).encoding

    def _column(self, name: str) -> _Column:
        if name not in self._columns:
            spec, rows = self._rows[name]
            path = f"{name}/zarr.json"
            is_listed = self._sizes.get(path, LARGEST_METADATA + 1) <= LARGEST_METADATA
            try:
                data = (self.folder / path).read_bytes() if is_listed else b""
                self._columns[name] = _Column(spec, read_encoding(data, spec, rows))
            except (OSError, ValueError) as error:
                raise IntegrityError(f"{path}: column {name} cannot be opened: {clause(error)}.", file=path) from error
        return self._columns[name]

    def check_shards(self, name: str) -> None:
        """Compare the number of rows with the existing shards, before anything is allocated."""
        (spec, encoding), (_, rows) = self._column(name), self._rows[name]
        numbers = spec.dtype.itemsize * math.prod(spec.shape)
        count = -(-rows // encoding.shard_rows) if numbers else 0
        listed = sum(1 for path in self._sizes if path.startswith(f"{name}/c."))
        paths = (shard_path(spec, shard) for shard in range(count))
        if listed != count or not all(path in self._sizes for path in paths):
            where = f"column {name}, {rows} rows"
            raise mismatch(where, f"{name}/zarr.json", f"{count} shards", f"{listed} in the manifest")

    def read(self, name: str, start: int, stop: int, *, out: np.ndarray | None = None) -> np.ndarray:
        """Return rows `start` to `stop - 1` of a column, in `out` if given: contiguous and of their shape and dtype."""
        column = self._column(name)
        out = column.rows(stop - start) if out is None else out
        if start == stop or out.nbytes == 0:
            return out
        chunks = self.chunks_of(name, start, stop)
        if self._elsewhere is not None:
            self.bring({name: chunks})
        if out.nbytes // len(chunks) < SMALL_CHUNK_BYTES:
            self._read_small(column, out, start, stop)
            return out
        _for_each(functools.partial(self._decode_into, column, out, start, stop), chunks)
        return out

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return any rows of a column, in the order asked for."""
        column = self._column(name)
        out = column.rows(len(rows))
        if out.nbytes == 0:
            return out
        encoding = column.encoding
        if self._elsewhere is not None:
            self.bring({name: np.unique(rows // encoding.chunk_rows).tolist()})
        if encoding.chunk_rows == 1:
            for position, chunk in enumerate(rows.tolist()):
                self._decode(column, chunk, out[position : position + 1], undo=False)
            if encoding.difference_axis is not None:
                undo_difference(out, encoding.difference_axis)
            return out

        spare: list[np.ndarray] = []  # new memory costs more than the copy

        def decode(group: tuple[int, np.ndarray]) -> None:
            (chunk, wanted), scratch = group, spare.pop() if spare else column.rows(encoding.chunk_rows)
            self._decode(column, chunk, scratch)
            out[wanted] = scratch[rows[wanted] - chunk * encoding.chunk_rows]
            spare.append(scratch)

        _for_each(decode, list(by_chunk(rows, encoding.chunk_rows)))
        return out

    def shards(self) -> dict[str, tuple[int, int]]:
        """Return how many chunks each shard holds and has room for, by path."""
        counts = {}
        for name, (spec, rows) in self._rows.items():
            encoding = self.encoding(name)
            room = encoding.chunks_per_shard
            chunks = -(-rows // encoding.chunk_rows)
            for number in range(-(-chunks // room)):
                path = shard_path(spec, number)
                if path in self._sizes:
                    counts[path] = min(chunks - number * room, room), room
        return counts

    def chunks_of(self, name: str, start: int, stop: int) -> range:
        """Return the numbers of the chunks that hold rows `start` to `stop - 1` of a column."""
        rows = self.encoding(name).chunk_rows
        return range(start // rows, (stop - 1) // rows + 1) if start < stop else range(0)

    def bring(
        self, chunks: Mapping[str, Iterable[int]], indexes: Container[str] = (), ahead: list[Coming] | None = None
    ) -> None:
        """Fetch chunks of columns, many at once, if they lie elsewhere: first what is missing of indexes."""
        if self._elsewhere is None:
            return
        wanted: dict[tuple[str, int], list[int]] = {}
        for name, numbers in chunks.items():
            spec, encoding = self._column(name)
            if math.prod(spec.shape):
                for chunk in numbers:
                    shard, place = divmod(chunk, encoding.chunks_per_shard)
                    inside = wanted.setdefault((name, shard), [])
                    if name not in indexes:
                        inside.append(place)

        def opened(key: tuple[str, int]) -> Shard:
            return self._shard(self._column(key[0]), key[1])

        self._elsewhere.bring(opened, wanted, ahead)

    def _read_small(self, column: _Column, out: np.ndarray, start: int, stop: int) -> None:
        rows, room = column.encoding.chunk_rows, column.encoding.chunks_per_shard
        first, last = -(-start // rows), stop // rows
        for chunk in {start // rows, (stop - 1) // rows}:
            if not first <= chunk < last:
                self._decode_into(column, out, start, stop, chunk)
        while first < last:
            shard, inside = divmod(first, room)
            end = min(last, (shard + 1) * room)
            part = out[first * rows - start : end * rows - start]
            self._shard(column, shard).decode_many(inside, part, column.encoding)
            first = end

    def _decode_into(self, column: _Column, out: np.ndarray, start: int, stop: int, chunk: int) -> None:
        rows = column.encoding.chunk_rows
        first_row = chunk * rows
        first, last = max(start, first_row), min(stop, first_row + rows)
        part = out[first - start : last - start]
        if len(part) == rows:
            self._decode(column, chunk, part)
        else:
            scratch = column.rows(rows)
            self._decode(column, chunk, scratch)
            part[...] = scratch[first - first_row : last - first_row]

    def _decode(self, column: _Column, chunk: int, out: np.ndarray, *, undo: bool = True) -> None:
        shard, inside = divmod(chunk, column.encoding.chunks_per_shard)
        self._shard(column, shard).decode(inside, out, column.encoding, undo=undo)

    def _shard(self, column: _Column, number: int) -> Shard:
        """Return a shard, which stays open for a while."""
        name = shard_path(column.spec, number)
        key = self._key, name
        shard = _open_shards.get(key)
        if shard is not None:
            return shard
        if name not in self._sizes:
            raise IntegrityError(f"{name}: not in the manifest.", file=name)
        room, elsewhere = column.encoding.chunks_per_shard, self._elsewhere
        if elsewhere is None:
            return _kept_open(key, Shard(self.folder / name, room, self._sizes[name], name=name))
        # Opened once, or what is on its way would be asked for twice. A fork would copy a held lock.
        with _opening.setdefault((os.getpid(), *key), threading.Lock()):
            shard = _open_shards.get(key)
            if shard is None:
                path = self._prefix + name
                shard = _kept_open(key, elsewhere.shard(path, room, name))
        _opening.pop((os.getpid(), *key), None)
        return shard


def _for_each(decode: Callable[[Any], None], chunks: Sequence[Any]) -> None:
    """Decode chunks, many of them in several threads."""
    if len(chunks) < CHUNKS_FOR_THREADS or THREADS == 1:
        for chunk in chunks:
            decode(chunk)
    else:
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            collections.deque(pool.map(decode, chunks), 0)


def _kept_open(key: tuple[object, str], shard: Shard) -> Shard:
    # No lock; single operations of a dict are atomic.
    if len(_open_shards) >= OPEN_SHARDS:
        _open_shards.pop(next(iter(list(_open_shards))), None)
    _open_shards[key] = shard
    return shard


def by_chunk(rows: np.ndarray, chunk_rows: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each chunk that holds some of the rows, and which of the rows it holds."""
    order = np.argsort(rows, kind="stable")
    chunk_of = rows[order] // chunk_rows
    edges = [*np.flatnonzero(np.diff(chunk_of, prepend=-1)).tolist(), len(rows)]
    for first, last in itertools.pairwise(edges):
        yield int(chunk_of[first]), order[first:last]


def placed(values: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """Return values, copied into `out` if it is given."""
    if out is None:
        return values
    out[:] = values
    return out


def hash_values(
    read: Callable[[int, int], np.ndarray],
    spec: ColumnSpec,
    rows: int,
    see: Callable[[np.ndarray], None] = lambda _: None,
) -> str:
    """Return the hex BLAKE3 of all values of a column of one part, decoded a block at a time, which `see` gets."""
    digest = blake3.blake3()
    row_bytes = max(1, spec.dtype.itemsize * math.prod(spec.shape))
    # A power of two, like the rows of a chunk, so that few chunks are decoded for two blocks.
    step = 1 << max(0, (VALUES_AT_ONCE // row_bytes).bit_length() - 1)
    for start in range(0, rows, step):
        values = read(start, min(rows, start + step))
        digest.update(little_endian_bytes(values))
        see(values)
    return str(digest.hexdigest())
