"""Reads and writes npz files with a row for each step, as NeoRL-2, Stable-Baselines and many scripts write them.

    observations  or obs, obs_old                (S, n)      actions  or action, acts, act         (S, m)
    rewards       or reward, rews, rew           (S,)        terminals .. done, or episode_starts
    timeouts      or truncations, truncated      (S,)        next_observations, next_obs, obs_new  (S, n)

All other arrays of S rows become infos. `_shared/flat_rows.py` says how rows become episodes.
Where a file has no flag of its own for time limits, `dones` may hold them too; that is told. Of
Stable-Baselines' `episode_starts` it is not known how an episode ended (`_shared/flags.py`); its `episode_returns` are
compared with the sums of rewards.
NeoRL-2's `index`, the first row of each episode, must agree with the flags. Files named `..-train` and
`..-val` make one dataset, whose `episodes/split` is `train` or `val`.
https://github.com/polixir/NeoRL2, https://stable-baselines.readthedocs.io
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats import arrays
from orlog.datasets.formats._containers.npz_files import NpzFile, is_npz, open_npz, reading_npz
from orlog.datasets.formats._containers.npz_writing import npz_writer
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options
from orlog.datasets.formats._shared.equal_files import open_each
from orlog.datasets.formats._shared.flags import unknown_ends
from orlog.datasets.formats._shared.flat_rows import (
    NO_ENDS,
    FlatRows,
    count_choices,
    open_flat_rows,
)
from orlog.datasets.formats._shared.flat_writing import file_stem, flat_columns, flat_losses
from orlog.datasets.formats.formats import Format
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
MOST_STARTS = 2**27
SPLITS = ("train", "val")


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    splits = [next((s for s in SPLITS if one.stem.endswith(f"-{s}")), "") for one in asked.files]
    with open_each(asked, _open_file, splits) as opened:
        yield opened


@contextlib.contextmanager
def _open_file(path: Path, where: str, options: Options) -> Iterator[Opened]:
    with open_npz(path, where) as file:
        doubts: list[Any] = []
        opened = open_flat_rows(_rows(file, path, doubts, options), options, reading_npz)
        opened.doubts[:0] = doubts
        yield opened


def _rows(file: NpzFile, path: Path, doubts: list[Any], options: Options) -> FlatRows:
    """Return the columns of a file by their names here."""
    found: dict[str, Any] = {}
    used, ends = set(), NO_ENDS
    for name, others in NAMES.items():
        there = [other for other in others if other in file.names]
        if len(there) > 1:
            raise SchemaError(f"{file.where}: has both {there[0]} and {there[1]}; remove one.")
        if there:
            found[name] = file.column(there[0])
            used.add(there[0])
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise SchemaError(
            f"{file.where}: has no {missing[0]} ({', '.join(NAMES[missing[0]])}); its arrays are "
            f"{', '.join(file.names)}."
        )
    count = len(found["observations"])
    if count > MOST_STARTS and (STARTS in file.names or INDEX in file.names):
        raise SchemaError(
            f"{file.where}: {count:,} rows are too many for files that say where episodes start; "
            "flags of where they end can be read."
        )
    if "terminals" not in found and "timeouts" in found:
        found["terminals"] = np.zeros(count, bool)
        doubts.append("The file has no flag for the end of the task: all ends are time limits.")
    elif "terminals" not in found:
        if STARTS not in file.names:
            raise SchemaError(
                f"{file.where}: nothing says where episodes end: expected one of "
                f"{', '.join(NAMES['terminals'])} or {STARTS}.{arrays.FORMAT.describe([path])}"
            )
        found["terminals"] = np.zeros(count, bool)
        ends = _ends(_small(file, STARTS, count) != 0)
        if len(ends) != count:
            raise SchemaError(
                f"{file.where}, {STARTS}: expected {count} rows as in observations, found {len(ends)}."
            )
        used.add(STARTS)
        told: list[Any] = unknown_ends(
            options, file.where, {f"infos/{name}" for name in file.names}
        )
        if not options.ends and options.horizon is None:
            told = [f"{STARTS} does not say how an episode ended: taken to be truncated."]
        doubts += told
        is_plain = math.prod(found["rewards"].shape) == count
        if is_plain and RETURNS in file.names and file.dtype(RETURNS).kind in "iuf":
            name = next(other for other in NAMES["rewards"] if other in file.names)
            rewards = _small(file, name, count)  # a stream of its own, besides the one for steps
            doubts += _other_returns(_small(file, RETURNS, count), rewards, ends)
            used.add(RETURNS)
    elif used & {"dones", "done"} and "timeouts" not in found and "next_observations" in found:
        doubts.append("The file has no flag for time limits; they may be among its terminals.")
    if INDEX in file.names and file.shape(INDEX) != (count,):
        _check_index(file, found, ends)
        used.add(INDEX)
    infos, left_out = {}, []
    for name in file.names:
        if name in used:
            continue
        if file.shape(name)[:1] == (count,) and file.dtype(name).kind in "biuf":
            found[f"infos/{name}"] = file.column(name)
            infos[name] = f"infos/{name}"
        else:
            left_out.append(name)
    actions = next(other for other in NAMES["actions"] if other in file.names)
    choices = count_choices(file.column(actions), file.where)
    return FlatRows(found, file.where, infos=infos, left_out=left_out, ends=ends, choices=choices)


def _small(file: NpzFile, name: str, most: int) -> np.ndarray:
    """Return a whole array of one number a row."""
    column = file.column(name)
    if len(column) > most or column.shape not in ((len(column),), (len(column), 1)):
        raise SchemaError(f"{file.where}, {name}: expected one number a row, found {column.shape}.")
    return column[: len(column)].reshape(-1)


def _other_returns(said: np.ndarray, rewards: np.ndarray, ends: np.ndarray) -> list[str]:
    """Return which returns of episodes are not the sums of their rewards."""
    sums = np.diff(np.cumsum(rewards, dtype=np.float64)[ends], prepend=0)
    if len(said) != len(sums):
        return [f"{RETURNS} holds {len(said):,} numbers, and there are {len(sums):,} episodes."]
    odd = np.flatnonzero(~np.isclose(said, sums, rtol=1e-3, atol=1e-3))
    if not len(odd):
        return []
    first = int(odd[0])
    of_first = f"of episode {first} it is {said[first]:.6g}, and they sum up to {sums[first]:.6g}"
    return [f"{RETURNS} of {len(odd):,} episodes are not the sums of their rewards: {of_first}."]


def _ends(starts: np.ndarray) -> np.ndarray:
    """Return where episodes end from where they start."""
    return np.append(starts[1:], True)


def _check_index(file: NpzFile, found: dict[str, Any], known: np.ndarray) -> None:
    """Refuse flags that end episodes elsewhere than the first rows of the next ones say."""
    count = len(found["observations"])
    first_rows = _small(file, INDEX, count)
    ends = known.copy() if len(known) else np.zeros(count, bool)
    for name in ("terminals", "timeouts"):
        if name in found:
            key = next((other for other in NAMES[name] if other in file.names), "")
            if not key:  # flags that other arrays gave
                ends |= found[name] != 0
                continue
            flags = _small(file, key, count) != 0  # a stream of its own, besides the one for steps
            if len(flags) != count:
                raise SchemaError(
                    f"{file.where}, {key}: expected {count} rows as in observations, found {len(flags)}."
                )
            ends |= flags
    starts = np.flatnonzero(np.append(True, ends[:-1]))
    if not np.array_equal(starts, first_rows):
        differ = np.flatnonzero(starts[: len(first_rows)] != first_rows[: len(starts)])
        place = int(differ[0]) if len(differ) else min(len(starts), len(first_rows))
        raise SchemaError(
            f"{file.where}, {INDEX}: lists {len(first_rows)} episodes, and the flags end "
            f"{len(starts)}; they differ from episode {place} on."
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
    with npz_writer(folder / f"{file_stem(dataset)}.npz") as writer:
        for rows in flat_columns(dataset, progress):
            writer.add({key.removeprefix("infos/"): values for key, values in rows.items()})


def _losses(dataset: Dataset) -> list[str]:
    """Say what the files cannot hold.

    Raises SchemaError if observations or actions that they have no place for.
    """
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
