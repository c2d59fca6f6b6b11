"""What a user gives in place of what files say: rewards, an environment or a benchmark's dataset, bounds.

    --reward constant            1 at each step; `constant=-1` another number
    --reward success             1 where `infos/success` is true, if the files have it; else at the last step of each
                                 episode whose `episodes/success` is true; where neither is there, of each one that
                                 the task ended (`--ends terminated` says that all did)
    --reward FILE.py:function    what a function of yours returns for n observations, n actions, and the n observations
                                 after these; a Dict of observations comes as a dict of arrays

Files of actions alone hold neither the bounds nor the environment, and without them nothing can be trained or scored.
The numbers of the files stay as they are: only their spaces become narrower.
"""

from __future__ import annotations

import dataclasses
import json
import runpy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.conventions import joined, rows_of
from orlog.datasets.formats.episodes import Opened, Steps
from orlog.datasets.formats.flags import OF_STEPS, success_in
from orlog.datasets.formats.notes import Note
from orlog.datasets.worlds.environments import environment_record, make_environment
from orlog.errors import NotFoundError, SchemaError
from orlog.manifests.counterparts import BenchmarkEnvironment
from orlog.manifests.manifest import EnvironmentRecord

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
    """Return what an environment says about data that were recorded in it.

    Raises MissingExtraError if the package that registers its id is not installed; NotFoundError if nothing
    registers its id; SimulatorError if it cannot be made; SchemaError if it was not made by its id, or its
    arguments are not JSON.
    """
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
    """Read `ID,NAME=VALUE,..`; a value is JSON, and text where it is none.

    Raises ValueError if a part after the id is no argument.
    """
    name, *parts = text.split(",")
    arguments = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(
                f"environment {text!r}: expected ID,NAME=VALUE,.., such as Pendulum-v1,g=9.81; found {part!r}."
            )
        try:
            arguments[key] = json.loads(value)
        except ValueError:
            arguments[key] = value
    return name, arguments


def _narrowed(found: spaces.Space[Any], wanted: spaces.Space[Any], where: str, by: str) -> spaces.Space[Any]:
    """Return the space `wanted` for values that files hold in the space `found`."""
    match found, wanted:
        case spaces.Dict(), spaces.Dict() if found.keys() == wanted.keys():
            return spaces.Dict({key: _narrowed(found[key], wanted[key], f"{where}/{key}", by) for key in found})
        case spaces.Tuple(), spaces.Tuple() if len(found) == len(wanted):
            pairs = enumerate(zip(found, wanted, strict=True))
            return spaces.Tuple([_narrowed(one, other, f"{where}/{at}", by) for at, (one, other) in pairs])
        case spaces.Box(), spaces.Box() if found.shape == wanted.shape:
            is_narrower = found.dtype.kind in "fiu" and wanted.dtype.kind == "f"
            if found.dtype == wanted.dtype or is_narrower:
                kind: Any = found.dtype.type
                return spaces.Box(*_as_dtype(wanted.low, wanted.high, found.dtype), dtype=kind)
        case spaces.Discrete(), spaces.Discrete():
            first, last = int(found.start), int(found.start + found.n)
            if int(wanted.start) <= first and last <= int(wanted.start + wanted.n):
                return wanted
        case _ if found == wanted:
            return wanted
    _refuse(where, by, str(wanted), found)
    raise AssertionError


def _bounded(space: spaces.Space[Any], bounds: tuple[Bound, Bound], where: str, what: str) -> spaces.Space[Any]:
    """Return a Box with other bounds; None leaves one."""
    if bounds == (None, None):
        return space
    if not isinstance(space, spaces.Box):
        raise SchemaError(
            f"{where}, {what}s: bounds are for one Box of numbers, found {space}; leave out "
            f"{what}_low and {what}_high, or name the environment."
        )
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


def _refuse(where: str, by: str, expected: str, found: object) -> None:
    raise SchemaError(f"{where}: do not fit {by}, which has {expected}; found {found}.")


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
    path, _, name = reward.rpartition(":")
    if reward == "success":
        return _successes
    if kind == "constant":
        try:
            number = float(value or 1)
        except ValueError:
            raise ValueError(f"reward={reward!r}: expected a number, such as constant=-1.") from None
        return lambda steps, _before: np.full(len(steps.rewards), number)
    if not path.endswith(".py"):
        raise ValueError(f"reward={reward!r}: expected constant, constant=NUMBER, success, or FILE.py:function.")
    if not Path(path).is_file():
        raise NotFoundError(f"reward={reward!r}: there is no file {path}.")
    try:
        function = runpy.run_path(path, run_name=Path(path).stem).get(name)
    except Exception as error:  # a user's code raises anything
        raise ValueError(f"{path}: {type(error).__name__} when it was run: {error}.") from error
    if not callable(function):
        raise NotFoundError(f"reward={reward!r}: {path} has no function {name!r}.")

    def call(steps: Steps, before: Any) -> Any:
        seen = steps.observations if before is None else joined(before, steps.observations)
        try:
            return function(rows_of(seen, slice(0, -1)), steps.actions, rows_of(seen, slice(1, None)))
        except Exception as error:
            raise ValueError(f"reward={reward!r}: {type(error).__name__}: {error}.") from error

    return call


def _relabeled(parts: Iterator[Steps], label: Label, reward: str, notes: list[Note]) -> Iterator[Steps]:
    before, rewarded, by_end = None, False, 0
    for steps in parts:
        rewards = np.asarray(label(steps, before), np.float64)
        if rewards.shape != steps.rewards.shape:
            raise SchemaError(
                f"reward={reward!r}: expected {steps.rewards.shape} numbers, one a step, found {rewards.shape}."
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
