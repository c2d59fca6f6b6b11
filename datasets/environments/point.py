"""What worlds with a point in the plane share: how it moves, and that some steps cost.

    actions      a force to the right and one upwards, within -1 and 1
    motion       velocity <- 0.7 velocity + 0.03 force;  place <- place + velocity
                 at a wall (-`EDGE` or `EDGE` in either direction) the point stops
    cost         `info["cost"]`: 1 for a step that ends where it should not, else 0

At full force it comes to move 0.1 a step. All is computed in plain Python floats, one after another.
"""

from __future__ import annotations

import abc
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

EDGE = 1.2
"""Where the walls are."""

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
        """Make it; `numbers` are those of an observation."""
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
        force = [min(max(one, -1.0), 1.0) for one in action.tolist()]
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
    """Return the next place and speed in one direction, where walls stop."""
    moved = min(max(place + speed, -EDGE), EDGE)
    return moved, speed if moved == place + speed else 0.0
