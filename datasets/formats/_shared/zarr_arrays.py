"""Reads arrays of Zarr of others, versions 2 and 3, in a folder or a Zip archive, by rows and in order.

No link is followed, no codec is looked for among plug-ins, and memory is bounded: what a chunk claims is compared
with what the array says of it before it is decoded. https://zarr-specs.readthedocs.io
"""

from __future__ import annotations

import bz2
import contextlib
import itertools
import json
import lzma
import math
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import google_crc32c
import numcodecs
import numpy as np

from orlog.datasets.formats._shared.npz_files import LARGEST_RATIO, is_npz
from orlog.errors import IntegrityError, OrlogError, SchemaError

LARGEST_CHUNK = 2**28
LARGEST_DOCUMENT = 2**22
LARGEST_FILL = 2**30  # bytes of an array whose chunks are not stored
LARGEST_ROW = 2**26
MOST_ARRAYS = 5000
MOST_FILES = 2**22
MOST_ROWS = 2**40
VERSION_2, VERSION_3 = ".zarray", "zarr.json"
GROUPS = (".zgroup", VERSION_3)
FILTERS = ("delta", "fixedscaleoffset", "shuffle")
NO_CHUNK = 2**64 - 1
UNREADABLE = (EOFError, KeyError, OSError, RuntimeError, struct.error, TypeError, ValueError)


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
    with contextlib.suppress(zipfile.BadZipFile, OSError), zipfile.ZipFile(path) as archive:
        return any(name.rpartition("/")[2] in (VERSION_2, VERSION_3) for name in archive.namelist())
    return False


def names_in_zarr(path: Path) -> set[str]:
    """Return the names of the arrays in a folder or archive; none where it cannot be read."""
    with contextlib.suppress(OrlogError, OSError), open_zarr(path, str(path)) as file:
        return set(file.names)
    return set()


@contextlib.contextmanager
def reading_zarr(where: str) -> Iterator[None]:
    """Turn errors about arrays that cannot be read into one that names them."""
    try:
        yield
    except OrlogError:
        raise
    except (*UNREADABLE, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        text = str(error.args[0] if error.args else type(error).__name__).partition("\n")[0]
        raise IntegrityError(f"{where}: cannot be read as Zarr: {text}.", file=where) from error


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
    """

    def __init__(self, store: Store, where: str) -> None:
        """Find the arrays.

        Raises SchemaError if there are none, or far too many.
        """
        self._store, self.where = store, where
        self._prefix = ""
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

    def column(self, name: str) -> ZarrColumn:
        """Return an array of numbers with a row for each step.

        Raises SchemaError if it holds other things than numbers, or is stored in a way that is not read.
        """
        where, described = f"{self.where}, {name}", self._described[name]
        folder = described.rpartition("/")[0]
        body = self._document(described)
        with reading_zarr(where):
            read = _array_2 if described.endswith(VERSION_2) else _array_3
            return ZarrColumn(self._store, f"{folder}/" if folder else "", where, read(body, where))


class _Layout:
    """How an array is stored.

    Attributes:
        shape: Its shape.
        dtype: What numbers it holds.
        chunks: Shape of what one file holds.
        key: Path of a chunk, by its place in the grid.
        fill: The value of what is not stored.
        decode: Turns the bytes of a file into values of the shape `chunks`.
    """

    def __init__(
        self,
        shape: Any,
        dtype: np.dtype[Any],
        chunks: Any,
        key: Callable[[Sequence[int]], str],
        fill: Any,
        decode: Callable[[bytes], np.ndarray],
    ) -> None:
        self.shape, self.chunks = tuple(map(int, shape)), tuple(map(int, chunks))
        self.dtype, self.key, self.decode = dtype, key, decode
        self.fill = np.zeros((), dtype) if fill is None else np.asarray(fill).astype(dtype)


class ZarrColumn:
    """Rows of an array; the file of the last ones is held.

    Attributes:
        shape: Shape of the array.
        dtype: What numbers it holds.
    """

    def __init__(self, store: Store, folder: str, where: str, layout: _Layout) -> None:
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
            for place in itertools.product([number], *grid[1:]):
                starts = [at * chunk for at, chunk in zip(place, layout.chunks, strict=True)]
                target = held[
                    (
                        slice(None),
                        *(
                            slice(a, a + c)
                            for a, c in zip(starts[1:], layout.chunks[1:], strict=True)
                        ),
                    )
                ]
                values = self._chunk(layout.key(place))
                if values is None:
                    self._filled += target.nbytes
                    if self._filled > LARGEST_FILL:
                        raise SchemaError(
                            f"{self._where}: the files do not hold the shape {self.shape} that it claims."
                        )
                    target[...] = layout.fill
                else:
                    target[...] = values[tuple(map(slice, target.shape))]
            self._held, self._number = held, number
        return self._held

    def _chunk(self, key: str) -> np.ndarray | None:
        where = f"{self._where}, chunk {key}"
        with reading_zarr(where):
            data = self._store.read(self._folder + key, LARGEST_CHUNK)
            return None if data is None else self._layout.decode(data)


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


def _array_2(body: Mapping[str, Any], where: str) -> _Layout:
    """Return how an array of version 2 is stored."""
    dtype = np.dtype(str(body["dtype"]))
    filters, compressor = body.get("filters") or [], body.get("compressor")
    for one in filters:
        if one["id"] not in FILTERS:
            raise SchemaError(f"{where}: the filter {one['id']!r} is not used.")
    undo = [numcodecs.get_codec(dict(one)) for one in reversed(filters)]
    shape, order = [int(size) for size in body["chunks"]], body.get("order", "C")
    if order not in ("C", "F"):
        raise SchemaError(f"{where}: the order {order!r} is not known.")
    if dtype.hasobject or dtype.kind not in "biuf":
        raise SchemaError(f"{where}: expected numbers, found {dtype}.")
    size = math.prod(shape) * dtype.itemsize

    def decode(data: bytes) -> np.ndarray:
        # A filter may have stored other numbers than those of the array.
        unpacked: Any = _unpacked(data, compressor, LARGEST_CHUNK if undo else size, where)
        for codec in undo:
            unpacked = codec.decode(unpacked)
        return np.frombuffer(unpacked, dtype).reshape(shape, order=order)

    separator = body.get("dimension_separator", ".")
    fill = body.get("fill_value")
    return _Layout(
        body["shape"],
        dtype,
        shape,
        lambda place: separator.join(map(str, place)) or "0",
        _number(fill),
        decode,
    )


def _array_3(body: Mapping[str, Any], where: str) -> _Layout:
    """Return how an array of version 3 is stored."""
    grid, keys = body["chunk_grid"], body["chunk_key_encoding"]
    if grid["name"] != "regular" or body.get("storage_transformers"):
        raise SchemaError(f"{where}: stored in a way that is not read ({grid['name']}).")
    if not isinstance(body["data_type"], str):
        raise SchemaError(f"{where}: expected numbers, found {str(body['data_type'])[:50]}.")
    kind = body["data_type"]
    if kind != "bool" and not kind.startswith(("int", "uint", "float")):
        raise SchemaError(f"{where}: expected numbers, found {kind}.")
    dtype = np.dtype(kind)
    shape = [int(size) for size in grid["configuration"]["chunk_shape"]]
    fill = _number(body.get("fill_value"))
    decode = _codecs(body["codecs"], shape, dtype, fill, where)
    settings = keys.get("configuration", {})
    if keys["name"] == "v2":
        separator, start = settings.get("separator", "."), []
    else:
        separator, start = settings.get("separator", "/"), ["c"]
    return _Layout(
        body["shape"],
        dtype,
        shape,
        lambda place: separator.join([*start, *map(str, place)]),
        fill,
        decode,
    )


def _codecs(
    codecs: Any, shape: list[int], dtype: np.dtype[Any], fill: Any, where: str
) -> Callable[[bytes], np.ndarray]:
    """Return what undoes the codecs of version 3."""
    packers, order, stored = [], list(range(len(shape))), dtype
    for codec in codecs:
        name, settings = codec["name"].removeprefix("numcodecs."), codec.get("configuration", {})
        if name == "sharding_indexed":
            if len(codecs) != 1:
                raise SchemaError(f"{where}: shards inside of {codecs[0]['name']} are not read.")
            return _shards(settings, shape, dtype, fill, where)
        if name == "transpose":
            order = [order[int(axis)] for axis in settings["order"]]
        elif name == "bytes":
            stored = dtype.newbyteorder(
                "<" if settings.get("endian", "little") == "little" else ">"
            )
        else:
            packers.append({**settings, "id": name})
    transposed = [shape[axis] for axis in order]
    size = math.prod(shape) * dtype.itemsize

    def decode(data: bytes) -> np.ndarray:
        for place, packer in enumerate(reversed(packers)):
            is_last = place == len(packers) - 1
            data = _unpacked(data, packer, size if is_last else LARGEST_CHUNK, where)
        values = np.frombuffer(data, stored).reshape(transposed)
        return values.transpose(np.argsort(order)) if len(order) else values

    return decode


def _shards(
    settings: Mapping[str, Any], shape: list[int], dtype: np.dtype[Any], fill: Any, where: str
) -> Callable[[bytes], np.ndarray]:
    """Return what reads a file of several chunks, with an index of their places."""
    inner = [int(size) for size in settings["chunk_shape"]]
    if (
        len(inner) != len(shape)
        or min(inner) < 1
        or any(a % b for a, b in zip(shape, inner, strict=True))
    ):
        raise SchemaError(f"{where}: chunks of shape {inner} do not fill shards of {shape}.")
    decode = _codecs(settings["codecs"], inner, dtype, fill, where)
    grid = [a // b for a, b in zip(shape, inner, strict=True)]
    index_codecs = [codec["name"] for codec in settings["index_codecs"]]
    sums = 4 if "crc32c" in index_codecs else 0
    if index_codecs not in (["bytes"], ["bytes", "crc32c"]):
        raise SchemaError(f"{where}: an index packed by {index_codecs} is not read.")
    size = math.prod(grid) * 16
    at_start = settings.get("index_location", "end") == "start"

    def read(data: bytes) -> np.ndarray:
        index = data[: size + sums] if at_start else data[len(data) - size - sums :]
        if len(index) != size + sums:
            raise ValueError("a shard is shorter than its index")
        places = np.frombuffer(
            _unpacked(index, {"id": "crc32c"}, size, where) if sums else index, "<u8"
        )
        values = np.empty(shape, dtype)
        for number, place in enumerate(itertools.product(*map(range, grid))):
            start, length = map(int, places[2 * number : 2 * number + 2])
            target = values[
                tuple(slice(a * c, a * c + c) for a, c in zip(place, inner, strict=True))
            ]
            if start == length == NO_CHUNK:
                target[...] = 0 if fill is None else fill
            elif start + length > len(data):
                raise ValueError("a chunk lies outside of its shard")
            else:
                target[...] = decode(data[start : start + length])
        return values

    return read


def _unpacked(data: bytes, codec: Mapping[str, Any] | None, size: int, where: str) -> bytes:
    """Return the bytes that a codec packed, of which there are at most `size`.

    Raises SchemaError if the codec is not used; ValueError if there are more.
    """
    name = "" if codec is None else str(codec["id"])
    if name in UNPACKERS:
        found = UNPACKERS[name](data, size)
    elif name in CLAIMS:
        claimed = CLAIMS[name](data)
        if claimed > size:
            raise ValueError(f"claims {claimed:,} bytes, expected {size:,}")
        found = bytes(numcodecs.get_codec({"id": name}).decode(data))
    else:
        hint = " (save it again with Blosc or zstd)" if name.startswith("imagecodecs") else ""
        raise SchemaError(f"{where}: the codec {name!r} is not used{hint}.")
    if len(found) > size:
        raise ValueError(f"holds more than {size:,} bytes")
    return found


def _inflated(data: bytes, size: int) -> bytes:
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    found = unpacker.decompress(data, size + 1)
    if not unpacker.eof and len(found) <= size:
        raise EOFError("it ends too early")
    return found


def _of_crc32c(data: bytes, _size: int) -> bytes:
    if len(data) < 4 or google_crc32c.value(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise ValueError("its checksum is wrong")
    return data[:-4]


def _blosc_claims(data: bytes) -> int:
    claimed, length = struct.unpack_from("<4xI4xI", data)
    if length != len(data):  # Blosc trusts what it says of itself
        raise ValueError(f"claims to be packed into {length:,} bytes, and is {len(data):,}")
    return int(claimed)


def _zstd_claims(data: bytes) -> int:
    """Return the size of the content, which the header of a frame says. RFC 8878, section 3.1.1.1."""
    if data[:4] != b"\x28\xb5\x2f\xfd":
        raise ValueError("it is no frame of zstd")
    flags = data[4]
    is_single, has_dictionary = flags >> 5 & 1, (0, 1, 2, 4)[flags & 3]
    length = (is_single, 2, 4, 8)[flags >> 6]
    if not length:
        raise ValueError("zstd does not say how much it holds; save it again with its size")
    start = 5 + (not is_single) + has_dictionary
    return int.from_bytes(data[start : start + length], "little") + (256 if length == 2 else 0)


UNPACKERS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "": lambda data, _size: data,
    "crc32c": _of_crc32c,
    "zlib": _inflated,
    "gzip": _inflated,
    "bz2": lambda data, size: bz2.BZ2Decompressor().decompress(data, size + 1),
    "lzma": lambda data, size: lzma.LZMADecompressor(memlimit=LARGEST_CHUNK).decompress(
        data, size + 1
    ),
}
CLAIMS: Mapping[str, Callable[[bytes], int]] = {
    "blosc": _blosc_claims,
    "lz4": lambda data: int.from_bytes(data[:4], "little"),
    "zstd": _zstd_claims,
}


def _number(fill: Any) -> Any:
    """Return a fill value; JSON has no word for some of them."""
    return float(fill) if isinstance(fill, str) else fill
