"""Critics: targets, losses of values, costs, and what soft and conservative actor-critics share."""

from __future__ import annotations

import copy
import math
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos.networks import TwinCritic
from orlog.algos.optimizers import Adam
from orlog.algos.policies import squashed_samples
from orlog.errors import SchemaError
from orlog.loaders.batch import Batch

Module = TypeVar("Module", bound=nn.Module)

COST = "cost"
"""The info, or the role of one, that says what a step costs."""


def transitions_of(config: Any) -> tuple[str, dict[str, Any]]:
    """Return the loader of batches of transitions, over as many steps as targets sum the rewards of."""
    arguments = {"batch_size": config.batch_size}
    if getattr(config, "n_steps", 1) > 1:
        arguments |= {"n_steps": config.n_steps, "discount": config.discount}
    return "orlog.loaders.transitions:transitions", arguments


def discounts_of(config: Any, batch: Batch) -> Tensor | float:
    """Return the discount of the value after the steps that were summed, fewer than `n_steps` at the end of an episode."""
    return batch.discounts if config.n_steps > 1 else float(config.discount)


def transitions_with_costs(config: Any) -> tuple[str, dict[str, Any]]:
    """Return the loader of batches of transitions with their costs."""
    return "orlog.loaders.transitions:transitions", {"batch_size": config.batch_size, "infos": (COST,)}


def target_of(network: Module) -> Module:
    """Return the target network of a network, which starts as its copy."""
    return copy.deepcopy(network).requires_grad_(False)


def bellman_targets(
    rewards: Float32[Tensor, " batch"],
    terminations: Float32[Tensor, " batch"],
    next_values: Float32[Tensor, " batch"],
    discount: Tensor | float,
) -> Float32[Tensor, " batch"]:
    """Return r + discount (1 - termination) V(s'): nothing follows a termination."""
    return rewards + discount * (1 - terminations) * next_values


def squared_errors(values: Float32[Tensor, "critics batch"], targets: Float32[Tensor, " batch"]) -> Float32[Tensor, ""]:
    """Return the mean squared error of each critic, summed over critics."""
    return (values - targets).square().mean(-1).sum()


def expectile_loss(advantages: Float32[Tensor, " batch"], expectile: float) -> Float32[Tensor, ""]:
    """Return the mean of |tau - 1(u < 0)| u^2."""
    weights = torch.where(advantages < 0, 1 - expectile, expectile)
    return (weights * advantages.square()).mean()


def weighted_cloning_loss(
    log_likelihoods: Float32[Tensor, " batch"],
    advantages: Float32[Tensor, " batch"],
    inverse_temperature: float,
    max_weight: float,
) -> Float32[Tensor, ""]:
    """Return the mean of -min(exp(beta A), max_weight) log pi(a | s)."""
    weights = torch.exp(inverse_temperature * advantages).clamp(max=max_weight)
    return -(weights * log_likelihoods).mean()


def smoothed_actions(
    actions: Float32[Tensor, "batch act"], noise: Float32[Tensor, "batch act"], noise_clip: float
) -> Float32[Tensor, "batch act"]:
    """Return the target policy's actions with clipped noise, within [-1, 1]."""
    return (actions + noise.clamp(-noise_clip, noise_clip)).clamp(-1, 1)


# --- soft and conservative


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
    log_densities = torch.cat([uniform_log_densities, own_log_densities, next_log_densities])
    return torch.cat([uniform, own, next_own]), log_densities


def values_of(
    critic: TwinCritic, features: Float32[Tensor, "batch features"], actions: Float32[Tensor, "samples batch act"]
) -> Float32[Tensor, "2 samples batch"]:
    """Return the values of several actions for each state, from one pass through the critics."""
    states = features.expand(len(actions), -1, -1).flatten(0, 1)
    values: Tensor = critic(states, actions.flatten(0, 1))
    return values.view(2, *actions.shape[:2])


def conservative_gaps(
    sampled_q: Float32[Tensor, "2 batch samples"],
    sampled_log_densities: Float32[Tensor, "batch samples"],
    data_q: Float32[Tensor, "2 batch"],
) -> Float32[Tensor, 2]:
    """Return log sum_j exp(Q_j - log density_j) minus the data's Q, averaged over the batch.

    With action j drawn from the given density, the first part estimates the logarithm of the
    integral of exp Q over actions, plus the logarithm of the number of samples (CQL's equation 4 and
    appendix F; the authors' code keeps that constant too).
    """
    log_integral = torch.logsumexp(sampled_q - sampled_log_densities, -1)
    return (log_integral - data_q).mean(-1)


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


def temperature_loss(
    log_temperature: Float32[Tensor, ""], log_densities: Float32[Tensor, "*batch"], entropy: float
) -> Float32[Tensor, ""]:
    """Return what brings the entropy of a policy to a given one."""
    return -log_temperature * (log_densities.detach() + entropy).mean()


def critics_and_policy_optimizer(config: Any, critics: list[nn.Parameter], policy: list[nn.Parameter]) -> Adam:
    """Return one Adam for both, without parameters that are fixed, as a multiplier may be."""
    trained = [parameter for parameter in critics if parameter.requires_grad]
    return Adam(
        [{"params": trained, "lr": config.critic_learning_rate}, {"params": policy, "lr": config.policy_learning_rate}]
    )


@torch.no_grad()
def explore_softly(self: Any, observations: Any, generator: torch.Generator) -> Float32[Tensor, "batch act"]:
    """Return samples of the policy in the environment's unit."""
    actions, _ = draw_actions(*gaussian_of(self.policy(self.encoder(observations))), 1, generator)
    explored: Tensor = self.scaling.actions_from_unit(actions[0])
    return explored


# --- costs


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


def discounted_limit(config: Any) -> float:
    """Return the discounted cost that corresponds to the limit of an episode's cost.

    It is what a state has to come if each of `episode_length` steps costs an equal part of the limit, as in
    OSRL (`limit (1 - discount^T) / (1 - discount) / T`).
    """
    limit, discount, length = float(config.cost_limit), float(config.discount), config.episode_length
    if length is None:
        raise ValueError("episode_length must be set where no data set it.")
    return limit if discount == 1 else limit * float(1 - discount**length) / (1 - discount) / length


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


def one_over_largest(values: Any) -> float:
    """Return 1 / the largest absolute value, or 1 if all are 0."""
    largest = float(np.abs(values).max())
    return 1 / largest if largest > 0 else 1.0
