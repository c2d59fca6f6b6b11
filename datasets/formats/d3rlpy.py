"""Reads and writes the HDF5 files that d3rlpy's `ReplayBuffer.dump` makes (Seno and Imai, 2022).

    /num_episodes        /version  "2.1"     /columns   names: observations, actions, rewards, terminated
    /observations_0      (T, ..), or /observations_0_0, /observations_0_1 .. of a Tuple
    /actions_0           (T, n), of a choice (T, 1)     /rewards_0 (T, 1)     /terminated_0     one flag

d3rlpy keeps T observations for T actions. `episode_cutter.py` says what becomes of the last row: of an
episode that ended the task its final observation is missing, of any other it is that row's observation.
We write an episode that did not end with one row more, as `to_d3rlpy` does, so that no transition is lost.
`version` and `columns` are not read: texts of any length are where HDF5 itself hangs in damaged files.
Files of d3rlpy 1 are flat: observations, actions, rewards, terminals and episode_terminals.
https://d3rlpy.readthedocs.io
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Episode
from orlog.datasets.formats.episode_cutter import MISSING
from orlog.datasets.formats.episodes import Asked, Opened, Options
from orlog.datasets.formats.flags import flags_of
from orlog.datasets.formats.flat_rows import count_from_zero, file_stem
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.hdf5_files import (
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
from orlog.datasets.formats.mapped_arrays import ArrayLayout, open_layout
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.places import Place, Places
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import SchemaError
from orlog.manifests.names import counted

LAYOUT = "the layout of a dump of d3rlpy"
VERSION = "2.1"
COLUMNS = ["observations", "actions", "rewards", "terminated"]
OLD_COLUMNS = ("observations", "actions", "rewards", "terminals", "episode_terminals")
ENTRY = re.compile(r"(\w+?)_\d+(_\d+)?")
PART = "observations_{}"


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    asked.only_file(LAYOUT)
    with open_layout(DUMP, asked) as opened:
        opened.notes += count_from_zero(opened, "choices_of_file")
        seen, steps = opened.schema.observation_space, opened.steps
        if isinstance(seen, spaces.Dict):
            names = [PART.format(number) for number in range(len(seen))]
            seen = spaces.Tuple([seen[name] for name in names])
            opened.schema = dataclasses.replace(opened.schema, observation_space=seen)
            opened.steps = (
                dataclasses.replace(one, observations=tuple(one.observations[n] for n in names)) for one in steps
            )
        yield opened


def _open_file(given: tuple[Path, str], _options: Options) -> Generator[Place]:
    """Yield the episodes of a file of d3rlpy 2, or the rows of all episodes of one of d3rlpy 1."""
    path, where = given
    with open_hdf5(path, where) as file, reading(where):

        def column(name: str) -> Any:
            node = child(file, name, where, LAYOUT)
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
            yield _place(where, {name: name for name in COLUMNS}, column, terminated, lengths)
            return
        count = _value(file, "num_episodes", where)
        if type(count) is not int or not 0 < count <= len(file):
            raise SchemaError(f"{where}: num_episodes is {count!r:.20}, and the file has {len(file)} entries.")
        others = {match[1] for match in map(ENTRY.fullmatch, names_in(file)) if match} - {*COLUMNS}
        notes = [Note("left_out_no_meaning", sorted(others))] if others else []
        parts = 0
        if not has_child(file, "observations_0"):
            parts = next(n for n in itertools.count() if not has_child(file, f"observations_0_{n}"))
        for number in range(count):
            names = {name: f"{name}_{number}" for name in COLUMNS}
            if parts:
                names.pop("observations")
                names |= {PART.format(n): f"observations_{number}_{n}" for n in range(parts)}
            flag = _value(file, names["terminated"], where)
            if flag not in (0, 1):
                raise SchemaError(f"{where}, {names['terminated']}: expected a flag, found {flag!r:.20}.")
            terminated = np.zeros(len(column(names["actions"])), bool)
            terminated[-1] = flag
            place = _place(f"{where}, episode {number}", names, column, terminated)
            yield dataclasses.replace(place, notes=notes)


def _place(
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
    node = child(file, name, where, LAYOUT)
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
    places=Places(lambda asked: zip(asked.files, asked.sources, strict=True), _open_file),
)


def _recognizes(files: Sequence[Path]) -> bool:
    layouts = (("version", "columns", "num_episodes"), OLD_COLUMNS)
    return look_inside(files, lambda file: any(all(has_child(file, key) for key in keys) for keys in layouts))


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


FORMAT = Format(
    name="d3rlpy-hdf5",
    open=_open,
    recognizes=_recognizes,
    extensions=(".h5", ".hdf5"),
    write=_write,
    losses=_losses,
    check=lambda: import_h5py(),
    reads=(
        *("actions_#", "observations_#**", "rewards_#", "terminated_#"),
        *("columns", "num_episodes", "version", *OLD_COLUMNS),
    ),
)
