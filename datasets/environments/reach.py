"""`orlog/Reach-v0`: a puck slides onto a moving target, seen in frames; continuous actions.

    actions      a force to the right and one downwards, within -1 and 1
    motion       velocity <- 0.6 velocity + force;  place <- place + velocity   (pixels, steps);
                 at a wall the puck stops
    target       moves straight, at most 1 pixel a step in each direction, and bounces off the walls
    reward       1 for each step that ends with the puck's center within 3 pixels of the target's
    episode      40 steps, then it is truncated; both places and the target's motion are drawn at its
                 beginning, when the puck is at rest
    observation  the last three frames, 36 x 36: the puck is bright, the target larger and darker

A good policy brakes before the target and goes along with it. How fast both move is in no single frame.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.environments.drawing import SIZE, STACK, disc, next_stack, picture

REACH = 3.0
"""Distance of the centers within which a step is rewarded, in pixels."""

_DAMPING = 0.6

Pair: TypeAlias = tuple[float, float]

_MARGIN = 3.0  # centers stay that far from the edges, in pixels
_FASTEST = 1.0


class Reach(gymnasium.Env[np.ndarray, np.ndarray]):
    """The environment.

    Attributes:
        puck: Its x and y, in pixels.
        velocity: That of the puck, in pixels a step.
        target: Its x and y, in pixels.
        target_velocity: In pixels a step.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # Gymnasium's own name

    def __init__(self) -> None:
        self.observation_space = STACK
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        drawn = self.np_random.random(6).tolist()
        x, y, target_x, target_y = (_MARGIN + (SIZE - 2 * _MARGIN) * one for one in drawn[:4])
        speed_x, speed_y = (_FASTEST * (2 * one - 1) for one in drawn[4:])
        self.puck, self.velocity = (x, y), (0.0, 0.0)
        self.target, self.target_velocity = (target_x, target_y), (speed_x, speed_y)
        self._stack = next_stack(None, self.draw())
        return self._stack, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move puck and target."""
        force = [min(max(one, -1.0), 1.0) for one in action.tolist()]
        (x, speed_x), (y, speed_y) = (
            _slide(place, _DAMPING * speed + push)
            for place, speed, push in zip(self.puck, self.velocity, force, strict=True)
        )
        self.puck, self.velocity = (x, y), (speed_x, speed_y)
        (x, speed_x), (y, speed_y) = map(_bounce, self.target, self.target_velocity)
        self.target, self.target_velocity = (x, y), (speed_x, speed_y)
        reward = 1.0 if math.dist(self.puck, self.target) <= REACH else 0.0
        self._stack = next_stack(self._stack, self.draw())
        return self._stack, reward, False, False, {}

    def draw(self) -> np.ndarray:
        """Return the frame of this step."""
        return picture((120.0, disc(*self.target, 4.0)), (255.0, disc(*self.puck, 2.0)))


def _slide(place: float, speed: float) -> Pair:
    """Return the next place and speed in one direction, where walls stop."""
    moved = min(max(place + speed, _MARGIN), SIZE - _MARGIN)
    return moved, speed if moved == place + speed else 0.0


def _bounce(place: float, speed: float) -> Pair:
    """Return the next place and speed in one direction, where walls turn it around."""
    moved = place + speed
    if _MARGIN <= moved <= SIZE - _MARGIN:
        return moved, speed
    return place, -speed
