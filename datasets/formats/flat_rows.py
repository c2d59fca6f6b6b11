"""D4RL's, DSRL's and NeoRL-2's files and npz files of scripts: a row for each step, and flags that say where episodes ended.

    observations actions rewards terminals [timeouts] [next_observations] and more, all of S rows

An episode ends at a terminal, a timeout, the horizon, the last row, or where `next_observations` is not the
observation that follows. Where there are no next observations, what followed the last step of an episode
was never recorded: an episode that no terminal ends loses that step, whose observation is the final
one; one that a terminal ends keeps it, with a final observation of zeros, and
`episodes/final_observation_missing` is true. A file with neither `timeouts` nor `next_observations` does not say where the time
limit ended an episode; the environment's horizon does, and without it the file is refused.

D4RL (Fu and others, 2020) and DSRL, which adds `costs`, write HDF5; infos with a row a step are kept, `metadata` names the policy.

npz files have other names too, as NeoRL-2, Stable-Baselines and many scripts write them (`NAMES`); all other arrays of S rows
become infos. Where a file has no flag of its own for time limits, `dones` may hold them too; that is told. Of Stable-Baselines'
`episode_starts` it is not known how an episode ended; its `episode_returns` are compared with the sums of rewards. NeoRL-2's
`index`, the first row of each episode, must agree with the flags. Files named `..-train` and `..-val` make one dataset, whose
`episodes/split` is `train` or `val`. https://github.com/polixir/NeoRL2, https://stable-baselines.readthedocs.io

NeoRL-2's Parquet files (`polixirai/NeoRL2` on Hugging Face) hold lists of floats, or columns `obs_0`, `obs_1`, ..; each is read
whole, the largest one takes 45 MB. Without a column for time limits, an episode ends where a next observation is not the
observation that follows: all episodes that no terminal ends must then have the same length, the time limit, and no other a greater one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from orlog.datasets.formats import arrays
from orlog.datasets.formats.array_files import (
    LazyColumn,
    NpzFile,
    check_stored,
    child,
    create_hdf5,
    datasets_in,
    has_child,
    is_npz,
    look_inside,
    names_in,
    npz_writer,
    numbers,
    open_hdf5,
    open_npz,
    reading,
    reading_npz,
)
from orlog.datasets.formats.arrow_files import array_of, check_pyarrow, column_names, parquet_batches, reading_arrow
from orlog.datasets.formats.episode_cutter import MISSING, unknown_ends
from orlog.datasets.formats.episodes import Asked, Opened, Options, Steps
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import ArrayLayout, count_from_zero, open_layout
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.places import Place, Places, given_files
from orlog.datasets.formats.safe_reading import rows_differ
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import IntegrityError, MissingExtraError, OrlogError, SchemaError
from orlog.manifests.counterparts import BenchmarkEnvironment
from orlog.manifests.names import counted

MOST_FACTS = 256
LONGEST = 200  # characters of a text of the metadata
CHUNK_BYTES = 2**18  # several fit into HDF5's cache, so each is compressed once
LAYOUT, DSRL, COLUMNS = "D4RL's layout", "DSRL's layout", "orlog_columns"
ROLES = {
    "observations": "observation",
    "next_observations": "next_observation",
    "actions": "action",
    "rewards": "reward",
    "terminals": "terminated",
    "timeouts": "truncated",
}
"""What D4RL's names of columns are here."""
OPTIONAL = ("timeouts", "next_observations")
KEYS = ("observations", "actions", "rewards", "terminals", *OPTIONAL)
DSRL_KEYS = (*KEYS, "costs")
CODES = {"last_rows": "last_steps", "finals_missing": "finals_missing_at_terminals"}
LAST = (
    *("ends_of_some_unknown", "ends_by_success", "ends_by_horizon", *CODES.values()),
    *("ends_at_joints", "choices_of_file", "left_out_no_rows"),
)
"""Codes of notes in the order in which versions have them, after all others."""
NAMES = {
    "observations": ("observations", "observation", "obs", "obs_old"),
    "actions": ("actions", "action", "acts", "act"),
    "rewards": ("rewards", "reward", "rews", "rew"),
    "terminals": ("terminals", "terminations", "terminated", "terminal", "dones", "done"),
    "timeouts": ("timeouts", "truncations", "truncated"),
    "next_observations": ("next_observations", "next_observation", "next_obs", "obs_new"),
}
NEEDED = ("observations", "actions", "rewards")
STARTS, RETURNS, INDEX = "episode_starts", "episode_returns", "index"
SPLITS = ("train", "val")
TABLES = (".parquet", ".pq")
TABLE_NAMES = {
    "observations": "observations|obs",
    "actions": "actions?",
    "rewards": "rewards?",
    "terminals": "terminals|done",
    "timeouts": "timeouts|truncated",
    "next_observations": "next_observations|next_obs",
}
BLOCK_ROWS = 2**13
File = tuple[Path, str]
FLAT = ArrayLayout(
    columns={**{role: key for key, role in ROLES.items()}, "infos/infos": "infos", "infos/*": "infos/*"},
    episode="",
    codes=("rewards_no_array", "left_out_no_rows"),
    says=("terminated",),
    has_joints=True,
)


@contextlib.contextmanager
def _open_flat(
    asked: Asked,
    open_file: Callable[[File, Options], Generator[Place]],
    splits: Sequence[str] = (),
    benchmark: BenchmarkEnvironment | None = None,
    **fields: Any,
) -> Iterator[Opened]:
    """Read files whose places have D4RL's names; `splits` are what each is named for, `fields` more of the layout."""
    split_of = dict(zip(asked.sources, splits, strict=True)) if splits and all(splits) else {}

    def about(place: Place) -> tuple[Mapping[str, Any], None]:
        return {"split": split_of[place.where]} if split_of else {}, None

    places = Places(given_files, open_file)
    layout = dataclasses.replace(FLAT, places=places, about=about, **fields)
    with open_layout(layout, asked) as opened:
        if benchmark is None:
            opened.notes += count_from_zero(opened, "choices_of_file", asked.sources[0])
        else:
            action = benchmark.actions
            space: Any = opened.schema.action_space
            bounded = action.space if action.choices else Box(action.low, action.high, space.shape, space.dtype.type)
            opened.schema = dataclasses.replace(opened.schema, action_space=bounded)
        opened.steps = _with_notes_in_order(opened.steps, opened.notes)
        yield opened


def _with_notes_in_order(steps: Iterator[Steps], notes: list[Note]) -> Iterator[Steps]:
    yield from steps
    notes[:] = [
        Note(
            CODES.get(note.code, note.code),
            note.columns,
            **{"steps" if k == "rows" else k: v for k, v in note.values.items()},
        )
        for note in notes
        if note.code != "vanished"
    ]
    notes.sort(key=lambda note: LAST.index(note.code) if note.code in LAST else -1)


def _place(
    where: str,
    names: Sequence[str],
    column: Callable[[str], Any],
    reading: Callable[[str], AbstractContextManager[None]],
    options: Options,
    *,
    ends: np.ndarray | None = None,
    outside: Sequence[str] = (),
    notes: Sequence[Note] = (),
) -> Place:
    """Return the rows of a file; each call of `column` reads one anew.

    `ends` (S,) bool are the last rows of episodes of which nothing says how they ended. The environment truncates after
    `options.limit` steps: needed where there are neither timeouts nor next observations, and counted only there.
    """
    has_next, has_timeouts = "next_observations" in names, "timeouts" in names
    kept, horizon, all_notes = [*names], options.limit, [*notes]
    timeouts: np.ndarray | None = None
    if has_next:
        before, after = column("observations"), column("next_observations")
        if (before.dtype.newbyteorder("="), before.shape) != (after.dtype.newbyteorder("="), after.shape):
            raise SchemaError(
                f"{where}, next_observations: expected {before.dtype} {before.shape} as in observations, found "
                f"{after.dtype} {after.shape}."
            )
    if ends is None and not (has_next or has_timeouts):
        if horizon is None:
            raise SchemaError(
                f"{where}: has neither timeouts nor next_observations, so nothing says where the time limit ended an episode; "
                "give the environment's time limit in steps, or any number above the longest episode, as horizon=."
            )
        terminals = np.asarray(column("terminals")[:]).reshape(-1) != 0
        timeouts, first = np.zeros(len(terminals), bool), 0
        for end in (*np.flatnonzero(terminals).tolist(), len(terminals)):
            timeouts[first + horizon - 1 : end : horizon] = True  # not at the terminal itself
            first = end + 1
        kept.append("timeouts")
        all_notes.append(Note("ends_by_horizon", horizon=horizon))
    elif ends is None and options.horizon is not None:
        key = "timeouts" if has_timeouts else "next_observations"
        raise SchemaError(
            f"{where}: its {key} say where time limits end episodes; leave horizon={options.horizon} out."
        )
    lengths = [] if ends is None else np.diff(np.flatnonzero(ends), prepend=-1).tolist()

    def opened(name: str) -> Any:
        return timeouts if name == "timeouts" and timeouts is not None else column(name)

    return Place(where, kept, opened, reading, lengths=lengths, outside=outside, notes=all_notes)


@contextlib.contextmanager
def _open_d4rl(asked: Asked) -> Iterator[Opened]:
    asked.only_file(LAYOUT)
    open_file = functools.partial(_d4rl_places, asked.benchmark)
    with _open_flat(asked, open_file, benchmark=asked.benchmark) as opened:
        yield opened


def _d4rl_places(benchmark: BenchmarkEnvironment | None, given: File, options: Options) -> Generator[Place]:
    """Yield the columns of the layout, and all of infos with a row a step."""
    source, where = given
    with open_hdf5(source, where) as file, reading(where):
        size = source.stat().st_size
        _check_complete(file, where)
        nodes = {key: child(file, key, where, LAYOUT) for key in KEYS if key not in OPTIONAL or has_child(file, key)}
        count = nodes["observations"].shape[:1] if hasattr(nodes["observations"], "shape") else ()
        left_out: list[str] = []
        if has_child(file, "infos"):
            group = child(file, "infos", where, LAYOUT)
            if not hasattr(group, "keys"):  # one column, as in the files of D4RL's kitchen
                nodes["infos"] = group
            for name in names_in(group):
                key, node = f"infos/{name}", child(group, name, where, LAYOUT)
                if getattr(node, "shape", None) and node.shape[:1] == count:
                    nodes[key] = node
                else:
                    left_out.append(key)
        columns: dict[str, Any] = {key: numbers(node, f"{where}, {key}", size) for key, node in nodes.items()}
        if benchmark is not None:
            columns["actions"] = _fitting_actions(benchmark, columns["observations"], columns["actions"], where)
        notes = _policy(file, where, size)
        yield _place(where, list(columns), columns.__getitem__, reading, options, outside=left_out, notes=notes)


def _fitting_actions(benchmark: BenchmarkEnvironment, observations: Any, actions: Any, where: str) -> Any:
    """Return the actions, choices as integers; refuse what the benchmark's environment does not have."""
    size, choices = benchmark.actions.size, benchmark.actions.choices
    observation, action = tuple(observations.shape[1:]), tuple(actions.shape[1:])
    wanted = tuple(benchmark.observation_shape) or observation, (size,) if size else ()
    if (observation, () if action == (1,) and not size else action) != wanted:
        raise SchemaError(
            f"{where}: observations {_shown(observation)} and actions {_shown(action)} do not fit "
            f"{benchmark.datasets[0]} (environment {benchmark.name}), which has observations "
            f"{_shown(wanted[0])} and actions {_shown(wanted[1])}."
        )

    def read(start: int, stop: int) -> np.ndarray:  # D4RL stores choices as floats
        stored = np.asarray(actions[start:stop]).reshape(stop - start)
        odd = np.flatnonzero(~np.isin(stored, np.arange(choices)))
        if len(odd):
            expected = f"a number from 0 to {choices - 1}"
            raise SchemaError(
                f"{where}, actions: expected {expected}, found {stored[odd[0]]} at step {start + odd[0]}."
            )
        return stored.astype(np.int64)

    return LazyColumn((len(actions),), np.dtype(np.int64), read) if choices else actions


def _shown(shape: tuple[int, ...]) -> str:
    return f"of {shape[0]}" if len(shape) == 1 else f"of shape {shape}"


def _policy(file: Any, where: str, file_bytes: int) -> list[Note]:
    """Return the note about the behavior policy: its algorithm, iteration and other single values, no weights."""
    facts: dict[str, str] = {}
    group = child(file, "metadata", where, LAYOUT) if has_child(file, "metadata") else {}
    for path, node in datasets_in(group, where):
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
    # Texts of others may have any length; ours have one.
    if COLUMNS not in file.attrs or file.attrs.get_id(COLUMNS).dtype.kind != "S":
        return
    there = {path for path, _ in datasets_in(file, where)}
    for name in np.asarray(file.attrs[COLUMNS]).reshape(-1).tolist():
        text = name.decode("utf-8", "replace")
        if text not in there:
            raise IntegrityError(f"{where}: has no {text:.100}, which was written; copy the file again.", file=where)


def _is_d4rl(files: Sequence[Path]) -> bool:
    needed = ("observations", "actions", "terminals")
    others = ("costs", "episode_terminals")  # of DSRL and d3rlpy
    return look_inside(
        files,
        lambda file: all(has_child(file, key) for key in needed) and not any(has_child(file, key) for key in others),
    )


@contextlib.contextmanager
def _open_dsrl(asked: Asked) -> Iterator[Opened]:
    asked.only_file(DSRL)
    columns = {**{role: key for key, role in ROLES.items()}, "infos/cost": "costs"}
    with _open_flat(asked, _dsrl_places, columns=columns) as opened:
        yield opened


def _dsrl_places(given: File, options: Options) -> Generator[Place]:
    source, where = given
    with open_hdf5(source, where) as file, reading(where):
        size = source.stat().st_size
        columns = {key: numbers(child(file, key, where, DSRL), f"{where}, {key}", size) for key in DSRL_KEYS}
        left_out = [key for key in names_in(file) if key not in DSRL_KEYS]
        yield _place(where, DSRL_KEYS, columns.__getitem__, reading, options, outside=left_out)


@contextlib.contextmanager
def _open_npz_files(asked: Asked) -> Iterator[Opened]:
    splits = [next((s for s in SPLITS if path.stem.endswith(f"-{s}")), "") for path in asked.files]
    with open_npz(asked.files[0], asked.sources[0]) as file:
        says = () if STARTS in file.names and not _named(file).keys() & {"terminals", "timeouts"} else FLAT.says
    with _open_flat(asked, _npz_places, splits, says=says) as opened:
        yield opened


def _named(file: NpzFile) -> dict[str, str]:
    """Return the arrays of a file by their names here."""
    names: dict[str, str] = {}
    for key, others in NAMES.items():
        there = [other for other in others if other in file.names]
        if len(there) > 1:
            raise SchemaError(f"{file.where}: has both {there[0]} and {there[1]}; remove one.")
        names |= dict.fromkeys((key,), there[0]) if there else {}
    for key in NEEDED:
        if key not in names:
            spellings = ", ".join(NAMES[key])
            raise SchemaError(f"{file.where}: has no {key} ({spellings}); its arrays are {', '.join(file.names)}.")
    return names


def _npz_places(given: File, options: Options) -> Generator[Place]:
    path, where = given
    with open_npz(path, where) as file:
        names, notes = _named(file), list[Note]()
        stored, used = dict(names), {*names.values()}
        ends: np.ndarray | None = None
        count = len(file.column(names["observations"]))
        if "terminals" in names:
            is_unclear = names["terminals"] in ("dones", "done")
            if is_unclear and "timeouts" not in names and "next_observations" in names:
                notes.append(Note("ends_or_limits"))
        else:
            stored["terminals"] = ""
            if "timeouts" in names:
                notes.append(Note("ends_are_limits"))
            elif STARTS in file.names:
                ends = np.append(_numbers(file, STARTS, count)[1:] != 0, True)
                used.add(STARTS)
                unknown = unknown_ends(options, where, {f"infos/{name}" for name in file.names})
                is_open = not options.ends and options.horizon is None
                notes += [Note("ends_by_starts", [STARTS])] if is_open else unknown
                if RETURNS in file.names and file.dtype(RETURNS).kind in "iuf":
                    notes += _other_returns(file, names["rewards"], ends)
                    used.add(RETURNS)
            else:
                raise SchemaError(
                    f"{where}: nothing says where episodes end: expected one of "
                    f"{', '.join(NAMES['terminals'])} or {STARTS}.{arrays.FORMAT.describe([path])}"
                )
        if INDEX in file.names and file.shape(INDEX) != (count,):
            _check_index(file, names, ends, count)
            used.add(INDEX)
        left_out = []
        for name in [name for name in file.names if name not in used]:
            if file.shape(name)[:1] == (count,) and file.dtype(name).kind in "biuf":
                stored[f"infos/{name}"] = name
            else:
                left_out.append(name)

        def column(name: str) -> Any:
            return file.column(stored[name]) if stored[name] else np.zeros(count, bool)

        yield _place(where, list(stored), column, reading_npz, options, ends=ends, outside=left_out, notes=notes)


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


def _check_index(file: NpzFile, names: dict[str, str], known: np.ndarray | None, count: int) -> None:
    """Refuse flags that end episodes elsewhere than the first rows of the next ones say."""
    first_rows = _numbers(file, INDEX)
    ends = np.zeros(count, bool) if known is None else known.copy()
    for key in ("terminals", "timeouts"):
        if key in names:
            ends |= _numbers(file, names[key], count) != 0
    starts = np.flatnonzero(np.append(True, ends[:-1]))
    if not np.array_equal(starts, first_rows):
        both = min(len(starts), len(first_rows))
        differ = np.append(starts[:both] != first_rows[:both], True)
        raise SchemaError(
            f"{file.where}, {INDEX}: lists {len(first_rows)} episodes, and the flags end {len(starts)}; they differ from "
            f"episode {int(np.argmax(differ))} on."
        )


def _is_flat_npz(files: Sequence[Path]) -> bool:
    if not all(is_npz(file) for file in files):
        return False
    with open_npz(files[0], str(files[0])) as file:
        if "indices" in file.names and "terminal" in file.names:  # of imitation
            return False
        return all(set(NAMES[name]) & set(file.names) for name in NEEDED)


@contextlib.contextmanager
def _open_neorl2(asked: Asked) -> Iterator[Opened]:
    with _open_flat(asked, _neorl2_places, [_split(file) for file in asked.files]) as opened:
        yield opened


def _split(file: Path) -> str:
    """Return what a file is named for, or its folder."""
    names = [name for name in SPLITS if file.stem.endswith(f"-{name}") or file.parent.name == name]
    return names[0] if names else ""


def _neorl2_places(given: File, options: Options) -> Generator[Place]:
    file, where = given
    columns, notes = _columns_of_table(file, where), list[Note]()
    if "timeouts" not in columns:
        horizon, columns["timeouts"] = _timeouts(columns, where)
        notes = [Note("ends_by_gaps", horizon=horizon)] if horizon else []
    yield _place(where, list(columns), columns.__getitem__, reading_arrow, options, notes=notes)


def _columns_of_table(file: Path, where: str) -> dict[str, np.ndarray]:
    """Return the columns of a table by D4RL's names."""
    names = column_names(file, where)
    parts = _parts(names)
    if parts is None:
        raise SchemaError(f"{where}: expected the columns {', '.join(TABLE_NAMES)} of NeoRL-2, found {names}.")
    blocks: dict[str, list[np.ndarray]] = {name: [] for name in names}
    first = 0
    for batch in parquet_batches(file, where, names, BLOCK_ROWS):
        for name in names:
            blocks[name].append(array_of(batch.column(name), name, where, first))
        first += batch.num_rows
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
    for key, spellings in TABLE_NAMES.items():
        single = [name for name in names if re.fullmatch(spellings, name)]
        spread = [name for name in names if re.fullmatch(rf"({spellings})_\d+", name)]
        spread.sort(key=lambda name: int(name.rpartition("_")[2]))
        numbers = [int(name.rpartition("_")[2]) for name in spread]
        if len(single) + bool(spread) > 1 or numbers != list(range(len(spread))):
            return None
        if single or spread:
            parts[key] = single or spread
    used = {name for several in parts.values() for name in several}
    return parts if used == {*names} and {*TABLE_NAMES} - parts.keys() <= {"timeouts"} else None


def _timeouts(columns: dict[str, np.ndarray], where: str) -> tuple[int, np.ndarray]:
    """Return the time limit, if one ended an episode, and where it did, (rows,) bool."""
    now, after = columns["observations"], columns["next_observations"]
    if now.shape != after.shape or now.dtype != after.dtype:
        raise SchemaError(
            f"{where}, next_observations: expected {now.dtype} {now.shape}, found {after.dtype} {after.shape}."
        )
    ends = columns["terminals"].reshape(-1) != 0
    stops = np.flatnonzero(ends | np.append(rows_differ(after[:-1], now[1:]), True))
    lengths = np.diff(stops, prepend=-1)
    cut = ~ends[stops]
    limits = np.unique(lengths[cut])
    if (limits == 1).any() and len(ends) > 1:
        row = int(stops[cut & (lengths == 1)][0])
        raise SchemaError(f"{where}, next_observations: from row {row} on, these are not next observations.")
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
    if any(file.suffix.lower() not in TABLES for file in files):
        return False
    try:
        return _parts(column_names(files[0], str(files[0]))) is not None
    except (MissingExtraError, OrlogError):
        return False


def file_stem(dataset: Dataset) -> str:
    """Return what a file of the dataset is called: the last part of its name."""
    return dataset.name.rpartition("/")[2] or "dataset"


def flat_columns(
    dataset: Dataset, progress: Callable[[int, int], None], *, tells_episodes: bool = False
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the rows of each episode, by the names that D4RL has for them.

    These are `observations`, `next_observations`, `actions`, `rewards`,
    `terminals`, `timeouts` and `infos/NAME`. Of a Dict each part is a column, as `observations/NAME`.

    An episode that just stopped has a timeout at its last row, as otherwise nothing would end it, unless the
    files tell episodes apart by something else (`tells_episodes`).
    """
    done = 0
    for episode in dataset:
        count, timeouts = len(episode.rewards), episode.truncations
        if not tells_episodes:
            timeouts = timeouts | ((np.arange(count) == count - 1) & ~episode.terminations)
        observations = {"": episode.observations}
        if isinstance(episode.observations, dict):
            observations = {f"/{part}": values for part, values in episode.observations.items()}
        infos = episode.infos.items()
        yield {
            **{f"observations{part}": values[:-1] for part, values in observations.items()},
            **{f"next_observations{part}": values[1:] for part, values in observations.items()},
            "actions": episode.actions,
            "rewards": episode.rewards,
            "terminals": episode.terminations,
            "timeouts": timeouts,
            **{f"infos/{name}": info for name, info in infos if isinstance(info, np.ndarray)},
        }
        done += count
        progress(done, dataset.total_steps)


def stop_losses(dataset: Dataset, becomes: str) -> list[str]:
    """Say that unfinished episodes become something else in files that have no word for it."""
    ends = dataset.column("terminations").astype(bool) | dataset.column("truncations").astype(bool)
    stopped = int(np.count_nonzero(~ends[np.cumsum(dataset.episode_lengths) - 1]))
    return [f"{counted(stopped, 'unfinished episode')} will become {becomes}."] if stopped else []


def flat_losses(dataset: Dataset, what: str, *, takes_parts: bool = False, tells_episodes: bool = False) -> list[str]:
    """Say what flat columns of files such as "D4RL's files" cannot hold; refuse spaces that they have no place for.

    They may hold parts of a Dict of observations, and tell episodes apart by something else than their ends.
    """
    observations, actions = dataset.observation_space, dataset.action_space
    parts: list[Any] = [observations]
    if takes_parts and isinstance(observations, Dict):
        parts = [*observations.values()]
    for part in parts:
        if not isinstance(part, Box):
            raise SchemaError(f"{dataset.name}: {what} hold observations that are Box, found {part}.")
    if not isinstance(actions, Box | Discrete):
        raise SchemaError(f"{dataset.name}: {what} hold actions that are Box or Discrete, found {actions}.")
    extras, variable = dataset.schema.extras, dataset.schema.variable
    lost = [name for name in extras if name.startswith("episodes/") or (name.startswith("infos/") and name in variable)]
    losses = [f"These columns are lost: {', '.join(lost)}."] if lost else []
    if f"episodes/{MISSING}" in lost:
        losses.append("Final observations that are not known become zeros.")
    if (dataset.column("episodes/seeds") >= 0).any():
        losses.append("Seeds of episodes are lost.")
    return losses if tells_episodes else [*losses, *stop_losses(dataset, "truncated")]


def demonstration_losses(dataset: Dataset, what: str, *, own: Collection[str]) -> list[str]:
    """Say what recordings of demonstrations cannot hold, which have rows of observations and actions alone.

    `own` are names that the files have for something else than a part of the observations.
    """
    losses = flat_losses(dataset, what, takes_parts=True, tells_episodes=True)
    space = dataset.observation_space
    taken = [part for part in space if part in own] if isinstance(space, Dict) else []
    if taken:
        raise SchemaError(f"{dataset.name}: {what} have another meaning for {taken[0]}; rename this part.")
    infos = [name for name in dataset.schema.extras if name.startswith("infos/")]
    infos = [name for name in infos if name not in own and name not in dataset.schema.variable]
    losses += [f"These columns are lost: {', '.join(infos)}."] if infos else []
    return [
        *losses,
        "How episodes ended is lost.",
        "The last observation of each episode is lost, and with it what came of its last action.",
    ]


def _write_d4rl(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
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


def _write_npz(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write `NAME.npz` by the first of the names above."""
    with npz_writer(folder / f"{file_stem(dataset)}.npz") as add:
        for rows in flat_columns(dataset, progress):
            add({key.removeprefix("infos/"): values for key, values in rows.items()})


def _npz_losses(dataset: Dataset) -> list[str]:
    """Say what the files cannot hold."""
    taken = {f"infos/{other}" for others in NAMES.values() for other in (*others, STARTS, INDEX)}
    clash = sorted(taken & dataset.schema.extras.keys())
    if clash:
        raise SchemaError(
            f"{dataset.name}: in an npz file {clash[0]} means something else; leave it out: select_columns."
        )
    return flat_losses(dataset, "npz files")


FORMATS = {
    "d4rl": Format(
        name="d4rl-hdf5",
        open=_open_d4rl,
        recognizes=_is_d4rl,
        extensions=(".hdf5", ".h5"),
        options=("horizon",),
        takes_benchmark=True,
        notes_in_lineage=False,
        write=_write_d4rl,
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
    "neorl2": Format(
        name="neorl2-parquet",
        open=_open_neorl2,
        recognizes=is_neorl2,
        extensions=TABLES,
        shares=True,
        check=check_pyarrow,
        reads=("**",),
    ),
    "npz": Format(
        name="npz",
        open=_open_npz_files,
        recognizes=_is_flat_npz,
        extensions=(".npz",),
        options=("horizon", "ends"),
        shares=True,
        write=_write_npz,
        losses=_npz_losses,
        reads=("**",),
    ),
}
