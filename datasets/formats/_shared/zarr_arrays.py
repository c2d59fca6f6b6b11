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

from orlog.datasets.formats._shared.carried_sums import note_filled
from orlog.datasets.formats._shared.npz_files import is_npz
from orlog.datasets.formats._shared.safe_reading import reading
from orlog.errors import OrlogError, SchemaError, needing

LARGEST_CHUNK = 2**28
LARGEST_FILL = 2**30  # bytes of an array whose chunks are not stored
LARGEST_ROW = 2**26
MOST_ROWS = 2**40
VERSION_2, VERSION_3 = ".zarray", "zarr.json"
GROUPS = (".zgroup", VERSION_3)
OWN = (VERSION_2, *GROUPS, ".zattrs", ".zmetadata")
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
        return any(
            (one / name).is_file() for one in (path, *inner) for name in (*GROUPS, VERSION_2)
        )
    if not is_npz(path):
        return False
    with contextlib.suppress(zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        return any(name.rpartition("/")[2] in (VERSION_2, VERSION_3) for name in names)
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
            files = set(names)
            if len(files) < len(names):
                raise SchemaError(f"{where}: holds a file twice, and nothing says which is meant.")

            def read(name: str) -> bytes:
                return (path / name).read_bytes() if path.is_dir() else archive.read(name)

            opened = ZarrFile(store, files, read, where)
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
        names: Paths of all arrays, below the folder that holds all of them.
        root: That folder, such as `data/`; nothing where it is the whole.
    """

    def __init__(
        self, store: Any, files: set[str], read: Callable[[str], bytes], where: str
    ) -> None:
        """Find the arrays.

        Raises SchemaError if there are none.
        """
        self._store, self._files, self._read, self.where = store, files, read, where
        described = {}
        for name in sorted(files):
            folder, _, last = name.rpartition("/")
            if last == VERSION_2 or (
                last == VERSION_3 and self._document(name).get("node_type") == "array"
            ):
                described[folder] = name
        if not described:
            raise SchemaError(f"{where}: expected arrays of Zarr, found none.")
        tops = [name.rpartition("/")[0] for name in sorted(files) if name.endswith(GROUPS)]
        root = min((top for top in tops if top not in described), key=len, default="")
        start = f"{root}/" if root and all(one.startswith(f"{root}/") for one in described) else ""
        self.root = start
        self._described = {folder.removeprefix(start): name for folder, name in described.items()}
        self.names = sorted(self._described)

    def _document(self, name: str) -> dict[str, Any]:
        where = f"{self.where}, {name}"
        with reading_zarr(where):
            body = json.loads(self._read(name))
        if not isinstance(body, dict):
            raise SchemaError(f"{where}: holds no object of JSON.")
        return body

    def attributes(self) -> list[str]:
        """Return the names of attributes, `data@name`."""
        return [
            f"{folder.removeprefix(self.root)}@{one}"
            for folder, _, last in (name.rpartition("/") for name in sorted(self._files))
            if last in (".zattrs", VERSION_3)
            for one in self._attributes_in(f"{folder}/{last}".lstrip("/"))
            if not one.startswith("_ARRAY_")
        ]

    def _attributes_in(self, document: str) -> dict[str, Any]:
        body = self._document(document)
        inner = body if document.endswith(".zattrs") else body.get("attributes", {})
        return inner if isinstance(inner, dict) else {}

    def attributes_at(self, path: str) -> dict[str, Callable[[], Any]]:
        """Return what reads each attribute of the group or array at a path."""
        found: dict[str, Callable[[], Any]] = {}
        for last in (".zattrs", VERSION_3):
            name = f"{self.root}{path}/{last}" if path else f"{self.root}{last}"
            if name in self._files:
                inner = self._attributes_in(name)
                found |= {key: functools.partial(inner.__getitem__, key) for key in inner}
        return found

    def others(self) -> list[str]:
        """Return the files that are neither of Zarr nor in the folder of an array, `./data/readme.txt`."""
        folders = tuple(f"{name.rpartition('/')[0]}/" for name in self._described.values())
        return [
            f"./{name.removeprefix(self.root)}"
            for name in sorted(self._files)
            if name.rpartition("/")[2] not in OWN and not name.startswith(folders)
        ]

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
        where, body = f"{self.where}, {name}", self._document(self._described[name])
        kind = body.get("data_type", body.get("dtype"))
        if not _is_of_numbers(kind):
            raise SchemaError(f"{where}: expected numbers, found {str(kind)[:50]}.")
        folder = self._described[name].rpartition("/")[0]
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
            described_by: Any = _with_checked_blosc(kind.from_dict(body))
            path = StorePath(self._store, described.rpartition("/")[0])
            return zarr.Array(AsyncArray(metadata=described_by, store_path=path))


def _is_of_numbers(kind: object) -> bool:
    try:
        dtype = np.dtype(kind if isinstance(kind, str) else "O")
    except (SyntaxError, TypeError, ValueError):
        return False
    return dtype.kind in "biuf" and dtype.itemsize <= 8


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
        self._chunks = tuple(array.shards or array.chunks)
        shape, chunks = self.shape, self._chunks
        row_bytes = math.prod(shape[1:]) * self.dtype.itemsize
        if not shape or not 0 < shape[0] <= MOST_ROWS or not 0 < row_bytes <= LARGEST_ROW:
            raise SchemaError(f"{where}: expected one row for each step, found shape {shape}.")
        if len(chunks) != len(shape) or min(chunks) < 1:
            raise SchemaError(f"{where}: chunks of shape {chunks} do not fit the shape {shape}.")
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
        found = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        for number in range(start // length, -(-stop // length)):
            first = number * length
            low, high = max(start, first), min(stop, first + length)
            if number != self._number:
                self._held, self._number = self._rows_of(number), number
            found[low - start : high - start] = self._held[low - first : high - first]
        return found

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
            values, total = missing * (stop - start), math.prod(self.shape)
            self._filled += values * self.dtype.itemsize
            if self._filled > LARGEST_FILL:
                raise SchemaError(
                    f"{self._where}: the files do not hold the shape {self.shape} that it claims."
                )
            note_filled(self._where, (start, stop), values, total, self._array.fill_value)
        with reading_zarr(f"{self._where}, the chunk at row {start}"):
            held: np.ndarray = self._array[start:stop]
        return held
