"""ReBRAC (Tarasov and others 2023, https://arxiv.org/abs/2305.09836).

TD3+BC with the penalty on imitation in the critics' targets too, each with its own weight:

    L_Q(theta) = sum_i E[ ( y - Q_i(s, a) )^2 ]
                 y = r + discount (1 - termination) ( min_j Q_target_j(s', a')
                                                      - critic_penalty ||a' - a'_data||^2 )
                 a' = clip(pi_target(s') + clip(noise, -noise_clip, noise_clip), -1, 1)
    L_pi(phi)  = E[ policy_penalty ||pi(s) - a||^2 - lambda min_j Q_j(s, pi(s)) ]
                 lambda = 1 / mean |min_j Q_j(s, pi(s))|, without a gradient

with noise ~ N(0, target_noise^2) and squares summed over action dimensions. a'_data is the action that the data took
at s'. The critics have three hidden layers with layer normalization after each ReLU. They step first; in the first
and then in every `policy_interval`-th update the policy steps by the new critics, and all target networks move.
Truncations bootstrap, terminations do not.

Defaults are the authors' for Gym (`manifests/recorded/published/hyperparameters.json`, ReBRAC / official). They
choose both penalties for each dataset, as their preset does; 0.01 and 0.01 is the pair that most datasets have.

What differs from the authors' code (tinkoff-ai/ReBRAC, `src/algorithms/rebrac.py`, in JAX):
- All transitions are used; where the data have no next action (the last step of an episode that was cut), the target
  has no penalty. The authors read D4RL's Q-learning view, which leaves out steps at timeouts.
- Observations are standardized over the dataset by default, and actions mapped from their bounds to [-1, 1]. The
  authors leave both, and their preset leaves observations.
- Rewards stay as they are by default. The authors multiply those of AntMaze by 100, as their preset does.
- Layer normalization only in the critics, as in all of their configurations; theirs can be switched.
As in their code, the target policy moves towards the policy as it was before its step, layers start as in EDAC
(hidden biases 0.1, last layers within 3e-3 in critics and 1e-3 in the policy), and the variance of a layer's units
has 1e-6 added.

CORL (`rebrac.py`) is the same code. `tests/algos/recorded` holds parameters after 100 of its updates.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from orlog.algos.critics import (
    bellman_targets,
    discounts_of,
    smoothed_actions,
    squared_errors,
    target_of,
    transitions_of,
)
from orlog.algos.encoders import encoder_of
from orlog.algos.networks import Scaling, TwinCritic, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, frozen, parameters_of, update_target
from orlog.algos.policies import act_tanh
from orlog.algos.settings import Count, NotNegative, NStepActorCritic, Positive, Widths
from orlog.loaders.batch import Batch


class ReBRACConfig(NStepActorCritic, frozen=True, kw_only=True):
    """Settings of ReBRAC; target networks move in each update of the policy."""

    hidden: Widths = (256, 256, 256)
    policy_learning_rate: Positive = 1e-3
    critic_learning_rate: Positive = 1e-3
    batch_size: Count = 1024
    policy_penalty: NotNegative = 0.01
    """Weight beta_1 of the distance to the data's action in the policy's loss."""
    critic_penalty: NotNegative = 0.01
    """Weight beta_2 of the distance to the data's next action in the targets."""
    policy_interval: Count = 2
    """Updates of the critics for each update of the policy and of the target networks."""
    target_noise: NotNegative = 0.2
    """Standard deviation of the noise on the target policy's actions, in the unit of [-1, 1]."""
    noise_clip: NotNegative = 0.5
    """Bound of that noise."""


class ReBRAC:
    """ReBRAC for continuous actions."""

    CONFIG = ReBRACConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    act = act_tanh

    @staticmethod
    def loader(config: ReBRACConfig) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: transitions with the data's next actions."""
        path, arguments = transitions_of(config)
        return path, {**arguments, "next_actions": True}

    def __init__(self, config: ReBRACConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        self.generator = make_generator(seed, 1, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, action_dim, hidden = self.encoder.width, len(scaling.action_low), config.hidden
        self.critic = TwinCritic(width, action_dim, hidden, generator=generator, last_bound=3e-3, layer_norm=True)
        self.target_critic = target_of(self.critic)
        self.policy = make_network(width, action_dim, hidden, generator=generator, last_bound=1e-3)
        self.target_policy = target_of(self.policy)
        self.critic_optimizer = Adam(parameters_of(self.encoder, self.critic), config.critic_learning_rate)
        self.policy_optimizer = Adam(self.policy.parameters(), config.policy_learning_rate)
        # Those of the last update of the policy, shown until the next one.
        self.policy_metrics = {"policy/loss": torch.zeros((), device=device)}
        self.step = 0

    def phase(self) -> bool:
        """Return what decides which operations the next update takes: whether the policy learns."""
        return self.step % self.config.policy_interval == 0

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
            distances = (next_actions - self.scaling.actions_to_unit(batch.next_actions)).square().sum(-1)
            next_q = self.target_critic(next_features, next_actions).amin(0)
            next_values = next_q - config.critic_penalty * batch.has_next_action * distances
            targets = bellman_targets(batch.rewards, batch.terminations, next_values, discounts_of(config, batch))
        q_values = self.critic(features, actions)
        critic_loss = squared_errors(q_values, targets)
        descend(self.critic_optimizer, critic_loss)

        if self.phase():
            update_target(self.target_critic, self.critic, config.target_rate)
            update_target(self.target_policy, self.policy, config.target_rate)
            predicted = torch.tanh(self.policy(fixed))
            with frozen(self.critic):
                own_q = self.critic(fixed, predicted).amin(0)
            distances = (predicted - actions).square().sum(-1)
            loss = (config.policy_penalty * distances - own_q / own_q.detach().abs().mean()).mean()
            descend(self.policy_optimizer, loss)
            self.policy_metrics["policy/loss"].copy_(loss.detach())
        self.step += 1
        return {
            "critic/loss": critic_loss.detach(),
            "critic/mean": q_values.detach().mean(),
            "policy/loss": self.policy_metrics["policy/loss"].clone(),
        }
