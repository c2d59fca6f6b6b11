"""Value iteration on the counts of the data: the yardstick where states and actions are numbered.

The data's transitions are taken for the world (certainty equivalence), and each update is one sweep over all of its
states, Bellman's:

    Q(s, a)  <-  r(s, a) + discount sum over s' of P(s' | s, a) V(s')  -  lower_bound / sqrt(n(s, a))
    V(s)      =  max of Q(s, a) over the actions with n(s, a) >= least_count

where n are counts, P(s' | s, a) = n(s, a, s') / n(s, a), r is the mean reward, and nothing follows a termination. The
policy takes the action of the largest Q(s, a) among those. With `lower_bound` 0, the default, this is value iteration
(Bellman 1957; Sutton and Barto 2018, section 4.4). Above 0 it is VI-LCB of Rashidinejad and others 2021,
https://arxiv.org/abs/2103.12021, which is pessimistic where the data are few.

What differs from VI-LCB: the penalty's factor is a setting in place of the theorem's (a bound on values times a
logarithm); all sweeps use all of the data, which the paper splits; values are not clipped to be >= 0, since rewards
may be negative; and actions that the data do not have are left out, which the paper values at 0.

A state that the data end in without a termination, and never act in, has the least value that the data's rewards
allow: lowest reward / (1 - discount) if that is negative, else 0. There the policy takes the first action.

`steps` are sweeps, of which a discount of 0.99 needs some hundreds: after each, errors are at most the discount times
as large. There is no randomness, so all seeds are alike.
"""

from __future__ import annotations

import msgspec
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from orlog.algos.encoders import make_encoder
from orlog.algos.networks import Linear, Scaling, make_generator
from orlog.algos.policies import action_count, actions_from_indices, actions_to_indices
from orlog.algos.settings import Count, Inside, NotNegative
from orlog.loaders.batch import CountBatch

_NEVER = -torch.inf


class ValueIterationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of value iteration on counts."""

    discount: Inside = 0.99
    """Weight of the next step's value, in (0, 1)."""
    lower_bound: NotNegative = 0.0
    """Factor of 1 / sqrt(count), which is taken from values, >= 0."""
    least_count: Count = 1
    """Steps of an action in a state from which on it may be chosen there."""


def best_values(
    q_values: Float[Tensor, "states actions"],
    may_choose: Bool[Tensor, "states actions"],
    unknown: Float[Tensor, ""] | float,
) -> Float[Tensor, " states"]:
    """Return the largest value of each state's actions that may be chosen; `unknown` where there are none."""
    best = torch.where(may_choose, q_values, _NEVER).amax(1)
    return torch.where(may_choose.any(1), best, unknown)


def swept(
    values: Float[Tensor, " states"],
    pairs: Int64[Tensor, " rows"],
    next_states: Int64[Tensor, " rows"],
    batch: CountBatch,
    counts: Float[Tensor, " pairs"],
    discount: float,
) -> Float[Tensor, " pairs"]:
    """Return r(s, a) + discount * sum over s' of P(s' | s, a) V(s') of each pair; 0 of those without a step."""
    targets = batch.rewards + discount * (1 - batch.terminations) * values[next_states]
    sums = torch.zeros_like(counts).index_add_(0, pairs, batch.counts * targets)
    return sums / counts.clamp(min=1e-12)


class ValueIteration:
    """Value iteration on counts; `critic` holds Q(s, a) as the weights of one-hot states."""

    TITLE = "Value iteration"
    CONFIG = ValueIterationConfig
    REPLAYS = False
    OBSERVATIONS = ("numbered",)
    ACTIONS = ("discrete",)
    CONSTANTS = ("config", "scaling", "encoder")

    @staticmethod
    def loader(_config: ValueIterationConfig) -> tuple[str, dict[str, int]]:
        """Return the loader of its batches: all transitions with their counts."""
        return "orlog.loaders.counts:transition_counts", {}

    def __init__(self, config: ValueIterationConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        self.encoder = make_encoder(self.scaling, generator=make_generator(seed, 0, device))
        actions = action_count(scaling)
        self.critic = nn.Sequential(Linear(self.encoder.width, actions, bias=False, device=device))
        self.critic.requires_grad_(False)
        nn.init.zeros_(self.q_values)
        self.counts = torch.zeros(self.encoder.width, actions, device=device)

    @property
    def q_values(self) -> Float[Tensor, "actions states"]:
        """Q(s, a), a row for each action."""
        weight: Tensor = self.critic[0].weight  # type: ignore[assignment]
        return weight

    @torch.no_grad()
    def update(self, batch: CountBatch) -> dict[str, Tensor]:
        """Sweep once over all states and return metrics (0-dimensional tensors)."""
        config, (states, actions) = self.config, self.counts.shape
        first = int(self.scaling.observation_space.start)  # type: ignore[union-attr]
        indices = actions_to_indices(self.scaling, batch.actions)
        pairs = (batch.observations - first) * actions + indices
        counts = self.counts.new_zeros(states * actions).index_add_(0, pairs, batch.counts)
        self.counts = counts.view(states, actions)

        lowest = batch.rewards.min().clamp(max=0) / (1 - config.discount)
        values = best_values(self.q_values.T, self._may_choose(), lowest)
        next_states = batch.next_observations - first
        q_values = swept(values, pairs, next_states, batch, counts, config.discount)
        q_values -= config.lower_bound * (counts > 0) / counts.clamp(min=1e-12).sqrt()
        q_values = q_values.view(states, actions)
        change = (q_values - self.q_values.T).abs().max()
        self.q_values.copy_(q_values.T)
        return {"critic/change": change, "critic/mean": values[next_states].mean()}

    @torch.no_grad()
    def act(self, observations: Int64[Tensor, " batch"]) -> Int64[Tensor, " batch"]:
        """Return the actions of the largest values, among those that the data have often enough."""
        states = observations - int(self.scaling.observation_space.start)  # type: ignore[union-attr]
        known = torch.where(self._may_choose(), self.q_values.T, _NEVER)
        return actions_from_indices(self.scaling, known[states].argmax(-1))

    def _may_choose(self) -> Bool[Tensor, "states actions"]:
        return (self.counts > 0) & (self.counts >= self.config.least_count)
