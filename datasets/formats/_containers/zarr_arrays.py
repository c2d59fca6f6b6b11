"""Reads arrays of Zarr of others, versions 2 and 3, in a folder or a Zip archive, by rows and in order.

No link is followed, no codec is looked for among plug-ins, and memory is bounded: what a chunk claims is compared
with what the array says of it before it is decoded. https://zarr-specs.readthedocs.io
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import lzma
import math
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from orlog.datasets.formats._containers.carried_sums import note_filled
from orlog.datasets.formats._containers.npz_files import LARGEST_RATIO, is_npz
from orlog.datasets.formats._containers.zarr_codecs import (
    LARGEST_CHUNK,
    Box,
    StoredArray,
    array_of_version_2,
    array_of_version_3,
)
from orlog.errors import IntegrityError, OrlogError, SchemaError

LARGEST_DOCUMENT = 2**22
LARGEST_FILL = 2**30  # bytes of an array whose chunks are not stored
LARGEST_ROW = 2**26
MOST_ARRAYS = 5000
MOST_FILES = 2**22
MOST_ROWS = 2**40
VERSION_2, VERSION_3 = ".zarray", "zarr.json"
GROUPS = (".zgroup", VERSION_3)
NO_ZIP = (zipfile.BadZipFile, NotImplementedError, OSError, ValueError)
UNREADABLE = (EOFError, LookupError, OSError, RuntimeError, struct.error, TypeError, ValueError)


class Store(Protocol):
    """Where the files of an array are."""

    def names(self) -> list[str]:
        """Return the paths of all files."""
        ...

    def read(self, name: str, most: int) -> bytes | None:
        """Return the bytes of a file; None if there is none. Raises ValueError if there are more than `most`."""
        ...


def is_zarr(path: Path) -> bool:
    """Return whether a folder, or a Zip archive, holds arrays of Zarr."""
    if path.is_dir():
        inner = [one for one in path.iterdir() if one.is_dir() and not one.is_symlink()]
        return any(
            (one / name).is_file() for one in (path, *inner) for name in (*GROUPS, VERSION_2)
        )
    if not is_npz(path):
        return False
    with contextlib.suppress(*NO_ZIP), zipfile.ZipFile(path) as archive:
        return any(name.rpartition("/")[2] in (VERSION_2, VERSION_3) for name in archive.namelist())
    return False


def names_in_zarr(path: Path) -> set[str]:
    """Return the names of the arrays in a folder or archive; none where it cannot be read."""
    with contextlib.suppress(OrlogError, OSError), open_zarr(path, str(path)) as file:
        return set(file.names)
    return set()


def attributes_in_zarr(path: Path) -> list[str]:
    """Return the names of arrays, and of the attributes of arrays and groups, `data@name`."""
    with open_zarr(path, str(path)) as file:
        return [*file.names, *file.attributes(), *file.others()]


@contextlib.contextmanager
def reading_zarr(where: str) -> Iterator[None]:
    """Turn errors about arrays that cannot be read into one that names them."""
    try:
        yield
    except OrlogError:
        raise
    except (*UNREADABLE, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        text = str(error.args[0] if error.args else type(error).__name__).partition("\n")[0]
        raise IntegrityError(
            f"{where}: cannot be read as Zarr: {text:.200}.", file=where
        ) from error


@contextlib.contextmanager
def open_zarr(path: Path, where: str) -> Iterator[ZarrFile]:
    """Open a folder or a Zip archive to read its arrays.

    Raises SchemaError if it holds links, or no arrays; IntegrityError if it is damaged.
    """
    with contextlib.ExitStack() as stack:
        with reading_zarr(where):
            store: Store
            if path.is_dir():
                store = _Folder(path, where)
            else:
                store = _Archive(stack.enter_context(zipfile.ZipFile(path)), where)
            found = ZarrFile(store, where)
        yield found


class ZarrFile:
    """The arrays of a folder or an archive.

    Attributes:
        where: What errors call it.
        names: Paths of all arrays, below the folder that holds all of them.
        root: That folder, such as `data/`; nothing where it is the whole.
    """

    def __init__(self, store: Store, where: str) -> None:
        """Find the arrays.

        Raises SchemaError if there are none, or far too many.
        """
        self._store, self.where = store, where
        described = {}
        for name in store.names():
            folder, _, last = name.rpartition("/")
            if last == VERSION_2 or (last == VERSION_3 and self._is_array(name)):
                described[folder] = name
        if not 0 < len(described) <= MOST_ARRAYS:
            raise SchemaError(f"{where}: expected arrays of Zarr, found {len(described)}.")
        tops = [name.rpartition("/")[0] for name in store.names() if name.endswith(GROUPS)]
        root = min((top for top in tops if top not in described), key=len, default="")
        start = f"{root}/" if root and all(one.startswith(f"{root}/") for one in described) else ""
        self.root, self._documents = start, {*store.names()}
        self._described = {folder.removeprefix(start): name for folder, name in described.items()}
        self.names = sorted(self._described)

    def _is_array(self, name: str) -> bool:
        return self._document(name).get("node_type") == "array"

    def _document(self, name: str) -> dict[str, Any]:
        where = f"{self.where}, {name}"
        with reading_zarr(where):
            body = json.loads(self._store.read(name, LARGEST_DOCUMENT) or b"null")
        if not isinstance(body, dict):
            raise SchemaError(f"{where}: holds no object of JSON.")
        return body

    def attributes(self) -> list[str]:
        """Return the names of attributes, `data@name`."""
        found = []
        for name in self._store.names():
            folder, _, last = name.rpartition("/")
            if last in (".zattrs", VERSION_3):
                place = folder.removeprefix(self.root)
                inner = self._attributes_of(name)
                found += [f"{place}@{one}" for one in inner if not one.startswith("_ARRAY_")]
        return found

    def _attributes_of(self, document: str) -> dict[str, Any]:
        body = self._document(document)
        inner = body if document.endswith(".zattrs") else body.get("attributes", {})
        return inner if isinstance(inner, dict) else {}

    def attributes_at(self, path: str) -> dict[str, Callable[[], Any]]:
        """Return what reads each attribute of the group or array at a path."""
        found: dict[str, Callable[[], Any]] = {}
        for last in (".zattrs", VERSION_3):
            name = f"{self.root}{path}/{last}".lstrip("/") if path else f"{self.root}{last}"
            if name in self._documents:
                inner = self._attributes_of(name)
                found |= {key: functools.partial(inner.__getitem__, key) for key in inner}
        return found

    def others(self) -> list[str]:
        """Return the files that are neither of Zarr nor in the folder of an array, `./data/readme.txt`."""
        own = (VERSION_2, *GROUPS, ".zattrs", ".zmetadata")
        folders = tuple(f"{name.rpartition('/')[0]}/" for name in self._described.values())
        return [
            f"./{name.removeprefix(self.root)}"
            for name in self._store.names()
            if name.rpartition("/")[2] not in own and not name.startswith(folders)
        ]

    def column(self, name: str) -> ZarrColumn:
        """Return an array of numbers with a row for each step.

        Raises SchemaError if it holds other things than numbers, or is stored in a way that is not read.
        """
        where, described = f"{self.where}, {name}", self._described[name]
        folder = described.rpartition("/")[0]
        body = self._document(described)
        with reading_zarr(where):
            read = array_of_version_2 if described.endswith(VERSION_2) else array_of_version_3
            return ZarrColumn(self._store, f"{folder}/" if folder else "", where, read(body, where))


class ZarrColumn:
    """Rows of an array; the file of the last ones is held.

    Attributes:
        shape: Shape of the array.
        dtype: What numbers it holds.
    """

    def __init__(self, store: Store, folder: str, where: str, layout: StoredArray) -> None:
        """Take an array.

        Raises SchemaError if it is not one of numbers with rows, or claims far more than is stored.
        """
        self._store, self._folder, self._where, self._layout = store, folder, where, layout
        self.shape, self.dtype = layout.shape, layout.dtype
        shape, chunks = layout.shape, layout.chunks
        if self.dtype.kind not in "biuf" or self.dtype.itemsize > 8:
            raise SchemaError(f"{where}: expected numbers, found {self.dtype}.")
        row_bytes = math.prod(shape[1:]) * self.dtype.itemsize
        if not shape or not 0 < shape[0] <= MOST_ROWS or not 0 < row_bytes <= LARGEST_ROW:
            raise SchemaError(f"{where}: expected one row for each step, found shape {shape}.")
        if len(chunks) != len(shape) or min(chunks) < 1:
            raise SchemaError(f"{where}: chunks of shape {chunks} do not fit the shape {shape}.")
        wide = math.prod(min(chunk, size) for chunk, size in zip(chunks, shape, strict=True))
        if math.prod(chunks) * self.dtype.itemsize > LARGEST_CHUNK or wide == 0:
            raise SchemaError(f"{where}: chunks of shape {chunks} are too large.")
        if chunks[0] * row_bytes > LARGEST_CHUNK:
            raise SchemaError(
                f"{where}: {chunks[0]:,} rows at once, as they are stored, are too large."
            )
        self._held, self._number = np.empty(0), -1
        self._filled = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows.

        Raises IntegrityError if a chunk is damaged.
        """
        start, stop, _ = rows.indices(len(self))
        length = self._layout.chunks[0]
        found = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        for number in range(start // length, -(-stop // length)):
            first = number * length
            low, high = max(start, first), min(stop, first + length)
            found[low - start : high - start] = self._rows_of(number)[low - first : high - first]
        return found

    def _rows_of(self, number: int) -> np.ndarray:
        """Return the rows whose chunks have this number along the first axis."""
        if number != self._number:
            layout = self._layout
            rows = min(layout.chunks[0], len(self) - number * layout.chunks[0])
            held = np.empty((rows, *self.shape[1:]), self.dtype)
            grid = [
                range(-(-size // chunk))
                for size, chunk in zip(self.shape, layout.chunks, strict=True)
            ]
            blanks: list[tuple[int, int, int]] = []  # first and last row, and how many numbers
            for place in itertools.product([number], *grid[1:]):
                sides = zip(place[1:], layout.chunks[1:], strict=True)
                target = held[
                    (slice(None), *(slice(at * size, at * size + size) for at, size in sides))
                ]
                missing: list[Box] = []
                values = self._chunk(layout.key(place), missing)
                if values is None:
                    self._filled += target.nbytes
                    if self._filled > LARGEST_FILL:
                        raise SchemaError(
                            f"{self._where}: the files do not hold the shape {self.shape} that it claims."
                        )
                    target[...] = layout.fill
                    missing.append(tuple(map(slice, target.shape)))
                else:
                    target[...] = values[tuple(map(slice, target.shape))]
                for box in missing:
                    first, last, _ = box[0].indices(rows)
                    blanks.append((first, last, target[box].size))
            self._note(blanks, number * layout.chunks[0])
            self._held, self._number = held, number
        return self._held

    def _note(self, blanks: list[tuple[int, int, int]], start: int) -> None:
        """Note rows of the chunks from row `start` on that are not stored; boxes may lie beyond the last one."""
        begin = end = values = 0
        for first, last, size in [*sorted(one for one in blanks if one[2]), (MOST_ROWS, 0, 0)]:
            if first > end and values:
                rows = (start + begin, start + end)
                note_filled(self._where, rows, values, math.prod(self.shape), self._layout.fill)
                begin = end = values = 0
            begin, end = min(begin, first) if values else first, max(end, last)
            values += size

    def _chunk(self, key: str, blanks: list[Box]) -> np.ndarray | None:
        where = f"{self._where}, chunk {key}"
        with reading_zarr(where):
            data = self._store.read(self._folder + key, LARGEST_CHUNK)
            return None if data is None else self._layout.decode(data, blanks)


class _Folder:
    """Files below a folder."""

    def __init__(self, folder: Path, where: str) -> None:
        self._folder = folder
        waiting = [(folder, "")]
        self._files: set[str] = set()
        while waiting:
            place, prefix = waiting.pop()
            with os.scandir(place) as entries:
                for entry in entries:
                    name = prefix + entry.name
                    if entry.is_symlink():
                        raise SchemaError(f"{where}, {name}: a link, which is not followed.")
                    if entry.is_dir():
                        waiting.append((Path(entry.path), f"{name}/"))
                    else:
                        self._files.add(name)
                    if len(self._files) > MOST_FILES:
                        raise SchemaError(f"{where}: holds over {MOST_FILES:,} files.")

    def names(self) -> list[str]:
        return sorted(self._files)

    def read(self, name: str, most: int) -> bytes | None:
        if name not in self._files:
            return None
        with os.fdopen(os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode) or state.st_size > most:
                raise ValueError(f"{name} is no file, or one of over {most:,} bytes")
            return file.read(most)


class _Archive:
    """Files in a Zip archive."""

    def __init__(self, archive: zipfile.ZipFile, where: str) -> None:
        self._archive = archive
        items = [item for item in archive.infolist() if not item.is_dir()]
        self._items = {item.filename: item for item in items}
        if len(self._items) != len(items):
            raise SchemaError(f"{where}: holds a file twice, and nothing says which is meant.")

    def names(self) -> list[str]:
        return sorted(self._items)

    def read(self, name: str, most: int) -> bytes | None:
        item = self._items.get(name)
        if item is None:
            return None
        packed = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if item.compress_type not in packed or item.file_size > item.compress_size * LARGEST_RATIO:
            raise ValueError(f"{name} is packed in a way that is not read")
        if item.file_size > most:
            raise ValueError(f"{name} claims {item.file_size:,} bytes")
        return self._archive.read(item)
