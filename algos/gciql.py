"""Goal-conditioned implicit Q-learning: IQL that is told the goal, with a policy of high values.

    L_V   = E[ |tau - 1(A < 0)| A^2 ],  A = min_i Q_target,i(s, a, g) - V(s, g)
    L_Q   = sum_i E[ ( r + discount mask V(s', g) - Q_i(s, a, g) )^2 ]
    L_pi  = -E[ Q(s, pi(s, g), g) ] / E[ |Q(s, pi(s, g), g)| ] - alpha E[ log pi(a | s, g) ]
            Q = min(Q_1, Q_2), pi(s, g) = clip(mu(s, g), -1, 1), the denominator without gradient

    r = -1 and mask = 1; where s is the goal itself r = mask = 0
    log pi(a | s, g) = -|| a - mu(s, g) ||^2 / 2 - (action dimensions / 2) log(2 pi)

OGBench's GCIQL (Park and others 2025, https://arxiv.org/abs/2410.20092, appendix C;
`impls/agents/gciql.py`): the values of IQL (Kostrikov and others 2021,
https://arxiv.org/abs/2110.06169) for goals, and instead of its policy one as TD3+BC's (Fujimoto and
Gu 2021, https://arxiv.org/abs/2106.06860), which follows the critics' gradient and imitates. Unlike
GCIVL's V, its Q tells actions from chance. Goals of V and Q are states themselves, later states of
the episode (geometric distances) and random ones; those of the policy are later ones (uniform
distances). The policy is evaluated at its mean, clipped to [-1, 1].

Defaults are OGBench's; there, `cloning_weight` (alpha), `discount` and `policy_goals` differ between
datasets. As in its code, all losses come from the networks before the step, and the targets move
towards the critics as they are before the step.

What differs from OGBench's code:
- States and goals are standardized over the dataset by default. There, and with the authors' preset,
  they are as they are.
- Actions are mapped from the bounds of the action space to [-1, 1]; in OGBench's environments these
  are the bounds.
- A uniform later state is uniform; there, the nearest and the farthest come half as often as others.
- In data of Gymnasium's goal environments a goal is the part achieved_goal, and a state has no part
  desired_goal (`loaders/states_and_goals.py`). OGBench's goals are whole observations, as ours are in
  other data.
- Frames of states and goals pass the same convolutions, which only the critics' loss trains. Theirs lie
  on top of each other as channels, and each network has convolutions of its own.
- Missing: IQL's policy (used there for discrete actions only), discrete actions, a standard
  deviation that is learned, networks without layer normalization, rewards of 0 and 1.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos.encoders import Observations
from orlog.algos.goal_networks import (
    GoalEncoder,
    act_for_goals,
    expectile_loss,
    log_likelihood,
    make_goal_critic,
    make_goal_policy,
    policy_means,
    value_and_cloning_loss,
)
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend_both, parameters_of, update_target
from orlog.algos.settings import Count, Goals, Inside, NotNegative, Valued, Widths, check_goals
from orlog.loaders.batch import GoalBatch


class GCIQLConfig(Valued, frozen=True, kw_only=True):
    """Settings of goal-conditioned implicit Q-learning."""

    hidden: Widths = (512, 512, 512)
    batch_size: Count = 1024
    expectile: Inside = 0.9
    """Expectile tau of the value loss, in (0, 1); 0.5 is the mean, 1 would be the maximum."""
    cloning_weight: NotNegative = 0.3
    """Weight alpha of the log-likelihood of the data's actions in the policy's loss, >= 0."""
    value_goals: Goals = (0.2, 0.5, 0.3)
    """Probability that the values' goal is the state itself, a later one, or a random one."""
    policy_goals: Goals = (0.0, 1.0, 0.0)
    """Probability that the policy's goal is the state itself, a later one, or a random one."""

    def __post_init__(self) -> None:
        check_goals(value_goals=self.value_goals, policy_goals=self.policy_goals)


class GCIQL:
    """Goal-conditioned implicit Q-learning for continuous actions."""

    CONFIG = GCIQLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    GOALS = True

    @staticmethod
    def loader(config: GCIQLConfig) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: states with goals."""
        return "orlog.loaders.states_and_goals:states_and_goals", {
            "batch_size": config.batch_size,
            "value_goals": config.value_goals,
            "policy_goals": config.policy_goals,
            "discount": config.discount,
        }

    def __init__(self, config: GCIQLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config = config
        self.scaling = scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = GoalEncoder(self.scaling, config.encoder, config.random_shift, generator)
        self.critic = make_goal_critic(self.encoder, len(scaling.action_low), config.hidden, generator=generator)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        inputs = self.encoder.width + self.encoder.goal_width
        self.value = make_network(inputs, 1, config.hidden, generator=generator, layer_norm=True, style="gelu")
        self.policy = make_goal_policy(self.encoder, len(scaling.action_low), config.hidden, generator=generator)
        self.optimizer = Adam(parameters_of(self.encoder, self.critic, self.value, self.policy), config.learning_rate)

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        batch = self.encoder.shifted(batch)
        states = self.encoder.states(batch.observations)
        value_goals = self.encoder.goals(batch.value_goals)
        actions = self.scaling.actions_to_unit(batch.actions)
        pairs = torch.cat([states, value_goals], -1)
        fixed, fixed_pairs = states.detach(), pairs.detach()  # the critics alone train the encoder

        with torch.no_grad():
            next_states = self.encoder.states(batch.next_observations)
            policy_goals = self.encoder.goals(batch.actor_goals)
            target_q = self.target_critic(pairs, actions).amin(0)
            next_values = self.value(torch.cat([next_states, value_goals], -1)).squeeze(-1)
            targets = batch.rewards + config.discount * batch.masks * next_values

        values = self.value(fixed_pairs).squeeze(-1)
        advantages = target_q - values.detach()
        value_loss = expectile_loss(values, target_q, advantages, config.expectile)

        q_values = self.critic(pairs, actions)
        critic_loss = (q_values - targets).square().mean(-1).sum()

        means = policy_means(self.policy, fixed, policy_goals)
        own_q = self.critic(torch.cat([fixed, policy_goals], -1), means.clamp(-1, 1)).amin(0)
        log_likelihoods = log_likelihood(actions, means)
        policy_loss = value_and_cloning_loss(own_q, log_likelihoods, config.cloning_weight)

        update_target(self.target_critic, self.critic, config.target_rate)
        descend_both(self.optimizer, value_loss + critic_loss, policy_loss, self.policy)
        return {
            "value/loss": value_loss.detach(),
            "value/mean": values.detach().mean(),
            "critic/loss": critic_loss.detach(),
            "critic/mean": q_values.detach().mean(),
            "policy/loss": policy_loss.detach(),
            "policy/log_likelihood": log_likelihoods.detach().mean(),
        }

    def act(self, observations: Observations, goals: Observations) -> Float32[Tensor, "batch act"]:
        """Return the policy's mean actions for goals, in the environment's unit."""
        return act_for_goals(self.policy, self.encoder, self.scaling, observations, goals)
