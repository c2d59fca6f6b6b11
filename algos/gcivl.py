"""Goal-conditioned implicit value learning: how near each goal is, learned from states alone.

    q_i   = r + discount mask V_target,i(s', g)               r = -1, mask = 1; at the goal r = mask = 0
    A     = min(q_1, q_2) - (V_target,1(s, g) + V_target,2(s, g)) / 2
    L_V   = sum_i E[ |tau - 1(A < 0)| (q_i - V_i(s, g))^2 ]
    L_pi  = -E[ min(exp(alpha (V(s', g) - V(s, g))), 100) log pi(a | s, g) ],  V = (V_1 + V_2) / 2

    log pi(a | s, g) = -|| a - mu(s, g) ||^2 / 2 - (action dimensions / 2) log(2 pi)

OGBench's GCIVL (Park and others 2025, https://arxiv.org/abs/2410.20092, appendix C;
`impls/agents/gcivl.py`): the value function of HIQL (Park and others 2023,
https://arxiv.org/abs/2307.11949) with a policy that imitates actions by their advantages. V(s, g) is
minus the discounted number of steps from s to g. A way to g may consist of parts of several episodes,
which no episode went from end to end. Goals of V are states themselves, later states of the episode
(geometric distances) and random ones; those of the policy are later ones (uniform distances). The
policy is evaluated at its mean, clipped to [-1, 1].

With tau above 1/2, V takes a high expectile of what follows a state for the best that can follow.
Where chance decides what follows, that is too hopeful: no action can choose it.

Defaults are OGBench's; there, `inverse_temperature` (alpha), `discount` and `policy_goals` differ
between datasets. As in its code, the sign of A comes from the target networks, the policy's
advantages from V as it is before the step, and the targets move towards V as it is before the step.

What differs from OGBench's code:
- States and goals are standardized over the dataset by default. There, and with the authors' preset,
  they are as they are.
- Actions are mapped from the bounds of the action space to [-1, 1]; in OGBench's environments these
  are the bounds.
- A uniform later state is uniform; there, the nearest and the farthest come half as often as others.
- In data of Gymnasium's goal environments a goal is the part achieved_goal, and a state has no part
  desired_goal (`loaders/states_and_goals.py`). OGBench's goals are whole observations, as ours are in
  other data.
- Frames of states and goals pass the same convolutions, which only the values' loss trains. Theirs lie
  on top of each other as channels, and each network has convolutions of its own.
- Missing: discrete actions, a standard deviation that is learned, networks without layer
  normalization, rewards of 0 and 1 (no published setting for continuous actions has the last three).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos import iql
from orlog.algos.encoders import Observations
from orlog.algos.goal_networks import (
    GoalEncoder,
    act_for_goals,
    expectile_loss,
    log_likelihood,
    make_goal_critic,
    make_goal_policy,
    policy_means,
)
from orlog.algos.networks import Scaling, make_generator
from orlog.algos.optimizers import Adam, descend, parameters_of, update_target
from orlog.algos.settings import Count, Goals, Inside, NotNegative, Positive, Valued, Widths, check_goals
from orlog.loaders.batch import GoalBatch


class GCIVLConfig(Valued, frozen=True, kw_only=True):
    """Settings of goal-conditioned implicit value learning."""

    hidden: Widths = (512, 512, 512)
    batch_size: Count = 1024
    expectile: Inside = 0.9
    """Expectile tau of the value loss, in (0, 1); 0.5 is the mean, 1 would be the maximum."""
    inverse_temperature: NotNegative = 10.0
    """Factor alpha of the advantage in the policy's weights, >= 0; 0 is behavior cloning."""
    max_weight: Positive = 100.0
    """Upper bound of the policy's weights."""
    value_goals: Goals = (0.2, 0.5, 0.3)
    """Probability that the values' goal is the state itself, a later one, or a random one."""
    policy_goals: Goals = (0.0, 1.0, 0.0)
    """Probability that the policy's goal is the state itself, a later one, or a random one."""

    def __post_init__(self) -> None:
        check_goals(value_goals=self.value_goals, policy_goals=self.policy_goals)


class GCIVL:
    """Goal-conditioned implicit value learning for continuous actions."""

    CONFIG = GCIVLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    GOALS = True

    @staticmethod
    def loader(config: GCIVLConfig) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: states with goals."""
        return "orlog.loaders.states_and_goals:states_and_goals", {
            "batch_size": config.batch_size,
            "value_goals": config.value_goals,
            "policy_goals": config.policy_goals,
            "discount": config.discount,
        }

    def __init__(self, config: GCIVLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config = config
        self.scaling = scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = GoalEncoder(self.scaling, config.encoder, config.random_shift, generator)
        self.value = make_goal_critic(self.encoder, 0, config.hidden, generator=generator)
        self.target_value = copy.deepcopy(self.value).requires_grad_(False)
        self.policy = make_goal_policy(self.encoder, len(scaling.action_low), config.hidden, generator=generator)
        self.optimizer = Adam(parameters_of(self.encoder, self.value, self.policy), config.learning_rate)

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        batch = self.encoder.shifted(batch)
        states = self.encoder.states(batch.observations)
        value_goals = self.encoder.goals(batch.value_goals)
        fixed = states.detach()  # the values alone train the encoder
        actions = self.scaling.actions_to_unit(batch.actions)

        with torch.no_grad():
            next_states = self.encoder.states(batch.next_observations)
            policy_goals = self.encoder.goals(batch.actor_goals)
            next_values = self.target_value(next_states, value_goals)
            targets = batch.rewards + config.discount * batch.masks * next_values
            signs = targets.amin(0) - self.target_value(states, value_goals).mean(0)
            ahead = self.value(next_states, policy_goals).mean(0)
            advantages = ahead - self.value(states, policy_goals).mean(0)

        values = self.value(states, value_goals)
        value_loss = expectile_loss(values, targets, signs, config.expectile)

        log_likelihoods = log_likelihood(actions, policy_means(self.policy, fixed, policy_goals))
        policy_loss = iql.policy_loss(log_likelihoods, advantages, config.inverse_temperature, config.max_weight)

        update_target(self.target_value, self.value, config.target_rate)
        descend(self.optimizer, value_loss + policy_loss)
        return {
            "value/loss": value_loss.detach(),
            "value/mean": values.detach().mean(),
            "policy/loss": policy_loss.detach(),
            "policy/log_likelihood": log_likelihoods.detach().mean(),
        }

    def act(self, observations: Observations, goals: Observations) -> Float32[Tensor, "batch act"]:
        """Return the policy's mean actions for goals, in the environment's unit."""
        return act_for_goals(self.policy, self.encoder, self.scaling, observations, goals)
