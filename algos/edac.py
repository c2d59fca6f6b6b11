"""EDAC, and SAC-N (An, Moon, Kim and Song 2021, https://arxiv.org/abs/2110.01548).

Soft actor-critic with many critics, of which the smallest counts. EDAC also keeps their gradients with respect to the
action apart, so that fewer are enough; `diversity=0` is SAC-N.

    L_Q(theta)  = sum_i E[ ( y - Q_i(s, a) )^2 ]
                  + diversity / (N - 1) E[ sum_(i != j) < g_i, g_j > ]
                  y   = r + discount (1 - termination) ( min_i Q_target_i(s', a')
                                                         - temperature log pi(a' | s') ),  a' ~ pi
                  g_i = grad_a Q_i(s, a) / || grad_a Q_i(s, a) ||
    L_pi(phi)   = E[ temperature log pi(a | s) - min_i Q_i(s, a) ],  a ~ pi
    L(log temperature) = -log temperature E[ log pi(a | s) - dim(A) ]

Temperature, policy and critics step in this order, each by what stepped before it. The policy is a Gaussian squashed
by a tanh, evaluated at its mean. Truncations bootstrap, terminations do not.

Defaults are the authors' (`manifests/recorded/published/hyperparameters.json`, EDAC / CORL, whose common settings
they are). Critics and diversity differ by dataset, as CORL's preset does; its other preset, `sac-n`, has diversity 0
and up to 500 critics. They train for 3 million steps, as the presets do.

Cost: an update passes all critics five times, of which the diversity's gradient of a gradient takes about two.

What differs from the authors' code (snu-mllab/EDAC, `lifelong_rl/trainers/q_learning/sac.py`):
- Temperature, policy and critics step one after another, as in CORL. The authors compute all losses first.
- The tanh's Jacobian is exact. The authors and CORL add 1e-6 to 1 - tanh^2.
- Observations are standardized over the dataset by default. The authors leave them, and so do the presets.
- Actions are mapped from the bounds of the action space to [-1, 1] and clipped nowhere.
- Missing: the backup of the largest of 10 actions (`max_q_backup`), a fixed temperature, backups without entropy
  (`deterministic_backup`), and rewards shifted and scaled to mean 0 and deviation 1, which they use for some of
  Adroit's datasets.
As theirs, the log standard deviation is clipped to [-5, 2], hidden biases start at 0.1, and last layers within 3e-3
(critics) and 1e-3 (policy).

CORL (`edac.py`, `sac_n.py`) computes the same update, but draws another sample for the temperature.
`tests/algos/recorded` holds parameters after 100 of its updates; without its 1e-6 in the Jacobian, ours differ from
them by 2e-14.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float32
from msgspec import Meta
from torch import Tensor, nn

from orlog.algos.critics import (
    bellman_targets,
    discounts_of,
    squared_errors,
    target_of,
    temperature_loss,
    transitions_of,
)
from orlog.algos.encoders import encoder_of
from orlog.algos.networks import Critics, Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of, update_target
from orlog.algos.policies import act_tanh, sample_squashed
from orlog.algos.settings import NotNegative, NStepActorCritic, Positive, Widths
from orlog.loaders.batch import Batch

LOG_STDS = (-5.0, 2.0)  # bounds of the policy's log standard deviation


class EDACConfig(NStepActorCritic, frozen=True, kw_only=True):
    """Settings of EDAC and SAC-N."""

    hidden: Widths = (256, 256, 256)
    temperature_learning_rate: Positive = 3e-4
    """Step size of Adam for the entropy temperature."""
    critics: Annotated[int, Meta(ge=2)] = 10
    """Number N of critics."""
    diversity: NotNegative = 1.0
    """Weight eta of the similarity of the critics' gradients; 0 is SAC-N."""


def similarity(gradients: Float32[Tensor, "critics batch act"]) -> Float32[Tensor, ""]:
    """Return the sum of <g_i, g_j> over all i != j, divided by N - 1, averaged over the batch."""
    directions = gradients / (gradients.norm(dim=-1, keepdim=True) + 1e-10)
    # sum_(i != j) <g_i, g_j> = ||sum_i g_i||^2 - sum_i ||g_i||^2, without all pairs
    pairs: Tensor = directions.sum(0).square().sum(-1) - directions.square().sum((0, 2))
    return pairs.mean() / (len(gradients) - 1)


class EDAC:
    """EDAC for continuous actions."""

    CONFIG = EDACConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    loader = staticmethod(transitions_of)
    act = act_tanh

    def __init__(self, config: EDACConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        self.generator = make_generator(seed, 1, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, action_dim, hidden = self.encoder.width, len(scaling.action_low), config.hidden
        self.critic = Critics(config.critics, width, action_dim, hidden, generator=generator, last_bound=3e-3)
        self.target_critic = target_of(self.critic)
        self.policy = make_network(width, 2 * action_dim, hidden, generator=generator, last_bound=1e-3)
        self.log_temperature = nn.Parameter(torch.zeros((), device=device))
        self.critic_optimizer = Adam(parameters_of(self.encoder, self.critic), config.critic_learning_rate)
        self.policy_optimizer = Adam(self.policy.parameters(), config.policy_learning_rate)
        self.temperature_optimizer = Adam([self.log_temperature], config.temperature_learning_rate)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        features = self.encoder.shifted(batch.observations)
        fixed = features.detach()  # the critics alone train the encoder
        actions = self.scaling.actions_to_unit(batch.actions)

        own_actions, log_densities = sample_squashed(self.policy(fixed), LOG_STDS, self.generator)
        descend(self.temperature_optimizer, temperature_loss(self.log_temperature, log_densities, -actions.shape[-1]))
        temperature = self.log_temperature.detach().exp()

        own_q = self.critic(fixed, own_actions).amin(0)
        policy_loss = (temperature * log_densities - own_q).mean()
        descend(self.policy_optimizer, policy_loss, only=self.policy)

        with torch.no_grad():
            next_features = self.encoder.shifted(batch.next_observations)
            next_actions, next_log_densities = sample_squashed(self.policy(next_features), LOG_STDS, self.generator)
            next_q = self.target_critic(next_features, next_actions).amin(0)
            next_values = next_q - temperature * next_log_densities
            targets = bellman_targets(batch.rewards, batch.terminations, next_values, discounts_of(config, batch))
        if config.diversity > 0:
            # Each critic gets the actions as a tensor of its own, so that it has its own gradient.
            each = actions.repeat(config.critics, 1, 1).requires_grad_(True)
            q_values = self.critic(features, each)
            (gradients,) = torch.autograd.grad(q_values.sum(), each, create_graph=True)
            similar = similarity(gradients)
        else:
            q_values, similar = self.critic(features, actions), torch.zeros_like(temperature)
        bellman_loss = squared_errors(q_values, targets)
        descend(self.critic_optimizer, bellman_loss + config.diversity * similar)
        update_target(self.target_critic, self.critic, config.target_rate)
        return {
            "critic/bellman_loss": bellman_loss.detach(),
            "critic/mean": q_values.detach().mean(),
            "critic/deviation": q_values.detach().std(0).mean(),
            "critic/similarity": similar.detach(),
            "policy/loss": policy_loss.detach(),
            "policy/entropy": -log_densities.detach().mean(),
            "policy/temperature": temperature,
        }
