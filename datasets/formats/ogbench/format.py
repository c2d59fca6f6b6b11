"""Reads and writes the npz files of OGBench (Park and others, 2025): T + 1 rows for T steps.

    observations  (S, n) float32, or (S, height, width, channels) uint8
    actions       (S, m) float32, or (S,) integers      the last one of an episode means nothing
    terminals     (S,)    1 on the last row of an episode, which ends by a time limit alone
    qpos qvel button_states ..    (S, ..) in some files  kept as infos, without the last row

There are no rewards: goals are chosen when training, and rewards here are zeros. With `--task` they are those
of a single task, as `ogbench/tasks.py` computes them. `NAME.npz` and `NAME-val.npz`, or many
such files (`NAME-000.npz`, `NAME-000-val.npz`, ..), make one dataset, whose `episodes/split` is `train` or
`val`. https://github.com/seohongpark/ogbench, `ogbench/utils.py`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._shared.episodes import Asked, Opened, Steps
from orlog.datasets.formats._shared.flat_rows import unbounded_space
from orlog.datasets.formats._shared.flat_writing import file_stem
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.npz_files import NpzFile, is_npz, open_npz
from orlog.datasets.formats._shared.npz_writing import NpzWriter, npz_writer
from orlog.datasets.formats._shared.pieces import read_pieces
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.ogbench.tasks import Task, find_task, with_rewards
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import IntegrityError, SchemaError

BLOCK_BYTES = 2**24
POWDERWORLD_ACTIONS = 8  # places of the brush along an edge; the only environment with integers
NEEDED = ("observations", "actions", "terminals")


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    files = _files(asked)
    kinds: list[dict[str, tuple[np.dtype[Any], tuple[int, ...]]]] = []
    sizes: list[int] = []
    for path, where in files:  # not all at once: large sets have a thousand files
        with open_npz(path, where) as file:
            columns = _columns(file)
        kinds.append({name: (one.dtype, one.shape[1:]) for name, one in columns.items()})
        sizes.append(len(columns["observations"]))
        if kinds[-1] != kinds[0]:
            raise SchemaError(
                f"{where}: its arrays differ from those of {files[0][1]} in names, dtypes or shapes, "
                "so they are not one dataset."
            )
    where = files[0][1]
    task = None
    if asked.options.task:
        task = find_task(asked.options.task, files[0][0].stem, where)
        task.check({name: shape for name, (_, shape) in kinds[0].items()}, where)
    schema = Schema(
        observation_space=unbounded_space(*kinds[0]["observations"]),
        action_space=_action_space(*kinds[0]["actions"], where),
        reward_dtype=np.dtype(np.float32),
    )
    notes = [] if asked.options.reward else [Note("rewards_of_goals")]
    if task is not None:
        notes = [Note("rewards_of_task", number=task.number, environment=task.environment)]
    steps = read_pieces(asked, functools.partial(_read_files, task), files)
    yield Opened(schema=schema, steps=steps, total_steps=sum(sizes), notes=notes)


def _files(asked: Asked) -> list[tuple[Path, str]]:
    """Return the files, those of a folder by their names, and what errors call them."""
    folder = asked.files[0]
    if not folder.is_dir():
        return list(zip(asked.files, asked.sources, strict=True))
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise SchemaError(f"{asked.sources[0]}: holds no npz files, so it is no set of OGBench.")
    if any(file.is_symlink() for file in files):
        raise SchemaError(f"{asked.sources[0]}: a file is a link, which is not followed.")
    return [(file, f"{asked.sources[0]}, {file.name}") for file in files]


def _read_files(task: Task | None, files: Iterable[tuple[Path, str]]) -> Iterator[Steps]:
    for path, where in files:
        split = "val" if path.stem.endswith("-val") else "train"
        with open_npz(path, where) as opened:
            steps = _steps(opened, _columns(opened), split)
            yield from steps if task is None else with_rewards(steps, task, split)


def _columns(file: NpzFile) -> dict[str, Any]:
    """Return the columns of a file, all with as many rows."""
    columns = {name: file.column(name) for name in NEEDED}
    columns |= {name: file.column(name) for name in file.names if name not in NEEDED}
    count = len(columns["observations"])
    for name, column in columns.items():
        if len(column) != count:
            raise SchemaError(
                f"{file.where}, {name}: expected {count} rows as in observations, found {len(column)}."
            )
    return columns


def _action_space(dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> gymnasium.Space[Any]:
    """Return the space that OGBench's environments have."""
    if dtype.kind == "f" and len(shape) == 1:
        return gymnasium.spaces.Box(-1, 1, shape, dtype.type)
    if dtype.kind in "iu" and shape == ():
        return gymnasium.spaces.Discrete(POWDERWORLD_ACTIONS)
    raise SchemaError(f"{where}, actions: expected a row of floats a step, found {dtype} {shape}.")


def _steps(file: NpzFile, columns: dict[str, Any], split: str) -> Iterator[Steps]:
    count = len(columns["observations"])
    row_bytes = sum(one.dtype.itemsize * int(np.prod(one.shape[1:])) for one in columns.values())
    block_rows = max(2, BLOCK_BYTES // row_bytes)
    infos = [name for name in columns if name not in NEEDED]
    inside = False
    held: dict[str, np.ndarray] = {}
    for start in range(0, count, block_rows):
        stop = min(count, start + block_rows)
        block = {name: one[start:stop] for name, one in columns.items()}
        first_row = start - len(next(iter(held.values()), ()))
        if held:
            block = {name: np.concatenate((held[name], values)) for name, values in block.items()}
        ends = block["terminals"].reshape(len(block["terminals"]), -1)[:, 0]
        odd = np.flatnonzero((ends != 0) & (ends != 1))
        if len(odd):
            raise SchemaError(
                f"{file.where}, terminals: expected 0 or 1, found {ends[odd[0]]} in row "
                f"{first_row + odd[0]}."
            )
        if stop == count and not ends[-1]:
            raise IntegrityError(
                f"{file.where}, terminals: the last row does not end an episode, so the file is cut off.",
                file=file.where,
            )
        begin = 0
        for end in np.flatnonzero(ends).tolist():
            if end == begin and not inside:
                raise SchemaError(
                    f"{file.where}: an episode of one row, {first_row + end}, has no step."
                )
            yield _piece(block, begin, end, infos, inside, split)
            begin, inside = end + 1, False
        # The last row may be the final observation of its episode, so it is held.
        last = len(ends) - 1
        if last > begin:
            yield _piece(block, begin, last, infos, inside, "")
            begin, inside = last, True
        held = {name: values[begin:] for name, values in block.items()}


def _piece(
    block: dict[str, np.ndarray], begin: int, end: int, infos: list[str], inside: bool, split: str
) -> Steps:
    """Return the steps from row `begin` to the one whose observation is that of row `end`."""
    actions = block["actions"][begin:end]
    return Steps(
        observations=block["observations"][begin + inside : end + 1],
        actions=actions if actions.dtype.kind == "f" else actions.astype(np.int64),
        rewards=np.zeros(end - begin, np.float32),
        ends=bool(split),
        truncated=bool(split),
        infos={name: block[name][begin:end] for name in infos},
        metadata={"split": split} if split else {},
    )


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
    writers: dict[str, NpzWriter] = {}
    with contextlib.ExitStack() as stack:
        for episode in dataset:
            count = len(episode.rewards)
            rows = {
                "observations": episode.observations,
                "actions": _padded(episode.actions),
                "terminals": np.arange(count + 1) == count,
            }
            infos = episode.infos.items()
            rows |= {
                key: _padded(values) for key, values in infos if isinstance(values, np.ndarray)
            }
            ending = "-val" if episode.metadata.get("split") == "val" else ""
            if ending not in writers:
                file = folder / f"{name}{ending}.npz"
                writers[ending] = stack.enter_context(npz_writer(file))
            writers[ending].add(rows)
            done += count
            progress(done, dataset.total_steps)


def _padded(values: np.ndarray) -> np.ndarray:
    """Return rows with the last one repeated, which stands beside the final observation."""
    return np.concatenate((values, values[-1:]))


def _losses(dataset: Dataset) -> list[str]:
    """Say what OGBench's files cannot hold.

    Raises SchemaError if observations or actions that they have no place for.
    """
    spaces = (dataset.observation_space, dataset.action_space)
    if not all(isinstance(space, gymnasium.spaces.Box) for space in spaces):
        raise SchemaError(
            f"{dataset.name}: OGBench's files hold a Box of observations and of actions, found "
            f"{spaces[0]} and {spaces[1]}."
        )
    said = []
    if dataset.column("rewards").any():
        said.append("Rewards are lost.")
    if dataset.column("terminations").any():
        said.append("That the task ended is lost: all ends look like a time limit.")
    extras = dataset.schema.extras
    more = [name for name in extras if name.startswith("episodes/") and name != "episodes/split"]
    if more:
        said.append(f"Columns of episodes are lost: {', '.join(more)}.")
    return said


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
