"""Reads NeoRL-2's Parquet files (Gao and others, 2025), as `polixirai/NeoRL2` on Hugging Face holds them.

    NAME/train/NAME-train.parquet, NAME/val/NAME-val.parquet, with a row for each step and the columns
        observations  next_observations     lists of floats
        actions                             lists of floats
        rewards  terminals                  one number

Columns may have the names of the npz files too (`obs`, `action`, .., `truncated`), or be spread over several
(`obs_0`, `obs_1`, ..). Both files make one dataset, whose `episodes/split` is `train` or `val`. Without a column for
time limits, an episode ends where a next observation is not the observation that follows: all episodes that
no terminal ends must then have the same length, the time limit, and no other a greater one.
https://github.com/polixir/NeoRL2, whose npz files `formats/npz.py` reads
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats._shared.arrow_files import (
    array_of,
    check_pyarrow,
    parquet_batches,
    reading_arrow,
)
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options
from orlog.datasets.formats._shared.flat_rows import FlatRows, open_flat_rows
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.pieces import open_each
from orlog.datasets.formats._shared.row_bytes import rows_differ
from orlog.datasets.formats.formats import Format
from orlog.errors import IntegrityError, MissingExtraError, OrlogError, SchemaError

ENDINGS = (".parquet", ".pq")
NAMES = {
    "observations": ("observations", "obs"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "terminals": ("terminals", "done"),
    "timeouts": ("timeouts", "truncated"),
    "next_observations": ("next_observations", "next_obs"),
}
OPTIONAL = "timeouts"
SPLITS = ("train", "val")
BLOCK_ROWS = 2**13
"""Rows that are read at once."""


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    with open_each(asked, _open_file, [_split(file) for file in asked.files]) as opened:
        yield opened


def _split(file: Path) -> str:
    """Return what a file is named for, or its folder."""
    for name in SPLITS:
        if file.stem.endswith(f"-{name}") or file.parent.name == name:
            return name
    return ""


@contextlib.contextmanager
def _open_file(file: Path, where: str, _options: Options) -> Iterator[Opened]:
    with reading_arrow(where):
        parts = _parts(_names(file))
        if parts is None:
            raise SchemaError(
                f"{where}: expected the columns {', '.join(NAMES)} of NeoRL-2, found {_names(file)}."
            )
        columns: dict[str, Any] = {
            key: _Column(file, names, f"{where}, {names[0]}") for key, names in parts.items()
        }
        rows = FlatRows(columns, where, infos={})  # refuses columns that do not belong together
        notes = []
        if OPTIONAL not in columns:
            horizon, columns[OPTIONAL] = _timeouts(file, parts, where)
            if horizon:
                notes.append(Note("ends_by_gaps", horizon=horizon))
            rows = FlatRows(columns, where, infos={})
    opened = open_flat_rows(rows, Options(), reading_arrow)
    yield dataclasses.replace(opened, notes=notes)


def _parts(names: Sequence[str]) -> dict[str, list[str]] | None:
    """Return the names of the columns of each role; None if they are not those of NeoRL-2."""
    found: dict[str, list[str]] = {}
    for key, others in NAMES.items():
        spread = [re.compile(rf"{other}_(\d+)") for other in others]
        several = sorted(
            (int(match[1]), name)
            for name in names
            for one in spread
            if (match := one.fullmatch(name))
        )
        single = [name for name in names if name in others]
        if len(single) + bool(several) > 1 or [n for n, _ in several] != list(range(len(several))):
            return None
        if single or several:
            found[key] = single or [name for _, name in several]
    used = {name for several in found.values() for name in several}
    return found if used == set(names) and NAMES.keys() - found.keys() <= {OPTIONAL} else None


def _timeouts(file: Path, parts: dict[str, list[str]], where: str) -> tuple[int, np.ndarray]:
    """Return the time limit, if one ended an episode, and where it did.

    Raises SchemaError if episodes that no terminal ends have different lengths.
    """
    keys = ("observations", "next_observations", "terminals")
    columns = {key: _Column(file, parts[key], where) for key in keys}
    count = len(columns["terminals"])
    ends, torn = [], []
    last = np.zeros_like(columns["next_observations"].held[:1])
    for start in range(0, count, BLOCK_ROWS):
        block = {key: one[start : start + BLOCK_ROWS] for key, one in columns.items()}
        ends.append(start + np.flatnonzero(block["terminals"].reshape(-1)))
        expected = np.concatenate((last, block["next_observations"][:-1]))
        torn.append(start - 1 + np.flatnonzero(rows_differ(expected, block["observations"])))
        last = block["next_observations"][-1:]
    flagged = np.concatenate(ends)
    # Before the first row there is none that it could follow.
    stops = np.union1d(flagged, np.append(np.setdiff1d(np.concatenate(torn), [-1]), count - 1))
    lengths = np.diff(np.append(-1, stops))
    cut = ~np.isin(stops, flagged)
    limits = np.unique(lengths[cut])
    if (limits == 1).any() and count > 1:
        raise SchemaError(
            f"{where}, next_observations: that of row {int(stops[cut & (lengths == 1)][0])} is not the "
            "observation of the next one, and neither was the one before; so these are not next observations."
        )
    if len(limits) > 1 or (len(limits) and lengths.max() > limits[0]):
        raise SchemaError(
            f"{where}: episodes that no terminal ends have {limits.min()} to {limits.max()} steps, and the "
            f"longest of all {lengths.max()}; expected one time limit."
        )
    timeouts = np.zeros(count, bool)
    timeouts[stops[cut]] = True
    return int(limits[0]) if len(limits) else 0, timeouts


class _Column:
    """One column of a file, or several as one, whose rows are read in order.

    Attributes:
        shape: Rows, and the numbers in each.
        dtype: What numbers it holds.
        held: Rows that were read and not yet given.
    """

    def __init__(self, file: Path, names: list[str], where: str) -> None:
        """Read the first rows.

        Raises SchemaError if there are none, or they hold other things than numbers.
        """
        import pyarrow.parquet

        self._where = where
        with pyarrow.parquet.ParquetFile(file, page_checksum_verification=True) as table:
            count = table.metadata.num_rows
        self._blocks = _blocks(file, names, where)
        self.held = next(self._blocks, np.zeros(0))
        self._first = 0  # row of the first one that is held
        if not len(self.held) or self.held.dtype.kind not in "biuf":
            raise SchemaError(f"{where}: expected rows of numbers, found {self.held.dtype}.")
        self.shape: tuple[int, ...] = (count, *self.held.shape[1:])
        self.dtype = self.held.dtype

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows; the first must follow the last of the call before.

        Raises IntegrityError if the file has fewer than it says, or is damaged.
        """
        count = rows.indices(len(self))[1] - self._first
        parts, found = [self.held], len(self.held)
        while found < count:
            more = next(self._blocks, None)
            if more is None:
                raise IntegrityError(f"{self._where}: expected {len(self)} rows.", file=self._where)
            parts.append(more)
            found += len(more)
        self.held = np.concatenate(parts) if len(parts) > 1 else self.held
        taken, self.held = self.held[:count], self.held[count:]
        self._first += count
        return taken


def _blocks(file: Path, names: list[str], where: str) -> Iterator[np.ndarray]:
    first = 0
    for batch in parquet_batches(file, where, names, BLOCK_ROWS):
        parts = [array_of(batch.column(name), name, where, first) for name in names]
        yield np.stack(parts, axis=-1) if len(parts) > 1 else parts[0]
        first += batch.num_rows


def _names(file: Path) -> list[str]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(file, page_checksum_verification=True) as table:
        return list(table.schema_arrow.names)


def is_neorl2(files: Sequence[Path]) -> bool:
    """Return whether Parquet files have the columns of NeoRL-2, and no others."""
    if any(file.suffix.lower() not in ENDINGS for file in files):
        return False
    try:
        with reading_arrow(str(files[0])):
            return _parts(_names(files[0])) is not None
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
