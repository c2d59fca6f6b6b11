"""Reads and writes npz files with a row for each step, as NeoRL-2, Stable-Baselines and many scripts write them.

    observations  or obs, obs_old                (S, n)      actions  or action, acts, act         (S, m)
    rewards       or reward, rews, rew           (S,)        terminals .. done, or episode_starts
    timeouts      or truncations, truncated      (S,)        next_observations, next_obs, obs_new  (S, n)

All other arrays of S rows become infos. `flat_rows.py` says how rows become episodes.
Where a file has no flag of its own for time limits, `dones` may hold them too; that is told. Of
Stable-Baselines' `episode_starts` it is not known how an episode ended (`flags.py`); its `episode_returns` are
compared with the sums of rewards.
NeoRL-2's `index`, the first row of each episode, must agree with the flags. Files named `..-train` and
`..-val` make one dataset, whose `episodes/split` is `train` or `val`.
https://github.com/polixir/NeoRL2, https://stable-baselines.readthedocs.io
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats import arrays
from orlog.datasets.formats.episodes import Asked, Opened, Options
from orlog.datasets.formats.flags import unknown_ends
from orlog.datasets.formats.flat_rows import (
    NO_ENDS,
    FlatRows,
    count_choices,
    file_stem,
    flat_columns,
    flat_losses,
    open_flat_rows,
)
from orlog.datasets.formats.formats import Format, Note
from orlog.datasets.formats.npz_files import NpzFile, is_npz, npz_writer, open_npz, reading_npz
from orlog.datasets.formats.pieces import open_each
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError

NAMES = {
    "observations": ("observations", "observation", "obs", "obs_old"),
    "actions": ("actions", "action", "acts", "act"),
    "rewards": ("rewards", "reward", "rews", "rew"),
    "terminals": ("terminals", "terminations", "terminated", "terminal", "dones", "done"),
    "timeouts": ("timeouts", "truncations", "truncated"),
    "next_observations": ("next_observations", "next_observation", "next_obs", "obs_new"),
}
NEEDED = ("observations", "actions", "rewards")
STARTS = "episode_starts"
RETURNS = "episode_returns"
INDEX = "index"
SPLITS = ("train", "val")


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    splits = [next((s for s in SPLITS if one.stem.endswith(f"-{s}")), "") for one in asked.files]
    with open_each(asked, _open_file, splits) as opened:
        yield opened


@contextlib.contextmanager
def _open_file(path: Path, where: str, options: Options) -> Iterator[Opened]:
    with open_npz(path, where) as file:
        notes: list[Note] = []
        opened = open_flat_rows(_rows(file, path, notes, options), options, reading_npz)
        opened.notes[:0] = notes
        yield opened


def _rows(file: NpzFile, path: Path, notes: list[Note], options: Options) -> FlatRows:
    """Return the columns of a file by their names here."""
    names: dict[str, str] = {}
    for key, others in NAMES.items():
        there = [other for other in others if other in file.names]
        if len(there) > 1:
            raise SchemaError(f"{file.where}: has both {there[0]} and {there[1]}; remove one.")
        names |= dict.fromkeys((key,), there[0]) if there else {}
    for key in NEEDED:
        if key not in names:
            raise SchemaError(
                f"{file.where}: has no {key} ({', '.join(NAMES[key])}); its arrays are {', '.join(file.names)}."
            )
    columns: dict[str, Any] = {key: file.column(name) for key, name in names.items()}
    used, ends, count = {*names.values()}, NO_ENDS, len(columns["observations"])
    if "terminals" in names:
        is_unclear = names["terminals"] in ("dones", "done")
        if is_unclear and "timeouts" not in names and "next_observations" in names:
            notes.append(Note("ends_or_limits"))
    else:
        columns["terminals"] = np.zeros(count, bool)
        if "timeouts" in names:
            notes.append(Note("ends_are_limits"))
        elif STARTS in file.names:
            ends = np.append(_numbers(file, STARTS, count)[1:] != 0, True)
            used.add(STARTS)
            infos = {f"infos/{name}" for name in file.names}
            unknown = unknown_ends(options, file.where, infos)
            is_open = not options.ends and options.horizon is None
            notes += [Note("ends_by_starts", [STARTS])] if is_open else unknown
            if RETURNS in file.names and file.dtype(RETURNS).kind in "iuf":
                notes += _other_returns(file, names["rewards"], ends)
                used.add(RETURNS)
        else:
            raise SchemaError(
                f"{file.where}: nothing says where episodes end: expected one of "
                f"{', '.join(NAMES['terminals'])} or {STARTS}.{arrays.FORMAT.describe([path])}"
            )
    if INDEX in file.names and file.shape(INDEX) != (count,):
        _check_index(file, names, ends, count)
        used.add(INDEX)
    infos_of, left_out = {}, []
    for name in [name for name in file.names if name not in used]:
        if file.shape(name)[:1] == (count,) and file.dtype(name).kind in "biuf":
            columns[f"infos/{name}"] = file.column(name)
            infos_of[name] = f"infos/{name}"
        else:
            left_out.append(name)
    choices = count_choices(file.column(names["actions"]), file.where)
    return FlatRows(columns, file.where, infos=infos_of, left_out=left_out, ends=ends, choices=choices)


def _numbers(file: NpzFile, name: str, rows: int | None = None) -> np.ndarray:
    """Return a whole array of one number a row, of `rows` rows."""
    column = file.column(name)  # a stream of its own, besides the one for steps
    count = len(column) if rows is None else rows
    if column.shape not in ((count,), (count, 1)):
        what = "one number a row" if rows is None else f"{rows} rows as in observations"
        raise SchemaError(f"{file.where}, {name}: expected {what}, found {column.shape}.")
    return column[:count].reshape(-1)


def _other_returns(file: NpzFile, rewards: str, ends: np.ndarray) -> list[Note]:
    """Note which returns of episodes are not the sums of their rewards."""
    stated = _numbers(file, RETURNS)
    values = _numbers(file, rewards, len(ends))
    sums = np.diff(np.cumsum(values, dtype=np.float64)[ends], prepend=0)
    if len(stated) != len(sums):
        return [Note("returns_of_others", [RETURNS], numbers=len(stated), episodes=len(sums))]
    odd = np.flatnonzero(~np.isclose(stated, sums, rtol=1e-3, atol=1e-3))
    if not len(odd):
        return []
    first = int(odd[0])
    differ = {"first": first, "stated": stated[first], "summed": sums[first]}
    return [Note("returns_differ", [RETURNS], episodes=len(odd), **differ)]


def _check_index(file: NpzFile, names: dict[str, str], known: np.ndarray, count: int) -> None:
    """Refuse flags that end episodes elsewhere than the first rows of the next ones say."""
    first_rows = _numbers(file, INDEX)
    ends = known.copy() if len(known) else np.zeros(count, bool)
    for key in ("terminals", "timeouts"):
        if key in names:
            ends |= _numbers(file, names[key], count) != 0
    starts = np.flatnonzero(np.append(True, ends[:-1]))
    if not np.array_equal(starts, first_rows):
        both = min(len(starts), len(first_rows))
        differ = np.append(starts[:both] != first_rows[:both], True)
        raise SchemaError(
            f"{file.where}, {INDEX}: lists {len(first_rows)} episodes, and the flags end "
            f"{len(starts)}; they differ from episode {int(np.argmax(differ))} on."
        )


def _recognizes(files: Sequence[Path]) -> bool:
    if not all(is_npz(file) for file in files):
        return False
    with open_npz(files[0], str(files[0])) as file:
        if "indices" in file.names and "terminal" in file.names:  # of imitation
            return False
        return all(set(NAMES[name]) & set(file.names) for name in NEEDED)


def _write(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write `NAME.npz` by the first of the names above."""
    with npz_writer(folder / f"{file_stem(dataset)}.npz") as add:
        for rows in flat_columns(dataset, progress):
            add({key.removeprefix("infos/"): values for key, values in rows.items()})


def _losses(dataset: Dataset) -> list[str]:
    """Say what the files cannot hold."""
    taken = {f"infos/{other}" for others in NAMES.values() for other in (*others, STARTS, INDEX)}
    clash = sorted(taken & dataset.schema.extras.keys())
    if clash:
        raise SchemaError(
            f"{dataset.name}: in an npz file {clash[0]} would mean something else; export a view without "
            "it: select_columns."
        )
    return flat_losses(dataset, "npz files")


FORMAT = Format(
    name="npz",
    open=_open,
    recognizes=_recognizes,
    extensions=(".npz",),
    options=("horizon", "ends"),
    shares=True,
    write=_write,
    losses=_losses,
    reads=("**",),
)
