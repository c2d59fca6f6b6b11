"""CQL with a Lagrange multiplier on costs: conservative values of rewards and of costs, one weighed by a limit.

    l          = cost_limit (1 - discount^T) / (1 - discount) / T                the limit as a discounted cost
    L_Q        = as in CQL(H) (Kumar and others 2020, https://arxiv.org/abs/2006.04779; `cql`)
    L_C        = the same of -C, whose rewards are -c: costs of actions that the data do not have are raised
    L_pi(phi)  = E_s[ temperature log pi(a | s) - min(Q_1, Q_2)(s, a) + lambda max(C_1, C_2)(s, a) ],   a ~ pi
    lambda     = max(0, P e + I sum of e + D growth of e),  e = E[ max(C_1, C_2)(s, a) ] - l

There is no paper of this one: it is CQL with the cost critics and the controller of the multiplier that OSRL gives to
BCQ and BEAR (BCQ-Lag, BEAR-Lag; `osrl/algorithms/bcql.py`), after Stooke and others (2020,
https://arxiv.org/abs/2007.03964). Costs are the info `cost` of the dataset's steps, or the column with that role. T,
the length of an episode, is the mean of the data unless `episode_length` is set. Truncations bootstrap, terminations
do not.

Defaults are those of `cql` and, of the controller, OSRL's for BCQ-Lag (`manifests/recorded/published/
hyperparameters.json`, safe / BCQ-Lag).

What differs from `cql`, apart from costs: there is no target gap, and the policy imitates the data in its first
`cloning_steps` without regard to costs.

What differs from OSRL's BCQ-Lag (liuzuxin/OSRL at 03a4586, `osrl/algorithms/bcql.py`), whose controller this is:
- The error is that of the policy's own action in the batch, of the larger cost critic. OSRL takes the smaller.
- The sum of errors begins when the policy no longer imitates; OSRL has no such steps. While it imitates, the
  multiplier moves nothing: by the defaults an error of 1 would bring it to 120 in 40,000 steps, before it acts at
  all.
- Nothing follows a termination, of costs either. OSRL bootstraps costs at terminations.
- All losses are computed from the networks before the step; OSRL steps one network after another.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos import critics
from orlog.algos.encoders import encoder_of
from orlog.algos.networks import Scaling, TwinCritic, make_generator, make_network
from orlog.algos.optimizers import descend, frozen, parameters_of, update_target
from orlog.algos.policies import act_tanh, squashed_log_density
from orlog.algos.settings import ActorCritic, Count, Natural, NotNegative, Positive, Widths
from orlog.loaders.batch import Batch


class CQLLagrangianConfig(ActorCritic, frozen=True, kw_only=True):
    """Settings of CQL with a Lagrange multiplier on costs; the policy's rate is the temperature's too."""

    cost_limit: NotNegative = 10.0
    """Cost that an episode may have on average."""
    hidden: Widths = (256, 256, 256)
    policy_learning_rate: Positive = 1e-4
    conservative_weight: NotNegative = 5.0
    """Factor of the conservative term of rewards."""
    cost_weight: NotNegative = 5.0
    """Factor of the conservative term of costs."""
    sampled_actions: Count = 10
    """Actions drawn per state from each of the three proposals."""
    cloning_steps: Natural = 40_000
    """First steps in which the policy imitates the data instead of following the critics."""
    controller: tuple[NotNegative, NotNegative, NotNegative] = (0.1, 0.003, 0.001)
    """Gains of the multiplier: of the error, of its sum over steps, and of its growth."""
    episode_length: Positive | None = None
    """Steps of an episode, over which the limit is spread; by default the mean of the data."""


class Controller(nn.Module):
    """The multiplier of costs: it grows while costs are above the limit, and falls while they are below it."""

    def __init__(self, device: torch.device | str) -> None:
        super().__init__()
        self.total, self.last = (nn.Parameter(torch.zeros((), device=device), requires_grad=False) for _ in range(2))

    @torch.no_grad()
    def multiplier(self, error: Float32[Tensor, ""], gains: tuple[float, float, float]) -> Float32[Tensor, ""]:
        """Take in the error of a step, and return the multiplier."""
        proportional, integral, derivative = gains
        growth = (error - self.last).clamp(min=0)
        self.total.add_(error).clamp_(min=0)
        self.last.copy_(error)
        now = proportional * error.clamp(min=0) + integral * self.total + derivative * growth
        return now.clamp(min=0)


class CQLLagrangian:
    """CQL with a Lagrange multiplier on costs, for continuous actions."""

    TITLE = "CQL-Lag"
    CONFIG = CQLLagrangianConfig
    FROM_DATA = ("episode_length",)
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    CONSTANTS = ("config", "scaling", "limit")
    loader = staticmethod(critics.transitions_with_costs)
    act = act_tanh

    def __init__(self, config: CQLLagrangianConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling, self.limit = config, scaling.to(device), critics.discounted_limit(config)
        self.generator = make_generator(seed, 1, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, action_dim = self.encoder.width, len(scaling.action_low)
        self.critic, self.cost_critic = (
            TwinCritic(width, action_dim, config.hidden, generator=generator) for _ in range(2)
        )
        self.target_critic, self.target_cost_critic = (
            critics.target_of(self.critic),
            critics.target_of(self.cost_critic),
        )
        self.policy = make_network(width, 2 * action_dim, config.hidden, generator=generator)
        self.log_temperature = nn.Parameter(torch.zeros((), device=device))
        self.controller = Controller(device)
        trained = parameters_of(self.encoder, self.critic, self.cost_critic)
        policy = [*self.policy.parameters(), self.log_temperature]
        self.optimizer = critics.critics_and_policy_optimizer(config, trained, policy)
        self.step = 0

    def phase(self) -> bool:
        """Return what decides which operations the next update takes: whether the policy still clones."""
        return self.step < self.config.cloning_steps

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config, samples = self.config, self.config.sampled_actions
        features = self.encoder.shifted(batch.observations)
        fixed = features.detach()  # the critics alone train the encoder
        actions = self.scaling.actions_to_unit(batch.actions)

        gaussian = critics.gaussian_of(self.policy(fixed))
        with torch.no_grad():
            next_features = self.encoder.shifted(batch.next_observations)
            next_gaussian = critics.gaussian_of(self.policy(next_features))
            proposals, log_densities = critics.draw_proposals(gaussian, next_gaussian, samples, self.generator)
            next_action = proposals[2 * samples]  # the first of pi(. | s')
            next_q = self.target_critic(next_features, next_action).amin(0)
            next_cost = self.target_cost_critic(next_features, next_action).amax(0)
            targets = critics.bellman_targets(batch.rewards, batch.terminations, next_q, config.discount)
            cost_targets = critics.bellman_targets(
                critics.costs_of(batch), batch.terminations, next_cost, config.discount
            )

        # The data's actions and the proposals pass the critics in one product.
        judged = torch.cat([actions[None], proposals])
        q_all, cost_all = (critics.values_of(critic, features, judged) for critic in (self.critic, self.cost_critic))
        bellman_loss, cost_loss = (
            critics.squared_errors(q_all[:, 0], targets),
            critics.squared_errors(cost_all[:, 0], cost_targets),
        )
        gaps, cost_gaps = (
            critics.conservative_gaps(values[:, 1:].transpose(1, 2), log_densities.T, values[:, 0])
            for values in (q_all, -cost_all)
        )
        critic_loss = bellman_loss + config.conservative_weight * gaps.sum()
        critic_loss = critic_loss + cost_loss + config.cost_weight * cost_gaps.sum()

        # The policy's own action is a fresh sample with a gradient, judged by frozen critics.
        own_actions, own_log_densities = critics.draw_actions(*gaussian, 1, self.generator)
        temperature = self.log_temperature.exp()
        with frozen(self.critic), frozen(self.cost_critic):
            own_q = self.critic(fixed, own_actions[0]).amin(0)
            own_cost = self.cost_critic(fixed, own_actions[0]).amax(0)
        multiplier = self.controller.multiplier(own_cost.detach().mean() - self.limit, config.controller)
        if self.phase():
            self.controller.total.zero_()  # the errors of a policy that it does not move
            worth = squashed_log_density(actions, *gaussian)
        else:
            worth = own_q - multiplier * own_cost
        policy_loss = (temperature.detach() * own_log_densities[0] - worth).mean()
        entropy_loss = critics.temperature_loss(self.log_temperature, own_log_densities, -actions.shape[-1])

        descend(self.optimizer, critic_loss + policy_loss + entropy_loss)
        update_target(self.target_critic, self.critic, config.target_rate)
        update_target(self.target_cost_critic, self.cost_critic, config.target_rate)
        self.step += 1
        return {
            "critic/bellman_loss": bellman_loss.detach(),
            "critic/gap": gaps.detach().mean(),
            "critic/mean": q_all[:, 0].detach().mean(),
            "cost/bellman_loss": cost_loss.detach(),
            "cost/gap": cost_gaps.detach().mean(),
            "cost/mean": cost_all[:, 0].detach().mean(),
            "cost/own": own_cost.detach().mean(),
            "cost/multiplier": multiplier,
            "policy/loss": policy_loss.detach(),
            "policy/entropy": -own_log_densities.detach().mean(),
            "policy/temperature": temperature.detach(),
        }
