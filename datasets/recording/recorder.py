"""`orlog.record` and `orlog.record_vector`: environments that record what happens in them.

A recorder holds one open episode for each of its environments. What a step means is all that differs between a
single environment, a vector of them, and the agents of `parallel.py`.

What `step` of a vector returns for an environment after its episode's last step depends on the autoreset mode:

    next step    the last observation; the step after that resets and ignores the action
    same step    the first observation of the next episode; the last one is in infos["final_obs"]
    disabled     the last observation; reset(options={"reset_mask": ..}) starts the next episode
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, SupportsFloat, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from orlog.datasets.columns.episode import summary
from orlog.datasets.columns.values import space_columns
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import as_dataset
from orlog.datasets.reading.restoring import STATE
from orlog.datasets.recording.open_episode import LOG_PROBS, OpenEpisode, Recorded
from orlog.datasets.recording.writer import DatasetWriter
from orlog.errors import SchemaError, VersionExistsError, clause, wrong_type
from orlog.manifests.roles import MASKS, NEXT_LEGAL, spread_roles
from orlog.manifests.spaces import has_choices, storable_space

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
    recorded = Recorded(
        observation_space=env.observation_space,
        action_space=env.action_space,
        infos=infos,
        action_log_probs=action_log_probs,
        block_steps=_steps_in_memory(env),
    )
    return Recorder(env, start_version(name, recorded, env.spec, [env if state else None], append, options))


def record_vector(
    envs: VectorEnv[Any, Any, Any],
    name: str,
    *,
    infos: Sequence[str] = (),
    action_log_probs: bool = False,
    state: bool = False,
    append: bool = False,
    **options: Any,
) -> VectorRecorder:
    """Wrap a vector environment so that stepping it records a dataset; `close()` ends the version.

    Every autoreset mode is recorded with the real last observation of each episode, and without the
    steps in which an environment only resets. Episodes are in the order in which they ended; running
    ones are held in memory. With a seed, the episode of environment i has that seed + i, as in
    Gymnasium; episodes that an autoreset starts have none. With `action_log_probs`, give an array:
    `envs.step(actions, action_log_probs=..)`. `state` needs a `SyncVectorEnv`. Everything else,
    including the errors, is as in `record`.
    """
    if not isinstance(envs, VectorEnv):
        raise wrong_type("envs", "a vector environment of Gymnasium", envs)
    simulated = getattr(envs.unwrapped, "envs", None) if state else [None] * envs.num_envs
    if simulated is None:
        raise SchemaError(
            f"{name}: state=True needs a SyncVectorEnv, whose environments are at hand; those of "
            f"{type(envs.unwrapped).__name__} are not."
        )
    mode = envs.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise SchemaError(
            f'{name}: envs.metadata["autoreset_mode"] must be an AutoresetMode of Gymnasium, found '
            f"{mode!r}; only with it is known where episodes start."
        )
    recorded = Recorded(
        observation_space=envs.single_observation_space,
        action_space=envs.single_action_space,
        infos=infos,
        action_log_probs=action_log_probs,
    )
    spec = _spec_of(envs.unwrapped)
    return VectorRecorder(envs, start_version(name, recorded, spec, simulated, append, options, numbered=True))


class Recording:
    """What all recorders have besides `reset` and `step`; `env` is what is recorded.

    Attributes:
        writer: The writer of the version, which knows its name, folder and totals.
    """

    env: Any
    writer: DatasetWriter
    _episodes: Sequence[OpenEpisode] = ()
    # After an error, nobody knows which actions were taken: all episodes end before them.
    _is_running = False
    _is_closed = False

    def _hold(self, episodes: Sequence[OpenEpisode]) -> None:
        """Wait for a reset of the environments of these episodes."""
        self._episodes, self.writer = episodes, episodes[0].writer

    def close(self, **options: Any) -> None:
        """End the version and close the environment; without any step, no version is written.

        Raises StorageError if the disk is full; finished episodes are kept for `resume=True`.
        """
        try:
            if not self._is_closed:
                self._is_closed = True
                with contextlib.closing(self.writer):
                    self._end_episodes(self._episodes)
                    if self.writer.total_episodes > 0:
                        self.writer.finish()
        finally:
            self.env.close(**options)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *raised: object) -> Literal[False]:
        """End the version; after an error, keep the finished episodes for `resume=True`."""
        if raised[0] is not None and not self._is_closed:
            self._is_closed, self._is_running = True, False
            self.writer.__exit__(*raised)
        self.close()
        return False

    def __repr__(self) -> str:
        """Return the environment and what was recorded so far."""
        return f"<{type(self).__name__} of {self.env} with {self.writer!r}>"

    def episode_starts_from(self, observation: Any) -> None:
        """Let the episode start from this observation; `Dataset.restore` has put its state back."""
        self._episodes[0].start(observation)

    def _end_episodes(self, episodes: Iterable[OpenEpisode]) -> None:
        """End episodes as they are, before a reset; no step is taken until it is done."""
        self._is_running = False
        for episode in episodes:
            episode.end()

    def _check_running(self) -> None:
        if not self._is_running:
            raise SchemaError(f"{self._episodes[0].where()}: no episode is running; call reset() first.")


class Recorder(Recording, gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that records what happens in it; `orlog.record` returns one."""

    env: gymnasium.Env[Any, Any]

    def __init__(self, env: gymnasium.Env[Any, Any], episodes: Sequence[OpenEpisode]) -> None:
        """Wrap an environment; `record` has made the rest."""
        super().__init__(env)
        self._hold(episodes)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and start an episode; a running one ends as it is.

        Raises SchemaError if the observation does not fit its space, the options cannot be kept as JSON, or
        the environment has no state that can be recorded.
        """
        (episode,) = self._episodes
        self._end_episodes([episode])
        result: Any = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise episode.wrong_result("reset", result)
        observation, info = result
        episode.start(observation, seed, options)
        self._is_running = True
        return observation, info

    def step(
        self, action: Any, *, action_log_prob: float | None = None
    ) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and record what happened.

        Raises SchemaError if the episode has ended, or something does not fit; StorageError if the disk is
        full; finished episodes are kept.
        """
        if not self._is_running:
            self._check_running()
        episode = self._episodes[0]
        episode.before(action, action_log_prob)
        self._is_running = False
        result = self.env.step(action)
        episode.after(result)
        self._is_running = not episode.keep()
        return result


class VectorRecorder(Recording, VectorWrapper):
    """A vector environment that records what happens; `orlog.record_vector` returns one."""

    env: VectorEnv[Any, Any, Any]

    def __init__(self, envs: VectorEnv[Any, Any, Any], episodes: Sequence[OpenEpisode]) -> None:
        """Wrap a vector environment; `record_vector` has made the rest."""
        super().__init__(envs)
        self._hold(episodes)
        self._mode = envs.metadata["autoreset_mode"]
        self._ended = np.zeros(envs.num_envs, np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of `options["reset_mask"]`; running episodes end there.

        Raises SchemaError if an observation does not fit its space, or options cannot be kept as JSON.
        """
        # Gymnasium takes the mask out of the given options.
        kept = {**(options or {})}
        chosen = np.array(kept.pop("reset_mask", np.ones(self.num_envs, np.bool_)))
        running = self._is_running or bool(chosen.all())
        self._end_episodes(self._episodes[index] for index in np.flatnonzero(chosen).tolist())
        result = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type] # lists too
        seeds: Sequence[int | None] = [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            seeds = [int(seed) + index for index in range(self.num_envs)]
        elif seed is not None:
            seeds = seed
        for index, observation in self._observations(result[0], chosen):
            self._episodes[index].start(observation, seeds[index], kept or None)
        self._ended &= ~chosen
        self._is_running = running
        return result

    def step(
        self, actions: Any, *, action_log_probs: Iterable[float] | None = None
    ) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments and record what happened.

        Raises SchemaError if an episode has ended and was not reset, or something does not fit; StorageError
        if the disk is full; finished episodes are kept.
        """
        self._check_running()
        if self._mode is AutoresetMode.DISABLED and self._ended.any():
            raise SchemaError(
                f"{self._episodes[0].where()}: the episodes of environments "
                f"{np.flatnonzero(self._ended).tolist()} have ended; reset them with "
                'envs.reset(options={"reset_mask": ..}) before the step.'
            )
        acting = np.flatnonzero(~self._ended).tolist()
        given = list(iterate(self.env.action_space, actions))
        log_probs = [None] * len(given) if action_log_probs is None else [*action_log_probs]
        for index in acting:
            self._episodes[index].before(given[index], log_probs[index])
        self._is_running = False
        result = self.env.step(actions)
        self._check_lengths(*result[1:4])
        for index, observation in self._observations(result[0], ~self._ended):
            self._episodes[index].after(self._own_result(index, observation, *result[1:]))
        ended = np.zeros(self.num_envs, np.bool_)
        for index in acting:  # after all were checked, so that a refused step is kept of none
            ended[index] = self._episodes[index].keep()
        started = ended if self._mode is AutoresetMode.SAME_STEP else self._ended
        for index, observation in self._observations(result[0], started):
            self._episodes[index].start(observation)
        self._ended = ended & ~started
        self._is_running = True
        return result

    def _observations(self, observations: Any, chosen: np.ndarray) -> Iterator[tuple[int, Any]]:
        """Yield the observations of the chosen environments, with their positions."""
        if chosen.any():
            several = enumerate(iterate(self.env.observation_space, observations))
            yield from ((index, observation) for index, observation in several if chosen[index])

    def _check_lengths(self, *several: Any) -> None:
        """Refuse rewards and flags that are not as many as the environments."""
        for name, values in zip(("rewards", "terminations", "truncations"), several, strict=True):
            if np.ndim(values) == 0 or len(values) != self.num_envs:
                raise SchemaError(
                    f"{self._episodes[0].where()}: expected {name} of {self.num_envs} environments, "
                    f"found {summary(values)}; correct the vector environment."
                )

    def _own_result(
        self, index: int, observation: Any, rewards: Any, terminations: Any, truncations: Any, infos: Any
    ) -> tuple[Any, ...]:
        """Return what the own step of an environment gave; refuse it where its last observation is not known."""
        flags = terminations[index], truncations[index]
        if any(flags) and self._mode is AutoresetMode.SAME_STEP:
            episode = self._episodes[index]
            episode.check_flags(*flags)
            if infos.get("final_obs") is None or infos["final_obs"][index] is None:
                raise SchemaError(
                    f"{episode.where()}: infos has no final_obs for it, so its last observation is not known; use "
                    "another autoreset mode."
                )
            observation, infos = infos["final_obs"][index], infos.get("final_info", {})
        # Of an info, `_NAME` tells which environments said NAME.
        own = {
            name: values[index]
            for name, values in infos.items()
            if f"_{name}" in infos and not isinstance(values, dict) and infos[f"_{name}"][index]
        }
        return observation, rewards[index], *flags, own


def start_version(
    name: str,
    recorded: Recorded,
    environment: EnvSpec | None,
    simulated: Sequence[Any],
    append: bool,
    options: Mapping[str, Any],
    *,
    numbered: bool = False,
) -> list[OpenEpisode]:
    """Start a version, or resume or append to one; return an episode for each environment.

    `simulated` has an entry for each of them: the one whose states are recorded, or None. Errors say which one it
    is if they are `numbered`. See `record` for the rest.
    """
    infos = recorded.infos
    if isinstance(infos, str) or not all(isinstance(item, str) for item in infos):
        raise wrong_type("infos", "a list of names", infos)
    observation_space, action_space = map(storable_space, (recorded.observation_space, recorded.action_space))
    recorded = dataclasses.replace(recorded, observation_space=observation_space, action_space=action_space)
    if append:
        base = as_dataset(name)
        _check_same(recorded, simulated[0] is not None, base)
        recorded = dataclasses.replace(recorded, keeps_options="episodes/options" in base.schema.extras)
        writer = DatasetWriter.append(base, keep_every_episode=True, **options)
    else:
        if has_choices(action_space):
            options = {**options, "roles": _with_masks(infos, options.get("roles") or {})}
        options = {"environment": environment, "observation_space": observation_space, **options}
        try:
            writer = DatasetWriter(name, action_space=action_space, keep_every_episode=True, **options)
        except VersionExistsError as error:
            raise VersionExistsError(
                f"{clause(error)}; or give append=True, which adds episodes to the newest version."
            ) from error
    return [
        OpenEpisode(writer, recorded, simulated=env, environment=number if numbered else None)
        for number, env in enumerate(simulated)
    ]


def _check_same(recorded: Recorded, has_states: bool, base: Dataset) -> None:
    """Refuse to append what has other columns than the version that is appended to."""
    known = {name.removeprefix("infos/") for name in base.schema.extras if "infos/" in name}
    states = {name for name in known if name.startswith(STATE)}
    log_probs = [LOG_PROBS] if recorded.action_log_probs else []
    for what, expected, given in (
        ("observation_space", base.observation_space, recorded.observation_space),
        ("action_space", base.action_space, recorded.action_space),
        ("infos", known - states, {*recorded.infos, *log_probs}),
        ("state", bool(states), has_states),
    ):
        if expected != given:
            raise SchemaError(
                f"{base.name}: append=True needs the same {what} as its newest version, which has "
                f"{expected}, found {given}; record a new dataset under another name."
            )


def _with_masks(infos: Sequence[str], roles: Mapping[str, str]) -> Mapping[str, str]:
    """Return roles with those of flags of legal choices: the info of a step says what may be done in the next."""
    masks = [f"infos/{name}" for name in infos if name.rpartition("/")[2] in MASKS]
    usual = all(name.endswith("/action_mask") for name in masks)
    added = {} if usual and NEXT_LEGAL not in roles.values() else dict.fromkeys(masks, NEXT_LEGAL)
    return {**added, **spread_roles(roles, masks)}


def _steps_in_memory(env: gymnasium.Env[Any, Any]) -> int:
    """Return how many steps are held before they are written."""
    spaces = {"observations": env.observation_space, "actions": env.action_space}
    specs = [spec for path, space in spaces.items() for spec in space_columns(storable_space(space), path)]
    step_bytes = sum(spec.dtype.itemsize * math.prod(spec.shape) for spec in specs)
    return max(1, min(BLOCK_STEPS, BLOCK_BYTES // max(1, step_bytes)))


def _spec_of(envs: VectorEnv[Any, Any, Any]) -> EnvSpec | None:
    """Return the spec of the environments that a vector holds."""
    if hasattr(envs, "envs"):
        return cast("EnvSpec | None", envs.envs[0].spec)
    if isinstance(envs, AsyncVectorEnv):
        return cast("EnvSpec | None", envs.get_attr("spec")[0])
    if envs.spec is None:
        return None
    # What gymnasium.make_vec adds to the environment's own arguments.
    added = ("num_envs", "vectorization_mode", "vector_kwargs", "max_episode_steps")
    kwargs = {name: value for name, value in envs.spec.kwargs.items() if name not in added}
    return dataclasses.replace(envs.spec, kwargs=kwargs)
