"""TD3+BC (Fujimoto and Gu 2021, https://arxiv.org/abs/2106.06860).

Twin delayed DDPG whose policy is also regressed on the data's actions:

    L_Q(theta) = sum_i E[ ( r + discount (1 - termination) min_j Q_target_j(s', a') - Q_i(s, a) )^2 ]
                 a' = clip(pi_target(s') + clip(noise, -noise_clip, noise_clip), -1, 1)
    L_pi(phi)  = E[ -lambda Q_1(s, pi(s)) + ( pi(s) - a )^2 ]
                 lambda = value_weight / mean |Q_1(s, pi(s))|, without a gradient

with noise ~ N(0, target_noise^2). The critics step first; in every `policy_interval`-th update the policy then steps,
by the new critics, and all target networks move. Truncations bootstrap, terminations do not.

Defaults are the authors' (`manifests/recorded/published/hyperparameters.json`, TD3+BC / official), whose observations
are standardized over the dataset with 1e-3 added to each deviation, as here.

What differs from the paper's equations, as in the authors' code: lambda takes the policy's actions instead of the
data's, and the squared error is a mean over action dimensions instead of a sum.

What differs from the authors' code (sfujim/TD3_BC):
- Actions are mapped from the bounds of the action space to [-1, 1]; noise and errors are in that unit. The authors
  scale the policy, but not the noise, by the largest action: the same where all bounds are -1 and 1.
- All transitions are used. The authors read D4RL's Q-learning view, without steps at timeouts.
- A resumed run has its own target networks. The authors' `load` copies them from the others.
Initial weights are as theirs.

CORL (`td3_bc.py`) computes the same update; on AntMaze it subtracts 1 from rewards, as its preset does.
`tests/algos/recorded` holds parameters after 100 of its updates.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos.critics import (
    bellman_targets,
    discounts_of,
    smoothed_actions,
    squared_errors,
    target_of,
    transitions_of,
)
from orlog.algos.encoders import Observations, encoder_of
from orlog.algos.networks import Scaling, TwinCritic, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, frozen, parameters_of, update_target
from orlog.algos.policies import act_tanh
from orlog.algos.settings import Count, NotNegative, NStepActorCritic
from orlog.loaders.batch import Batch

EXPLORATION_NOISE = 0.1  # as in TD3 (Fujimoto, van Hoof and Meger 2018)


class TD3BCConfig(NStepActorCritic, frozen=True, kw_only=True):
    """Settings of TD3+BC; target networks move in each update of the policy."""

    value_weight: NotNegative = 2.5
    """Weight alpha of the normalized value against imitation; 0 is behavior cloning."""
    policy_interval: Count = 2
    """Updates of the critics for each update of the policy and of the target networks."""
    target_noise: NotNegative = 0.2
    """Standard deviation of the noise on the target policy's actions, in the unit of [-1, 1]."""
    noise_clip: NotNegative = 0.5
    """Bound of that noise."""


class TD3BC:
    """TD3+BC for continuous actions."""

    TITLE = "TD3+BC"
    CONFIG = TD3BCConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    loader = staticmethod(transitions_of)
    act = act_tanh

    def __init__(self, config: TD3BCConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        self.generator = make_generator(seed, 1, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, action_dim = self.encoder.width, len(scaling.action_low)
        self.critic = TwinCritic(width, action_dim, config.hidden, generator=generator)
        self.target_critic = target_of(self.critic)
        self.policy = make_network(width, action_dim, config.hidden, generator=generator)
        self.target_policy = target_of(self.policy)
        self.critic_optimizer = Adam(parameters_of(self.encoder, self.critic), config.critic_learning_rate)
        self.policy_optimizer = Adam(self.policy.parameters(), config.policy_learning_rate)
        # Those of the last update of the policy, shown until the next one.
        self.policy_metrics = {"policy/loss": torch.zeros((), device=device)}
        self.step = 0

    def phase(self) -> bool:
        """Return what decides which operations the next update takes: whether the policy learns."""
        return (self.step + 1) % self.config.policy_interval == 0

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        features = self.encoder.shifted(batch.observations)
        fixed = features.detach()  # the critics alone train the encoder
        actions = self.scaling.actions_to_unit(batch.actions)

        with torch.no_grad():
            noise = config.target_noise * torch.randn(actions.shape, generator=self.generator, device=actions.device)
            next_features = self.encoder.shifted(batch.next_observations)
            next_actions = smoothed_actions(torch.tanh(self.target_policy(next_features)), noise, config.noise_clip)
            next_q = self.target_critic(next_features, next_actions).amin(0)
            targets = bellman_targets(batch.rewards, batch.terminations, next_q, discounts_of(config, batch))
        q_values = self.critic(features, actions)
        critic_loss = squared_errors(q_values, targets)
        descend(self.critic_optimizer, critic_loss)

        if self.phase():
            predicted = torch.tanh(self.policy(fixed))
            with frozen(self.critic):
                own_q = self.critic.first(torch.cat([fixed, predicted], -1)).squeeze(-1)
            scale = config.value_weight / own_q.detach().abs().mean()
            loss = (predicted - actions).square().mean() - scale * own_q.mean()
            descend(self.policy_optimizer, loss)
            self.policy_metrics["policy/loss"].copy_(loss.detach())
            update_target(self.target_critic, self.critic, config.target_rate)
            update_target(self.target_policy, self.policy, config.target_rate)
        self.step += 1
        return {
            "critic/loss": critic_loss.detach(),
            "critic/mean": q_values.detach().mean(),
            "policy/loss": self.policy_metrics["policy/loss"].clone(),
        }

    @torch.no_grad()
    def explore(self, observations: Observations, generator: torch.Generator) -> Float32[Tensor, "batch act"]:
        """Return the policy's actions with Gaussian noise, clipped, in the environment's unit."""
        unit = torch.tanh(self.policy(self.encoder(observations)))
        noise = torch.randn(unit.shape, generator=generator, device=unit.device)
        return self.scaling.actions_from_unit((unit + EXPLORATION_NOISE * noise).clamp(-1, 1))
