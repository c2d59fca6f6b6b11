"""Implicit Q-learning for discrete actions (Kostrikov, Nair and Levine 2021, https://arxiv.org/abs/2110.06169).

The equations are those of `iql.py`. Networks give the values of all actions at once, of which the data's counts. The
policy is a softmax over the actions, evaluated at its most likely action. The rate of its Adam falls to 0 along a
cosine over `steps`. Truncations bootstrap, terminations do not.

The paper and the authors' code have continuous actions only, so there are no settings of theirs for Atari or any
other discrete task. Defaults are those of `iql.py`. OGBench (Park et al. 2024, https://arxiv.org/abs/2410.20092) has
discrete IQL with goals, whose settings for its pixel task Powderworld are an inverse temperature of 3, an expectile
of 0.9 and batches of 256, with IMPALA convolutions of one residual block.

What differs from the paper's equations, as in the authors' code: two critics of which the smaller counts, and the
upper bound of the policy's weights. As in `iql.py`, all losses are computed from the networks before the step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from orlog.algos import critics
from orlog.algos.encoders import encoder_of
from orlog.algos.iql import IQLConfig
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of, set_cosine_rate, update_target
from orlog.algos.policies import act_likeliest, action_count, actions_to_indices, chosen_values
from orlog.algos.settings import Count
from orlog.loaders.batch import Batch


class IQLDiscreteConfig(IQLConfig, frozen=True, kw_only=True):
    """Settings of implicit Q-learning for discrete actions."""

    steps: Count = 1_000_000
    """Gradient steps over which the policy's learning rate falls to 0."""


class IQLDiscrete:
    """Implicit Q-learning for discrete actions."""

    CONFIG = IQLDiscreteConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("discrete",)
    loader = staticmethod(critics.transitions_of)
    act = act_likeliest

    def __init__(self, config: IQLDiscreteConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)

        def network(outputs: int) -> nn.Sequential:
            return make_network(self.encoder.width, outputs, config.hidden, generator=generator)

        count = action_count(scaling)
        self.critics = nn.ModuleList([network(count), network(count)])
        self.target_critics = critics.target_of(self.critics)
        self.value, self.policy = network(1), network(count)
        groups = (parameters_of(self.encoder, self.critics, self.value), list(self.policy.parameters()))
        self.optimizer = Adam([{"params": group} for group in groups], config.learning_rate)
        self.step = 0

    def set_rates(self) -> None:
        """Set the policy's learning rate for the next update."""
        set_cosine_rate(self.optimizer.param_groups[1], self.config.learning_rate, self.step, self.config.steps)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        actions = actions_to_indices(self.scaling, batch.actions)
        features = self.encoder.shifted(batch.observations)
        fixed = features.detach()

        def data_values(critics: nn.ModuleList, seen: Tensor) -> Tensor:
            return chosen_values(torch.stack([critic(seen) for critic in critics]), actions)

        with torch.no_grad():
            next_features = self.encoder.shifted(batch.next_observations)
            target_q = data_values(self.target_critics, fixed).amin(0)
            next_values = self.value(next_features).squeeze(-1)
            targets = critics.bellman_targets(
                batch.rewards, batch.terminations, next_values, critics.discounts_of(config, batch)
            )
        values = self.value(fixed).squeeze(-1)
        advantages = target_q - values
        value_loss = critics.expectile_loss(advantages, config.expectile)
        q_values = data_values(self.critics, features)
        critic_loss = critics.squared_errors(q_values, targets)
        log_likelihoods = chosen_values(torch.log_softmax(self.policy(fixed), -1), actions)
        policy_loss = critics.weighted_cloning_loss(
            log_likelihoods, advantages.detach(), config.inverse_temperature, config.max_weight
        )

        # The losses share no trained parameter, so one backward pass gives the three gradients.
        self.set_rates()
        descend(self.optimizer, value_loss + critic_loss + policy_loss)
        update_target(self.target_critics, self.critics, config.target_rate)
        self.step += 1
        return {
            "value/loss": value_loss.detach(),
            "value/mean": values.detach().mean(),
            "critic/loss": critic_loss.detach(),
            "critic/mean": q_values.detach().mean(),
            "policy/loss": policy_loss.detach(),
        }
