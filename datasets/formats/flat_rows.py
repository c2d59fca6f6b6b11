"""Datasets with a row for each step, and flags or a horizon that say where episodes ended; read, and written.

    observations actions rewards terminals [timeouts] [next_observations] and more, all of S rows

An episode ends at a terminal, a timeout, the horizon, the last row, or where `next_observations` is not the
observation that follows. Where there are no next observations, what followed the last step of an episode
was never recorded: an episode that no terminal ends loses that step, whose observation is the final
one; one that a terminal ends keeps it, with a final observation of zeros, and
`episodes/final_observation_missing` is true.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from orlog.datasets.columns.schema import Schema
from orlog.datasets.columns.values import Block
from orlog.datasets.formats.episode_cutter import MISSING, EpisodeCutter, Rows
from orlog.datasets.formats.episodes import Opened, Options, Steps
from orlog.datasets.formats.flags import UnknownEnds
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.safe_reading import rows_differ
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError
from orlog.manifests.counterparts import BenchmarkEnvironment
from orlog.manifests.names import counted

BLOCK_BYTES = 2**22  # stays in the cache of the processor
FEW_JOINTS = 10
STEPS_PER_JOINT = 1000
MOST_CHOICES = 2**20
MOST_MAPPED_CHOICES = 2**16
MOST_EXACT = 2**53  # float64 holds all integers up to it
FLOATS = ("float16", "float32", "float64")
NO_ENDS: np.ndarray = np.zeros(0, bool)
ROLES = {
    "observations": "observation",
    "next_observations": "next_observation",
    "actions": "action",
    "rewards": "reward",
    "terminals": "terminated",
    "timeouts": "truncated",
}
"""What D4RL's names of columns are to an `EpisodeCutter`."""
ONE_NUMBER = ("rewards", "terminals", "timeouts")


class FlatRows:
    """The columns of a file, checked before a value is read; `dtypes` and `shapes` of rows are those that they have here."""

    def __init__(
        self,
        columns: Mapping[str, Any],
        where: str,
        *,
        infos: Mapping[str, str],
        left_out: Sequence[str] = (),
        ends: np.ndarray = NO_ENDS,
        benchmark: BenchmarkEnvironment | None = None,
        choices: int = 0,
    ) -> None:
        """Check that the columns belong together, and fit the benchmark's environment, since files tell no bounds.

        A column can be sliced by rows, in order, and has `shape` and `dtype`: `observations`, `actions`,
        `rewards`, `terminals`, and where the file has them `timeouts`, `next_observations` and more. `infos`
        are keys of more of them by the name of the column here, `left_out` keys to be told that are not read,
        `ends` (S,) bool are the last rows of episodes of which nothing says how they ended, and `choices` is what
        `count_choices` found among the actions.

        Raises SchemaError if they do not.
        """
        self.where, self.left_out, self.ends = where, list(left_out), ends
        self.benchmark = benchmark
        self.choices = choices if benchmark is None else benchmark.actions.choices
        self._columns = dict(columns)
        self._roles = ROLES | {key: f"infos/{name}" for name, key in infos.items()}
        self.count = len(columns["observations"])
        self.dtypes = {key: np.dtype(column.dtype.str).newbyteorder("=") for key, column in columns.items()}
        if self.dtypes["rewards"].kind in "biu":
            self.dtypes["rewards"] = np.dtype(np.float64)
        self.shapes = {key: tuple(column.shape[1:]) for key, column in columns.items()}
        if benchmark is not None:
            self._check_fit(benchmark)
        if self.choices:
            self.dtypes["actions"], self.shapes["actions"] = np.dtype(np.int64), ()
        self.has_next = "next_observations" in columns
        # Whether neither flags nor observations say where a time limit ended an episode.
        self.needs_horizon = not (self.has_next or len(ends) or "timeouts" in columns)
        self._check()

    def blocks(self, reading: Callable[[str], AbstractContextManager[None]]) -> Iterator[Block]:
        """Yield rows of all columns in blocks, with `terminals` and `timeouts` as flags."""
        row_bytes = sum(self.dtypes[key].itemsize * math.prod(shape) for key, shape in self.shapes.items())
        rows = max(1, BLOCK_BYTES // row_bytes)
        for start in range(0, self.count, rows):
            with reading(self.where):
                block = {key: self._read(key, start, min(self.count, start + rows)) for key in self._columns}
            block.setdefault("timeouts", np.zeros(len(block["rewards"]), bool))
            yield block

    def by_role(self, block: Block) -> Rows:
        """Return a block by what its columns are to an `EpisodeCutter`."""
        return {self._roles[key]: values for key, values in block.items()}

    def _read(self, key: str, start: int, stop: int) -> np.ndarray:
        stored = np.asarray(self._columns[key][start:stop])
        where = f"{self.where}, {key}"
        if key == "actions" and self.choices:  # D4RL stores them as floats
            stored = stored.reshape(stop - start)
            expected = f"a number from 0 to {self.choices - 1}"
            _refuse(~np.isin(stored, np.arange(self.choices)), stored, where, start, expected)
            return stored.astype(np.int64)
        values = as_dtype(stored, self.dtypes[key], where, start)
        if key in ONE_NUMBER:
            values = values.reshape(stop - start)
        if key in ("terminals", "timeouts") and values.dtype != bool:
            _refuse((values != 0) & (values != 1), values, where, start, "0 or 1")
            return values.astype(bool)
        return values

    def _check_fit(self, benchmark: BenchmarkEnvironment) -> None:
        """Refuse observations or actions that the benchmark's environment does not have."""
        observation, action = self.shapes["observations"], self.shapes["actions"]
        size = benchmark.actions.size
        wanted = tuple(benchmark.observation_shape) or observation, (size,) if size else ()
        if action == (1,) and not size:
            action = ()
        if (observation, action) != wanted:
            raise SchemaError(
                f"{self.where}: observations {_shown(observation)} and actions {_shown(action)} do not fit "
                f"{benchmark.datasets[0]} (environment {benchmark.name}), which has observations "
                f"{_shown(wanted[0])} and actions {_shown(wanted[1])}."
            )

    def _check(self) -> None:
        """Refuse columns of other lengths, shapes or dtypes than such a file has."""
        kinds = {key: (self.dtypes[key], self.shapes[key]) for key in self._columns}
        for key, (dtype, shape) in kinds.items():
            rows, is_floats, expected = len(self._columns[key]), dtype.name in FLOATS, ""
            if rows != self.count:
                raise SchemaError(f"{self.where}, {key}: expected {self.count} rows as in observations, found {rows}.")
            if key == "actions" and not self.choices and not (is_floats and len(shape) == 1):
                expected = "a row of floats"
            elif key in ("observations", "next_observations") and not (shape and (is_floats or dtype == np.uint8)):
                expected = "a row of floats or an image of bytes"
            elif key in ONE_NUMBER and shape not in ((), (1,)):
                expected = "one number per step"
            elif key == "rewards" and dtype.name not in FLOATS[1:]:
                expected = "integers, float32 or float64"
            elif key == "next_observations" and kinds["observations"] != (dtype, shape):
                before = kinds["observations"]
                expected = f"{before[0]} {before[1]} as in observations"
            if expected:
                raise SchemaError(f"{self.where}, {key}: expected {expected}, found rows of {dtype} {shape}.")


def open_flat_rows(rows: FlatRows, options: Options, reading: Callable[[str], AbstractContextManager[None]]) -> Opened:
    """Return the episodes of rows; `reading` turns errors of the library that reads the file into ours.

    The environment truncates after `options.limit` steps: needed where there are neither timeouts nor next
    observations, and counted only there, or where nothing says how episodes ended.

    Raises SchemaError if that limit is missing, or given where the file says it.
    """
    horizon = options.limit
    if not rows.needs_horizon and options.horizon is not None and not len(rows.ends):
        key = "timeouts" if not rows.has_next else "next_observations"
        raise SchemaError(
            f"{rows.where}: its {key} say where time limits ended episodes, so horizon={options.horizon} says nothing; leave it out."
        )
    if rows.needs_horizon and horizon is None:
        raise SchemaError(
            f"{rows.where}: has neither timeouts nor next_observations, so nothing says where the time "
            "limit ended an episode; give the environment's time limit in steps (if it has none, "
            "any number above the length of the longest episode) as horizon=."
        )
    space = unbounded_space(rows.dtypes["observations"], rows.shapes["observations"])
    schema = Schema(observation_space=space, action_space=_action_space(rows), reward_dtype=rows.dtypes["rewards"])
    opened = Opened(schema=schema, steps=iter(()), total_steps=rows.count)
    ends = _Ends(rows, horizon if rows.needs_horizon else None)
    opened.steps = _steps(rows, ends, reading, opened.notes, options)
    return opened


def _steps(
    rows: FlatRows,
    ends: _Ends,
    reading: Callable[[str], AbstractContextManager[None]],
    notes: list[Note],
    options: Options,
) -> Iterator[Steps]:
    unknown = UnknownEnds(options, rows.where, says=() if len(rows.ends) else ("terminated",))
    unknown.is_cutting = rows.needs_horizon
    cutter = EpisodeCutter(ends.after, rows.where, unknown=unknown)
    for block in rows.blocks(reading):
        if ends.horizon is not None:
            block["timeouts"] = ends.find_timeouts(block["terminals"], ends.horizon)
        yield from cutter.add(rows.by_role(block))
    notes += unknown.notes()
    if ends.horizon is not None:
        notes.append(Note("ends_by_horizon", horizon=ends.horizon))
    if cutter.left_out:
        notes.append(Note("last_steps", steps=cutter.left_out))
    if cutter.missing:
        missing = [f"episodes/{MISSING}"]
        notes.append(Note("finals_missing_at_terminals", missing, episodes=cutter.missing))
    if ends.joints:
        notes.append(Note("ends_at_joints", places=ends.joints, how=options.ends or "truncated"))
    if rows.choices and rows.benchmark is None:
        notes.append(Note("choices_of_file", count=rows.choices, largest=rows.choices - 1))
    if rows.left_out:
        notes.append(Note("left_out_no_rows", rows.left_out))


class _Ends:
    """Says where episodes end: after `horizon` steps too, if given, and at `joints`, where observations do not follow."""

    def __init__(self, rows: FlatRows, horizon: int | None) -> None:
        self.horizon, self.joints = horizon, 0
        self._rows = rows
        self._open_steps = 0  # of the last episode so far, where the horizon ends episodes

    def after(self, rows: Rows, first: int) -> np.ndarray:
        """Return after which rows an episode ends, (n,) bool, `first` being the place of the first one."""
        ends: np.ndarray = rows["terminated"] | rows["truncated"]
        if len(self._rows.ends):
            ends |= self._rows.ends[first : first + len(ends)]
        if first + len(ends) == self._rows.count:
            ends[-1] = True
        if self._rows.has_next:
            self._find_joints(rows, first, ends)
        return ends

    def find_timeouts(self, terminals: np.ndarray, horizon: int) -> np.ndarray:
        """Return where episodes of the next rows of the file reach the horizon."""
        timeouts = np.zeros(len(terminals), bool)
        first = -self._open_steps
        for end in (*np.flatnonzero(terminals).tolist(), len(terminals)):
            timeouts[first + horizon - 1 : end : horizon] = True  # not at the terminal itself
            self._open_steps = (end - first) % horizon
            first = end + 1
        return timeouts

    def _find_joints(self, rows: Rows, first: int, ends: np.ndarray) -> None:
        """End episodes where observations do not follow each other, as where files were joined."""
        odd = rows_differ(rows["next_observation"][:-1], rows["observation"][1:])
        torn = np.flatnonzero(odd & ~ends[:-1])
        ends[torn] = True
        self.joints += len(torn)
        if self.joints > max(FEW_JOINTS, self._rows.count // STEPS_PER_JOINT):
            step = first + int(torn[0])
            raise SchemaError(
                f"{self._rows.where}, next_observations: that of step {step} is not the observation of step "
                f"{step + 1}, and neither terminals nor timeouts end an episode there, as in "
                f"{self.joints - len(torn)} earlier places; so these are not next observations."
            )


def count_choices(actions: Any, where: str) -> int:
    """Return how many actions there are to choose from, by the largest number; 0 if they are no choices.

    All rows are read, by slices. A number that is negative, or too large for a choice, is refused.
    """
    if actions.dtype.kind not in "iu" or tuple(actions.shape[1:]) not in ((), (1,)):
        return 0
    most, block = 0, BLOCK_BYTES // 8
    for start in range(0, actions.shape[0], block):
        values = np.asarray(actions[start : min(actions.shape[0], start + block)])
        odd = (values < 0) | (values >= MOST_CHOICES)
        expected = f"discrete actions from 0 to {MOST_CHOICES - 1}"
        _refuse(odd.reshape(-1), values.reshape(-1), f"{where}, actions", start, expected)
        most = max(most, int(values.max()) + 1)
    return most


def count_from_zero(opened: Opened, code: str) -> list[Note]:
    """Let discrete actions of a layout of arrays begin with 0, and return the note of a code about how many there are."""
    space = opened.schema.action_space
    if not isinstance(space, Discrete):
        return []
    count = int(space.start + space.n)
    opened.schema = dataclasses.replace(opened.schema, action_space=Discrete(count))
    return [Note(code, count=count, largest=count - 1)]


def _refuse(wrong: np.ndarray, values: np.ndarray, where: str, first: int, expected: str) -> None:
    """Refuse values of which some are wrong, (n,) bool; `first` is the step of the first one."""
    if wrong.any():
        row = int(wrong.argmax())
        raise SchemaError(f"{where}: expected {expected}, found {values[row]} at step {first + row}.")


def kept_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which observations are kept: floats, and integers of up to 16 bits, as they are.

    Wider integers and flags become float64, since loaders take no integer that float32 would round.
    """
    is_kept = dtype.kind not in "biu" or (dtype.kind != "b" and dtype.itemsize <= 2)
    return dtype if is_kept else np.dtype(np.float64)


def as_dtype(values: np.ndarray, dtype: np.dtype[Any], where: str, first: int = 0) -> np.ndarray:
    """Return numbers in another dtype; `first` is the number of their first row in errors.

    Raises SchemaError if an integer would change.
    """
    if values.dtype == dtype or values.dtype.kind not in "iu":
        return values.astype(dtype, copy=False)
    with np.errstate(over="ignore"):
        converted = values.astype(dtype)
    wrong = converted != values
    if dtype.kind == "f" and values.dtype.itemsize == 8:  # which were rounded to be compared
        wrong |= (values > MOST_EXACT) | (values < -MOST_EXACT)
    if wrong.any():
        place = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise SchemaError(
            f"{where}: holds {values[place]} at row {first + int(place[0])}, which {dtype} does not hold exactly; leave it "
            "out, or map it as infos/NAME, where integers stay as they are."
        )
    return converted


def unbounded_space(dtype: np.dtype[Any], shape: tuple[int, ...]) -> gymnasium.Space[Any]:
    """Return the space of numbers of a file that tells no bounds."""
    kind: Any = dtype.type
    if dtype.kind in ("b", "u"):
        return Box(0, 1 if dtype.kind == "b" else np.iinfo(dtype).max, shape, kind)
    return Box(-np.inf, np.inf, shape, kind)


def mapped_action_space(
    kind: tuple[np.dtype[Any], tuple[int, ...]], lowest: int, highest: int, where: str
) -> gymnasium.Space[Any]:
    """Return as many choices as there are single integers, else a Box without bounds.

    Raises SchemaError if they are too many for discrete actions.
    """
    dtype, shape = kind
    if dtype.kind not in "iu" or shape:
        return unbounded_space(dtype, shape)
    count = highest - lowest + 1
    if count > MOST_MAPPED_CHOICES or highest >= 2**63:
        raise SchemaError(
            f"{where}: actions from {lowest} to {highest} are not discrete actions; store them as floats "
            "if they are quantities."
        )
    return Discrete(count, start=lowest)


def _action_space(rows: FlatRows) -> gymnasium.Space[Any]:
    """Return the space of actions: the benchmark's, with the numbers of the file."""
    benchmark, dtype, shape = rows.benchmark, rows.dtypes["actions"], rows.shapes["actions"]
    if benchmark is None:
        return Discrete(rows.choices) if rows.choices else unbounded_space(dtype, shape)
    if rows.choices:
        return benchmark.actions.space
    kind: Any = dtype.type
    return Box(benchmark.actions.low, benchmark.actions.high, shape, kind)


def _shown(shape: tuple[int, ...]) -> str:
    return f"of {shape[0]}" if len(shape) == 1 else f"of shape {shape}"


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
