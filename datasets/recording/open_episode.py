"""An episode that is being recorded: copies of what an environment gave, until they are written."""

from __future__ import annotations

import copy
import dataclasses
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Columns, Episode, as_column, options_to_text, summary
from orlog.datasets.columns.values import flatten
from orlog.datasets.reading.restoring import STATE
from orlog.datasets.recording.rows import Rows, make_rows
from orlog.datasets.recording.writer import DatasetWriter
from orlog.errors import SchemaError, clause

LOG_PROBS = "action_log_probs"
BLANK = object()
"""Stands in infos for a value that is not there; `OpenEpisode` puts a blank one of the column's form in its place."""
_INTEGERS = (int, np.int64)
_FLOATS = {float, np.float64}
_LARGEST_INTEGER = 2**53  # float64 holds all integers up to it


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What is recorded of each step of an environment.

    Attributes:
        observation_space: Space of its observations.
        action_space: Space of its actions.
        infos: Names in the info of each step that are kept.
        action_log_probs: Whether each action comes with its log-probability.
        blank: Returns what stands for `BLANK` in a column of infos, from its name and the columns that are
            known, where the column has no other value and no earlier episode had one.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    infos: Sequence[str] = ()
    action_log_probs: bool = False
    blank: Callable[[str, Mapping[str, Columns]], Any] | None = None


class OpenEpisode:
    """The steps of an episode that the writer does not have yet.

    Attributes:
        copied_action: Returns a copy of an action; raises SchemaError if it does not fit its space.
        copied_observation: The same for observations.
        spaces: Those of observations and of actions.
        rows: Keeps observations, actions and rewards, if the first two are rows of numbers and nothing
            else is recorded; else None.
        flags: Termination and truncation of the last step.
        with_log_probs: Whether each action comes with its log-probability.
    """

    def __init__(
        self,
        writer: DatasetWriter,
        recorded: Recorded,
        *,
        state: bool = False,
        keeps_options: bool = True,
        environment: int | None = None,
    ) -> None:
        """Hold nothing yet.

        `state` says whether each step comes with one, `keeps_options` whether the options of resets are kept,
        and `environment` which one of a vector it is of, for errors.
        """
        self._writer = writer
        self._environment = environment
        observation_space, action_space = recorded.observation_space, recorded.action_space
        self.spaces = observation_space, action_space
        self._names = tuple(recorded.infos)
        self._blank = recorded.blank
        self.with_log_probs = recorded.action_log_probs
        wants_more = bool(self._names) or self.with_log_probs or state
        boxes = [space for space in self.spaces if isinstance(space, spaces.Box)]
        are_rows = len(boxes) == 2 and all(len(box.shape) == 1 for box in boxes)
        self.rows = make_rows(*boxes) if are_rows and not wants_more else None
        self._keeps_options = keeps_options
        self.copied_observation = _copier(observation_space, self._misfit("observation", 0, ""))
        advice = "; convert it before the step, for example with .astype"
        self.copied_action = _copier(action_space, self._misfit("action", 1, advice))
        self._written = 0
        self.flags: tuple[Any, Any] = False, False
        self._seed: int | None = None
        self._options = ""
        self._observations, self._keep_observation = _room(observation_space)
        self._actions, self._keep_action = _room(action_space)
        self._rewards: list[Any] = []
        self._forget_steps()

    @property
    def steps(self) -> int:
        """Number of steps held."""
        return len(self._rewards) if self.rows is None else len(self.rows)

    def start(
        self, observation: Any, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        """Start from the observation of a reset; steps of an earlier episode must have ended.

        Raises SchemaError if something does not fit or cannot be kept.
        """
        text = options_to_text(options)
        if text and not self._keeps_options:
            raise SchemaError(
                f"{self._writer.name}: the version to append to has no column episodes/options, so "
                "options of reset cannot be kept; reset without them, or record a new dataset."
            )
        first = self.copied_observation(observation)
        # An error may have left an action that was never taken.
        self._forget_steps()
        if self.rows is None:
            _empty(self._observations)
            self._keep_observation(first)
        else:
            self.rows.start(first)
        self._seed, self._options = seed, text

    def add(
        self,
        action: Any,
        result: tuple[Any, Any, Any, Any, Mapping[str, Any]],
        state: Mapping[str, np.ndarray] | None = None,
        log_prob: float | None = None,
    ) -> None:
        """Add a step: the action, as `copied_action` returns it, and what `step` returned.

        Raises SchemaError if something does not fit; nothing is added.
        """
        if self.rows is not None:
            self.rows.keep_action(action)
            self.add_result(result)
            return
        after, number = self._checked(result)
        if self._names:
            self._infos.append(self._picked(result[4]))
        if state is not None:
            self._states.append(state)
        if log_prob is not None:
            self._log_probs.append(log_prob)
        self._keep_observation(after)
        self._keep_action(action)
        self._rewards.append(number)
        self.flags = result[2], result[3]

    def set_flags(self, terminated: Any, truncated: Any) -> None:
        """Note the flags of the step that was added last.

        Raises SchemaError if one is no number or NaN.
        """
        self.check_flags(terminated, truncated, added=1)
        self.flags = terminated, truncated

    def check_flags(
        self, terminated: Any, truncated: Any, *, added: int = 0, agent: object = None
    ) -> None:
        """Refuse flags of a step that is added next, or of which `added` is 1 if it was added.

        Raises SchemaError if one is no number or NaN, which is no end and no step that goes on either; it names
        the agent where there are several.
        """
        if not (_is_flag(terminated) and _is_flag(truncated)):
            terminated, truncated = (
                summary(flag) if np.ndim(flag) else flag for flag in (terminated, truncated)
            )
            raise SchemaError(
                f"{self.where(added)}{_of_agent(agent)}: terminated is {terminated} and truncated is "
                f"{truncated}; expected true or false; correct the environment."
            )

    def checked_reward(self, reward: Any, *, agent: object = None) -> Any:
        """Return the reward of the next step as a number; errors name the agent where there are several.

        Raises SchemaError if it is not one number, or an integer that float64 does not hold.
        """
        if type(reward) in _FLOATS:
            return reward
        number = reward[()] if isinstance(reward, np.ndarray) and reward.ndim == 0 else reward
        is_integer = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if is_integer and -_LARGEST_INTEGER <= number <= _LARGEST_INTEGER:
            return number
        if not isinstance(number, float | np.floating):
            raise SchemaError(
                f"{self.where()}{_of_agent(agent)}: the reward is {summary(reward)}; expected one "
                "number that float64 holds; correct the environment."
            )
        if isinstance(number, np.longdouble) and np.float64(number) != number == number:
            raise SchemaError(
                f"{self.where()}{_of_agent(agent)}: the reward is {number.dtype} {number}, which float64 "
                "cannot hold exactly; convert it, for example with float()."
            )
        return number

    def add_result(self, result: tuple[Any, Any, Any, Any, Mapping[str, Any]]) -> None:
        """Add what `step` returned to an action that `rows` keeps.

        Raises SchemaError if something does not fit; nothing is added.
        """
        assert self.rows is not None
        after, number = self._checked(result)
        _, _, terminated, truncated, info = result
        if type(number) not in _FLOATS:
            self._other_rewards[self.steps] = number
            number = 0.0
        self.rows.keep_result((after, number, terminated, truncated, info), 0)
        self.flags = terminated, truncated

    def _checked(self, result: tuple[Any, Any, Any, Any, Mapping[str, Any]]) -> tuple[Any, Any]:
        """Return a copy of the observation that `step` returned, and the reward as a number.

        Raises SchemaError if something does not fit.
        """
        observation, reward, terminated, truncated, _ = self.checked_result(result)
        after = self.copied_observation(observation)
        number = self.checked_reward(reward)
        self.check_flags(terminated, truncated)
        return after, number

    def checked_result(self, result: Any, *, of_reset: bool = False) -> Any:
        """Return what `step` or `reset` of the environment returned, if there are as many values as Gymnasium says."""
        names = ["observation", "reward", "terminated", "truncated", "info"][
            :: 4 if of_reset else 1
        ]
        if not isinstance(result, tuple) or len(result) != len(names):
            raise SchemaError(
                f"{self.where()}: {'reset' if of_reset else 'step'} returned {summary(result)}; expected a tuple "
                f"({', '.join(names)}); wrap an environment of the older Gym, or correct it."
            )
        return result

    def end(self) -> None:
        """Write the steps and end the episode; an episode without steps is forgotten.

        Raises SchemaError if the steps do not fit those of earlier episodes; StorageError if the disk is
        full; finished episodes are kept.
        """
        metadata = {"options": self._options} if self._keeps_options else {}
        if self._written == 0 and self.steps > 0:
            columns = self._take_columns()
            self._writer.add_episode(Episode(seed=self._seed, metadata=metadata, **columns))
            return
        self.write_steps()
        if self._written > 0:
            self._written = 0
            self._writer.end_episode(seed=self._seed, metadata=metadata)

    def write_steps(self) -> None:
        """Write the steps so far; the writer then waits for the rest of this episode.

        Raises SchemaError if the steps do not fit those of earlier episodes; StorageError if the disk is
        full; finished episodes are kept.
        """
        steps = self.steps
        if steps > 0:
            self._writer.add_steps(**self._take_columns())
            self._written += steps

    def _take_columns(self) -> dict[str, Any]:
        """Return the steps as columns; they are forgotten, so that an error is not met twice."""
        steps = self.steps
        terminations, truncations = np.zeros((2, steps), np.bool_)
        terminations[-1], truncations[-1] = map(bool, self.flags)
        try:
            return {
                **(self._columns() if self.rows is None else self._columns_of_rows(self.rows)),
                "terminations": terminations,
                "truncations": truncations,
                "infos": self._info_columns(),
            }
        finally:
            self._forget_steps()

    def _columns(self) -> dict[str, Any]:
        steps = self.steps
        columns = {
            "observations": _rows(self.spaces[0], self._observations, steps + (self._written == 0)),
            "actions": _rows(self.spaces[1], self._actions, steps),
            "rewards": _column("rewards", self._rewards),
        }
        _empty(self._observations)
        return columns

    def _columns_of_rows(self, rows: Rows) -> dict[str, Any]:
        steps = len(rows)
        observations, actions, taken = rows.take()
        rewards: Any = np.frombuffer(taken, np.float64)
        if self._other_rewards:
            values = rewards.tolist()
            for step, reward in self._other_rewards.items():
                values[step] = reward
            rewards = _column("rewards", values)
        return {
            "observations": _matrix(self.spaces[0], observations, steps + (self._written == 0)),
            "actions": _matrix(self.spaces[1], actions, steps),
            "rewards": rewards,
        }

    def wrong_log_prob(self) -> SchemaError:
        """Return the error for a log-probability that is missing, or is not recorded."""
        if self.with_log_probs:
            text = "step needs action_log_prob=.., since this recording has action_log_probs=True"
        else:
            text = "action_log_prob is recorded only with action_log_probs=True"
        return SchemaError(f"{self.where()}: {text}.")

    def where(self, back: int = 0) -> str:
        """Return dataset, episode and step in words: the next step, or one so many steps before it."""
        step = self._written + self.steps - back
        if self._environment is not None:  # which episode it will be is known when it has ended
            return (
                f"{self._writer.name}, environment {self._environment}, step {step} of its episode"
            )
        return f"{self._writer.name}, episode {self._writer.total_episodes}, step {step}"

    def _misfit(self, what: str, space: int, advice: str) -> Callable[[SchemaError], SchemaError]:
        """Return a function that says where a value does not fit."""
        return lambda error: SchemaError(
            f"{self.where()}: the {what} does not fit its space {self.spaces[space]}: "
            f"{clause(error)}{advice}."
        )

    def _forget_steps(self) -> None:
        _empty(self._actions)
        self._rewards.clear()
        self._other_rewards: dict[int, Any] = {}
        self._infos: list[list[Any]] = []
        self._states: list[Mapping[str, np.ndarray]] = []
        self._log_probs: list[float] = []
        self.flags = False, False

    def _picked(self, info: Any) -> list[Any]:
        try:
            values = [info[name] for name in self._names]
        except (KeyError, TypeError):
            names = sorted(map(str, info)) if isinstance(info, Mapping) else []
            missing = next((name for name in self._names if name not in names), "")
            raise SchemaError(
                f"{self.where()}: the info of this step has no {missing!r}, only "
                f"{names or summary(info)}; what is recorded must be in the info of every step."
            ) from None
        return [value.copy() if isinstance(value, np.ndarray) else value for value in values]

    def _filled(self, values: dict[str, list[Any]]) -> dict[str, Columns]:
        """Return infos as columns, in which zeros, or nothing of texts and arrays of any length, stand for `BLANK`."""
        schema = self._writer.schema
        columns: dict[str, Columns] = {}
        for name in sorted(values, key=lambda name: all(one is BLANK for one in values[name])):
            column = values[name]
            if any(one is BLANK for one in column):
                known = [one for one in column if one is not BLANK]
                spec = schema.extras.get(f"infos/{name}")
                kind = schema.variable.get(f"infos/{name}")
                if spec is not None:
                    array = np.zeros((0, *spec.shape) if kind else spec.shape, spec.dtype)
                    blank = "" if kind == "text" else array[()]
                elif known:
                    blank = blank_like(known)
                else:
                    assert self._blank is not None
                    blank = self._blank(name, columns)
                column = [blank if one is BLANK else one for one in column]
            try:
                columns[name] = _column(name, column)
            except SchemaError as error:
                where = self.where().rpartition(", step ")[0]
                raise SchemaError(f"{where}, {clause(error)}.") from error
        return {name: columns[name] for name in values}

    def _info_columns(self) -> dict[str, Columns]:
        columns = self._filled(
            {name: [row[index] for row in self._infos] for index, name in enumerate(self._names)}
        )
        for name in self._states[0] if self._states else ():
            columns[STATE + name] = np.array([state[name] for state in self._states])
        if self.with_log_probs:
            columns[LOG_PROBS] = np.array(self._log_probs, np.float64)
        return columns


def blank_like(values: Sequence[Any]) -> Any:
    """Return a value of the form of some others that stands for none."""
    first = values[0]
    if isinstance(first, str):
        return ""
    blank = np.zeros_like(first)
    if blank.ndim and len({np.shape(one) for one in values}) > 1:
        return blank[:0]
    return blank[()]


def _is_flag(value: Any) -> bool:
    if type(value) in (bool, np.bool_):
        return True
    flag = np.asarray(value)
    return flag.size == 1 and flag.dtype.kind in "biuf" and bool((flag == flag).all())


def _of_agent(agent: object) -> str:
    return "" if agent is None else f", agent {agent!r:.100}"


def _copier(
    space: gymnasium.Space[Any], misfit: Callable[[SchemaError], SchemaError]
) -> Callable[[Any], Any]:
    """Return a function that returns a copy of a value of a space, in the form that `_stack` takes.

    It raises the error that `misfit` makes if the value does not fit. Bounds of a Box are not enforced.
    """

    def checked(value: Any) -> Any:
        try:
            return flatten(space, "value", [value], 1)
        except SchemaError as error:
            raise misfit(error) from error

    array = np.ndarray
    match space:
        case spaces.Box(dtype=dtype, shape=shape):
            # The bytes of an array are quicker to take and to join than copies of it.
            def copied(value: Any) -> Any:
                if type(value) is array and value.dtype is dtype and value.shape == shape:
                    return value.tobytes()
                return checked(value)["value"].tobytes()

        case spaces.Discrete():
            choices = range(int(space.start), int(space.start) + int(space.n))

            def copied(value: Any) -> Any:
                if not (type(value) in _INTEGERS and value in choices):
                    checked(value)
                return value

        case spaces.Dict():
            parts = {key: _copier(part, misfit) for key, part in space.spaces.items()}

            def copied(value: Any) -> Any:
                if not (isinstance(value, dict) and value.keys() == parts.keys()):
                    checked(value)
                return {key: copy_part(value[key]) for key, copy_part in parts.items()}

        case _:

            def copied(value: Any) -> Any:
                checked(value)
                return copy.deepcopy(value)

    return copied


def _room(space: gymnasium.Space[Any]) -> tuple[io.BytesIO | list[Any], Callable[[Any], object]]:
    """Return what holds copied values of a space, and the function that adds one.

    Arrays follow each other in one piece of memory, so that nothing is left to join.
    """
    if isinstance(space, spaces.Box):
        held = io.BytesIO()
        return held, held.write
    values: list[Any] = []
    return values, values.append


def _empty(held: io.BytesIO | list[Any]) -> None:
    """Let the next value be the first; the memory stays, since growing again would copy it many times."""
    if isinstance(held, list):
        held.clear()
    else:
        held.seek(0)


def _rows(space: gymnasium.Space[Any], held: io.BytesIO | list[Any], count: int) -> Columns:
    """Return the first values that are held as columns."""
    if isinstance(held, list):
        return _stack(space, held[:count])
    return _matrix(space, held.getvalue(), count)


def _matrix(space: gymnasium.Space[Any], data: bytes, count: int) -> Columns:
    """Return the first values of a Box in some bytes as a column."""
    shape = space.shape or ()
    size = count * math.prod(shape)
    return np.frombuffer(data, space.dtype, size).reshape(count, *shape)


def _stack(space: gymnasium.Space[Any], samples: list[Any]) -> Columns:
    """Return samples that a copier made as columns; much quicker than checking each one again."""
    match space:
        case spaces.Box(dtype=dtype, shape=shape):
            return np.frombuffer(b"".join(samples), dtype).reshape(len(samples), *shape)
        case spaces.Discrete():
            return np.array(samples, space.dtype)
        case spaces.Dict():
            return {
                key: _stack(part, [sample[key] for sample in samples])
                for key, part in space.spaces.items()
            }
    return samples


def _column(name: str, values: list[Any]) -> Columns:
    """Return a value of each step as a column."""
    if {type(value) for value in values} <= _FLOATS:
        return np.fromiter(values, np.float64, len(values))
    return as_column(name, values)
