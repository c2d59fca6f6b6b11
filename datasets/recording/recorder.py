"""`orlog.record`: an environment that records what happens in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat

import gymnasium

from orlog.datasets.columns.values import space_columns
from orlog.datasets.recording.collector import Collector, Recording, start_recording
from orlog.datasets.recording.open_episode import Recorded
from orlog.datasets.recording.rows import Rows
from orlog.errors import wrong_type
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
    collector = start_recording(
        name,
        Recorded(
            observation_space=env.observation_space,
            action_space=env.action_space,
            infos=infos,
            action_log_probs=action_log_probs,
        ),
        env.spec,
        simulated=[env] if state else [],
        append=append,
        options=options,
    )
    return Recorder(env, collector)


class Recorder(Recording, gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that records what happens in it; `orlog.record` returns one."""

    env: gymnasium.Env[Any, Any]

    def __init__(self, env: gymnasium.Env[Any, Any], collector: Collector) -> None:
        """Wrap an environment; `record` has made the rest."""
        super().__init__(env)
        self._collector = collector
        collector.block_steps = block_steps = _steps_in_memory(env)
        rows = collector.episodes[0].rows
        if rows is not None:
            self.step = _plain_step(self, collector, rows, block_steps)  # type: ignore[method-assign]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and start an episode; a running one ends as it is.

        Raises SchemaError if the observation does not fit its space, the options cannot be kept as JSON, or
        the environment has no state that can be recorded.
        """
        collector = self._collector
        collector.end()
        result = self.env.reset(seed=seed, options=options)
        observation, info = collector.episodes[0].checked_result(result, of_reset=True)
        collector.start(0, observation, seed, options)
        collector.running = True
        return observation, info

    def step(
        self, action: Any, *, action_log_prob: float | None = None
    ) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and record what happened.

        Raises SchemaError if the episode has ended, or something does not fit; StorageError if the disk is
        full; finished episodes are kept.
        """
        collector = self._collector
        collector.check_running()
        kept = collector.episodes[0].copied_action(action)
        collector.check_log_probs(action_log_prob)
        state = collector.state(0)
        collector.running = False
        result = self.env.step(action)
        _, _, terminated, truncated, _ = collector.episodes[0].checked_result(result)
        collector.episodes[0].check_flags(terminated, truncated)
        ended = bool(terminated or truncated)
        collector.add(0, kept, result, state, action_log_prob, ended=ended)
        collector.running = not ended
        return result


def _plain_step(
    recorder: Recorder, collector: Collector, rows: Rows, block_steps: int
) -> Callable[..., Any]:
    """Return `Recorder.step` for rows of numbers and nothing else: the same, in fewer and quicker lookups.

    Names of a function around it are found more quickly than attributes, and each line costs a good part of
    what recording costs.
    """
    keep_action, keep_result = rows.keep_action, rows.keep_result
    episode, env = collector.episodes[0], recorder.env

    def step(action: Any, *, action_log_prob: float | None = None) -> Any:
        if not collector.running or action_log_prob is not None:
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
            episode.set_flags(terminated, truncated)
            if terminated or truncated:
                collector.running = False
                episode.end()
            elif len(rows) >= block_steps:
                episode.write_steps()
        except BaseException:
            # Nobody knows whether the action was taken: the episode ends before it.
            collector.running = False
            raise
        return result

    return step


def _steps_in_memory(env: gymnasium.Env[Any, Any]) -> int:
    """Return how many steps are held before they are written."""
    step_bytes = sum(
        spec.dtype.itemsize * math.prod(spec.shape)
        for path, space in (("observations", env.observation_space), ("actions", env.action_space))
        for spec in space_columns(storable_space(space), path)
    )
    return max(1, min(BLOCK_STEPS, BLOCK_BYTES // max(1, step_bytes)))
