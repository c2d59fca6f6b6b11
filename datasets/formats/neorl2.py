"""Reads NeoRL-2's Parquet files (Gao and others, 2025), as `polixirai/NeoRL2` on Hugging Face holds them.

    NAME/train/NAME-train.parquet, NAME/val/NAME-val.parquet, with a row for each step and the columns
        observations  next_observations     lists of floats
        actions                             lists of floats
        rewards  terminals                  one number

Columns may have the names of the npz files too (`obs`, `action`, .., `truncated`), or be spread over several
(`obs_0`, `obs_1`, ..). Both files make one dataset, whose `episodes/split` is `train` or `val`. Without a column for
time limits, an episode ends where a next observation is not the observation that follows: all episodes that
no terminal ends must then have the same length, the time limit, and no other a greater one.

Tables are read whole: the largest one of NeoRL-2 takes 45 MB.
https://github.com/polixir/NeoRL2, whose npz files `formats/npz.py` reads
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from orlog.datasets.formats.arrow_files import array_of, check_pyarrow, column_names, parquet_batches, reading_arrow
from orlog.datasets.formats.episodes import Asked, Opened, Options
from orlog.datasets.formats.flat_rows import FlatRows, open_flat_rows
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.pieces import open_each
from orlog.datasets.formats.safe_reading import rows_differ
from orlog.errors import MissingExtraError, OrlogError, SchemaError

ENDINGS = (".parquet", ".pq")
NAMES = {
    "observations": "observations|obs",
    "actions": "actions?",
    "rewards": "rewards?",
    "terminals": "terminals|done",
    "timeouts": "timeouts|truncated",
    "next_observations": "next_observations|next_obs",
}
OPTIONAL = "timeouts"
SPLITS = ("train", "val")
BLOCK_ROWS = 2**13
LARGEST_TABLE = 2**32
"""Bytes of a table, which is held in memory."""


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    with open_each(asked, _open_file, [_split(file) for file in asked.files]) as opened:
        yield opened


def _split(file: Path) -> str:
    """Return what a file is named for, or its folder."""
    names = [name for name in SPLITS if file.stem.endswith(f"-{name}") or file.parent.name == name]
    return names[0] if names else ""


@contextlib.contextmanager
def _open_file(file: Path, where: str, _options: Options) -> Iterator[Opened]:
    columns, notes = _columns(file, where), []
    rows = FlatRows(columns, where, infos={})  # refuses columns that do not belong together
    if OPTIONAL not in columns:
        horizon, columns[OPTIONAL] = _timeouts(columns, where)
        notes = [Note("ends_by_gaps", horizon=horizon)] if horizon else []
        rows = FlatRows(columns, where, infos={})
    opened = open_flat_rows(rows, Options(), reading_arrow)
    yield dataclasses.replace(opened, notes=notes)


def _columns(file: Path, where: str) -> dict[str, np.ndarray]:
    """Return the columns of a table by the first of their names."""
    names = column_names(file, where)
    parts = _parts(names)
    if parts is None:
        raise SchemaError(f"{where}: expected the columns {', '.join(NAMES)} of NeoRL-2, found {names}.")
    blocks: dict[str, list[np.ndarray]] = {name: [] for name in names}
    first = total = 0
    for batch in parquet_batches(file, where, names, BLOCK_ROWS):
        for name in names:
            blocks[name].append(array_of(batch.column(name), name, where, first))
            total += blocks[name][-1].nbytes
        first += batch.num_rows
        if total > LARGEST_TABLE:
            raise SchemaError(f"{where}: more than {LARGEST_TABLE:,} bytes are no table of NeoRL-2.")
    columns = {}
    for key, several in parts.items():
        with reading_arrow(f"{where}, {several[0]}"):  # which may differ in shape
            whole = [np.concatenate(blocks[name] or [np.zeros(0)]) for name in several]
            columns[key] = np.stack(whole, axis=-1) if len(whole) > 1 else whole[0]
        if not first or columns[key].dtype.kind not in "biuf":
            raise SchemaError(f"{where}, {several[0]}: expected rows of numbers, found {columns[key].dtype}.")
    return columns


def _parts(names: Sequence[str]) -> dict[str, list[str]] | None:
    """Return the names of the columns of each role; None if they are not those of NeoRL-2."""
    parts: dict[str, list[str]] = {}
    for key, spellings in NAMES.items():
        single = [name for name in names if re.fullmatch(spellings, name)]
        spread = [name for name in names if re.fullmatch(rf"({spellings})_\d+", name)]
        spread.sort(key=lambda name: int(name.rpartition("_")[2]))
        numbers = [int(name.rpartition("_")[2]) for name in spread]
        if len(single) + bool(spread) > 1 or numbers != list(range(len(spread))):
            return None
        if single or spread:
            parts[key] = single or spread
    used = {name for several in parts.values() for name in several}
    return parts if used == {*names} and {*NAMES} - parts.keys() <= {OPTIONAL} else None


def _timeouts(columns: dict[str, np.ndarray], where: str) -> tuple[int, np.ndarray]:
    """Return the time limit, if one ended an episode, and where it did, (rows,) bool."""
    ends = columns["terminals"].reshape(-1) != 0
    torn = rows_differ(columns["next_observations"][:-1], columns["observations"][1:])
    stops = np.flatnonzero(ends | np.append(torn, True))
    lengths = np.diff(stops, prepend=-1)
    cut = ~ends[stops]
    limits = np.unique(lengths[cut])
    if (limits == 1).any() and len(ends) > 1:
        raise SchemaError(
            f"{where}, next_observations: that of row {int(stops[cut & (lengths == 1)][0])} is not the "
            "observation of the next one, and neither was the one before; so these are not next observations."
        )
    if len(limits) > 1 or (len(limits) and lengths.max() > limits[0]):
        raise SchemaError(
            f"{where}: episodes that no terminal ends have {limits.min()} to {limits.max()} steps, and the "
            f"longest of all {lengths.max()}; expected one time limit."
        )
    timeouts = np.zeros(len(ends), bool)
    timeouts[stops[cut]] = True
    return int(limits[0]) if len(limits) else 0, timeouts


def is_neorl2(files: Sequence[Path]) -> bool:
    """Return whether Parquet files have the columns of NeoRL-2, and no others."""
    if any(file.suffix.lower() not in ENDINGS for file in files):
        return False
    try:
        return _parts(column_names(files[0], str(files[0]))) is not None
    except (MissingExtraError, OrlogError):
        return False


FORMAT = Format(
    name="neorl2-parquet",
    open=_open,
    recognizes=is_neorl2,
    extensions=ENDINGS,
    shares=True,
    check=check_pyarrow,
    reads=("**",),
)
