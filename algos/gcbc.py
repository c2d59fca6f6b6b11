"""Goal-conditioned behavior cloning: a policy that imitates how the data reached a later state.

    L(pi) = -E_(s, a) ~ D, g ~ later states of the same episode [ log pi(a | s, g) ]

    log pi(a | s, g) = -|| a - mu(s, g) ||^2 / 2 - (action dimensions / 2) log(2 pi)

Lynch and others 2019 (https://arxiv.org/abs/1903.01973) and Ghosh and others 2021 (https://arxiv.org/abs/1912.06088),
in the form of OGBench (Park and others 2025, https://arxiv.org/abs/2410.20092; `impls/agents/gcbc.py`), whose
defaults these are: three hidden layers of 512 with GELU, Adam at 3e-4, batches of 1024, later states uniformly from
the rest of the episode. The policy is evaluated at its mean, clipped to [-1, 1].

A policy can only repeat ways that some episode went from beginning to end: it does not put together parts of several.
Rewards, terminations and truncations play no part.

What differs from OGBench's code, besides what `goal_networks.py` lists for all:
- Frames of states and goals pass the same convolutions; theirs lie on top of each other as channels.
- Missing: goals with geometric distances.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orlog.algos import goal_networks
from orlog.algos.networks import Scaling, make_generator
from orlog.algos.optimizers import Adam, descend, parameters_of
from orlog.loaders.batch import GoalBatch


class GCBCConfig(goal_networks.GoalSettings, frozen=True, kw_only=True):
    """Settings of goal-conditioned behavior cloning."""


class GCBC:
    """Goal-conditioned behavior cloning with a Gaussian policy of fixed standard deviation."""

    CONFIG = GCBCConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    GOALS = True

    loader = staticmethod(goal_networks.states_with_goals)
    act = goal_networks.act_for_goals

    def __init__(self, config: GCBCConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = goal_networks.GoalEncoder(self.scaling, config, generator)
        self.policy = goal_networks.make_goal_policy(
            self.encoder, len(scaling.action_low), config.hidden, generator=generator
        )
        self.optimizer = Adam(parameters_of(self.encoder, self.policy), config.learning_rate)

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        batch = self.encoder.shifted(batch)
        states = self.encoder.states(batch.observations)
        goals = self.encoder.goals(batch.actor_goals)
        actions = self.scaling.actions_to_unit(batch.actions)
        means = goal_networks.policy_means(self.policy, states, goals)
        loss = -goal_networks.log_likelihood(actions, means).mean()
        descend(self.optimizer, loss)
        with torch.no_grad():
            error = (means - actions).square().mean()
        return {"policy/loss": loss.detach(), "policy/squared_error": error}
