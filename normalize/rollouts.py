"""Runs a policy in seeded environments, several side by side: each episode's return, and what is counted.

A policy is any callable from a batch of observations, as the vector environment gives them, to a
batch of actions. One with memory (`PolicyWithMemory`) is also told where episodes begin, and rewards; one
that is informed (`InformedPolicy`) gets what environments tell beside observations, such as costs, or which
actions are legal. One with a method `watch` is given the environments themselves, as controllers of recipes may
look at states of which observations show only a part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from gymnasium.vector import SyncVectorEnv
from jaxtyping import Bool, Float64

from orlog.errors import SimulatorError

Policy = Callable[[Any], Any]  # returns a batch of actions; a dict of them, by part, where actions are a Dict


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episodes:
    """What came of each episode."""

    returns: Float64[np.ndarray, " episodes"]  # undiscounted return of each episode
    discounted: Float64[np.ndarray, " episodes"]  # discounted return of each episode
    # What was counted in each episode, by the name of its `Count`: (episodes,), or (episodes, n) of vectors. What
    # the environment never told is left out.
    metrics: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What to count in each episode, from the infos of its steps."""

    name: str  # what it is counted as
    infos: tuple[str, ...]  # names of infos; of each step the first one that holds numbers
    # What becomes of the steps: their sum, the last value, or whether any was above zero.
    combine: Literal["sum", "last", "any"]
    # Those of them of which only the last step of an episode counts.
    at_end: frozenset[str] = frozenset()


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
class InformedPolicy(Protocol):
    """A policy that heeds what environments tell beside observations."""

    infos: Sequence[str]  # names of those that each step must tell, not of those it can do without

    def inform(self, infos: Mapping[str, Any]) -> None:
        """Take note of the infos of the last reset or step of all environments, before its rewards."""

    def __call__(self, observations: Any) -> Any:
        """Return the actions for all environments."""


def run_episodes(
    policy: Policy,
    environments: SyncVectorEnv,
    *,
    episodes: int,
    first_seed: int,
    discount: float = 1.0,
    counts: Sequence[Count] = (),
    progress: Callable[[int], None] = lambda _done: None,
) -> Episodes:
    """Return what came of each episode; episode i resets with `first_seed` + i.

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
        counts: What to count besides, as metrics ask (`normalize/metrics.py`).
        progress: Called with the number of episodes done after each round.
    """
    if episodes < 1 or first_seed < 0:
        raise ValueError(f"episodes must be >= 1 and first_seed >= 0, found {episodes} and {first_seed}.")
    returns, discounted = np.zeros(episodes), np.zeros(episodes)
    tallies = [_Tally(count, episodes) for count in counts]
    side_by_side = environments.num_envs
    memory = policy if isinstance(policy, PolicyWithMemory) else None
    if memory is not None:
        memory.start(side_by_side)
    informed = policy if isinstance(policy, InformedPolicy) else None
    if hasattr(policy, "watch"):
        policy.watch(environments.envs)
    for first in range(0, episodes, side_by_side):
        # The last round may need fewer environments; the others also run, but do not count.
        count = min(side_by_side, episodes - first)
        observations, infos = environments.reset(seed=first_seed + first)
        if informed is not None:
            informed.inform(infos)
        running = np.arange(side_by_side) < count
        totals, weight = np.zeros((2, side_by_side)), 1.0
        ended = np.zeros(side_by_side, np.bool_)
        if memory is not None:
            memory.begin(~ended)
        while running.any():
            observations, rewards, terminations, truncations, infos = environments.step(policy(observations))
            if informed is not None:
                missing = [name for name in informed.infos if name not in infos]
                if missing:
                    raise SimulatorError(
                        f"the policy looks at {' and '.join(missing)} of each step, and the environment's info has "
                        "no such number; evaluate it in an environment that tells it."
                    )
                informed.inform(infos)
            if memory is not None:
                memory.reward(rewards)
                memory.begin(ended)  # what ended a step ago was reset by this step
            gained = np.where(running, rewards, 0)
            totals += np.stack([gained, weight * gained])
            weight *= discount
            ended = terminations | truncations
            # Of an environment that has just been reset, which does not run any more, this is the
            # info of the reset.
            for tally in tallies:
                tally.add(infos, ended, running)
            running &= ~ended
        returns[first : first + count], discounted[first : first + count] = totals[:, :count]
        for tally in tallies:
            tally.keep(first, count)
        progress(first + count)
    metrics = {tally.count.name: tally.values for tally in tallies if tally.values is not None}
    return Episodes(returns=returns, discounted=discounted, metrics=metrics)


class _Tally:
    """Counts one thing in environments side by side; `values` are those of all episodes, None if never told."""

    def __init__(self, count: Count, episodes: int) -> None:
        self.count = count
        self.values: np.ndarray | None = None
        self._episodes = episodes
        self._now: np.ndarray | None = None  # of the episodes of this round

    def add(
        self,
        infos: Mapping[str, Any],
        ended: Bool[np.ndarray, " environments"],
        running: Bool[np.ndarray, " environments"],
    ) -> None:
        """Take in a step of the episodes that run, of which the first info counts that holds numbers."""
        is_flag = self.count.combine == "any"
        numbers = ((name, _numbers(infos.get(name), ended.shape, is_flag)) for name in self.count.infos)
        name, values = next((pair for pair in numbers if pair[1] is not None), ("", None))
        if values is None:
            return
        counted = running & np.asarray(infos[f"_{name}"], np.bool_)
        if is_flag:
            counted &= np.isfinite(values)
        if not counted.any():
            return
        if name in self.count.at_end:
            counted &= ended
        now = np.zeros_like(values) if self._now is None else self._now
        counted = counted.reshape(-1, *[1] * (values.ndim - 1))
        if is_flag:
            self._now = np.maximum(now, counted & (values > 0))
        elif self.count.combine == "sum":
            self._now = now + np.where(counted, values, 0)
        else:
            self._now = np.where(counted, values, now)

    def keep(self, first: int, count: int) -> None:
        if self._now is not None:
            if self.values is None:
                kind = np.bool_ if self.count.combine == "any" else np.float64
                self.values = np.zeros((self._episodes, *self._now.shape[1:]), kind)
            self.values[first : first + count] = self._now[:count]
        self._now = None


def _numbers(info: Any, shape: tuple[int, ...], is_flag: bool) -> np.ndarray | None:
    """Return an info as numbers, one for each environment or a vector where it is no flag; None if it holds none."""
    try:
        values = np.asarray(info).astype(np.float64)
    except (TypeError, ValueError):  # something else of the same name
        return None
    is_vector = not is_flag and values.shape[:1] == shape
    return values if values.shape == shape or is_vector else None
