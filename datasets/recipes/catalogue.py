"""The catalogue: the datasets that orlog knows by name, and the recipes that build them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import orlog
from orlog.datasets.recipes.pointmaze import PointMazeRecipe
from orlog.manifests.manifest import Manifest, read_manifest

__all__ = [
    "CATALOGUE",
    "CatalogueEntry",
    "recorded_folder",
    "recorded_manifest",
    "records_folder",
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


def records_folder() -> Path:
    """Return the folder of all that ships recorded: manifests, references, baselines."""
    assert orlog.__file__ is not None
    return Path(orlog.__file__).parent / "manifests"


def recorded_folder(name: str) -> Path:
    """Return the folder of what was recorded about one dataset: manifests and baselines."""
    return records_folder() / name


def recorded_manifest(name: str, version: str = "") -> Manifest | None:
    """Return the manifest that ships with orlog, or None where none was recorded.

    Without a version it is the one that the recipe builds.
    """
    if not version and name in CATALOGUE:
        version = CATALOGUE[name].version
    path = recorded_folder(name) / f"{version}.json"
    return read_manifest(path) if path.is_file() else None
