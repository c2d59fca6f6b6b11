"""What worlds with a point in the plane share: how it moves, and that some steps cost.

    actions      a force to the right and one upwards, within -1 and 1
    motion       velocity <- 0.7 velocity + 0.03 force;  place <- place + velocity
                 at a wall (-`EDGE` or `EDGE` in either direction) the point stops
    cost         `info["cost"]`: 1 for a step that ends where it should not, else 0

At full force it comes to move 0.1 a step. All is computed in plain Python floats, one after another.

`orlog/Circle-v0`: a point is to run around a circle, most of which lies where steps cost.

    reward       10 (x v_y - y v_x) / (1 + |distance from the middle - 1|)
    cost         1 where |x| > 0.6, beyond two lines that cross the circle
    observation  place and velocity
    episode      100 steps, then it is truncated; it begins at rest at a random place between the lines

It is the task of Achiam and others (2017, https://arxiv.org/abs/1705.10528, appendix), which
BulletSafetyGym and DSRL have with robots: rewards for speed along the circle, costs outside of a band. What
differs: it is a point, the circle's radius is 1, and rewards are 10 times as large. A policy that may
not leave the band runs around a slim ellipse in it, for about half of the reward.

`orlog/Hazard-v0`: a point goes to and fro between two targets; the straight way costs.

        1 |         ( )              zones     three discs in a row across the way, in which each step costs 1
          |                          targets   one to the left, one to the right, in turn: once the point is
          |   o    (   )    o                  within 0.25 of one, the other one is the next
          |                          reward    10 times by how much nearer the point has come to its target
       -1 |         ( )              episode   100 steps, then it is truncated; it begins at rest at the left, at random

    observation  place, velocity, and 1 where the target is to the right, -1 where it is to the left

Through the middle zone is the shortest way. The ways between the zones cost nothing, and take longer: what is
earned and what it costs are at odds, and a limit says how much may be paid.

Recipes of the `safety/...` datasets: cautious and bold episodes of tasks in which steps cost.

Each episode has a boldness of its own, drawn evenly from a range: a controller of boldness 0 keeps away from
what costs, one of 1 does not look at it, and those between pay for a part of the way. Actions are those
of the controller with Gaussian noise, cut off at the bounds, as in `classic.py`; `action_log_probs` has their
log-densities, and `cost` what each step cost.

Every episode depends on (recipe seed, episode index) only.

    episode i:  SeedSequence((seed, i)) -> reset seed, generator of boldness and noise
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.classic import draw_continuous
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, PlayedRecipe, for_each, play_episode

EDGE = 1.2  # where the walls are

Pair: TypeAlias = tuple[float, float]

_KEPT, _PUSH = 0.7, 0.03


class Point(gymnasium.Env[np.ndarray, np.ndarray], abc.ABC):
    """A world with a point.

    Attributes:
        place: Its x and y.
        velocity: Its velocity, a step.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # Gymnasium's own name

    def __init__(self, numbers: int) -> None:
        self.observation_space = spaces.Box(-2.0, 2.0, (numbers,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode at rest."""
        super().reset(seed=seed, options=options)
        self.place = self.begin(self.np_random)
        self.velocity = (0.0, 0.0)
        return np.array(self.seen(), np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the point."""
        before = self.place
        force = [min(max(push, -1.0), 1.0) for push in action.tolist()]
        (x, speed_x), (y, speed_y) = (
            _move(place, _KEPT * speed + _PUSH * push)
            for place, speed, push in zip(before, self.velocity, force, strict=True)
        )
        self.place, self.velocity = (x, y), (speed_x, speed_y)
        reward, cost = self.earned(before), 1.0 if self.is_costly(self.place) else 0.0
        return np.array(self.seen(), np.float32), reward, False, False, {"cost": cost}

    @abc.abstractmethod
    def begin(self, rng: np.random.Generator) -> Pair:
        """Begin an episode, and return where the point is then."""

    @abc.abstractmethod
    def seen(self) -> list[float]:
        """Return the observation."""

    @abc.abstractmethod
    def earned(self, before: Pair) -> float:
        """Return the reward of a step that began at a place."""

    @abc.abstractmethod
    def is_costly(self, place: Pair) -> bool:
        """Return whether a step that ends at a place costs."""


def _move(place: float, speed: float) -> Pair:
    moved = min(max(place + speed, -EDGE), EDGE)
    return moved, speed if moved == place + speed else 0.0


BAND = 0.6  # distance of the two lines from the middle


class Circle(Point):
    """The environment."""

    def __init__(self) -> None:
        super().__init__(4)

    def begin(self, rng: np.random.Generator) -> Pair:
        """Begin between the lines."""
        x, y = (2 * number - 1 for number in rng.random(2).tolist())
        return 0.5 * x, y

    def seen(self) -> list[float]:
        """Return place and velocity."""
        return [*self.place, *self.velocity]

    def earned(self, before: Pair) -> float:  # noqa: ARG002  # where it began does not matter
        """Return the speed along the circle, less where it is far from it."""
        (x, y), (speed_x, speed_y) = self.place, self.velocity
        return 10 * (x * speed_y - y * speed_x) / (1 + abs(math.hypot(x, y) - 1))

    def is_costly(self, place: Pair) -> bool:
        """Return whether a place lies outside of the band."""
        return abs(place[0]) > BAND


TARGET = 0.8  # distance of the targets from the middle

# center and radius of each zone
ZONES: tuple[tuple[Pair, float], ...] = (((0.0, 0.0), 0.35), ((0.0, 1.0), 0.3), ((0.0, -1.0), 0.3))
_REACHED = 0.25
_START = (0.3, 0.6)  # from the left target, at most, in each direction


class Hazard(Point):
    """The environment.

    Attributes:
        side: 1.0 where the target is to the right, -1.0 where it is to the left.
    """

    def __init__(self) -> None:
        super().__init__(5)

    def begin(self, rng: np.random.Generator) -> Pair:
        """Begin at the left; the right target is the first."""
        self.side = 1.0
        x, y = rng.random(2).tolist()
        return _START[0] * (x - 1) - TARGET, _START[1] * (2 * y - 1)

    def seen(self) -> list[float]:
        """Return place, velocity and side."""
        return [*self.place, *self.velocity, self.side]

    def earned(self, before: Pair) -> float:
        """Return by how much nearer the target is; then another may be the next."""
        target = (self.side * TARGET, 0.0)
        left = math.dist(self.place, target)
        if left <= _REACHED:
            self.side = -self.side
        return 10 * (math.dist(before, target) - left)

    def is_costly(self, place: Pair) -> bool:
        """Return whether a place lies in a zone."""
        return any(math.dist(place, center) <= radius for center, radius in ZONES)


# returns the action for an observation and a boldness within 0 and 1
Controller: TypeAlias = Callable[[list[float], float], list[float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SafetyRecipe(PlayedRecipe):
    """Everything that decides the bytes of a `safety` dataset.

    Attributes:
        controller: Name of the controller in `CONTROLLERS`.
        boldness: Lowest and highest boldness of an episode.
        noise: Standard deviation of the noise of actions.
    """

    environment_id: str
    controller: str
    boldness: tuple[float, float]
    noise: float = 0.4
    count: int = 400
    steps: int = 40_000
    seed: int = 0

    name = "safety"
    NO_BYTES = frozenset({"steps"})

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        low, high = self.boldness
        return (
            f"{self.controller}, with a boldness for each episode within {low:g} and {high:g}, and noise of "
            f"{self.noise:g}; action_log_probs are exact for the policy of the episode"
        )

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, _index: int) -> Episode:
        """Return one episode."""
        controller = CONTROLLERS[self.controller]
        low, high = self.boldness
        boldness = low + (high - low) * rng.random()

        def choose(seen: Any) -> tuple[np.ndarray, dict[str, float]]:
            chosen = controller(seen.tolist(), boldness)
            return draw_continuous(rng, env.action_space, chosen, self.noise)

        return play_episode(env, reset_seed, choose, {"boldness": boldness}, infos=("cost",))

    def expert(self) -> Expert:
        """Return the cautious controller without noise."""
        controller = CONTROLLERS[self.controller]
        policy = for_each(lambda observation: controller(observation.tolist(), 0.0))
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
    return [force / largest for force in forces]


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
    entries: dict[str, CatalogueEntry] = {}
    for task, (about, environment_id, controller) in _TASKS.items():
        for behavior, boldness in _BOLDNESS.items():
            recipe = SafetyRecipe(
                environment_id=environment_id, controller=controller, boldness=boldness, seed=30 + len(entries)
            )
            low, high = boldness
            entries[f"safety/{task}-{behavior}-v1"] = CatalogueEntry(
                description=(
                    f"{about}: episodes of a noisy controller with a boldness within {low:g} and {high:g}, with "
                    f"the cost of each step and the log-probability of each action. {recipe.steps:,} steps."
                ),
                recipe=recipe,
            )
    return entries


DATASETS = _datasets()
