"""Conservative Q-learning for discrete actions: CQL(H) on double DQN.

Kumar, Zhou, Tucker and Levine 2020, https://arxiv.org/abs/2006.04779; van Hasselt, Guez and Silver 2015,
https://arxiv.org/abs/1509.06461.

    L(theta) = conservative_weight E[ log sum_b exp Q(s, b) - Q(s, a) ]                (equation 4)
               + E[ loss( r + discount (1 - termination) Q_target(s', b') - Q(s, a) ) ]
               b' = argmax_b Q(s', b),   square(u) = u^2 / 2,
               huber(u) = u^2 / 2 if |u| < 1, else |u| - 1 / 2

The policy takes the action of the largest value. The target network is a copy of the network, made after the first
update and then after every `target_interval` updates. Truncations bootstrap, terminations do not.

The square loss makes values means. Huber's makes them nearly medians wherever errors are far above 1: a termination
that happens less than half of the time then hardly counts, and the policy may choose it (docs/algorithms.md has
scores of both losses).

Defaults are d3rlpy's (takuseno/d3rlpy 2.8.1, `DiscreteCQLConfig`): Adam at 6.25e-5, batches of 32, a conservative
weight of 1, targets every 8,000 updates, two hidden layers of 256; but for its loss, which is Huber's. The preset
`d3rlpy` has that too.

Published settings for Atari, on stacks of four frames with the Nature convolutions, `hidden=[512]`, and rewards
clipped to [-1, 1]: the authors (aviralkumar2907/CQL, `atari/`) take a weight of 1 with a tenth of the data and of 4
with a hundredth, Adam at 5e-5 with `adam_epsilon=0.0003125`, batches of 32, and targets every 8,000 steps of which
every 4th is an update; d3rlpy (`reproductions/offline/ discrete_cql.py`) takes the same, as `target_interval=2000`.

What differs from the paper and from the authors' code for Atari:
- Values are means of the return, of which the authors learn 200 quantiles (QR-DQN).
- The next action is that of the network, its value that of the target network (double DQN).

What differs from d3rlpy:
- The loss is the square by default; `bellman_loss=huber` is d3rlpy's.
- One network of values, as its default has; d3rlpy can have several.
- Observations are standardized over the dataset by default; d3rlpy leaves them.
- All transitions of the dataset are used.
`tests/algos/recorded` holds parameters after 100 of its updates.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from orlog.algos.critics import bellman_targets, discounts_of, target_of, transitions_of
from orlog.algos.encoders import encoder_of
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of, update_target
from orlog.algos.policies import action_count, actions_from_indices, actions_to_indices, chosen_values, only_legal
from orlog.algos.settings import Common, Count, Fraction, NotNegative, Positive
from orlog.loaders.batch import Batch


class CQLDiscreteConfig(Common, frozen=True, kw_only=True):
    """Settings of conservative Q-learning for discrete actions."""

    learning_rate: Positive = 6.25e-5
    adam_epsilon: Positive = 1e-8
    """Added to the denominator of Adam, > 0."""
    batch_size: Count = 32
    discount: Fraction = 0.99
    """Weight of the next step's value, in (0, 1]."""
    n_steps: Count = 1
    """Steps whose rewards a target sums before the value of the state after them; the end of an episode stops it."""
    conservative_weight: NotNegative = 1.0
    """Factor of the conservative term, >= 0; 0 is double DQN."""
    bellman_loss: Literal["square", "huber"] = "square"
    """Loss of values: `square`, with which they are means, or d3rlpy's `huber`."""
    target_interval: Count = 8000
    """Updates between two copies into the target network."""

    RECORDED_BEFORE: ClassVar[dict[str, object]] = {"bellman_loss": "huber"}
    """What runs and baselines did whose records do not name the setting."""


class CQLDiscrete:
    """Conservative Q-learning for discrete actions."""

    CONFIG = CQLDiscreteConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("discrete",)

    loader = staticmethod(transitions_of)

    def __init__(self, config: CQLDiscreteConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        self.critic = make_network(self.encoder.width, action_count(scaling), config.hidden, generator=generator)
        self.target_encoder = target_of(self.encoder)
        self.target_critic = target_of(self.critic)
        self.optimizer = Adam(parameters_of(self.encoder, self.critic), config.learning_rate, eps=config.adam_epsilon)
        self.step = 0

    def phase(self) -> bool:
        """Return what decides which operations the next update takes: whether target networks follow."""
        return self.step % self.config.target_interval == 0

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        observations = self.encoder.shift(batch.observations)
        next_observations = self.encoder.shift(batch.next_observations)
        actions = actions_to_indices(self.scaling, batch.actions)

        with torch.no_grad():
            next_choices = self.critic(self.encoder(next_observations))
            next_actions = only_legal(self.scaling, next_choices, batch.next_observations).argmax(-1)
            next_values = chosen_values(self.target_critic(self.target_encoder(next_observations)), next_actions)
            targets = bellman_targets(batch.rewards, batch.terminations, next_values, discounts_of(config, batch))
        values = self.critic(self.encoder(observations))
        data_values = chosen_values(values, actions)
        if config.bellman_loss == "huber":
            loss_of_values = torch.nn.functional.huber_loss(data_values, targets)
        else:
            loss_of_values = (data_values - targets).square().mean() / 2
        legal_values = only_legal(self.scaling, values, batch.observations)
        gap = (torch.logsumexp(legal_values, -1) - data_values).mean()
        descend(self.optimizer, loss_of_values + config.conservative_weight * gap)

        if self.phase():
            update_target(self.target_encoder, self.encoder, 1.0)
            update_target(self.target_critic, self.critic, 1.0)
        self.step += 1
        return {
            "critic/bellman_loss": loss_of_values.detach(),
            "critic/gap": gap.detach(),
            "critic/mean": data_values.detach().mean(),
        }

    @torch.no_grad()
    def act(self, observations: Any) -> Int64[Tensor, " batch"]:
        """Return the actions of the largest values, of the legal ones where observations say which are."""
        values = self.critic(self.encoder(observations))
        indices = only_legal(self.scaling, values, observations).argmax(-1)
        return actions_from_indices(self.scaling, indices)
