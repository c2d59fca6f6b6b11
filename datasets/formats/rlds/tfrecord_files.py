"""TFRecord files: records of any bytes, each with two checksums.

    length, uint64 | masked CRC32C of it, uint32 | data | masked CRC32C of the data, uint32 | next record ..

All numbers are little-endian. https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from orlog.errors import IntegrityError, SchemaError

HEADER_BYTES = 12
FOOTER_BYTES = 4
CHECKED_AT_ONCE = 2**20
LARGEST_NEAR = 2**22
Span = tuple[int, int]
"""Where bytes start in a file, and where they stop."""


def open_tfrecord(path: Path, where: str) -> BinaryIO:
    """Open a file of records; links are refused.

    Raises SchemaError if there is none.
    """
    if path.is_symlink() or not path.is_file():
        raise SchemaError(f"{where}: there is no file {path.name}, or it is a link.")
    return path.open("rb")


def record_spans(file: BinaryIO, where: str) -> Iterator[Span]:
    """Yield where the data of each record lie, their checksums compared; memory is bounded.

    Raises IntegrityError if a checksum does not fit, or the file ends inside a record.
    """
    size = file.seek(0, os.SEEK_END)
    start, number = 0, 0
    while start < size:
        what = f"{where}, record {number} at byte {start}"
        file.seek(start)
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            raise IntegrityError(f"{what}: the file ends inside its header.", file=where)
        length, checksum = struct.unpack("<QI", header)
        if checksum != masked_checksum(header[:8]):
            raise IntegrityError(f"{what}: the checksum of its length does not fit.", file=where)
        first = start + HEADER_BYTES
        if length > size - first - FOOTER_BYTES:
            raise IntegrityError(
                f"{what}: expected {length:,} bytes, and the file ends after {max(0, size - first):,}.",
                file=where,
            )
        found = 0
        for place in range(0, length, CHECKED_AT_ONCE):
            found = google_crc32c.extend(found, file.read(min(CHECKED_AT_ONCE, length - place)))
        (checksum,) = struct.unpack("<I", file.read(FOOTER_BYTES))
        if checksum != _masked(found):
            raise IntegrityError(f"{what}: the checksum of its data does not fit.", file=where)
        yield first, first + length
        start, number = first + length + FOOTER_BYTES, number + 1


def near_record(file: BinaryIO, span: Span) -> tuple[BinaryIO, Span]:
    """Return a small record in memory, where reading it here and there is quick; a large one as it is."""
    start, stop = span
    if stop - start > LARGEST_NEAR:
        return file, span
    file.seek(start)
    return io.BytesIO(file.read(stop - start)), (0, stop - start)


def write_record(file: BinaryIO, data: bytes) -> None:
    """Append a record."""
    length = struct.pack("<Q", len(data))
    file.write(length + struct.pack("<I", masked_checksum(length)))
    file.write(data)
    file.write(struct.pack("<I", masked_checksum(data)))


def masked_checksum(data: bytes) -> int:
    """Return the CRC32C of bytes as records hold it."""
    return _masked(google_crc32c.value(data))


def _masked(checksum: int) -> int:
    """Turn a CRC32C by 15 bits and add a constant, since one of data that hold one is no good check."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
