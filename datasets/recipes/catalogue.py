"""The catalogue: the datasets that orlog knows by name, and the recipes that build them."""

from __future__ import annotations

import dataclasses

from orlog.datasets.recipes.pointmaze import PointMazeRecipe

__all__ = [
    "CATALOGUE",
    "CatalogueEntry",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """What a name of the catalogue stands for.

    Attributes:
        version: Content version that the recipe builds.
        description: What the data are.
        license: SPDX identifier of the data.
        recipe: What builds them.
    """

    version: str
    description: str
    license: str
    recipe: PointMazeRecipe


_UMAZE = ("#####", "#grr#", "###r#", "#rrr#", "#####")

CATALOGUE: dict[str, CatalogueEntry] = {
    "pointmaze/umaze-v1": CatalogueEntry(
        version="1.0.0",
        description=(
            "A force-driven ball visits random goals in a U-shaped maze; the scored task is to "
            "reach one fixed cell and stay there. The recipe of D4RL's maze2d-umaze in "
            "Gymnasium-Robotics: 1 million steps."
        ),
        license="CC0-1.0",
        recipe=PointMazeRecipe(steps=1_000_000, maze=_UMAZE),
    ),
    "pointmaze/umaze-mini-v1": CatalogueEntry(
        version="1.0.0",
        description=(
            "20,000 steps made as pointmaze/umaze-v1 is, with another seed: for tests and first "
            "steps. Too small to learn the task from."
        ),
        license="CC0-1.0",
        recipe=PointMazeRecipe(steps=20_000, maze=_UMAZE, seed=1),
    ),
}
