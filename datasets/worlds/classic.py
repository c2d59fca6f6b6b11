"""Recipes of the `classic/...` datasets: random, medium and expert episodes of small control tasks.

Episodes take turns: one of random actions, one of a controller with much noise, one of the same
controller with little noise. Every step keeps the log-probability of its action under the policy of
its episode, for off-policy evaluation, and every episode the name of that policy.

    discrete actions    the controller's action; a uniformly drawn one with probability `noise`
    continuous ones     a Gaussian around the controller's action, of standard deviation `noise`,
                        cut off at the bounds of the action space and scaled up to a probability of
                        1: a density everywhere, where clipping would pile up actions on the bounds
    random episodes     uniform over the action space

Every episode depends on (recipe seed, episode index) only.

    episode i:  SeedSequence((seed, i)) -> reset seed, generator of noise
                i % 3: 0 random, 1 medium, 2 expert

`classic/cartpole-mixed-v1` is older, and made otherwise: two weak policies balance a pole, and neither should be imitated.
Episodes alternate between a controller that keeps the pole up while it drives the cart off the track, and random
actions. The actions that keep the cart in the middle are in the data, in the controller's noise and in random
episodes, so that learned values can do better than both.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, PlayedRecipe, for_each, play_episode

# returns the action for an observation: an integer, or a list of numbers inside the bounds
Controller: TypeAlias = Callable[[list[float]], Any]
BEHAVIORS = ("random", "medium", "expert")

EXPERT = (0.1, 0.2, 1.0, 1.0)  # weights of position, velocity, angle and angular velocity; balances for 500 steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassicRecipe(PlayedRecipe):
    """Everything that decides the bytes of a `classic` dataset.

    Attributes:
        controller: Name of the controller in `CONTROLLERS`.
        medium_noise: Noise of medium episodes, as the module's docstring says.
        expert_noise: Noise of expert episodes.
    """

    environment_id: str
    controller: str
    medium_noise: float
    expert_noise: float
    count: int
    steps: int
    seed: int = 0

    name = "classic"
    NO_BYTES = frozenset({"steps"})

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        return (
            f"episodes take turns: random actions, {self.controller} with noise of "
            f"{self.medium_noise:g}, the same with noise of {self.expert_noise:g}; "
            "action_log_probs are exact for the policy of the episode"
        )

    def episode(self, env: gymnasium.Env[Any, Any], reset_seed: int, rng: np.random.Generator, index: int) -> Episode:
        """Return one episode."""
        behavior = BEHAVIORS[index % len(BEHAVIORS)]
        noise = {"random": None, "medium": self.medium_noise, "expert": self.expert_noise}[behavior]
        draw = _draw_discrete if is_discrete(env) else draw_continuous

        def choose(observation: Any) -> tuple[Any, dict[str, float]]:
            return draw(rng, env.action_space, self.chosen(env, observation), noise)

        return play_episode(env, reset_seed, choose, {"behavior": behavior})

    def chosen(self, _env: gymnasium.Env[Any, Any], observation: Any) -> Any:
        """Return the controller's action, without noise."""
        return CONTROLLERS[self.controller](observation.tolist())

    def expert(self) -> Expert:
        """Return the controller without noise."""
        controller = CONTROLLERS[self.controller]
        policy = for_each(lambda observation: controller(observation.tolist()))
        return Expert(name=f"{self.controller}, without noise", policy=policy)


def is_discrete(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether actions are integers."""
    return isinstance(env.action_space, gymnasium.spaces.Discrete)


def _draw_discrete(
    rng: np.random.Generator, space: Any, chosen: int, noise: float | None
) -> tuple[int, dict[str, float]]:
    share = 1.0 if noise is None else noise
    chance, uniform = rng.random(2).tolist()
    action = chosen if chance >= share else int(space.n * uniform)
    probability = share / int(space.n) + (1 - share if action == chosen else 0.0)
    return action, {"action_log_probs": math.log(probability)}


def draw_continuous(
    rng: np.random.Generator, space: Any, chosen: list[float], noise: float | None
) -> tuple[np.ndarray, dict[str, float]]:
    """Return an action (float32) and its log-density; uniform ones where there is no noise given."""
    action = np.empty(len(chosen), np.float32)
    log_prob = 0.0
    bounds = zip(space.low.tolist(), space.high.tolist(), strict=True)
    for which, ((low, high), center) in enumerate(zip(bounds, chosen, strict=True)):
        if noise is None:
            action[which] = low + (high - low) * rng.random()
            log_prob -= math.log(high - low)
            continue
        action[which] = center + noise * rng.standard_normal()
        while not low <= action[which] <= high:
            action[which] = center + noise * rng.standard_normal()
        distance = (float(action[which]) - center) / noise
        inside = _below((high - center) / noise) - _below((low - center) / noise)
        log_prob -= distance**2 / 2 + math.log(noise * math.sqrt(2 * math.pi) * inside)
    return action, {"action_log_probs": log_prob}


def _below(value: float) -> float:
    return (1 + math.erf(value / math.sqrt(2))) / 2


def balance_cart(observation: list[float]) -> int:
    """Push right where position, velocity, angle and angular velocity ask for it."""
    position, velocity, angle, speed = observation
    return int(0.1 * position + 0.2 * velocity + angle + speed > 0)


def swing_pendulum(observation: list[float]) -> list[float]:
    """Pump energy until the pendulum comes near the top, then balance it there."""
    height, side, speed = observation
    if height > 0.8:
        return [_within(-10 * math.atan2(side, height) - 2 * speed, 2.0)]
    energy = speed**2 / 2 + 15 * (height - 1)
    return [-2.0 if speed * energy > 0 else 2.0]


def push_along(observation: list[float]) -> list[float]:
    """Push a car in the direction in which it moves."""
    return [1.0 if observation[1] >= 0 else -1.0]


def swing_along(observation: list[float]) -> int:
    """Turn the joint of two links in the direction in which it turns."""
    return 2 if observation[5] > 0 else 0


def land(observation: list[float]) -> int:
    """Choose the engine that brings a lander down on its feet; after Gymnasium's heuristic."""
    turn, lift = _landing(observation)
    if lift > abs(turn) and lift > 0.05:
        return 2
    if abs(turn) > 0.05:
        return 3 if turn < 0 else 1
    return 0


def land_smoothly(observation: list[float]) -> list[float]:
    """Choose the thrust of main and side engines; after Gymnasium's heuristic."""
    turn, lift = _landing(observation)
    return [_within(20 * lift - 1, 1.0), _within(-20 * turn, 1.0)]


def _landing(observation: list[float]) -> tuple[float, float]:
    x, y, velocity_x, velocity_y, angle, speed, left_leg, right_leg = observation
    if left_leg or right_leg:
        return 0.0, -0.5 * velocity_y
    turn = 0.5 * (_within(0.5 * x + velocity_x, 0.4) - angle) - speed
    lift = 0.5 * (0.55 * abs(x) - y) - 0.5 * velocity_y
    return turn, lift


def _within(value: float, limit: float) -> float:
    return min(limit, max(-limit, value))


CONTROLLERS: dict[str, Controller] = {
    "a linear controller that balances in the middle": balance_cart,
    "an energy swing-up that ends in a proportional-derivative controller": swing_pendulum,
    "a push along the velocity": push_along,
    "a torque along the velocity of the second joint": swing_along,
    "Gymnasium's heuristic for landing": land,
    "Gymnasium's heuristic for landing, continuous": land_smoothly,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CartPoleRecipe(PlayedRecipe):
    """Everything that decides the bytes of a `cartpole` dataset.

    Attributes:
        steps: Steps in the dataset; the last episode is cut (truncated) where they run out.
        weights: The controller pushes right where these weights of position (m), velocity (m/s),
            angle (rad) and angular velocity (rad/s) sum to more than 0.
        noise: Probability that the controller's action is replaced by a random one.
    """

    steps: int
    weights: tuple[float, float, float, float] = (-0.3, -0.3, 1.0, 0.3)
    noise: float = 0.1
    seed: int = 0

    name = "cartpole"
    environment_id = "CartPole-v1"

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        return (
            "episodes alternate between a linear controller that leaves the track, with random "
            f"actions in {self.noise:.0%} of the steps, and random actions alone"
        )

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, index: int) -> Episode:
        """Return one episode: of the controller, or of random actions."""
        noise = self.noise if index % 2 == 0 else 1.0

        def choose(observation: Any) -> tuple[int, dict[str, float]]:
            chance, uniform = rng.random(2).tolist()
            return push(observation, self.weights) if chance >= noise else int(2 * uniform), {}

        return play_episode(env, reset_seed, choose)

    def expert(self) -> Expert:
        """Return a linear controller that keeps the cart in the middle."""
        policy = for_each(lambda observation: push(observation, EXPERT))
        return Expert(name=f"linear controller with weights {EXPERT}", policy=policy)


def push(observation: np.ndarray, weights: tuple[float, ...]) -> int:
    """Return 1 (push right) where the weighted sum of an observation is positive, else 0."""
    total = sum(weight * value for weight, value in zip(weights, observation.tolist(), strict=True))
    return int(total > 0)


def _mixed(task: str, recipe: ClassicRecipe) -> CatalogueEntry:
    return CatalogueEntry(
        description=(
            f"{task}: episodes of random actions, of a noisy controller and of a good one in turn, "
            f"with the log-probability of each action. {recipe.steps:,} steps."
        ),
        recipe=recipe,
    )


DATASETS = {
    "classic/cartpole-mixed-v1": CatalogueEntry(
        description=(
            "Discrete actions: a pole is balanced by a controller that leaves the track and by "
            "random actions, an episode each in turn. 200,000 steps."
        ),
        recipe=CartPoleRecipe(steps=200_000),
    ),
    "classic/cartpole-mixed-v2": _mixed(
        "Discrete actions balance a pole on a cart",
        ClassicRecipe(
            environment_id="CartPole-v1",
            controller="a linear controller that balances in the middle",
            medium_noise=0.4,
            expert_noise=0.1,
            count=420,
            steps=103_896,
            seed=10,
        ),
    ),
    "classic/pendulum-mixed-v1": _mixed(
        "A torque swings a pendulum up and holds it there; episodes end by time alone",
        ClassicRecipe(
            environment_id="Pendulum-v1",
            controller="an energy swing-up that ends in a proportional-derivative controller",
            medium_noise=1.5,
            expert_noise=0.3,
            count=500,
            steps=100_000,
            seed=11,
        ),
    ),
    "classic/mountaincar-continuous-mixed-v1": _mixed(
        "A weak motor rocks a car up a hill; force costs, and only the top is rewarded",
        ClassicRecipe(
            environment_id="MountainCarContinuous-v0",
            controller="a push along the velocity",
            medium_noise=2.0,
            expert_noise=0.3,
            count=300,
            steps=197_817,
            seed=12,
        ),
    ),
    "classic/acrobot-mixed-v1": _mixed(
        "Discrete torques swing two links up until the tip is high",
        ClassicRecipe(
            environment_id="Acrobot-v1",
            controller="a torque along the velocity of the second joint",
            medium_noise=0.7,
            expert_noise=0.1,
            count=360,
            steps=99_504,
            seed=13,
        ),
    ),
    "classic/lunarlander-mixed-v1": _mixed(
        "Discrete engines land a spacecraft softly between two flags",
        ClassicRecipe(
            environment_id="LunarLander-v3",
            controller="Gymnasium's heuristic for landing",
            medium_noise=0.2,
            expert_noise=0.05,
            count=900,
            steps=191_873,
            seed=14,
        ),
    ),
    "classic/lunarlander-continuous-mixed-v1": _mixed(
        "The thrust of two engines lands a spacecraft softly between two flags",
        ClassicRecipe(
            environment_id="LunarLanderContinuous-v3",
            controller="Gymnasium's heuristic for landing, continuous",
            medium_noise=0.5,
            expert_noise=0.1,
            count=900,
            steps=174_924,
            seed=15,
        ),
    ),
}
