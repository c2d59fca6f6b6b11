"""Recipes of the `uncertain/...` datasets: another dataset's recipe, in its world behind uncertainty.

    with_uncertainty(recipe, action_delay=3)    the same episodes, seeds and controllers, in `orlog/uncertain-v0`

The controller acts on what it sees through the uncertainty, and its noise is that of the other recipe. What is
stored is what it saw, chose and was paid; `action_log_probs` are those of the choice.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from orlog.datasets.recipes.classic import DATASETS as CLASSIC
from orlog.datasets.recipes.classic import ClassicRecipe
from orlog.datasets.recipes.recipe import CatalogueEntry

UNCERTAIN = "orlog/uncertain-v0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class UncertainRecipe(ClassicRecipe):
    """A `classic` recipe whose world is behind uncertainty.

    Attributes:
        world: Id of the world.
        uncertainty: Names and values of the arguments of `orlog.datasets.environments.uncertain.uncertain`,
            besides the world.
    """

    world: str
    uncertainty: tuple[tuple[str, float], ...]

    name = "uncertain"
    version = 1  # raised whenever the same parameters would give other bytes

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        numbers = ", ".join(f"{name} {value:g}" for name, value in self.uncertainty)
        return f"{super().behavior_policy}; it acts through {numbers}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything besides the seed that decides the bytes, as JSON."""
        return {**super().parameters, "uncertainty": dict(self.uncertainty)}

    @property
    def environment_kwargs(self) -> dict[str, Any]:
        """Arguments of `gymnasium.make`: the world's id and the numbers."""
        return {"environment": self.world, **dict(self.uncertainty)}


def with_uncertainty(recipe: ClassicRecipe, **uncertainty: float) -> UncertainRecipe:
    """Return a recipe's variant: the same episodes, in its world behind this uncertainty.

    Raises ValueError if the recipe's environment has arguments of its own.
    """
    if recipe.environment_kwargs:
        raise ValueError(
            f"{recipe.environment_id} has arguments of its own, {recipe.environment_kwargs!r:.100}: "
            "only a world without any can be behind uncertainty."
        )
    fields = {one.name: getattr(recipe, one.name) for one in dataclasses.fields(ClassicRecipe)}
    fields["environment_id"] = UNCERTAIN
    return UncertainRecipe(
        **fields, world=recipe.environment_id, uncertainty=tuple(uncertainty.items())
    )


def _pendulum(about: str, **uncertainty: float) -> CatalogueEntry:
    """Return the entry of a variant of `classic/pendulum-mixed-v1`."""
    plain = CLASSIC["classic/pendulum-mixed-v1"].recipe
    assert isinstance(plain, ClassicRecipe)
    return CatalogueEntry(
        version="1.0.0",
        description=(
            f"A torque swings a pendulum up and holds it there, as in classic/pendulum-mixed-v1, but {about}. "
            f"{plain.steps:,} steps."
        ),
        license="CC0-1.0",
        recipe=with_uncertainty(plain, **uncertainty),
    )


DATASETS = {
    "uncertain/pendulum-delay3-v1": _pendulum(
        "each torque comes three steps after it was chosen", action_delay=3
    ),
    "uncertain/pendulum-noise-v1": _pendulum(
        "observations have Gaussian noise of 0.2", observation_noise=0.2
    ),
    "uncertain/pendulum-sticky-v1": _pendulum(
        "in half of the steps the torque of the step before is taken again", sticky_actions=0.5
    ),
    "uncertain/pendulum-dropped-v1": _pendulum(
        "half of the observations are those of the step before", dropped_frames=0.5
    ),
}
