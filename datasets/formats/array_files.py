"""Reads HDF5, npz, npy and Zarr of others, by rows: no link is followed, no plug-in is loaded, nothing is unpickled; and writes.

An npz file is a Zip archive of arrays. Compressed arrays cannot be read from the middle, so each column is a stream of its
own, which gives its rows from the first to the last. The library `zarr` would follow links and run any codec that is installed,
of which one is pickle, so both are looked at before. https://zarr-specs.readthedocs.io
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import math
import os
import shutil
import stat
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from orlog.datasets.formats.hdf5_heaps import check_heaps
from orlog.datasets.formats.notes import note_blank
from orlog.datasets.formats.safe_reading import reading as reading_file
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import IntegrityError, OrlogError, SchemaError, needing

CACHE_BYTES = 2**26
CHECKSUM_BYTES = 4
DEEPEST = 32  # groups in groups; one that lies in itself has no end
LARGEST_UNWRITTEN = 2**24  # bytes of an array that nobody wrote
WHOLE_BYTES = 2**16  # arrays of so many are one chunk
SIGNATURE = b"\x89HDF\r\n\x1a\n"
WORDS = {
    **dict.fromkeys(("true", "yes", "success", "succeeded", "1"), True),
    **dict.fromkeys(("false", "no", "failure", "failed", "0"), False),
}
reading = functools.partial(reading_file, kind="HDF5")


def begins_with(path: Path, signature: bytes) -> bool:
    """Return whether a file begins with some bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(signature)) == signature
    except OSError:
        return False


def is_hdf5(path: Path) -> bool:
    """Return whether a file begins as HDF5 files do."""
    return begins_with(path, SIGNATURE)


@contextlib.contextmanager
def open_hdf5(path: Path, where: str, *, texts: bool = False) -> Iterator[Any]:
    """Open a file, which is no link, to read from it; errors call it `where`. With `texts`, those of any length will be read."""
    h5py = import_h5py()
    with reading(where):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise SchemaError(f"{where}: expected a file, found a link or folder.")
        check_heaps(path, where, texts=texts)
        file = h5py.File(path, "r", rdcc_nbytes=CACHE_BYTES)
    with file:
        yield file


def look_inside(files: Sequence[Path], test: Callable[[Any], bool]) -> bool:
    """Return whether files are HDF5 and the first one passes a test, for `Format.recognizes`."""
    if not all(is_hdf5(file) for file in files):
        return False
    where = str(files[0])
    with open_hdf5(files[0], where) as file, reading(where):
        return test(file)


def has_child(group: Any, name: str) -> bool:
    """Return whether something lies in a group by that name; links are not looked through."""
    # `in group` would look through links. What is no group holds nothing.
    return hasattr(group, "keys") and name in group.keys()  # noqa: SIM118


def names_in(group: Any) -> list[str]:
    """Return the names of what lies in a group, sorted; none of what is no group."""
    return [name for name, _ in links_in(group.id)] if hasattr(group, "keys") else []


def child(group: Any, name: str, where: str, layout: str) -> Any:
    """Return what lies in a group by that name, itself and not through a link.

    Without it, errors say that the file does not have the `layout`, such as "D4RL's layout".
    """
    h5py = import_h5py()
    key = name.encode()
    if not hasattr(group, "keys") or not group.id.links.exists(key):
        raise SchemaError(f"{where}: has no {name}, so it does not have {layout}.")
    # Asked of the link alone: even looking through one could open a file elsewhere.
    if group.id.links.get_info(key).type != h5py.h5l.TYPE_HARD:
        raise SchemaError(f"{where}, {name}: a link, which is not followed.")
    return group[name]


def datasets_in(group: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield path and dataset of all in a group, and in groups in it; links are refused, and a group that lies in itself."""
    h5py = import_h5py()
    waiting = [""] if isinstance(group, h5py.Group) else []
    while waiting:
        prefix = waiting.pop()
        if prefix.count("/") > DEEPEST:
            raise SchemaError(f"{where}: its groups lie more than {DEEPEST} deep in each other.")
        place = h5py.h5g.open(group.id, prefix.encode()) if prefix else group.id
        for name, is_link in links_in(place):
            if is_link:
                raise SchemaError(f"{where}, {prefix}{name}: a link, which is not followed.")
            node = h5py.h5o.open(place, name.encode())
            if isinstance(node, h5py.h5d.DatasetID):
                yield prefix + name, h5py.Dataset(node, readonly=True)
            elif isinstance(node, h5py.h5g.GroupID):
                waiting.append(f"{prefix}{name}/")


def links_in(place: Any) -> list[tuple[str, bool]]:
    """Return the names in a group, given by its identifier, sorted, and whether each is a link to elsewhere."""
    hard = import_h5py().h5l.TYPE_HARD
    # A name may be no UTF-8.
    return [(name.decode(errors="backslashreplace"), place.links.get_info(name).type != hard) for name in sorted(place)]


def flag_attribute(attributes: Mapping[str, Any], names: Sequence[str], where: str) -> bool | None:
    """Return whether the first attribute there is of some names is true, as a number or a word; None if there is none."""
    for name in names:
        if name not in attributes:
            continue
        value = np.asarray(attributes[name]).reshape(-1)
        if value.size == 1 and value.dtype.kind in "biuf" and value[0] in (0, 1):
            return bool(value[0])
        text = b"".join(value).decode(errors="replace") if value.dtype.kind == "S" else ""
        text = text or ", ".join(map(str, value[:3]))
        if value.size == 1 and text.lower() in WORDS:
            return WORDS[text.lower()]
        raise SchemaError(f"{where}: the attribute {name} is {text!r:.60}, expected 1 or 0, or true or false.")
    return None


def numbers(node: Any, where: str, file_bytes: int, *, texts: bool = False) -> Hdf5Column:
    """Return a dataset with a row for each step, which lies in the file: of numbers, or with `texts` of bytes of one length."""
    if not isinstance(node, import_h5py().Dataset):
        raise SchemaError(f"{where}: expected a dataset, found a {type(node).__name__}.")
    shape, dtype = node.id.shape, node.id.dtype
    if not shape or not shape[0] or not math.prod(shape[1:]):
        raise SchemaError(f"{where}: expected one row for each step, found shape {shape}.")
    is_text = texts and dtype.kind == "S" and len(shape) == 1
    is_number = dtype.kind in "biuf" and dtype.itemsize <= 8 and dtype.subdtype is None
    if not (is_number or is_text):
        raise SchemaError(f"{where}: expected numbers, found {dtype}.")
    _check_stored(node.id, shape, dtype, where, file_bytes)
    return Hdf5Column(node, shape, dtype)


class Hdf5Column:
    """A dataset that was checked. h5py asks the file anew for each look at dtype and shape, which takes most of the time."""

    __slots__ = ("_node", "dtype", "shape")

    def __init__(self, node: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._node, self.shape, self.dtype = node, shape, dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        values: np.ndarray = self._node[rows]
        return values


def check_stored(node: Any, where: str, file_bytes: int) -> None:
    """Refuse a dataset whose values are elsewhere, not stored, or need a plug-in to be read, by a SchemaError."""
    _check_stored(node.id, node.shape, node.dtype, where, file_bytes)


def _check_stored(node: Any, shape: tuple[int, ...], dtype: np.dtype[Any], where: str, file_bytes: int) -> None:
    h5py = import_h5py()
    of_z = h5py.h5z
    packed = {of_z.FILTER_DEFLATE, of_z.FILTER_LZF}
    stored = node.get_create_plist()
    layout = stored.get_layout()
    if stored.get_external_count() or layout == h5py.h5d.VIRTUAL:
        raise SchemaError(f"{where}: its values lie outside of the file.")
    filters = {stored.get_filter(number)[0] for number in range(stored.get_nfilters())}
    # Others would be looked for among plug-ins, which are programs.
    others = filters - packed - {of_z.FILTER_SHUFFLE, of_z.FILTER_FLETCHER32}
    if others:
        raise SchemaError(f"{where}: the filters {sorted(others)} are not used.")
    # What is claimed but not stored takes no room in the file, and all there is here.
    size = math.prod(shape)
    stored_bytes = node.get_storage_size()
    if layout == h5py.h5d.CHUNKED:
        chunks = stored.get_chunk()
        claimed = math.prod(-(-rows // chunk) for rows, chunk in zip(shape, chunks, strict=True))
        whole = node.get_num_chunks() == claimed or not size
        if of_z.FILTER_FLETCHER32 in filters:
            unpacked = math.prod(chunks) * node.get_type().get_size()
            _check_chunks(node, unpacked if packed.isdisjoint(filters) else None, where)
    else:
        whole = dtype.kind == "O" or stored_bytes == size * dtype.itemsize
    if not whole and stored_bytes == 0 and size * dtype.itemsize <= LARGEST_UNWRITTEN:
        whole = note_blank("HDF5", where, size)
    if not whole or stored_bytes > file_bytes:
        raise SchemaError(f"{where}: the file does not hold the shape {shape} that it claims.")


def _check_chunks(node: Any, unpacked: int | None, where: str) -> None:
    """Refuse chunks that are smaller than their checksum, beyond which libhdf5 2.0.0 would read."""
    chunks: list[Any] = []
    node.chunk_iter(chunks.append)
    for chunk in chunks:
        values = chunk.size - CHECKSUM_BYTES
        # A chunk may have been written without some filters; its mask says so.
        if values < 0 or (values != unpacked and unpacked is not None and not chunk.filter_mask):
            raise IntegrityError(
                f"{where}: cannot be read as HDF5: its chunk at row {chunk.chunk_offset[0]:,} claims "
                f"{chunk.size} bytes, which is not the size of its values and their checksum.",
                file=where,
            )


class _Output(io.FileIO):
    """A file that HDF5 writes, which is never told of an error: it would print each, and crash.

    It also crashes where it reads other bytes than it wrote, so what comes after an error stays in memory.
    """

    error: OSError | None = None

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+")
        self._kept: list[tuple[int, bytes]] = []  # where, and what was written after the error

    def write(self, data: Any) -> int:
        start, left = self.tell(), memoryview(data).cast("B")
        try:
            while self.error is None and left:
                left = left[super().write(left) :]
        except OSError as error:
            self.error = error
        if left:
            size = len(data)
            self._kept.append((start + size - len(left), bytes(left)))
            self.seek(start + size)
        return len(data)

    def readinto(self, buffer: Any) -> int:
        start, into = self.tell(), memoryview(buffer).cast("B")
        done = super().readinto(into) or 0
        into[done:] = bytes(len(into) - done)
        for at, values in self._kept:
            first, last = max(start, at), min(start + len(into), at + len(values))
            if first < last:
                into[first - start : last - start] = values[first - at : last - at]
        return len(into)

    def truncate(self, size: int | None = None) -> int:
        try:
            return 0 if self.error else super().truncate(size)
        except OSError as error:
            self.error = error
            return 0


@contextlib.contextmanager
def create_hdf5(
    path: Path,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    *,
    libver: tuple[str, str] | None = ("v110", "v110"),
    track_order: bool | None = None,
) -> Iterator[tuple[Any, Callable[[int, int], None]]]:
    """Create a file of HDF5, and close it; yield it, and `progress` that raises the error of a full disk.

    It is written as HDF5 1.10 does, since 2016: an array in one chunk then takes some 2 kB less, which is most
    of a short episode, and everything that is no array carries a checksum.
    """
    with _Output(path) as output:

        def check(done: int, total: int) -> None:
            if output.error is not None:
                raise output.error
            progress(done, total)

        try:
            with import_h5py().File(output, "w", libver=libver, track_order=track_order) as file:
                yield file, check
        except Exception:
            if output.error is None:
                raise
        if output.error is not None:
            raise output.error


def write_checked(group: Any, name: str, values: np.ndarray) -> None:
    """Write an array whose chunks carry checksums, which every reader of HDF5 checks."""
    is_checked = values.size > 0 and values.ndim > 0
    is_small = is_checked and values.nbytes <= WHOLE_BYTES
    chunks = values.shape if is_small else None
    group.create_dataset(name, data=values, fletcher32=is_checked, chunks=chunks)


COPIED_BYTES = 2**20
LARGEST_RATIO = 1032  # of Deflate
reading_npz = functools.partial(reading_file, kind="npz")
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
    """Open an npz file to read from it; errors call it `where`."""
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
                    f"{where}, {name}: is packed in a way that NumPy does not use ({item.compress_type})."
                )
            most = 1 if item.compress_type == zipfile.ZIP_STORED else LARGEST_RATIO
            if item.file_size > item.compress_size * most:
                claims = f"claims {item.file_size:,} bytes, and {item.compress_size:,} packed ones cannot hold them"
                raise IntegrityError(f"{where}, {name}: {claims}.", file=where)
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
    """The arrays of a file, or of a folder with a file for each; `names` are in the order of the file."""

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
        """Return an array of numbers with a row for each step, as a stream of its own."""
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
        if not shape or not shape[0] or not row_bytes:
            raise SchemaError(f"{where}: expected one row for each step, found shape {shape}.")
        if size != shape[0] * row_bytes:
            raise IntegrityError(f"{where}: the file does not hold the shape {shape} that it claims.", file=self.where)
        return NpzColumn(stream, where, shape, dtype, is_fortran=is_fortran and len(shape) > 1)


class NpzColumn:
    """Rows of an array, which are read in order; one that is stored column by column is held in memory."""

    def __init__(
        self, stream: IO[bytes], where: str, shape: tuple[int, ...], dtype: np.dtype[Any], *, is_fortran: bool = False
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._stream, self._where, self._next = stream, where, 0
        self._whole = self._read(shape[::-1]).transpose() if is_fortran else None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        if self._whole is not None:
            return self._whole[start:stop]
        if start != self._next:
            raise ValueError(f"{self._where}: rows are read in order, from {self._next} on.")
        self._next = stop
        return self._read((stop - start, *self.shape[1:]))

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
    """An array whose rows `read` gives, by the first and the one after the last."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[int, int], np.ndarray]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
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


LARGEST_FILL = 2**30  # bytes of an array whose chunks are not stored
ATTRIBUTES, VERSION_2, VERSION_3 = ".zattrs", ".zarray", "zarr.json"
GROUPS = (".zgroup", VERSION_3)
OWN = (VERSION_2, *GROUPS, ATTRIBUTES, ".zmetadata")
CODECS = {
    *("blosc", "bytes", "bz2", "crc32", "crc32c", "delta", "fixedscaleoffset", "gzip", "lz4"),
    *("lzma", "sharding_indexed", "shuffle", "transpose", "zlib", "zstd"),
}
CODECS_OF_TEXTS = CODECS | {"vlen-utf8", "vlen-bytes", "vlen-array"}
reading_zarr = functools.partial(reading_file, kind="Zarr")


def is_zarr(path: Path) -> bool:
    """Return whether a folder, or a Zip archive, holds arrays of Zarr."""
    if path.is_dir():
        inner = [folder for folder in path.iterdir() if folder.is_dir() and not folder.is_symlink()]
        return any((folder / name).is_file() for folder in (path, *inner) for name in (*GROUPS, VERSION_2))
    if is_npz(path):
        with contextlib.suppress(Exception), zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            return any(name.rpartition("/")[2] in (VERSION_2, VERSION_3) for name in names)
    return False


@contextlib.contextmanager
def open_zarr(path: Path, where: str) -> Iterator[ZarrFile]:
    """Open a folder or a Zip archive to read its arrays."""
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

            def read(name: str, most: int = -1) -> tuple[bytes, int]:
                with (path / name).open("rb") if path.is_dir() else archive.open(name) as file:
                    data = file.read(most)
                    return data, file.seek(0, 2)

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
    """The arrays of a folder or an archive; `names` are their paths below the folder that holds all of them, such as `data`."""

    def __init__(self, store: Any, files: set[str], read: Callable[..., tuple[bytes, int]], where: str) -> None:
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
            body = json.loads(self._read(name)[0])
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
        for inner in sorted({folder.removeprefix(self._root).rstrip("/") for folder in folders}):
            names += [f"{inner}@{key}" for key in self.attributes(inner) if not key.startswith("_ARRAY_")]
        for name in sorted(self._files):
            if name.rpartition("/")[2] not in OWN and not name.startswith(arrays):
                names.append(f"./{name.removeprefix(self._root)}")
        return names

    def whole(self, name: str) -> Any:
        """Return all values of a small array, which may be texts."""
        if name not in self._described:
            raise SchemaError(f"{self.where}: has no array {name!r}.")
        array = self._array(name, CODECS_OF_TEXTS)
        with reading_zarr(f"{self.where}, {name}"):
            return np.asarray(array[()])

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array."""
        return self.column(name).shape

    def column(self, name: str) -> ZarrColumn:
        """Return an array of numbers with a row for each step."""
        where, described = f"{self.where}, {name}", self._described[name]
        body = self._document(described)
        kind = str(body.get("data_type", body.get("dtype")))
        dtype = np.dtype("O")
        with contextlib.suppress(SyntaxError, TypeError, ValueError):
            dtype = np.dtype(kind)
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise SchemaError(f"{where}: expected numbers, found {kind[:50]}.")
        last = body.get("compressor") or (body.get("codecs") or [{}])[-1]
        is_blosc = isinstance(last, dict) and "blosc" in (last.get("id"), last.get("name"))
        files = self._files, described.rpartition("/")[0], self._read if is_blosc else None
        return ZarrColumn(self._array(name, CODECS), *files, where)

    def _array(self, name: str, codecs: set[str]) -> Any:
        import zarr

        where, described = f"{self.where}, {name}", self._described[name]
        with reading_zarr(where):
            unknown = [codec for codec in _codecs_in(self._document(described)) if codec not in codecs]
            if unknown:
                raise SchemaError(
                    f"{where}: is packed by the codec {unknown[0]!r:.50}, which is not read: save this array again "
                    "with Blosc, zstd or without a codec, or leave it out by naming others (columns={..})."
                )
            folder = described.rpartition("/")[0]
            is_old = described.endswith(VERSION_2)
            return zarr.open_array(self._store, path=folder, mode="r", zarr_format=2 if is_old else 3)


def _codecs_in(body: Any) -> Iterator[str]:
    """Yield the names of the codecs of an array, also of those in shards."""
    packers = [*(body.get("filters") or []), body.get("compressor"), *(body.get("codecs") or [])]
    packers += body.get("index_codecs") or []
    for packer in filter(None, packers):
        yield str(packer.get("id", packer.get("name"))).removeprefix("numcodecs.")
        yield from _codecs_in(packer.get("configuration") or {})


class ZarrColumn:
    """Rows of an array; those of the last chunk, or shard, are held."""

    def __init__(self, array: Any, files: set[str], folder: str, read: Any, where: str) -> None:
        """Take an array, the paths of all files, its own folder, and what reads a file of Blosc."""
        self._array, self._files, self._read, self._where = array, files, read, where
        self._start = f"{folder}/" if folder else ""
        self.shape, self.dtype = tuple(array.shape), array.dtype.newbyteorder("=")
        self._chunks = chunks = tuple(array.shards or array.chunks)
        if not self.shape or not math.prod(self.shape):
            raise SchemaError(f"{where}: expected one row for each step, found shape {self.shape}.")
        if len(chunks) != len(self.shape) or min(chunks) < 1:
            raise SchemaError(f"{where}: chunks of shape {chunks} do not fit the shape {self.shape}.")
        self._held, self._number, self._filled = np.empty(0), -1, 0

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> np.ndarray:
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
            if self._start + key in self._files:
                head, size = (b"", 0) if self._read is None else self._read(self._start + key, 16)
                if int.from_bytes(head[12:], "little") != size:  # Blosc would read beyond a chunk that was cut
                    what = f"{self._where}, the chunk at row {start}: cannot be read as Zarr"
                    raise IntegrityError(f"{what}: it is cut off, or its header lies.", file=self._where)
            else:
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


JPEG_START = b"\xff\xd8"
PNG_START = b"\x89PNG"


def pillow(where: str) -> Any:
    """Return PIL.Image."""
    with needing(f"{where}: holds images, which need Pillow", "orlog[formats]"):
        import PIL.Image
    return PIL.Image


@contextlib.contextmanager
def opened_picture(data: bytes, where: str, kinds: Sequence[str] = ("PNG", "JPEG")) -> Iterator[Any]:
    """Open a picture; its size is known then, and its pixels come when asked for."""
    library = pillow(where)
    try:
        # A warning tells of a picture that would take all memory.
        with warnings.catch_warnings(), io.BytesIO(data) as file:
            warnings.simplefilter("error")
            with library.open(file, formats=kinds) as image:
                yield image
    except OrlogError:
        raise
    except (EOFError, OSError, SyntaxError, ValueError, Warning, library.DecompressionBombError) as error:
        raise IntegrityError(f"{where}: holds no {' or '.join(kinds)}: {error}.", file=where) from error


def refuse_deep(data: bytes, where: str) -> None:
    """Refuse a PNG of 16 bits a color, which would be cut to 8."""
    if data.startswith(PNG_START) and data[24:25] == b"\x10":
        raise SchemaError(f"{where}: a PNG of 16 bits a color would be cut to 8; store it as an array of numbers.")


def picture_size(image: Any) -> tuple[int, int, int]:
    """Return height, width and channels."""
    return image.height, image.width, len(image.getbands())


class PictureColumn:
    """Rows that are PNG or JPEG files each, read as frames of one size, (rows, height, width, channels) uint8."""

    dtype = np.dtype(np.uint8)

    def __init__(self, rows: Any, where: str) -> None:
        """Take rows that are bytes, or of uint8 with zeros after the picture; the first one says the size."""
        self._rows, self._where = rows, where
        with opened_picture(_bytes_of(rows[0:1][0]), f"{where}, row 0") as image:
            size = picture_size(image)
        self.shape = (len(rows), *size)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        frames = np.empty((stop - start, *self.shape[1:]), np.uint8)
        for number, row in enumerate(self._rows[start:stop]):
            where = f"{self._where}, row {start + number}"
            refuse_deep(_bytes_of(row), where)
            with opened_picture(_bytes_of(row), where) as image:
                size = picture_size(image)
                if size != self.shape[1:]:
                    raise SchemaError(f"{where}: expected a frame of {self.shape[1:]}, found {size}.")
                frames[number] = np.asarray(image).reshape(size)
        return frames


def begins_a_picture(row: Any) -> bool:
    """Return whether a row, bytes or of uint8, begins as PNG and JPEG files do."""
    return _bytes_of(row[:4]).startswith((JPEG_START, PNG_START))


def _bytes_of(row: Any) -> bytes:
    return row if isinstance(row, bytes) else np.asarray(row, np.uint8).tobytes()
