"""`orlog/Reach-v0`: an arm of two links reaches a target, seen in pictures; continuous actions.

    the arm       two links of 8 pixels; the first turns around the middle of the picture
    actions       two torques within -1 and 1, one for each joint
    motion        velocity <- 0.9 velocity + 0.04 torque;  angle <- angle + velocity   (radians, steps)
    reward        1 for each step that ends with the tip in the target, a disc with a radius of 3 pixels
    episode       60 steps, then it is truncated; angles and target are drawn at its beginning
    observation   the last three pictures, 36 x 36: the arm is bright, the target darker

A good policy brakes before the target, for which it must see velocities: these are in no single picture.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.environments.drawing import SIZE, STACK, disc, line, next_stack, picture

__all__ = ["LINK", "MIDDLE", "RADIUS", "Reach"]

LINK = 8.0
"""Length of each link, in pixels."""

MIDDLE = SIZE / 2
"""Where the first joint is, in x and y."""

RADIUS = 3.0
"""Radius of the target, in pixels."""

_DAMPING, _TORQUE = 0.9, 0.04
_NEAREST, _FARTHEST = 4.0, 15.0  # of a target from the middle, in pixels


class Reach(gymnasium.Env[np.ndarray, np.ndarray]):
    """The environment.

    Attributes:
        angles: Angle of the first link, and of the second one against the first, in radians.
        velocities: Of both, in radians a step.
        target: Its x and y, in pixels.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # Gymnasium's own name

    def __init__(self) -> None:
        self.observation_space = STACK
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode with an arm at rest and a target, both anywhere."""
        super().reset(seed=seed, options=options)
        first, second, direction, distance = self.np_random.random(4).tolist()
        self.angles = (2 * math.pi * first, 2 * math.pi * second)
        self.velocities = (0.0, 0.0)
        away = _NEAREST + (_FARTHEST - _NEAREST) * distance
        self.target = _from((MIDDLE, MIDDLE), 2 * math.pi * direction, away)
        self._stack = next_stack(None, self.draw())
        return self._stack, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the arm."""
        torques = [min(max(one, -1.0), 1.0) for one in action.tolist()]
        first, second = (
            _DAMPING * velocity + _TORQUE * torque
            for velocity, torque in zip(self.velocities, torques, strict=True)
        )
        self.velocities = (first, second)
        self.angles = (self.angles[0] + first, self.angles[1] + second)
        _, tip = self.joints()
        reward = 1.0 if math.dist(tip, self.target) <= RADIUS else 0.0
        self._stack = next_stack(self._stack, self.draw())
        return self._stack, reward, False, False, {}

    def joints(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return where the second joint and the tip are, in pixels."""
        elbow = _from((MIDDLE, MIDDLE), self.angles[0], LINK)
        return elbow, _from(elbow, self.angles[0] + self.angles[1], LINK)

    def draw(self) -> np.ndarray:
        """Return the picture of this step."""
        elbow, tip = self.joints()
        return picture(
            (120.0, disc(*self.target, RADIUS)),
            (255.0, line((MIDDLE, MIDDLE), elbow, 2.0)),
            (255.0, line(elbow, tip, 2.0)),
        )


def _from(start: tuple[float, float], angle: float, distance: float) -> tuple[float, float]:
    return start[0] + distance * math.cos(angle), start[1] + distance * math.sin(angle)
