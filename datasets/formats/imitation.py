"""Reads the trajectories of imitation (Gleave and others, 2022): a folder that Hugging Face's datasets saved.

    FOLDER/state.json                 names of the files of the table, in order
    FOLDER/data-00000-of-00001.arrow  a row for each trajectory
        obs  (T + 1, ..)   acts  (T, ..)   rews  (T,), where they were recorded
        infos  a text a step, as jsonpickle writes it      terminal  whether the episode ended

Older versions saved an npz file, with the rows of all trajectories and `indices`, where the next ones begin.

`terminal` is also true where a time limit ended the episode: it did where the last info says
`TimeLimit.truncated`; where nothing says so, `flags.py` has the rule. Otherwise infos are left out:
a jsonpickle can run code, so none is ever decoded. https://imitation.readthedocs.io
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats.arrow_files import array_of, check_pyarrow, reading_arrow
from orlog.datasets.formats.episodes import Asked, Opened, Options
from orlog.datasets.formats.flags import FLAGS, UnknownEnds, flags_of, taken
from orlog.datasets.formats.flat_rows import count_from_zero
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import ArrayLayout, open_layout
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.npz_files import is_npz, open_npz
from orlog.datasets.formats.places import Place, Places
from orlog.datasets.formats.safe_reading import read_json_object
from orlog.errors import IntegrityError, OrlogError, SchemaError

STATE = "state.json"
NEEDED, REWARDS = ("obs", "acts", "terminal"), "rews"
TIME_LIMIT = "TimeLimit.truncated"


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    where = asked.only_file("imitation's layout")[1]
    unknown = UnknownEnds(asked.options, where, are_over=True)
    places = Places(
        lambda asked: zip(asked.files, asked.sources, strict=True), functools.partial(_open_trajectories, unknown)
    )
    layout = dataclasses.replace(TRAJECTORIES, places=places)
    # What users say of ends is for those that may be time limits alone.
    options = dataclasses.replace(asked.options, ends="", horizon=None)
    with open_layout(layout, dataclasses.replace(asked, options=options)) as opened:
        unclear, how = unknown.count, taken(asked.options, are_over=True)
        unknown.notes()  # refuses what would say nothing
        notes = [Note("left_out_infos", ["infos"]), *count_from_zero(opened, "choices")]
        notes += opened.notes
        if unclear:
            notes.append(Note("ends_or_limit_unknown", count=unclear, how=how))
        opened.notes[:] = notes
        yield opened


def _open_trajectories(unknown: UnknownEnds, given: tuple[Path, str], _options: Options) -> Generator[Place]:
    """Yield each trajectory, whose arrays lie in memory, with flags for how it ended."""
    path, where = given
    rows = _from_arrow(_files(path, where), where) if path.is_dir() else _from_npz(path, where)
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
            missing = [name for name in NEEDED if name not in names]
            if missing:
                raise SchemaError(
                    f"{place}: has no column {missing[0]}, so these are no trajectories of imitation; found "
                    f"{', '.join(names)}."
                )
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


def _files(folder: Path, where: str) -> list[Path]:
    """Return the files of a table that Hugging Face's datasets saved."""
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
            raise SchemaError(
                f"{where}, obs: expected {rows} rows, one more for each trajectory, found {len(columns['obs'])}."
            )
        for number, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            arrays = {name: column[start:stop] for name, column in columns.items() if name != "obs"}
            arrays["obs"] = columns["obs"][start + number : stop + number + 1]
            yield arrays, bool(flags[number]), None


def _recognizes(files: Sequence[Path]) -> bool:
    if len(files) != 1:
        return False
    if is_npz(files[0]):
        with open_npz(files[0], str(files[0])) as file:
            return {*NEEDED, "indices"} <= set(file.names)
    try:
        return any(file.suffix == ".arrow" for file in _files(files[0], ""))
    except OrlogError:
        return False


FORMAT = Format(
    name="imitation",
    open=_open,
    recognizes=_recognizes,
    extensions=("", ".npz"),
    options=("horizon", "ends"),
    reads=("obs", "acts", REWARDS, "terminal", "indices", "infos", "state.json:_**", "dataset_info.json:**"),
)
