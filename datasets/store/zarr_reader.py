"""Reads the default container: columns as Zarr v3 arrays in a folder, one file per shard.

FOLDER/zarr.json                   the group; attributes {"orlog_format": 1}
FOLDER/observations/zarr.json      an array, or a group if the space is a Dict or Tuple
FOLDER/observations/c.0.0          its shards
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
import os
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blake3
import google_crc32c
import numpy as np

from orlog.datasets.store.encoding import Encoding
from orlog.datasets.store.shards import Place, Shard, undo_difference
from orlog.datasets.store.zarr_metadata import LARGEST_METADATA, read_encoding, shard_path
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


class ZarrReader:
    """Reads the columns of a container; every chunk is checked before it is decoded.

    Safe in threads, after a fork and when pickled: open files are not pickled.
    """

    def __init__(
        self,
        folder: Path,
        rows: Mapping[ColumnSpec, int],
        sizes: Mapping[str, int],
        elsewhere: Elsewhere | None = None,
        prefix: str = "",
    ) -> None:
        """Remember columns and their rows, and files with their bytes; nothing is opened yet.

        With `elsewhere`, shards lie there under `prefix`, and what is read of them is brought here first.
        """
        self.folder = folder
        self._elsewhere, self._prefix = elsewhere, prefix
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

    def __del__(self) -> None:
        key = self._key
        for place in [place for place in _open_shards.copy() if place[0] is key]:
            _open_shards.pop(place, None)

    def encoding(self, name: str) -> Encoding:
        """Return how a column is stored.

        Raises IntegrityError if its metadata do not follow format 1, or do not fit the manifest.
        """
        if name not in self._encodings:
            path = f"{name}/zarr.json"
            is_listed = self._sizes.get(path, LARGEST_METADATA + 1) <= LARGEST_METADATA
            try:
                data = (self.folder / path).read_bytes() if is_listed else b""
                self._encodings[name] = read_encoding(data, self._specs[name], self._rows[name])
            except (OSError, ValueError) as error:
                raise IntegrityError(
                    f"{path}: column {name} cannot be opened: {clause(error)}.", file=path
                ) from error
        return self._encodings[name]

    def check_shards(self, name: str) -> None:
        """Compare the number of rows with the existing shards, before anything is allocated.

        Raises IntegrityError if shards are missing from the manifest, or there are too many.
        """
        spec, encoding = self._specs[name], self.encoding(name)
        numbers = spec.dtype.itemsize * math.prod(spec.shape)
        count = -(-self._rows[name] // encoding.shard_rows) if numbers else 0
        listed = sum(1 for path in self._sizes if path.startswith(f"{name}/c."))
        paths = (shard_path(spec, shard) for shard in range(count))
        if listed != count or not all(path in self._sizes for path in paths):
            raise IntegrityError(
                f"column {name}: {self._rows[name]} rows take {count} shards, the manifest lists "
                f"{listed}.",
                file=f"{name}/zarr.json",
                expected=f"{count} shards",
                found=f"{listed} shards",
            )

    def read(
        self, name: str, start: int, stop: int, *, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return rows `start` to `stop - 1` of a column, in `out` if given: contiguous and of their shape and dtype."""
        spec, encoding = self._specs[name], self.encoding(name)
        if out is None:
            out = np.empty((stop - start, *spec.shape), spec.dtype)
        if start == stop or out.nbytes == 0:
            return out
        rows = encoding.chunk_rows
        chunks = range(start // rows, (stop - 1) // rows + 1)
        if self._elsewhere is not None:
            self.bring({name: chunks})
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

        Raises IntegrityError if a file is missing, cut or damaged.
        """
        spec, encoding = self._specs[name], self.encoding(name)
        out = np.empty((len(rows), *spec.shape), spec.dtype)
        if out.nbytes == 0:
            return out
        if self._elsewhere is not None:
            self.bring({name: np.unique(rows // encoding.chunk_rows).tolist()})
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

    def place(self, name: str, row: int) -> Place:
        """Return where a row of a column lies, after comparing its chunk with its checksum.

        Raises IntegrityError if a file is missing, cut or damaged.
        """
        spec, encoding = self._specs[name], self.encoding(name)
        chunk = row // encoding.chunk_rows
        number, inside = divmod(chunk, encoding.chunks_per_shard)
        shard = self._shard(spec, encoding, number)
        checksum = google_crc32c.value(bytes(shard.read(inside)))
        offset, size = shard.place(inside)
        return Place(
            file=shard_path(spec, number),
            chunk=inside,
            first_row=chunk * encoding.chunk_rows,
            rows=encoding.chunk_rows,
            offset=offset,
            size_bytes=size,
            checksum=f"CRC32C {checksum:08x}",
        )

    def shards(self) -> dict[str, tuple[int, int]]:
        """Return how many chunks each shard holds and has room for, by path."""
        counts = {}
        for name, spec in self._specs.items():
            encoding = self.encoding(name)
            room = encoding.chunks_per_shard
            chunks = -(-self._rows[name] // encoding.chunk_rows)
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
        self,
        chunks: Mapping[str, Iterable[int]],
        indexes: Container[str] = (),
        ahead: list[Coming] | None = None,
    ) -> None:
        """Fetch chunks of columns, many at once, if they lie elsewhere: first what is missing of indexes.

        Of columns in `indexes` nothing else is fetched. With `ahead`, chunks are not waited for: their requests are
        added to it.

        Raises IntegrityError, TransferError or StorageError as `RemoteShard.fetch` does.
        """
        if self._elsewhere is None:
            return
        wanted: dict[tuple[str, int], list[int]] = {}
        for name, numbers in chunks.items():
            if math.prod(self._specs[name].shape):
                per_shard = self.encoding(name).chunks_per_shard
                for chunk in numbers:
                    inside = wanted.setdefault((name, chunk // per_shard), [])
                    if name not in indexes:
                        inside.append(chunk % per_shard)

        def opened(key: tuple[str, int]) -> Shard:
            return self._shard(self._specs[key[0]], self.encoding(key[0]), key[1])

        self._elsewhere.bring(opened, wanted, ahead)

    def _read_small(
        self, spec: ColumnSpec, encoding: Encoding, out: np.ndarray, start: int, stop: int
    ) -> None:
        """Decode many small neighboring chunks, most of them whole."""
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
        part = out[first - start : last - start]
        if len(part) == encoding.chunk_rows:
            self._decode(spec, encoding, chunk, part)
        else:
            scratch = np.empty((encoding.chunk_rows, *spec.shape), spec.dtype)
            self._decode(spec, encoding, chunk, scratch)
            part[...] = scratch[first - first_row : last - first_row]

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

    def _shard(self, spec: ColumnSpec, encoding: Encoding, number: int) -> Shard:
        """Return a shard, which stays open for a while."""
        name = shard_path(spec, number)
        key = self._key, name
        shard = _open_shards.get(key)
        if shard is not None:
            return shard
        if name not in self._sizes:
            raise IntegrityError(f"{name}: not in the manifest.", file=name)
        room, elsewhere = encoding.chunks_per_shard, self._elsewhere
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


def _kept_open(key: tuple[object, str], shard: Shard) -> Shard:
    # No lock; single operations of a dict are atomic.
    if len(_open_shards) >= OPEN_SHARDS:
        _open_shards.pop(next(iter(list(_open_shards))), None)
    _open_shards[key] = shard
    return shard


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
    """Return the hex BLAKE3 of all values of a column of one part, decoded a block at a time, which `see` gets.

    `read` returns the rows from the first to before the last. Raises IntegrityError if they cannot be read.
    """
    digest = blake3.blake3()
    row_bytes = max(1, spec.dtype.itemsize * math.prod(spec.shape))
    # A power of two, like the rows of a chunk, so that few chunks are decoded for two blocks.
    step = 1 << max(0, (VALUES_AT_ONCE // row_bytes).bit_length() - 1)
    for start in range(0, rows, step):
        values = read(start, min(rows, start + step))
        digest.update(little_endian_bytes(values))
        see(values)
    return str(digest.hexdigest())
