"""Goal-conditioned implicit value learning: how near each goal is, learned from states alone.

    q_i   = r + discount mask V_target,i(s', g)               r = -1, mask = 1; at the goal r = mask = 0
    A     = min(q_1, q_2) - (V_target,1(s, g) + V_target,2(s, g)) / 2
    L_V   = sum_i E[ |tau - 1(A < 0)| (q_i - V_i(s, g))^2 ]
    L_pi  = -E[ min(exp(alpha (V(s', g) - V(s, g))), 100) log pi(a | s, g) ],  V = (V_1 + V_2) / 2

    log pi(a | s, g) = -|| a - mu(s, g) ||^2 / 2 - (action dimensions / 2) log(2 pi)

OGBench's GCIVL (Park and others 2025, https://arxiv.org/abs/2410.20092, appendix C; `impls/agents/gcivl.py`): the
value function of HIQL (Park and others 2023, https://arxiv.org/abs/2307.11949) with a policy that imitates actions by
their advantages. V(s, g) is minus the discounted number of steps from s to g. A way to g may consist of parts of
several episodes, which no episode went from end to end. Goals of V are states themselves, later states of the episode
(geometric distances) and random ones; those of the policy are later ones (uniform distances). The policy is evaluated
at its mean, clipped to [-1, 1].

With tau above 1/2, V takes a high expectile of what follows a state for the best that can follow. Where chance
decides what follows, that is too hopeful: no action can choose it.

Defaults are OGBench's; there, `inverse_temperature` (alpha), `discount` and `policy_goals` differ between datasets.
As in its code, the sign of A comes from the target networks, the policy's advantages from V as it is before the step,
and the targets move towards V as it is before the step.

What differs from OGBench's code, besides what `goal_networks.py` lists for all:
- Frames of states and goals pass the same convolutions, which only the values' loss trains. Theirs lie on top of each
  other as channels, and each network has convolutions of its own.
- Missing: networks without layer normalization, rewards of 0 and 1 (no published setting for continuous actions has
  them).
"""

from __future__ import annotations

import torch
from torch import Tensor

from orlog.algos import goal_networks
from orlog.algos.critics import target_of, weighted_cloning_loss
from orlog.algos.networks import Scaling, make_generator
from orlog.algos.optimizers import Adam, descend, parameters_of, update_target
from orlog.algos.settings import Fraction, Inside, NotNegative, Positive
from orlog.loaders.batch import GoalBatch


class GCIVLConfig(goal_networks.GoalValueSettings, frozen=True, kw_only=True):
    """Settings of goal-conditioned implicit value learning."""

    target_rate: Fraction = 0.005
    expectile: Inside = 0.9
    """Expectile tau of the value loss; 0.5 is the mean, 1 would be the maximum."""
    inverse_temperature: NotNegative = 10.0
    """Factor alpha of the advantage in the policy's weights; 0 is behavior cloning."""
    max_weight: Positive = 100.0
    """Upper bound of the policy's weights."""


class GCIVL:
    """Goal-conditioned implicit value learning for continuous actions."""

    CONFIG = GCIVLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    GOALS = True

    loader = staticmethod(goal_networks.states_with_goals)
    act = goal_networks.act_for_goals

    def __init__(self, config: GCIVLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = goal_networks.GoalEncoder(self.scaling, config, generator)
        self.value = goal_networks.make_goal_critic(self.encoder, 0, config.hidden, generator=generator)
        self.target_value = target_of(self.value)
        self.policy = goal_networks.make_goal_policy(
            self.encoder, len(scaling.action_low), config.hidden, generator=generator
        )
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
        value_loss = goal_networks.signed_expectile_loss(values, targets, signs, config.expectile)

        log_likelihoods = goal_networks.log_likelihood(
            actions, goal_networks.policy_means(self.policy, fixed, policy_goals)
        )
        policy_loss = weighted_cloning_loss(log_likelihoods, advantages, config.inverse_temperature, config.max_weight)

        update_target(self.target_value, self.value, config.target_rate)
        descend(self.optimizer, value_loss + policy_loss)
        return {
            "value/loss": value_loss.detach(),
            "value/mean": values.detach().mean(),
            "policy/loss": policy_loss.detach(),
            "policy/log_likelihood": log_likelihoods.detach().mean(),
        }
