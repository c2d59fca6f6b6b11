"""Off-policy learning from logged choices: inverse propensity scores, or doubly robust.

A choice is an episode of one step: an observation x, an action a that was taken with the recorded probability b(a |
x), and a reward r. The policy pi is a softmax that maximizes an estimate of its mean reward:

    ips     E[ w (r - baseline) ],   w = min(pi(a | x) / b(a | x), max_weight)
            (inverse propensity scores; Horvitz and Thompson 1952. `baseline` is the constant by which Joachims,
            Swaminathan and de Rijke 2018, "Deep learning with logged bandit feedback", translate the loss, against
            the growth of all weights)
    direct  E[ sum over a of pi(a | x) q(x, a) ]
    dr      E[ w (r - q(x, a)) + sum over a of pi(a | x) q(x, a) ]
            (doubly robust; Dudik, Langford and Li 2011, https://arxiv.org/abs/1103.4601)

with q(x, a) a regression of the rewards on observations and actions, learned beside the policy by squares, and
`entropy_weight` times the entropy of pi added. It is evaluated at its most likely action.

Networks and rates are those of discrete `iql`, since the papers have linear policies. `dr` is the same with the
doubly robust objective.

What differs from the papers: the policy is a network of any kind of observations in place of a linear one; q and pi
are learned on the same choices, batch by batch; weights are cut at `max_weight`, which makes values too low but
bounds their variance; and actions have all been possible, so that b > 0 is not checked for those not taken.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from orlog.algos.encoders import encoder_of
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of
from orlog.algos.policies import action_count, actions_from_indices, actions_to_indices, chosen_values
from orlog.algos.settings import AnyNumber, Common, NotNegative, Positive
from orlog.loaders.batch import Batch


class IPSConfig(Common, frozen=True, kw_only=True):
    """Settings of off-policy learning from logged choices."""

    objective: Literal["ips", "direct", "dr"] = "ips"
    """The estimate that is maximized: `ips`, `direct`, or doubly robust, `dr`."""
    baseline: AnyNumber = 0.0
    """Taken from rewards in `ips`; near their mean, weights do not grow for the sake of their sum."""
    max_weight: Positive = 100.0
    """Upper bound of the ratio of probabilities."""
    entropy_weight: NotNegative = 0.0
    """Factor of the policy's entropy, >= 0."""


def estimated_rewards(
    log_likelihoods: Float[Tensor, "batch actions"],
    actions: Int64[Tensor, " batch"],
    behavior_log_probs: Float[Tensor, " batch"],
    rewards: Float[Tensor, " batch"],
    expected: Float[Tensor, "batch actions"],
    config: IPSConfig,
) -> Float[Tensor, " batch"]:
    """Return the policy's reward as the objective estimates it from each choice; `expected` is q(x, .)."""
    by_regression = (log_likelihoods.exp() * expected).sum(-1)
    if config.objective == "direct":
        return by_regression
    chosen = chosen_values(log_likelihoods, actions)
    weights = (chosen - behavior_log_probs).exp().clamp(max=config.max_weight)
    if config.objective == "ips":
        return weights * (rewards - config.baseline)
    return weights * (rewards - chosen_values(expected, actions)) + by_regression


class IPS:
    """A softmax policy that maximizes an estimate of its mean reward from logged choices."""

    CONFIG = IPSConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("discrete",)

    @staticmethod
    def loader(config: IPSConfig) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: choices with their log-probabilities."""
        arguments = {"batch_size": config.batch_size, "infos": ("action_log_probs",)}
        return "orlog.loaders.transitions:logged_choices", arguments

    def __init__(self, config: IPSConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        self.policy, self.regression = (
            make_network(self.encoder.width, action_count(scaling), config.hidden, generator=generator)
            for _ in range(2)
        )
        parameters = parameters_of(self.encoder, self.policy, self.regression)
        self.optimizer = Adam(parameters, config.learning_rate)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        features = self.encoder(self.encoder.shift(batch.observations))
        actions = actions_to_indices(self.scaling, batch.actions)
        log_likelihoods = torch.log_softmax(self.policy(features), -1)
        expected = self.regression(features)
        regression_loss = (chosen_values(expected, actions) - batch.rewards).square().mean()
        value = estimated_rewards(
            log_likelihoods,
            actions,
            batch.infos["action_log_probs"].flatten(),
            batch.rewards,
            expected.detach(),
            config,
        ).mean()
        entropy = -(log_likelihoods.exp() * log_likelihoods).sum(-1).mean()
        # The two losses share no trained parameter but the convolutions of frames.
        descend(self.optimizer, regression_loss - value - config.entropy_weight * entropy)
        return {
            "policy/value": value.detach(),
            "policy/entropy": entropy.detach(),
            "regression/loss": regression_loss.detach(),
        }

    @torch.no_grad()
    def act(self, observations: Any) -> Int64[Tensor, " batch"]:
        """Return the most likely actions."""
        indices = self.policy(self.encoder(observations)).argmax(-1)
        return actions_from_indices(self.scaling, indices)
