"""`orlog/Catch-v0`: a paddle catches apples and avoids stones, seen in frames; discrete actions.

    . . . . . . . .      actions      0: two pixels to the left, 1: stay, 2: two pixels to the right
    . o . . = . . .      reward       1 for an apple caught, -1 for a stone caught
    . . . . . . . .      episode      150 steps, then it is truncated
    . . . o . . = .      observation  the last three frames, 36 x 36
    . . ===== . . .

A new thing appears above the frame with a chance of 1/6 in each step, and always if nothing falls: an
apple (small, bright) with a chance of 0.6, else a stone (wide, darker). Things fall straight at speeds of their own, and bounce off
the walls. Where one will land is seen only in several frames; not all apples can be reached.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.environments.drawing import SIZE, STACK, box, next_stack, picture

LANDING = 32.0
"""Height at which things are caught or lost, in pixels from above."""

PADDLES = tuple(float(x) for x in range(4, SIZE, 2))
"""The places of the paddle's center."""

REACH = 5.0
"""Largest distance in x between a thing that is caught and the paddle's center."""

_CHANCE, _APPLES = 1 / 6, 0.6
_TOP = -2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Thing:
    """Something that falls.

    Attributes:
        is_apple: Whether it is an apple; else it is a stone.
        born: Step of the episode at which it appeared.
        x: Where it appeared, in pixels.
        speed_x: Pixels a step to the right, before it bounces.
        speed_y: Pixels a step downwards.
    """

    is_apple: bool
    born: int
    x: float
    speed_x: float
    speed_y: float

    def place(self, step: int) -> tuple[float, float]:
        """Return x and y at a step of the episode, in pixels."""
        age = step - self.born
        # Between walls that it bounces off, it moves as if they were mirrors.
        mirrored = (self.x + self.speed_x * age) % (2 * SIZE)
        return min(mirrored, 2 * SIZE - mirrored), _TOP + self.speed_y * age

    @property
    def landing(self) -> int:
        """The step of the episode at which it is caught or lost."""
        return self.born + math.ceil((LANDING - _TOP) / self.speed_y)


class Catch(gymnasium.Env[np.ndarray, np.int64]):
    """The environment.

    Attributes:
        step_count: Steps taken in the episode.
        paddle: Position in `PADDLES`.
        things: What falls, the oldest first.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # Gymnasium's own name

    def __init__(self) -> None:
        self.observation_space = STACK
        self.action_space = spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode with the paddle at a random place and nothing that falls."""
        super().reset(seed=seed, options=options)
        self.step_count = 0
        self.paddle = int(self.np_random.integers(len(PADDLES)))
        self.things: list[Thing] = []
        self._stack = next_stack(None, self.draw())
        return self._stack, {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the paddle, then everything that falls."""
        self.step_count += 1
        self.paddle = min(max(self.paddle + int(action) - 1, 0), len(PADDLES) - 1)
        reward = 0.0
        for thing in self.things:
            if thing.landing == self.step_count:
                x, _ = thing.place(self.step_count)
                if abs(x - PADDLES[self.paddle]) <= REACH:
                    reward += 1.0 if thing.is_apple else -1.0
        self.things = [thing for thing in self.things if thing.landing > self.step_count]
        # The same numbers are drawn in each step, whatever happens.
        chance, kind, x, sideways, down = self.np_random.random(5).tolist()
        if chance < _CHANCE or not self.things:
            thing = Thing(
                kind < _APPLES, self.step_count, SIZE * x, 1.2 * sideways - 0.6, 0.7 + 0.7 * down
            )
            self.things.append(thing)
        self._stack = next_stack(self._stack, self.draw())
        return self._stack, reward, False, False, {}

    def draw(self) -> np.ndarray:
        """Return the frame of this step."""
        shapes = [(200.0, box(PADDLES[self.paddle], 34.5, 8, 2))]
        for thing in self.things:
            width, height, brightness = (3, 3, 255.0) if thing.is_apple else (5, 2, 120.0)
            shapes.append((brightness, box(*thing.place(self.step_count), width, height)))
        return picture(*shapes)
