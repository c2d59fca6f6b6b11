"""Hierarchical implicit Q-learning (Park and others 2023, https://arxiv.org/abs/2307.11949).

    phi(s, g)    a representation of the goal g as seen from s: z / |z| * sqrt(d), z from a network
    L(V, phi)  = E[ L2^tau( r + discount m V_target(s', g) - V(s, g) ) ],  V(s, g) = V(s, phi(s, g))
    L(pi_low)  = -E[ min(exp(beta_low A(s, s', w)), 100) log pi_low(a | s, phi(s, w)) ]
    L(pi_high) = -E[ min(exp(beta_high A(s, w, g)), 100) log pi_high(phi(s, w) | s, g) ]
                 A(s, u, g) = V(u, g) - V(s, g)

w is the state k steps ahead: the upper policy is told g and chooses phi(s, w), the lower policy is
told phi(s, w) and chooses the action. r is 0 and m is 0 where s is the goal itself, elsewhere -1 and
1. In L(pi_low), w is the state k steps ahead in the episode; in L(pi_high) it is the same, or g
where that comes first (`loaders/subgoals.py`).

There are two values, and the asymmetric square weighs and squares different numbers: it weighs by
the sign of r + discount m min V_target(s', g) - mean V_target(s, g), and each value is drawn to its
own target's r + discount m V_target(s', g). Advantages are those of the mean of both. phi learns
from L(V, phi) alone, and the target networks share it. Policies are Gaussians of standard deviation
1 around their means; they act with the means, the upper one's scaled to the length of phi, the lower
one's clipped to [-1, 1]. Terminations and truncations play no part.

The form and the defaults are those of OGBench (Park and others 2025,
https://arxiv.org/abs/2410.20092; `impls/agents/hiql.py`). As there, the target networks move towards
the networks from before the step.

What differs from OGBench's code:
- States and goals are standardized over the dataset by default. There, and with the authors' preset,
  they are as they are.
- Actions are mapped from the bounds of the action space to [-1, 1]; in OGBench's environments these
  are the bounds.
- A uniform later state is uniform; there, the nearest and the farthest come half as often as others.
- In data of Gymnasium's goal environments a goal is the part achieved_goal, and a state has no part
  desired_goal (`loaders/states_and_goals.py`). OGBench's goals are whole observations, as ours are in
  other data.
- Frames of states and goals pass the same convolutions, which only the values' loss trains. Theirs
  has others in each network, and phi learns from the lower policy too.
- Missing: discrete actions, a
  standard deviation that is learned.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos import iql
from orlog.algos.encoders import Observations
from orlog.algos.goal_networks import GoalEncoder, expectile_loss, log_likelihood, make_mean_network
from orlog.algos.networks import Scaling, TwinCritic, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of, update_target
from orlog.algos.settings import Count, Goals, Inside, NotNegative, Positive, Valued, Widths, check_goals
from orlog.loaders.batch import GoalBatch


class HIQLConfig(Valued, frozen=True, kw_only=True):
    """Settings of hierarchical implicit Q-learning."""

    hidden: Widths = (512, 512, 512)
    representation: Count = 10
    """Numbers d in a representation."""
    batch_size: Count = 1024
    expectile: Inside = 0.7
    """Expectile tau of the value loss, in (0, 1)."""
    low_inverse_temperature: NotNegative = 3.0
    """Factor beta_low of the advantage in the lower policy's weights, >= 0."""
    high_inverse_temperature: NotNegative = 3.0
    """Factor beta_high of the advantage in the upper policy's weights, >= 0."""
    max_weight: Positive = 100.0
    """Upper bound of the policies' weights."""
    subgoal_steps: Count = 25
    """Steps k to a subgoal."""
    value_goals: Goals = (0.2, 0.5, 0.3)
    """Probability that the values' goal is the state itself, a later one, or a random one."""
    policy_goals: Goals = (0.0, 1.0, 0.0)
    """Probability that the upper policy's goal is the state itself, a later one, or a random one."""

    def __post_init__(self) -> None:
        check_goals(value_goals=self.value_goals, policy_goals=self.policy_goals)


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
        return "orlog.loaders.states_and_goals:states_and_subgoals", {
            "batch_size": config.batch_size,
            "steps": config.subgoal_steps,
            "value_goals": config.value_goals,
            "policy_goals": config.policy_goals,
            "discount": config.discount,
        }

    def __init__(self, config: HIQLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config = config
        self.scaling = scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = GoalEncoder(self.scaling, config.encoder, config.random_shift, generator)
        states, goals, chosen = self.encoder.width, self.encoder.goal_width, config.representation
        style: dict[str, Any] = {"generator": generator, "layer_norm": True, "style": "gelu"}
        self.representation = make_network(states + goals, chosen, config.hidden, **style)
        self.value = TwinCritic(states, chosen, config.hidden, **style)
        self.target_value = copy.deepcopy(self.value).requires_grad_(False)
        self.low_policy = make_mean_network(
            states + chosen, len(scaling.action_low), config.hidden, generator=generator
        )
        self.high_policy = make_mean_network(states + goals, chosen, config.hidden, generator=generator)
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
                self.encoder.states(one) for one in (batch.next_observations, batch.subgoal_observations)
            )
            high_goals, low_goals, subgoals = (
                self.encoder.goals(one) for one in (batch.actor_goals, batch.low_goals, batch.subgoals)
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
        loss = expectile_loss(values, targets, advantages, config.expectile)

        with torch.no_grad():  # both policies' values at once: fewer, larger products
            places = torch.cat([states, states, next_states, subgoal_states])
            aims = self.represent(places, torch.cat([low_goals, high_goals, low_goals, high_goals]))
            low, high, low_next, high_next = self.value(places, aims).mean(0).chunk(4)
            low_chosen, high_chosen = aims[: len(states)], self.represent(states, subgoals)
        low_means = self.low_policy(torch.cat([fixed, low_chosen], -1))
        low_loss = iql.policy_loss(
            log_likelihood(actions, low_means), low_next - low, config.low_inverse_temperature, config.max_weight
        )
        high_means = self.high_policy(torch.cat([fixed, high_goals], -1))
        high_loss = iql.policy_loss(
            log_likelihood(high_chosen, high_means),
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
