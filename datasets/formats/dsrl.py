"""Reads the HDF5 files of DSRL (Liu and others, 2023): D4RL's layout and a cost for each step.

    /observations /next_observations  (S, n)    /actions (S, m)    /rewards /costs (S,)
    /terminals /timeouts              (S,) flags, some of them as floats

`infos/cost` holds the costs. `_shared/flat_rows.py` says how rows become episodes.
https://github.com/liuzuxin/DSRL
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from orlog.datasets.formats._containers.hdf5_files import (
    child,
    has_child,
    look_inside,
    names_in,
    numbers,
    open_hdf5,
    reading,
)
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options
from orlog.datasets.formats._shared.flat_rows import FlatRows, open_flat_rows
from orlog.datasets.formats.formats import Format
from orlog.datasets.store.hdf5 import import_h5py

LAYOUT = "DSRL's layout"
KEYS = ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts", "costs")


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    source, where = asked.only_file(LAYOUT)
    with open_hdf5(source, where) as file:
        with reading(where):
            size = source.stat().st_size
            columns = {
                key: numbers(child(file, key, where, LAYOUT), f"{where}, {key}", size)
                for key in KEYS
            }
            left_out = [key for key in names_in(file) if key not in KEYS]
            rows = FlatRows(columns, where, infos={"cost": "costs"}, left_out=left_out)
        yield open_flat_rows(rows, Options(), reading)


def _recognizes(files: Sequence[Path]) -> bool:
    return look_inside(files, lambda file: all(has_child(file, key) for key in KEYS))


FORMAT = Format(
    name="dsrl-hdf5",
    open=_open,
    recognizes=_recognizes,
    alone="a dataset of DSRL is one file",
    extensions=(".hdf5", ".h5"),
    check=lambda: import_h5py(),
    reads=("**",),
)
