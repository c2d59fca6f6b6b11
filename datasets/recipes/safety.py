"""Recipes of the `safety/...` datasets: cautious and bold episodes of tasks in which steps cost.

Each episode has a boldness of its own, drawn evenly from a range: a controller of boldness 0 keeps away from
what costs, one of 1 does not look at it, and those between pay for a part of the way. Actions are those
of the controller with Gaussian noise, cut off at the bounds, as in `classic.py`; `action_log_probs` has their
log-densities, and `cost` what each step cost.

Every episode depends on (recipe seed, episode index) only.

    episode i:  SeedSequence((seed, i)) -> reset seed, generator of boldness and noise
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.environments.hazard import TARGET
from orlog.datasets.recipes.classic import draw_continuous
from orlog.datasets.recipes.recipe import CatalogueEntry, Expert, PlayedRecipe, play_episode

Controller: TypeAlias = Callable[[list[float], float], list[float]]
"""Returns the action for an observation and a boldness within 0 and 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SafetyRecipe(PlayedRecipe):
    """Everything that decides the bytes of a `safety` dataset.

    Attributes:
        environment_id: The registered environment that records and scores.
        controller: Name of the controller in `CONTROLLERS`.
        boldness: Lowest and highest boldness of an episode.
        noise: Standard deviation of the noise of actions.
        count: Number of episodes.
        steps: Number of steps that these episodes have, for lists and progress bars.
        seed: Root of all randomness.
    """

    environment_id: str
    controller: str
    boldness: tuple[float, float]
    noise: float = 0.4
    count: int = 400
    steps: int = 40_000
    seed: int = 0

    name = "safety"
    version = 1  # raised whenever the same parameters would give other bytes
    NO_BYTES = frozenset({"steps"})

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        low, high = self.boldness
        return (
            f"{self.controller}, with a boldness for each episode within {low:g} and {high:g}, and noise of "
            f"{self.noise:g}; action_log_probs are exact for the policy of the episode"
        )

    def lengths(self, limit: int) -> list[int]:
        """Steps of each episode: all last until they are truncated."""
        return [limit] * self.count

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, _index: int) -> Episode:
        """Return one episode."""
        controller = CONTROLLERS[self.controller]
        low, high = self.boldness
        boldness = low + (high - low) * rng.random()

        def choose(seen: Any) -> tuple[np.ndarray, float]:
            chosen = controller(seen.tolist(), boldness)
            return draw_continuous(rng, env.action_space, chosen, self.noise)

        return play_episode(env, reset_seed, choose, {"boldness": boldness}, infos=("cost",))

    def expert(self) -> Expert:
        """Return the cautious controller without noise."""
        controller = CONTROLLERS[self.controller]

        def policy(observations: Any) -> np.ndarray:
            return np.array([controller(one, 0.0) for one in observations.tolist()], np.float32)

        return Expert(name=f"{self.controller}, of boldness 0 and without noise", policy=policy)


_AROUND = 0.52  # height of the ways between the zones of Hazard


def keep_to_the_left(observation: list[float], boldness: float) -> list[float]:
    """Pass the zones on the left, or the bolder, the nearer to the middle."""
    x, y, speed_x, speed_y, side = observation
    aim = (side * TARGET, 0.0)
    if x * side < -0.05:  # not there yet
        aim = (0.0, side * _AROUND * (1 - boldness))
    return _push(aim[0] - x, aim[1] - y, speed_x, speed_y)


def run_around(observation: list[float], boldness: float) -> list[float]:
    """Run around an ellipse in the band, or the bolder, the more of a circle."""
    x, y, speed_x, speed_y = observation
    width = 0.45 + 0.55 * boldness
    angle = math.atan2(y, x / width) + 0.5
    return _push(width * math.cos(angle) - x, math.sin(angle) - y, speed_x, speed_y)


def _push(x: float, y: float, speed_x: float, speed_y: float) -> list[float]:
    """Return the force towards what is `x` and `y` away, which brakes near to it."""
    forces = (8 * x - 8 * speed_x, 8 * y - 8 * speed_y)
    largest = max(1.0, *map(abs, forces))
    return [one / largest for one in forces]


CONTROLLERS: dict[str, Controller] = {
    "a controller that passes zones on the left": keep_to_the_left,
    "a controller that runs around an ellipse": run_around,
}

_BOLDNESS = {"safe": (0.0, 0.2), "mixed": (0.0, 1.0), "reckless": (0.8, 1.0)}
_TASKS = {
    "hazard": (
        "A point goes to and fro between two targets, with costly zones between",
        "orlog/Hazard-v0",
        "a controller that passes zones on the left",
    ),
    "circle": (
        "A point runs around a circle, most of which costs",
        "orlog/Circle-v0",
        "a controller that runs around an ellipse",
    ),
}


def _datasets() -> dict[str, CatalogueEntry]:
    """Return the entries of all tasks and behaviors."""
    found: dict[str, CatalogueEntry] = {}
    for task, (about, environment_id, controller) in _TASKS.items():
        for behavior, boldness in _BOLDNESS.items():
            recipe = SafetyRecipe(
                environment_id=environment_id,
                controller=controller,
                boldness=boldness,
                seed=30 + len(found),
            )
            low, high = boldness
            found[f"safety/{task}-{behavior}-v1"] = CatalogueEntry(
                version="1.0.0",
                description=(
                    f"{about}: episodes of a noisy controller with a boldness within {low:g} and {high:g}, with "
                    f"the cost of each step and the log-probability of each action. {recipe.steps:,} steps."
                ),
                license="CC0-1.0",
                recipe=recipe,
            )
    return found


DATASETS = _datasets()
