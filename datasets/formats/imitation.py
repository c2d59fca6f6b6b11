"""Reads the trajectories of imitation (Gleave and others, 2022): a folder that Hugging Face's datasets saved.

    FOLDER/state.json                 names of the files of the table, in order
    FOLDER/data-00000-of-00001.arrow  a row for each trajectory
        obs  (T + 1, ..)   acts  (T, ..)   rews  (T,), where they were recorded
        infos  a text a step, as jsonpickle writes it      terminal  whether the episode ended

Older versions saved an npz file, with the rows of all trajectories and `indices`, where the next ones begin.

`terminal` is also true where a time limit ended the episode: it did where the last info says
`TimeLimit.truncated`; where nothing says so, `_shared/flags.py` has the rule. Otherwise infos are left out:
a jsonpickle can run code, so none is ever decoded. https://imitation.readthedocs.io
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._shared.arrow_files import array_of, check_pyarrow, reading_arrow
from orlog.datasets.formats._shared.episodes import Asked, Opened, Steps
from orlog.datasets.formats._shared.flags import UnknownEnds, flags_of, taken
from orlog.datasets.formats._shared.flat_rows import as_dtype, count_choices, unbounded_space
from orlog.datasets.formats._shared.json_documents import read_json_object
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.npz_files import NpzColumn, is_npz, open_npz
from orlog.datasets.formats.formats import Format
from orlog.errors import IntegrityError, OrlogError, SchemaError
from orlog.manifests.names import counted

STATE = "state.json"
ARRAYS = ("obs", "acts", "rews")
TIME_LIMIT = "TimeLimit.truncated"


class _Trajectory(NamedTuple):
    """`obs`, `acts` and where they are known `rews`, whether the episode ended, and if it is known by a time limit."""

    arrays: dict[str, np.ndarray]
    terminal: bool
    by_limit: bool | None


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    source, where = asked.only_file("imitation's layout")
    if source.is_dir():
        check_pyarrow()
        trajectories = functools.partial(_from_arrow, _files(source, where), where)
    else:
        trajectories = functools.partial(_from_npz, source, where)
    kinds: dict[str, tuple[Any, ...]] = {}
    steps = choices = unclear = 0
    for number, one in enumerate(trajectories()):
        its = {name: (values.dtype, values.shape[1:]) for name, values in one.arrays.items()}
        kinds = kinds or its
        if its != kinds:
            raise SchemaError(
                f"{where}, trajectory {number}: expected rows of {kinds} as in the first one, found {its}."
            )
        steps += len(one.arrays["acts"])
        choices = max(choices, count_choices(one.arrays["acts"], where))
        unclear += one.terminal and one.by_limit is None
    if not kinds:
        raise SchemaError(f"{where}: holds no trajectory.")
    is_short = kinds.get("rews", ("",))[0] == np.float32
    schema = Schema(
        observation_space=unbounded_space(*kinds["obs"]),
        action_space=spaces.Discrete(choices) if choices else unbounded_space(*kinds["acts"]),
        reward_dtype=np.dtype(np.float32 if is_short else np.float64),
    )
    opened = Opened(schema=schema, steps=iter(()), total_steps=steps)
    opened.notes = [Note("left_out_infos", ["infos"])]
    if choices:
        opened.notes.append(Note("choices", count=choices, largest=choices - 1))
    if "rews" not in kinds and not asked.options.reward:
        opened.notes.append(Note("rewards_no_rews"))
    if unclear:
        how = taken(asked.options, are_over=True)
        opened.notes.append(Note("ends_or_limit_unknown", count=unclear, how=how))
    unknown = UnknownEnds(asked.options, where, are_over=True)
    opened.steps = _steps(trajectories(), opened, unknown, where)
    yield opened


def _steps(
    trajectories: Iterator[_Trajectory], opened: Opened, unknown: UnknownEnds, where: str
) -> Iterator[Steps]:
    schema = opened.schema
    for number, one in enumerate(trajectories):
        acts = one.arrays["acts"]
        count = len(acts)
        rewards = one.arrays.get("rews", np.zeros(count))
        if isinstance(schema.action_space, spaces.Discrete):
            acts = acts.reshape(count).astype(np.int64)
        how = "truncated" if one.by_limit else "terminated"
        if one.terminal and one.by_limit is None:
            how = unknown.how(count)
        yield Steps(
            observations=one.arrays["obs"],
            actions=acts,
            rewards=as_dtype(rewards, schema.reward_dtype, f"{where}, trajectory {number}, rews"),
            terminated=one.terminal and how == "terminated",
            truncated=one.terminal and how == "truncated",
        )
    opened.notes += unknown.notes()


def _checked(arrays: dict[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """Return the arrays of a trajectory, which must agree in length."""
    count = len(arrays["acts"])
    if count == 0 or len(arrays["obs"]) != count + 1:
        raise SchemaError(
            f"{where}: expected one obs more than acts, found {len(arrays['obs'])} and {count}."
        )
    for name, values in arrays.items():
        if values.dtype.kind not in "iuf" or 0 in values.shape:
            raise SchemaError(
                f"{where}, {name}: expected numbers, found {values.dtype} of shape {values.shape}."
            )
    if "rews" in arrays and arrays["rews"].shape != (count,):
        raise SchemaError(
            f"{where}, rews: expected {counted(count, 'number')}, found shape {arrays['rews'].shape}."
        )
    return arrays


def _from_arrow(files: Sequence[Path], where: str) -> Iterator[_Trajectory]:
    """Yield the rows of the tables."""
    import pyarrow as pa

    number = 0
    for file in files:
        with reading_arrow(f"{where}, {file.name}"), pa.memory_map(str(file)) as source:
            reader = pa.ipc.open_stream(source)
            names = reader.schema.names
            missing = [name for name in ("obs", "acts", "terminal") if name not in names]
            if missing:
                raise SchemaError(
                    f"{where}, {file.name}: has no column {missing[0]}, so these are no trajectories of "
                    f"imitation; found {', '.join(names)}."
                )
            for batch in reader:
                batch.validate(full=True)  # lists that point outside of the file end the process
                place = f"{where}, trajectories from {number} on"
                lists = {
                    name: _lists(batch.column(name), name, place)
                    for name in ARRAYS
                    if name in names
                }
                for row, flag in enumerate(batch.column("terminal").to_pylist()):
                    place = f"{where}, trajectory {number}"
                    if not isinstance(flag, bool):
                        raise SchemaError(
                            f"{place}, terminal: expected a flag, found {flag!r:.20}."
                        )
                    arrays = {
                        name: values[starts[row] : starts[row + 1]]
                        for name, (values, starts) in lists.items()
                    }
                    infos = batch.column("infos")[row] if "infos" in names else None
                    yield _Trajectory(_checked(arrays, place), flag, _by_limit(infos))
                    number += 1


def _lists(column: Any, name: str, where: str) -> tuple[np.ndarray, list[int]]:
    """Return the rows of all trajectories of a column, and where each one begins, and the end."""
    if not hasattr(column, "value_lengths") or column.null_count:
        raise SchemaError(f"{where}, {name}: expected a list of rows, found {column.type}.")
    sizes = np.asarray(column.value_lengths())
    return array_of(column.flatten(), name, where, 0), np.append(0, np.cumsum(sizes)).tolist()


def _by_limit(infos: Any) -> bool | None:
    """Return whether the last info of a trajectory says that a time limit ended it, as plain JSON."""
    if infos is None or not infos.is_valid or not hasattr(infos, "values") or not len(infos.values):
        return None
    text = infos.values[-1].as_py()
    try:
        said = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    found = said.get(TIME_LIMIT) if isinstance(said, dict) else None
    return found if isinstance(found, bool) else None


def _files(folder: Path, where: str) -> list[Path]:
    """Return the files of a table that Hugging Face's datasets saved.

    Raises SchemaError if it is none, or its rows are in another order than that of the files; IntegrityError if
    a document is damaged.
    """
    lacking = f"has no {STATE}, so Hugging Face's datasets did not save it."
    state = read_json_object(folder / STATE, where, missing=lacking)
    listed = state.get("_data_files")
    if not isinstance(listed, list) or not listed or state.get("_indices_files"):
        raise SchemaError(
            f"{where}: {STATE} names no files, or rows in an order of their own; save the dataset again "
            "after flatten_indices()."
        )
    here = {path.name: path for path in folder.iterdir() if not path.is_symlink()}
    files = []
    for entry in listed:
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or Path(name).name != name:
            raise SchemaError(
                f"{where}: {STATE} names {name!r:.50}, expected a file in the folder."
            )
        if name not in here:
            raise IntegrityError(f"{where}: {name!r:.50} is missing, or a link.", file=where)
        files.append(here[name])
    return files


def _from_npz(path: Path, where: str) -> Iterator[_Trajectory]:
    """Yield the trajectories of a file of older versions."""
    with open_npz(path, where) as file:
        columns = {name: file.column(name) for name in ARRAYS if name in file.names}
        if not {"obs", "acts"} <= columns.keys():
            raise SchemaError(f"{where}: has no obs or acts; found {', '.join(file.names)}.")
        terminal = flags_of(_whole(file.column("terminal"), where), "terminal", where)
        inner = np.zeros(0, np.int64)
        if file.shape("indices") != (0,):  # of a single trajectory
            inner = _whole(file.column("indices"), where).astype(np.int64)
        ends = [*inner.tolist(), len(columns["acts"])]
        starts = [0, *ends[:-1]]
        if len(terminal) != len(ends) or (np.diff([0, *ends]) <= 0).any():
            raise SchemaError(
                f"{where}, indices: expected where each trajectory but the first begins."
            )
        rows = ends[-1] + len(ends)
        if len(columns["obs"]) != rows:
            raise SchemaError(
                f"{where}, obs: expected {counted(rows, 'row')}, one more for each trajectory, found "
                f"{len(columns['obs'])}."
            )
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            arrays = {
                name: one[start + number : end + number + 1] if name == "obs" else one[start:end]
                for name, one in columns.items()
            }
            found = _checked(arrays, f"{where}, trajectory {number}")
            yield _Trajectory(found, bool(terminal[number]), None)


def _whole(column: NpzColumn, where: str) -> np.ndarray:
    """Return an array with a number for each trajectory."""
    if column.shape != (len(column),):
        raise SchemaError(f"{where}: expected a number for each trajectory, found {column.shape}.")
    return column[: len(column)]


def _recognizes(files: Sequence[Path]) -> bool:
    if len(files) != 1:
        return False
    if is_npz(files[0]):
        with open_npz(files[0], str(files[0])) as file:
            return {"obs", "acts", "terminal", "indices"} <= set(file.names)
    try:
        return any(one.suffix == ".arrow" for one in _files(files[0], ""))
    except OrlogError:
        return False


FORMAT = Format(
    name="imitation",
    open=_open,
    recognizes=_recognizes,
    extensions=("", ".npz"),
    options=("horizon", "ends"),
    reads=(
        "obs",
        "acts",
        "rews",
        "terminal",
        "indices",
        "infos",
        "state.json:_**",
        "dataset_info.json:**",
    ),
)
