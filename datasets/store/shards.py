"""Shards: files of compressed chunks, as Zarr's `sharding_indexed` codec lays them out.

    chunk 0 | crc32c | chunk 1 | crc32c | ... | (offset, size) x chunks, uint64 | crc32c of the index

The files are ordinary Zarr (tests read them with zarr-python and zarrs), but they are written and
read here rather than by Zarr's own pipelines, for three reasons. The order of bytes, and so the
digest, depends on no installed package other than numcodecs. A random row costs microseconds
instead of about a millisecond. And each chunk's checksum is compared before the chunk is decoded,
which the zarrs pipeline (0.2.3) skips in shards that are not full. NumPy and Blosc do the work,
without holding the interpreter's lock.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import google_crc32c
import numpy as np

from orlog.base.files import refuse_too_many_files
from orlog.datasets.store.encoding import Encoding, compress, decompress
from orlog.datasets.store.objects import mismatch
from orlog.errors import IntegrityError, clause

SAMPLED_CHUNKS = 16
PIECE_BYTES = 2**21
TOGETHER_BYTES = 2**22  # of rows decoded together; more would not fit the cache
_CRC_BYTES = 4
_INDEX_BYTES = 16
_RESIDUE = 0x48674BC7
_NEVER_WRITTEN = 2**64 - 1


def encode_shard(values: np.ndarray, encoding: Encoding) -> Iterator[bytes]:
    """Yield the bytes of a shard with these rows, at most `encoding.shard_rows`, in pieces."""
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    rows = encoding.chunk_rows
    index = np.full((encoding.chunks_per_shard, 2), _NEVER_WRITTEN, "<u8")
    start = position = 0
    piece: list[bytes] = []
    for chunk, first in enumerate(range(0, len(values), rows)):
        part = values[first : first + rows]
        if len(part) < rows:
            full = np.zeros((rows, *values.shape[1:]), values.dtype)
            full[: len(part)] = part
            part = full
        data = _encode_chunk(part, encoding)
        if chunk == 0:
            decoded = np.empty_like(part)
            decode_chunk(data, decoded, encoding)
            if decoded.tobytes() != part.tobytes():
                raise IntegrityError(
                    "a chunk did not decode to the values it was made of; the memory or the codec is "
                    "at fault. Nothing was kept; run the same command again."
                )
        piece += [data, _crc(data)]
        index[chunk] = position, len(data) + _CRC_BYTES
        position += len(data) + _CRC_BYTES
        if position - start >= PIECE_BYTES:
            yield b"".join(piece)
            start, piece = position, []
    table = index.tobytes()
    yield b"".join([*piece, table, _crc(table)])


def choose_for_images(frames: np.ndarray, encoding: Encoding) -> Encoding:
    """Return the encoding that makes these frames smaller: the given one, or zstd alone."""
    plain = dataclasses.replace(encoding, compression="zstd", bit_shuffle=False, difference_axis=None)
    chunks = max(1, len(frames) // encoding.chunk_rows)
    tried = sorted({chunks * number // SAMPLED_CHUNKS for number in range(SAMPLED_CHUNKS)})
    rows = [slice(chunk * encoding.chunk_rows, (chunk + 1) * encoding.chunk_rows) for chunk in tried]
    samples = [np.ascontiguousarray(frames[part]) for part in rows]
    sizes = [sum(len(_encode_chunk(sample, candidate)) for sample in samples) for candidate in (encoding, plain)]
    return encoding if sizes[0] <= sizes[1] else plain


def decode_chunk(data: bytes | memoryview, out: np.ndarray, encoding: Encoding, *, undo: bool = True) -> None:
    """Decode a chunk, without its checksum, into a contiguous array."""
    decompress(data, out, encoding.compression)
    if undo and encoding.difference_axis is not None:
        undo_difference(out, encoding.difference_axis)


def undo_difference(frames: np.ndarray, axis: int) -> None:
    """Add up uint8 differences along an axis in place, modulo 256."""
    for above, line in itertools.pairwise(np.moveaxis(frames, axis, 0)):
        np.add(line, above, line)


def _encode_chunk(values: np.ndarray, encoding: Encoding) -> bytes:
    if encoding.difference_axis is not None:
        differences = values.copy()
        lines, originals = (np.moveaxis(each, encoding.difference_axis, 0) for each in (differences, values))
        lines[1:] -= originals[:-1]
        values = differences
    return compress(values, encoding)


def _crc(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(_CRC_BYTES, "little")


class Shard:
    """One open shard file; reads and checks single chunks. Safe in threads and after a fork."""

    def __init__(self, path: Path, chunks: int, size_bytes: int, *, name: str) -> None:
        """Open the file and check its index."""
        self.name = name
        self._file = -1
        self._file = self._open(path, size_bytes)
        actual = os.fstat(self._file).st_size
        index_bytes = index_bytes_of(chunks)
        if actual != size_bytes or actual < index_bytes:
            expected = max(size_bytes, index_bytes)
            raise mismatch(name, name, f"{expected} bytes", f"{actual} bytes")
        self._end = actual - index_bytes
        index = self._read_index(index_bytes)
        check_bytes(index, f"{name}, index of chunks", name)
        self._index = places_in(index)

    def _open(self, path: Path, size_bytes: int) -> int:
        """Open the file and return its descriptor."""
        try:
            return os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            refuse_too_many_files(path, error)
            problem = f"no file that can be read: {error.strerror or error}"
            raise mismatch(self.name, self.name, f"{size_bytes} bytes", problem) from error

    def _read_index(self, index_bytes: int) -> bytes:
        """Return the index of chunks with its checksum, which is not compared yet."""
        return os.pread(self._file, index_bytes, self._end)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def read(self, chunk: int) -> memoryview:
        """Return the checked bytes of a chunk, without its checksum."""
        offset, size = self.place(chunk)
        return self._checked(chunk, self._bytes(chunk, chunk + 1, offset, size))

    def decode(self, chunk: int, out: np.ndarray, encoding: Encoding, *, undo: bool = True) -> None:
        """Read, check and decode a chunk into a contiguous array of its shape."""
        self._decode(chunk, self.read(chunk), out, encoding, undo=undo)

    def decode_many(self, first: int, out: np.ndarray, encoding: Encoding) -> None:
        """Read, check and decode chunks from `first` on into a contiguous array of their rows."""
        rows = encoding.chunk_rows
        chunk, end = first, first + len(out) // rows
        most = max(1, TOGETHER_BYTES // out[:rows].nbytes)
        while chunk < end:
            places = self._neighbors(chunk, min(end, chunk + most))
            start, total = places[0][0], sum(size for _, size in places)
            data = self._bytes(chunk, chunk + len(places), start, total)
            begin = (chunk - first) * rows
            for number, (offset, size) in enumerate(places):
                part = self._checked(chunk + number, data[offset - start : offset - start + size])
                row = begin + number * rows
                self._decode(chunk + number, part, out[row : row + rows], encoding, undo=False)
            if encoding.difference_axis is not None:
                undo_difference(out[begin : begin + len(places) * rows], encoding.difference_axis)
            chunk += len(places)

    def _bytes(self, first: int, last: int, start: int, size: int) -> bytes:  # noqa: ARG002
        """Return the bytes of chunks `first` to `last - 1`, which lie next to each other from `start` on."""
        return os.pread(self._file, size, start)

    def _neighbors(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return (offset, size) of the chunks from `first` on that lie next to each other."""
        places = [self.place(first)]
        for chunk in range(first + 1, end):
            offset, size = self._index[chunk].tolist()
            if offset != sum(places[-1]) or offset + size > self._end:
                break
            places.append((offset, size))
        return places

    def place(self, chunk: int) -> tuple[int, int]:
        """Return (offset, size) of a chunk in the file; its checksum is the last four bytes of it."""
        offset, size = self._index[chunk].tolist()
        if offset + size > self._end:
            raise IntegrityError(f"{self.name}: chunk {chunk} is missing or lies outside the shard.", file=self.name)
        return offset, size

    def places(self, chunks: Sequence[int]) -> list[tuple[int, int]]:
        """Return `place` of several chunks, which takes less time than one after the other."""
        places = self._index[list(chunks)]
        if (places > self._end).any() or (places.sum(1) > self._end).any():  # large ones may wrap
            return [self.place(chunk) for chunk in chunks]  # one of which is missing
        return list(map(tuple, places.tolist()))

    def _checked(self, chunk: int, data: bytes) -> memoryview:
        """Compare the bytes of a chunk with their checksum, and return them without it."""
        check_bytes(data, f"{self.name}, chunk {chunk}", self.name)
        return memoryview(data)[:-_CRC_BYTES]

    def _decode(self, chunk: int, data: memoryview, out: np.ndarray, encoding: Encoding, *, undo: bool) -> None:
        try:
            decode_chunk(data, out, encoding, undo=undo)
        except (ValueError, RuntimeError) as error:
            raise IntegrityError(
                f"{self.name}, chunk {chunk}: cannot be decoded: {clause(error)}.", file=self.name
            ) from error


def index_bytes_of(chunks: int) -> int:
    """Return the bytes of the index of a shard with room for so many chunks, with its checksum."""
    return chunks * _INDEX_BYTES + _CRC_BYTES


def places_in(index: bytes) -> np.ndarray:
    """Return (offset, size) of each chunk, (room, 2) uint64, as an index with its checksum says."""
    return np.frombuffer(index[:-_CRC_BYTES], "<u8").reshape(-1, 2)


def check_bytes(data: bytes, what: str, name: str) -> None:
    """Raise IntegrityError if bytes differ from the checksum at their end: of `what`, in the file `name`."""
    # The CRC over data and their own CRC is a constant, so one pass without a copy is enough.
    if len(data) >= _CRC_BYTES and google_crc32c.value(data) == _RESIDUE:
        return
    if len(data) < _CRC_BYTES:
        raise IntegrityError(f"{what}: too short to hold a checksum.", file=name)
    stored = int.from_bytes(data[-_CRC_BYTES:], "little")
    actual = int(google_crc32c.value(data[:-_CRC_BYTES]))
    raise mismatch(f"{what}: damaged: crc32c", name, f"{stored:08x}", f"{actual:08x}")
