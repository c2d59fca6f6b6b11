"""`orlog/Shop-v0`: a shop shows a visitor one of ten items; an episode is that one choice.

    visitors     200 kinds, equally likely, each with five numbers about it
    actions      the item to show, 0 to 9
    reward       1 if the visitor clicks, else 0:  P(click | visitor, item) = sigmoid(1.5 z - 2), where z is
                 the product of the five numbers and five tastes of the item, over its standard deviation; of every
                 second item it is squared, so that visitors of two opposite kinds like it
    observation  the five numbers, float32; after the choice those of the visitor who comes next

All numbers of the world are drawn once, by NumPy's PCG64 with seed 0, and are the same in every shop. So the mean
reward of any policy is known exactly (`policy_value`), and each step's info has its `regret`: how much likelier the
best item of the visitor is to be clicked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Float32, Float64

VISITORS, ITEMS, NUMBERS = 200, 10, 5


@functools.cache
def visitors() -> Float32[np.ndarray, "visitors numbers"]:
    """Return the numbers about each kind of visitor."""
    drawn = np.random.Generator(np.random.PCG64(0)).normal(size=(VISITORS, NUMBERS))
    found: np.ndarray = drawn.round(4).astype(np.float32)
    return found


@functools.cache
def click_chances() -> Float64[np.ndarray, "visitors items"]:
    """Return how likely each visitor is to click on each item."""
    features = np.random.Generator(np.random.PCG64(1)).normal(size=(NUMBERS, ITEMS)).round(4)
    products = visitors().astype(np.float64) @ features
    products[:, ::2] = np.square(products[:, ::2]) - 1
    products /= products.std(0)
    chances: np.ndarray = (1 / (1 + np.exp(2 - 1.5 * products))).round(9)
    return chances


class Shop(gymnasium.Env[np.ndarray, Any]):
    """The environment."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # Gymnasium's own name

    def __init__(self) -> None:
        numbers = visitors()
        low, high = float(np.floor(numbers.min())), float(np.ceil(numbers.max()))
        self.observation_space = spaces.Box(low, high, (NUMBERS,), np.float32)
        self.action_space = spaces.Discrete(ITEMS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Let a visitor come."""
        super().reset(seed=seed, options=options)
        self._visitor = int(self.np_random.integers(VISITORS))
        return visitors()[self._visitor].copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Show an item."""
        chances = click_chances()[self._visitor]
        reward = float(self.np_random.random() < chances[int(action)])
        lost = float(chances.max() - chances[int(action)])
        self._visitor = int(self.np_random.integers(VISITORS))
        return visitors()[self._visitor].copy(), reward, True, False, {"regret": lost}

    def policy_value(
        self,
        policy: Callable[[Float32[np.ndarray, "visitors numbers"]], np.ndarray],
        _discount: float = 1.0,
    ) -> float:
        """Return the exact mean reward of a policy that shows a visitor always the same item."""
        shown = np.asarray(policy(visitors().copy()))
        return float(click_chances()[np.arange(VISITORS), shown].mean())
