"""Offline-RL datasets that are pinned byte by byte, loaded fast, and scored honestly.

import orlog

ds = orlog.load_dataset("pointmaze/umaze-v1", build=True)
for batch in orlog.transitions(ds, batch_size=256, seed=0):
    ...

Importing this package is light: what a name needs is imported when the name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orlog.datasets.build import build_dataset as build_dataset
    from orlog.datasets.convert import convert_dataset as convert_dataset
    from orlog.datasets.convert import save_dataset as save_dataset
    from orlog.datasets.dataset import Dataset as Dataset
    from orlog.datasets.download import download_dataset as download_dataset
    from orlog.datasets.download import repair_dataset as repair_dataset
    from orlog.datasets.encoding import choose_encoding as choose_encoding
    from orlog.datasets.episode import Episode as Episode
    from orlog.datasets.loading import load_dataset as load_dataset
    from orlog.datasets.publish import publish_dataset as publish_dataset
    from orlog.datasets.recorder import DatasetWriter as DatasetWriter
    from orlog.datasets.verify import verify_store as verify_store
    from orlog.datasets.views import combine_datasets as combine_datasets
    from orlog.datasets.views import split_dataset as split_dataset
    from orlog.errors import OrlogError as OrlogError
    from orlog.loaders.batch import Batch as Batch
    from orlog.loaders.transitions import Transitions as Transitions
    from orlog.loaders.transitions import transitions as transitions

__version__ = "0.1.0"

_HOMES = {
    "Batch": "orlog.loaders.batch",
    "Dataset": "orlog.datasets.dataset",
    "DatasetWriter": "orlog.datasets.recorder",
    "Episode": "orlog.datasets.episode",
    "OrlogError": "orlog.errors",
    "Transitions": "orlog.loaders.transitions",
    "build_dataset": "orlog.datasets.build",
    "choose_encoding": "orlog.datasets.encoding",
    "combine_datasets": "orlog.datasets.views",
    "convert_dataset": "orlog.datasets.convert",
    "download_dataset": "orlog.datasets.download",
    "load_dataset": "orlog.datasets.loading",
    "publish_dataset": "orlog.datasets.publish",
    "repair_dataset": "orlog.datasets.download",
    "save_dataset": "orlog.datasets.convert",
    "split_dataset": "orlog.datasets.views",
    "transitions": "orlog.loaders.transitions",
    "verify_store": "orlog.datasets.verify",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'orlog' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
