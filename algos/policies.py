"""Policies that algorithms share: Gaussians, actions of Discrete spaces, and what acts and explores with them.

    plain      a = mean + std noise            log N(a; mean, std^2), summed over action dimensions
    squashed   a = tanh(mean + std noise)      the same at atanh(a), minus log(1 - a^2) for each

Functions whose first argument is `self` are methods that classes take as they are: `act = act_tanh`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor, nn

from orlog.algos.encoders import Observations
from orlog.algos.networks import Scaling


def gaussian_log_likelihood(
    actions: Float32[Tensor, "batch act"], means: Float32[Tensor, "batch act"], log_std: Float32[Tensor, " act"]
) -> Float32[Tensor, " batch"]:
    """Return log N(actions; means, exp(log_std)^2), summed over action dimensions."""
    errors = (actions - means) * torch.exp(-log_std)
    return -(0.5 * errors.square() + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)


def squashed_samples(
    means: Float32[Tensor, "batch act"],
    log_stds: Float32[Tensor, "batch act"],
    noise: Float32[Tensor, "samples batch act"],
) -> tuple[Float32[Tensor, "samples batch act"], Float32[Tensor, "samples batch"]]:
    """Return tanh(mean + std noise) and its log density, the tanh's Jacobian included."""
    raw = means + log_stds.exp() * noise
    log_normal = -(0.5 * noise.square() + log_stds + 0.5 * math.log(2 * math.pi)).sum(-1)
    # log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)), exact where 1 - tanh^2 would round to 0
    log_jacobian = 2 * (math.log(2) - raw - nn.functional.softplus(-2 * raw)).sum(-1)
    return torch.tanh(raw), log_normal - log_jacobian


def sample_squashed(
    outputs: Float32[Tensor, "batch outputs"], log_std_bounds: tuple[float, float], generator: torch.Generator
) -> tuple[Float32[Tensor, "batch act"], Float32[Tensor, " batch"]]:
    """Return an action in [-1, 1] of each row of a policy's outputs, and its log density.

    The outputs are means and log standard deviations side by side; the latter are clipped.
    """
    means, log_stds = outputs.chunk(2, -1)
    noise = torch.randn((1, *means.shape), generator=generator, device=means.device)
    samples, log_densities = squashed_samples(means, log_stds.clamp(*log_std_bounds), noise)
    return samples[0], log_densities[0]


def squashed_log_density(
    actions: Float32[Tensor, "batch act"], means: Float32[Tensor, "batch act"], log_stds: Float32[Tensor, "batch act"]
) -> Float32[Tensor, " batch"]:
    """Return the log density of given actions in [-1, 1] under the squashed Gaussian."""
    raw = torch.atanh(actions.clamp(-1 + 1e-5, 1 - 1e-5))
    return squashed_samples(means, log_stds, ((raw - means) * torch.exp(-log_stds))[None])[1][0]


@torch.no_grad()
def act_tanh(self: Any, observations: Observations) -> Float32[Tensor, "batch act"]:
    """Return the tanh of the policy's outputs, or of its means if there are deviations too, in the environment's unit."""
    outputs = self.policy(self.encoder(observations))[:, : len(self.scaling.action_low)]
    actions: Tensor = self.scaling.actions_from_unit(torch.tanh(outputs))
    return actions


# --- actions of a Discrete space


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


@torch.no_grad()
def act_likeliest(self: Any, observations: Any) -> Int64[Tensor, " batch"]:
    """Return the policy's most likely actions, of the legal ones where observations say which are."""
    logits = self.policy(self.encoder(observations))
    return actions_from_indices(self.scaling, only_legal(self.scaling, logits, observations).argmax(-1))


def _space(scaling: Scaling) -> spaces.Discrete:
    assert isinstance(scaling.action_space, spaces.Discrete)
    return scaling.action_space
