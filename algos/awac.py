"""Advantage-weighted actor-critic (Nair and others 2020, https://arxiv.org/abs/2006.09359).

    L_Q(theta) = sum_i E[ ( r + discount (1 - termination) min_j Q_target_j(s', a') - Q_i(s, a) )^2 ]
                 a' ~ pi(. | s')
    L_pi(phi)  = -E[ min(exp(A(s, a) / temperature), max_weight) log pi(a | s) ]
                 A(s, a) = min_j Q_j(s, a) - min_j Q_j(s, a_pi),  a_pi ~ pi(. | s)

The critics step first; the policy's weights come from the new ones. The policy is a Gaussian with a standard
deviation that does not depend on the state; its samples are clipped to [-1, 1], and it is evaluated at its mean,
clipped too. Truncations bootstrap, terminations do not.

Defaults are CORL's (`manifests/recorded/published/hyperparameters.json`, AWAC / CORL). The temperature is 1, the
default of its code; its configurations for datasets have 0.1 and 1/3, as its preset does, and scale rewards.

What differs from the paper: two critics of which the smaller counts, one sample of the policy for the value, and the
upper bound of the weights, as in CORL. The paper also trains on online steps.

What differs from the authors' code (rail-berkeley/rlkit, `awac_trainer.py`, `examples/awac/mujoco`):
- Weights are exp(A / temperature) with an upper bound. The authors': a softmax over the batch times its size, of
  temperature 2 (their code's `normalize_over_batch`).
- All networks have three hidden layers of 256. The authors': four in the policy, two in the critics.
- No weight decay of the policy (theirs: 1e-4), batches of 256 (theirs: 1,024).
- The logarithm of the standard deviation is clipped to [-20, 2]. The authors': [-6, 0].
- The critics step before the weights are computed, and samples are clipped to [-1, 1], as in CORL. The authors
  compute all losses first, and leave samples.
- Missing: the pretraining of the policy by cloning, and demonstrations kept apart.

What differs from CORL (`awac.py`): the mean of evaluated actions is clipped to the bounds of the action space (its
environments do that), actions are mapped from these bounds to [-1, 1], and all transitions are used (CORL reads
D4RL's Q-learning view, without steps at timeouts). `tests/algos/recorded` holds parameters after 100 of its updates.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos.critics import bellman_targets, discounts_of, squared_errors, target_of, transitions_of
from orlog.algos.encoders import Observations, encoder_of
from orlog.algos.networks import Scaling, TwinCritic, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of, update_target
from orlog.algos.policies import gaussian_log_likelihood
from orlog.algos.settings import NStepValued, Positive, Widths
from orlog.loaders.batch import Batch


class AWACConfig(NStepValued, frozen=True, kw_only=True):
    """Settings of advantage-weighted actor-critic."""

    hidden: Widths = (256, 256, 256)
    temperature: Positive = 1.0
    """Divisor lambda of the advantage in the policy's weights; large is behavior cloning."""
    max_weight: Positive = 100.0
    """Upper bound of the policy's weights."""


class AWAC:
    """Advantage-weighted actor-critic for continuous actions."""

    CONFIG = AWACConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    loader = staticmethod(transitions_of)

    def __init__(self, config: AWACConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        self.generator = make_generator(seed, 1, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, action_dim = self.encoder.width, len(scaling.action_low)
        self.critic = TwinCritic(width, action_dim, config.hidden, generator=generator)
        self.target_critic = target_of(self.critic)
        self.policy = make_network(width, action_dim, config.hidden, generator=generator)
        self.log_std = nn.Parameter(torch.zeros(action_dim, device=device))
        self.critic_optimizer = Adam(parameters_of(self.encoder, self.critic), config.learning_rate)
        self.policy_optimizer = Adam([*self.policy.parameters(), self.log_std], config.learning_rate)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        features = self.encoder.shifted(batch.observations)
        fixed = features.detach()  # the critics alone train the encoder
        actions = self.scaling.actions_to_unit(batch.actions)

        with torch.no_grad():
            next_features = self.encoder.shifted(batch.next_observations)
            next_actions = self._sample(self.policy(next_features), self.generator)
            next_q = self.target_critic(next_features, next_actions).amin(0)
            targets = bellman_targets(batch.rewards, batch.terminations, next_q, discounts_of(config, batch))
        q_values = self.critic(features, actions)
        critic_loss = squared_errors(q_values, targets)
        descend(self.critic_optimizer, critic_loss)

        means = self.policy(fixed)
        with torch.no_grad():
            # The data's actions and the policy's pass the critics in one product.
            both = torch.cat([actions, self._sample(means, self.generator)])
            data_q, own_q = self.critic(fixed.repeat(2, 1), both).amin(0).chunk(2)
            weights = torch.exp((data_q - own_q) / config.temperature).clamp(max=config.max_weight)
        log_likelihoods = gaussian_log_likelihood(actions, means, self.log_std.clamp(-20, 2))
        policy_loss = -(weights * log_likelihoods).mean()
        descend(self.policy_optimizer, policy_loss)
        update_target(self.target_critic, self.critic, config.target_rate)
        return {
            "critic/loss": critic_loss.detach(),
            "critic/mean": q_values.detach().mean(),
            "policy/loss": policy_loss.detach(),
            "policy/weight": weights.mean(),
        }

    def _sample(self, means: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(means.shape, generator=generator, device=means.device)
        return (means + self.log_std.clamp(-20, 2).exp() * noise).clamp(-1, 1)

    @torch.no_grad()
    def act(self, observations: Observations) -> Float32[Tensor, "batch act"]:
        """Return the policy's mean actions, clipped, in the environment's unit."""
        return self.scaling.actions_from_unit(self.policy(self.encoder(observations)).clamp(-1, 1))

    @torch.no_grad()
    def explore(self, observations: Observations, generator: torch.Generator) -> Float32[Tensor, "batch act"]:
        """Return samples of the policy, clipped, in the environment's unit."""
        return self.scaling.actions_from_unit(self._sample(self.policy(self.encoder(observations)), generator))
