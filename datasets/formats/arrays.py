"""Reads arrays of HDF5, npz, npy and Zarr that the user names, whatever their layout.

`--map` is as for tables (`roles.py`), but an array has as many numbers a row as it likes, and several that
make one observation are put side by side. `mapped_arrays.py` says what an episode is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from orlog.datasets.formats.array_files import is_npy_folder
from orlog.datasets.formats.episodes import Asked, Opened, Options
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import open_mapped
from orlog.datasets.formats.places import (
    ARRAYS,
    FILE,
    NUMBER,
    ROW,
    Place,
    columns_by_role,
    files_of_arrays,
    holds_arrays,
)
from orlog.datasets.formats.roles import Kind, alike, which_is_which
from orlog.errors import OrlogError, SchemaError

MOST_OPENED = 200  # arrays of unknown meaning


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    with open_mapped(_understood(asked)) as opened:
        if any(is_npy_folder(file.path) for file in files_of_arrays(asked)):
            opened.reads = [*opened.reads, "./*.npy"]
        yield opened


def _understood(asked: Asked) -> Asked:
    """Return what is asked, where `#` in the names of arrays alone says what an episode is."""
    options = asked.options
    if options.length and options.episode != ROW:
        raise SchemaError(f"{asked.sources[0]}: length={options.length!r}: give episode='row' too, or leave it out.")
    if options.episode not in ("", FILE) or NUMBER not in "".join(options.columns.values()):
        return asked
    return dataclasses.replace(asked, options=dataclasses.replace(options, episode=NUMBER))


def _recognizes(files: Sequence[Path]) -> bool:
    if all(map(holds_arrays, files)):
        return True
    return len(files) == 1 and files[0].is_dir() and any(map(holds_arrays, files[0].rglob("*")))


def _describe(files: Sequence[Path]) -> str:
    """Return the arrays of the first file, and how to say what they mean."""
    if not _recognizes(files):
        return ""
    kinds: dict[str, Kind] = {}
    try:
        each = files_of_arrays(Asked(files=files, sources=[str(file) for file in files]))
        with contextlib.closing(ARRAYS.open(each[0], Options())) as places:
            place = next(places)
            with place.reading(place.where):
                first = {alike(name): name for name in reversed(place.names)}
                for name in [*first.values()][:-MOST_OPENED:-1]:
                    kinds[name] = _kind(place, name)
    except (OrlogError, StopIteration):  # it is damaged
        return ""
    return f"\nThe arrays of {place.where}:" + which_is_which(kinds)


def _kind(place: Place, name: str) -> Kind:
    try:
        (column,) = columns_by_role(place, {"observation": [name]})["observation"]
        column[0:1]  # it may be packed by something that is not read
    except OrlogError as error:
        why = str(error).rpartition(f"{name}: ")[2]
        return (), f"({re.split('[:;] ', why)[0].rstrip('.')})"
    return tuple(column.shape), str(column.dtype)


FORMAT = Format(
    name="arrays",
    open=_open,
    recognizes=_recognizes,
    extensions=(".hdf5", ".h5", ".npz", ".npy", ".zarr", ".zip", ""),
    options=("columns", "episode", "length", "horizon", "ends"),
    shares=True,
    only_mapped=True,
    any_layout=True,
    describe=_describe,
    reads=("**",),
)
