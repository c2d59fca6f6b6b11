"""RLPD (Ball, Smith, Kostrikov and Levine 2023, https://arxiv.org/abs/2302.02948).

Online learning with prior data: soft actor-critic from nothing, in the environment of a dataset, with four changes:
half of each batch is data, critics have layer normalization, there are many of them, and many updates for each step.

    L_Q(theta)  = mean_i E[ ( y - Q_i(s, a) )^2 ]                          `updates` times each step
                  y = r + discount (1 - termination) ( min_(i in Z) Q_target_i(s', a')
                                                       - temperature log pi(a' | s') ),  a' ~ pi
                  Z = `smallest_of` of the critics, drawn for each update
    L_pi(phi)   = E[ temperature log pi(a | s) - mean_i Q_i(s, a) ],  a ~ pi            once each step
    L(temperature) = temperature E[ -log pi(a | s) + dim(A) / 2 ]

A batch holds `updates` smaller ones, each with its share of the data; policy and temperature step after them, on the
last. The policy is a Gaussian squashed by a tanh; it explores with samples and is evaluated at its mean. Truncations
bootstrap, terminations do not.

It is trained by `orlog train rlpd DATASET`: `steps` counts steps in the environment after the first `random_steps`,
which take uniform actions without updates. It needs the environment, and the dataset may be any with rewards.

Defaults are the authors' for locomotion (`configs/rlpd_config.py`, README of ikostrikov/rlpd): two layers of 256,
Adam at 3e-4, 10 critics, 2 for the target, 20 updates for each step, 5,000 random steps. For AntMaze they have three
layers, `smallest_of=1`, `backup_entropy=false` and rewards r - 1; for Adroit three layers and `backup_entropy=false`.

What differs from the authors' code (ikostrikov/rlpd, `rlpd/agents/sac/sac_learner.py`):
- Observations are standardized over the dataset. The authors leave them as they are.
- Actions are mapped from the bounds of the action space to [-1, 1], as the authors' wrapper does.
- Layers start as `torch.nn.Linear` does. The authors': Glorot's uniform weights, biases 0.
- The policy's deviation and mean are one layer, not two of the same input: the same function.
- Missing: pretraining on the data alone, dropout, weight decay, and residual critics.
`tests/algos/recorded` holds parameters after 100 of its updates.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos.critics import bellman_targets, target_of
from orlog.algos.encoders import Observations, encoder_of
from orlog.algos.networks import Critics, Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of, update_target
from orlog.algos.policies import act_tanh, sample_squashed
from orlog.algos.settings import ActorCritic, Count, Natural, Positive, Share
from orlog.loaders.batch import Batch

LOG_STDS = (-20.0, 2.0)  # bounds of the policy's log standard deviation


class RLPDConfig(ActorCritic, frozen=True, kw_only=True):
    """Settings of RLPD; the batch size is that of one update of the critics."""

    temperature_learning_rate: Positive = 3e-4
    """Step size of Adam for the entropy temperature."""
    updates: Count = 20
    """Updates of the critics for each step in the environment."""
    critics: Count = 10
    """Number of critics."""
    smallest_of: Count = 2
    """Critics drawn for a target, of which the smallest counts."""
    backup_entropy: bool = True
    """Whether targets hold the entropy of the next action."""
    prior: Share = 0.5
    """Share of the dataset in each batch."""
    random_steps: Natural = 5_000
    """First steps in the environment, with uniform actions and without updates."""

    def __post_init__(self) -> None:
        if self.smallest_of > self.critics:
            raise ValueError(f"smallest_of must be at most critics, found {self.smallest_of} of {self.critics}.")


class RLPD:
    """RLPD for continuous actions."""

    CONFIG = RLPDConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    ONLINE = True
    act = act_tanh

    @staticmethod
    def loader(config: RLPDConfig) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: transitions, enough for all updates of a step."""
        return "orlog.loaders.transitions:transitions", {"batch_size": config.batch_size * config.updates}

    def __init__(self, config: RLPDConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        self.generator = make_generator(seed, 1, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, action_dim, hidden = self.encoder.width, len(scaling.action_low), config.hidden
        self.critic = Critics(config.critics, width, action_dim, hidden, generator=generator, layer_norm=True)
        self.target_critic = target_of(self.critic)
        self.policy = make_network(width, 2 * action_dim, hidden, generator=generator)
        self.log_temperature = nn.Parameter(torch.zeros((), device=device))
        self.critic_optimizer = Adam(parameters_of(self.encoder, self.critic), config.critic_learning_rate)
        self.policy_optimizer = Adam(self.policy.parameters(), config.policy_learning_rate)
        self.temperature_optimizer = Adam([self.log_temperature], config.temperature_learning_rate)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take the updates of one step and return the metrics of the last (0-dimensional tensors)."""
        config, metrics = self.config, {}
        part = batch
        for index in range(config.updates):
            # Every so many rows: each part has its share of the data, which lie before the others.
            part = _rows(batch, slice(index, None, config.updates))
            metrics = self._update_critics(part)

        with torch.no_grad():  # the critics alone train the encoder
            features = self.encoder.shifted(part.observations)
        own_actions, log_densities = sample_squashed(self.policy(features), LOG_STDS, self.generator)
        temperature = self.log_temperature.exp()
        own_q = self.critic(features, own_actions).mean(0)
        policy_loss = (temperature.detach() * log_densities - own_q).mean()
        descend(self.policy_optimizer, policy_loss, only=self.policy)

        entropy = -log_densities.detach().mean()
        descend(self.temperature_optimizer, temperature * (entropy + own_actions.shape[-1] / 2))
        return {
            **metrics,
            "policy/loss": policy_loss.detach(),
            "policy/entropy": entropy,
            "policy/temperature": temperature.detach(),
        }

    def _update_critics(self, batch: Batch) -> dict[str, Tensor]:
        config = self.config
        features = self.encoder.shifted(batch.observations)
        actions = self.scaling.actions_to_unit(batch.actions)
        with torch.no_grad():
            next_features = self.encoder.shifted(batch.next_observations)
            next_actions, log_densities = sample_squashed(self.policy(next_features), LOG_STDS, self.generator)
            order = torch.randperm(config.critics, generator=self.generator, device=actions.device)
            next_values = self.target_critic(next_features, next_actions, order[: config.smallest_of]).amin(0)
            if config.backup_entropy:
                next_values -= self.log_temperature.exp() * log_densities
            targets = bellman_targets(batch.rewards, batch.terminations, next_values, config.discount)
        q_values = self.critic(features, actions)
        loss = (q_values - targets).square().mean()
        descend(self.critic_optimizer, loss)
        update_target(self.target_critic, self.critic, config.target_rate)
        return {"critic/loss": loss.detach(), "critic/mean": q_values.detach().mean()}

    @torch.no_grad()
    def explore(self, observations: Observations, generator: torch.Generator) -> Float32[Tensor, "batch act"]:
        """Return samples of the policy in the environment's unit."""
        samples, _ = sample_squashed(self.policy(self.encoder(observations)), LOG_STDS, generator)
        return self.scaling.actions_from_unit(samples)


def _rows(batch: Batch, rows: slice) -> Batch:
    return batch.map(lambda values: values[rows])
