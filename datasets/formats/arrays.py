"""Reads arrays of HDF5, npz, npy and Zarr that the user names, whatever their layout.

    orlog import my.h5 lab/mine-v1 --episode "demo_*" --map observation=obs/qpos,obs/qvel --map action=actions
    orlog import logs/*.npz lab/mine-v1 --episode file --map observation=obs* --map action=a --horizon 200
    orlog import all.zarr lab/mine-v1 --episode meta/episode_ends --map "observation/*=data/*" --map action=data/action

`--map` is as for tables (`_shared/roles.py`), but an array has as many numbers a row as it likes, and several that
make one observation are put side by side. `_shared/mapped_arrays.py` says what an episode is.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from orlog.datasets.formats._containers.npz_files import is_npy_folder
from orlog.datasets.formats._containers.zarr_arrays import is_zarr
from orlog.datasets.formats._shared.episodes import Asked, Opened
from orlog.datasets.formats._shared.flags import FLAGS
from orlog.datasets.formats._shared.mapped_arrays import open_mapped
from orlog.datasets.formats._shared.places import (
    ARRAYS,
    FILE,
    NUMBER,
    ROW,
    Place,
    files_of_arrays,
    holds_arrays,
)
from orlog.datasets.formats._shared.roles import USUAL
from orlog.datasets.formats._shared.trees import Kind, Tree, likely, map_of
from orlog.datasets.formats.formats import Format
from orlog.errors import OrlogError, SchemaError


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    with open_mapped(_understood(asked)) as opened:
        if any(is_npy_folder(file) for file, _ in files_of_arrays(asked)):
            opened.reads = [*opened.reads, "./*.npy"]
        yield opened


def _understood(asked: Asked) -> Asked:
    """Return what is asked, where `#` in the names of arrays alone says what an episode is.

    Raises SchemaError if lengths of episodes are given that are not rows.
    """
    options = asked.options
    if options.length and options.episode != ROW:
        raise SchemaError(
            f"{asked.sources[0]}: length={options.length!r} says the steps of episodes that are rows of arrays "
            "[episodes, time, ..]; give episode='row' too, or leave it out."
        )
    if options.episode not in ("", FILE) or NUMBER not in "".join(options.columns.values()):
        return asked
    return dataclasses.replace(asked, options=dataclasses.replace(options, episode=NUMBER))


def _recognizes(files: Sequence[Path]) -> bool:
    if all(map(holds_arrays, files)):
        return True
    return len(files) == 1 and files[0].is_dir() and any(map(holds_arrays, files[0].rglob("*")))


def _describe(files: Sequence[Path]) -> str:
    """Return the arrays of the first file, and a `--map` by what their names are like."""
    if not _recognizes(files):
        return ""
    places = ARRAYS.find(Asked(files=files, sources=[str(file) for file in files]))
    kinds: dict[str, Kind] = {}
    try:
        _, _, place = next(places)
        with place.reading(place.where):
            tree = Tree(place.names, lambda name: _kind(place, name, kinds))
    except (OrlogError, StopIteration):  # it is damaged
        return ""
    inner = {name: kinds[tree.start + name] for name in tree.names if tree.start + name in kinds}
    found = likely(inner)
    ends = [one for one, kind in inner.items() if "ends" in one and len(kind[0]) == 1]
    ends = [one for one in (*inner, *ends) if one.lower() in USUAL["episode"]] + ends
    episode = tree.episode or (ends[0] if ends else "")
    if not episode and (len(files) > 1 or (files[0].is_dir() and not is_zarr(files[0]))):
        episode = FILE
    if not episode and not {*FLAGS} & found.keys():
        episode = "ARRAY|PATTERN|file"
    said = f", {episode=}" if episode else ""
    paths = str(files[0]) if len(files) == 1 else [str(file) for file in files]
    return (
        f"\nThe arrays of {place.where}:\n"
        + "".join(f"    {line}\n" for line in tree.lines)
        + "Say what they mean, for example: "
        f"orlog.import_dataset({paths!r}, 'NAME'{said}, columns={map_of(inner)})"
    )


def _kind(place: Place, name: str, kinds: dict[str, Kind]) -> str:
    """Return what an array holds in words, and keep it where --map could name it."""
    try:
        column = place.column(name)
    except SchemaError as error:
        return f"({str(error).rpartition(': ')[2].rstrip('.')})"
    kinds[name] = tuple(column.shape), str(column.dtype)
    return f"{kinds[name][0]} {kinds[name][1]}"


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
