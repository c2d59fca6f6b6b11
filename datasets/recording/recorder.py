"""`orlog.record`: an environment that records what happens in it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, SupportsFloat

import gymnasium
from gymnasium.envs.registration import EnvSpec

from orlog.datasets.columns.stored_spaces import space_columns
from orlog.datasets.reading.given import as_dataset
from orlog.datasets.reading.restoring import STATE, Simulator, simulator_of
from orlog.datasets.recording.open_episode import LOG_PROBS, OpenEpisode
from orlog.datasets.recording.rows import Rows
from orlog.datasets.recording.writer import DatasetWriter
from orlog.errors import (
    IntegrityError,
    SchemaError,
    StorageError,
    VersionExistsError,
    clause,
    wrong_type,
)
from orlog.manifests.spaces import storable_space

BLOCK_STEPS = 1024
BLOCK_BYTES = 2**24


def record(
    env: gymnasium.Env[Any, Any],
    name: str,
    *,
    infos: Sequence[str] = (),
    action_log_probs: bool = False,
    state: bool = False,
    append: bool = False,
    **options: Any,
) -> Recorder:
    """Wrap an environment so that stepping it records a dataset; `close()` ends the version.

    Each episode is on disk when its last step returns, so a process that is killed keeps all
    finished episodes: start again with `resume=True` to go on. (A power cut can lose those of the
    last minute.) A reset or `close()` in the middle of an episode ends it without a flag, as
    an unfinished one. In a `with` block, an error keeps the finished episodes in the same
    way, without ending the version.

    Args:
        env: The environment, as `gymnasium.make` returns it.
        name: Name of the dataset without version, for example `lab/cheetah-v1`.
        infos: Names in the info of each step to record, as columns `infos/NAME`.
        action_log_probs: Record the log-probability of each action, as `infos/action_log_probs`;
            give it with `env.step(action, action_log_prob=..)`.
        state: Record the simulator's state before each action, for `Dataset.restore`.
        append: Add episodes to the newest version of this name, as a next version.
        **options: Other arguments of `DatasetWriter`, or of `DatasetWriter.append`: `version`,
            `description`, `license`, `behavior_policy`, `resume`, `discard` and so on.

    Raises:
        VersionExistsError: the version exists, and `append` is not given.
        StorageError: an interrupted recording exists and is neither resumed nor discarded, or
            another process is writing this version.
        SchemaError: the spaces cannot be stored, or differ from those of the version to append to.
        InvalidNameError: the name is invalid, or contains a version.
    """
    if not isinstance(env, gymnasium.Env):
        raise wrong_type("env", "an environment made by gymnasium.make", env)
    writer, episode = start_recording(
        name,
        env.observation_space,
        env.action_space,
        env.spec,
        infos=infos,
        action_log_probs=action_log_probs,
        state=state,
        append=append,
        options=options,
    )
    return Recorder(env, writer, episode, state=state)


class Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that records what happens in it; `orlog.record` returns one.

    Attributes:
        writer: The writer of the version, which knows its name, folder and totals.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        writer: DatasetWriter,
        episode: OpenEpisode,
        *,
        state: bool,
    ) -> None:
        """Wrap an environment; `record` has made the rest."""
        super().__init__(env)
        self.writer = writer
        self._episode = episode
        self._with_state = state
        self._simulator: Simulator | None = None
        self._block_steps = _steps_in_memory(env)
        self._running = False
        self._closed = False
        if episode.rows is not None:
            self.step = _plain_step(self, episode, episode.rows)  # type: ignore[method-assign]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and start an episode; a running one ends as it is.

        Raises SchemaError if the observation does not fit its space, the options cannot be kept as JSON, or
        the environment has no state that can be recorded.
        """
        self._running = False
        self._episode.end()
        observation, info = self.env.reset(seed=seed, options=options)
        if self._with_state:
            self._simulator = simulator_of(self.env)
        self._episode.start(observation, seed, options)
        self._running = True
        return observation, info

    def step(
        self, action: Any, *, action_log_prob: float | None = None
    ) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and record what happened.

        Raises SchemaError if the episode has ended, or something does not fit; StorageError if the disk is
        full; finished episodes are kept.
        """
        episode = self._episode
        if not self._running:
            raise SchemaError(f"{episode.where()}: no episode is running; call env.reset() first.")
        kept = episode.copied_action(action)
        state = None
        if (action_log_prob is None) is episode.with_log_probs:
            raise episode.wrong_log_prob()
        if self._simulator is not None:
            state = self._simulator.read()
        # After an error, nobody knows whether the action was taken: the episode ends before it.
        self._running = False
        result = self.env.step(action)
        episode.add(kept, result, state, action_log_prob)
        _, _, terminated, truncated, _ = result
        if terminated or truncated:
            episode.end()
            return result
        if episode.steps >= self._block_steps:
            episode.write_steps()
        self._running = True
        return result

    def episode_starts_from(self, observation: Any) -> None:
        """Let the episode start from this observation; `Dataset.restore` has put its state back."""
        self._episode.start(observation)

    def close(self) -> None:
        """End the version and close the environment; without any step, no version is written.

        Raises StorageError if the disk is full; finished episodes are kept for `resume=True`.
        """
        try:
            if not self._closed:
                self._closed, self._running = True, False
                close_writer(self.writer, [self._episode])
        finally:
            super().close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *raised: object) -> Literal[False]:
        """End the version; after an error, keep the finished episodes for `resume=True`."""
        if raised[0] is not None and not self._closed:
            self._closed, self._running = True, False
            stop_writer(self.writer)
        self.close()
        return False

    def __repr__(self) -> str:
        """Return the environment and what was recorded so far."""
        return f"<Recorder of {self.env} with {self.writer!r}>"


def _plain_step(recorder: Recorder, episode: OpenEpisode, rows: Rows) -> Callable[..., Any]:
    """Return `Recorder.step` for rows of numbers and nothing else: the same, in fewer and quicker lookups.

    Names of a function around it are found more quickly than attributes, and each line costs a good part of
    what recording costs.
    """
    keep_action, keep_result = rows.keep_action, rows.keep_result
    block_steps, env = recorder._block_steps, recorder.env

    def step(action: Any, *, action_log_prob: float | None = None) -> Any:
        if not recorder._running or action_log_prob is not None:
            return Recorder.step(recorder, action, action_log_prob=action_log_prob)
        if not keep_action(action):
            keep_action(episode.copied_action(action))
        try:
            result = env.step(action)
            goes_on = keep_result(result, block_steps)
            if goes_on:
                return result
            if goes_on is None:
                episode.add_result(result)
            _, _, terminated, truncated, _ = result
            if terminated or truncated:
                recorder._running = False
                episode.set_flags(terminated, truncated)
                episode.end()
            elif len(rows) >= block_steps:
                episode.write_steps()
        except BaseException:
            # Nobody knows whether the action was taken: the episode ends before it.
            recorder._running = False
            raise
        return result

    return step


def start_recording(
    name: str,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    environment: EnvSpec | None,
    *,
    infos: Sequence[str],
    action_log_probs: bool,
    state: bool,
    append: bool,
    options: Mapping[str, Any],
) -> tuple[DatasetWriter, OpenEpisode]:
    """Return the writer of a version and its first episode; see `record`."""
    if isinstance(infos, str) or not all(isinstance(one, str) for one in infos):
        raise wrong_type("infos", "a list of names", infos)
    observation_space, action_space = (
        storable_space(observation_space),
        storable_space(action_space),
    )
    keeps_options = True
    if append:
        base = as_dataset(name)
        found = {one.removeprefix("infos/") for one in base.schema.extras if "infos/" in one}
        given = {*infos, *([LOG_PROBS] if action_log_probs else [])}
        for kind, space in (("observation", observation_space), ("action", action_space)):
            recorded = getattr(base, f"{kind}_space")
            _check_append(base.name, f"{kind}_space", recorded, space)
        _check_append(
            base.name, "infos", {one for one in found if not one.startswith(STATE)}, given
        )
        _check_append(base.name, "state", any(one.startswith(STATE) for one in found), state)
        keeps_options = "episodes/options" in base.schema.extras
        writer = DatasetWriter.append(base, keep_every_episode=True, **options)
    else:
        try:
            writer = DatasetWriter(
                name,
                observation_space=observation_space,
                action_space=action_space,
                keep_every_episode=True,
                **{"environment": environment, **options},
            )
        except VersionExistsError as error:
            raise VersionExistsError(
                f"{clause(error)}; or give append=True, which adds episodes to the newest version."
            ) from error
    episode = OpenEpisode(
        writer,
        observation_space,
        action_space,
        infos=infos,
        action_log_probs=action_log_probs,
        state=state,
        keeps_options=keeps_options,
    )
    return writer, episode


def close_writer(writer: DatasetWriter, episodes: Sequence[OpenEpisode]) -> None:
    """End running episodes as they are, then the version; without any episode, write none."""
    try:
        for episode in episodes:
            episode.end()
        if writer.total_episodes > 0:
            writer.finish()
    finally:
        writer.close()


def stop_writer(writer: DatasetWriter) -> None:
    """Stop without ending the version; finished episodes are kept for `resume=True`."""
    try:
        if writer.total_episodes > 0:
            with contextlib.suppress(StorageError, IntegrityError):
                writer.checkpoint()
    finally:
        writer.close()


def _check_append(name: str, what: str, recorded: object, given: object) -> None:
    if recorded != given:
        raise SchemaError(
            f"{name}: append=True needs the same {what} as its newest version, which has "
            f"{recorded}, found {given}; record a new dataset under another name."
        )


def _steps_in_memory(env: gymnasium.Env[Any, Any]) -> int:
    """Return how many steps are held before they are written."""
    step_bytes = sum(
        spec.dtype.itemsize * math.prod(spec.shape)
        for path, space in (("observations", env.observation_space), ("actions", env.action_space))
        for spec in space_columns(storable_space(space), path)
    )
    return max(1, min(BLOCK_STEPS, BLOCK_BYTES // max(1, step_bytes)))
