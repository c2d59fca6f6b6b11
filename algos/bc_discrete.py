"""Behavior cloning of discrete actions: a classifier of the dataset's actions.

    L(pi) = E_(s, a) ~ D [ -log pi(a | s) ] + log_penalty E_s [ mean_a (log pi(a | s))^2 ]

The policy is a softmax over the actions, evaluated at its most likely action. Rewards, terminations and truncations
play no part.

Defaults are d3rlpy's (takuseno/d3rlpy 2.8.1, `DiscreteBCConfig`): two hidden layers of 256, Adam at 1e-3, batches of
100, a penalty of 0.5. The penalty keeps likelihoods from 0. Fujimoto, Conti, Ghavamzadeh and Pineau 2019
(https://arxiv.org/abs/1910.01708, their code of discrete BCQ) have 0.01, on logits that are not normalized.

What differs from d3rlpy:
- Observations are standardized over the dataset by default; d3rlpy leaves them.
- All transitions of the dataset are used. d3rlpy's buffer also keeps the last step of an episode.
- Of frames, the network is the convolutions and then `hidden`; d3rlpy's has one layer of 512 there, as `hidden=[512]`
  does.
`tests/algos/recorded` holds parameters after 100 of its updates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orlog.algos.critics import transitions_of
from orlog.algos.encoders import encoder_of
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of
from orlog.algos.policies import act_likeliest, action_count, actions_to_indices, chosen_values
from orlog.algos.settings import Common, Count, NotNegative, Positive
from orlog.loaders.batch import Batch


class BCDiscreteConfig(Common, frozen=True, kw_only=True):
    """Settings of behavior cloning of discrete actions."""

    learning_rate: Positive = 1e-3
    batch_size: Count = 100
    log_penalty: NotNegative = 0.5
    """Weight of the squared logarithms of the likelihoods."""


class BCDiscrete:
    """Behavior cloning with a softmax over discrete actions."""

    CONFIG = BCDiscreteConfig
    REWARDS = False
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("discrete",)
    loader = staticmethod(transitions_of)
    act = act_likeliest

    def __init__(self, config: BCDiscreteConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        self.policy = make_network(self.encoder.width, action_count(scaling), config.hidden, generator=generator)
        self.optimizer = Adam(parameters_of(self.encoder, self.policy), config.learning_rate)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        features = self.encoder.shifted(batch.observations)
        actions = actions_to_indices(self.scaling, batch.actions)
        log_likelihoods = torch.log_softmax(self.policy(features), -1)
        penalty = self.config.log_penalty * log_likelihoods.square().mean()
        loss = penalty - chosen_values(log_likelihoods, actions).mean()
        descend(self.optimizer, loss)
        agreement = (log_likelihoods.argmax(-1) == actions).to(log_likelihoods.dtype).mean()
        return {"policy/loss": loss.detach(), "policy/agreement": agreement}
