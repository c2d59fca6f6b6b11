"""Fitted Q evaluation (FQE): the value of a fixed policy from transitions of another one.

Le, Voloshin and Yue 2019, "Batch policy learning under constraints", https://arxiv.org/abs/1903.08738, algorithm 3: a
sequence of regressions

    Q_k = argmin_Q  E_(s, a, r, s') ~ D [ (Q(s, a) - r - discount (1 - d) E_(a' ~ pi(s')) Q_(k-1)(s', a'))^2 ]

where d marks a termination; truncated episodes go on with the value of their final observation, as if they had no
end. The value of pi is the mean of V(s) = E_(a ~ pi(s)) Q(s, a) over first observations.

What differs from the paper: the regressions run into one another, as in Fu et al. 2021
(https://arxiv.org/abs/2103.16596, "FQE-L2"). Each step of Adam is on one batch, and Q_(k-1) is a target network that
moves towards Q by a small fraction. Rewards are divided by their root mean square, so that one learning rate serves
any unit; values are given in the unit of the rewards. Targets are clipped to the values that rewards like the
recorded ones could add up to: far from the data, values would otherwise grow with each regression.

A policy is a function of observations. Where actions are Discrete it returns the probability of each one, and
expectations are exact; in a Box it returns actions, and one action stands for the expectation.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec
import torch
from gymnasium import spaces
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos.critics import bellman_targets
from orlog.algos.encoders import Observations, make_encoder
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, update_target
from orlog.algos.policies import action_count, actions_to_indices, chosen_values
from orlog.algos.settings import Count, EncoderKind, Fraction, Positive, Widths
from orlog.errors import DivergedError

TargetPolicy: TypeAlias = Callable[[Observations], Tensor]
"""Probabilities [batch, actions] of Discrete actions, or actions [batch, act] in the environment's unit."""


class FQESettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of fitted Q evaluation."""

    hidden: Widths = (256, 256)
    """Widths of the hidden layers."""
    learning_rate: Positive = 1e-3
    """Step size of Adam."""
    batch_size: Count = 256
    """Transitions in a batch."""
    target_rate: Fraction = 0.05
    """Fraction by which the target network moves towards Q in each step."""
    steps: Count = 4_000
    """Gradient steps of each fit."""
    fits: Count = 5
    """Fits, each with a seed of its own and, if there are several, a resample of the episodes."""
    encoder: EncoderKind = "nature"
    """Convolutions for frames: `nature` or `impala`."""


class EvaluatedQ(nn.Module):
    """Q of a fixed policy, for Discrete actions or those of a Box.

    Attributes:
        unit: What rewards were divided by.
    """

    def __init__(self, settings: FQESettings, scaling: Scaling, *, seed: int, unit: float = 1.0) -> None:
        super().__init__()
        self.unit = unit
        self._scaling = scaling
        generator = make_generator(seed, 2, scaling.obs_mean.device)
        self.encoder = make_encoder(scaling, settings.encoder, generator=generator, random_shift=0)
        self.is_discrete = isinstance(scaling.action_space, spaces.Discrete)
        width, outputs = self.encoder.width + len(scaling.action_low), 1
        if self.is_discrete:
            outputs = action_count(scaling)
        self.network = make_network(width, outputs, settings.hidden, generator=generator)

    def scaled_values(self, observations: Observations, actions: Tensor) -> Float32[Tensor, " batch"]:
        """Return Q(s, a) / unit."""
        features = self.encoder(observations)
        if self.is_discrete:
            return chosen_values(self.network(features), actions_to_indices(self._scaling, actions))
        pairs = torch.cat([features, self._scaling.actions_to_unit(actions)], -1)
        values: Tensor = self.network(pairs).squeeze(-1)
        return values

    def scaled_state_values(self, observations: Observations, policy: TargetPolicy) -> Float32[Tensor, " batch"]:
        """Return V(s) / unit."""
        chosen = policy(observations)
        if not self.is_discrete:
            return self.scaled_values(observations, chosen)
        values: Tensor = (chosen * self.network(self.encoder(observations))).sum(-1)
        return values

    @torch.no_grad()
    def values(self, observations: Observations, actions: Tensor) -> Float32[Tensor, " batch"]:
        """Return Q(s, a)."""
        return self.unit * self.scaled_values(observations, actions)

    @torch.no_grad()
    def state_values(self, observations: Observations, policy: TargetPolicy) -> Float32[Tensor, " batch"]:
        """Return V(s)."""
        return self.unit * self.scaled_state_values(observations, policy)


def fit_q(
    q_function: EvaluatedQ,
    batches: Iterable[Any],
    policy: TargetPolicy,
    settings: FQESettings,
    *,
    discount: float,
    value_range: tuple[float, float] = (-math.inf, math.inf),
    progress: Callable[[int], None] = lambda _step: None,
) -> None:
    """Fit Q to a policy in place, one step for each batch, up to `settings.steps`.

    Batches have rewards as they were recorded. Targets are clipped to `value_range`, the lowest and the
    highest value that there can be. `progress` is told the number of steps about a hundred times.
    """
    target = copy.deepcopy(q_function).requires_grad_(False)
    optimizer = Adam(list(q_function.parameters()), settings.learning_rate)
    low, high = (bound / q_function.unit for bound in value_range)
    every = max(1, settings.steps // 100)
    for step, batch in zip(range(1, settings.steps + 1), batches, strict=False):
        with torch.no_grad():
            next_values = target.scaled_state_values(batch.next_observations, policy)
            rewards = batch.rewards / q_function.unit
            targets = bellman_targets(rewards, batch.terminations, next_values, discount)
            targets = targets.clamp(low, high)
        values = q_function.scaled_values(batch.observations, batch.actions)
        loss = (values - targets).square().mean()
        descend(optimizer, loss)
        update_target(target, q_function, settings.target_rate)
        if step % every == 0 or step == settings.steps:
            if not math.isfinite(float(loss.detach())):
                raise DivergedError(
                    f"fitted Q evaluation has diverged after {step:,} steps with the discount "
                    f"{discount:g}; give a smaller one, such as discount={discount - 0.01:g}.",
                    step=step,
                    metric="loss",
                )
            progress(step)
