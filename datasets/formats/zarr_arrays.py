"""Reads arrays of Zarr of others, versions 2 and 3, in a folder or a Zip archive, by rows and in order.

The library `zarr` reads chunks. It would follow links and run any codec that is installed, of which one is pickle, so
both are looked at before. https://zarr-specs.readthedocs.io
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np

from orlog.datasets.formats.blanks import note_blank
from orlog.datasets.formats.npz_files import is_npz
from orlog.datasets.formats.safe_reading import reading
from orlog.errors import SchemaError, needing

LARGEST_CHUNK = 2**28
LARGEST_FILL = 2**30  # bytes of an array whose chunks are not stored
LARGEST_ROW = 2**26
ATTRIBUTES, VERSION_2, VERSION_3 = ".zattrs", ".zarray", "zarr.json"
GROUPS = (".zgroup", VERSION_3)
OWN = (VERSION_2, *GROUPS, ATTRIBUTES, ".zmetadata")
CODECS = {
    *("blosc", "bytes", "bz2", "crc32", "crc32c", "delta", "fixedscaleoffset", "gzip", "lz4"),
    *("lzma", "sharding_indexed", "shuffle", "transpose", "zlib", "zstd"),
}
CODECS_OF_TEXTS = CODECS | {"vlen-utf8", "vlen-bytes", "vlen-array"}
reading_zarr = functools.partial(reading, kind="Zarr")


def is_zarr(path: Path) -> bool:
    """Return whether a folder, or a Zip archive, holds arrays of Zarr."""
    if path.is_dir():
        inner = [one for one in path.iterdir() if one.is_dir() and not one.is_symlink()]
        return any((one / name).is_file() for one in (path, *inner) for name in (*GROUPS, VERSION_2))
    if is_npz(path):
        with contextlib.suppress(Exception), zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            return any(name.rpartition("/")[2] in (VERSION_2, VERSION_3) for name in names)
    return False


@contextlib.contextmanager
def open_zarr(path: Path, where: str) -> Iterator[ZarrFile]:
    """Open a folder or a Zip archive to read its arrays.

    Raises SchemaError if it holds links, or no arrays; IntegrityError if it is damaged; MissingExtraError if zarr is
    not installed.
    """
    with needing(f"{where}: arrays of Zarr need zarr", "orlog[formats]"):
        import zarr.storage
        from zarr.core.sync import sync
    with contextlib.ExitStack() as stack:
        with reading_zarr(where):
            if path.is_dir():
                names = [*_files_below(path, "", where)]
                store: Any = zarr.storage.LocalStore(path, read_only=True)
            else:
                archive = stack.enter_context(zipfile.ZipFile(path))
                names = [item.filename for item in archive.infolist() if not item.is_dir()]
                store = sync(zarr.storage.ZipStore.open(path, mode="r"))
            stack.callback(store.close)
            if len({*names}) < len(names):
                raise SchemaError(f"{where}: holds a file twice, and nothing says which is meant.")

            def read(name: str) -> bytes:
                return (path / name).read_bytes() if path.is_dir() else archive.read(name)

            opened = ZarrFile(store, {*names}, read, where)
        yield opened


def _files_below(folder: Path, prefix: str, where: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.is_symlink():
                raise SchemaError(f"{where}, {name}: a link, which is not followed.")
            if entry.is_dir():
                yield from _files_below(Path(entry.path), f"{name}/", where)
            elif entry.is_file():
                yield name


class ZarrFile:
    """The arrays of a folder or an archive.

    Attributes:
        where: What errors call it.
        names: Paths of all arrays, below the folder that holds all of them, such as `data`.
    """

    def __init__(self, store: Any, files: set[str], read: Callable[[str], bytes], where: str) -> None:
        """Find the arrays.

        Raises SchemaError if there are none.
        """
        self._store, self._files, self._read, self.where = store, files, read, where
        described = {}
        for name in sorted(files):
            folder, _, last = name.rpartition("/")
            if last == VERSION_2 or (last == VERSION_3 and self._document(name).get("node_type") == "array"):
                described[folder] = name
        if not described:
            raise SchemaError(f"{where}: expected arrays of Zarr, found none.")
        tops = [name.rpartition("/")[0] for name in sorted(files) if name.endswith(GROUPS)]
        root = min((top for top in tops if top not in described), key=len, default="")
        is_common = root and all(folder.startswith(f"{root}/") for folder in described)
        self._root = f"{root}/" if is_common else ""
        self._described = {folder.removeprefix(self._root): name for folder, name in described.items()}
        self.names = sorted(self._described)

    def _document(self, name: str) -> dict[str, Any]:
        where = f"{self.where}, {name}"
        with reading_zarr(where):
            body = json.loads(self._read(name))
        if not isinstance(body, dict):
            raise SchemaError(f"{where}: holds no object of JSON.")
        return body

    def attributes(self, path: str) -> dict[str, Any]:
        """Return the attributes of the group or array at a path."""
        attributes: dict[str, Any] = {}
        for last in (ATTRIBUTES, VERSION_3):
            name = f"{self._root}{path}/{last}" if path else f"{self._root}{last}"
            if name in self._files:
                body = self._document(name)
                inner = body if last == ATTRIBUTES else body.get("attributes")
                attributes |= inner if isinstance(inner, dict) else {}
        return attributes

    def inventory(self) -> list[str]:
        """Return the names of arrays, of attributes, `data@name`, and of files that are not Zarr's, `./data/readme.txt`."""
        arrays = tuple(f"{name.rpartition('/')[0]}/" for name in self._described.values())
        names = [*self.names]
        folders = {f"{name.rpartition('/')[0]}/" for name in self._files}
        for inner in sorted({one.removeprefix(self._root).rstrip("/") for one in folders}):
            names += [f"{inner}@{key}" for key in self.attributes(inner) if not key.startswith("_ARRAY_")]
        for name in sorted(self._files):
            if name.rpartition("/")[2] not in OWN and not name.startswith(arrays):
                names.append(f"./{name.removeprefix(self._root)}")
        return names

    def whole(self, name: str) -> Any:
        """Return all values of a small array, which may be texts.

        Raises SchemaError if a codec of it is not read; IntegrityError if it is damaged.
        """
        if name not in self._described:
            raise SchemaError(f"{self.where}: has no array {name!r}.")
        array = self._array(name, CODECS_OF_TEXTS)
        with reading_zarr(f"{self.where}, {name}"):
            return np.asarray(array[()])

    def column(self, name: str) -> ZarrColumn:
        """Return an array of numbers with a row for each step.

        Raises SchemaError if it holds other things than numbers, or is packed by a codec that is not read.
        """
        where, described = f"{self.where}, {name}", self._described[name]
        body = self._document(described)
        kind = str(body.get("data_type", body.get("dtype")))
        dtype = np.dtype("O")
        with contextlib.suppress(SyntaxError, TypeError, ValueError):
            dtype = np.dtype(kind)
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise SchemaError(f"{where}: expected numbers, found {kind[:50]}.")
        folder = described.rpartition("/")[0]
        return ZarrColumn(self._array(name, CODECS), self._files, folder, where)

    def _array(self, name: str, codecs: set[str]) -> Any:
        import zarr
        from zarr.core.array import AsyncArray
        from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata
        from zarr.storage import StorePath

        where, described = f"{self.where}, {name}", self._described[name]
        body = self._document(described)
        with reading_zarr(where):
            unknown = [one for one in _codecs_in(body) if one not in codecs]
            if unknown:
                raise SchemaError(
                    f"{where}: is packed by the codec {unknown[0]!r:.50}, which is not read: save this array again "
                    "with Blosc, zstd or without a codec, or leave it out by naming others (columns={..})."
                )
            kind = ArrayV2Metadata if described.endswith(VERSION_2) else ArrayV3Metadata
            metadata: Any = _with_checked_blosc(kind.from_dict(body))
            path = StorePath(self._store, described.rpartition("/")[0])
            return zarr.Array(AsyncArray(metadata=metadata, store_path=path))


def _codecs_in(body: Any) -> Iterator[str]:
    """Yield the names of the codecs of an array, also of those in shards."""
    packers = [*(body.get("filters") or []), body.get("compressor"), *(body.get("codecs") or [])]
    packers += body.get("index_codecs") or []
    for packer in filter(None, packers):
        yield str(packer.get("id", packer.get("name"))).removeprefix("numcodecs.")
        yield from _codecs_in(packer.get("configuration") or {})


@functools.cache
def _checked_blosc() -> tuple[type[Any], type[Any]]:
    """Return Blosc's codecs of versions 2 and 3, which look at a chunk's header before they unpack it.

    Blosc trusts what a header says of its length, and would read beyond the chunk.
    """
    from zarr.codecs import BloscCodec

    def check(data: Any) -> None:
        claimed, length = struct.unpack_from("<4xI4xI", data)
        if length != len(data) or claimed > LARGEST_CHUNK:
            raise ValueError(f"a chunk of {len(data):,} bytes claims {length:,}")

    class Blosc2(numcodecs.Blosc):  # type: ignore[misc]
        def decode(self, buf: Any, out: Any = None) -> Any:
            check(memoryview(buf).cast("B"))
            return super().decode(buf, out)

    class Blosc3(BloscCodec):
        async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
            check(chunk_bytes.to_bytes())
            return await super()._decode_single(chunk_bytes, chunk_spec)

    return Blosc2, Blosc3


def _with_checked_blosc(node: Any) -> Any:
    """Return the metadata of an array, or a codec, with Blosc's codecs of ours in it."""
    from zarr.codecs import BloscCodec

    of_version_2, of_version_3 = _checked_blosc()
    if isinstance(node, numcodecs.Blosc):
        return of_version_2()
    if isinstance(node, BloscCodec) or getattr(node, "codec_name", "") == "numcodecs.blosc":
        return of_version_3(typesize=1)
    if hasattr(node, "codecs"):
        return dataclasses.replace(node, codecs=tuple(map(_with_checked_blosc, node.codecs)))
    if hasattr(node, "compressor"):
        filters = node.filters and tuple(map(_with_checked_blosc, node.filters))
        compressor = _with_checked_blosc(node.compressor)
        return dataclasses.replace(node, compressor=compressor, filters=filters)
    return node


class ZarrColumn:
    """Rows of an array; those of the last chunk, or shard, are held.

    Attributes:
        shape: Shape of the array.
        dtype: What numbers it holds.
    """

    def __init__(self, array: Any, files: set[str], folder: str, where: str) -> None:
        """Take an array, the paths of all files, and the folder of its own.

        Raises SchemaError if it has no rows, or its chunks are too large.
        """
        self._array, self._files, self._where = array, files, where
        self._start = f"{folder}/" if folder else ""
        self.shape, self.dtype = tuple(array.shape), array.dtype.newbyteorder("=")
        self._chunks = chunks = tuple(array.shards or array.chunks)
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        if not self.shape or not self.shape[0] or not 0 < row_bytes <= LARGEST_ROW:
            raise SchemaError(f"{where}: expected one row for each step, found shape {self.shape}.")
        if len(chunks) != len(self.shape) or min(chunks) < 1:
            raise SchemaError(f"{where}: chunks of shape {chunks} do not fit the shape {self.shape}.")
        chunk_bytes = math.prod(chunks) * self.dtype.itemsize
        if max(chunk_bytes, chunks[0] * row_bytes) > LARGEST_CHUNK:
            raise SchemaError(f"{where}: chunks of shape {chunks} are too large.")
        self._held, self._number, self._filled = np.empty(0), -1, 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows.

        Raises IntegrityError if a chunk is damaged; SchemaError if far more rows are not stored than are.
        """
        start, stop, _ = rows.indices(len(self))
        length = self._chunks[0]
        values = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        for number in range(start // length, -(-stop // length)):
            first = number * length
            low, high = max(start, first), min(stop, first + length)
            if number != self._number:
                self._held, self._number = self._rows_of(number), number
            values[low - start : high - start] = self._held[low - first : high - first]
        return values

    def _rows_of(self, number: int) -> np.ndarray:
        """Return the rows whose chunks have this number along the first axis, and note those that are not stored."""
        start = number * self._chunks[0]
        stop = min(len(self), start + self._chunks[0])
        sizes = list(zip(self.shape[1:], self._chunks[1:], strict=True))
        missing = 0
        for place in itertools.product(*(range(-(-size // chunk)) for size, chunk in sizes)):
            key = self._array.metadata.encode_chunk_key((number, *place))
            if self._start + key not in self._files:
                sides = zip(place, sizes, strict=True)
                missing += math.prod(min(n, size - at * n) for at, (size, n) in sides)
        if missing:
            missing *= stop - start
            self._filled += missing * self.dtype.itemsize
            if self._filled > LARGEST_FILL:
                raise SchemaError(f"{self._where}: the files do not hold the shape {self.shape} that it claims.")
            total, fill = math.prod(self.shape), self._array.fill_value
            note_blank("Zarr", self._where, total, (start, stop), missing, fill)
        with reading_zarr(f"{self._where}, the chunk at row {start}"):
            held: np.ndarray = self._array[start:stop]
        return held
