"""`orlog/Hazard-v0`: a point goes to and fro between two targets; the straight way costs.

        1 |         ( )              zones     three discs in a row across the way, in which each step costs 1
          |                          targets   one to the left, one to the right, in turn: once the point is
          |   o    (   )    o                  within 0.25 of one, the other one is the next
          |                          reward    10 times by how much nearer the point has come to its target
       -1 |         ( )              episode   100 steps, then it is truncated; it begins at rest at the left, at random

    observation  place, velocity, and 1 where the target is to the right, -1 where it is to the left

Through the middle zone is the shortest way. The ways between the zones cost nothing, and take longer: what is
earned and what it costs are at odds, and a limit says how much may be paid.
"""

from __future__ import annotations

import math

import numpy as np

from orlog.datasets.environments.point import Pair, Point

TARGET = 0.8
"""Distance of the targets from the middle."""

ZONES: tuple[tuple[Pair, float], ...] = (((0.0, 0.0), 0.35), ((0.0, 1.0), 0.3), ((0.0, -1.0), 0.3))
"""Center and radius of each zone."""

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
