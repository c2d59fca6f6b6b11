"""Collects the episodes of one environment, or of several that are stepped together.

Every recorder (`recorder.py`, `vector.py`, `parallel.py`) says what one step of it means; what is the same
for all of them is here: how a version starts, when episodes start, go on and end, and how a recording ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Self

from gymnasium.envs.registration import EnvSpec

from orlog.datasets.reading.given import as_dataset
from orlog.datasets.reading.restoring import STATE, Simulator, simulator_of
from orlog.datasets.recording.open_episode import LOG_PROBS, OpenEpisode, Recorded
from orlog.datasets.recording.writer import DatasetWriter
from orlog.errors import (
    IntegrityError,
    SchemaError,
    StorageError,
    VersionExistsError,
    clause,
    wrong_type,
)
from orlog.manifests.roles import MASKS, NEXT_LEGAL, spread_roles
from orlog.manifests.spaces import has_choices, storable_space


class Collector:
    """The episodes that environments are giving, and the writer of their version.

    Attributes:
        writer: The writer of the version.
        episodes: The running episode of each environment.
        running: Whether steps are taken: after an error, nobody knows which actions were taken, so all
            episodes end before them.
        block_steps: How many steps of an episode are held before they are written.
    """

    def __init__(
        self, writer: DatasetWriter, episodes: Sequence[OpenEpisode], simulated: Sequence[Any]
    ) -> None:
        """Wait for a reset; `simulated` are the environments whose states are recorded, or nothing."""
        self.writer = writer
        self.episodes = episodes
        self.running = False
        self.block_steps: float = math.inf
        self._simulated = simulated
        self._simulators: list[Simulator | None] = [None] * len(episodes)
        self._closed = False

    def check_running(self, env: str = "env") -> None:
        """Refuse a step without a reset; `env` is what the user calls the environment."""
        if not self.running:
            raise SchemaError(
                f"{self.episodes[0].where()}: no episode is running; call {env}.reset() first."
            )

    def check_log_probs(self, given: object) -> None:
        """Refuse log-probabilities that are missing, or are not recorded."""
        first = self.episodes[0]
        if (given is None) is first.with_log_probs:
            raise first.wrong_log_prob()

    def state(self, index: int) -> Mapping[str, Any] | None:
        """Return the state of an environment's simulator, if it is recorded."""
        simulator = self._simulators[index]
        return None if simulator is None else simulator.read()

    def start(
        self,
        index: int,
        observation: Any,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Let the episode of an environment start from the observation of a reset."""
        if self._simulated:
            self._simulators[index] = simulator_of(self._simulated[index])
        self.episodes[index].start(observation, seed, options)

    def add(
        self,
        index: int,
        action: Any,
        result: tuple[Any, Any, Any, Any, Mapping[str, Any]],
        state: Mapping[str, Any] | None,
        log_prob: float | None,
        *,
        ended: bool,
    ) -> None:
        """Add a step of an environment, and end its episode if this was the last one."""
        episode = self.episodes[index]
        episode.add(action, result, state, log_prob)
        if ended:
            episode.end()
        elif episode.steps >= self.block_steps:
            episode.write_steps()

    def end(self, indices: Iterable[int] = (0,)) -> None:
        """End episodes as they are, before a reset; no step is taken until it is done."""
        self.running = False
        for index in indices:
            self.episodes[index].end()

    def close(self, close_environment: Callable[[], object]) -> None:
        """End running episodes and the version, then the environment; without any episode, write none."""
        try:
            if self._closes():
                try:
                    self.end(range(len(self.episodes)))
                    if self.writer.total_episodes > 0:
                        self.writer.finish()
                finally:
                    self.writer.close()
        finally:
            close_environment()

    def keep_after(self, error: object) -> None:
        """After an error, stop without ending the version; `resume=True` has the finished episodes."""
        if error is None or not self._closes():
            return
        try:
            if self.writer.total_episodes > 0:
                with contextlib.suppress(StorageError, IntegrityError):
                    self.writer.checkpoint()
        finally:
            self.writer.close()

    def _closes(self) -> bool:
        """Return whether the recording ends now, and not once more."""
        is_first, self._closed, self.running = not self._closed, True, False
        return is_first


class Recording:
    """What all recorders have besides `reset` and `step`; `env` is what is recorded.

    Attributes:
        writer: The writer of the version, which knows its name, folder and totals.
    """

    env: Any
    _collector: Collector

    @property
    def writer(self) -> DatasetWriter:
        """The writer of the version."""
        return self._collector.writer

    def close(self, **options: Any) -> None:
        """End the version and close the environment; without any step, no version is written.

        Raises StorageError if the disk is full; finished episodes are kept for `resume=True`.
        """
        self._collector.close(lambda: self.env.close(**options))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *raised: object) -> Literal[False]:
        """End the version; after an error, keep the finished episodes for `resume=True`."""
        self._collector.keep_after(raised[0])
        self.close()
        return False

    def __repr__(self) -> str:
        """Return the environment and what was recorded so far."""
        return f"<{type(self).__name__} of {self.env} with {self.writer!r}>"

    def episode_starts_from(self, observation: Any) -> None:
        """Let the episode start from this observation; `Dataset.restore` has put its state back."""
        self._collector.episodes[0].start(observation)


def start_recording(
    name: str,
    recorded: Recorded,
    environment: EnvSpec | None,
    *,
    simulated: Sequence[Any],
    append: bool,
    options: Mapping[str, Any],
    count: int | None = None,
) -> Collector:
    """Start a version, or resume or append to one, for one environment or `count` of a vector.

    `simulated` are the environments whose states are recorded, or nothing; see `record` for the rest.
    """
    infos, action_log_probs = recorded.infos, recorded.action_log_probs
    if isinstance(infos, str) or not all(isinstance(one, str) for one in infos):
        raise wrong_type("infos", "a list of names", infos)
    observation_space = storable_space(recorded.observation_space)
    action_space = storable_space(recorded.action_space)
    recorded = dataclasses.replace(
        recorded, observation_space=observation_space, action_space=action_space
    )
    keeps_options = True
    if append:
        base = as_dataset(name)
        found = {one.removeprefix("infos/") for one in base.schema.extras if "infos/" in one}
        states = {one for one in found if one.startswith(STATE)}
        log_probs = [LOG_PROBS] if action_log_probs else []
        for what, found_there, given in (
            ("observation_space", base.observation_space, observation_space),
            ("action_space", base.action_space, action_space),
            ("infos", found - states, {*infos, *log_probs}),
            ("state", bool(states), bool(simulated)),
        ):
            if found_there != given:
                raise SchemaError(
                    f"{base.name}: append=True needs the same {what} as its newest version, which has "
                    f"{found_there}, found {given}; record a new dataset under another name."
                )
        keeps_options = "episodes/options" in base.schema.extras
        writer = DatasetWriter.append(base, keep_every_episode=True, **options)
    else:
        if has_choices(action_space):
            options = {**options, "roles": _with_masks(infos, options.get("roles") or {})}
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
    episodes = [
        OpenEpisode(
            writer, recorded, state=bool(simulated), keeps_options=keeps_options, environment=number
        )
        for number in ([None] if count is None else range(count))
    ]
    return Collector(writer, episodes, simulated)


def _with_masks(infos: Sequence[str], roles: Mapping[str, str]) -> Mapping[str, str]:
    """Return roles with those of flags of legal choices: the info of a step says what may be done in the next one."""
    masks = [f"infos/{one}" for one in infos if one.rpartition("/")[2] in MASKS]
    usual = all(one.endswith("/action_mask") for one in masks) and NEXT_LEGAL not in roles.values()
    added = {} if usual else dict.fromkeys(masks, NEXT_LEGAL)
    return {**added, **spread_roles(roles, masks)}
