"""Makes a pack: writes a dataset's columns into files a block at a time, then reads them back."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Self

import blake3
import msgspec
import numpy as np

from orlog.base.files import storage_errors, sync, write_durably
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import IntegrityError, SchemaError, StorageError
from orlog.loaders.filling import Layout, fill_matrix, fill_other, not_finite
from orlog.loaders.pack_cache import RECORD_FILE
from orlog.loaders.pack_record import PackFile, PackRecord, PackSource, describe_pack, file_forms, sealed
from orlog.loaders.step_table import count_since
from orlog.manifests.columns import little_endian_bytes
from orlog.manifests.documents import LARGEST_FILE

BLOCK_BYTES = 2**24


def make_pack(source: PackSource, folder: Path, allow_non_finite: bool, progress: Callable[[int], None]) -> None:
    """Write a pack into an empty folder and read it back."""
    dataset, layout, mixture = source.dataset, source.layout, source.mixture
    _check_room(dataset, folder, layout)
    non_finite = ""
    with storage_errors(folder), contextlib.ExitStack() as opened:
        writers = {
            name: opened.enter_context(_Writer(folder, name, column, dtype, shape))
            for name, column, dtype, shape in file_forms(layout, mixture)
        }
        others = [one for one in writers.values() if one.column]
        # Texts first: only they can make the record invalid, which should not show hours later.
        for writer in [one for one in others if one.column in layout.tables]:
            _write_other(dataset, layout, writer, progress)
        record = describe_pack(source, layout, mixture)
        _encode(record)
        for first, last in layout.ranges("", BLOCK_BYTES):
            matrix = np.zeros((last - first, layout.width), np.float32)
            place = fill_matrix(dataset, layout, first, last, matrix)
            if place and not allow_non_finite:
                raise not_finite(dataset, place)
            non_finite = non_finite or place
            progress(writers["rows.f32"].write(matrix))
        for writer in [one for one in others if one.column not in layout.tables]:
            _write_other(dataset, layout, writer, progress)
        writers["lengths.i64"].write(dataset.episode_lengths)
        for since in count_since(dataset.episode_lengths):
            progress(writers["since.u8"].write(since))
        if mixture is not None:
            writers["mixture.i64"].write(mixture.steps)
        files = tuple(writer.finish() for writer in writers.values())
        record = sealed(msgspec.structs.replace(record, non_finite=non_finite, files=files))
        write_durably(folder / RECORD_FILE, _encode(record))
        sync(folder)
        for one in files:
            with (folder / one.name).open("rb") as file:
                found = hashlib.file_digest(file, blake3.blake3).hexdigest()  # type: ignore[arg-type]
            if found != one.blake3:
                raise IntegrityError(
                    f"{folder}: {one.name}: blake3 expected {one.blake3} found {found}; the disk or memory "
                    "changed what was written; try another disk.",
                    file=one.name,
                    expected=one.blake3,
                    found=found,
                )


def _write_other(dataset: Dataset, layout: Layout, writer: _Writer, progress: Callable[[int], None]) -> None:
    """Write one column in ranges of its own size, so that each chunk is decoded once."""
    spec = layout.others[writer.column]
    for first, last in layout.ranges(writer.column, BLOCK_BYTES):
        values = np.zeros((last - first, *spec.shape), spec.dtype)
        fill_other(dataset, layout, writer.column, first, last, values)
        progress(writer.write(values))


def _encode(record: PackRecord) -> bytes:
    encoded = msgspec.json.format(msgspec.json.encode(record))
    if len(encoded) > LARGEST_FILE:
        raise SchemaError(
            f"{record.name}: distinct texts of {', '.join(record.texts)} take {len(encoded):,} "
            f"bytes, more than the {LARGEST_FILE:,} of a pack; use where='ram' or leave them out."
        )
    return encoded


class _Writer:
    """Context manager that writes one file of a pack and hashes it on the way."""

    def __init__(self, folder: Path, name: str, column: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.name = name
        self.column = column
        self._dtype, self._shape = dtype, shape
        self._digest = blake3.blake3()
        self._file: BinaryIO = (folder / name).open("wb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, values: np.ndarray) -> int:
        """Append values; return their number of bytes."""
        data = little_endian_bytes(values)
        self._digest.update(data)
        written = 0
        while written < len(data):
            written += self._file.write(data[written:])
        return written

    def finish(self) -> PackFile:
        """Make the file durable and describe it."""
        os.fsync(self._file.fileno())
        return PackFile(
            name=self.name,
            column=self.column,
            dtype=str(self._dtype),
            shape=self._shape,
            blake3=self._digest.hexdigest(),
            changed_ns=os.fstat(self._file.fileno()).st_ctime_ns,
        )


def _check_room(dataset: Dataset, folder: Path, layout: Layout) -> None:
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if layout.total_bytes > free:
        raise StorageError(
            f"{dataset.name}: a pack takes {layout.total_bytes:,} bytes, but {folder.parent} has "
            f"{free:,} left; free some space, set ORLOG_HOME to another disk, or use "
            "stream=True, which needs no space.",
            errno=errno.ENOSPC,
        )
