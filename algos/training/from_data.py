"""Settings that an algorithm takes from the data it is trained on, unless they are set."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from orlog.loaders.arrays.arrays import Arrays
from orlog.loaders.arrays.statistics import finite_returns


def _best_tenth(returns: np.ndarray) -> float:
    count = math.ceil(len(returns) / 10)
    return float(np.sort(returns)[-count:].mean())


def _one_over_largest(returns: np.ndarray) -> float:
    largest = float(np.abs(returns).max())
    return 1 / largest if largest else 1.0


SOURCES: dict[str, tuple[str, Callable[[np.ndarray], float]]] = {
    "target_return": ("the mean return of the best tenth of the episodes", _best_tenth),
    "return_scale": ("1 / the largest absolute return of an episode", _one_over_largest),
}
"""What each setting that an algorithm may name in `FROM_DATA` becomes: in words, from returns."""


def settings_from_data(kind: type[Any], config: Any, packed: Arrays) -> tuple[Any, list[str]]:
    """Return a configuration without settings that are None, and a line on each that was filled in.

    `FROM_DATA` of the class names these settings, each a key of `SOURCES`. The arrays have the rewards
    of training.
    """
    missing = [name for name in getattr(kind, "FROM_DATA", ()) if getattr(config, name) is None]
    if not missing:
        return config, []
    returns = finite_returns(packed)
    found = {name: SOURCES[name][1](returns) for name in missing}
    lines = [f"{name}={value:g}: {SOURCES[name][0]}" for name, value in found.items()]
    return dataclasses.replace(config, **found), lines
