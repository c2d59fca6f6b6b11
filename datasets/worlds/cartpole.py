"""Recipe of `classic/cartpole-mixed-v1`: two weak policies balance a pole; neither should be imitated.

Episodes alternate between a controller that keeps the pole up while it drives the cart off the track,
and random actions. Cloning the data leads off the track as the controller does. The actions that keep
the cart in the middle are in the data, in the controller's noise and in random episodes, so that
learned values can do better than both.

Every episode depends on (recipe seed, episode index) only.

    episode i:  SeedSequence((seed, i)) -> reset seed, generator of noise
                even: controller, odd: random
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.environments import make_environment
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, PlayedRecipe, finished_episode

EXPERT = (0.1, 0.2, 1.0, 1.0)
"""Weights of position, velocity, angle and angular velocity; balances for 500 steps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CartPoleRecipe(PlayedRecipe):
    """Everything that decides the bytes of a `cartpole` dataset.

    Attributes:
        steps: Steps in the dataset; the last episode is cut (truncated) where they run out.
        weights: The controller pushes right where these weights of position (m), velocity (m/s),
            angle (rad) and angular velocity (rad/s) sum to more than 0.
        noise: Probability that the controller's action is replaced by a random one.
        seed: Root of all randomness.
    """

    steps: int
    weights: tuple[float, float, float, float] = (-0.3, -0.3, 1.0, 0.3)
    noise: float = 0.1
    seed: int = 0

    name = "cartpole"
    version = 1  # raised whenever the same parameters would give other bytes
    environment_id = "CartPole-v1"

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        return (
            "episodes alternate between a linear controller that leaves the track, with random "
            f"actions in {self.noise:.0%} of the steps, and random actions alone"
        )

    def lengths(self, limit: int) -> list[int]:
        """Number of steps of each episode; how long the pole stays up is found by playing."""
        return list(_lengths(self, limit))

    def episodes(self, first: int, last: int) -> Iterator[Episode]:
        """Yield episodes `first` to `last - 1`."""
        with make_environment(self.environment_id, self.environment_kwargs) as env:
            assert env.spec is not None
            assert env.spec.max_episode_steps is not None
            lengths = self.lengths(env.spec.max_episode_steps)
            for index in range(first, last):
                yield self.episode(env, index, lengths[index])

    def episode(self, env: gymnasium.Env[Any, Any], index: int, most: int) -> Episode:
        """Play an episode in an environment, of at most this many steps."""
        reset_seed, stream = np.random.SeedSequence((self.seed, index)).generate_state(2)
        rng = np.random.Generator(np.random.PCG64(int(stream)))
        noise = self.noise if index % 2 == 0 else 1.0
        observation, _ = env.reset(seed=int(reset_seed))
        observations, is_over = [observation], False
        actions: list[int] = []
        rewards: list[float] = []
        while len(actions) < most and not is_over:
            chance, random_action = rng.random(2).tolist()
            action = push(observation, self.weights) if chance >= noise else int(2 * random_action)
            observation, reward, is_over, _, _ = env.step(action)
            observations.append(observation)
            actions.append(action)
            rewards.append(float(reward))
        return finished_episode(
            observations, actions, rewards, (is_over, not is_over), seed=int(reset_seed)
        )

    def expert(self) -> Expert:
        """Return a linear controller that keeps the cart in the middle."""

        def policy(observations: Any) -> np.ndarray:
            return np.array([push(one, EXPERT) for one in observations])

        return Expert(name=f"linear controller with weights {EXPERT}", policy=policy)


def push(observation: np.ndarray, weights: tuple[float, ...]) -> int:
    """Return 1 (push right) where the weighted sum of an observation is positive, else 0."""
    total = sum(weight * value for weight, value in zip(weights, observation.tolist(), strict=True))
    return int(total > 0)


@functools.lru_cache(maxsize=4)
def _lengths(recipe: CartPoleRecipe, limit: int) -> tuple[int, ...]:
    found: list[int] = []
    with make_environment(recipe.environment_id, recipe.environment_kwargs) as env:
        while (left := recipe.steps - sum(found)) > 0:
            found.append(len(recipe.episode(env, len(found), min(limit, left))))
    return tuple(found)


DATASETS = {
    "classic/cartpole-mixed-v1": CatalogueEntry(
        description=(
            "Discrete actions: a pole is balanced by a controller that leaves the track and by "
            "random actions, an episode each in turn. 200,000 steps."
        ),
        recipe=CartPoleRecipe(steps=200_000),
    )
}
