"""Recipes of the `uncertain/...` datasets: another dataset's recipe, in its world behind uncertainty.

    with_uncertainty(recipe, action_delay=3)    the same episodes, seeds and controllers, in `orlog/uncertain-v0`

The controller acts on what it sees through the uncertainty, and its noise is that of the other recipe; one that looks
at the state of the world in place of observations sees that state. What is stored is what was seen, chosen and
paid; `action_log_probs` are those of the choice.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

from orlog.datasets.environments.uncertain import check_numbers
from orlog.datasets.recipes.classic import DATASETS as CLASSIC
from orlog.datasets.recipes.mujoco import DATASETS as MUJOCO
from orlog.datasets.recipes.recipe import CatalogueEntry
from orlog.manifests.environments import UNCERTAIN


@dataclasses.dataclass(frozen=True, kw_only=True)
class UncertainRecipe:
    """What a recipe behind uncertainty has beside its own; its class extends that of the other recipe too.

    Its version is the other recipe's.

    Attributes:
        world_id: Id of the world.
        uncertainty: Names and values of the arguments of `orlog.datasets.environments.uncertain.uncertain`,
            besides the world.
    """

    world_id: str
    uncertainty: tuple[tuple[str, float], ...]

    name: ClassVar[str] = "uncertain"

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        numbers = ", ".join(f"{name} {value:g}" for name, value in self.uncertainty)
        return f"{self._of_the_other('behavior_policy')}; it acts through {numbers or 'nothing'}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything besides the seed that decides the bytes, as JSON."""
        own = dict(self._of_the_other("parameters"))
        del own["world_id"]
        return {**own, "world": self.world_id, "uncertainty": dict(self.uncertainty)}

    @property
    def environment_kwargs(self) -> dict[str, Any]:
        """Arguments of `gymnasium.make`: the world's id, its arguments if it has any, and the numbers."""
        own = self._of_the_other("environment_kwargs")
        arguments = {"arguments": own} if own else {}
        return {"environment": self.world_id, **arguments, **dict(self.uncertainty)}

    def _of_the_other(self, attribute: str) -> Any:
        return getattr(super(), attribute)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for worker processes, which make the class anew."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return _restore, (type(self).__bases__[1], fields)


@functools.cache
def _behind_uncertainty(kind: type) -> type[Any]:
    """Return the class of a kind of recipe's variants."""
    return dataclasses.make_dataclass(
        f"Uncertain{kind.__name__}",
        [],
        bases=(UncertainRecipe, kind),
        namespace={"environment_id": UNCERTAIN, "__module__": __name__},
        frozen=True,
        kw_only=True,
    )


def _restore(kind: type, fields: dict[str, Any]) -> Any:
    return _behind_uncertainty(kind)(**fields)


def with_uncertainty(recipe: Any, **uncertainty: float) -> Any:
    """Return the variant of a `Recipe`: the same episodes, in its world behind this uncertainty.

    It is an `UncertainRecipe`, and of the recipe's own class. The recipe must be a dataclass that records in what
    `make_environment` makes of its `environment_id` and `environment_kwargs`.

    Raises ValueError for a number of another name or value, for a recipe that is a variant already, and for one whose
    episodes come from elsewhere than from its environment.
    """
    check_numbers(uncertainty)
    if isinstance(recipe, UncertainRecipe):
        raise ValueError(  # noqa: TRY004  # a recipe, but not one that fits
            f"{recipe.world_id} is behind uncertainty already: give its own recipe, and all numbers at once."
        )
    given: Any = recipe
    if not dataclasses.is_dataclass(recipe) or getattr(recipe, "records_elsewhere", False):
        raise ValueError(
            f"the recipe {recipe.name} does not record in {recipe.environment_id}, so nothing can come "
            "between: give a recipe that records in the environment that scores."
        )
    fields = {one.name: getattr(recipe, one.name) for one in dataclasses.fields(recipe)}
    if "environment_id" in fields:
        fields["environment_id"] = UNCERTAIN
    numbers = tuple(uncertainty.items())
    return _restore(
        type(recipe), {**fields, "world_id": given.environment_id, "uncertainty": numbers}
    )


def _variant(plain: str, scene: str, about: str, **uncertainty: float) -> CatalogueEntry:
    """Return the entry of a variant of a dataset."""
    recipe = {**CLASSIC, **MUJOCO}[plain].recipe
    return CatalogueEntry(
        version="1.0.0",
        description=f"{scene}, as in {plain}, but {about}. {recipe.steps:,} steps.",
        license="CC0-1.0",
        recipe=with_uncertainty(recipe, **uncertainty),
    )


def _pendulum(about: str, **uncertainty: float) -> CatalogueEntry:
    scene = "A torque swings a pendulum up and holds it there"
    return _variant("classic/pendulum-mixed-v1", scene, about, **uncertainty)


def _hopper(about: str, **uncertainty: float) -> CatalogueEntry:
    return _variant("mujoco/hopper-medium-v1", "A leg hops forward", about, **uncertainty)


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
    "uncertain/hopper-noise-v1": _hopper(
        "observations have Gaussian noise of 0.05", observation_noise=0.05
    ),
    "uncertain/hopper-delay1-v1": _hopper(
        "each torque comes a step after it was chosen", action_delay=1
    ),
}
