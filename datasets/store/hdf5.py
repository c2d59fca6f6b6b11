"""The HDF5 container: the columns of a part in one file, which any HDF5 reader opens.

    FOLDER/data.h5              attributes {"orlog_format": 1}
        /observations           a dataset (rows, ..), or a group if the space is a Dict or Tuple
        /episodes/lengths

Chunks hold the same rows as in the Zarr container: one frame, or up to 1 MiB of numbers. Each is
shuffled, compressed by gzip and checksummed by Fletcher-32: filters that every HDF5 has. The file's
own records have checksums too (format of HDF5 1.10), so damage to one does not look like a missing
chunk. gzip's levels 1 to 4 differ by 1 % in size; level 2 is as fast as level 1.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from orlog.base.files import hash_file, make_folder, storage_errors, sync
from orlog.datasets.store.container import WrittenPart
from orlog.datasets.store.encoding import LARGEST_CHUNK_BYTES, Encoding
from orlog.datasets.store.places import Place
from orlog.datasets.store.verify import hash_values
from orlog.datasets.store.zarr_reader import ZarrReader
from orlog.errors import IntegrityError, needing
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.manifest import StoredObject

DATA_FILE = "data.h5"
FORMAT = ("v110", "v110")
GZIP_LEVEL = 2
# Errors of h5py about a file that is damaged or not as expected.
_UNREADABLE = (OSError, KeyError, RuntimeError, TypeError, ValueError)


def write_hdf5(
    source: Path,
    target: Path,
    written: WrittenPart,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> list[StoredObject]:
    """Copy a part from the Zarr container into `target/data.h5`, in bounded memory.

    The file is read back and compared with the BLAKE3 of the part's columns before it counts as written.
    Equal rows give equal bytes as long as h5py and HDF5 stay the same. `progress` gets the bytes of rows
    written since its last call.
    """
    h5py = import_h5py()
    specs = sorted(written.schema.columns().items())
    rows = {spec: written.part.columns[name].rows for name, spec in specs}
    reader = ZarrReader(source, rows, {item.path: item.size_bytes for item in written.objects})
    path = target / DATA_FILE
    with storage_errors(target), _hdf5_errors():
        make_folder(target)
        with h5py.File(path, "w", libver=FORMAT, rdcc_nbytes=0) as file:
            file.attrs.create("orlog_format", 1, dtype="<i8")
            for spec, count in rows.items():
                encoding = reader.encoding(spec.name)
                dataset = _create(h5py, file, spec, count, encoding)
                for start in range(0, count, encoding.shard_rows):
                    values = reader.read(spec.name, start, min(count, start + encoding.shard_rows))
                    if values.size:
                        dataset[start : start + len(values)] = values
                    progress(values.nbytes)
        sync(path)
    _compare(Hdf5Reader(target, rows), written)
    item = StoredObject(path=DATA_FILE, size_bytes=path.stat().st_size, sha256=hash_file(path))
    return [item]


class Hdf5Reader:
    """Reads the columns of `data.h5`; HDF5 checks every chunk's checksum before decoding it.

    Safe in threads, after a fork and when pickled: each process opens the file for itself.
    """

    def __init__(self, folder: Path, rows: Mapping[ColumnSpec, int]) -> None:
        """Open `data.h5`, and check dtype, shape, filters and place of every column, with so many rows each."""
        self.path = folder / DATA_FILE
        self._columns = {spec.name: (spec, count) for spec, count in rows.items()}
        self._opened: tuple[int, Any, dict[str, Any]] | None = None
        for name in self._columns:
            self._dataset(name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def read(
        self, name: str, start: int, stop: int, *, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return rows `start` to `stop - 1` of a column, in `out` where it is given.

        Raises IntegrityError if a chunk is damaged; the message names it.
        """
        spec, _ = self._columns[name]
        if start == stop or 0 in spec.shape:
            return np.empty((stop - start, *spec.shape), spec.dtype) if out is None else out
        dataset = self._dataset(name)
        try:
            values = np.asarray(dataset[start:stop], spec.dtype)
        except _UNREADABLE as error:
            raise self._damage(dataset, name, start, stop, error) from error
        if out is None:
            return values
        out[:] = values
        return out

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return any rows of a column, in the order asked for, reading each chunk once.

        Raises IntegrityError if a chunk is damaged; the message names it.
        """
        spec, _ = self._columns[name]
        out = np.empty((len(rows), *spec.shape), spec.dtype)
        if out.size == 0:
            return out
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        chunk_of = ordered // self._dataset(name).chunks[0]
        edges = np.flatnonzero(np.diff(chunk_of, prepend=-1)).tolist()
        for first, last in zip(edges, [*edges[1:], len(rows)], strict=True):
            start = int(ordered[first])
            values = self.read(name, start, int(ordered[last - 1]) + 1)
            out[order[first:last]] = values[ordered[first:last] - start]
        return out

    def place(self, name: str, row: int) -> Place:
        """Return where a row of a column lies; reading the chunk compares it with its checksum.

        Raises IntegrityError if the chunk is damaged.
        """
        self.read(name, row, row + 1)
        dataset = self._dataset(name)
        rows = int(dataset.chunks[0])
        first = row // rows * rows
        info = dataset.id.get_chunk_info_by_coord((first, *[0] * (dataset.ndim - 1)))
        return Place(
            file=self.path.name,
            chunk=row // rows,
            first_row=first,
            rows=rows,
            offset=int(info.byte_offset),
            size_bytes=int(info.size),
            checksum="Fletcher-32, by HDF5",
        )

    def _dataset(self, name: str) -> Any:
        """Return the open dataset of a column, checked on its first use in this process."""
        # No lock, as a fork could leave it locked: two threads may both open the file, one is kept.
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            opened = self._opened = (os.getpid(), self._open(), {})
        _, file, datasets = opened
        if name not in datasets:
            spec, count = self._columns[name]
            try:
                datasets[name] = _find(file, spec, count)
            except _UNREADABLE as error:
                raise IntegrityError(
                    f"{DATA_FILE}, column {name}: {_text(error)}.", file=DATA_FILE
                ) from error
        return datasets[name]

    def _open(self) -> Any:
        h5py = import_h5py()
        try:
            if not stat.S_ISREG(self.path.lstat().st_mode):
                raise ValueError("expected a file, found a link or folder.")
            return h5py.File(self.path, "r")
        except _UNREADABLE as error:
            raise IntegrityError(
                f"{DATA_FILE}: cannot be opened: {_text(error)}.", file=DATA_FILE
            ) from error

    def _damage(
        self, dataset: Any, name: str, start: int, stop: int, error: Exception
    ) -> IntegrityError:
        """Return the error that names the first chunk that cannot be read."""
        rows = dataset.chunks[0]
        for chunk in range(start // rows, (stop - 1) // rows + 1):
            try:
                dataset[chunk * rows : (chunk + 1) * rows]
            except _UNREADABLE as found:
                return IntegrityError(
                    f"{DATA_FILE}, column {name}, chunk {chunk}: damaged: {_text(found)}.",
                    file=DATA_FILE,
                )
        return IntegrityError(
            f"{DATA_FILE}, column {name}, rows {start} to {stop}: {_text(error)}.", file=DATA_FILE
        )


def import_h5py() -> ModuleType:
    """Return h5py.

    Raises MissingExtraError if it is not installed.
    """
    with needing("the hdf5 container needs h5py", "orlog[formats]"):
        import h5py
    module: ModuleType = h5py
    return module


def _create(h5py: ModuleType, file: Any, spec: ColumnSpec, count: int, encoding: Encoding) -> Any:
    """Return a new dataset; without values it has no chunks, since HDF5 allows none of size 0."""
    dtype = h5py.h5t.py_create(spec.dtype.newbyteorder("<"), logical=True)
    storage: dict[str, Any] = {}
    if count and 0 not in spec.shape:
        storage = {
            "chunks": (min(encoding.chunk_rows, count), *spec.shape),
            "shuffle": True,
            "compression": "gzip",
            "compression_opts": GZIP_LEVEL,
            "fletcher32": True,
        }
    return file.create_dataset(
        spec.name, (count, *spec.shape), h5py.Datatype(dtype), track_times=False, **storage
    )


def _find(file: Any, spec: ColumnSpec, count: int) -> Any:
    """Return the dataset of a column, after checking it before any value is read.

    Raises ValueError or TypeError or KeyError if it is not one that format 1 writes.
    """
    h5py = import_h5py()
    node = file
    for key in spec.name.split("/"):
        # Only the link is examined: following it could open a file elsewhere.
        link = node.id.links.get_info(key.encode()) if isinstance(node, h5py.Group) else None
        if link is None or link.type != h5py.h5l.TYPE_HARD:
            raise ValueError(f"{key!r} is a link, or lies in no group.")
        node = node[key]
    if not isinstance(node, h5py.Dataset):
        raise TypeError("expected a dataset, found none.")
    stored = node.id.get_create_plist()
    if stored.get_external_count() or stored.get_layout() == h5py.h5d.VIRTUAL:
        raise ValueError("its values lie outside of the file.")
    expected, found = (spec.dtype, (count, *spec.shape)), (node.dtype, node.shape)
    if found != (expected[0].newbyteorder("<"), expected[1]):
        raise ValueError(f"expected {expected[0]} {expected[1]}, found {found[0]} {found[1]}.")
    if node.size:
        _check_chunks(h5py, node, stored)
    return node


def _check_chunks(h5py: ModuleType, dataset: Any, stored: Any) -> None:
    wanted = [h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_FLETCHER32]
    filters = [stored.get_filter(position)[0] for position in range(stored.get_nfilters())]
    if filters != wanted:
        raise ValueError(f"expected the filters {wanted}, found {filters}.")
    rows, *shape = dataset.chunks
    row_bytes = dataset.dtype.itemsize * math.prod(shape)
    if tuple(shape) != dataset.shape[1:] or (rows > 1 and rows * row_bytes > LARGEST_CHUNK_BYTES):
        raise ValueError(f"chunks of shape {dataset.chunks}.")
    expected, found = math.ceil(len(dataset) / rows), dataset.id.get_num_chunks()
    if found != expected:
        raise ValueError(f"expected {expected} chunks, found {found}.")


def _compare(reader: Hdf5Reader, written: WrittenPart) -> None:
    """Compare the values in a file with the BLAKE3 of those written."""
    for name, spec in written.schema.columns().items():
        column = written.part.columns[name]
        found = hash_values(reader, spec, column.rows)
        if found != column.blake3:
            raise IntegrityError(
                f"{reader.path}, column {name}: blake3 expected {column.blake3}, found {found}; the "
                "source, the memory, the disk or HDF5 is at fault: verify the source, then run the "
                "same command again.",
                file=DATA_FILE,
                expected=column.blake3,
                found=found,
            )


@contextlib.contextmanager
def _hdf5_errors() -> Iterator[None]:
    """Turn HDF5's error about a full disk, raised when it closes a file, into an OSError."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(_text(error)) from error


def _text(error: Exception) -> str:
    """Return an error's first line; HDF5 adds memory addresses after it."""
    return str(error.args[0] if error.args else error).partition("\n")[0]
