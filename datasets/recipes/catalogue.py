"""The catalogue: the datasets that orlog can build, collected from this package's modules."""

from __future__ import annotations

import importlib
import pkgutil

import orlog.datasets.recipes
from orlog.datasets.recipes.recipe import CatalogueEntry

INFRASTRUCTURE = frozenset({"behavior_policies", "build", "catalogue", "rebuilds", "recipe"})


def catalogue() -> dict[str, CatalogueEntry]:
    """Return the catalogue's entries by dataset name.

    Recipe modules are imported at the first call.

    Raises ValueError if two modules declare the same name.
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
