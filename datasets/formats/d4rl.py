"""Reads and writes the HDF5 files of D4RL (Fu and others, 2020), and reads those of DSRL (Liu and others, 2023).

    /observations /actions          (S, n) float        /rewards            (S,)
    /terminals    /timeouts         (S,) flags          /next_observations  (S, n), in some files
    /infos/NAME  or  /infos         (S, ..)             all else is left out
    attribute orlog_columns         names of all columns, in our own files: none of them may be missing
    /costs                          (S,), in DSRL's files, which have all of these columns: `infos/cost`

A row is a step, and flags say where episodes end. `flat_rows.py` says how. A file with neither `timeouts` nor
`next_observations` does not say where the time limit ended an episode; the environment's horizon
does, and without it the file is refused. The file is not trusted: see `hdf5_files.py`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats.episodes import Asked, Opened, Options
from orlog.datasets.formats.flat_rows import (
    FlatRows,
    count_choices,
    file_stem,
    flat_columns,
    flat_losses,
    open_flat_rows,
)
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.hdf5_files import (
    attribute,
    check_stored,
    child,
    create_hdf5,
    datasets_in,
    has_child,
    look_inside,
    names_in,
    numbers,
    open_hdf5,
    reading,
)
from orlog.datasets.formats.notes import Note
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import IntegrityError

MOST_FACTS = 256
LONGEST = 200  # characters of a text of the metadata
CHUNK_BYTES = 2**18  # several fit into HDF5's cache, so each is compressed once
LAYOUT = "D4RL's layout"
COLUMNS = "orlog_columns"
DSRL = "DSRL's layout"
OPTIONAL = ("timeouts", "next_observations")
KEYS = ("observations", "actions", "rewards", "terminals", *OPTIONAL)
DSRL_KEYS = (*KEYS, "costs")


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    source, where = asked.only_file(LAYOUT)
    with open_hdf5(source, where) as file:
        size = source.stat().st_size
        with reading(where):
            _check_complete(file, where)
            rows = _rows(file, asked, size)
            policy = _policy(file, where, size)
        opened = open_flat_rows(rows, asked.options, reading)
        opened.notes += policy
        yield opened


@contextlib.contextmanager
def _open_dsrl(asked: Asked) -> Iterator[Opened]:
    source, where = asked.only_file(DSRL)
    with open_hdf5(source, where) as file:
        with reading(where):
            size = source.stat().st_size
            columns = {key: numbers(child(file, key, where, DSRL), f"{where}, {key}", size) for key in DSRL_KEYS}
            left_out = [key for key in names_in(file) if key not in DSRL_KEYS]
            rows = FlatRows(columns, where, infos={"cost": "costs"}, left_out=left_out)
        yield open_flat_rows(rows, Options(), reading)


def _rows(file: Any, asked: Asked, file_bytes: int) -> FlatRows:
    """Return the columns of a file: those of the layout, and all of infos with a row a step."""
    where = asked.sources[0]
    nodes = {key: child(file, key, where, LAYOUT) for key in KEYS if key not in OPTIONAL or has_child(file, key)}
    count = nodes["observations"].shape[:1] if hasattr(nodes["observations"], "shape") else ()
    infos: dict[str, str] = {}
    left_out: list[str] = []
    if has_child(file, "infos"):
        group = child(file, "infos", where, LAYOUT)
        if not hasattr(group, "keys"):  # one column, as in the files of D4RL's kitchen
            nodes["infos"] = group
            infos["infos"] = "infos"
        for name in names_in(group):
            key, node = f"infos/{name}", child(group, name, where, LAYOUT)
            if getattr(node, "shape", None) and node.shape[:1] == count:
                nodes[key], infos[name] = node, key
            else:
                left_out.append(key)
    columns = {key: numbers(node, f"{where}, {key}", file_bytes) for key, node in nodes.items()}
    choices = count_choices(columns["actions"], where) if asked.benchmark is None else 0
    return FlatRows(columns, where, infos=infos, left_out=left_out, benchmark=asked.benchmark, choices=choices)


def _policy(file: Any, where: str, file_bytes: int) -> list[Note]:
    """Return the note about the behavior policy: its algorithm, iteration and other single values, no weights."""
    facts: dict[str, str] = {}
    group = child(file, "metadata", where, LAYOUT) if has_child(file, "metadata") else {}
    for path, node in datasets_in(group, where, LAYOUT):
        # Texts of any length lie in heaps, which are not read here; D4RL's have one length.
        is_plain = node.shape == () and node.dtype.kind in "biufS" and node.dtype.itemsize <= LONGEST
        if is_plain and len(facts) < MOST_FACTS:
            check_stored(node, f"{where}, metadata/{path}", file_bytes)
            value = node[()]
            text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
            facts[f"metadata/{path}"] = " ".join(text.split())
    words = ", ".join(f"{name} is {value}" for name, value in facts.items())
    return [Note("policy", facts, facts=words)] if facts else []


def _check_complete(file: Any, where: str) -> None:
    """Refuse a file of ours that lost a column, which nothing else would tell."""
    # Texts of any length lie in heaps, which are not read here; ours have one length.
    if COLUMNS not in file.attrs or file.attrs.get_id(COLUMNS).dtype.kind != "S":
        return
    there = {path for path, _ in datasets_in(file, where, LAYOUT)}
    for name in np.asarray(attribute(file, COLUMNS)).reshape(-1).tolist():
        text = name.decode("utf-8", "replace")
        if text not in there:
            raise IntegrityError(
                f"{where}: has no {text:.100}, which was written; copy or export the file again.", file=where
            )


def _recognizes(files: Sequence[Path]) -> bool:
    needed = ("observations", "actions", "terminals")
    others = ("costs", "episode_terminals")  # of DSRL and d3rlpy
    return look_inside(
        files,
        lambda file: all(has_child(file, key) for key in needed) and not any(has_child(file, key) for key in others),
    )


def _write(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write `NAME.hdf5`, compressed by gzip as D4RL's own files."""
    name = file_stem(dataset)
    with create_hdf5(folder / f"{name}.hdf5", progress, libver=None) as (file, progress):
        first = 0
        columns: dict[str, Any] = {}  # kept open: one that is closed compresses its chunk
        for rows in flat_columns(dataset, progress):
            count = len(rows["rewards"])
            if not columns:
                file.attrs[COLUMNS] = np.array([key.encode() for key in rows])
            for key, values in rows.items():
                if key not in columns:
                    row = values.shape[1:]
                    row_bytes = max(1, values.dtype.itemsize * math.prod(row))
                    rows_together = max(1, min(dataset.total_steps, CHUNK_BYTES // row_bytes))
                    columns[key] = file.create_dataset(
                        key,
                        (dataset.total_steps, *row),
                        values.dtype,
                        compression="gzip",
                        fletcher32=True,
                        chunks=(rows_together, *row),
                    )
                columns[key][first : first + count] = values
            first += count


FORMATS = {
    "d4rl": Format(
        name="d4rl-hdf5",
        open=_open,
        recognizes=_recognizes,
        extensions=(".hdf5", ".h5"),
        options=("horizon",),
        takes_benchmark=True,
        notes_in_lineage=False,
        write=_write,
        losses=lambda dataset: flat_losses(dataset, "D4RL's files"),
        check=lambda: import_h5py(),
        reads=(*KEYS, "infos/*", "@orlog_columns"),
    ),
    "dsrl": Format(
        name="dsrl-hdf5",
        open=_open_dsrl,
        recognizes=lambda files: look_inside(files, lambda file: all(has_child(file, key) for key in DSRL_KEYS)),
        extensions=(".hdf5", ".h5"),
        check=lambda: import_h5py(),
        reads=("**",),
    ),
}
