"""Small gray frames drawn with NumPy: shapes with smooth edges, and stacks of the last frames.

Coordinates are in pixels: x to the right, y downwards, (0, 0) is the corner at the upper left. A pixel is
as bright as the share of it that a shape covers. That is exact for boxes; for round shapes it is the
distance of the pixel's center to the edge, plus one half, within 0 and 1. Only sums, products and square
roots are used, whose results are the same on every processor.

`orlog/Catch-v0`: a paddle catches apples and avoids stones, seen in frames; discrete actions.

    . . . . . . . .      actions      0: two pixels to the left, 1: stay, 2: two pixels to the right
    . o . . = . . .      reward       1 for an apple caught, -1 for a stone caught
    . . . . . . . .      episode      150 steps, then it is truncated
    . . . o . . = .      observation  the last three frames, 36 x 36
    . . ===== . . .

A new thing appears above the frame with a chance of 1/6 in each step, and always if nothing falls: an
apple (small, bright) with a chance of 0.6, else a stone (wide, darker). Things fall straight at speeds of their own, and bounce off
the walls. Where one will land is seen only in several frames; not all apples can be reached.

`orlog/Reach-v0`: a puck slides onto a moving target, seen in frames; continuous actions.

    actions      a force to the right and one downwards, within -1 and 1
    motion       velocity <- 0.6 velocity + force;  place <- place + velocity   (pixels, steps);
                 at a wall the puck stops
    target       moves straight, at most 1 pixel a step in each direction, and bounces off the walls
    reward       1 for each step that ends with the puck's center within 3 pixels of the target's
    episode      40 steps, then it is truncated; both places and the target's motion are drawn at its
                 beginning, when the puck is at rest
    observation  the last three frames, 36 x 36: the puck is bright, the target larger and darker

A good policy brakes before the target and goes along with it. How fast both move is in no single frame.

Recipes of the `pixels/...` datasets: random, medium and expert episodes of tasks seen in pixels.

Episodes, noise and log-probabilities are as in `classic.py`. The difference is what the controllers see:
the state of the environment, while observations are frames of it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Float64, UInt8

from orlog.datasets.worlds.classic import ClassicRecipe
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, Watching

SIZE = 36  # pixels on each side: the fewest that the Nature convolutions take, and that they cover exactly
FRAMES = 3  # frames in an observation, so that speeds and changes of speed can be seen

# the space of observations: the last frames as channels, the newest last
STACK = spaces.Box(0, 255, (SIZE, SIZE, FRAMES), np.uint8)

Coverage = Float64[np.ndarray, "36 36"]  # the share of each pixel that a shape covers, by row and column
_CENTERS = np.arange(SIZE) + 0.5


def box(x: float, y: float, width: float, height: float) -> Coverage:
    """Return an upright box around a center."""
    return np.outer(_covered(y, height), _covered(x, width))


def _covered(center: float, length: float) -> Float64[np.ndarray, " 36"]:
    ends = np.minimum(_CENTERS + 0.5, center + length / 2)
    starts = np.maximum(_CENTERS - 0.5, center - length / 2)
    covered: Float64[np.ndarray, " 36"] = np.maximum(ends - starts, 0.0)
    return covered


def disc(x: float, y: float, radius: float) -> Coverage:
    """Return a filled circle."""
    return _edge((_CENTERS - x)[None, :], (_CENTERS - y)[:, None], radius)


def _edge(to_x: np.ndarray, to_y: np.ndarray, radius: float) -> Coverage:
    outside = np.sqrt(to_x * to_x + to_y * to_y) - radius
    covered: Coverage = np.minimum(np.maximum(0.5 - outside, 0.0), 1.0)
    return covered


def picture(*shapes: tuple[float, Coverage]) -> UInt8[np.ndarray, "36 36"]:
    """Return a frame of shapes, each with its brightness from 0 to 255; the brightest one is seen."""
    seen = np.zeros((SIZE, SIZE))
    for brightness, coverage in shapes:
        np.maximum(seen, brightness * coverage, out=seen)
    return np.rint(seen).astype(np.uint8)


def next_stack(
    stack: UInt8[np.ndarray, "36 36 3"] | None, newest: UInt8[np.ndarray, "36 36"]
) -> UInt8[np.ndarray, "36 36 3"]:
    """Return a stack with another frame; the first one of an episode fills the whole stack."""
    if stack is None:
        return np.stack([newest] * FRAMES, axis=-1)
    return np.concatenate([stack[:, :, 1:], newest[:, :, None]], axis=-1)


LANDING = 32.0  # height at which things are caught or lost, in pixels from above
PADDLES = tuple(float(x) for x in range(4, SIZE, 2))  # the places of the paddle's center
REACH = 5.0  # largest distance in x between a thing that is caught and the paddle's center
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
            thing = Thing(kind < _APPLES, self.step_count, SIZE * x, 1.2 * sideways - 0.6, 0.7 + 0.7 * down)
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


ON_TARGET = 3.0  # distance of the centers within which a step is rewarded, in pixels
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
        x, y, target_x, target_y = (_MARGIN + (SIZE - 2 * _MARGIN) * share for share in drawn[:4])
        speed_x, speed_y = (_FASTEST * (2 * share - 1) for share in drawn[4:])
        self.puck, self.velocity = (x, y), (0.0, 0.0)
        self.target, self.target_velocity = (target_x, target_y), (speed_x, speed_y)
        self._stack = next_stack(None, self.draw())
        return self._stack, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move puck and target."""
        force = [min(max(push, -1.0), 1.0) for push in action.tolist()]
        (x, speed_x), (y, speed_y) = (
            _slide(place, _DAMPING * speed + push)
            for place, speed, push in zip(self.puck, self.velocity, force, strict=True)
        )
        self.puck, self.velocity = (x, y), (speed_x, speed_y)
        (x, speed_x), (y, speed_y) = map(_bounce, self.target, self.target_velocity)
        self.target, self.target_velocity = (x, y), (speed_x, speed_y)
        reward = 1.0 if math.dist(self.puck, self.target) <= ON_TARGET else 0.0
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


# returns the action for an environment: an integer, or a list of numbers inside the bounds
Controller: TypeAlias = Callable[[Any], Any]


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
            name=f"{self.controller}, without noise", policy=Watching(functools.partial(self.chosen, _observation=None))
        )


_PLACES = np.array(PADDLES)
# share of uniform actions that the plan for the paddle expects: without any, it would wait until the last moment
_SLIPS = 0.2


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
    return [min(max(0.4 * (to - place) + to_speed - 0.6 * speed, -1.0), 1.0) for place, speed, to, to_speed in ways]


CONTROLLERS: dict[str, Controller] = {
    "the best plan for all that falls": plan_catches,
    "a proportional-derivative controller to the target": reach_target,
}


def _mixed(task: str, recipe: PixelsRecipe) -> CatalogueEntry:
    return CatalogueEntry(
        description=(
            f"{task}: episodes of random actions, of a noisy controller and of a good one in turn, "
            "which see the state; observations are the last three pictures of 36 x 36 pixels. With "
            f"the log-probability of each action. {recipe.steps:,} steps."
        ),
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
