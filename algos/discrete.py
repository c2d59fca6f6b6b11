"""Actions of a Discrete space: as indices from 0, their values in a batch, and which of them are legal."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from orlog.algos.networks import Scaling


def action_count(scaling: Scaling) -> int:
    """Return how many actions there are."""
    return int(_space(scaling).n)


def actions_to_indices(scaling: Scaling, actions: Int64[Tensor, " batch"]) -> Int64[Tensor, " batch"]:
    """Return the indices from 0 of actions, which the space may count from another number."""
    return actions - int(_space(scaling).start)


def actions_from_indices(scaling: Scaling, indices: Int64[Tensor, " batch"]) -> Int64[Tensor, " batch"]:
    """Return the actions of some indices."""
    return indices + int(_space(scaling).start)


def chosen_values(
    values: Float[Tensor, "*networks batch actions"], indices: Int64[Tensor, " batch"]
) -> Float[Tensor, "*networks batch"]:
    """Return of each row the value of one action."""
    places = indices.unsqueeze(-1).expand(*values.shape[:-1], 1)
    return values.gather(-1, places).squeeze(-1)


def only_legal(
    scaling: Scaling, values: Float[Tensor, "batch actions"], observations: Any
) -> Float[Tensor, "batch actions"]:
    """Return values with minus infinity for actions that observations say are not legal.

    Where observations do not say it, they are returned as they are; so are those of a row in which nothing
    is legal, as of an agent that takes no part.
    """
    if scaling.legal is None:
        return values
    key, place = scaling.legal
    seen = observations[key] if key else observations
    return where_legal(values, seen[..., place] > 0)


def where_legal(
    values: Float[Tensor, "*batch actions"], legal: Bool[Tensor, "*batch actions"]
) -> Float[Tensor, "*batch actions"]:
    """Return values with minus infinity for actions that are not legal, unless none is."""
    return values.masked_fill(~(legal | ~legal.any(-1, keepdim=True)), -torch.inf)


def _space(scaling: Scaling) -> spaces.Discrete:
    assert isinstance(scaling.action_space, spaces.Discrete)
    return scaling.action_space
