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
import functools
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from orlog.base.files import hash_file, make_folder, storage_errors, sync
from orlog.datasets.store.encoding import LARGEST_CHUNK_BYTES
from orlog.datasets.store.objects import mismatch
from orlog.datasets.store.zarr_reader import ZarrReader, by_chunk, hash_values, placed
from orlog.datasets.store.zarr_writer import WrittenPart
from orlog.errors import IntegrityError, needing
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.manifest import StoredObject

DATA_FILE = "data.h5"
FORMAT = ("v110", "v110")
FILTERS = {"shuffle": True, "compression": "gzip", "compression_opts": 2, "fletcher32": True}
# Errors of h5py about a file that is damaged or not as expected.
_UNREADABLE = (OSError, KeyError, RuntimeError, TypeError, ValueError)


def write_hdf5(
    source: Path, target: Path, written: WrittenPart, *, progress: Callable[[int], None] = lambda _: None
) -> list[StoredObject]:
    """Copy a part from the Zarr container into `target/data.h5`, in bounded memory."""
    h5py = import_h5py()
    specs = sorted(written.schema.columns().items())
    rows = {spec: written.part.columns[name].rows for name, spec in specs}
    reader = ZarrReader(source, rows, {item.path: item.size_bytes for item in written.objects})
    path = target / DATA_FILE
    with storage_errors(target):
        make_folder(target)
        try:
            with h5py.File(path, "w", libver=FORMAT, rdcc_nbytes=0) as file:
                file.attrs.create("orlog_format", 1, dtype="<i8")
                for spec, count in rows.items():
                    encoding = reader.encoding(spec.name)
                    dtype = h5py.h5t.py_create(spec.dtype.newbyteorder("<"), logical=True)
                    shape = (count, *spec.shape)
                    chunks = (min(encoding.chunk_rows, count), *spec.shape)
                    # Without values it has no chunks, since HDF5 allows none of size 0.
                    storage = {"chunks": chunks, **FILTERS} if math.prod(shape) else {}
                    dataset = file.create_dataset(spec.name, shape, h5py.Datatype(dtype), track_times=False, **storage)
                    for start in range(0, count, encoding.shard_rows):
                        values = reader.read(spec.name, start, min(count, start + encoding.shard_rows))
                        if values.size:
                            dataset[start : start + len(values)] = values
                        progress(values.nbytes)
        except RuntimeError as error:  # HDF5's own, as about a full disk when it closes a file
            raise OSError(_first_line(error)) from error
        sync(path)
    copied = Hdf5Reader(target, rows)
    for spec, count in rows.items():
        expected = written.part.columns[spec.name].blake3
        actual = hash_values(functools.partial(copied.read, spec.name), spec, count)
        if actual != expected:
            advice = (
                "the source, the memory, the disk or HDF5 is at fault: verify the source, then run "
                "the same command again."
            )
            where = f"{path}, column {spec.name}, blake3"
            raise mismatch(where, DATA_FILE, expected, actual, advice)
    return [StoredObject(path=DATA_FILE, size_bytes=path.stat().st_size, sha256=hash_file(path))]


class Hdf5Reader:
    """Reads the columns of `data.h5`; HDF5 checks every chunk's checksum before decoding it."""

    def __init__(self, folder: Path, rows: Mapping[ColumnSpec, int]) -> None:
        """Open `data.h5`, and check dtype, shape, filters and place of every column, with so many rows each."""
        self.path = folder / DATA_FILE
        self._columns = {spec.name: (spec, count) for spec, count in rows.items()}
        self._opened: tuple[int, Any, dict[str, Any]] | None = None
        for name in self._columns:
            self._dataset(name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def read(self, name: str, start: int, stop: int, *, out: np.ndarray | None = None) -> np.ndarray:
        """Return rows `start` to `stop - 1` of a column, in `out` where it is given."""
        spec, _ = self._columns[name]
        if start == stop or 0 in spec.shape:
            return np.empty((stop - start, *spec.shape), spec.dtype) if out is None else out
        dataset = self._dataset(name)
        try:
            return placed(np.asarray(dataset[start:stop], spec.dtype), out)
        except _UNREADABLE:
            rows, where = dataset.chunks[0], f"{DATA_FILE}, column {name}"
            for chunk in range(start // rows, (stop - 1) // rows + 1):
                with _readable(f"{where}, chunk {chunk}: damaged"):
                    dataset[chunk * rows : (chunk + 1) * rows]
            with _readable(f"{where}, rows {start} to {stop}"):
                raise

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return any rows of a column, in the order asked for, reading each chunk once."""
        spec, _ = self._columns[name]
        out = np.empty((len(rows), *spec.shape), spec.dtype)
        if out.size == 0:
            return out
        for _, wanted in by_chunk(rows, int(self._dataset(name).chunks[0])):
            start = int(rows[wanted[0]])
            values = self.read(name, start, int(rows[wanted[-1]]) + 1)
            out[wanted] = values[rows[wanted] - start]
        return out

    def _dataset(self, name: str) -> Any:
        """Return the open dataset of a column, checked on its first use in this process."""
        # No lock, as a fork could leave it locked: two threads may both open the file, one is kept.
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            opened = self._opened = (os.getpid(), self._open(), {})
        _, file, datasets = opened
        if name not in datasets:
            spec, count = self._columns[name]
            with _readable(f"{DATA_FILE}, column {name}"):
                datasets[name] = _checked_dataset(import_h5py(), file, spec, count)
        return datasets[name]

    def _open(self) -> Any:
        h5py = import_h5py()
        with _readable(f"{DATA_FILE}: cannot be opened"):
            if not stat.S_ISREG(self.path.lstat().st_mode):
                raise ValueError("expected a file, found a link or folder.")
            return h5py.File(self.path, "r")


def import_h5py() -> ModuleType:
    """Return h5py."""
    with needing("the hdf5 container needs h5py", "orlog[formats]"):
        import h5py
    module: ModuleType = h5py
    return module


def _checked_dataset(h5py: ModuleType, file: Any, spec: ColumnSpec, count: int) -> Any:
    node = file
    for key in spec.name.split("/"):
        # Only the link is examined: following it could open a file elsewhere.
        link = node.id.links.get_info(key.encode()) if isinstance(node, h5py.Group) else None
        if link is None or link.type != h5py.h5l.TYPE_HARD:
            raise ValueError(f"{key!r} is a link, or lies in no group.")
        node = node[key]
    if not isinstance(node, h5py.Dataset):
        raise TypeError("expected a dataset, found none.")
    if node.external is not None or node.is_virtual:
        raise ValueError("its values lie outside of the file.")
    shape = (count, *spec.shape)
    if (node.dtype, node.shape) != (spec.dtype.newbyteorder("<"), shape):
        raise ValueError(f"expected {spec.dtype} {shape}, found {node.dtype} {node.shape}.")
    if node.size == 0:
        return node
    stored = node.id.get_create_plist()
    filters = [stored.get_filter(position)[0] for position in range(stored.get_nfilters())]
    if filters != [h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_FLETCHER32]:
        raise ValueError(f"expected the filters shuffle, deflate and Fletcher-32, found {filters}.")
    rows, *row = node.chunks
    row_bytes = spec.dtype.itemsize * math.prod(row)
    if tuple(row) != spec.shape or (rows > 1 and rows * row_bytes > LARGEST_CHUNK_BYTES):
        raise ValueError(f"chunks of shape {node.chunks}.")
    if node.id.get_num_chunks() != math.ceil(count / rows):  # a missing one would read as zeros
        raise ValueError(f"expected {math.ceil(count / rows)} chunks, found {node.id.get_num_chunks()}.")
    return node


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        raise IntegrityError(f"{what}: {_first_line(error)}.", file=DATA_FILE) from error


def _first_line(error: Exception) -> str:
    return str(error.args[0] if error.args else error).partition("\n")[0]
