"""Recipes of the `pixels/...` datasets: random, medium and expert episodes of tasks seen in pixels.

Episodes, noise and log-probabilities are as in `classic.py`. The difference is what the controllers see:
the state of the environment, while observations are frames of it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from orlog.datasets.environments.catch import PADDLES, REACH, Catch
from orlog.datasets.environments.reach import Reach
from orlog.datasets.recipes.classic import ClassicRecipe
from orlog.datasets.recipes.recipe import CatalogueEntry, Expert, Watching

Controller: TypeAlias = Callable[[Any], Any]
"""Returns the action for an environment: an integer, or a list of numbers inside the bounds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PixelsRecipe(ClassicRecipe):
    """Everything that decides the bytes of a `pixels` dataset; `controller` is one of this module."""

    name = "pixels"
    version = 1  # raised whenever the same parameters would give other bytes

    def chosen(self, env: gymnasium.Env[Any, Any], _observation: Any) -> Any:
        """Return the controller's action for the state of the environment, without noise."""
        return CONTROLLERS[self.controller](env.unwrapped)

    def expert(self) -> Expert:
        """Return the controller without noise."""
        return Expert(
            name=f"{self.controller}, without noise",
            policy=Watching(functools.partial(self.chosen, _observation=None)),
        )


_PLACES = np.array(PADDLES)
_SLIPS = 0.2
"""Share of uniform actions that the plan for the paddle expects: without any, it would wait until the
last moment."""


def plan_catches(env: Catch) -> int:
    """Return the first action of the best plan for everything that falls now."""
    gains: dict[int, np.ndarray] = {}  # at each step to come, for each place of the paddle
    for thing in env.things:
        x, _ = thing.place(thing.landing)
        caught = np.abs(_PLACES - x) <= REACH
        gains[thing.landing] = gains.get(thing.landing, 0) + caught * (1 if thing.is_apple else -1)
    # What is still to be caught from each place; at both ends the last place stands twice.
    worth = np.zeros(len(_PLACES) + 2)
    left, here, right = worth[:-2], worth[1:-1], worth[2:]
    for step in range(max(gains, default=env.step_count), env.step_count, -1):
        if step in gains:
            here += gains[step]
        worth[0], worth[-1] = here[0], here[-1]
        if step > env.step_count + 1:
            best = np.maximum(np.maximum(left, right), here)
            here[:] = (1 - _SLIPS) * best + _SLIPS / 3 * (left + here + right)
    values = left[env.paddle], here[env.paddle], right[env.paddle]
    return max((1, 0, 2), key=lambda action: float(values[action]))


def reach_target(env: Reach) -> list[float]:
    """Push the puck to where it takes on place and velocity of the target."""
    ways = zip(env.puck, env.velocity, env.target, env.target_velocity, strict=True)
    return [
        min(max(0.4 * (to - place) + to_speed - 0.6 * speed, -1.0), 1.0)
        for place, speed, to, to_speed in ways
    ]


CONTROLLERS: dict[str, Controller] = {
    "the best plan for all that falls": plan_catches,
    "a proportional-derivative controller to the target": reach_target,
}


def _mixed(task: str, recipe: PixelsRecipe) -> CatalogueEntry:
    """Return the entry of a task's dataset."""
    return CatalogueEntry(
        version="1.0.0",
        description=(
            f"{task}: episodes of random actions, of a noisy controller and of a good one in turn, "
            "which see the state; observations are the last three pictures of 36 x 36 pixels. With "
            f"the log-probability of each action. {recipe.steps:,} steps."
        ),
        license="CC0-1.0",
        recipe=recipe,
    )


DATASETS = {
    "pixels/catch-mixed-v1": _mixed(
        "A paddle catches apples and avoids stones",
        PixelsRecipe(
            environment_id="orlog/Catch-v0",
            controller="the best plan for all that falls",
            medium_noise=0.6,
            expert_noise=0.1,
            count=402,
            steps=60_300,
            seed=20,
        ),
    ),
    "pixels/reach-mixed-v1": _mixed(
        "Two forces push a puck onto a moving target",
        PixelsRecipe(
            environment_id="orlog/Reach-v0",
            controller="a proportional-derivative controller to the target",
            medium_noise=1.2,
            expert_noise=0.3,
            count=1_500,
            steps=60_000,
            seed=21,
        ),
    ),
}
