"""An episode that is being recorded: copies of what an environment gave, until the writer takes them."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Columns, Episode, as_column, options_to_text, summary
from orlog.datasets.columns.schema import Schema
from orlog.datasets.columns.values import flatten
from orlog.datasets.reading.restoring import STATE, Simulator, simulator_of
from orlog.datasets.recording.writer import DatasetWriter
from orlog.errors import SchemaError, clause

LOG_PROBS = "action_log_probs"
_RESULT = ("observation", "reward", "terminated", "truncated", "info")
_INTEGERS = (int, np.int64)
_FLOATS = {float, np.float64}
_FLAGS = {bool, np.bool_}
_LARGEST_INTEGER = 2**53  # float64 holds all integers up to it

InfoLists: TypeAlias = dict[str, list[Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What is recorded of each step of an environment.

    `infos` are names in the info of each step; `block_steps` how many steps are held before they are written;
    `fill_infos` completes the infos of an episode before they become columns of a schema.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    infos: Sequence[str] = ()
    action_log_probs: bool = False
    keeps_options: bool = True
    block_steps: float = math.inf
    fill_infos: Callable[[InfoLists, Schema], InfoLists] = lambda infos, _schema: infos


class OpenEpisode:
    """The steps of an episode that the writer does not have yet.

    A step is `before` the environment takes it, `after` that, and then `keep`; each of the first two refuses
    what does not fit, and a step is only there once it is kept. All raise SchemaError for what does not fit, and
    those that write StorageError if the disk is full; finished episodes are kept.
    """

    def __init__(
        self, writer: DatasetWriter, recorded: Recorded, *, simulated: Any = None, environment: int | None = None
    ) -> None:
        """Hold nothing yet.

        `simulated` is the environment whose states are recorded, if any; `environment` which of a vector's it is,
        for errors.
        """
        self.writer, self._recorded = writer, recorded
        self._simulated, self._environment = simulated, environment
        self._simulator: Simulator | None = None
        self._names, self._block_steps = tuple(recorded.infos), recorded.block_steps
        self._copied_observation = _copier(recorded.observation_space, self._misfit("observation"))
        self._copied_action = _copier(recorded.action_space, self._misfit("action"))
        self._seed: int | None = None
        self._options = ""
        self._written = 0
        self._first: list[Any] = []
        self._steps: list[tuple[Any, ...]] = []
        self._before: tuple[Any, ...] = ()
        self._after: tuple[Any, ...] = ()

    def start(self, observation: Any, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Start from the observation of a reset; an earlier episode must have ended."""
        if self._simulated is not None:
            self._simulator = simulator_of(self._simulated)
        text = options_to_text(options)
        if text and not self._recorded.keeps_options:
            raise SchemaError(
                f"{self.writer.name}: the version to append to has no column episodes/options, so "
                "options of reset cannot be kept; reset without them, or record a new dataset."
            )
        self._first = [self._copied_observation(observation)]
        self._steps, self._seed, self._options = [], seed, text

    def before(self, action: Any, log_prob: float | None = None) -> None:
        """Take the action of the next step, and the state that it meets."""
        kept = self._copied_action(action)
        if (log_prob is None) is self._recorded.action_log_probs:
            text = "action_log_prob is recorded only with action_log_probs=True"
            if log_prob is None:
                text = "step needs action_log_prob=.., since this recording has action_log_probs=True"
            raise SchemaError(f"{self.where()}: {text}.")
        self._before = kept, log_prob, None if self._simulator is None else self._simulator.read()

    def after(self, result: Any) -> None:
        """Take what `step` of the environment returned."""
        if not isinstance(result, tuple) or len(result) != 5:
            raise self.wrong_result("step", result, _RESULT)
        observation, reward, terminated, truncated, info = result
        copied = self._copied_observation(observation)
        if type(reward) not in _FLOATS:
            reward = self.checked_reward(reward)
        if type(terminated) not in _FLAGS or type(truncated) not in _FLAGS:
            self.check_flags(terminated, truncated)
        self._after = copied, reward, terminated, truncated, self._picked(info) if self._names else ()

    def keep(self, *, ends: bool = False) -> bool:
        """Keep the step; end the episode if a flag says so or it `ends`, and return whether it did."""
        self._steps.append(self._before + self._after)  # one step whole, or none, if interrupted
        _, _, terminated, truncated, _ = self._after
        if ends or terminated or truncated:
            self.end()
            return True
        if len(self._steps) >= self._block_steps:
            self._write_steps()
        return False

    def end(self) -> None:
        """Write the steps and end the episode; an episode without steps is forgotten."""
        metadata = {"options": self._options} if self._recorded.keeps_options else {}
        if self._written == 0:
            if self._steps:
                self.writer.add_episode(Episode(seed=self._seed, metadata=metadata, **self._take_columns()))
            return
        self._write_steps()
        self._written = 0
        self.writer.end_episode(seed=self._seed, metadata=metadata)

    def where(self) -> str:
        """Return dataset, episode and the next step in words."""
        step = self._written + len(self._steps)
        if self._environment is not None:  # which episode it will be is known when it has ended
            return f"{self.writer.name}, environment {self._environment}, step {step} of its episode"
        return f"{self.writer.name}, episode {self.writer.total_episodes}, step {step}"

    def wrong_result(self, method: str, result: Any, names: Sequence[str] = _RESULT[::4]) -> SchemaError:
        """Return the error for a result that Gymnasium does not know, of a reset by default."""
        return SchemaError(
            f"{self.where()}: {method} returned {summary(result)}; expected a tuple ({', '.join(names)}); wrap an "
            "environment of the older Gym, or correct it."
        )

    def check_flags(self, terminated: Any, truncated: Any, *, agent: object = None) -> None:
        """Refuse flags that are no number or NaN, which is no end and no step that goes on either."""
        for flag in (terminated, truncated):
            value = np.asarray(flag)
            if value.size != 1 or value.dtype.kind not in "biuf" or (value != value).any():
                shown = [summary(each) if np.ndim(each) else each for each in (terminated, truncated)]
                raise SchemaError(
                    f"{self.where()}{_of_agent(agent)}: terminated is {shown[0]} and truncated is {shown[1]}; "
                    "expected true or false; correct the environment."
                )

    def checked_reward(self, reward: Any, *, agent: object = None) -> Any:
        """Return a reward as a number that float64 holds exactly."""
        number = reward[()] if isinstance(reward, np.ndarray) and reward.ndim == 0 else reward
        if isinstance(number, float | np.floating):
            is_held = np.float64(number) == number or number != number
        else:
            is_integer = isinstance(number, int | np.integer) and not isinstance(number, bool)
            is_held = is_integer and -_LARGEST_INTEGER <= number <= _LARGEST_INTEGER
        if not is_held:
            raise SchemaError(
                f"{self.where()}{_of_agent(agent)}: the reward is {summary(reward)}; expected one number "
                "that float64 holds exactly; correct the environment, or convert it, for example with float()."
            )
        return number

    def _write_steps(self) -> None:
        """Write the steps so far; the writer then waits for the rest."""
        steps = len(self._steps)
        if steps > 0:
            self.writer.add_steps(**self._take_columns())
            self._written += steps

    def _take_columns(self) -> dict[str, Any]:
        """Return the steps as columns; they are forgotten, so that an error is not met twice."""
        steps, first = self._steps, self._first
        self._steps, self._first = [], []
        actions, log_probs, states, observations, rewards, *flags, infos = zip(*steps, strict=True)
        terminations, truncations = np.zeros((2, len(steps)), np.bool_)
        terminations[-1], truncations[-1] = (bool(values[-1]) for values in flags)
        named = {name: [row[index] for row in infos] for index, name in enumerate(self._names)}
        columns = self._recorded.fill_infos(named, self.writer.schema)
        for name in states[0] or ():
            columns[STATE + name] = [state[name] for state in states]
        if self._recorded.action_log_probs:
            columns[LOG_PROBS] = [*map(float, log_probs)]
        try:
            taken = {name: _column(name, values) for name, values in columns.items()}
        except SchemaError as error:
            raise SchemaError(f"{self.where().rpartition(', step ')[0]}, {clause(error)}.") from error
        return {
            "observations": _stack(self._recorded.observation_space, [*first, *observations]),
            "actions": _stack(self._recorded.action_space, [*actions]),
            "rewards": _column("rewards", [*rewards]),
            "terminations": terminations,
            "truncations": truncations,
            "infos": taken,
        }

    def _picked(self, info: Any) -> list[Any]:
        """Return what is recorded of an info, in the order of the names."""
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

    def _misfit(self, what: str) -> Callable[[SchemaError], SchemaError]:
        """Return a function that says where an observation or action does not fit."""
        space = getattr(self._recorded, f"{what}_space")
        return lambda error: SchemaError(f"{self.where()}: the {what} does not fit its space {space}: {clause(error)}.")


def _of_agent(agent: object) -> str:
    return "" if agent is None else f", agent {agent!r:.100}"


def _copier(space: gymnasium.Space[Any], misfit: Callable[[SchemaError], SchemaError]) -> Callable[[Any], Any]:
    """Return a function that returns a copy of a value of a space, in the form that `_stack` takes.

    It raises the error that `misfit` makes if the value does not fit. Bounds of a Box are not enforced.
    """

    def checked(value: Any) -> Any:
        try:
            return flatten(space, "value", [value], 1)
        except SchemaError as error:
            raise misfit(error) from error

    copied: Callable[[Any], Any]
    match space:
        case spaces.Box(dtype=dtype, shape=shape):
            # The bytes of an array are quicker to take and to join than copies of it.
            def copied(value: Any) -> Any:
                if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
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


def _stack(space: gymnasium.Space[Any], samples: list[Any]) -> Columns:
    """Return samples that a copier made as columns; much quicker than checking each one again."""
    match space:
        case spaces.Box(dtype=dtype, shape=shape):
            return np.frombuffer(b"".join(samples), dtype).reshape(len(samples), *shape)
        case spaces.Discrete():
            return np.array(samples, space.dtype)
        case spaces.Dict():
            return {key: _stack(part, [sample[key] for sample in samples]) for key, part in space.spaces.items()}
    return samples


def _column(name: str, values: list[Any]) -> Columns:
    """Return a value of each step as a column."""
    if {type(value) for value in values} <= _FLOATS:
        return np.fromiter(values, np.float64, len(values))
    return as_column(name, values)
