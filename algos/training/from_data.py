"""What a run takes from its data: infos, rewards as they are trained with, settings unless they are set."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from orlog.algos.algorithms import ALGORITHMS, takes_goals
from orlog.algos.presets import Rewards
from orlog.errors import SchemaError
from orlog.loaders.arrays.arrays import Arrays
from orlog.loaders.arrays.statistics import finite_returns
from orlog.loaders.transforms import scale_rewards


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


def infos_of(kind: type[Any], config: Any) -> tuple[str, ...]:
    """Return the infos that an algorithm learns from: those that its loader is asked for."""
    return tuple(kind.loader(config)[1].get("infos", ()))


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


def check_rewards(kind: type[Any], name: str, packed: Arrays) -> None:
    """Refuse data whose rewards are all 0 to an algorithm of orlog's that learns from them."""
    if name not in ALGORITHMS or takes_goals(kind) or not getattr(kind, "REWARDS", True):
        return
    if not bool(packed.rows[:, packed.columns["rewards"]].any()):
        goals = [one for one in ALGORITHMS if takes_goals(ALGORITHMS[one])]
        raise SchemaError(
            f"{packed.name}: every reward is 0, and {name} learns from rewards; imitate the actions "
            f"(bc), learn to reach goals ({', '.join(goals)}), or record the data with rewards."
        )


def reward_numbers(rewards: Rewards, packed: Arrays) -> tuple[float, float]:
    """Return the factor and the shift that rewards of a dataset are trained with.

    A range of returns that is 0 is refused where they depend on it.
    """
    scale = rewards.scale
    if rewards.return_range is not None:
        returns = finite_returns(packed)
        spread = float(returns.max() - returns.min())
        if not spread > 0:
            raise SchemaError(
                f"{packed.name}: rewards are to be scaled by the range of returns, but all "
                f"{len(returns)} episodes have the return {returns[0]:g}; choose another preset, or "
                "the defaults: preset='none'."
            )
        scale *= rewards.return_range / spread
    return scale, rewards.shift


def with_rewards(packed: Arrays, scale: float, shift: float) -> Arrays:
    """Return the arrays with `scale * reward + shift` written into them; the stream stays as it is.

    Only rewards change, in place, so nothing is copied; draws depend on the digest, which is kept.
    """
    if (scale, shift) == (1.0, 0.0):
        return packed
    changed = scale_rewards(packed, scale=scale, shift=shift, in_place=True)
    return dataclasses.replace(changed, digest=packed.digest)
