"""Modules that documentation once named and that moved since: their old names still import them."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

MOVED = {
    "orlog.datasets.interchange.episodes": "orlog.datasets.formats._shared.episodes",
    "orlog.stored_results": "orlog.experiments.stored_results",
    "orlog.normalize.off_policy": "orlog.normalize.value_estimates",
}
GONE = {"orlog.datasets.interchange"}
"""Packages that modules moved out of, and that have no others."""


class _Loader:
    """Gives the module of the new name, the same object, under its old name too."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        self._module = importlib.import_module(MOVED[spec.name])
        self._spec = self._module.__spec__
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put the old name's there


class _Finder:
    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how to import a module that moved; None for any other."""
        del path, target
        if name in GONE:
            return importlib.machinery.ModuleSpec(name, None, is_package=True)
        if name not in MOVED:
            return None
        warnings.warn(
            f"{name} is now {MOVED[name]}; import that.", DeprecationWarning, stacklevel=2
        )
        return importlib.util.spec_from_loader(name, _Loader())  # type: ignore[arg-type]


def serve_old_names() -> None:
    """Let old names of modules be imported. Called once, by `orlog` itself."""
    sys.meta_path.append(_Finder)
