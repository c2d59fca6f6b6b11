"""Recipes of the `bandits/...` datasets: choices that were logged with their probabilities, an episode each.

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
from typing import Any

import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.environments.shop import ITEMS, click_chances, visitors
from orlog.datasets.recipes.recipe import CatalogueEntry, Expert, PlayedRecipe, play_episode


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShopRecipe(PlayedRecipe):
    """Everything that decides the bytes of a `bandits` dataset.

    Attributes:
        steps: Choices in the dataset.
        temperature: Softness of the old rule, in units of a chance to be clicked.
        noise: Share of uniform choices.
        seed: Root of all randomness.
    """

    steps: int
    temperature: float = 0.1
    noise: float = 0.2
    seed: int = 0

    name = "shop"
    version = 1  # raised whenever the same parameters would give other bytes
    environment_id = "orlog/Shop-v0"

    @property
    def behavior_policy(self) -> str:
        """Description of the policy that chose the actions."""
        return (
            "a soft rule that knows two of five numbers about a visitor, with uniform choices in "
            f"{self.noise:.0%} of the episodes; action_log_probs are exact"
        )

    def lengths(self, _limit: int) -> list[int]:
        """Steps of each episode: one."""
        return [1] * self.steps

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, _index: int) -> Episode:
        """Return one visit."""
        rule, place = rule_of(self), _places()
        uniform = rng.random()

        def choose(seen: Any) -> tuple[int, float]:
            chances = rule[place[seen.tobytes()]]
            item = int(np.searchsorted(np.cumsum(chances[:-1]), uniform, "right"))
            return item, math.log(chances[item])

        made = play_episode(env, reset_seed, choose, {})
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
    return {one.tobytes(): index for index, one in enumerate(visitors())}


@functools.cache
def rule_of(recipe: ShopRecipe) -> np.ndarray:
    """Return how likely the old rule is to show each item, `[visitors, items]`."""
    signs = (visitors()[:, :2] > 0) @ np.array([1, 2])
    of_signs = np.stack([click_chances()[signs == one].mean(0) for one in range(4)])
    exponents = np.exp((of_signs - of_signs.max(1, keepdims=True)) / recipe.temperature)
    soft = exponents / exponents.sum(1, keepdims=True)
    chances: np.ndarray = ((1 - recipe.noise) * soft + recipe.noise / ITEMS)[signs]
    return chances.round(12)


DATASETS = {
    "bandits/shop-v1": CatalogueEntry(
        version="1.0.0",
        description=(
            "A shop shows each visitor one of ten items, and is paid by clicks; single choices with their "
            "propensities. 20,000 steps."
        ),
        license="CC0-1.0",
        recipe=ShopRecipe(steps=20_000, seed=70),
    )
}
