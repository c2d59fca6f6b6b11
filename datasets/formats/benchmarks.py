"""Files that benchmarks publish: OGBench (written, too), OG-MARL and the Open Bandit Dataset.

OGBench (Park and others, 2025): T + 1 rows for T steps.

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

OG-MARL: vaults (Formanek and others, 2023), which flashbax writes: steps of several agents.

    NAME.vlt/UID/metadata.json      names, shapes and dtypes; UID is Good, Medium, Poor, Replay ..
    NAME.vlt/UID/manifest.ocdbt     a database of TensorStore, of arrays (1, time, ..):
        observations. (.., agents, n)   actions. (.., agents) or (.., agents, m)   rewards. (.., agents)
        terminals.  truncations. (.., agents)   infos.state. (.., s)   infos.legals. (.., agents, choices)
        vault_index   how many steps there are

Agents are stored as `orlog.record_parallel` stores them, by the names `agent_0`, `agent_1`, ..: observations and
actions are a Dict of theirs, the reward is their sum, and each one's own values are infos. An episode ends
when all agents are done. There is no final observation: the last step of an episode that was cut off is left
out and its observation is the final one; an episode that ended keeps it, with zeros as final observation.
A folder of several vaults becomes one dataset, whose `episodes/split` is the UID; `--task UID` takes one.
https://github.com/instadeepai/og-marl, https://github.com/instadeepai/flashbax

Open Bandit Dataset (Saito and others 2021, https://arxiv.org/abs/2008.07146): logged choices in CSV.

    all.csv            [number]  timestamp  item_id  position  click  propensity_score
                       user_feature_0 .. (texts)  user-item_affinity_0 .. (numbers)           one row for each choice
    item_context.csv   [number]  item_id  item_feature_0 (a number)  item_feature_1 .. (texts)

as the folder of a campaign (`random/all`, with `all.csv`, `men.csv` or `women.csv`), or its files. Each row is an
episode of one step that terminates:

    observations  a Dict: `affinity`, numbers; `position`, 0 to the right-most place less one, counted from 0 on
                  the left; `user`, the places of the features' texts in their sorted order
    actions       item_id
    rewards       click
    infos         action_log_probs, the logarithm of propensity_score; timestamp, microseconds since 1970;
                  item_feature_0 .. of the item that was shown, texts by their places as above

What came after a choice was not recorded. st-tech/zr-obp (`obp/dataset/real.py`) reads the same files, puts rows in the
order of time and user features into one-hot columns of which the first is dropped; here rows stay in their order.
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
from gymnasium import spaces

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.array_files import NpzFile, is_npz, npz_writer, open_npz
from orlog.datasets.formats.arrow_files import array_of, check_pyarrow, reading_arrow
from orlog.datasets.formats.episode_cutter import MISSING, EpisodeCutter, Rows, ends_of_lengths
from orlog.datasets.formats.episodes import Asked, Opened, Steps, read_pieces
from orlog.datasets.formats.flat_rows import file_stem
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import as_dtype, unbounded_space
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.roles import by_numbers
from orlog.datasets.formats.safe_reading import read_json_object, reading
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import IntegrityError, SchemaError, needing
from orlog.manifests.names import did_you_mean
from orlog.manifests.shipped import records_folder

BLOCK_BYTES = 2**24
POWDERWORLD_ACTIONS = 8  # places of the brush along an edge; the only environment with integers
OGBENCH_NEEDED = ("observations", "actions", "terminals")
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
        parts = [(QPOS, *place, CLOSE) for place in zip(places, cubes, strict=False)]
        parts += [(BUTTONS, number, [button], 0.0) for number, button in enumerate(buttons)]
        if "drawer" in self.goal:
            after = places[-1] + len(buttons)
            parts += [(QPOS, after, [self.goal["drawer"]], CLOSE)]
            parts += [(QPOS, after + 1, [self.goal["window"]], CLOSE)]
        return parts

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


def find_task(wanted: str, file_name: str, where: str) -> Task:
    """Return the task that a user means: `task3`, `singletask` for the default one, or OGBench's name.

    A name such as `antmaze-large-navigate-singletask-task3-v0` is whole; short ones need the name of a file,
    which begins with that of its environment.
    """
    table = _table()
    match = TASK_NAME.fullmatch(wanted)
    if match is None:
        raise SchemaError(
            f"{where}: task={wanted!r}: expected task1 to task5, singletask for the default one, or "
            "OGBench's name, such as antmaze-large-navigate-singletask-task3-v0."
        )
    name = (match["of"] or file_name).removeprefix("visual-")
    fitting = [environment for environment in table if f"{name}-".startswith(f"{environment}-")]
    if not fitting:
        instead = did_you_mean(name, table) or f"; these are {', '.join(table)}."
        raise SchemaError(f"{where}: task={wanted!r}: {name} is no environment of OGBench with tasks{instead}")
    environment = max(fitting, key=len)
    tasks = table[environment]["tasks"]
    number = int(match["one"] or match["other"] or table[environment]["default"])
    if not 1 <= number <= len(tasks):
        raise SchemaError(f"{where}: task={wanted!r}: {environment} has the tasks 1 to {len(tasks)}.")
    return Task(environment, number, tasks[number - 1])


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((records_folder() / "ogbench_tasks.json").read_text("utf-8"))
    return table


@contextlib.contextmanager
def _open_ogbench(asked: Asked) -> Iterator[Opened]:
    files = _files_ogbench(asked)
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


def _files_ogbench(asked: Asked) -> list[tuple[Path, str]]:
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
    names = [*OGBENCH_NEEDED, *(name for name in file.names if name not in OGBENCH_NEEDED)]
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
            steps = _steps_ogbench(file)
            for piece in steps if task is None else _with_rewards(steps, task):
                metadata = {**piece.metadata, "split": split} if piece.ends else {}
                yield dataclasses.replace(piece, metadata=metadata)


def _steps_ogbench(file: NpzFile) -> Iterator[Steps]:
    """Yield the steps of a file; the last row of each episode is left out, whose observation is the final one."""
    columns = _columns(file)
    count = len(columns["observations"])
    row_bytes = sum(array.dtype.itemsize * math.prod(array.shape[1:]) for array in columns.values())
    block_rows = max(1, BLOCK_BYTES // row_bytes)
    cutter = EpisodeCutter(lambda rows, _first: rows["truncated"], file.where)
    for start in range(0, count, block_rows):
        block = {name: column[start : start + block_rows] for name, column in columns.items()}
        observations, actions, ends = (block.pop(name) for name in OGBENCH_NEEDED)
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


def _recognizes_ogbench(files: Sequence[Path]) -> bool:
    if files[0].is_dir():
        files = sorted(files[0].glob("*.npz"))
    if not files or not all(is_npz(file) for file in files):
        return False
    with open_npz(files[0], str(files[0])) as file:
        return set(OGBENCH_NEEDED) <= set(file.names) and "rewards" not in file.names


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


OGBENCH = Format(
    name="ogbench-npz",
    open=_open_ogbench,
    recognizes=_recognizes_ogbench,
    extensions=("", ".npz"),
    options=("task",),
    shares=True,
    write=_write,
    losses=_losses,
    reads=("**",),
)


CACHE_BYTES = 2**26
MOST_CHOICES = 2**16
METADATA = "metadata.json"
DATABASE = "manifest.ocdbt"
INDEX = "vault_index"
FLAGS = ("terminals", "truncations")
OGMARL_NEEDED = ("observations", "actions", "rewards", "terminals")
OF_AGENTS = (*OGMARL_NEEDED, "truncations")
LEGAL = "infos.legals"


@contextlib.contextmanager
def _open_ogmarl(asked: Asked) -> Iterator[Opened]:
    folder, where = asked.files[0], asked.sources[0]
    uids = _uids(folder, where, asked.options.task)
    vaults = [_Vault(folder / uid, f"{where}, {uid}" if uid else where) for uid in uids]
    first = vaults[0]
    for vault in vaults:
        if vault.kinds != first.kinds:
            raise SchemaError(f"{vault.where}: its arrays differ from those of {first.where}; take one as task=.")
    notes = [Note("left_out", first.left_out)] if first.left_out else []
    lengths, choices = [], 0
    for vault in vaults:
        its_lengths, its_choices = _find_episodes(vault, notes)
        lengths.append(its_lengths)
        choices = max(choices, its_choices)
    if choices and LEGAL not in first.kinds:
        notes.append(Note("choices_by_largest"))
    seen, action = (
        unbounded_space(dtype, shape[1:]) for dtype, shape in (first.kinds["observations"], first.kinds["actions"])
    )
    action = spaces.Discrete(choices) if choices else action
    schema = Schema(
        observation_space=spaces.Dict(dict.fromkeys(first.agents, seen)),
        action_space=spaces.Dict(dict.fromkeys(first.agents, action)),
        reward_dtype=np.dtype(np.float64),
    )
    yield Opened(
        schema=schema,
        steps=_steps_ogmarl(vaults, lengths, uids, notes),
        total_steps=sum(vault.count for vault in vaults),
        notes=notes,
        description=f"Recorded of {len(first.agents)} agents, in the vaults of OG-MARL.",
    )


def _uids(folder: Path, where: str, task: str) -> list[str]:
    """Return the names of the vaults to read; an empty one for the folder itself."""
    if (folder / METADATA).is_file():
        if task not in ("", folder.name):
            raise SchemaError(f"{where}: task={task!r}: this is the vault {folder.name} alone.")
        return [""]
    names = sorted(inner.name for inner in folder.iterdir() if (inner / METADATA).is_file())
    if not names:
        raise SchemaError(f"{where}: expected a vault, or folders of vaults, with {METADATA}.")
    if task and task not in names:
        instead = did_you_mean(task, names) or f"; these are {', '.join(names)}."
        raise SchemaError(f"{where}: task={task!r}: there is no such vault{instead}")
    return [task] if task else names


class _Vault:
    """The arrays of a vault: `count` steps of them, and their `kinds`, the dtype and the shape of a step."""

    def __init__(self, folder: Path, where: str) -> None:
        self.where, self._folder = where, folder
        names = _array_names(folder, where)
        if any(file.is_symlink() for file in (folder, *folder.rglob("*"))):
            raise SchemaError(f"{where}: a file is a link, which is not followed.")
        wanted = [name for name in names if name in OF_AGENTS or name.startswith("infos.")]
        self.left_out = [name for name in names if name not in wanted]
        _check_ogmarl()
        with reading(where):
            import tensorstore

            self._context = tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})
            index = self._array(INDEX)
            self.count = int(index.read().result()[0]) if index.shape == (1,) else 0
            if self.count <= 0:
                raise SchemaError(f"{where}, {INDEX}: expected how many steps there are.")
            self._arrays = {name: self._checked(name) for name in wanted}
        self.kinds = {
            name: (np.dtype(array.dtype.numpy_dtype), tuple(array.shape[2:])) for name, array in self._arrays.items()
        }
        agents = self.kinds["rewards"][1] if {*OGMARL_NEEDED} <= self.kinds.keys() else ()
        if len(agents) != 1:
            raise SchemaError(f"{where}: expected {', '.join(OGMARL_NEEDED)} for each agent; found {', '.join(names)}.")
        for name in {*OF_AGENTS, LEGAL} & self.kinds.keys():
            shape = self.kinds[name][1]
            if shape[:1] != agents or 0 in shape or (name in FLAGS and shape != agents):
                raise SchemaError(f"{where}, {name}: expected rows for {agents[0]} agents, found {shape}.")
        self.agents = [f"agent_{number}" for number in range(agents[0])]

    def blocks(self, names: Sequence[str]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield the number of a step, and the arrays from it on, in blocks."""
        kinds = [self.kinds[name] for name in names]
        row_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds)
        rows = max(1, BLOCK_BYTES // row_bytes)
        for start in range(0, self.count, rows):
            stop = min(self.count, start + rows)
            with reading(self.where):
                block = {name: self._arrays[name][0, start:stop].read().result() for name in names}
            yield start, block

    def _checked(self, name: str) -> Any:
        """Return an array with a row for each step, all of which are stored."""
        array, where = self._array(f"{name}."), f"{self.where}, {name}"
        dtype = np.dtype(array.dtype.numpy_dtype)
        is_batch = array.rank >= 2 and array.shape[0] == 1 and array.shape[1] >= self.count
        if dtype.kind not in "biuf" or dtype.itemsize > 8 or not is_batch:
            raise SchemaError(f"{where}: expected {self.count} steps of numbers, found {dtype} {array.shape}.")
        stored = array[:, : self.count].storage_statistics(query_fully_stored=True).result()
        if not stored.fully_stored:
            lack = f"not all of the {self.count} steps are in the vault"
            raise IntegrityError(f"{where}: {lack}; download it again.", file=self.where)
        return array

    def _array(self, name: str) -> Any:
        import tensorstore

        base = {"driver": "file", "path": f"{self._folder}/"}
        spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}
        return tensorstore.open(spec, open=True, read=True, context=self._context).result()


def _array_names(folder: Path, where: str) -> list[str]:
    """Return the names of all arrays, parts joined by dots."""
    body = read_json_object(folder / METADATA, where, missing=f"{METADATA} is a link or too large.")
    if str(body.get("version")).partition(".")[0] != "1":
        raise SchemaError(f"{where}: expected a vault of version 1, found {body.get('version')!r:.50}.")
    names, waiting = [], [("", body.get("structure_shape"))]
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, dict):
            waiting += [(f"{path}.{key}", inner) for key, inner in part.items()]
        elif isinstance(part, str):
            names.append(path.removeprefix("."))
    return sorted(names)


def _find_episodes(vault: _Vault, notes: list[Note]) -> tuple[list[int], int]:
    """Return the length of each episode, and how many actions there are; 0 if they are no choices."""
    dtype, shape = vault.kinds["actions"]
    is_choice = dtype.kind in "iu" and len(shape) == 1
    choices = int(vault.kinds[LEGAL][1][-1]) if is_choice and LEGAL in vault.kinds else 0
    wanted = [name for name in (*FLAGS, "actions") if name in vault.kinds]
    ends = []
    for first, block in vault.blocks(wanted if is_choice else wanted[:-1]):
        done = np.any(list(_flags(block, vault, first).values()), axis=0)
        ends.append(first + np.flatnonzero(done.all(axis=1)))
        if is_choice:
            lowest, highest = int(block["actions"].min()), int(block["actions"].max())
            if LEGAL not in vault.kinds:
                choices = max(choices, highest + 1)
            if lowest < 0 or highest >= min(choices, MOST_CHOICES):
                expected = f"discrete actions from 0 to {choices - 1}"
                raise SchemaError(f"{vault.where}, actions: expected {expected}, found {lowest} to {highest}.")
    stops = np.concatenate(ends) + 1
    if not len(stops) or stops[-1] != vault.count:
        notes.append(Note("ends_open", where=vault.where))
        stops = np.append(stops, vault.count)
    return np.diff(stops, prepend=0).tolist(), choices


def _flags(block: Mapping[str, np.ndarray], vault: _Vault, first: int) -> dict[str, np.ndarray]:
    """Return which agents ended (terminals), and which were cut off, in each step."""
    flags = {}
    for name in FLAGS:
        values = block.get(name, np.zeros_like(block["terminals"]))
        odd = np.argwhere((values != 0) & (values != 1))
        if len(odd):
            value = f"{values[tuple(odd[0])]} in step {first + odd[0][0]}"
            raise SchemaError(f"{vault.where}, {name}: expected 0 or 1, found {value}.")
        flags[name] = values.astype(bool)
    return flags


def _steps_ogmarl(
    vaults: list[_Vault], lengths: list[list[int]], uids: list[str], notes: list[Note]
) -> Iterator[Steps]:
    splits = [uid for uid, several in zip(uids, lengths, strict=True) for _ in several]
    cutter = EpisodeCutter(
        ends_of_lengths([length for several in lengths for length in several]),
        vaults[0].where,
        metadata=lambda episode: {"split": splits[episode]} if splits[episode] else {},
    )
    for vault, several in zip(vaults, lengths, strict=True):
        is_last = np.zeros(vault.count, bool)
        is_last[np.cumsum(several) - 1] = True
        gone = np.zeros(len(vault.agents), bool)  # which agents of the open episode are done
        for first, block in vault.blocks(list(vault.kinds)):
            flags = _flags(block, vault, first)
            lasts = is_last[first : first + len(block["rewards"])]
            acts, gone = _acting(np.any(list(flags.values()), axis=0), lasts, gone)
            for steps in cutter.add(_rows(vault, block, flags, acts, lasts, first)):
                actions = {name: steps.actions[:, n] for n, name in enumerate(vault.agents)}
                yield dataclasses.replace(steps, actions=actions)
    notes += cutter.notes()


def _acting(done: np.ndarray, lasts: np.ndarray, gone: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which agents act in each step, (n, agents), by which are done in it and before (`gone`), and the new `gone`."""
    before = np.cumsum(np.concatenate((gone[None], done)), axis=0)  # how often each was done
    begins = np.where(np.append(False, lasts), np.arange(len(before)), 0)
    begins = np.maximum.accumulate(begins)  # where the episode of each step begins
    acts = before == np.where(begins[:, None] > 0, before[begins], 0)
    return acts[:-1], ~acts[-1]


def _rows(
    vault: _Vault,
    block: Mapping[str, np.ndarray],
    flags: Mapping[str, np.ndarray],
    acts: np.ndarray,
    lasts: np.ndarray,
    first: int,
) -> Rows:
    """Return a block by what its columns are."""
    terminals, truncations = (flags[name] for name in FLAGS)
    all_done = lasts & (terminals | truncations).all(axis=1)
    actions = block["actions"]
    rewards = as_dtype(block["rewards"], np.dtype(np.float64), f"{vault.where}, rewards", first)
    rows: Rows = {
        "action": actions.astype(np.int64) if actions.dtype.kind in "iu" else actions,
        "reward": rewards.sum(axis=1),
        "terminated": all_done & terminals.any(axis=1),
        "truncated": all_done & truncations.any(axis=1),
    }
    for number, name in enumerate(vault.agents):
        rows[f"observation/{name}"] = block["observations"][:, number]
        own = f"infos/agents/{name}"
        rows[f"{own}/acts"] = acts[:, number]
        rows[f"{own}/rewards"] = block["rewards"][:, number]
        rows[f"{own}/terminations"] = terminals[:, number] & acts[:, number]
        rows[f"{own}/truncations"] = truncations[:, number] & acts[:, number]
        if LEGAL in block:
            rows[f"{own}/legals"] = block[LEGAL][:, number]
    for name, values in block.items():
        if name.startswith("infos.") and name != LEGAL:
            rows[f"infos/{name.removeprefix('infos.').replace('.', '/')}"] = values
    return rows


def _check_ogmarl() -> None:
    with needing("vaults need tensorstore", "orlog[formats]"):
        import tensorstore  # noqa: F401


def _recognizes_ogmarl(files: Sequence[Path]) -> bool:
    folder = files[0]
    places = (folder, *(inner for inner in sorted(folder.iterdir()) if inner.is_dir()))
    return any((place / DATABASE).is_file() and (place / METADATA).is_file() for place in places)


OGMARL = Format(
    name="og-marl-vault",
    open=_open_ogmarl,
    recognizes=_recognizes_ogmarl,
    extensions=("",),
    options=("task",),
    check=_check_ogmarl,
    reads=("./*manifest.ocdbt", "./*d/**", "*metadata.json:version", "*metadata.json:structure_shape"),
)


ITEMS = "item_context.csv"
ID, POSITION, CLICK, CHANCE = OPEN_BANDIT_NEEDED = ("item_id", "position", "click", "propensity_score")
TIME, USER, AFFINITY, ITEM = "timestamp", "user_feature_", "user-item_affinity_", "item_feature_"
TEXT_BYTES = 2**22
MOST = 2**20
"""Most items, positions or texts of a feature: a file with more is no such log."""
Block = dict[str, np.ndarray]
"""Rows of some columns, by name."""


@contextlib.contextmanager
def _open_open_bandit(asked: Asked) -> Iterator[Opened]:
    log_file, items_file = _files_open_bandit(asked)
    log = _Log(log_file, asked.sources[0])
    parts: dict[str, spaces.Space[Any]] = {"position": spaces.Discrete(log.positions)}
    if log.affinities:
        parts["affinity"] = unbounded_space(np.dtype(np.float64), (len(log.affinities),))
    if log.texts:
        parts["user"] = spaces.MultiDiscrete([len(texts) for texts in log.texts.values()])
    features = {} if items_file is None else _item_features(items_file, log)
    items = max([log.items, *(len(values) for values in features.values())])
    schema = Schema(
        observation_space=spaces.Dict(parts), action_space=spaces.Discrete(items), reward_dtype=np.dtype(np.float64)
    )
    opened = Opened(schema=schema, steps=_steps_open_bandit(log, features), total_steps=log.rows)
    unread = [
        f"{file.name}:{name}"
        for file in filter(None, (log_file, items_file))
        for name in _names(file, asked.sources[0])
        # A first column of the numbers of rows has no name.
        if name not in ("", TIME, *OPEN_BANDIT_NEEDED) and not name.startswith((USER, AFFINITY, ITEM))
    ]
    opened.notes += [Note("columns_not_read", unread)] if unread else []
    opened.notes += [Note("left_out_items", [ITEMS])] if items_file is None else []
    opened.notes.append(Note("bandit_rows"))
    yield opened


def _files_open_bandit(asked: Asked) -> tuple[Path, Path | None]:
    """Return the file of choices, and that of items if it is there."""
    given = list(asked.files)
    if given[0].is_dir():
        given = sorted(given[0].glob("*.csv"))
    logs = [file for file in given if file.name != ITEMS]
    if len(logs) != 1:
        raise SchemaError(f"{asked.sources[0]}: expected one file of choices beside {ITEMS}, found {len(logs)}.")
    return logs[0], next((file for file in given if file.name == ITEMS), None)


class _Log:
    """The choices, all of which are read once to see what there is.

    Attributes:
        where: What errors call the file.
        affinities: Columns of affinities.
        texts: The texts of each feature of users, sorted.
        rows: Choices.
        items: 1 above the largest item.
        positions: The largest position.
    """

    def __init__(self, file: Path, where: str) -> None:
        """Read all choices."""
        self._file, self.where = file, where
        names = sorted(_names(file, where), key=by_numbers)
        for needed in OPEN_BANDIT_NEEDED:
            if needed not in names:
                raise SchemaError(f"{where}: has no column {needed}, which Open Bandit's logs have.")
        self.affinities = [name for name in names if name.startswith(AFFINITY)]
        self._texts = [name for name in names if name.startswith(USER) or name == TIME]
        seen: dict[str, set[str]] = {name: set() for name in self._texts if name != TIME}
        self.rows = self.items = self.positions = 0
        for block in self.blocks():
            _check_open_bandit(block, where, self.rows)
            for name, texts in seen.items():
                texts.update(block[name].tolist())
            self.rows += len(block[CLICK])
            self.items = max(self.items, int(block[ID].max()) + 1)
            self.positions = max(self.positions, int(block[POSITION].max()))
        if not self.rows:
            raise SchemaError(f"{where}: holds no choices.")
        self.texts = {name: np.array(sorted(texts), object) for name, texts in seen.items()}

    def blocks(self) -> Iterator[Block]:
        """Yield the columns that mean something, in blocks of rows."""
        columns = [*OPEN_BANDIT_NEEDED, *self.affinities, *self._texts]
        yield from _blocks(self._file, self.where, columns, self._texts)


def _check_open_bandit(block: Block, where: str, first: int) -> None:
    """Refuse numbers that are none of such a log; `first` is the row of the first one."""
    for name, lowest, highest in ((ID, 0, MOST), (POSITION, 1, MOST), (CLICK, 0, 1), (CHANCE, 0, 1)):
        values = block[name]
        wrong = ~((values >= lowest) & (values <= highest)) | ((name == CHANCE) & (values == 0))
        if wrong.any():
            row = int(wrong.argmax())
            raise SchemaError(f"{where}: {name} is {values[row]} at row {first + row}, expected {lowest} to {highest}.")


def _item_features(file: Path, log: _Log) -> dict[str, np.ndarray]:
    """Return each feature of the items, a row for each item; texts by their places in sorted order."""
    where = str(file)
    names = sorted((name for name in _names(file, where) if name.startswith(ITEM)), key=by_numbers)
    blocks = [*_blocks(file, where, [ID, *names], [])]
    if not blocks:
        raise SchemaError(f"{where}: holds no items.")
    items, *columns = (np.concatenate([block[name] for block in blocks]) for name in (ID, *names))
    order = np.argsort(items, kind="stable")
    if not np.array_equal(items[order], np.arange(len(items))):
        raise SchemaError(f"{where}: item_id must have each number from 0 on once.")
    if len(items) < log.items:
        raise SchemaError(f"{where}: has no item {len(items)}, which {log.where} shows.")
    features = {}
    for name, values in zip(names, columns, strict=True):
        is_text = values.dtype.kind == "O"
        numbers = np.unique(values.astype(str), return_inverse=True)[1] if is_text else values
        features[name] = numbers.astype(np.int64 if is_text else np.float64)[order]
    return features


def _steps_open_bandit(log: _Log, features: dict[str, np.ndarray]) -> Iterator[Steps]:
    for block in log.blocks():
        items, rewards = block[ID].astype(np.int64), block[CLICK].astype(np.float64)
        observations: Block = {"position": block[POSITION].astype(np.int64) - 1}
        if log.affinities:
            affinities = np.stack([block[name] for name in log.affinities], 1)
            observations["affinity"] = affinities.astype(np.float64)
        if log.texts:
            places = [np.searchsorted(texts, block[name]) for name, texts in log.texts.items()]
            observations["user"] = np.stack(places, 1).astype(np.int64)
        infos = {"action_log_probs": np.log(block[CHANCE].astype(np.float64))}
        infos |= {name: values[items] for name, values in features.items()}
        if TIME in block:
            infos[TIME] = _microseconds(block[TIME], log.where)
        for number in range(len(items)):
            row = slice(number, number + 1)
            yield Steps(
                observations={
                    name: np.concatenate([values[row], np.zeros_like(values[row])])
                    for name, values in observations.items()
                },
                actions=items[row],
                rewards=rewards[row],
                terminated=True,
                infos={name: values[row] for name, values in infos.items()},
                metadata={MISSING: True},
            )


def _microseconds(texts: np.ndarray, where: str) -> np.ndarray:
    try:
        plain = [text.removesuffix("+00:00").removesuffix(" UTC").strip() for text in texts]
        return np.array(plain, "datetime64[us]").astype(np.int64)
    except ValueError as error:
        raise SchemaError(f"{where}: {TIME} is no time in UTC: {error!s:.80}.") from error


def _names(file: Path, where: str) -> list[str]:
    with reading_arrow(where), _reader(file, None, []) as reader:
        return list(reader.schema.names)


def _blocks(file: Path, where: str, columns: list[str], texts: Sequence[str]) -> Iterator[Block]:
    """Yield rows of some columns, of which some hold texts whatever they look like."""
    first = 0
    with reading_arrow(where), _reader(file, columns, texts) as reader:
        for batch in reader:
            yield {name: array_of(batch.column(name), name, where, first) for name in columns}
            first += batch.num_rows


def _reader(file: Path, columns: list[str] | None, texts: Sequence[str]) -> Any:
    import pyarrow as pa
    import pyarrow.csv

    if file.is_symlink():
        raise SchemaError(f"{file}: is a link, which is not followed.")
    affinities = [name for name in columns or () if name.startswith(AFFINITY)]
    convert = pyarrow.csv.ConvertOptions(
        include_columns=columns,
        column_types={
            **dict.fromkeys(texts, pa.string()),
            **dict.fromkeys((ID, POSITION, CLICK), pa.int64()),
            **dict.fromkeys((CHANCE, *affinities), pa.float64()),
        },
        strings_can_be_null=False,
    )
    read = pyarrow.csv.ReadOptions(block_size=TEXT_BYTES)
    return pyarrow.csv.open_csv(file, read, convert_options=convert)


def is_open_bandit(files: Sequence[Path]) -> bool:
    """Return whether files, or a folder, hold choices as the Open Bandit Dataset has them."""
    given = list(files)
    try:
        if given[0].is_dir():
            given = [file for file in given[0].iterdir() if file.suffix == ".csv"]
        logs = [file for file in given if file.suffix == ".csv" and file.name != ITEMS]
        if len(logs) != 1 or len(given) > 2:
            return False
        with logs[0].open("rb") as opened:
            names = opened.readline(2**16).decode("utf-8", "replace").strip().split(",")
    except OSError:
        return False
    return {*OPEN_BANDIT_NEEDED} <= {name.strip('"') for name in names}


OPEN_BANDIT = Format(
    name="open-bandit",
    open=_open_open_bandit,
    recognizes=is_open_bandit,
    extensions=(".csv", ""),
    check=check_pyarrow,
    reads=("./*.csv",),
)
FORMATS = {"ogbench": OGBENCH, "ogmarl": OGMARL, "open_bandit": OPEN_BANDIT}
