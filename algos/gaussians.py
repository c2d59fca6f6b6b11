"""Gaussian policies, plain and squashed by a tanh: samples and log densities.

    plain      a = mean + std noise            log N(a; mean, std^2), summed over action dimensions
    squashed   a = tanh(mean + std noise)      the same at atanh(a), minus log(1 - a^2) for each

The tanh's Jacobian is exact: log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float32
from torch import Tensor, nn


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
