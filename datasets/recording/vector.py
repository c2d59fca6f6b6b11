"""`orlog.record_vector`: a vector environment that records the episodes of all its environments.

What `step` returns for an environment after its episode's last step depends on the autoreset mode:

    next step    the last observation; the step after that resets and ignores the action
    same step    the first observation of the next episode; the last one is in infos["final_obs"]
    disabled     the last observation; reset(options={"reset_mask": ..}) starts the next episode
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from orlog.datasets.columns.episode import summary
from orlog.datasets.recording.collector import Collector, Recording, start_recording
from orlog.datasets.recording.open_episode import Recorded
from orlog.errors import SchemaError, wrong_type


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
    simulated = getattr(envs.unwrapped, "envs", None)
    if state and simulated is None:
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
    collector = start_recording(
        name,
        Recorded(
            observation_space=envs.single_observation_space,
            action_space=envs.single_action_space,
            infos=infos,
            action_log_probs=action_log_probs,
        ),
        _spec_of(envs.unwrapped),
        simulated=simulated if state and simulated else [],
        append=append,
        options=options,
        count=envs.num_envs,
    )
    return VectorRecorder(envs, collector, mode)


class VectorRecorder(Recording, VectorWrapper):
    """A vector environment that records what happens; `orlog.record_vector` returns one."""

    env: VectorEnv[Any, Any, Any]

    def __init__(
        self, envs: VectorEnv[Any, Any, Any], collector: Collector, mode: AutoresetMode
    ) -> None:
        """Wrap a vector environment; `record_vector` has made the rest."""
        super().__init__(envs)
        self._collector = collector
        self._mode = mode
        self._ended = np.zeros(envs.num_envs, np.bool_)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of `options["reset_mask"]`; running episodes end there.

        Raises SchemaError if an observation does not fit its space, or options cannot be kept as JSON.
        """
        # Gymnasium takes the mask out of the given options.
        kept = None if options is None else {**options}
        mask = None if kept is None else kept.pop("reset_mask", None)
        chosen = np.ones(self.num_envs, np.bool_) if mask is None else np.array(mask)
        running = self._collector.running or bool(chosen.all())
        self._collector.end(np.flatnonzero(chosen).tolist())
        observations, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type] # lists too
        self._start(chosen, observations, _seeds(seed, self.num_envs), kept or None)
        self._ended &= ~chosen
        self._collector.running = running
        return observations, infos

    def step(
        self, actions: Any, *, action_log_probs: Iterable[float] | None = None
    ) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments and record what happened.

        Raises SchemaError if an episode has ended and was not reset, or something does not fit; StorageError
        if the disk is full; finished episodes are kept.
        """
        collector = self._collector
        collector.check_running("envs")
        if self._mode is AutoresetMode.DISABLED and self._ended.any():
            raise SchemaError(
                f"{collector.episodes[0].where()}: the episodes of environments "
                f"{np.flatnonzero(self._ended).tolist()} have ended; reset them with "
                'envs.reset(options={"reset_mask": ..}) before the step.'
            )
        collector.check_log_probs(action_log_probs)
        acting = np.flatnonzero(~self._ended).tolist()
        given = list(iterate(self.env.action_space, actions))
        kept = {index: collector.episodes[index].copied_action(given[index]) for index in acting}
        log_probs = [None] * len(given) if action_log_probs is None else [*action_log_probs]
        states = {index: collector.state(index) for index in acting}
        collector.running = False
        result = self.env.step(actions)
        ended = np.zeros(self.num_envs, np.bool_)
        for index, row in self._rows(result, acting).items():
            ended[index] = row[2] or row[3]
            collector.add(
                index, kept[index], row, states[index], log_probs[index], ended=ended[index]
            )
        started = ended if self._mode is AutoresetMode.SAME_STEP else self._ended
        self._start(started, result[0], _seeds(None, self.num_envs))
        self._ended = ended & ~started
        collector.running = True
        return result

    def _start(
        self,
        chosen: np.ndarray,
        observations: Any,
        seeds: Sequence[int | None],
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the episodes of environments that were reset."""
        if chosen.any():
            for index, one in enumerate(iterate(self.env.observation_space, observations)):
                if chosen[index]:
                    self._collector.start(index, one, seeds[index], options)

    def _rows(self, result: tuple[Any, ...], acting: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        """Return what the own step of each environment that acts returned.

        Raises SchemaError if there is not one reward and flag for each environment, a reward is no number, a
        flag is NaN, or the last observation of an episode is not known.
        """
        observations, rewards, terminations, truncations, infos = result
        episodes, count = self._collector.episodes, self.num_envs
        named = {"rewards": rewards, "terminations": terminations, "truncations": truncations}
        for name, values in named.items():
            if np.ndim(values) == 0 or len(values) != count:
                raise SchemaError(
                    f"{episodes[0].where()}: expected {name} of {count} environments, found "
                    f"{summary(values)}; correct the vector environment."
                )
        rows = {}
        for index, observation in enumerate(iterate(self.env.observation_space, observations)):
            if index not in acting:
                continue
            # Before any step is added, so that this step of no other environment is kept.
            episodes[index].checked_reward(rewards[index])
            episodes[index].check_flags(terminations[index], truncations[index])
            info = infos
            ended = terminations[index] or truncations[index]
            if ended and self._mode is AutoresetMode.SAME_STEP:
                if infos.get("final_obs") is None or infos["final_obs"][index] is None:
                    raise SchemaError(
                        f"{episodes[index].where()}: infos has no final_obs for it, so its last "
                        "observation is not known; use another autoreset mode."
                    )
                observation = infos["final_obs"][index]
                info = infos.get("final_info", {})
            rows[index] = (
                observation,
                rewards[index],
                terminations[index],
                truncations[index],
                _info_of(info, index),
            )
        return rows


def _seeds(seed: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """Return the seed of each environment, as Gymnasium chooses them."""
    if seed is None:
        return [None] * count
    if isinstance(seed, int | np.integer):
        return [int(seed) + index for index in range(count)]
    return [*seed]


def _info_of(infos: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return what one environment's step said; `_NAME` tells which environments said NAME."""
    return {
        name: values[index]
        for name, values in infos.items()
        if f"_{name}" in infos and not isinstance(values, dict) and infos[f"_{name}"][index]
    }


def _spec_of(envs: VectorEnv[Any, Any, Any]) -> EnvSpec | None:
    """Return the spec of one of the environments."""
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
