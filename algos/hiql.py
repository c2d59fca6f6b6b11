"""Hierarchical implicit Q-learning (Park and others 2023, https://arxiv.org/abs/2307.11949).

    phi(s, g)    a representation of the goal g as seen from s: z / |z| * sqrt(d), z from a network
    L(V, phi)  = E[ L2^tau( r + discount m V_target(s', g) - V(s, g) ) ],  V(s, g) = V(s, phi(s, g))
    L(pi_low)  = -E[ min(exp(beta_low A(s, s', w)), 100) log pi_low(a | s, phi(s, w)) ]
    L(pi_high) = -E[ min(exp(beta_high A(s, w, g)), 100) log pi_high(phi(s, w) | s, g) ]
                 A(s, u, g) = V(u, g) - V(s, g)

w is the state k steps ahead: the upper policy is told g and chooses phi(s, w), the lower policy is told phi(s, w) and
chooses the action. r is 0 and m is 0 where s is the goal itself, elsewhere -1 and 1. In L(pi_low), w is the state k
steps ahead in the episode; in L(pi_high) it is the same, or g where that comes first (`loaders/goals.py`).

There are two values, and the asymmetric square weighs and squares different numbers: it weighs by the sign of r +
discount m min V_target(s', g) - mean V_target(s, g), and each value is drawn to its own target's r + discount m
V_target(s', g). Advantages are those of the mean of both. phi learns from L(V, phi) alone, and the target networks
share it. Policies are Gaussians of standard deviation 1 around their means; they act with the means, the upper one's
scaled to the length of phi, the lower one's clipped to [-1, 1]. Terminations and truncations play no part.

The form and the defaults are those of OGBench (Park and others 2025, https://arxiv.org/abs/2410.20092;
`impls/agents/hiql.py`). As there, the target networks move towards the networks from before the step.

What differs from OGBench's code, besides what `goal_networks.py` lists for all:
- Frames of states and goals pass the same convolutions, which only the values' loss trains. Theirs has others in each
  network, and phi learns from the lower policy too.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos import goal_networks
from orlog.algos.critics import target_of, weighted_cloning_loss
from orlog.algos.encoders import Observations
from orlog.algos.networks import Scaling, TwinCritic, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of, update_target
from orlog.algos.settings import Count, Fraction, Inside, NotNegative, Positive
from orlog.loaders.batch import GoalBatch


class HIQLConfig(goal_networks.GoalValueSettings, frozen=True, kw_only=True):
    """Settings of hierarchical implicit Q-learning."""

    representation: Count = 10
    """Numbers d in a representation."""
    target_rate: Fraction = 0.005
    expectile: Inside = 0.7
    """Expectile tau of the value loss."""
    low_inverse_temperature: NotNegative = 3.0
    """Factor beta_low of the advantage in the lower policy's weights."""
    high_inverse_temperature: NotNegative = 3.0
    """Factor beta_high of the advantage in the upper policy's weights."""
    max_weight: Positive = 100.0
    """Upper bound of the policies' weights."""
    subgoal_steps: Count = 25
    """Steps k to a subgoal."""


def to_length(vectors: Float32[Tensor, "batch d"]) -> Float32[Tensor, "batch d"]:
    """Return the vectors scaled to the length sqrt(d)."""
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / lengths * math.sqrt(vectors.shape[-1])


class HIQL:
    """Hierarchical implicit Q-learning for continuous actions."""

    CONFIG = HIQLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    GOALS = True

    @staticmethod
    def loader(config: HIQLConfig) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: states with goals on two levels."""
        return "orlog.loaders.goals:states_and_subgoals", {
            "batch_size": config.batch_size,
            "steps": config.subgoal_steps,
            "value_goals": config.value_goals,
            "policy_goals": config.policy_goals,
            "discount": config.discount,
        }

    def __init__(self, config: HIQLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = goal_networks.GoalEncoder(self.scaling, config, generator)
        states, goals, chosen = self.encoder.width, self.encoder.goal_width, config.representation
        style: dict[str, Any] = {"generator": generator, "layer_norm": True, "style": "gelu"}
        self.representation = make_network(states + goals, chosen, config.hidden, **style)
        self.value = TwinCritic(states, chosen, config.hidden, **style)
        self.target_value = target_of(self.value)
        self.low_policy = goal_networks.make_mean_network(
            states + chosen, len(scaling.action_low), config.hidden, generator=generator
        )
        self.high_policy = goal_networks.make_mean_network(states + goals, chosen, config.hidden, generator=generator)
        self.optimizer = Adam(
            parameters_of(self.encoder, self.representation, self.value, self.low_policy, self.high_policy),
            config.learning_rate,
        )

    def represent(self, states: Tensor, goals: Tensor) -> Float32[Tensor, "batch d"]:
        """Return phi(s, g) of encoded states and goals."""
        return to_length(self.representation(torch.cat([states, goals], -1)))

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        batch = self.encoder.shifted(batch)
        states = self.encoder.states(batch.observations)
        value_goals = self.encoder.goals(batch.value_goals)
        actions = self.scaling.actions_to_unit(batch.actions)
        with torch.no_grad():  # the values alone train the encoder
            fixed = states.detach()
            next_states, subgoal_states = (
                self.encoder.states(seen) for seen in (batch.next_observations, batch.subgoal_observations)
            )
            high_goals, low_goals, subgoals = (
                self.encoder.goals(goals) for goals in (batch.actor_goals, batch.low_goals, batch.subgoals)
            )

        represented = self.represent(states, value_goals)
        with torch.no_grad():
            next_represented = self.represent(next_states, value_goals)
            next_values, target_values = self.target_value(
                torch.cat([next_states, states]), torch.cat([next_represented, represented])
            ).chunk(2, dim=1)
            targets = batch.rewards + config.discount * batch.masks * next_values
            advantages = targets.amin(0) - target_values.mean(0)
        values = self.value(states, represented)
        loss = goal_networks.signed_expectile_loss(values, targets, advantages, config.expectile)

        with torch.no_grad():  # both policies' values at once: fewer, larger products
            places = torch.cat([states, states, next_states, subgoal_states])
            aims = self.represent(places, torch.cat([low_goals, high_goals, low_goals, high_goals]))
            low, high, low_next, high_next = self.value(places, aims).mean(0).chunk(4)
            low_chosen, high_chosen = aims[: len(states)], self.represent(states, subgoals)
        low_means = self.low_policy(torch.cat([fixed, low_chosen], -1))
        low_loss = weighted_cloning_loss(
            goal_networks.log_likelihood(actions, low_means),
            low_next - low,
            config.low_inverse_temperature,
            config.max_weight,
        )
        high_means = self.high_policy(torch.cat([fixed, high_goals], -1))
        high_loss = weighted_cloning_loss(
            goal_networks.log_likelihood(high_chosen, high_means),
            high_next - high,
            config.high_inverse_temperature,
            config.max_weight,
        )

        # Before the step, as in the authors' code.
        update_target(self.target_value, self.value, config.target_rate)
        # The losses share no trained parameter, so one backward pass gives the three gradients.
        descend(self.optimizer, loss + low_loss + high_loss)
        return {
            "value/loss": loss.detach(),
            "value/mean": values.detach().mean(),
            "low_policy/loss": low_loss.detach(),
            "high_policy/loss": high_loss.detach(),
        }

    @torch.no_grad()
    def act(self, observations: Observations, goals: Observations) -> Float32[Tensor, "batch act"]:
        """Return the lower policy's mean actions for the upper policy's mean choice."""
        states = self.encoder.states(observations)
        pairs = torch.cat([states, self.encoder.goals(goals)], -1)
        chosen = to_length(self.high_policy(pairs))
        means = self.low_policy(torch.cat([states, chosen], -1))
        return self.scaling.actions_from_unit(means.clamp(-1, 1))
