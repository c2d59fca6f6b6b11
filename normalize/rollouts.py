"""Runs a policy in seeded environments, several side by side: each episode's return and success.

A policy is any callable from a batch of observations, as the vector environment gives them, to a
batch of actions. One with memory (`PolicyWithMemory`) is also told where episodes begin, and rewards; one
that watches (`WatchingPolicy`) sees the environments themselves, as the controllers of recipes may.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
from jaxtyping import Bool, Float64

Policy = Callable[[Any], np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episodes:
    """What came of each episode.

    Attributes:
        returns: Undiscounted return of each episode.
        discounted: Discounted return of each episode.
        successes: Whether each episode succeeded; None if the environment does not tell.
    """

    returns: Float64[np.ndarray, " episodes"]
    discounted: Float64[np.ndarray, " episodes"]
    successes: Bool[np.ndarray, " episodes"] | None


@runtime_checkable
class PolicyWithMemory(Protocol):
    """A policy whose actions depend on what came before in an episode.

    `start`, then `begin` for all environments; after that in each step: call, `reward`, and `begin`
    for the environments that have begun a new episode in this step.
    """

    def start(self, environments: int) -> None:
        """Forget everything; the next calls are for this number of environments."""

    def begin(self, which: Bool[np.ndarray, " environments"]) -> None:
        """Forget the episodes of these environments: new ones begin with the next observations."""

    def __call__(self, observations: Any) -> np.ndarray:
        """Return the actions for the observations of all environments."""

    def reward(self, rewards: Float64[np.ndarray, " environments"]) -> None:
        """Take note of the rewards of the last actions."""


@runtime_checkable
class WatchingPolicy(Protocol):
    """A policy that looks at the state of environments, of which observations show only a part."""

    def watch(self, environments: Sequence[gymnasium.Env[Any, Any]]) -> None:
        """Take note of the environments that the next calls are for, in order."""

    def __call__(self, observations: Any) -> np.ndarray:
        """Return the actions for all environments."""


def run_episodes(
    policy: Policy,
    environments: SyncVectorEnv,
    *,
    episodes: int,
    first_seed: int,
    discount: float = 1.0,
    progress: Callable[[int], None] = lambda _done: None,
) -> Episodes:
    """Return what came of each episode; episode i resets with `first_seed` + i.

    An episode has succeeded if `info["success"]` was true after any of its steps, as mazes, Adroit
    and Meta-World count; OGBench ends an episode there. Where there is `info["is_success"]` instead,
    as in Fetch, the last step counts, as for the authors of HER (https://arxiv.org/abs/1707.01495).

    Episodes run in rounds, one in each environment. If one ends early, its environment keeps
    stepping, but its rewards are not counted. The same arguments give the same returns on the same
    machine; another number of environments may change the last bits of a network's output, and
    with them a chaotic episode.

    Args:
        policy: What chooses the actions.
        environments: Environments side by side, each with a time limit, that reset themselves at
            the step after their end (Gymnasium's default). They can be used again.
        episodes: Number of episodes.
        first_seed: Seed of the first one.
        discount: Weight of the next step in discounted returns.
        progress: Called with the number of episodes done after each round.

    Raises ValueError if a number is out of range.
    """
    if episodes < 1 or first_seed < 0:
        raise ValueError(
            f"episodes must be >= 1 and first_seed >= 0, found {episodes} and {first_seed}."
        )
    returns, discounted = np.zeros(episodes), np.zeros(episodes)
    successes = np.zeros(episodes, np.bool_)
    tells = False
    side_by_side = environments.num_envs
    memory = policy if isinstance(policy, PolicyWithMemory) else None
    if memory is not None:
        memory.start(side_by_side)
    if isinstance(policy, WatchingPolicy):
        policy.watch(environments.envs)
    for first in range(0, episodes, side_by_side):
        # The last round may need fewer environments; the others also run, but do not count.
        count = min(side_by_side, episodes - first)
        observations, _ = environments.reset(seed=first_seed + first)
        running = np.arange(side_by_side) < count
        totals, reached = np.zeros((2, side_by_side)), np.zeros(side_by_side, np.bool_)
        weight = 1.0
        ended = np.zeros(side_by_side, np.bool_)
        if memory is not None:
            memory.begin(~ended)
        while running.any():
            observations, rewards, terminations, truncations, infos = environments.step(
                policy(observations)
            )
            if memory is not None:
                memory.reward(rewards)
                memory.begin(ended)  # what ended a step ago was reset by this step
            gained = np.where(running, rewards, 0)
            totals += np.stack([gained, weight * gained])
            weight *= discount
            ended = terminations | truncations
            # Of an environment that has just been reset, which does not run any more, this is the
            # info of the reset.
            told, succeeded = _successes(infos, ended)
            tells |= bool((told & running).any())
            reached |= succeeded & running
            running &= ~ended
        returns[first : first + count], discounted[first : first + count] = totals[:, :count]
        successes[first : first + count] = reached[:count]
        progress(first + count)
    return Episodes(returns=returns, discounted=discounted, successes=successes if tells else None)


def _successes(
    infos: Mapping[str, Any], ended: Bool[np.ndarray, " environments"]
) -> tuple[Bool[np.ndarray, " environments"], Bool[np.ndarray, " environments"]]:
    """Return which environments tell of success in this step, and which of them have succeeded."""
    nothing = np.zeros(len(ended), np.bool_)
    for name, counts in (("success", ~nothing), ("is_success", ended)):
        if name in infos:
            try:
                values = np.asarray(infos[name]).astype(np.float64)
            except (TypeError, ValueError):  # something else of the same name
                continue
            if values.shape == ended.shape:
                told = np.asarray(infos[f"_{name}"], np.bool_) & np.isfinite(values)
                return told, told & counts & (values > 0)
    return nothing, nothing
