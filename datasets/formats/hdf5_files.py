"""Opens HDF5 files of others: no link is followed, no plug-in is loaded, memory is bounded; and writes files with checksums."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import mmap
import re
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats.blanks import note_blank
from orlog.datasets.formats.safe_reading import reading as reading_file
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import IntegrityError, SchemaError

CACHE_BYTES = 2**26
CHECKSUM_BYTES = 4
HEAP = re.compile(rb"GCOL\x01")  # what each heap of texts begins with
HEAP_HEADER = 16
LEAST_HEAP_BYTES = 4096
LARGEST_CHUNK = 2**28
LARGEST_ROW = 2**24
DEEPEST = 32  # groups in groups; one that lies in itself has no end
LARGEST_UNWRITTEN = 2**24  # bytes of an array that nobody wrote
WHOLE_BYTES = 2**16  # arrays of so many are one chunk
SIGNATURE = b"\x89HDF\r\n\x1a\n"
WORDS = {
    **dict.fromkeys(("true", "yes", "success", "succeeded", "1"), True),
    **dict.fromkeys(("false", "no", "failure", "failed", "0"), False),
}
reading = functools.partial(reading_file, kind="HDF5")

LOCAL_HEAP = re.compile(rb"HEAP\x00\x00\x00\x00")
NO_BLOCK = 1  # ends the list of free blocks
MOST_LOOKED_THROUGH = 2**26  # bytes of a file; one that is larger would take long
LEAST_LINK = 8  # bytes of a file for each name in a group


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
    """Open a file, which is no link, to read from it; errors call it `where`.

    With `texts`, values of any length will be read, for which its heaps are looked at (`check_heaps`).
    """
    h5py = import_h5py()
    with reading(where):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise SchemaError(f"{where}: expected a file, found a link or folder.")
        file = h5py.File(path, "r", rdcc_nbytes=CACHE_BYTES)
    with file:
        if texts:
            check_heaps(path, file, where)
        state = path.stat()
        if state.st_size <= MOST_LOOKED_THROUGH:
            _check_names(path, (state.st_ino, state.st_size, state.st_mtime_ns), where)
        yield file


@functools.lru_cache(maxsize=1024)
def _check_names(path: Path, _state: tuple[int, ...], where: str) -> None:
    """Refuse heaps of names whose free blocks lead around in a circle, which libhdf5 2.0.0 keeps until memory is full.

    See "Local Heap" in the specification of HDF5's file format.
    """
    data = path.read_bytes()
    for heap in LOCAL_HEAP.finditer(data):
        size, block, first = struct.unpack_from("<QQQ", data.ljust(heap.start() + 32), heap.start() + 8)
        for _ in range(min(size, len(data)) // 16 + 1):
            if block == NO_BLOCK or first + block + 8 > len(data):
                break
            (block,) = struct.unpack_from("<Q", data, first + block)
        else:
            raise IntegrityError(
                f"{where}: cannot be read as HDF5: the free blocks of its heap of names at byte {heap.start()} lead "
                "around in a circle.",
                file=where,
            )


def check_heaps(path: Path, file: Any, where: str) -> None:
    """Refuse heaps of texts in which libhdf5 2.0.0 would go round in circles; once for a file that stays as it is.

    Raises SchemaError if sizes in the file do not have 8 bytes; IntegrityError if a heap has a size that leads nowhere.
    """
    with reading(where):
        size_bytes = file.id.get_create_plist().get_sizes()[1]
    if size_bytes != 8:
        raise SchemaError(f"{where}: stores sizes in {size_bytes} bytes, expected 8.")
    state = path.stat()
    _check_heaps(path, (state.st_ino, state.st_size, state.st_mtime_ns), where)


@functools.lru_cache(maxsize=1024)
def _check_heaps(path: Path, _state: tuple[int, ...], where: str) -> None:
    """Look at all heaps of a file, in half a second for each GB.

    Each holds objects one after another, with their sizes. libhdf5 adds sizes up without a look at
    whether that leads on: not with a size of 0, and not with one that is beyond 64 bits when it is rounded.
    See "Global Heap" in the specification of HDF5's file format.
    """
    with path.open("rb") as stored, mmap.mmap(stored.fileno(), 0, access=mmap.ACCESS_READ) as data:

        def number_at(start: int, size: int) -> int:
            return int.from_bytes(data[start : start + size], "little")

        for heap in HEAP.finditer(data):
            stop = heap.start() + number_at(heap.start() + 8, 8)
            if not heap.start() + LEAST_HEAP_BYTES <= stop <= len(data):
                continue  # anything else that begins alike is in the way of nobody
            place = heap.start() + HEAP_HEADER
            while place + HEAP_HEADER <= stop:
                number, size = number_at(place, 2), number_at(place + 8, 8)
                # Object 0 is the free space, whose size counts the header.
                taken = HEAP_HEADER + -(-size // 8) * 8 if number else size
                if taken == 0 or taken > stop - place:
                    raise IntegrityError(
                        f"{where}: cannot be read as HDF5: in its heap of texts at byte {heap.start()}, object "
                        f"{number} claims {size} bytes.",
                        file=where,
                    )
                place += taken


def look_inside(files: Sequence[Path], test: Callable[[Any], bool]) -> bool:
    """Return whether files are HDF5 and the first one passes a test, for `Format.recognizes`.

    Raises IntegrityError if HDF5 cannot read it.
    """
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
    names = _names_in(group.id) if hasattr(group, "keys") else []
    # A name may be no UTF-8.
    return [name.decode(errors="backslashreplace") for name in names]


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


def datasets_in(group: Any, where: str, layout: str) -> Iterator[tuple[str, Any]]:
    """Yield path and dataset of all in a group, and in groups in it; none of what is no group. One that is kept takes 14 kB.

    Links are refused, and groups far too deep in each other, as where one lies in itself; `layout` is what errors say
    that the file does not have.
    """
    h5py = import_h5py()
    waiting = [""] if isinstance(group, h5py.Group) else []
    while waiting:
        prefix = waiting.pop()
        if prefix.count("/") > DEEPEST:
            raise SchemaError(f"{where}: its groups lie more than {DEEPEST} deep in each other.")
        place = h5py.h5g.open(group.id, prefix.encode()) if prefix else group.id
        for name, is_link in links_in(place):
            if is_link:
                raise SchemaError(
                    f"{where}, {prefix}{name}: a link, which is not followed, so it does not have {layout}."
                )
            node = h5py.h5o.open(place, name.encode())
            if isinstance(node, h5py.h5d.DatasetID):
                yield prefix + name, h5py.Dataset(node, readonly=True)
            elif isinstance(node, h5py.h5g.GroupID):
                waiting.append(f"{prefix}{name}/")


def links_in(place: Any) -> list[tuple[str, bool]]:
    """Return the names in a group, given by its identifier, sorted, and whether each is a link to elsewhere."""
    hard = import_h5py().h5l.TYPE_HARD
    return [
        (name.decode(errors="backslashreplace"), place.links.get_info(name).type != hard) for name in _names_in(place)
    ]


def _names_in(place: Any) -> list[bytes]:
    """Return the names in a group, given by its identifier, sorted.

    Raises ValueError, as a library of damage, if there are more than the file has room for: they lead around in a circle.
    """
    h5py = import_h5py()
    names: list[bytes] = []
    most = h5py.h5i.get_file_id(place).get_filesize() // LEAST_LINK

    def take(name: bytes) -> bool | None:
        names.append(name)
        return len(names) > most or None  # True ends the walk

    # In the order of the file: any other makes HDF5 collect all of them first, without an end.
    place.links.iterate(take, order=h5py.h5.ITER_NATIVE)
    if len(names) > most:
        raise ValueError("a group has more names than the file has room for")
    return sorted(names)


def attribute(node: Any, name: str, default: Any = None) -> Any:
    """Return an attribute, or a default where there is none."""
    return node.attrs.get(name, default)


def flag_attribute(node: Any, names: Sequence[str], where: str) -> bool | None:
    """Return whether the first attribute there is of some names is true, as a number or a word; None if there is none.

    Raises SchemaError if it is neither true nor false.
    """
    for name in names:
        with reading(where):
            if name not in node.attrs:
                continue
            value = np.asarray(node.attrs[name]).reshape(-1)
        if value.size == 1 and value.dtype.kind in "biuf" and value[0] in (0, 1):
            return bool(value[0])
        text = b"".join(value).decode(errors="replace") if value.dtype.kind == "S" else ""
        text = text or ", ".join(map(str, value[:3]))
        if value.size == 1 and text.lower() in WORDS:
            return WORDS[text.lower()]
        raise SchemaError(
            f"{where}: the attribute {name} is {text!r:.60}, expected 1 or 0, or true or false; correct or rename it."
        )
    return None


def numbers(node: Any, where: str, file_bytes: int, *, texts: bool = False) -> Hdf5Column:
    """Return a dataset of numbers, checked: it can be read in bounded memory, and lies in the file.

    It has a row for each step, and with `texts` may hold bytes of one length in place of numbers.
    """
    if not isinstance(node, import_h5py().Dataset):
        raise SchemaError(f"{where}: expected a dataset, found a {type(node).__name__}.")
    shape, dtype = node.id.shape, node.id.dtype
    if not shape or not shape[0] or not 0 < math.prod(shape[1:]) <= LARGEST_ROW:
        raise SchemaError(f"{where}: expected one row for each step, found shape {shape}.")
    is_text = texts and dtype.kind == "S" and len(shape) == 1 and dtype.itemsize <= LARGEST_ROW
    is_number = dtype.kind in "biuf" and dtype.itemsize <= 8 and dtype.subdtype is None
    if not (is_number or is_text):
        raise SchemaError(f"{where}: expected numbers, found {dtype}.")
    _check_stored(node.id, shape, dtype, where, file_bytes)
    return Hdf5Column(node, shape, dtype)


class Hdf5Column:
    """A dataset of HDF5 that was checked, and can be sliced by rows.

    h5py asks the file anew for each look at dtype and shape, which takes most of the time where a file
    has a dataset for each episode.
    """

    __slots__ = ("_node", "dtype", "shape")

    def __init__(self, node: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Take a dataset and what it has said."""
        self._node, self.shape, self.dtype = node, shape, dtype

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Read rows."""
        values: np.ndarray = self._node[rows]
        return values


def check_stored(node: Any, where: str, file_bytes: int) -> None:
    """Refuse a dataset whose values are elsewhere, not stored, or need a plug-in to be read.

    Raises SchemaError, which says what is wrong with it.
    """
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
        if math.prod(chunks) * dtype.itemsize > LARGEST_CHUNK:
            raise SchemaError(f"{where}: chunks of shape {chunks} are too large.")
        claimed = math.prod(-(-rows // chunk) for rows, chunk in zip(shape, chunks, strict=True))
        whole = node.get_num_chunks() == claimed or not size
        if of_z.FILTER_FLETCHER32 in filters:
            unpacked = math.prod(chunks) * node.get_type().get_size()
            _check_chunks(node, unpacked if packed.isdisjoint(filters) else None, where)
    else:
        whole = stored_bytes == size * dtype.itemsize
    if not whole and stored_bytes == 0 and size * dtype.itemsize <= LARGEST_UNWRITTEN:
        whole = note_blank("HDF5", where, size)
    if not whole or stored_bytes > file_bytes:
        raise SchemaError(f"{where}: the file does not hold the shape {shape} that it claims.")


def _check_chunks(node: Any, unpacked: int | None, where: str) -> None:
    """Refuse chunks that are smaller than their checksum, beyond which libhdf5 2.0.0 would read.

    `unpacked` is the bytes of each chunk's values; None where they are compressed to any size.
    """
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
        """Write all of some bytes, in memory if an error came before."""
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
        """Read bytes as they were written; zeros where nothing was."""
        start, into = self.tell(), memoryview(buffer).cast("B")
        done = super().readinto(into) or 0
        into[done:] = bytes(len(into) - done)
        for at, values in self._kept:
            first, last = max(start, at), min(start + len(into), at + len(values))
            if first < last:
                into[first - start : last - start] = values[first - at : last - at]
        return len(into)

    def truncate(self, size: int | None = None) -> int:
        """Change the size of the file, unless an error came before."""
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
