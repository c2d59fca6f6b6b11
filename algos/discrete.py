"""Actions of a Discrete space: as indices from 0, and the values of those in a batch."""

from __future__ import annotations

from gymnasium import spaces
from jaxtyping import Float, Int64
from torch import Tensor

from orlog.algos.networks import Scaling


def action_count(scaling: Scaling) -> int:
    """Return how many actions there are."""
    return int(_space(scaling).n)


def actions_to_indices(
    scaling: Scaling, actions: Int64[Tensor, " batch"]
) -> Int64[Tensor, " batch"]:
    """Return the indices from 0 of actions, which the space may count from another number."""
    return actions - int(_space(scaling).start)


def actions_from_indices(
    scaling: Scaling, indices: Int64[Tensor, " batch"]
) -> Int64[Tensor, " batch"]:
    """Return the actions of some indices."""
    return indices + int(_space(scaling).start)


def chosen_values(
    values: Float[Tensor, "*networks batch actions"], indices: Int64[Tensor, " batch"]
) -> Float[Tensor, "*networks batch"]:
    """Return of each row the value of one action."""
    places = indices.unsqueeze(-1).expand(*values.shape[:-1], 1)
    return values.gather(-1, places).squeeze(-1)


def _space(scaling: Scaling) -> spaces.Discrete:
    assert isinstance(scaling.action_space, spaces.Discrete)
    return scaling.action_space
