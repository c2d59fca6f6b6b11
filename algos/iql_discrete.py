"""Implicit Q-learning for discrete actions.

Kostrikov, Nair and Levine 2021, https://arxiv.org/abs/2110.06169:

    L_V(psi)   = E[ L2^tau( Q_target(s, a) - V(s) ) ]                                  (equation 5)
                 L2^tau(u) = |tau - 1(u < 0)| u^2,  Q_target the smaller of two target networks
    L_Q(theta) = sum_i E[ ( r + discount (1 - termination) V(s') - Q_i(s, a) )^2 ]     (equation 6)
    L_pi(phi)  = -E[ min(exp(beta (Q_target(s, a) - V(s))), 100) log pi(a | s) ]       (equation 7)

Networks give the values of all actions at once, of which the data's counts. The policy is a softmax
over the actions, evaluated at its most likely action. The rate of its Adam falls to 0 along a cosine
over `steps`. Truncations bootstrap, terminations do not.

The paper and the authors' code have continuous actions only, so there are no settings of theirs for
Atari or any other discrete task. Defaults are those of `iql.py`. OGBench (Park et al. 2024,
https://arxiv.org/abs/2410.20092) has discrete IQL with goals, whose settings for its pixel task
Powderworld are an inverse temperature of 3, an expectile of 0.9 and batches of 256, with IMPALA
convolutions of one residual block.

What differs from the paper's equations, as in the authors' code: two critics of which the smaller
counts, and the upper bound of the policy's weights. As in `iql.py`, all three losses are computed
from the networks before the step.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from orlog.algos import discrete
from orlog.algos.encoders import encoder_of
from orlog.algos.iql import expectile_loss, policy_loss
from orlog.algos.networks import Scaling, bellman_targets, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of, set_cosine_rate, update_target
from orlog.algos.settings import Count, Inside, NotNegative, Positive, Valued
from orlog.loaders.batch import Batch


class IQLDiscreteConfig(Valued, frozen=True, kw_only=True):
    """Settings of implicit Q-learning for discrete actions."""

    expectile: Inside = 0.7
    """Expectile tau of the value loss, in (0, 1); 0.5 is the mean, 1 would be the maximum."""
    inverse_temperature: NotNegative = 3.0
    """Factor beta of the advantage in the policy's weights, >= 0; 0 is behavior cloning."""
    max_weight: Positive = 100.0
    """Upper bound of the policy's weights."""
    steps: Count = 1_000_000
    """Gradient steps over which the policy's learning rate falls to 0."""


class IQLDiscrete:
    """Implicit Q-learning for discrete actions."""

    CONFIG = IQLDiscreteConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("discrete",)

    @staticmethod
    def loader(config: IQLDiscreteConfig) -> tuple[str, dict[str, int]]:
        """Return the loader of its batches: transitions."""
        return "orlog.loaders.transitions:transitions", {"batch_size": config.batch_size}

    def __init__(self, config: IQLDiscreteConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config = config
        self.scaling = scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)

        def network(outputs: int) -> nn.Sequential:
            return make_network(self.encoder.width, outputs, config.hidden, generator=generator)

        count = discrete.action_count(scaling)
        self.critics = nn.ModuleList([network(count), network(count)])
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.value, self.policy = network(1), network(count)
        self.optimizer = Adam(
            [
                {"params": parameters_of(self.encoder, self.critics, self.value)},
                {"params": list(self.policy.parameters())},
            ],
            config.learning_rate,
        )
        self.step = 0

    def set_rates(self) -> None:
        """Set the policy's learning rate for the next update."""
        of_policy, config = self.optimizer.param_groups[1], self.config
        set_cosine_rate(of_policy, config.learning_rate, self.step, config.steps)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        actions = discrete.actions_to_indices(self.scaling, batch.actions)
        features = self.encoder(self.encoder.shift(batch.observations))
        fixed = features.detach()

        with torch.no_grad():
            next_features = self.encoder(self.encoder.shift(batch.next_observations))
            target_q = _data_values(self.target_critics, fixed, actions).amin(0)
            next_values = self.value(next_features).squeeze(-1)
            targets = bellman_targets(batch.rewards, batch.terminations, next_values, config.discount)

        values = self.value(fixed).squeeze(-1)
        advantages = target_q - values
        value_loss = expectile_loss(advantages, config.expectile)

        q_values = _data_values(self.critics, features, actions)
        critic_loss = (q_values - targets).square().mean(-1).sum()

        log_likelihoods = torch.log_softmax(self.policy(fixed), -1)
        actor_loss = policy_loss(
            discrete.chosen_values(log_likelihoods, actions),
            advantages.detach(),
            config.inverse_temperature,
            config.max_weight,
        )

        # The losses share no trained parameter, so one backward pass gives the three gradients.
        self.set_rates()
        descend(self.optimizer, value_loss + critic_loss + actor_loss)
        update_target(self.target_critics, self.critics, config.target_rate)
        self.step += 1
        return {
            "value/loss": value_loss.detach(),
            "value/mean": values.detach().mean(),
            "critic/loss": critic_loss.detach(),
            "critic/mean": q_values.detach().mean(),
            "policy/loss": actor_loss.detach(),
        }

    @torch.no_grad()
    def act(self, observations: Any) -> Int64[Tensor, " batch"]:
        """Return the most likely actions, of the legal ones where observations say which are."""
        logits = self.policy(self.encoder(observations))
        indices = discrete.only_legal(self.scaling, logits, observations).argmax(-1)
        return discrete.actions_from_indices(self.scaling, indices)


def _data_values(critics: nn.ModuleList, features: Tensor, actions: Tensor) -> Tensor:
    """Return what each critic says of the data's actions, `[critics, batch]`."""
    return discrete.chosen_values(torch.stack([critic(features) for critic in critics]), actions)
