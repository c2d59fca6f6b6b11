"""Reads what libraries of learning save: d3rlpy (and writes it), imitation, and RLlib.

d3rlpy: the HDF5 files that d3rlpy's `ReplayBuffer.dump` makes (Seno and Imai, 2022).

    /num_episodes        /version  "2.1"     /columns   names: observations, actions, rewards, terminated
    /observations_0      (T, ..), or /observations_0_0, /observations_0_1 .. of a Tuple
    /actions_0           (T, n), of a choice (T, 1)     /rewards_0 (T, 1)     /terminated_0     one flag

d3rlpy keeps T observations for T actions. `episode_cutter.py` says what becomes of the last row: of an
episode that ended the task its final observation is missing, of any other it is that row's observation.
We write an episode that did not end with one row more, as `to_d3rlpy` does, so that no transition is lost.
`version` and `columns` are not read: texts of any length are where HDF5 itself hangs in damaged files.
Files of d3rlpy 1 are flat: observations, actions, rewards, terminals and episode_terminals.
https://d3rlpy.readthedocs.io

imitation: trajectories (Gleave and others, 2022): a folder that Hugging Face's datasets saved.

    FOLDER/state.json                 names of the files of the table, in order
    FOLDER/data-00000-of-00001.arrow  a row for each trajectory
        obs  (T + 1, ..)   acts  (T, ..)   rews  (T,), where they were recorded
        infos  a text a step, as jsonpickle writes it      terminal  whether the episode ended

Older versions saved an npz file, with the rows of all trajectories and `indices`, where the next ones begin.

`terminal` is also true where a time limit ended the episode: it did where the last info says
`TimeLimit.truncated`; where nothing says so, `episode_cutter.py` has the rule. Otherwise infos are left out:
a jsonpickle can run code, so none is ever decoded. https://imitation.readthedocs.io

RLlib: lines of JSON with a batch of steps each, and Parquet files with a step or an episode a row.

    obs (n, ..)   actions (n, ..)   rewards (n,)   terminateds, truncateds or dones (n,)   [new_obs]   eps_id (n,)
    [action_logp, or the logarithm of action_prob: `infos/action_log_probs`]   [t]

Steps of an episode follow each other, in one line or some, and `eps_id` tells episodes apart. A step that is `done` and not
truncated ended the task. Parquet files with a row for each step have the same columns, and are tables.

A row for each episode (the default of `OfflineSingleAgentEnvRunner`) has one column, `item`: the state of a
`SingleAgentEpisode` as msgpack, whose arrays are dtype, shape and bytes. Where a worker wrote an episode in pieces, they are
joined. With each sample a worker writes a folder, `run-WORKER-NUMBER`, and by default in each all that it wrote before: then
only the last one is read.

Columns that RLlib packed (its default for `obs` and `new_obs` of steps) are pickles and are not read.
https://docs.ray.io/en/latest/rllib/rllib-offline.html
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Episode
from orlog.datasets.formats.array_files import (
    child,
    create_hdf5,
    has_child,
    is_npz,
    look_inside,
    names_in,
    numbers,
    open_hdf5,
    open_npz,
    reading,
    reading_npz,
    write_checked,
)
from orlog.datasets.formats.arrow_files import array_of, check_pyarrow, column_names, open_parquet, reading_arrow
from orlog.datasets.formats.episode_cutter import FLAGS, MISSING, UnknownEnds, flags_of, taken
from orlog.datasets.formats.episodes import Asked, Opened, Options
from orlog.datasets.formats.flat_rows import file_stem
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.inventory import MOST_LOOKED_AT
from orlog.datasets.formats.mapped_arrays import ArrayLayout, as_dtype, count_from_zero, open_layout
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.places import Place, Places, files_below, given_files, in_order
from orlog.datasets.formats.safe_reading import finite_float, numbers_in, read_json_object
from orlog.datasets.formats.table import TABLE
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import IntegrityError, MissingExtraError, OrlogError, SchemaError
from orlog.manifests.names import counted

DUMP_LAYOUT = "the layout of a dump of d3rlpy"
VERSION = "2.1"
DUMPED = ["observations", "actions", "rewards", "terminated"]
OLD_DUMPED = ("observations", "actions", "rewards", "terminals", "episode_terminals")
ENTRY = re.compile(r"(\w+?)_\d+(_\d+)?")
PART = "observations_{}"


@contextlib.contextmanager
def _open_d3rlpy(asked: Asked) -> Iterator[Opened]:
    asked.only_file(DUMP_LAYOUT)
    with open_layout(DUMP, asked) as opened:
        opened.notes += count_from_zero(opened, "choices_of_file", asked.sources[0])
        seen, steps = opened.schema.observation_space, opened.steps
        if isinstance(seen, spaces.Dict):
            names = [PART.format(number) for number in range(len(seen))]
            seen = spaces.Tuple([seen[name] for name in names])
            opened.schema = dataclasses.replace(opened.schema, observation_space=seen)
            opened.steps = (
                dataclasses.replace(step, observations=tuple(step.observations[n] for n in names)) for step in steps
            )
        yield opened


def _d3rlpy_places(given: tuple[Path, str], _options: Options) -> Generator[Place]:
    """Yield the episodes of a file of d3rlpy 2, or the rows of all episodes of one of d3rlpy 1."""
    path, where = given
    with open_hdf5(path, where) as file, reading(where):

        def column(name: str) -> Any:
            node = child(file, name, where, DUMP_LAYOUT)
            return numbers(node, f"{where}, {name}", path.stat().st_size)

        def flags(name: str) -> np.ndarray:
            return flags_of(column(name)[:].reshape(-1), name, where)

        if has_child(file, "terminals"):
            terminated = flags("terminals")
            ends = terminated.copy()
            if has_child(file, "episode_terminals"):
                ends |= flags("episode_terminals")
            ends[-1] = True
            lengths = np.diff(np.flatnonzero(ends), prepend=-1).tolist()
            yield _dump(where, {name: name for name in DUMPED}, column, terminated, lengths)
            return
        count = _value(file, "num_episodes", where)
        if type(count) is not int or not 0 < count <= len(file):
            raise SchemaError(f"{where}: num_episodes is {count!r:.20}, and the file has {len(file)} entries.")
        others = {match[1] for match in map(ENTRY.fullmatch, names_in(file)) if match} - {*DUMPED}
        notes = [Note("left_out_no_meaning", sorted(others))] if others else []
        parts = 0
        if not has_child(file, "observations_0"):
            parts = next(n for n in itertools.count() if not has_child(file, f"observations_0_{n}"))
        for number in range(count):
            names = {name: f"{name}_{number}" for name in DUMPED}
            if parts:
                names.pop("observations")
                names |= {PART.format(n): f"observations_{number}_{n}" for n in range(parts)}
            flag = _value(file, names["terminated"], where)
            if flag not in (0, 1):
                raise SchemaError(f"{where}, {names['terminated']}: expected a flag, found {flag!r:.20}.")
            terminated = np.zeros(len(column(names["actions"])), bool)
            terminated[-1] = flag
            place = _dump(f"{where}, episode {number}", names, column, terminated)
            yield dataclasses.replace(place, notes=notes)


def _dump(
    where: str,
    names: Mapping[str, str],
    column: Callable[[str], Any],
    terminated: np.ndarray,
    lengths: Sequence[int] = (),
) -> Place:
    """Return episodes by the names that their arrays have in the file."""

    def of_name(name: str) -> Any:
        return terminated if name == "terminated" else column(names[name])

    lengths = lengths or [len(terminated)]
    return Place(where, [*names], of_name, reading, lengths=lengths)


def _value(file: Any, name: str, where: str) -> Any:
    """Return the one number of an entry; None if it is none."""
    node = child(file, name, where, DUMP_LAYOUT)
    if getattr(node, "size", None) != 1 or node.dtype.kind not in "biuf":
        return None
    return np.asarray(node[()]).item()


DUMP = ArrayLayout(
    columns={
        "action": "actions",
        "reward": "rewards",
        "terminated": "terminated",
        "observation": "observations",
        "observation/*": PART.format("*"),
    },
    episode="",
    places=Places(given_files, _d3rlpy_places),
)


def _is_d3rlpy(files: Sequence[Path]) -> bool:
    layouts = (("version", "columns", "num_episodes"), OLD_DUMPED)
    return look_inside(files, lambda file: any(all(has_child(file, key) for key in keys) for keys in layouts))


def _write_d3rlpy(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write `NAME.h5`, for d3rlpy's `ReplayBuffer.load`."""
    is_choice = isinstance(dataset.action_space, spaces.Discrete)
    done = 0
    with create_hdf5(folder / f"{file_stem(dataset)}.h5", progress) as (file, progress):
        file["columns"], file["version"] = DUMPED, VERSION
        file["num_episodes"] = len(dataset)
        for number, episode in enumerate(dataset):
            _write_episode(file, number, episode, is_choice)
            done += len(episode.rewards)
            progress(done, dataset.total_steps)


def _write_episode(file: Any, number: int, episode: Episode, is_choice: bool) -> None:
    ended = bool(episode.terminations[-1])
    actions, rewards = episode.actions, episode.rewards
    if not ended:  # a last row for the final observation; its action and reward are never used
        actions = np.concatenate((actions, actions[-1:]))
        rewards = np.append(rewards, rewards.dtype.type(0))
    write_checked(file, f"actions_{number}", actions[:, None] if is_choice else actions)
    write_checked(file, f"rewards_{number}", rewards[:, None])
    file[f"terminated_{number}"] = ended
    if isinstance(episode.observations, tuple):
        for part, values in enumerate(episode.observations):
            write_checked(file, f"observations_{number}_{part}", values[: len(rewards)])
    else:
        write_checked(file, f"observations_{number}", episode.observations[: len(rewards)])


def _d3rlpy_losses(dataset: Dataset) -> list[str]:
    """Say what a dump of d3rlpy cannot hold."""
    seen, action = dataset.observation_space, dataset.action_space
    if not all(isinstance(part, spaces.Box) for part in (seen if isinstance(seen, spaces.Tuple) else [seen])):
        raise SchemaError(f"{dataset.name}: d3rlpy takes observations that are a Box or a Tuple of them, found {seen}.")
    if not isinstance(action, spaces.Box | spaces.Discrete):
        raise SchemaError(f"{dataset.name}: d3rlpy takes actions that are a Box or Discrete, found {action}.")
    known = f"episodes/{MISSING}"
    lost = [name for name in dataset.schema.extras if name != known]
    losses = [f"These columns are lost: {', '.join(lost)}."] if lost else []
    if (dataset.column("episodes/seeds") >= 0).any():
        losses.append("Seeds of episodes are lost.")
    terminations = dataset.column("terminations")
    ended = int(np.count_nonzero(terminations))
    stopped = len(dataset) - int(np.count_nonzero(terminations | dataset.column("truncations")))
    if known in dataset.schema.extras:
        ended -= int(np.count_nonzero(dataset.column(known)))
    if ended:
        losses.append(f"The final observations of {counted(ended, 'episode')} that ended are lost.")
    if stopped:
        losses.append(f"{counted(stopped, 'unfinished episode')} will be taken to be cut off.")
    return losses


D3RLPY = Format(
    name="d3rlpy-hdf5",
    open=_open_d3rlpy,
    recognizes=_is_d3rlpy,
    extensions=(".h5", ".hdf5"),
    write=_write_d3rlpy,
    losses=_d3rlpy_losses,
    check=lambda: import_h5py(),
    reads=(
        *("actions_#", "observations_#**", "rewards_#", "terminated_#"),
        *("columns", "num_episodes", "version", *OLD_DUMPED),
    ),
)


STATE = "state.json"
OF_TRAJECTORY, REWARDS = ("obs", "acts", "terminal"), "rews"
TIME_LIMIT = "TimeLimit.truncated"


@contextlib.contextmanager
def _open_imitation(asked: Asked) -> Iterator[Opened]:
    where = asked.only_file("imitation's layout")[1]
    unknown = UnknownEnds(asked.options, where, are_over=True)
    places = Places(given_files, functools.partial(_open_trajectories, unknown))
    layout = dataclasses.replace(TRAJECTORIES, places=places)
    # What users say of ends is for those that may be time limits alone.
    options = dataclasses.replace(asked.options, ends="", horizon=None)
    with open_layout(layout, dataclasses.replace(asked, options=options)) as opened:
        unclear, how = unknown.count, taken(asked.options, are_over=True)
        unknown.notes()  # refuses what would say nothing
        notes = [Note("left_out_infos", ["infos"]), *count_from_zero(opened, "choices", where)]
        notes += opened.notes
        if unclear:
            notes.append(Note("ends_or_limit_unknown", count=unclear, how=how))
        opened.notes[:] = notes
        yield opened


def _open_trajectories(unknown: UnknownEnds, given: tuple[Path, str], _options: Options) -> Generator[Place]:
    """Yield each trajectory, whose arrays lie in memory, with flags for how it ended."""
    path, where = given
    rows = _from_arrow(_files_of_table(path, where), where) if path.is_dir() else _from_npz(path, where)
    for number, (arrays, is_over, by_limit) in enumerate(rows):
        place, count = f"{where}, trajectory {number}", len(arrays["acts"])
        if len(arrays["obs"]) != count + 1 or not count:
            raise SchemaError(f"{place}: expected one obs more than acts, found {len(arrays['obs'])} and {count}.")
        for name, values in arrays.items():
            if values.dtype.kind not in "iuf" or 0 in values.shape:
                raise SchemaError(f"{place}, {name}: expected numbers, found {values.dtype} of shape {values.shape}.")
        how = "truncated" if by_limit else "terminated"
        if is_over and by_limit is None:
            how = unknown.how(count)
        is_last = np.arange(count) == count - 1
        for flag in FLAGS:
            arrays[flag] = is_last & (is_over and how == flag)
        yield Place(place, sorted(arrays), arrays.__getitem__, reading_arrow)


TRAJECTORIES = ArrayLayout(
    columns={"observation": "obs", "action": "acts", "reward": REWARDS, **{flag: flag for flag in FLAGS}},
    codes=("rewards_no_rews", "left_out_unnamed"),
)
Trajectory = tuple[dict[str, np.ndarray], bool, bool | None]
"""`obs`, `acts` and where they are known `rews`, whether the episode ended, and if it is known by a time limit."""


def _from_arrow(files: Sequence[Path], where: str) -> Iterator[Trajectory]:
    """Yield the rows of the tables."""
    check_pyarrow()
    import pyarrow as pa

    for file in files:
        place = f"{where}, {file.name}"
        with reading_arrow(place), pa.memory_map(str(file)) as source:
            reader = pa.ipc.open_stream(source)
            names = reader.schema.names
            missing = [name for name in OF_TRAJECTORY if name not in names]
            if missing:
                raise SchemaError(f"{place}: has no column {missing[0]}; found {', '.join(names)}.")
            columns = [name for name in ("obs", "acts", REWARDS) if name in names]
            for batch in reader:
                batch.validate(full=True)  # lists that point outside of the file end the process
                lists = {name: _lists(batch.column(name), name, place) for name in columns}
                flags = array_of(batch.column("terminal"), "terminal", place, 0)
                if flags.dtype != bool:
                    raise SchemaError(f"{place}, terminal: expected flags, found {flags.dtype}.")
                for row, flag in enumerate(flags.tolist()):
                    infos = batch.column("infos")[row] if "infos" in names else None
                    yield {name: lists[name][row] for name in columns}, flag, _by_limit(infos)


def _lists(column: Any, name: str, where: str) -> list[np.ndarray]:
    """Return the rows of each trajectory of a column."""
    if not hasattr(column, "value_lengths") or column.null_count:
        raise SchemaError(f"{where}, {name}: expected a list of rows, found {column.type}.")
    stops = np.cumsum(np.asarray(column.value_lengths()))
    return np.split(array_of(column.flatten(), name, where, 0), stops[:-1])


def _by_limit(infos: Any) -> bool | None:
    """Return whether the last info of a trajectory says that a time limit ended it, as plain JSON."""
    if infos is None or not infos.is_valid or not hasattr(infos, "values") or not len(infos.values):
        return None
    text = infos.values[-1].as_py()
    try:
        info = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    by_limit = info.get(TIME_LIMIT) if isinstance(info, dict) else None
    return by_limit if isinstance(by_limit, bool) else None


def _files_of_table(folder: Path, where: str) -> list[Path]:
    """Return the files of a table that Hugging Face's datasets saved."""
    lacking = f"has no {STATE}, so Hugging Face's datasets did not save it."
    state = read_json_object(folder / STATE, where, missing=lacking)
    listed = state.get("_data_files")
    if not isinstance(listed, list) or not listed or state.get("_indices_files"):
        raise SchemaError(f"{where}: {STATE} names no files, or rows in an order of their own: use flatten_indices().")
    here = {path.name: path for path in folder.iterdir() if not path.is_symlink()}
    files = []
    for entry in listed:
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or Path(name).name != name:
            raise SchemaError(f"{where}: {STATE} names {name!r:.50}, expected a file in the folder.")
        if name not in here:
            raise IntegrityError(f"{where}: {name!r:.50} is missing, or a link.", file=where)
        files.append(here[name])
    return files


def _from_npz(path: Path, where: str) -> Iterator[Trajectory]:
    """Yield the trajectories of a file of older versions."""
    with open_npz(path, where) as file:
        names = ["obs", "acts", *({REWARDS} & {*file.names})]
        columns = {name: file.column(name) for name in names}
        terminal = file.column("terminal")
        flags = flags_of(terminal[: len(terminal)], "terminal", where)
        starts = np.zeros(1, np.int64)
        if file.shape("indices") != (0,):  # of a single trajectory
            indices = file.column("indices")
            starts = np.append(starts, indices[: len(indices)].astype(np.int64))
        stops = np.append(starts[1:], len(columns["acts"]))
        if flags.shape != starts.shape or (stops <= starts).any():
            raise SchemaError(f"{where}, indices: expected where each trajectory but the first begins.")
        rows = len(columns["acts"]) + len(starts)
        if len(columns["obs"]) != rows:
            raise SchemaError(f"{where}, obs: expected {rows} rows, found {len(columns['obs'])}.")
        for number, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            arrays = {name: column[start:stop] for name, column in columns.items() if name != "obs"}
            arrays["obs"] = columns["obs"][start + number : stop + number + 1]
            yield arrays, bool(flags[number]), None


def _is_imitation(files: Sequence[Path]) -> bool:
    if len(files) != 1:
        return False
    if is_npz(files[0]):
        with open_npz(files[0], str(files[0])) as file:
            return {*OF_TRAJECTORY, "indices"} <= set(file.names)
    try:
        return any(file.suffix == ".arrow" for file in _files_of_table(files[0], ""))
    except OrlogError:
        return False


IMITATION = Format(
    name="imitation",
    open=_open_imitation,
    recognizes=_is_imitation,
    extensions=("", ".npz"),
    options=("horizon", "ends"),
    reads=("obs", "acts", REWARDS, "terminal", "indices", "infos", "state.json:_**", "dataset_info.json:**"),
)


RLLIB_NEEDED = ("obs", "actions", "rewards", "eps_id")
RLLIB_FLAGS = ("terminateds", "truncateds", "dones")
RLLIB_NAMES = (*RLLIB_NEEDED, "new_obs", *RLLIB_FLAGS, "action_logp", "action_prob", "t")
PACKED = ("obs", "actions", "new_obs")
ITEM = "item"
TABLES = (".parquet", ".pq")
ENDINGS = (".json", *TABLES)
RUN = re.compile(r"(run-\d+)-\d+")
RLLIB_COLUMNS = {
    "observation": "obs",
    "action": "actions",
    "reward": "rewards",
    "next_observation": "new_obs",
    "truncated": "truncateds",
}
RLLIB_ROWS = {**RLLIB_COLUMNS, "terminated": "terminateds", "infos/action_log_probs": "action_logp"}
UNPACK = """
    import base64, glob, json, pickle
    import lz4.frame, numpy as np, pyarrow.parquet as pq  # pip install lz4
    files = {files}
    def unpack(name, value):
        if name == 'eps_id' or not isinstance(value, str): return value
        return pickle.loads(lz4.frame.decompress(base64.b64decode(value)))
    def read(file):
        return map(json.loads, open(file)) if '.json' in file else pq.read_table(file).to_pylist()
    rows = [row for file in files for row in read(file)]
    roles = dict(obs='observations', new_obs='next_observations', actions='actions', rewards='rewards', eps_id='id', t='t',
                 action_logp='action_log_probs', dones='terminals', terminateds='terminals')
    join = np.concatenate if isinstance(rows[0]['eps_id'], list) else np.array
    columns = {{role: join([unpack(name, row[name]) for row in rows]) for name, role in roles.items() if name in rows[0]}}
    order = np.lexsort([columns.pop('t', columns['id']), columns['id']])
    columns = {{role: values[order] for role, values in columns.items()}}
    ids = columns.pop('id')
    last = np.append(ids[1:] != ids[:-1], True)
    done = np.asarray(columns.pop('terminals', 0 * last), bool)
    np.savez('data.npz', **columns, terminals=done, timeouts=last & ~done)
"""
Files = list[tuple[Path, str]]
"""Files, and what errors call them."""


@contextlib.contextmanager
def _open_rllib(asked: Asked) -> Iterator[Opened]:
    given, notes = _without_repeats(_rllib_files(asked))
    first, where = given[0]
    files, sources = zip(*given, strict=True)
    asked = dataclasses.replace(asked, files=files, sources=sources)
    names = column_names(first, where) if first.suffix.lower() in TABLES else []
    if asked.options.sort and not {*RLLIB_NEEDED} <= {*names}:
        raise SchemaError(f"{where}: sort=True is for Parquet files with a row for each step.")
    _refuse_packed(asked)
    reading: AbstractContextManager[Opened]
    if not names:
        reading = open_layout(RLLIB_LINES, asked)
    elif names == [ITEM]:
        reading = open_layout(RLLIB_EPISODES, asked)
    else:
        assert TABLE.open is not None
        columns = {role: name for role, name in RLLIB_ROWS.items() if name in names}
        options = dataclasses.replace(asked.options, columns=columns, episode="eps_id")
        reading = TABLE.open(dataclasses.replace(asked, options=options))
    try:
        with reading as opened:
            opened.notes += notes
            yield opened
    finally:
        _items.cache_clear()


def _rllib_files(asked: Asked) -> Files:
    """Return the files, those of a folder too, in the order of the numbers in their paths."""
    folder, source = asked.files[0], asked.sources[0]
    if not folder.is_dir():
        return in_order(zip(asked.files, asked.sources, strict=True))
    given = files_below(folder, source, lambda file: file.suffix.lower() in ENDINGS)
    if not given:
        raise SchemaError(f"{source}: holds neither JSON nor Parquet files of RLlib.")
    return given


def _without_repeats(given: Files) -> tuple[Files, list[Note]]:
    """Return files but those of runs that the worker's next run holds too, and a note about these."""
    runs: dict[Path, Files] = {}
    for file in given:
        if RUN.fullmatch(file[0].parent.name):
            runs.setdefault(file[0].parent, []).append(file)
    repeated = []
    for run, after in itertools.pairwise(runs):
        if RUN.sub(r"\1", str(run)) == RUN.sub(r"\1", str(after)):  # of one worker
            rows, more = _rows_of(runs[run]), _rows_of(runs[after])
            if more.slice(0, rows.num_rows).equals(rows):
                repeated.append(run)
    notes = [Note("left_out_repeated", [run.name for run in repeated])] if repeated else []
    return [file for file in given if file[0].parent not in repeated], notes


def _rows_of(given: Files) -> Any:
    """Return all rows of Parquet files."""
    import pyarrow as pa

    tables = []
    for file, where in given:
        with reading_arrow(where), open_parquet(file) as opened:
            tables.append(opened.read())
    return pa.concat_tables(tables)


def _refuse_packed(asked: Asked) -> None:
    """Refuse packed columns, by the first row or line, with lines that convert them."""
    file, where, row = asked.files[0], asked.sources[0], None
    if file.suffix.lower() in TABLES:
        with reading_arrow(where), open_parquet(file) as table:
            row = {field.name: field.type for field in table.schema_arrow}
            row = {name: "" for name, kind in row.items() if str(kind).endswith(("string", "binary"))}
    else:
        with file.open("rb") as lines, contextlib.suppress(ValueError, RecursionError):
            row = json.loads(lines.readline())
    for name in PACKED:
        if isinstance(row, dict) and isinstance(row.get(name), str):
            files = repr([str(path) for path in asked.files])
            if len(asked.files) > 4:
                folders = list(dict.fromkeys(str(path.parent) for path in asked.files))
                files = f"[file for folder in {folders} for file in sorted(glob.glob(folder + '/*{file.suffix}'))]"
            raise SchemaError(
                f"{where}, {name}: is packed by RLlib as a pickle, and reading a pickle runs the program in it. Where you "
                f"trust it, convert it yourself:{UNPACK.format(files=files)}Then: orlog import data.npz NAME\n"
                "RLlib writes it plainly with config.offline_data(output_compress_columns=[])."
            )


def _open_lines(given: tuple[Path, str], _options: Options) -> Generator[Place]:
    """Yield a file of lines of JSON, whose arrays lie in memory."""
    file, where = given
    if file.is_symlink():
        raise SchemaError(f"{where}: a link, which is not followed.")
    batches: list[dict[str, np.ndarray]] = []
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            batches.append(_batch(line, f"{where}, line {number}"))
            if odd := batches[0].keys() ^ batches[-1].keys():
                raise SchemaError(f"{where}, line {number}: not all lines have {min(odd)}.")
    if not any(len(batch["actions"]) for batch in batches):
        raise SchemaError(f"{where}: holds no steps.")
    with reading_npz(where):
        arrays = {name: _joined([batch[name] for batch in batches], f"{where}, {name}") for name in batches[0]}
    if "dones" in arrays:
        arrays["terminated"] = arrays["dones"] & ~arrays.get("truncateds", np.False_)
    if "terminateds" in arrays:
        arrays["terminated"] = arrays["terminateds"]
    if "action_prob" in arrays:
        with np.errstate(divide="ignore", invalid="ignore"):
            arrays["action_log_probs"] = np.log(arrays.pop("action_prob"))
    if "action_logp" in arrays:
        arrays["action_log_probs"] = arrays.pop("action_logp")
    names = sorted(arrays.keys() - {"dones", "terminateds"})
    yield Place(where, names, arrays.__getitem__, reading_npz)


def _batch(line: bytes, where: str) -> dict[str, np.ndarray]:
    """Return the columns of a line."""
    try:
        body = json.loads(line, parse_float=finite_float)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where}: no JSON: {error}.", file=where) from error
    if not isinstance(body, dict) or any(name not in body for name in RLLIB_NEEDED):
        raise SchemaError(f"{where}: expected a batch of RLlib with {', '.join(RLLIB_NEEDED)}.")
    columns = {}
    for name in [name for name in RLLIB_NAMES if name in body]:
        if isinstance(body[name], str):
            raise SchemaError(f"{where}, {name}: is packed by RLlib as a pickle, and is not read.")
        with reading_npz(f"{where}, {name}"):
            values = numbers_in(body[name], f"{where}, {name}")
            if values.dtype.kind not in "biuf" or not values.ndim:
                raise SchemaError(f"{where}, {name}: expected numbers, a row a step.")
        columns[name] = values.astype(bool) if name in RLLIB_FLAGS else values
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1:
        raise SchemaError(f"{where}: its columns differ in length: {lengths}.")
    return columns


def _joined(several: Sequence[np.ndarray], where: str) -> np.ndarray:
    """Return the rows of all lines, as numbers that each of them can hold."""
    dtype, starts = np.result_type(*several), np.cumsum([0, *map(len, several)]).tolist()
    parts = zip(several, starts, strict=False)
    return np.concatenate([as_dtype(values, dtype, where, first) for values, first in parts])


class _Buffer(msgspec.Struct):
    """Values of an episode, after some of the piece before it (`lookback`)."""

    data: Any
    lookback: int = 0


class _Piece(msgspec.Struct):
    """An episode, or a piece of one, as `SingleAgentEpisode.get_state` gives it."""

    id_: str
    t_started: int
    observations: _Buffer
    actions: _Buffer
    rewards: _Buffer
    is_terminated: Any
    is_truncated: Any
    extra_model_outputs: dict[str, _Buffer | None] | None = None


class _Lying(NamedTuple):
    """Where a piece lies: its file, a group of rows, the row in it, and what errors call that."""

    file: Path
    group: int
    row: int
    where: str


def _episodes(asked: Asked) -> list[list[_Lying]]:
    """Return where the pieces of each episode lie, in their order; episodes are in that of their first pieces."""
    _items.cache_clear()
    lying: dict[str, list[tuple[int, _Lying]]] = {}
    for file, source in zip(asked.files, asked.sources, strict=True):
        with reading_arrow(source), open_parquet(file) as table:
            groups = table.num_row_groups
        number = 0
        for group in range(groups):
            for row in range(len(_items(file, group, source))):
                place = _Lying(file, group, row, f"{source}, row {number}")
                piece = _piece_at(place)
                lying.setdefault(piece.id_, []).append((piece.t_started, place))
                number += 1
    return [[place for _, place in sorted(several)] for several in lying.values()]


@functools.lru_cache(maxsize=2)
def _items(file: Path, group: int, where: str) -> list[Any]:
    """Return the rows of a group, which is read at once since a row is found by decoding all before it."""
    with reading_arrow(where), open_parquet(file) as table:
        rows: list[Any] = table.read_row_group(group, [ITEM]).column(0).to_pylist()
        return rows


def _piece_at(place: _Lying) -> _Piece:
    source = place.where.rpartition(", row ")[0]
    try:
        return msgspec.msgpack.decode(_items(place.file, place.group, source)[place.row], type=_Piece)
    except (msgspec.MsgspecError, TypeError) as error:
        text = f"{place.where}: cannot be read as an episode of RLlib: {error}."
        raise IntegrityError(text, file=place.where) from error


def _open_episode(lying: Sequence[_Lying], _options: Options) -> Generator[Place]:
    """Yield an episode, whose pieces are joined, unless it has no step."""
    parts: list[dict[str, np.ndarray]] = []
    after = None
    for place in lying:
        piece, where = _piece_at(place), place.where
        if after not in (None, piece.t_started):
            raise SchemaError(
                f"{where}: episode {piece.id_} goes on at step {piece.t_started}, and the piece before it ends "
                f"at step {after}; give all files of the recording."
            )
        with reading_npz(where):
            parts.append(_arrays_of(piece, where))
        after = piece.t_started + len(parts[-1]["rewards"])
    for part in parts[:-1]:  # the next piece begins with its last observation
        part |= {name: part[name][:-1] for name in part if name.split("/")[0] == "obs"}
    with reading_npz(lying[0].where):
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if len(arrays["rewards"]):
        yield Place(lying[0].where, sorted(arrays), arrays.__getitem__, reading_npz)


def _arrays_of(piece: _Piece, where: str) -> dict[str, np.ndarray]:
    """Return the arrays of a piece, those of a Dict of observations as `obs/NAME`."""
    arrays: dict[str, np.ndarray] = {}
    buffers = {"obs": piece.observations, "actions": piece.actions, "rewards": piece.rewards}
    for name, buffer in (*buffers.items(), *(piece.extra_model_outputs or {}).items()):
        if buffer is not None:
            values = _unpacked(buffer.data, name, where)
            arrays |= {key: several[buffer.lookback :] for key, several in values.items()}
    for name, flag in (("terminated", piece.is_terminated), ("truncateds", piece.is_truncated)):
        arrays[name] = np.zeros(len(arrays["rewards"]), bool)
        arrays[name][-1:] = _unpacked(flag, name, where)[name]
    if "action_logp" in arrays:
        arrays["action_log_probs"] = arrays.pop("action_logp")
    return arrays


def _unpacked(value: Any, name: str, where: str) -> dict[str, np.ndarray]:
    """Return what msgpack holds as arrays by their names: an array, a number, or a list or dict of these."""
    if isinstance(value, dict) and b"nd" in value:
        if value.get(b"kind") in (b"O", b"V"):
            raise SchemaError(f"{where}, {name}: holds Python objects, which are not read.")
        array = np.frombuffer(value[b"data"], np.dtype(value[b"type"]))
        return {name: array.reshape(value[b"shape"] if value[b"nd"] else ())}
    if isinstance(value, dict):
        parts = [_unpacked(inner, f"{name}/{key}", where) for key, inner in value.items()]
        return {key: values for part in parts for key, values in part.items()}
    if isinstance(value, list):
        several = [_unpacked(inner, name, where) for inner in value]
        names: Iterable[str] = several[0] if several else [name]
        return {key: np.array([part[key] for part in several]) for key in names}
    return {name: np.asarray(value)}


RLLIB_LINES = ArrayLayout(
    columns={**RLLIB_COLUMNS, "terminated": "terminated", "infos/action_log_probs": "action_log_probs"},
    episode="eps_id",
    places=Places(_rllib_files, _open_lines),
)
RLLIB_EPISODES = ArrayLayout(
    columns={**RLLIB_LINES.columns, "observation/*": "obs/*"}, places=Places(_episodes, _open_episode)
)


def _is_rllib(files: Sequence[Path]) -> bool:
    path = files[0]
    if path.is_dir():
        inside = itertools.islice(path.rglob("*"), MOST_LOOKED_AT)
        path = next((file for file in inside if file.suffix.lower() in ENDINGS), path)
    if path.suffix.lower() in TABLES:
        try:
            names = {*column_names(path, str(path))}
        except (MissingExtraError, OrlogError):
            return False
        return names == {ITEM} or {*RLLIB_NEEDED} <= names
    try:
        with path.open("rb") as file:
            head = file.read(2**16)
    except OSError:
        return False
    return b'"type": "SampleBatch"' in head or all(
        f'"{name}"'.encode() in head for name in ("obs", "actions", "eps_id")
    )


RLLIB = Format(
    name="rllib",
    open=_open_rllib,
    recognizes=_is_rllib,
    extensions=("", *ENDINGS),
    options=("horizon", "ends", "sort"),
    shares=True,
    reads=("type", ITEM, *RLLIB_NAMES, "./*.json"),
)
FORMATS = {"d3rlpy": D3RLPY, "imitation": IMITATION, "rllib": RLLIB}
