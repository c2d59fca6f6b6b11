"""Reads NumPy's npz files of others, and folders of npy files, by rows, in order, without pickle; and writes npz files.

An npz file is a Zip archive of arrays. Compressed arrays cannot be read from the middle, so each
column is a stream of its own, which gives its rows from the first to the last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from orlog.datasets.formats.hdf5_files import begins_with
from orlog.datasets.formats.safe_reading import reading
from orlog.errors import IntegrityError, SchemaError

COPIED_BYTES = 2**20
LARGEST_ROW_BYTES = 2**26
LARGEST_FORTRAN_BYTES = 2**30
LARGEST_RATIO = 1032  # of Deflate
reading_npz = functools.partial(reading, kind="npz")
Header = tuple[tuple[int, ...], bool, np.dtype[Any]]
"""Shape of an array, whether it is stored column by column, and its dtype."""


def is_npz(path: Path) -> bool:
    """Return whether a file begins as Zip archives do."""
    return begins_with(path, b"PK\x03\x04")


def is_npy_folder(path: Path) -> bool:
    """Return whether a folder holds arrays in npy files."""
    return path.is_dir() and any(file.suffix == ".npy" for file in path.iterdir())


@contextlib.contextmanager
def open_npz(path: Path, where: str) -> Iterator[NpzFile]:
    """Open an npz file to read from it; errors call it `where`.

    Raises SchemaError if it holds no arrays, or one twice; IntegrityError if it is no sound Zip archive.
    """
    with contextlib.ExitStack() as stack:
        with reading_npz(where):
            archive = stack.enter_context(zipfile.ZipFile(path))
        packed = [item for item in archive.infolist() if item.filename.endswith(".npy")]
        members = {item.filename.removesuffix(".npy"): item for item in packed}
        if len(packed) != len(members):
            (twice, _), *_ = Counter(item.filename for item in packed).most_common(1)
            raise SchemaError(f"{where}: holds {twice} twice; save it again.")
        if not packed:
            raise SchemaError(f"{where}: expected arrays, found none.")

        def open_member(name: str) -> tuple[IO[bytes], int]:
            item = members[name]
            if item.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise SchemaError(
                    f"{where}, {name}: is packed in a way that NumPy does not use ({item.compress_type}), expected "
                    "stored or deflated."
                )
            most = 1 if item.compress_type == zipfile.ZIP_STORED else LARGEST_RATIO
            if item.file_size > item.compress_size * most:
                raise IntegrityError(
                    f"{where}, {name}: claims {item.file_size:,} bytes, and {item.compress_size:,} packed ones "
                    "cannot hold them.",
                    file=where,
                )
            return archive.open(item), item.file_size

        yield NpzFile([*members], where, stack, open_member)


@contextlib.contextmanager
def open_npy(folder: Path, where: str) -> Iterator[NpzFile]:
    """Open the npy files of a folder as the arrays of an npz file."""

    def open_file(name: str) -> tuple[IO[bytes], int]:
        path = folder / f"{name}.npy"
        if path.is_symlink():
            raise SchemaError(f"{where}, {name}: a link, which is not followed.")
        return path.open("rb"), path.stat().st_size

    with contextlib.ExitStack() as stack:
        names = sorted(file.stem for file in folder.iterdir() if file.suffix == ".npy")
        yield NpzFile(names, where, stack, open_file)


class NpzFile:
    """The arrays of a file, or of a folder with a file for each.

    Attributes:
        where: What errors call it.
        names: Names of all arrays, in the order of the file.
    """

    def __init__(
        self,
        names: list[str],
        where: str,
        stack: contextlib.ExitStack,
        open_array: Callable[[str], tuple[IO[bytes], int]],
    ) -> None:
        """Take the names of arrays, and what opens one as a stream and says its bytes; a stack closes the streams."""
        self.names, self.where = names, where
        self._stack, self._open = stack, open_array

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array."""
        return self._header(name)[0]

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of an array."""
        return self._header(name)[2]

    def _header(self, name: str) -> Header:
        where = f"{self.where}, {name}"
        with reading_npz(where), self._open(name)[0] as stream:
            return npy_header(stream, where)

    def whole(self, name: str) -> np.ndarray:
        """Return an array as it is, which may hold texts; one of objects is a pickle and refused."""
        if name not in self.names:
            raise SchemaError(f"{self.where}: has no array {name!r}.")
        with reading_npz(f"{self.where}, {name}"), self._open(name)[0] as stream:
            values: np.ndarray = npy.read_array(stream, allow_pickle=False)
            return values

    def column(self, name: str) -> NpzColumn:
        """Return an array of numbers with a row for each step, as a stream of its own.

        Raises SchemaError if there is none of that name, or it holds other things than numbers;
        IntegrityError if it is damaged.
        """
        where = f"{self.where}, {name}"
        if name not in self.names:
            raise SchemaError(f"{where}: there is no such array; found {', '.join(self.names)}.")
        with reading_npz(where):
            stream, size = self._open(name)
            self._stack.enter_context(stream)
            shape, is_fortran, dtype = npy_header(stream, where)
            size -= stream.tell()
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            what = "Python objects, which are not read" if dtype.kind == "O" else str(dtype)
            raise SchemaError(f"{where}: expected numbers, found {what}.")
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        if not shape or not shape[0] or not 0 < row_bytes <= LARGEST_ROW_BYTES:
            raise SchemaError(f"{where}: expected one row for each step, found shape {shape}.")
        if size != shape[0] * row_bytes:
            raise IntegrityError(
                f"{where}: the shape {shape} takes {shape[0] * row_bytes:,} bytes, but the file holds {size:,}.",
                file=self.where,
            )
        column = NpzColumn(stream, where, shape, dtype)
        return column.transposed() if is_fortran and len(shape) > 1 else column


class NpzColumn:
    """Rows of an array, which are read in order.

    Attributes:
        shape: Shape of the array.
        dtype: What numbers it holds.
    """

    def __init__(self, stream: IO[bytes], where: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Take a stream of values, what errors call it, and their shape and dtype."""
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


@dataclasses.dataclass(frozen=True)
class LazyColumn:
    """An array whose rows a function reads, by the first and the one after the last.

    Attributes:
        shape: Shape of the array.
        dtype: What numbers it holds.
        read: That function.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[int, int], np.ndarray]

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows."""
        start, stop, _ = rows.indices(self.shape[0])
        return self.read(start, stop)


def npy_header(stream: IO[bytes], where: str) -> Header:
    """Return what the header of an npy file says."""
    version = npy.read_magic(stream)
    if version == (1, 0):
        return npy.read_array_header_1_0(stream)
    if version == (2, 0):
        return npy.read_array_header_2_0(stream)
    raise SchemaError(f"{where}: the header has version {version}, expected 1.0 or 2.0.")


@contextlib.contextmanager
def npz_writer(path: Path) -> Iterator[Callable[[Mapping[str, np.ndarray]], None]]:
    """Yield what adds rows to the columns of a compressed npz file, which appears when the context ends without an error.

    All rows of a column have one dtype and shape. Rows lie in unnamed files of the same folder until then, since one
    member of a ZIP archive is written after the other; memory does not grow with the dataset.
    """
    files: dict[str, IO[bytes]] = {}
    kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    counts = Counter[str]()
    with contextlib.ExitStack() as stack:

        def add(rows: Mapping[str, np.ndarray]) -> None:
            for name, values in rows.items():
                if name not in files:
                    files[name] = stack.enter_context(tempfile.TemporaryFile(dir=path.parent))
                    kinds[name] = values.dtype, values.shape[1:]
                assert kinds[name] == (values.dtype, values.shape[1:])
                files[name].write(np.ascontiguousarray(values).tobytes())
                counts[name] += len(values)

        yield add
        with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, file in files.items():
                dtype, shape = kinds[name]
                header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (counts[name], *shape)}
                file.seek(0)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array_header_1_0(member, header)
                    shutil.copyfileobj(file, member, COPIED_BYTES)
