"""Recipes of the `tabular/...` datasets: worlds of numbered states whose every value is known.

The behavior is one policy for all episodes, soft around a policy that is the best one but for some states:

    b(a | s)  =  (1 - noise) m(a | s)  +  noise / actions
    m(a | s)  =  [a = argmax Q*(s, .)], but in a share `mistaken` of the states, drawn by the seed, another
                 action with probability 1 - `known` and the best one with probability `known`, less than half

Imitation ends in those states; the data show what is better there. Every step keeps log b(a | s), exactly,
and the exact values of its state at the recipe's discount, without a time limit: `optimal_value`, V*(s), and
`behavior_value`, that of b. They come from the tables of the worlds (`environments/tables.py`), and are rounded to
9 digits behind the point, so that every machine has the same.

Every episode depends on (recipe seed, episode index) only.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.environments.tables import Table, best_values, policy_values, stationary_values
from orlog.datasets.recipes.recipe import CatalogueEntry, Expert, PlayedRecipe, play_episode
from orlog.manifests.environments import make_environment


@dataclasses.dataclass(frozen=True, kw_only=True)
class TabularRecipe(PlayedRecipe):
    """Everything that decides the bytes of a `tabular` dataset.

    Attributes:
        environment_id: The world that records and scores.
        mistaken: Share of states in which the behavior takes another action more often than the best one.
        known: How often it takes the best one there, before noise.
        noise: Share of uniform actions in the behavior.
        discount: Discount of the values.
        steps: Steps in the dataset; the last episode is cut (truncated) where they run out.
        seed: Root of all randomness.
    """

    environment_id: str
    mistaken: float
    known: float
    noise: float
    discount: float
    steps: int
    seed: int = 0

    name = "tabular"
    version = 1  # raised whenever the same parameters would give other bytes

    @property
    def behavior_policy(self) -> str:
        """Description of the policy that chose the actions."""
        return (
            f"the best policy at a discount of {self.discount:g}, which in {self.mistaken:.0%} of the states takes "
            f"the best action only {self.known:.0%} of the time and else another one, and a uniform action in "
            f"{self.noise:.0%} of the steps; action_log_probs, optimal_value and behavior_value are exact"
        )

    def lengths(self, limit: int) -> list[int]:
        """Most steps of each episode; more than there will be, since how long one lasts is found by playing."""
        return [limit] * self.steps

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, _index: int) -> Episode:
        """Return one episode, with the exact values of its states."""
        known = known_values(self)

        def choose(state: Any) -> tuple[int, float]:
            chances = known.behavior[int(state)]
            action = int(np.searchsorted(np.cumsum(chances[:-1]), rng.random(), "right"))
            return action, math.log(chances[action])

        made = play_episode(env, reset_seed, choose, {})
        seen = made.observations[:-1]
        values = {
            "optimal_value": known.optimal_values[seen],
            "behavior_value": known.behavior_values[seen],
        }
        return dataclasses.replace(made, infos={**made.infos, **values})

    def expert(self) -> Expert:
        """Return the best policy at the recipe's discount."""
        best = known_values(self).optimal_actions
        return Expert(
            name=f"the best policy at a discount of {self.discount:g}, from the transitions",
            policy=lambda states: best[np.asarray(states)],
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class KnownValues:
    """What is exactly known of a recipe's world and of its behavior.

    Attributes:
        optimal_values: V*(s) at the recipe's discount, without a time limit.
        optimal_actions: The best action of each state, the first of equal ones.
        behavior: Probabilities of the behavior, `[states, actions]`.
        behavior_values: Its values, as `optimal_values`.
        mean_returns: Exact mean undiscounted return of an episode, up to the time limit: of the `best` policy,
            which knows how many steps are left, of the `optimal` actions, of the `behavior`, of its `mode`
            (what imitation takes from it), and of `random` ones.
    """

    optimal_values: np.ndarray
    optimal_actions: np.ndarray
    behavior: np.ndarray
    behavior_values: np.ndarray
    mean_returns: dict[str, float]


@functools.cache
def known_values(recipe: TabularRecipe) -> KnownValues:
    """Return what is exactly known of a recipe."""
    with make_environment(recipe.environment_id, recipe.environment_kwargs) as env:
        table: Table = env.get_wrapper_attr("table")
        horizon: int = env.get_wrapper_attr("horizon")
    q_values = stationary_values(table, recipe.discount)
    # Values that differ by rounding alone count as equal, so that every machine takes the same action.
    best = (q_values >= q_values.max(1, keepdims=True) - 1e-9).argmax(1)
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((recipe.seed, 2**32 - 1))))
    is_mistaken = rng.random(table.states) < recipe.mistaken
    other = (best + rng.integers(1, table.actions, table.states)) % table.actions
    every = np.eye(table.actions)
    mode = every[np.where(is_mistaken, other, best)]
    knows = np.where(is_mistaken, recipe.known, 1)[:, None]
    behavior = (1 - recipe.noise) * (knows * every[best] + (1 - knows) * mode)
    behavior += recipe.noise / table.actions
    policies = {
        "optimal": every[best],
        "behavior": behavior,
        "mode": mode,
        "random": np.full_like(mode, 1 / table.actions),
    }
    returns = {
        name: float(table.starts @ policy_values(table, one, horizon))
        for name, one in policies.items()
    }
    of_behavior = stationary_values(table, recipe.discount, behavior)
    return KnownValues(
        optimal_values=q_values.max(1).round(9),
        optimal_actions=best,
        behavior=behavior,
        behavior_values=(behavior * of_behavior).sum(1).round(9),
        mean_returns={"best": float(table.starts @ best_values(table, horizon)[-1]), **returns},
    )


def _entry(task: str, recipe: TabularRecipe) -> CatalogueEntry:
    """Return the entry of a world's dataset."""
    return CatalogueEntry(
        version="1.0.0",
        description=(
            f"{task}; numbered states and actions, and the exact values of both the best policy and the one "
            f"that acted. {recipe.steps:,} steps."
        ),
        license="CC0-1.0",
        recipe=recipe,
    )


DATASETS = {
    "tabular/taxi-v1": _entry(
        "A taxi fetches a passenger and brings it to its destination",
        TabularRecipe(
            environment_id="orlog/Taxi-v0",
            mistaken=0.1,
            known=0.4,
            noise=0.2,
            discount=0.99,
            steps=100_000,
            seed=60,
        ),
    ),
    "tabular/frozenlake-v1": _entry(
        "A walk over slippery ice between holes",
        TabularRecipe(
            environment_id="orlog/FrozenLake-v0",
            mistaken=0.2,
            known=0.4,
            noise=0.2,
            discount=0.999,
            steps=100_000,
            seed=61,
        ),
    ),
    "tabular/icu-sepsis-v1": _entry(
        "Treatment of sepsis in intensive care, a model from records of patients (ICU-Sepsis)",
        TabularRecipe(
            environment_id="orlog/ICUSepsis-v0",
            mistaken=0.4,
            known=0.4,
            noise=0.2,
            discount=0.999,
            steps=100_000,
            seed=62,
        ),
    ),
}
