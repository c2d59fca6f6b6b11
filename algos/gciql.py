"""Goal-conditioned implicit Q-learning: IQL that is told the goal, with a policy of high values.

    L_V   = E[ |tau - 1(A < 0)| A^2 ],  A = min_i Q_target,i(s, a, g) - V(s, g)
    L_Q   = sum_i E[ ( r + discount mask V(s', g) - Q_i(s, a, g) )^2 ]
    L_pi  = -E[ Q(s, pi(s, g), g) ] / E[ |Q(s, pi(s, g), g)| ] - alpha E[ log pi(a | s, g) ]
            Q = min(Q_1, Q_2), pi(s, g) = clip(mu(s, g), -1, 1), the denominator without gradient

    r = -1 and mask = 1; where s is the goal itself r = mask = 0
    log pi(a | s, g) = -|| a - mu(s, g) ||^2 / 2 - (action dimensions / 2) log(2 pi)

OGBench's GCIQL (Park and others 2025, https://arxiv.org/abs/2410.20092, appendix C; `impls/agents/gciql.py`): the
values of IQL (Kostrikov and others 2021, https://arxiv.org/abs/2110.06169) for goals, and instead of its policy one
as TD3+BC's (Fujimoto and Gu 2021, https://arxiv.org/abs/2106.06860), which follows the critics' gradient and
imitates. Unlike GCIVL's V, its Q tells actions from chance. Goals of V and Q are states themselves, later states of
the episode (geometric distances) and random ones; those of the policy are later ones (uniform distances). The policy
is evaluated at its mean, clipped to [-1, 1].

Defaults are OGBench's; there, `cloning_weight` (alpha), `discount` and `policy_goals` differ between datasets. As in
its code, all losses come from the networks before the step, and the targets move towards the critics as they are
before the step.

What differs from OGBench's code, besides what `goal_networks.py` lists for all:
- Frames of states and goals pass the same convolutions, which only the critics' loss trains. Theirs lie on top of
  each other as channels, and each network has convolutions of its own.
- Missing: IQL's policy (used there for discrete actions only), networks without layer normalization, rewards of 0 and
  1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orlog.algos import goal_networks
from orlog.algos.critics import squared_errors, target_of
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend_both, parameters_of, update_target
from orlog.algos.settings import Fraction, Inside, NotNegative
from orlog.loaders.batch import GoalBatch


class GCIQLConfig(goal_networks.GoalValueSettings, frozen=True, kw_only=True):
    """Settings of goal-conditioned implicit Q-learning."""

    target_rate: Fraction = 0.005
    expectile: Inside = 0.9
    """Expectile tau of the value loss; 0.5 is the mean, 1 would be the maximum."""
    cloning_weight: NotNegative = 0.3
    """Weight alpha of the log-likelihood of the data's actions in the policy's loss."""


class GCIQL:
    """Goal-conditioned implicit Q-learning for continuous actions."""

    CONFIG = GCIQLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    GOALS = True

    loader = staticmethod(goal_networks.states_with_goals)
    act = goal_networks.act_for_goals

    def __init__(self, config: GCIQLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = goal_networks.GoalEncoder(self.scaling, config, generator)
        self.critic = goal_networks.make_goal_critic(
            self.encoder, len(scaling.action_low), config.hidden, generator=generator
        )
        self.target_critic = target_of(self.critic)
        inputs = self.encoder.width + self.encoder.goal_width
        self.value = make_network(inputs, 1, config.hidden, generator=generator, layer_norm=True, style="gelu")
        self.policy = goal_networks.make_goal_policy(
            self.encoder, len(scaling.action_low), config.hidden, generator=generator
        )
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
        value_loss = goal_networks.signed_expectile_loss(values, target_q, advantages, config.expectile)

        q_values = self.critic(pairs, actions)
        critic_loss = squared_errors(q_values, targets)

        means = goal_networks.policy_means(self.policy, fixed, policy_goals)
        own_q = self.critic(torch.cat([fixed, policy_goals], -1), means.clamp(-1, 1)).amin(0)
        log_likelihoods = goal_networks.log_likelihood(actions, means)
        policy_loss = goal_networks.value_and_cloning_loss(own_q, log_likelihoods, config.cloning_weight)

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
