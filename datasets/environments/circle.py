"""`orlog/Circle-v0`: a point is to run around a circle, most of which lies where steps cost.

    reward       10 (x v_y - y v_x) / (1 + |distance from the middle - 1|)
    cost         1 where |x| > 0.6, beyond two lines that cross the circle
    observation  place and velocity
    episode      100 steps, then it is truncated; it begins at rest at a random place between the lines

It is the task of Achiam and others (2017, https://arxiv.org/abs/1705.10528, appendix), which
BulletSafetyGym and DSRL have with robots: rewards for speed along the circle, costs outside of a band. What
differs: it is a point, the circle's radius is 1, and rewards are 10 times as large. A policy that may
not leave the band runs around a slim ellipse in it, for about half of the reward.
"""

from __future__ import annotations

import math

import numpy as np

from orlog.datasets.environments.point import Pair, Point

BAND = 0.6
"""Distance of the two lines from the middle."""


class Circle(Point):
    """The environment."""

    def __init__(self) -> None:
        super().__init__(4)

    def begin(self, rng: np.random.Generator) -> Pair:
        """Begin between the lines."""
        x, y = (2 * one - 1 for one in rng.random(2).tolist())
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
