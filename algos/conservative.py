"""What CQL and Cal-QL share: the policy's Gaussian, proposals and their values, the gap's weight, Adam."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos.gaussians import squashed_samples
from orlog.algos.networks import TwinCritic
from orlog.algos.optimizers import Adam


def gaussian_of(
    outputs: Float32[Tensor, "batch outputs"],
) -> tuple[Float32[Tensor, "batch act"], Float32[Tensor, "batch act"]]:
    """Return means and log standard deviations, before the tanh, from the outputs of a policy."""
    means, log_stds = outputs.chunk(2, -1)
    # Shifted and clipped as Geng's code and CORL do at the start; they train the shift.
    return means, (log_stds - 1.0).clamp(-20, 2)


def draw_actions(
    means: Float32[Tensor, "batch act"],
    log_stds: Float32[Tensor, "batch act"],
    samples: int,
    generator: torch.Generator,
) -> tuple[Float32[Tensor, "samples batch act"], Float32[Tensor, "samples batch"]]:
    """Return actions in [-1, 1] and their log densities."""
    noise = torch.randn((samples, *means.shape), generator=generator, device=means.device)
    return squashed_samples(means, log_stds, noise)


def draw_proposals(
    here: tuple[Float32[Tensor, "batch act"], Float32[Tensor, "batch act"]],
    following: tuple[Float32[Tensor, "batch act"], Float32[Tensor, "batch act"]],
    samples: int,
    generator: torch.Generator,
) -> tuple[Float32[Tensor, "proposals batch act"], Float32[Tensor, "proposals batch"]]:
    """Return `samples` uniform actions, as many of pi(. | s), then of pi(. | s'), and log densities.

    `here` and `following` are the means and log standard deviations at s and s'.
    """
    own, own_log_densities = draw_actions(*here, samples, generator)
    next_own, next_log_densities = draw_actions(*following, samples, generator)
    uniform = torch.empty_like(own).uniform_(-1, 1, generator=generator)
    uniform_log_densities = torch.full_like(own_log_densities, -own.shape[-1] * math.log(2))
    return (
        torch.cat([uniform, own, next_own]),
        torch.cat([uniform_log_densities, own_log_densities, next_log_densities]),
    )


def values_of(
    critic: TwinCritic, features: Float32[Tensor, "batch features"], actions: Float32[Tensor, "samples batch act"]
) -> Float32[Tensor, "2 samples batch"]:
    """Return the values of several actions for each state, from one pass through the critics."""
    states = features.expand(len(actions), -1, -1).flatten(0, 1)
    values: Tensor = critic(states, actions.flatten(0, 1))
    return values.view(2, *actions.shape[:2])


def weighted_gaps(
    gaps: Float32[Tensor, 2], weight: float, target_gap: float | None, log_multiplier: Float32[Tensor, ""]
) -> Float32[Tensor, ""]:
    """Return the conservative loss; with a target gap a Lagrange multiplier has its part in it."""
    if target_gap is None:
        return weight * gaps.sum()
    multiplier = log_multiplier.exp().clamp(max=1e6)
    excess = weight * (gaps - target_gap)
    # The critics descend, the multiplier ascends.
    return (multiplier.detach() * excess - multiplier * excess.detach()).sum()


def make_optimizer(
    critics: Iterable[nn.Parameter],
    critic_learning_rate: float,
    policy: Iterable[nn.Parameter],
    policy_learning_rate: float,
) -> Adam:
    """Return one Adam for both, without parameters that are fixed, as the multiplier may be."""
    return Adam(
        [
            {"params": [one for one in critics if one.requires_grad], "lr": critic_learning_rate},
            {"params": list(policy), "lr": policy_learning_rate},
        ]
    )
