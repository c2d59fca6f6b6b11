"""Training recipes: steps and settings per algorithm and dataset in one table, with their sources.

A recipe changes only the settings it names; all others are the algorithm's defaults, which are the
published values. A recipe that departs from what was published says why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

__all__ = ["RECIPES", "Recipe", "recipe_for"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How an algorithm is trained on a dataset.

    Attributes:
        steps: Gradient steps.
        settings: Settings that differ from the algorithm's defaults.
        source: Source of the steps and settings.
    """

    steps: int
    settings: Mapping[str, object]
    source: str


_PUBLISHED = {
    "bc": "published: CORL's configuration",
    "cql": "published: the authors' configuration for MuJoCo, with 1 million steps",
    "iql": "published: the authors' configuration for locomotion, without its reward scaling",
}
_QUICK = (
    "small on purpose, to train on two CPU cores in about a minute: two hidden layers of 64 and "
    "few steps, hence higher rates than the published ones"
)

_UMAZE: dict[str, Recipe] = {
    "bc": Recipe(
        steps=12_000,
        settings={"hidden": [64, 64], "learning_rate": 1e-3},
        source=_QUICK,
    ),
    "cql": Recipe(
        steps=8_000,
        settings={
            "hidden": [64, 64],
            "policy_learning_rate": 3e-4,
            "critic_learning_rate": 1e-3,
            "target_rate": 0.02,
            "conservative_weight": 1.0,
            "sampled_actions": 2,
            "cloning_steps": 0,
        },
        source=_QUICK
        + "; 2 sampled actions of each kind instead of 10, since nearly all of an update goes into "
        "judging them, a weight of 1 as rewards are sparse, and no steps of cloning",
    ),
    "iql": Recipe(
        steps=8_000,
        settings={
            "hidden": [64, 64],
            "learning_rate": 1e-3,
            "target_rate": 0.02,
            "batch_size": 1024,
            "expectile": 0.9,
            "inverse_temperature": 10.0,
        },
        source=_QUICK
        + "; expectile and inverse temperature of the authors' AntMaze configuration, and a batch of "
        "1024 because the weights of so high a temperature leave few transitions that count",
    ),
}

RECIPES: dict[tuple[str, str], Recipe] = {
    (algorithm, dataset): recipe
    for dataset in ("pointmaze/umaze-v1", "pointmaze/umaze-mini-v1")
    for algorithm, recipe in _UMAZE.items()
}


def recipe_for(algorithm: str, dataset: str) -> Recipe:
    """Return the recipe of an algorithm on a dataset; the published defaults if there is none."""
    default = Recipe(steps=1_000_000, settings={}, source=_PUBLISHED.get(algorithm, "defaults"))
    return RECIPES.get((algorithm, dataset), default)
