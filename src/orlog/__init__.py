"""Offline-RL datasets that are pinned byte by byte, loaded fast, and scored honestly.

import orlog

ds = orlog.load_dataset("pointmaze/umaze-v1", build=True)
for batch in orlog.transitions(ds, batch_size=256, seed=0):
    ...

Importing this package is light: what a name needs is imported when the name is first used. `__init__.pyi` lists the
names, each as an import from its module; type checkers and editors read the same list.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.2.0"

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
_IMPORTS = [node for node in _STUB.body if isinstance(node, ast.ImportFrom)]
_MODULES = {alias.name: str(node.module) for node in _IMPORTS for alias in node.names}

__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'orlog' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
