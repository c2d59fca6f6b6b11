"""Implicit Q-learning (Kostrikov, Nair and Levine 2021, https://arxiv.org/abs/2110.06169).

    L_V(psi)   = E[ L2^tau( Q_target(s, a) - V(s) ) ]                                  (equation 5)
                 L2^tau(u) = |tau - 1(u < 0)| u^2,  Q_target the smaller of two target networks
    L_Q(theta) = E[ ( r + discount (1 - termination) V(s') - Q(s, a) )^2 ]             (equation 6)
    L_pi(phi)  = -E[ min(exp(beta (Q_target(s, a) - V(s))), 100) log pi(a | s) ]       (equation 7)

The policy is a Gaussian with a tanh mean and a standard deviation that does not depend on the state; it is evaluated
at its mean and explores with its samples, clipped to [-1, 1]. The rate of its Adam falls to 0 along a cosine over
`steps`; in fine-tuning it is constant, as the authors' is. Truncations bootstrap, terminations do not.

Defaults are those of the authors' locomotion configuration without its reward scaling
(`manifests/recorded/published/hyperparameters.json`, IQL / official); the recorded baselines hold the expected
scores.

What differs from the paper's equations, as in the authors' code: two critics of which the smaller counts, and the
upper bound of the policy's weights.

What differs from the authors' code (ikostrikov/implicit_q_learning):
- As in CORL: all three losses are computed from the networks before the step (theirs step V first, and use the new V
  in the critics' targets and in the advantages); layers start as `torch.nn.Linear` does, biases too (theirs:
  orthogonal with gain sqrt(2), biases 0); observations are standardized by default (theirs are not, nor with their
  preset); the logarithm of the standard deviation is clipped to [-20, 2] (theirs: [-5, 2]).
- Actions are mapped from the bounds of the action space to [-1, 1] and not clipped. The authors clip the data's to 1
  - 1e-5, which a Gaussian without tanh on its samples does not need.
- Rewards stay as they are by default. The authors scale them on locomotion and subtract 1 on AntMaze, as their preset
  does.
- Missing: dropout in the policy (0.1 on kitchen and adroit).

What differs from CORL (`iql.py`), apart from rewards, which it too may scale:
- The critics' losses are summed, as the authors do. CORL takes half of the sum.
- The policy is always the Gaussian, and the target rate 0.005. On hopper-medium-v2 and hopper-medium-replay-v2 CORL
  takes a deterministic policy with weighted squared errors, a target rate of 0.001 and scaled rewards.
- Temperature, expectile and target rate that CORL sets for each dataset are its preset's, not the defaults.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos import critics
from orlog.algos.encoders import Observations, encoder_of
from orlog.algos.networks import Scaling, TwinCritic, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of, set_cosine_rate, update_target
from orlog.algos.policies import act_tanh, gaussian_log_likelihood
from orlog.algos.settings import Count, Inside, NotNegative, NStepValued, Positive
from orlog.loaders.batch import Batch


class IQLConfig(NStepValued, frozen=True, kw_only=True):
    """Settings of implicit Q-learning; the learning rate is the policy's at the start."""

    expectile: Inside = 0.7
    """Expectile tau of the value loss; 0.5 is the mean, 1 would be the maximum."""
    inverse_temperature: NotNegative = 3.0
    """Factor beta of the advantage in the policy's weights; 0 is behavior cloning."""
    max_weight: Positive = 100.0
    """Upper bound of the policy's weights."""
    steps: Count | None = 1_000_000
    """Gradient steps over which the policy's learning rate falls to 0; none keeps it constant."""


class IQL:
    """Implicit Q-learning for continuous actions."""

    CONFIG = IQLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    loader = staticmethod(critics.transitions_of)
    act = act_tanh

    def __init__(self, config: IQLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, action_dim = self.encoder.width, len(scaling.action_low)
        self.critic = TwinCritic(width, action_dim, config.hidden, generator=generator)
        self.target_critic = critics.target_of(self.critic)
        self.value = make_network(width, 1, config.hidden, generator=generator)
        self.policy = make_network(width, action_dim, config.hidden, generator=generator)
        self.log_std = nn.Parameter(torch.zeros(action_dim, device=device))
        groups = (parameters_of(self.encoder, self.critic, self.value), [*self.policy.parameters(), self.log_std])
        self.optimizer = Adam([{"params": group} for group in groups], config.learning_rate)
        self.step = 0

    def set_rates(self) -> None:
        """Set the policy's learning rate for the next update."""
        set_cosine_rate(self.optimizer.param_groups[1], self.config.learning_rate, self.step, self.config.steps)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        features = self.encoder.shifted(batch.observations)
        fixed = features.detach()  # the critics alone train the encoder
        actions = self.scaling.actions_to_unit(batch.actions)

        with torch.no_grad():
            next_features = self.encoder.shifted(batch.next_observations)
            target_q = self.target_critic(fixed, actions).amin(0)
            next_values = self.value(next_features).squeeze(-1)
            targets = critics.bellman_targets(
                batch.rewards, batch.terminations, next_values, critics.discounts_of(config, batch)
            )
        values = self.value(fixed).squeeze(-1)
        advantages = target_q - values
        value_loss = critics.expectile_loss(advantages, config.expectile)
        q_values = self.critic(features, actions)
        critic_loss = critics.squared_errors(q_values, targets)
        means = torch.tanh(self.policy(fixed))
        log_likelihoods = gaussian_log_likelihood(actions, means, self.log_std.clamp(-20, 2))
        policy_loss = critics.weighted_cloning_loss(
            log_likelihoods, advantages.detach(), config.inverse_temperature, config.max_weight
        )

        # The losses share no trained parameter, so one backward pass gives the three gradients.
        self.set_rates()
        descend(self.optimizer, value_loss + critic_loss + policy_loss)
        update_target(self.target_critic, self.critic, config.target_rate)
        self.step += 1
        return {
            "value/loss": value_loss.detach(),
            "value/mean": values.detach().mean(),
            "critic/loss": critic_loss.detach(),
            "critic/mean": q_values.detach().mean(),
            "policy/loss": policy_loss.detach(),
        }

    @torch.no_grad()
    def explore(self, observations: Observations, generator: torch.Generator) -> Float32[Tensor, "batch act"]:
        """Return samples of the policy, clipped, in the environment's unit."""
        means = torch.tanh(self.policy(self.encoder(observations)))
        noise = torch.randn(means.shape, generator=generator, device=means.device)
        unit = (means + self.log_std.clamp(-20, 2).exp() * noise).clamp(-1, 1)
        return self.scaling.actions_from_unit(unit)
