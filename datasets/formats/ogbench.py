"""Reads and writes the npz files of OGBench (Park and others, 2025): T + 1 rows for T steps.

    observations  (S, n) float32, or (S, height, width, channels) uint8
    actions       (S, m) float32, or (S,) integers      the last one of an episode means nothing
    terminals     (S,)    1 on the last row of an episode, which ends by a time limit alone
    qpos qvel button_states ..    (S, ..) in some files  kept as infos, without the last row

There are no rewards: goals are chosen when training, and rewards here are zeros. `NAME.npz` and `NAME-val.npz`, or many
such files (`NAME-000.npz`, `NAME-000-val.npz`, ..), make one dataset, whose `episodes/split` is `train` or `val`.

With `--task`, rewards are those of a single task. `manifests/recorded/ogbench_tasks.json` holds the goals of the five
tasks of each environment and which is the default one, as `ogbench` 1.2.2 sets them. A step's reward and whether it
ends the task depend on the state before the action, as in OGBench from 1.2.0 on. An episode ends with each step that
ends the task; what follows is an episode of its own, and `episodes/trajectory` counts those of the files.

https://github.com/seohongpark/ogbench, `ogbench/utils.py` and `ogbench/relabel_utils.py`
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.array_files import NpzFile, is_npz, npz_writer, open_npz
from orlog.datasets.formats.episode_cutter import EpisodeCutter
from orlog.datasets.formats.episodes import Asked, Opened, Steps, read_pieces
from orlog.datasets.formats.flat_rows import file_stem
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import unbounded_space
from orlog.datasets.formats.notes import Note
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.names import did_you_mean
from orlog.manifests.shipped import records_folder

BLOCK_BYTES = 2**24
POWDERWORLD_ACTIONS = 8  # places of the brush along an edge; the only environment with integers
NEEDED = ("observations", "actions", "terminals")
TASK_NAME = re.compile(r"(?:(?P<of>.+)-)?(?:singletask(?:-task(?P<one>\d))?(?:-v\d+)?|task(?P<other>\d))")
QPOS, BUTTONS = "qpos", "button_states"
FIRST_CUBE, CUBE_WIDTH, BALL = 14, 7, 15  # places in qpos
CLOSE = 0.04  # metres, for cubes, drawer and window


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A task of an environment.

    Attributes:
        environment: The environment, such as `antmaze-large`.
        number: Which of its tasks, from 1 on.
        goal: Where agent or ball shall be in metres; or a dict of `cubes`, `buttons`, `drawer` and
            `window`.
    """

    environment: str
    number: int
    goal: Any

    def targets(self) -> list[tuple[str, int, list[float], float]]:
        """Return the parts of the goal: a column, a place in its rows, the numbers that shall be there, and how near."""
        if not isinstance(self.goal, dict):
            first = BALL if self.environment.startswith("antsoccer") else 0
            return [(QPOS, first, self.goal, 1.0 if "pointmaze" in self.environment else 0.5)]
        cubes, buttons = self.goal.get("cubes", ()), self.goal.get("buttons", ())
        places = [FIRST_CUBE + CUBE_WIDTH * number for number in range(len(cubes) + 1)]
        found = [(QPOS, *one, CLOSE) for one in zip(places, cubes, strict=False)]
        found += [(BUTTONS, number, [button], 0.0) for number, button in enumerate(buttons)]
        if "drawer" in self.goal:
            after = places[-1] + len(buttons)
            found += [(QPOS, after, [self.goal["drawer"]], CLOSE)]
            found += [(QPOS, after + 1, [self.goal["window"]], CLOSE)]
        return found

    def check(self, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
        """Refuse files without the columns that the rewards are computed from, in the environment's shapes."""
        for name, first, values, _ in self.targets():
            shape, needed = shapes.get(name), first + len(values)
            if shape is None:
                raise SchemaError(f"{where}: has no {name}, which the rewards of a task are made from.")
            if name == BUTTONS:
                needed = len(self.goal["buttons"])
            if len(shape) != 1 or shape[0] < needed or (name == BUTTONS and shape[0] != needed):
                raise SchemaError(f"{where}, {name}: its rows of {shape} are not those of {self.environment}.")

    def judge(self, infos: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the reward of each step, (n,) float32, and whether the task was done before it, (n,) bool."""
        reached = []
        for name, first, values, near in self.targets():
            state = infos[name][:, first : first + len(values)]
            with np.errstate(over="ignore"):  # what is infinitely far is not near
                reached.append(np.linalg.norm(state - np.array(values), axis=-1) <= near)
        parts = np.stack(reached, axis=-1)
        return (parts.sum(axis=-1) - len(reached)).astype(np.float32), np.all(parts, axis=-1)


def find_task(said: str, file_name: str, where: str) -> Task:
    """Return the task that a user means: `task3`, `singletask` for the default one, or OGBench's name.

    A name such as `antmaze-large-navigate-singletask-task3-v0` is whole; short ones need the name of a file,
    which begins with that of its environment.
    """
    table = _table()
    match = TASK_NAME.fullmatch(said)
    if match is None:
        raise SchemaError(
            f"{where}: task={said!r}: expected task1 to task5, singletask for the default one, or "
            "OGBench's name, such as antmaze-large-navigate-singletask-task3-v0."
        )
    name = (match["of"] or file_name).removeprefix("visual-")
    fitting = [environment for environment in table if f"{name}-".startswith(f"{environment}-")]
    if not fitting:
        instead = did_you_mean(name, table) or f"; these are {', '.join(table)}."
        raise SchemaError(f"{where}: task={said!r}: {name} is no environment of OGBench with tasks{instead}")
    environment = max(fitting, key=len)
    tasks = table[environment]["tasks"]
    number = int(match["one"] or match["other"] or table[environment]["default"])
    if not 1 <= number <= len(tasks):
        raise SchemaError(f"{where}: task={said!r}: {environment} has the tasks 1 to {len(tasks)}.")
    return Task(environment, number, tasks[number - 1])


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((records_folder() / "ogbench_tasks.json").read_text("utf-8"))
    return table


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    files = _files(asked)
    where = files[0][1]
    first: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    steps = 0
    for path, source in files:  # not all at once: large sets have a thousand files
        with open_npz(path, source) as file:
            columns = _columns(file)
        kinds = {name: (column.dtype, column.shape[1:]) for name, column in columns.items()}
        first = first or kinds
        if kinds != first:
            raise SchemaError(f"{source}: its arrays differ from those of {where}, so they are not one dataset.")
        steps += len(columns["observations"])
    task, notes = None, [] if asked.options.reward else [Note("rewards_of_goals")]
    if asked.options.task:
        task = find_task(asked.options.task, files[0][0].stem, where)
        task.check({name: shape for name, (_, shape) in first.items()}, where)
        notes = [Note("rewards_of_task", number=task.number, environment=task.environment)]
    schema = Schema(
        observation_space=unbounded_space(*first["observations"]),
        action_space=_action_space(*first["actions"], where),
        reward_dtype=np.dtype(np.float32),
    )
    read = read_pieces(asked, functools.partial(_read_files, task), files)
    yield Opened(schema=schema, steps=read, total_steps=steps, notes=notes)


def _files(asked: Asked) -> list[tuple[Path, str]]:
    """Return the files, those of a folder by their names, and what errors call them."""
    folder, source = asked.files[0], asked.sources[0]
    if not folder.is_dir():
        return list(zip(asked.files, asked.sources, strict=True))
    files = sorted(folder.glob("*.npz"))
    if not files or any(file.is_symlink() for file in files):
        raise SchemaError(f"{source}: expected npz files of OGBench, and no links, which are not followed.")
    return [(file, f"{source}, {file.name}") for file in files]


def _columns(file: NpzFile) -> dict[str, Any]:
    """Return the columns of a file, all with as many rows."""
    names = [*NEEDED, *(name for name in file.names if name not in NEEDED)]
    columns = {name: file.column(name) for name in names}
    count = len(columns["observations"])
    for name, column in columns.items():
        if len(column) != count:
            raise SchemaError(f"{file.where}, {name}: expected {count} rows as in observations, found {len(column)}.")
    return columns


def _action_space(dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> gymnasium.Space[Any]:
    """Return the space that OGBench's environments have."""
    if dtype.kind == "f" and len(shape) == 1:
        return gymnasium.spaces.Box(-1, 1, shape, dtype.type)
    if dtype.kind in "iu" and shape == ():
        return gymnasium.spaces.Discrete(POWDERWORLD_ACTIONS)
    raise SchemaError(f"{where}, actions: expected a row of floats a step, found {dtype} {shape}.")


def _read_files(task: Task | None, files: Iterable[tuple[Path, str]]) -> Iterator[Steps]:
    """Yield the steps of files, with the rewards of a task if there is one."""
    for path, where in files:
        split = "val" if path.stem.endswith("-val") else "train"
        with open_npz(path, where) as file:
            steps = _steps(file)
            for piece in steps if task is None else _with_rewards(steps, task):
                metadata = {**piece.metadata, "split": split} if piece.ends else {}
                yield dataclasses.replace(piece, metadata=metadata)


def _steps(file: NpzFile) -> Iterator[Steps]:
    """Yield the steps of a file; the last row of each episode is left out, whose observation is the final one."""
    columns = _columns(file)
    count = len(columns["observations"])
    row_bytes = sum(one.dtype.itemsize * math.prod(one.shape[1:]) for one in columns.values())
    block_rows = max(1, BLOCK_BYTES // row_bytes)
    cutter = EpisodeCutter(lambda rows, _first: rows["truncated"], file.where)
    for start in range(0, count, block_rows):
        block = {name: column[start : start + block_rows] for name, column in columns.items()}
        observations, actions, ends = (block.pop(name) for name in NEEDED)
        ends = ends.reshape(len(ends), -1)[:, 0]
        odd = np.flatnonzero((ends != 0) & (ends != 1))
        if len(odd):
            raise SchemaError(
                f"{file.where}, terminals: expected 0 or 1, found {ends[odd[0]]} in row {start + odd[0]}."
            )
        if start + len(ends) == count and not ends[-1]:
            raise IntegrityError(f"{file.where}, terminals: no last one, so the file is cut off.", file=file.where)
        for piece in cutter.add(
            {
                "observation": observations,
                "action": actions if actions.dtype.kind == "f" else actions.astype(np.int64),
                "reward": np.zeros(len(ends), np.float32),
                "truncated": ends.astype(bool),
                **{f"infos/{name}": values for name, values in block.items()},
            }
        ):
            yield dataclasses.replace(piece, metadata={})
    if cutter.vanished:
        raise SchemaError(f"{file.where}: an episode of one row has no step.")


def _with_rewards(pieces: Iterable[Steps], task: Task) -> Iterator[Steps]:
    """Yield steps with the rewards of a task; what follows a step that ends the task is an episode of its own."""
    trajectory, is_inside, last = 0, False, np.zeros(0)
    for piece in pieces:
        count, seen = len(piece.rewards), np.asarray(piece.observations)
        if len(seen) == count:  # it goes on after the last observation of the piece before it
            seen = np.concatenate((last, seen))
        rewards, done = task.judge(piece.infos)
        start = 0
        for stop in np.union1d(np.flatnonzero(done) + 1, [count]).tolist():
            is_cut, is_done = piece.ends and stop == count, bool(done[stop - 1])
            yield Steps(
                observations=seen[start + is_inside : stop + 1],
                actions=piece.actions[start:stop],
                rewards=rewards[start:stop],
                ends=is_cut or is_done,
                terminated=is_done,
                truncated=is_cut,
                infos={name: values[start:stop] for name, values in piece.infos.items()},
                metadata={"trajectory": trajectory},
            )
            start, is_inside = stop, not (is_cut or is_done)
        trajectory, last = trajectory + piece.ends, seen[-1:]


def _recognizes(files: Sequence[Path]) -> bool:
    if files[0].is_dir():
        files = sorted(files[0].glob("*.npz"))
    if not files or not all(is_npz(file) for file in files):
        return False
    with open_npz(files[0], str(files[0])) as file:
        return set(NEEDED) <= set(file.names) and "rewards" not in file.names


def _write(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write `NAME.npz`, and `NAME-val.npz` where episodes are of the split `val`."""
    name, done = file_stem(dataset), 0
    writers: dict[str, Callable[[Mapping[str, np.ndarray]], None]] = {}
    with contextlib.ExitStack() as stack:
        for episode in dataset:
            count = len(episode.rewards)
            rows = {
                "observations": episode.observations,
                "actions": _padded(episode.actions),
                "terminals": np.arange(count + 1) == count,
            }
            infos = episode.infos.items()
            rows |= {key: _padded(values) for key, values in infos if isinstance(values, np.ndarray)}
            ending = "-val" if episode.metadata.get("split") == "val" else ""
            if ending not in writers:
                file = folder / f"{name}{ending}.npz"
                writers[ending] = stack.enter_context(npz_writer(file))
            writers[ending](rows)
            done += count
            progress(done, dataset.total_steps)


def _padded(values: np.ndarray) -> np.ndarray:
    """Return rows with the last one repeated, which stands beside the final observation."""
    return np.concatenate((values, values[-1:]))


def _losses(dataset: Dataset) -> list[str]:
    """Say what OGBench's files cannot hold."""
    spaces = (dataset.observation_space, dataset.action_space)
    if not all(isinstance(space, gymnasium.spaces.Box) for space in spaces):
        raise SchemaError(f"{dataset.name}: OGBench's files hold Boxes, found {spaces[0]} and {spaces[1]}.")
    lost = []
    if dataset.column("rewards").any():
        lost.append("Rewards are lost.")
    if dataset.column("terminations").any():
        lost.append("That the task ended is lost: all ends look like a time limit.")
    extras = dataset.schema.extras
    more = [name for name in extras if name.startswith("episodes/") and name != "episodes/split"]
    if more:
        lost.append(f"Columns of episodes are lost: {', '.join(more)}.")
    return lost


FORMAT = Format(
    name="ogbench-npz",
    open=_open,
    recognizes=_recognizes,
    extensions=("", ".npz"),
    options=("task",),
    shares=True,
    write=_write,
    losses=_losses,
    reads=("**",),
)
