"""Reads and writes the HDF5 files that d3rlpy's `ReplayBuffer.dump` makes (Seno and Imai, 2022).

    /num_episodes        /version  "2.1"     /columns   names: observations, actions, rewards, terminated
    /observations_0      (T, ..), or /observations_0_0, /observations_0_1 .. of a Tuple
    /actions_0           (T, n), of a choice (T, 1)     /rewards_0 (T, 1)     /terminated_0     one flag

d3rlpy keeps T observations for T actions. `_shared/episode_cutter.py` says what becomes of the last row: of an
episode that ended the task its final observation is missing, of any other it is that row's observation.
We write an episode that did not end with one row more, as `to_d3rlpy` does, so that no transition is lost.
`version` and `columns` are not read: texts of any length are where HDF5 itself hangs in damaged files.
Files of d3rlpy 1 are flat: observations, actions, rewards, terminals and episode_terminals.
https://d3rlpy.readthedocs.io
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Episode
from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._shared.episode_cutter import (
    MISSING,
    EpisodeCutter,
    Rows,
    ends_of_lengths,
)
from orlog.datasets.formats._shared.episodes import Asked, Opened, Steps
from orlog.datasets.formats._shared.flags import flags_of
from orlog.datasets.formats._shared.flat_rows import as_dtype, count_choices, unbounded_space
from orlog.datasets.formats._shared.flat_writing import file_stem
from orlog.datasets.formats._shared.hdf5_files import (
    child,
    create_hdf5,
    has_child,
    look_inside,
    names_in,
    numbers,
    open_hdf5,
    reading,
    write_checked,
)
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats.formats import Format
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import SchemaError
from orlog.manifests.names import counted

LAYOUT = "the layout of a dump of d3rlpy"
VERSION = "2.1"
COLUMNS = ["observations", "actions", "rewards", "terminated"]
OLD_COLUMNS = ("observations", "actions", "rewards", "terminals", "episode_terminals")
BLOCK_BYTES = 2**24
MOST_PARTS = 64
Roles = dict[str, list[str]]
"""Names of the columns of each role; several observations are the parts of a Tuple."""
ENTRY = re.compile(r"(\w+?)_\d+(_\d+)?")


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    source, where = asked.only_file(LAYOUT)
    with open_hdf5(source, where) as file:
        reader = _Reader(file, where, source.stat().st_size)
        with reading(where):
            opened = reader.open_old() if has_child(file, "terminals") else reader.open_new()
        yield opened


class _Reader:
    """Reads the columns of a file, checked."""

    def __init__(self, file: Any, where: str, file_bytes: int) -> None:
        self._file, self._where, self._file_bytes = file, where, file_bytes
        self._kinds: dict[str, Any] = {}  # dtype and shape of a row of each column
        self.notes: list[Note] = []

    def open_new(self) -> Opened:
        """Return the episodes of a file of d3rlpy 2.

        Raises SchemaError if columns are missing, or do not agree.
        """
        count = self._value("num_episodes")
        if type(count) is not int or not 0 < count <= len(self._file):
            raise SchemaError(
                f"{self._where}: num_episodes is {count!r:.20}, and the file has {len(self._file)} entries."
            )
        stems = {match[1] for match in map(ENTRY.fullmatch, names_in(self._file)) if match}
        if stems - set(COLUMNS):
            self.notes.append(Note("left_out_no_meaning", sorted(stems - set(COLUMNS))))
        parts = 0
        if not has_child(self._file, "observations_0"):
            while parts < MOST_PARTS and has_child(self._file, f"observations_0_{parts}"):
                parts += 1
        endings = [f"_{part}" for part in range(parts)] or [""]
        roles = [
            {
                "action": [f"actions_{number}"],
                "reward": [f"rewards_{number}"],
                "observation": [f"observations_{number}{end}" for end in endings],
            }
            for number in range(count)
        ]
        columns = [self._column(f"actions_{number}") for number in range(count)]
        lengths = list(map(len, columns))
        choices = [count_choices(column, self._where) for column in columns]
        rows = (rows for number in range(count) for rows in self._episode(roles[number], number))
        return self._opened(roles[0], lengths, rows, max(choices) if all(choices) else 0)

    def open_old(self) -> Opened:
        """Return the episodes of a file of d3rlpy 1, whose rows are not cut into episodes."""
        ends = self._flags("terminals")
        if has_child(self._file, "episode_terminals"):
            ends |= self._flags("episode_terminals")
        ends[-1] = True
        lengths = np.diff(np.flatnonzero(ends), prepend=-1)
        choices = count_choices(self._column("actions"), self._where)
        roles = {"action": ["actions"], "reward": ["rewards"], "observation": ["observations"]}
        rows = self._rows(roles | {"terminated": ["terminals"]})
        return self._opened(roles, lengths.tolist(), rows, choices)

    def _opened(
        self, roles: Roles, lengths: list[int], rows: Iterator[Rows], choices: int
    ) -> Opened:
        actions, rewards = self._column(*roles["action"]), self._column(*roles["reward"])
        observations = map(self._column, roles["observation"])
        parts = [unbounded_space(one.dtype, one.shape[1:]) for one in observations]
        if choices:
            self.notes.append(Note("choices_of_file", count=choices, largest=choices - 1))
        opened = Opened(
            schema=Schema(
                observation_space=spaces.Tuple(parts) if len(parts) > 1 else parts[0],
                action_space=spaces.Discrete(choices)
                if choices
                else unbounded_space(actions.dtype, actions.shape[1:]),
                reward_dtype=np.dtype(np.float32 if rewards.dtype == np.float32 else np.float64),
            ),
            steps=iter(()),
            total_steps=sum(lengths),
            notes=self.notes,
        )
        cutter = EpisodeCutter(ends_of_lengths(lengths), self._where)
        opened.steps = _steps(rows, cutter, opened, self._where)
        return opened

    def _episode(self, roles: Roles, number: int) -> Iterator[Rows]:
        """Yield the rows of an episode of d3rlpy 2, of which only the last one can end the task."""
        flag, done = self._value(f"terminated_{number}"), 0
        if flag not in (0, 1):
            raise SchemaError(
                f"{self._where}, terminated_{number}: expected a flag, found {flag!r:.20}."
            )
        count = len(self._column(*roles["action"]))
        for rows in self._rows(roles):
            done += len(rows["action"])
            rows["terminated"] = np.zeros(len(rows["action"]), bool)
            rows["terminated"][-1] = bool(flag) and done == count
            yield rows

    def _rows(self, roles: Roles) -> Iterator[Rows]:
        """Yield blocks of rows of these columns, which must have one length."""
        names = {
            f"{role}/{part}" if len(several) > 1 else role: name
            for role, several in roles.items()
            for part, name in enumerate(several)
        }
        columns = {role: self._column(name) for role, name in names.items()}
        count = len(columns["action"])
        for role, column in columns.items():
            where = f"{self._where}, {names[role]}"
            if len(column) != count:
                raise SchemaError(
                    f"{where}: expected {count} rows as in {names['action']}, found {len(column)}."
                )
            kind = column.dtype, column.shape[1:]
            first = self._kinds.setdefault(role, kind)
            if kind != first:
                raise SchemaError(
                    f"{where}: expected rows of {first[0]} {first[1]} as in the first episode, found {kind[0]} {kind[1]}."
                )
            if role in ("reward", "terminated") and math.prod(column.shape[1:]) != 1:
                raise SchemaError(f"{where}: expected one number a row, found rows of {kind[1]}.")
        row_bytes = sum(one.dtype.itemsize * math.prod(one.shape[1:]) for one in columns.values())
        block = max(1, BLOCK_BYTES // row_bytes)
        for start in range(0, count, block):
            rows = {role: column[start : start + block] for role, column in columns.items()}
            flat = [role for role in ("reward", "terminated") if role in rows]
            yield rows | {role: rows[role].reshape(-1) for role in flat}

    def _column(self, name: str) -> Any:
        node = child(self._file, name, self._where, LAYOUT)
        return numbers(node, f"{self._where}, {name}", self._file_bytes)

    def _flags(self, name: str) -> np.ndarray:
        return flags_of(self._column(name)[:].reshape(-1), name, self._where)

    def _value(self, name: str) -> Any:
        """Return the one number of an entry; None if it is none."""
        node = child(self._file, name, self._where, LAYOUT)
        if getattr(node, "size", None) != 1 or node.dtype.kind not in "biuf":
            return None
        return np.asarray(node[()]).item()


def _steps(
    rows: Iterator[Rows], cutter: EpisodeCutter, opened: Opened, where: str
) -> Iterator[Steps]:
    is_choice = isinstance(opened.schema.action_space, spaces.Discrete)
    first = 0
    with reading(where):
        for block in rows:
            if is_choice:
                block["action"] = block["action"].reshape(-1).astype(np.int64)
            dtype = opened.schema.reward_dtype
            block["reward"] = as_dtype(block["reward"], dtype, f"{where}, rewards", first)
            first += len(block["reward"])
            yield from cutter.add(block)
    opened.notes += cutter.notes()


def _recognizes(files: Sequence[Path]) -> bool:
    layouts = (("version", "columns", "num_episodes"), OLD_COLUMNS)
    return look_inside(
        files, lambda file: any(all(has_child(file, key) for key in keys) for keys in layouts)
    )


def _write(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write `NAME.h5`, for d3rlpy's `ReplayBuffer.load`."""
    is_choice = isinstance(dataset.action_space, spaces.Discrete)
    done = 0
    with create_hdf5(folder / f"{file_stem(dataset)}.h5", progress) as (file, progress):
        file["columns"], file["version"] = COLUMNS, VERSION
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


def _losses(dataset: Dataset) -> list[str]:
    """Say what a dump of d3rlpy cannot hold.

    Raises SchemaError if observations or actions that it has no place for.
    """
    space = dataset.observation_space
    parts: list[gymnasium.Space[Any]] = list(space) if isinstance(space, spaces.Tuple) else [space]
    if not all(isinstance(part, spaces.Box) for part in parts):
        raise SchemaError(
            f"{dataset.name}: d3rlpy takes observations that are a Box or a Tuple of them, found {space}."
        )
    if not isinstance(dataset.action_space, spaces.Box | spaces.Discrete):
        raise SchemaError(
            f"{dataset.name}: d3rlpy takes actions that are a Box or Discrete, found "
            f"{dataset.action_space}."
        )
    said = []
    known = f"episodes/{MISSING}"
    lost = [name for name in dataset.schema.extras if name != known]
    if lost:
        said.append(f"These columns are lost: {', '.join(lost)}.")
    if (dataset.column("episodes/seeds") >= 0).any():
        said.append("Seeds of episodes are lost.")
    ended = int(np.count_nonzero(dataset.column("terminations")))
    if known in dataset.schema.extras:
        ended -= int(np.count_nonzero(dataset.column(known)))
    if ended:
        said.append(f"The final observations of {counted(ended, 'episode')} that ended are lost.")
    stopped = len(dataset) - int(
        np.count_nonzero(dataset.column("terminations") | dataset.column("truncations"))
    )
    if stopped:
        said.append(f"{counted(stopped, 'unfinished episode')} will be taken to be cut off.")
    return said


FORMAT = Format(
    name="d3rlpy-hdf5",
    open=_open,
    recognizes=_recognizes,
    extensions=(".h5", ".hdf5"),
    write=_write,
    losses=_losses,
    check=lambda: import_h5py(),
    reads=(
        "actions_#",
        "observations_#**",
        "rewards_#",
        "terminated_#",
        "columns",
        "num_episodes",
        "version",
        "observations",
        "actions",
        "rewards",
        "terminals",
        "episode_terminals",
    ),
)
