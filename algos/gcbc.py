"""Goal-conditioned behavior cloning: a policy that imitates how the data reached a later state.

    L(pi) = -E_(s, a) ~ D, g ~ later states of the same episode [ log pi(a | s, g) ]

    log pi(a | s, g) = -|| a - mu(s, g) ||^2 / 2 - (action dimensions / 2) log(2 pi)

Lynch and others 2019 (https://arxiv.org/abs/1903.01973) and Ghosh and others 2021
(https://arxiv.org/abs/1912.06088), in the form of OGBench (Park and others 2025,
https://arxiv.org/abs/2410.20092; `impls/agents/gcbc.py`), whose defaults these are: three hidden
layers of 512 with GELU, Adam at 3e-4, batches of 1024, later states uniformly from the rest of the
episode. The policy is evaluated at its mean, clipped to [-1, 1].

A policy can only repeat ways that some episode went from beginning to end: it does not put together
parts of several. Rewards, terminations and truncations play no part.

What differs from OGBench's code:
- States and goals are standardized over the dataset by default. There, and with the authors' preset,
  they are as they are.
- Actions are mapped from the bounds of the action space to [-1, 1]; in OGBench's environments these
  are the bounds.
- A uniform later state is uniform; there, the nearest and the farthest come half as often as others.
- In data of Gymnasium's goal environments a goal is the part achieved_goal, and a state has no part
  desired_goal (`loaders/states_and_goals.py`). OGBench's goals are whole observations, as ours are in
  other data.
- Frames of states and goals pass the same convolutions; theirs lie on top of each other as channels.
- Missing: discrete actions, goals with geometric distances, a standard deviation that is
  learned (all published settings have 1).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos.encoders import Observations
from orlog.algos.goal_networks import GoalEncoder, act_for_goals, log_likelihood, make_goal_policy, policy_means
from orlog.algos.networks import Scaling, make_generator
from orlog.algos.optimizers import Adam, descend, parameters_of
from orlog.algos.settings import Common, Count, Goals, Widths, check_goals
from orlog.loaders.batch import GoalBatch


class GCBCConfig(Common, frozen=True, kw_only=True):
    """Settings of goal-conditioned behavior cloning."""

    hidden: Widths = (512, 512, 512)
    batch_size: Count = 1024
    policy_goals: Goals = (0.0, 1.0, 0.0)
    """Probability that a goal is the state itself, a later one of its episode, or a random one."""

    def __post_init__(self) -> None:
        check_goals(policy_goals=self.policy_goals)


class GCBC:
    """Goal-conditioned behavior cloning with a Gaussian policy of fixed standard deviation."""

    CONFIG = GCBCConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    GOALS = True

    @staticmethod
    def loader(config: GCBCConfig) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: states with goals."""
        return "orlog.loaders.states_and_goals:states_and_goals", {
            "batch_size": config.batch_size,
            "policy_goals": config.policy_goals,
        }

    def __init__(self, config: GCBCConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config = config
        self.scaling = scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = GoalEncoder(self.scaling, config.encoder, config.random_shift, generator)
        self.policy = make_goal_policy(self.encoder, len(scaling.action_low), config.hidden, generator=generator)
        self.optimizer = Adam(parameters_of(self.encoder, self.policy), config.learning_rate)

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        batch = self.encoder.shifted(batch)
        states = self.encoder.states(batch.observations)
        goals = self.encoder.goals(batch.actor_goals)
        actions = self.scaling.actions_to_unit(batch.actions)
        means = policy_means(self.policy, states, goals)
        loss = -log_likelihood(actions, means).mean()
        descend(self.optimizer, loss)
        with torch.no_grad():
            error = (means - actions).square().mean()
        return {"policy/loss": loss.detach(), "policy/squared_error": error}

    def act(self, observations: Observations, goals: Observations) -> Float32[Tensor, "batch act"]:
        """Return the policy's mean actions for goals, in the environment's unit."""
        return act_for_goals(self.policy, self.encoder, self.scaling, observations, goals)
