"""What goal-conditioned algorithms share: policies, critics of state and goal, and their losses.

As in OGBench (Park and others 2025, https://arxiv.org/abs/2410.20092, `impls/utils/networks.py`): layers with GELU;
the values' with layer normalization after each, the policy's without. Policies are Gaussians around their mean with a
standard deviation of 1, which only weighs the error of an action; they act with the mean, clipped to [-1, 1].

What differs from OGBench's code in all of them:
- States and goals are standardized over the dataset by default. There, and with the authors' preset, they are not.
- Actions are mapped from the bounds of the action space to [-1, 1]; in OGBench's environments these are the bounds.
- A uniform later state is uniform; there, the nearest and the farthest come half as often as others.
- In data of Gymnasium's goal environments a goal is the part achieved_goal, and a state has no part desired_goal
  (`loaders/goals.py`). OGBench's goals are whole observations, as ours are in other data.
- Missing: discrete actions, and a standard deviation that is learned.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos.encoders import Encoder, Observations, encoder_of
from orlog.algos.networks import Scaling, TwinCritic, make_network
from orlog.algos.settings import Common, Count, Fraction, FrameSettings, Goals, Widths
from orlog.loaders.batch import GoalBatch

_STATES = (
    *("observations", "next_observations", "subgoal_observations"),
    *("value_goal_observations", "midpoint_observations"),
)
_GOALS = ("value_goals", "actor_goals", "low_goals", "subgoals")
_ACHIEVED = "achieved_goal"  # a part of observations in Gymnasium's goal environments
_FIRST_ACTIONS = 0.1  # the last layer of a policy starts with a tenth of the usual weights


class GoalSettings(Common, frozen=True, kw_only=True):
    """What is set where a policy reaches goals."""

    hidden: Widths = (512, 512, 512)
    batch_size: Count = 1024
    policy_goals: Goals = (0.0, 1.0, 0.0)
    """Probability that the policy's goal is the state itself, a later one of its episode, or a random one."""

    def __post_init__(self) -> None:
        check_probabilities(self)


class GoalValueSettings(GoalSettings, frozen=True, kw_only=True):
    """What is set where values of goals are learned too."""

    discount: Fraction = 0.99
    """Weight of the next state's value, and discount of the distances to value goals that are later states."""
    value_goals: Goals = (0.2, 0.5, 0.3)
    """Probability that the values' goal is the state itself, a later one of its episode, or a random one."""


def check_probabilities(config: Any) -> None:
    """Refuse probabilities of goals that do not sum to 1."""
    for name in ("policy_goals", "value_goals"):
        value = getattr(config, name, (1.0,))
        if not math.isclose(sum(value), 1):
            raise ValueError(f"{name} must be three probabilities that sum to 1, found {value}.")


def states_with_goals(config: Any) -> tuple[str, dict[str, Any]]:
    """Return the loader of batches of states with goals."""
    names = ("batch_size", "value_goals", "policy_goals", "discount")
    arguments = {name: getattr(config, name) for name in names if hasattr(config, name)}
    return "orlog.loaders.goals:states_and_goals", arguments


class GoalEncoder(nn.Module):
    """Encodes states and goals: both by one encoder where goals are states, else each by its own.

    Attributes:
        width: Numbers in a state's features.
        goal_width: Numbers in a goal's features.
        goals_are_states: Whether goals are whole observations.
    """

    def __init__(self, scaling: Scaling, config: FrameSettings, generator: torch.Generator) -> None:
        super().__init__()
        self._states = encoder_of(config, scaling, generator)
        self._goals = None
        if scaling.goal_mean is not None and scaling.goal_std is not None:
            of_goals = dataclasses.replace(
                scaling, obs_mean=scaling.goal_mean, obs_std=scaling.goal_std, observation_space=scaling.goal_space
            )
            self._goals = encoder_of(config, of_goals, generator)
        self.goals_are_states = self._goals is None
        self.width, self.goal_width = self._states.width, self._of_goals.width

    @property
    def _of_goals(self) -> Encoder:
        return self._states if self._goals is None else self._goals

    def states(self, states: Observations) -> Float32[Tensor, "batch features"]:
        """Return the features of states."""
        features: Tensor = self._states(states)
        return features

    def goals(self, goals: Observations) -> Float32[Tensor, "batch goal_features"]:
        """Return the features of goals."""
        if isinstance(goals, Tensor) and goals.is_floating_point():
            goals = goals.reshape(len(goals), self.goal_width)
        features: Tensor = self._of_goals(goals)
        return features

    def achieved(self, states: Observations) -> Float32[Tensor, "batch goal_features"]:
        """Return the features of the goals that states have achieved, where goals are parts of them."""
        if isinstance(states, dict):
            return self.goals(states[_ACHIEVED])
        return self.goals(states[:, : self.goal_width])

    def shifted(self, batch: GoalBatch) -> GoalBatch:
        """Return a batch whose frames are shifted at random, for training; others as they are."""
        changed = {}
        for name in (field.name for field in dataclasses.fields(batch)):
            value = getattr(batch, name)
            if name in _STATES and value is not None:
                changed[name] = self._states.shift(value)
            elif name in _GOALS and value is not None:
                changed[name] = self._of_goals.shift(value)
        return dataclasses.replace(batch, **changed)


def make_goal_policy(
    encoder: GoalEncoder, actions: int, hidden: tuple[int, ...], *, generator: torch.Generator
) -> nn.Sequential:
    """Return a network of states and goals, next to each other, whose outputs are mean actions."""
    inputs = encoder.width + encoder.goal_width
    return make_mean_network(inputs, actions, hidden, generator=generator)


def make_mean_network(
    inputs: int, outputs: int, hidden: tuple[int, ...], *, generator: torch.Generator, layer_norm: bool = False
) -> nn.Sequential:
    """Return a network whose outputs, the means of a policy, start near 0."""
    network = make_network(inputs, outputs, hidden, generator=generator, layer_norm=layer_norm, style="gelu")
    with torch.no_grad():
        network[-1].weight.mul_(_FIRST_ACTIONS)  # type: ignore[operator]  # a Linear's weight
    return network


def make_goal_critic(
    encoder: GoalEncoder, actions: int, hidden: tuple[int, ...], *, generator: torch.Generator
) -> TwinCritic:
    """Return two critics of (states and goals, actions); without actions, of (states, goals)."""
    states, goals = encoder.width, encoder.goal_width
    first, second = (states + goals, actions) if actions else (states, goals)
    return TwinCritic(first, second, hidden, generator=generator, layer_norm=True, style="gelu")


def policy_means(
    policy: nn.Module, states: Float32[Tensor, "batch state"], goals: Float32[Tensor, "batch goal"]
) -> Float32[Tensor, "batch act"]:
    """Return a policy's means for encoded states and goals; they are not bounded."""
    means: Tensor = policy(torch.cat([states, goals], -1))
    return means


def log_likelihood(
    actions: Float32[Tensor, "batch act"], means: Float32[Tensor, "batch act"]
) -> Float32[Tensor, " batch"]:
    """Return log N(actions; means, 1), summed over action dimensions."""
    constant = actions.shape[-1] * 0.5 * math.log(2 * math.pi)
    return -0.5 * (actions - means).square().sum(-1) - constant


@torch.no_grad()
def act_for_goals(self: Any, observations: Observations, goals: Observations) -> Float32[Tensor, "batch act"]:
    """Return the policy's mean actions for goals, in bounds, in the environment's unit."""
    means = policy_means(self.policy, self.encoder.states(observations), self.encoder.goals(goals))
    actions: Tensor = self.scaling.actions_from_unit(means.clamp(-1, 1))
    return actions


def signed_expectile_loss(
    values: Float32[Tensor, "*values batch"],
    targets: Float32[Tensor, "*values batch"],
    advantages: Float32[Tensor, " batch"],
    expectile: float,
) -> Float32[Tensor, ""]:
    """Return the mean squared error, weighted by the sign of the advantages; summed over values."""
    weights = torch.where(advantages >= 0, expectile, 1 - expectile)
    return (weights * (targets - values).square()).mean(-1).sum()


def value_and_cloning_loss(
    values: Float32[Tensor, " batch"], log_likelihoods: Float32[Tensor, " batch"], cloning_weight: float
) -> Float32[Tensor, ""]:
    """Return the loss that OGBench calls DDPG+BC: normalized values, and cloning by its weight."""
    scale = values.detach().abs().mean() + 1e-6
    return -values.mean() / scale - cloning_weight * log_likelihoods.mean()
