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

Recipes of the `bandits/...` datasets: choices that were logged with their probabilities, an episode each.

    bandits/shop-v1   an old rule shows items: it knows two of the five numbers of a visitor, and is soft

        b(item | visitor)  =  (1 - noise) softmax(score(visitor, item) / temperature)  +  noise / items

    where the score is the mean chance of a click over all visitors of the same signs of these two numbers.

Every step keeps log b, exactly, as `action_log_probs`, the propensity of off-policy estimators; and `optimal_value`, how
likely the visitor is to click on the best item.

Every episode depends on (recipe seed, episode index) only.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Float32, Float64

from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, PlayedRecipe, play_episode

VISITORS, ITEMS, NUMBERS = 200, 10, 5


@functools.cache
def visitors() -> Float32[np.ndarray, "visitors numbers"]:
    """Return the numbers about each kind of visitor."""
    drawn = np.random.Generator(np.random.PCG64(0)).normal(size=(VISITORS, NUMBERS))
    numbers: np.ndarray = drawn.round(4).astype(np.float32)
    return numbers


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
        self, policy: Callable[[Float32[np.ndarray, "visitors numbers"]], np.ndarray], _discount: float = 1.0
    ) -> float:
        """Return the exact mean reward of a policy that shows a visitor always the same item."""
        shown = np.asarray(policy(visitors().copy()))
        return float(click_chances()[np.arange(VISITORS), shown].mean())


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShopRecipe(PlayedRecipe):
    """Everything that decides the bytes of a `bandits` dataset.

    Attributes:
        steps: Choices in the dataset.
        temperature: Softness of the old rule, in units of a chance to be clicked.
        noise: Share of uniform choices.
    """

    steps: int
    temperature: float = 0.1
    noise: float = 0.2
    seed: int = 0

    name = "shop"
    environment_id = "orlog/Shop-v0"

    @property
    def behavior_policy(self) -> str:
        """Description of the policy that chose the actions."""
        return (
            "a soft rule that knows two of five numbers about a visitor, with uniform choices in "
            f"{self.noise:.0%} of the episodes; action_log_probs are exact"
        )

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, _index: int) -> Episode:
        """Return one visit."""
        rule, place = rule_of(self), _places()
        uniform = rng.random()

        def choose(seen: Any) -> tuple[int, dict[str, float]]:
            chances = rule[place[seen.tobytes()]]
            item = int(np.searchsorted(np.cumsum(chances[:-1]), uniform, "right"))
            return item, {"action_log_probs": math.log(chances[item])}

        made = play_episode(env, reset_seed, choose)
        seen = place[made.observations[0].tobytes()]
        best = click_chances()[seen].max(keepdims=True)
        return dataclasses.replace(made, infos={**made.infos, "optimal_value": best})

    def expert(self) -> Expert:
        """Return the best item for each visitor."""
        best = click_chances().argmax(1)
        known = visitors()

        def policy(seen: Any) -> np.ndarray:
            apart = np.square(np.asarray(seen)[:, None] - known[None]).sum(-1)
            return np.asarray(best[apart.argmin(1)])

        return Expert(name="the item that each visitor is likeliest to click", policy=policy)


@functools.cache
def _places() -> dict[bytes, int]:
    return {visitor.tobytes(): index for index, visitor in enumerate(visitors())}


@functools.cache
def rule_of(recipe: ShopRecipe) -> np.ndarray:
    """Return how likely the old rule is to show each item, `[visitors, items]`."""
    signs = (visitors()[:, :2] > 0) @ np.array([1, 2])
    of_signs = np.stack([click_chances()[signs == sign].mean(0) for sign in range(4)])
    exponents = np.exp((of_signs - of_signs.max(1, keepdims=True)) / recipe.temperature)
    soft = exponents / exponents.sum(1, keepdims=True)
    chances: np.ndarray = ((1 - recipe.noise) * soft + recipe.noise / ITEMS)[signs]
    return chances.round(12)


DATASETS = {
    "bandits/shop-v1": CatalogueEntry(
        description=(
            "A shop shows each visitor one of ten items, and is paid by clicks; single choices with their "
            "propensities. 20,000 steps."
        ),
        recipe=ShopRecipe(steps=20_000, seed=70),
    )
}
