"""What a recipe is: code that makes the episodes of a dataset, the same bytes each time.

Every module of this package that has a constant `DATASETS` (name -> `CatalogueEntry`) adds these
datasets to the catalogue (`catalogue.py`); nothing else has to know about the module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np

from orlog.datasets.columns.episode import Episode

__all__ = ["CatalogueEntry", "Expert", "Recipe", "parameters_of"]

Policy: TypeAlias = Callable[[Any], np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expert:
    """The policy whose mean return is the upper reference of an environment.

    Attributes:
        name: What it is, in words, for the record.
        policy: Returns the actions for a batch of observations.
    """

    name: str
    policy: Policy


class Recipe(Protocol):
    """What builds a dataset; worker processes get it pickled."""

    @property
    def name(self) -> str:
        """Name of the recipe, for the manifest."""

    @property
    def version(self) -> int:
        """Raised whenever the same parameters would give other bytes."""

    @property
    def seed(self) -> int:
        """Root of all randomness."""

    @property
    def steps(self) -> int:
        """Steps in the dataset."""

    @property
    def parameters(self) -> dict[str, Any]:
        """All that decides the bytes besides the seed, as JSON."""

    @property
    def environment_id(self) -> str:
        """The registered environment that records and scores."""

    @property
    def environment_kwargs(self) -> dict[str, Any]:
        """Arguments of `gymnasium.make`."""

    @property
    def behavior_policy(self) -> str:
        """What chose the actions, in words."""

    def lengths(self, limit: int) -> list[int]:
        """Return the number of steps of each episode if the environment truncates at `limit`."""

    def episodes(self, first: int, last: int) -> Iterator[Episode]:
        """Yield episodes `first` to `last - 1`, each a function of the recipe and its position."""

    def expert(self) -> Expert | None:
        """Return the expert for reference returns; None if there is none."""


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
    recipe: Recipe


def parameters_of(recipe: Any) -> dict[str, Any]:
    """Return the fields of a dataclass except `seed`, as JSON has them."""
    values = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}
    del values["seed"]
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }
