"""What a user gives in place of what files say: rewards, an environment, bounds, and conventions of recordings.

docs/formats.md has the options. Rows move within their episode alone. Those without a partner at an end are left out: with -1
the last one of each episode, whose observation is then the final one. How episodes ended stays. Spaces that are given narrow
those of the files, whose numbers stay as they are.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import json
import runpy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.episode_cutter import MISSING, OF_STEPS, success_in
from orlog.datasets.formats.episodes import Opened, Options, Steps
from orlog.datasets.formats.notes import OF_FINALS, Note
from orlog.datasets.worlds.environments import environment_record, make_environment
from orlog.errors import NotFoundError, SchemaError
from orlog.manifests.counterparts import BenchmarkEnvironment
from orlog.manifests.manifest import EnvironmentRecord
from orlog.manifests.names import did_you_mean

CHANNELS = (1, 3, 4)
CONVENTIONS = ("shift", "flip", "bgr")
"""The options of this module, which all formats take."""


def put_conventions(opened: Opened, options: Options, where: str) -> None:
    """Mend the steps as the user says, and add a note about each change when they are read."""
    for option, patterns in (("flip", options.flip), ("bgr", options.bgr)):
        if patterns:
            opened.steps = _reframed(opened.steps, opened.notes, option, patterns, where)
    if options.shift:
        opened.steps = _shifted(opened.steps, opened.notes, options.shift, where)


def about_pictures(columns: Collection[str], options: Options) -> list[Note]:
    """Return what to know about columns of frames that were decoded from pictures in arrays, as cv2 may have written them."""
    if not columns or options.bgr:
        return []
    return [Note("pictures", columns, lines=" ".join(f"--bgr {name}" for name in columns))]


def rows_of(values: Any, rows: slice) -> Any:
    """Return some rows of the values of a space."""
    return _changed("", values, lambda _, part: part[rows])


def joined(before: Any, after: Any) -> Any:
    """Return rows of the values of a space with those that follow."""
    if isinstance(before, dict):
        return {name: joined(before[name], part) for name, part in after.items()}
    if isinstance(before, tuple):
        return tuple(map(joined, before, after))
    return before + after if isinstance(before, list) else np.concatenate((before, after))


def _changed(name: str, values: Any, change: Callable[[str, Any], Any]) -> Any:
    """Return values with all of their parts changed, each by its name and what it holds."""
    if isinstance(values, dict):
        return {key: _changed(f"{name}/{key}", part, change) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(_changed(f"{name}/{n}", part, change) for n, part in enumerate(values))
    return change(name, values)


def _frames_changed(steps: Steps, change: Callable[[str, Any], Any]) -> Steps:
    infos = {name: _changed(f"infos/{name}", values, change) for name, values in steps.infos.items()}
    observations = _changed("observation", steps.observations, change)
    return dataclasses.replace(steps, observations=observations, infos=infos)


def _reframed(
    pieces: Iterator[Steps], notes: list[Note], option: str, patterns: Sequence[str], where: str
) -> Iterator[Steps]:
    chosen: list[str] = []

    def change(name: str, values: Any) -> Any:
        return _mended(values, option) if name in chosen else values

    for steps in pieces:
        if not chosen:
            chosen = _frames(steps, option, patterns, where)
            notes.append(Note(option, chosen))
        yield _frames_changed(steps, change)


def _mended(frames: np.ndarray, option: str) -> np.ndarray:
    """Return frames, (n, .., height, width[, channels]) or (n, .., channels, height, width), flipped or recolored."""
    has_channels_last = frames.ndim > 3 and frames.shape[-1] in CHANNELS
    if option == "flip":
        return np.ascontiguousarray(np.flip(frames, -3 if has_channels_last else -2))
    channels = -1 if has_channels_last else -3
    order = [2, 1, 0, 3][: frames.shape[channels]]
    return np.take(frames, order, axis=channels)


def _frames(steps: Steps, option: str, patterns: Sequence[str], where: str) -> list[str]:
    """Return the names of the columns of frames that patterns mean."""
    shapes: dict[str, tuple[int, ...]] = {}

    def note(name: str, values: Any) -> Any:
        shapes[name] = values.shape[1:] if isinstance(values, np.ndarray) else ()

    _frames_changed(steps, note)
    frames = [
        name
        for name, shape in shapes.items()
        if len(shape) > 1 and (option == "flip" or (len(shape) > 2 and {3, 4} & {shape[-1], shape[-3]}))
    ]
    kind = "frames" if option == "flip" else "frames of 3 or 4 channels"
    names: dict[str, None] = {}
    for pattern in ",".join(patterns).split(","):
        what = f"{where}: {option}={pattern!r:.100}"
        if pattern in shapes and pattern not in frames:
            raise SchemaError(f"{what}: expected {kind}, found rows of shape {shapes[pattern]}.")
        names |= dict.fromkeys(_named(pattern, frames, f"{what}: no column of {kind}"))
    return [*names]


def _named(pattern: str, columns: Sequence[str], what: str) -> list[str]:
    """Return the columns that a name or pattern means; SchemaError where it means none."""
    names = [pattern] if pattern in columns else fnmatch.filter(columns, pattern)
    if not names:
        others = did_you_mean(pattern, columns) or f"; they are {', '.join(columns) or 'none'}."
        raise SchemaError(f"{what} has this name{others}")
    return names


def _shifted(pieces: Iterator[Steps], notes: list[Note], shift: Mapping[str, int], where: str) -> Iterator[Steps]:
    by: dict[str, int] = {}
    held: dict[str, Any] = {}
    rows = given = episodes = vanished = 0
    for steps in pieces:
        columns: dict[str, Any] = {"action": steps.actions, "reward": steps.rewards}
        columns |= {f"infos/{name}": values for name, values in steps.infos.items()}
        by = by or _by_column(shift, [*columns], where)
        # Of each column, rows before these have no partner; the column that lacks most says how many are ready.
        start = max(0, *by.values())
        skip = {name: start - by[name] for name in columns} | {"observation": start}
        columns["observation"] = steps.observations
        is_inside = bool(held)
        for name, values in columns.items():
            before = rows + (is_inside and name == "observation")
            values = rows_of(values, slice(max(0, skip[name] - before), None))
            held[name] = joined(held[name], values) if name in held else values
        rows += len(steps.rewards)
        ready = max(0, rows - max(skip.values()))
        if ready > given or (steps.ends and ready):
            counts = dict.fromkeys(held, ready - given)
            counts["observation"] += given == 0
            taken = {name: rows_of(part, slice(counts[name])) for name, part in held.items()}
            held = {name: rows_of(part, slice(counts[name], None)) for name, part in held.items()}
            given = ready
            metadata = dict(steps.metadata)
            if MISSING in metadata and min(by.values()) < 0:
                metadata[MISSING] = False  # the observation of a row that was left out
            yield dataclasses.replace(
                steps,
                observations=taken.pop("observation"),
                actions=taken.pop("action"),
                rewards=taken.pop("reward"),
                infos={name.removeprefix("infos/"): part for name, part in taken.items()},
                seed=None if start else steps.seed,
                metadata=metadata,
            )
        if steps.ends:
            episodes += 1
            vanished += not ready
            held, rows, given = {}, 0, 0
    if episodes and episodes == vanished:
        raise SchemaError(f"{where}: shift={dict(shift)}: no episode is long enough to be moved so far.")
    if not any(by.values()):
        return
    if min(by.values()) < 0:  # the rows that were left out hold the final observations
        notes[:] = [note for note in notes if note.code not in OF_FINALS]
    moves: dict[int, list[str]] = {}
    for name, distance in by.items():
        moves.setdefault(distance, []).append(name)
    moved = "; ".join(f"{', '.join(moves[n])} by {n:+d}" for n in moves if n)
    left = max(0, *by.values()) - min(0, *by.values())
    notes.append(Note("shift", moved=moved))
    notes.append(Note("left_out_by_shift", steps=left, episodes=episodes))
    if vanished:
        notes.append(Note("vanished_by_shift", episodes=vanished))


def _by_column(shift: Mapping[str, int], columns: Sequence[str], where: str) -> dict[str, int]:
    """Return by how many rows each column moves: all as the action does, unless they are named."""
    by = dict.fromkeys(columns, shift.get("action", 0))
    for pattern, rows in shift.items():
        what = f"{where}: shift={{{pattern!r:.100}: {rows}}}: no column of steps"
        names = _named(pattern, columns, what)
        by |= dict.fromkeys(names, rows) if pattern != "action" else {}
    return by


Bound: TypeAlias = float | Sequence[float] | None
"""A bound of all dimensions, or one for each; None leaves it."""

EnvironmentLike: TypeAlias = str | gymnasium.Env[Any, Any] | EnvSpec
"""An environment, its spec, or its id with arguments: `Pendulum-v1` or `Pendulum-v1,g=9.81`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GivenSpaces:
    """What a user gives; None gives nothing.

    Attributes:
        by: What errors call the source: an environment's id, or a benchmark's dataset.
        environment: What policies are scored in.
        horizon: Steps after which it truncates an episode.
        observation_space: Space of observations.
        observation_shape: Shape of an observation, where its bounds are not known.
        action_space: Space of actions.
        action_bounds: Lower and upper bound of actions.
        observation_bounds: Lower and upper bound of observations.
    """

    by: str = ""
    environment: EnvironmentRecord | None = None
    horizon: int | None = None
    observation_space: spaces.Space[Any] | None = None
    observation_shape: tuple[int, ...] | None = None
    action_space: spaces.Space[Any] | None = None
    action_bounds: tuple[Bound, Bound] = (None, None)
    observation_bounds: tuple[Bound, Bound] = (None, None)

    def put_into(self, schema: Schema, where: str) -> Schema:
        """Return the schema of files with these spaces, and the dtypes of the files.

        Raises SchemaError if the files hold values that do not fit.
        """
        observations, actions = schema.observation_space, schema.action_space
        shape = self.observation_shape
        if shape is not None and observations.shape != shape:
            _refuse(f"{where}, observations", self.by, f"shape {shape}", observations)
        if self.observation_space is not None:
            observations = _narrowed(observations, self.observation_space, f"{where}, observations", self.by)
        if self.action_space is not None:
            actions = _narrowed(actions, self.action_space, f"{where}, actions", self.by)
        return dataclasses.replace(
            schema,
            observation_space=_bounded(observations, self.observation_bounds, where, "observation"),
            action_space=_bounded(actions, self.action_bounds, where, "action"),
        )


def of_benchmark(benchmark: BenchmarkEnvironment, given: GivenSpaces) -> GivenSpaces:
    """Return what a benchmark says about data of its environment, within the bounds that a user gives."""
    return dataclasses.replace(
        given,
        by=benchmark.datasets[0],
        environment=benchmark.record,
        horizon=benchmark.horizon,
        observation_shape=tuple(benchmark.observation_shape) or None,
        action_space=benchmark.actions.space,
    )


def of_environment(environment: EnvironmentLike) -> GivenSpaces:
    """Return what an environment says about data that were recorded in it."""
    if isinstance(environment, gymnasium.Env):
        return _of_made(environment)
    if isinstance(environment, EnvSpec):
        name, arguments = environment.id, dict(environment.kwargs)
    else:
        name, arguments = _id_and_arguments(environment)
    made = make_environment(name, arguments)
    try:
        return _of_made(made)
    finally:
        made.close()


def _of_made(made: gymnasium.Env[Any, Any]) -> GivenSpaces:
    record = environment_record(made)
    return GivenSpaces(
        by=record.id,
        environment=record,
        horizon=record.max_episode_steps,
        observation_space=made.observation_space,
        action_space=made.action_space,
    )


def _id_and_arguments(text: str) -> tuple[str, dict[str, Any]]:
    """Read `ID,NAME=VALUE,..`; a value is JSON, and text where it is none."""
    name, *parts = text.split(",")
    arguments = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"environment {text!r}: expected ID,NAME=VALUE,.., found {part!r}.")
        try:
            arguments[key] = json.loads(value)
        except ValueError:
            arguments[key] = value
    return name, arguments


def _narrowed(space: spaces.Space[Any], wanted: spaces.Space[Any], where: str, by: str) -> spaces.Space[Any]:
    """Return the space `wanted` for values that files hold in `space`."""
    match space, wanted:
        case spaces.Dict(), spaces.Dict() if space.keys() == wanted.keys():
            return spaces.Dict({key: _narrowed(space[key], wanted[key], f"{where}/{key}", by) for key in space})
        case spaces.Tuple(), spaces.Tuple() if len(space) == len(wanted):
            pairs = enumerate(zip(space, wanted, strict=True))
            return spaces.Tuple([_narrowed(inner, other, f"{where}/{at}", by) for at, (inner, other) in pairs])
        case spaces.Box(), spaces.Box() if space.shape == wanted.shape:
            is_narrower = space.dtype.kind in "fiu" and wanted.dtype.kind == "f"
            if space.dtype == wanted.dtype or is_narrower:
                kind: Any = space.dtype.type
                return spaces.Box(*_as_dtype(wanted.low, wanted.high, space.dtype), dtype=kind)
        case spaces.Discrete(), spaces.Discrete():
            first, last = int(space.start), int(space.start + space.n)
            if int(wanted.start) <= first and last <= int(wanted.start + wanted.n):
                return wanted
        case _ if space == wanted:
            return wanted
    _refuse(where, by, str(wanted), space)
    raise AssertionError


def _bounded(space: spaces.Space[Any], bounds: tuple[Bound, Bound], where: str, what: str) -> spaces.Space[Any]:
    """Return a Box with other bounds; None leaves one."""
    if bounds == (None, None):
        return space
    if not isinstance(space, spaces.Box):
        raise SchemaError(f"{where}, {what}s: bounds are for one Box of numbers, found {space}.")
    limits = [space.low, space.high]
    for place, given in enumerate(bounds):
        if given is None:
            continue
        side = ("low", "high")[place]
        try:
            limits[place] = np.broadcast_to(np.asarray(given, np.float64), space.shape)
        except ValueError as error:
            raise SchemaError(
                f"{where}, {what}_{side}: expected one number, or one for each of "
                f"{space.shape[-1]} dimensions, found {given!r}."
            ) from error
    low, high = _as_dtype(limits[0], limits[1], space.dtype)
    if not (low <= high).all():
        raise SchemaError(f"{where}, {what}s: a lower bound is above the upper one: {low}, {high}.")
    kind: Any = space.dtype.type
    return spaces.Box(low, high, dtype=kind)


def _as_dtype(low: np.ndarray, high: np.ndarray, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds of numbers of a dtype; of integers those that lie between the given ones."""
    if dtype.kind not in "iu":
        return low.astype(dtype), high.astype(dtype)
    return _whole(np.ceil(low), dtype), _whole(np.floor(high), dtype)


def _whole(limits: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return bounds, which have no fraction where they are floats, as integers; what lies beyond them is cut off."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    with np.errstate(invalid="ignore"):
        inside = np.where(limits <= least, least, limits).astype(dtype)
    return np.where(limits >= most, most, inside).astype(dtype)


def _refuse(where: str, by: str, expected: str, actual: object) -> None:
    raise SchemaError(f"{where}: do not fit {by}, which has {expected}; found {actual}.")


Label: TypeAlias = Callable[[Steps, Any], Any]
"""Returns the rewards of some steps, given the observation before them; None at the start of an episode."""


def put_rewards(opened: Opened, reward: str) -> None:
    """Give all steps the rewards that the user names, and note it.

    That files have no rewards is not noted then: their readers leave it out where `Options.reward` is given.
    Raises ValueError if that is none of what is known, or the file cannot be run; NotFoundError if there is no such
    file or function.
    """
    label = _label(reward)
    opened.schema = dataclasses.replace(opened.schema, reward_dtype=np.dtype(np.float64))
    opened.notes.append(Note("rewards_made", reward=reward))
    opened.steps = _relabeled(opened.steps, label, reward, opened.notes)


def _label(reward: str) -> Label:
    kind, _, value = reward.partition("=")
    if reward == "success":
        return _successes
    if kind == "constant":
        try:
            number = float(value or 1)
        except ValueError:
            raise ValueError(f"reward={reward!r}: expected a number, such as constant=-1.") from None
        return lambda steps, _before: np.full(len(steps.rewards), number)
    function = own_function(reward, "reward", "constant, constant=NUMBER, success, or FILE.py:function")

    def call(steps: Steps, before: Any) -> Any:
        seen = steps.observations if before is None else joined(before, steps.observations)
        return function(rows_of(seen, slice(0, -1)), steps.actions, rows_of(seen, slice(1, None)))

    return call


def own_function(given: str, option: str, expected: str = "FILE.py:function") -> Callable[..., Any]:
    """Return a function of a file of the user's own, which is run.

    Raises ValueError if none is named, or the file cannot be run, and so does the function if it raises anything;
    NotFoundError if there is no such file or function.
    """
    path, _, name = given.rpartition(":")
    if not path.endswith(".py"):
        raise ValueError(f"{option}={given!r}: expected {expected}.")
    if not Path(path).is_file():
        raise NotFoundError(f"{option}={given!r}: there is no file {path}.")
    try:
        function = runpy.run_path(path, run_name=Path(path).stem).get(name)
    except Exception as error:  # a user's code raises anything
        raise ValueError(f"{path}: {type(error).__name__} when it was run: {error}.") from error
    if not callable(function):
        raise NotFoundError(f"{option}={given!r}: {path} has no function {name!r}.")

    @functools.wraps(function)
    def call(*values: Any) -> Any:
        try:
            return function(*values)
        except Exception as error:
            raise ValueError(f"{option}={given!r}: {type(error).__name__}: {error}.") from error

    return call


def _relabeled(parts: Iterator[Steps], label: Label, reward: str, notes: list[Note]) -> Iterator[Steps]:
    before, rewarded, by_end = None, False, 0
    for steps in parts:
        rewards = np.asarray(label(steps, before), np.float64)
        if rewards.shape != steps.rewards.shape:
            raise SchemaError(
                f"reward={reward!r}: expected {len(steps.rewards)} numbers, one a step, found {rewards.shape}."
            )
        if rewards.any():
            rewarded = True
            by_end += label is _successes and _stated(steps) is None
        before = None if steps.ends else rows_of(steps.observations, slice(-1, None))
        yield dataclasses.replace(steps, rewards=rewards)
    if by_end:
        notes.append(Note("rewards_by_end", count=by_end))
    if not rewarded:
        notes.append(Note("rewards_all_zero"))


def _stated(steps: Steps) -> np.ndarray | None:
    """Return what infos or values of the episode say of success."""
    return success_in({**steps.infos, **steps.metadata})


def _successes(steps: Steps, _before: Any) -> np.ndarray:
    of_steps = success_in(steps.infos, OF_STEPS)
    if of_steps is not None:
        return of_steps.astype(np.float64)
    rewards = np.zeros(len(steps.rewards))
    if steps.ends:
        stated = _stated(steps)
        rewards[-1] = steps.terminated if stated is None else stated[-1]
    return rewards
