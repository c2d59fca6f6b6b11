"""Reads NumPy's npz files of others, and folders of npy files, by rows, in order: no pickle, memory is bounded.

An npz file is a Zip archive of arrays. Compressed arrays cannot be read from the middle, so each
column is a stream of its own, which gives its rows from the first to the last.
"""

from __future__ import annotations

import contextlib
import functools
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from orlog.datasets.formats._shared.safe_reading import reading
from orlog.errors import IntegrityError, SchemaError

LARGEST_ROW_BYTES = 2**26
LARGEST_FORTRAN_BYTES = 2**30
MOST_ROWS = 2**40
MOST_ARRAYS = 1024
LARGEST_RATIO = 1032  # of Deflate
reading_npz = functools.partial(reading, kind="npz")


def is_npz(path: Path) -> bool:
    """Return whether a file begins as Zip archives do."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


@contextlib.contextmanager
def open_npz(path: Path, where: str) -> Iterator[NpzFile]:
    """Open a file to read from it; an IntegrityError if it is no sound Zip archive."""
    with contextlib.ExitStack() as stack:
        with reading_npz(where):
            archive = stack.enter_context(zipfile.ZipFile(path))
        yield NpzFile(archive, where, stack)


class NpzFile:
    """The arrays of a file.

    Attributes:
        where: What errors call the file.
        names: Names of all arrays, in the order of the file.
    """

    def __init__(self, archive: zipfile.ZipFile, where: str, stack: contextlib.ExitStack) -> None:
        """List the arrays.

        Raises SchemaError if there are none, or too many.
        """
        self.where = where
        self._archive, self._stack = archive, stack
        self._members = {
            item.filename.removesuffix(".npy"): item
            for item in archive.infolist()
            if item.filename.endswith(".npy")
        }
        self.names = list(self._members)
        packed = [item.filename for item in archive.infolist() if item.filename.endswith(".npy")]
        if len(packed) != len(self.names):
            twice = next(name for number, name in enumerate(packed) if name in packed[:number])
            raise SchemaError(
                f"{where}: holds {twice} twice, and nothing says which is meant; save it again."
            )
        if not 0 < len(self.names) <= MOST_ARRAYS:
            raise SchemaError(f"{where}: expected arrays, found {len(self.names)}.")

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array."""
        return self._described(name)[0]

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of an array."""
        return self._described(name)[2]

    def _described(self, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        where = f"{self.where}, {name}"
        item = self._members[name]
        self._check_stored(item, where)
        with reading_npz(where), self._archive.open(item) as stream:
            return npy_header(stream, where)

    def _check_stored(self, item: zipfile.ZipInfo, where: str) -> None:
        """Refuse an array that NumPy would not pack so, or that claims more than it can hold."""
        if item.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise SchemaError(
                f"{where}: is packed in a way that NumPy does not use ({item.compress_type}), expected "
                "stored or deflated."
            )
        most = 1 if item.compress_type == zipfile.ZIP_STORED else LARGEST_RATIO
        if item.file_size > item.compress_size * most:
            raise IntegrityError(
                f"{where}: claims {item.file_size:,} bytes, and {item.compress_size:,} packed ones "
                "cannot hold them.",
                file=self.where,
            )

    def column(self, name: str) -> NpzColumn:
        """Return an array of numbers with a row for each step, as a stream of its own.

        Raises SchemaError if there is none of that name, or it holds other things than numbers;
        IntegrityError if it is damaged.
        """
        where = f"{self.where}, {name}"
        item = self._members.get(name)
        if item is None:
            raise SchemaError(f"{where}: there is no such array; found {', '.join(self.names)}.")
        self._check_stored(item, where)
        with reading_npz(where):
            stream = self._stack.enter_context(self._archive.open(item))
        return _column_in(stream, item.file_size, where, self.where)


def is_npy_folder(path: Path) -> bool:
    """Return whether a folder holds arrays in npy files."""
    return path.is_dir() and any(one.suffix == ".npy" and one.is_file() for one in path.iterdir())


@contextlib.contextmanager
def open_npy(folder: Path, where: str) -> Iterator[NpyFolder]:
    """Open the npy files of a folder, to read from them."""
    with contextlib.ExitStack() as stack:
        yield NpyFolder(folder, where, stack)


class NpyFolder:
    """The arrays of a folder with a file for each.

    Attributes:
        where: What errors call the folder.
        names: Names of all arrays: those of the files without `.npy`.
    """

    def __init__(self, folder: Path, where: str, stack: contextlib.ExitStack) -> None:
        self.where = where
        self._folder, self._stack = folder, stack
        self.names = sorted(one.stem for one in folder.iterdir() if one.suffix == ".npy")

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array."""
        return self._header(name)[0]

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of an array."""
        return self._header(name)[2]

    def _header(self, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        where = f"{self.where}/{name}.npy"
        with reading_npz(where), (self._folder / f"{name}.npy").open("rb") as stream:
            return npy_header(stream, where)

    def column(self, name: str) -> NpzColumn:
        """Return an array as `NpzFile.column` does, and raise as it does."""
        where, path = f"{self.where}/{name}.npy", self._folder / f"{name}.npy"
        if path.is_symlink():
            raise SchemaError(f"{where}: a link, which is not followed.")
        with reading_npz(where):
            stream = self._stack.enter_context(path.open("rb"))
        return _column_in(stream, path.stat().st_size, where, where)


def _column_in(stream: IO[bytes], size: int, where: str, file: str) -> NpzColumn:
    """Return the array that a stream of so many bytes holds, numbers with a row for each step."""
    with reading_npz(where):
        shape, is_fortran, dtype = npy_header(stream, where)
        header_bytes = stream.tell()
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        what = "Python objects, which are not read" if dtype.kind == "O" else str(dtype)
        raise SchemaError(f"{where}: expected numbers, found {what}.")
    row_bytes = dtype.itemsize * math.prod(shape[1:])
    if not shape or not 0 < shape[0] <= MOST_ROWS or not 0 < row_bytes <= LARGEST_ROW_BYTES:
        raise SchemaError(f"{where}: expected one row for each step, found shape {shape}.")
    if size - header_bytes != shape[0] * row_bytes:
        raise IntegrityError(
            f"{where}: the shape {shape} takes {shape[0] * row_bytes:,} bytes, but the file "
            f"holds {size - header_bytes:,}.",
            file=file,
        )
    column = NpzColumn(stream, where, shape, dtype)
    return column.transposed() if is_fortran and len(shape) > 1 else column


class NpzColumn:
    """Rows of an array, which are read in order.

    Attributes:
        shape: Shape of the array.
        dtype: What numbers it holds.
    """

    def __init__(
        self, stream: IO[bytes], where: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._stream, self._where = stream, where
        self._next = 0
        self._whole: np.ndarray | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows; the first must follow the last of the call before.

        Raises IntegrityError if the file is damaged.
        """
        start, stop, _ = rows.indices(len(self))
        if self._whole is not None:
            return self._whole[start:stop]
        if start != self._next:
            raise ValueError(f"{self._where}: rows are read in order, from {self._next} on.")
        self._next = stop
        return self._read((stop - start, *self.shape[1:]))

    def transposed(self) -> NpzColumn:
        """Return the column of an array that is stored column by column, held in memory.

        Raises SchemaError if it is too large for that.
        """
        if math.prod(self.shape) * self.dtype.itemsize > LARGEST_FORTRAN_BYTES:
            raise SchemaError(
                f"{self._where}: is stored column by column (Fortran order), and too large to be "
                "turned in memory. Save numpy.ascontiguousarray(..) of it."
            )
        self._whole = self._read(self.shape[::-1]).transpose()
        return self

    def _read(self, shape: tuple[int, ...]) -> np.ndarray:
        values = np.empty(shape, self.dtype)
        target = values.reshape(-1).view(np.uint8)
        with reading_npz(self._where):
            done = 0
            while done < len(target):
                more = self._stream.read(min(len(target) - done, 2**24))
                if not more:
                    raise EOFError("it ends too early")
                target[done : done + len(more)] = np.frombuffer(more, np.uint8)
                done += len(more)
        return values


def npy_header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether it is stored column by column, and dtype."""
    version = npy.read_magic(stream)
    if version == (1, 0):
        return npy.read_array_header_1_0(stream)
    if version == (2, 0):
        return npy.read_array_header_2_0(stream)
    raise SchemaError(f"{where}: the header has version {version}, expected 1.0 or 2.0.")
