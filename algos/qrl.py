"""Quasimetric RL (Wang and others 2023, https://arxiv.org/abs/2304.01203).

    d(x, y)     the fewest steps from x to y: a quasimetric of representations, below
    local     = mean max(d(s, s') - 1, 0)^2                            a step of the data is at most 1
    L(d)      = mean 100 softplus(5 - d(s, g) / 100)  +  lambda local            all else is far apart
    L(lambda) = lambda (epsilon - local),  lambda = exp(log_multiplier)
    L(T)      = mean ( d(phi(s'), z) + d(z, phi(s')) ) / 2,   z = phi(s) + T(phi(s), a)
    L(pi)     = mean q / mean |q|  -  w mean log pi(a | s, g),   q = d(phi(s) + T(phi(s), mu(s, g)), g)

g in L(d) is the state of any step of the data. Of all distances that allow the data's steps, d is the largest:
softplus raises the short ones, lambda rises while the steps cost more than epsilon. Two states that no episode joins
are as far apart as the shortest chain of steps over several episodes.

d is an interval quasimetric embedding (Wang and Isola 2022, https://arxiv.org/abs/2211.15120). phi(x) is split into
groups of 8 numbers:

    length of group k = | union over its numbers i of [ phi_i(x), max(phi_i(x), phi_i(y)) ] |
    d(x, y) = m mean_k length_k + (1 - m) max_k length_k,     m = sigmoid(mixing)

It is 0 from x to x, obeys the triangle inequality, and may differ from d(y, x). L(d) and L(T) train phi and m, L(T)
the model T too, L(lambda) the multiplier, L(pi) the policy alone; the denominator in L(pi) has no gradient. The
policy is a Gaussian of standard deviation 1 around mu, which is clipped to [-1, 1] where T sees it and when it acts.
Rewards, terminations and truncations play no part.

The form and the defaults are those of OGBench (Park and others 2025, https://arxiv.org/abs/2410.20092;
`impls/agents/qrl.py`).

What differs from OGBench's code, besides what `goal_networks.py` lists for all:
- In data of Gymnasium's goal environments a goal is the part achieved_goal, and a state has no part desired_goal
  (`loaders/goals.py`). A goal is then a place of its own in phi's space, psi(g), that a state reaches
  without a step: local has the term mean d(s, achieved_goal of s)^2 besides, and d(s, g) is the distance to the
  nearest state that achieves g. OGBench's goals are whole observations, as ours are in other data, where psi = phi.
- Frames pass the same convolutions in all networks; there, the policy has its own.
- Missing: the advantage-weighted policy, which goes with discrete actions there; metric residual networks, which no
  published setting uses.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos import goal_networks
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend_both, parameters_of
from orlog.algos.settings import Count, Goals, NotNegative, Positive
from orlog.loaders.batch import GoalBatch

_GROUP = 8  # numbers of a representation whose intervals are united


class QRLConfig(goal_networks.GoalValueSettings, frozen=True, kw_only=True):
    """Settings of quasimetric RL."""

    representation: Count = 512
    """Numbers in a representation, a multiple of 8."""
    local_cost: Positive = 0.05
    """Cost epsilon of the data's steps that the multiplier tolerates."""
    cloning_weight: NotNegative = 0.003
    """Weight w of the log-likelihood of the data's actions in the policy's loss."""
    value_goals: Goals = (0.0, 0.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.representation % _GROUP:
            raise ValueError(f"representation must be a positive multiple of {_GROUP}, found {self.representation}.")


def far_loss(distances: Float32[Tensor, " batch"]) -> Float32[Tensor, ""]:
    """Return the mean of 100 softplus(5 - d / 100): small where distances are large."""
    return 100 * nn.functional.softplus(5 - distances / 100).mean()


def local_loss(steps: Float32[Tensor, " batch"]) -> Float32[Tensor, ""]:
    """Return the mean square of what the distances over one step exceed 1 by."""
    return torch.relu(steps - 1).square().mean()


def interval_lengths(
    starts: Float32[Tensor, "batch d"], ends: Float32[Tensor, "batch d"]
) -> Float32[Tensor, "batch groups"]:
    """Return the length of the union of each group's intervals; those with end < start are empty."""
    starts, ends = (bounds.reshape(len(bounds), -1, _GROUP) for bounds in (starts, ends))
    ends = torch.where(starts < ends, ends, starts)
    starts, order = starts.sort(-1)
    # An interval adds what of it lies beyond the farthest end of those that start before it.
    covered = ends.gather(-1, order).cummax(-1).values
    before = torch.cat([starts[..., :1], covered[..., :-1]], -1)
    return (covered - torch.maximum(starts, before)).sum(-1)


class Quasimetric(nn.Module):
    """Representations of states and goals, and the distance between two representations."""

    def __init__(self, state_dim: int, goal_dim: int | None, config: QRLConfig, *, generator: torch.Generator) -> None:
        """Draw the networks; `goal_dim` is None where goals are states."""
        super().__init__()
        style: dict[str, Any] = {"generator": generator, "layer_norm": True, "style": "gelu"}
        width, hidden = config.representation, config.hidden
        self.states = make_network(state_dim, width, hidden, **style)
        self.goals = None if goal_dim is None else make_network(goal_dim, width, hidden, **style)
        self.mixing = nn.Parameter(torch.zeros((), device=generator.device))

    def of_goals(self, goals: Float32[Tensor, "batch goal"]) -> Float32[Tensor, "batch d"]:
        """Return the representations of goals."""
        representations: Tensor = (self.states if self.goals is None else self.goals)(goals)
        return representations

    def forward(self, here: Float32[Tensor, "batch d"], there: Float32[Tensor, "batch d"]) -> Float32[Tensor, " batch"]:
        """Return the distance from one representation to the other."""
        lengths = interval_lengths(here, there)
        mix = torch.sigmoid(self.mixing)
        return mix * lengths.mean(-1) + (1 - mix) * lengths.amax(-1)


class QRL:
    """Quasimetric RL for continuous actions."""

    CONFIG = QRLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    GOALS = True

    loader = staticmethod(goal_networks.states_with_goals)
    act = goal_networks.act_for_goals

    def __init__(self, config: QRLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = goal_networks.GoalEncoder(self.scaling, config, generator)
        encoder, action_dim = self.encoder, len(scaling.action_low)
        goal_dim = None if encoder.goals_are_states else encoder.goal_width
        self.distance = Quasimetric(encoder.width, goal_dim, config, generator=generator)
        width, hidden = config.representation, config.hidden
        self.model = make_network(width + action_dim, width, hidden, generator=generator, layer_norm=True, style="gelu")
        self.policy = goal_networks.make_goal_policy(encoder, action_dim, hidden, generator=generator)
        self.log_multiplier = nn.Parameter(torch.zeros((), device=device))
        trained = parameters_of(self.encoder, self.distance, self.model, self.policy)
        self.optimizer = Adam([*trained, self.log_multiplier], config.learning_rate)

    def after(self, here: Tensor, actions: Tensor) -> Tensor:
        """Return the representation that the model expects after an action."""
        change: Tensor = self.model(torch.cat([here, actions], -1))
        return here + change

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        distance, encoder = self.distance, self.encoder
        batch = encoder.shifted(batch)
        states, next_states = map(encoder.states, (batch.observations, batch.next_observations))
        fixed = states.detach()  # the distance and the model alone train the encoder
        actions = self.scaling.actions_to_unit(batch.actions)
        with torch.no_grad():
            goals = encoder.goals(batch.actor_goals)

        here, following = distance.states(torch.cat([states, next_states])).chunk(2)
        far = distance(here, distance.of_goals(encoder.goals(batch.value_goals)))
        local = local_loss(distance(here, following))
        if not encoder.goals_are_states:
            achieved = encoder.achieved(batch.observations)
            local = local + distance(here, distance.of_goals(achieved)).square().mean()
        multiplier = self.log_multiplier.exp()
        distance_loss = far_loss(far) + multiplier.detach() * local
        multiplier_loss = multiplier * (self.config.local_cost - local.detach())
        expected = self.after(here, actions)
        model_loss = (distance(following, expected) + distance(expected, following)).mean() / 2

        means = goal_networks.policy_means(self.policy, fixed, goals)
        reached = self.after(here.detach(), means.clamp(-1, 1))
        left: Tensor = distance(reached, distance.of_goals(goals))
        log_likelihoods = goal_networks.log_likelihood(actions, means)
        policy_loss = goal_networks.value_and_cloning_loss(-left, log_likelihoods, self.config.cloning_weight)

        descend_both(self.optimizer, distance_loss + multiplier_loss + model_loss, policy_loss, self.policy)
        return {
            "distance/loss": distance_loss.detach(),
            "distance/local": local.detach(),
            "distance/mean": far.detach().mean(),
            "distance/multiplier": multiplier.detach(),
            "model/loss": model_loss.detach(),
            "policy/loss": policy_loss.detach(),
            "policy/log_likelihood": log_likelihoods.detach().mean(),
        }
