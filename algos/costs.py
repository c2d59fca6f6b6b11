"""What algorithms share that keep the cost of episodes below a limit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float32
from torch import Tensor

from orlog.errors import SchemaError

COST = "cost"
"""The info, or the role of one, that says what a step costs."""


def costs_of(batch: Any) -> Float32[Tensor, ...]:
    """Return the costs of the steps of a batch, in the shape of its rewards.

    Raises SchemaError if they are not one number for each step.
    """
    costs: Tensor = batch.infos[COST]
    if costs.shape != batch.rewards.shape:
        raise SchemaError(
            f"costs of shape {list(costs.shape[batch.rewards.ndim :])} in each step, and one number was expected; "
            "record the sum of their parts as the info cost."
        )
    return costs.to(batch.rewards.dtype)


def discounted_limit(cost_limit: float, discount: float, episode_length: float) -> float:
    """Return the discounted cost that corresponds to a limit of an episode's cost.

    It is what a state has to come if each of `episode_length` steps costs an equal part of the limit, as in
    OSRL (`limit (1 - discount^T) / (1 - discount) / T`).
    """
    if discount == 1:
        return cost_limit
    return cost_limit * float(1 - discount**episode_length) / (1 - discount) / episode_length


def best_return_within(config: Any, totals: Any) -> float:
    """Return the mean return of the best tenth of the episodes whose cost is within `config.cost_limit`.

    `totals` are those of `training/policy.py`. Raises ValueError if there is no such episode.
    """
    costs = totals.sum_of(COST)
    returns = totals.returns[costs <= config.cost_limit]
    if not len(returns):
        raise ValueError(
            f"{totals.name}: no episode has a cost of at most {config.cost_limit:g}; the least is "
            f"{costs.min():g}. Set target_return, or another cost_limit."
        )
    return float(np.sort(returns)[-math.ceil(len(returns) / 10) :].mean())


def one_over_largest_return(_config: Any, totals: Any) -> float:
    """Return 1 / the largest absolute return of an episode."""
    largest = float(np.abs(totals.returns).max())
    return 1 / largest if largest > 0 else 1.0


def one_over_largest_cost(_config: Any, totals: Any) -> float:
    """Return 1 / the largest cost of an episode."""
    largest = float(totals.sum_of(COST).max())
    return 1 / largest if largest > 0 else 1.0
