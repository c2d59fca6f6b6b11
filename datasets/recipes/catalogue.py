"""The catalogue: the datasets that orlog can build, found in the recipe modules of this package."""

from __future__ import annotations

import importlib
import pkgutil

import orlog.datasets.recipes
from orlog.datasets.recipes.recipe import CatalogueEntry

__all__ = ["catalogue"]

INFRASTRUCTURE = frozenset({"build", "catalogue", "recipe"})


def catalogue() -> dict[str, CatalogueEntry]:
    """Return what each name of the catalogue stands for.

    Modules are imported when this is called first. Two that declare the same name are an error.
    """
    found: dict[str, CatalogueEntry] = {}
    for module in pkgutil.iter_modules(orlog.datasets.recipes.__path__):
        if module.name in INFRASTRUCTURE:
            continue
        path = f"{orlog.datasets.recipes.__name__}.{module.name}"
        for name, entry in importlib.import_module(path).DATASETS.items():
            if name in found:
                raise ValueError(f"{path}: another recipe declares {name} already.")
            found[name] = entry
    return found
