"""SAC (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905): a policy that maximizes return and entropy.

    L_Q(theta)     = sum_i E[ ( y - Q_i(s, a) )^2 ],
                     y = r + discount (1 - termination) ( min_i Q_target_i(s', a')
                                                          - temperature log pi(a' | s') ),  a' ~ pi
    L_pi(phi)      = E[ temperature log pi(a | s) - min_i Q_i(s, a) ],  a ~ pi
    L(temperature) = temperature E[ -log pi(a | s) + dim(A) ]

What differs from the paper: small networks, an update of the critics only each `steps_per_update`
steps, and one of policy and temperature for every second of these, as in TD3, since on a CPU the
updates take nearly all of the time. Truncations bootstrap, terminations do not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import gymnasium
import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from orlog.algos.critics import bellman_targets
from orlog.algos.networks import TwinCritic, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, update_target
from orlog.algos.policies import sample_squashed
from orlog.algos.settings import Count, Fraction, Natural, Positive, Widths
from orlog.datasets.worlds.behavior_policies import LOG_DEVIATIONS, BehaviorPolicy, Layers


class SACConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of SAC."""

    hidden: Widths = (64, 64)
    """Widths of the hidden layers of policy and critics."""
    batch_size: Count = 256
    """Transitions in a batch."""
    critic_learning_rate: Positive = 1e-3
    """Step size of Adam for the critics."""
    policy_learning_rate: Positive = 1e-3
    """Step size of Adam for policy and temperature."""
    discount: Fraction = 0.99
    """Weight of the next step's value."""
    target_rate: Fraction = 0.005
    """Fraction by which the target critics move towards the critics in each update."""
    random_steps: Natural = 5_000
    """First steps, with uniform actions and without updates."""
    steps_per_update: Count = 2
    """Steps in the environment for each update of the critics."""
    capacity: Count = 1_000_000
    """Newest transitions that batches are drawn from."""


def sac(env: gymnasium.Env[Any, Any], config: SACConfig, *, seed: int, every: int) -> Iterator[tuple[int, Layers]]:
    """Yield the number of steps taken and the policy, after each `every` steps.

    Actions of the environment must lie in [-1, 1].
    """
    assert env.observation_space.shape is not None
    assert env.action_space.shape is not None
    width, actions = env.observation_space.shape[0], env.action_space.shape[0]
    rng = np.random.Generator(np.random.PCG64(seed))
    learner = Learner(config, width, actions, seed)
    memory = Memory(config.capacity, width, actions)
    observation, _ = env.reset(seed=seed)
    for step in range(1, 2**62):
        if step <= config.random_steps:
            action = rng.uniform(-1, 1, actions).astype(np.float32)
        else:
            action, _ = learner.acting.act(observation, rng.standard_normal(actions))
        following, reward, terminated, truncated, _ = env.step(action)
        memory.add(observation, action, float(reward), terminated, following)
        observation = following
        if terminated or truncated:
            observation, _ = env.reset()
        if step > config.random_steps and step % config.steps_per_update == 0:
            learner.update(memory.draw(rng, config.batch_size))
        if step % every == 0:
            yield step, tuple((weight.copy(), bias.copy()) for weight, bias in learner.layers)


class Memory:
    """The newest transitions, a row each: observation, next observation, action, reward, termination."""

    def __init__(self, capacity: int, width: int, actions: int) -> None:
        self.sizes = [width, width, actions, 1, 1]
        self.rows = np.zeros((capacity, sum(self.sizes)), np.float32)
        self.added = 0

    def add(
        self, observation: np.ndarray, action: np.ndarray, reward: float, terminated: bool, following: np.ndarray
    ) -> None:
        """Add a transition in place of the oldest."""
        width = len(observation)
        row = self.rows[self.added % len(self.rows)]
        row[:width], row[width : 2 * width], row[2 * width : -2] = observation, following, action
        row[-2], row[-1] = reward, terminated
        self.added += 1

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Tensor, ...]:
        """Return transitions drawn uniformly, in the order of `sizes`."""
        chosen = rng.integers(min(self.added, len(self.rows)), size=count)
        return torch.split(torch.from_numpy(self.rows[chosen]), self.sizes, 1)


class Learner:
    """Networks and optimizers."""

    def __init__(self, config: SACConfig, width: int, actions: int, seed: int) -> None:
        self.config, self.actions, self.updates = config, actions, 0
        generator = make_generator(seed, 0)
        self.critic = TwinCritic(width, actions, config.hidden, generator=generator)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.policy = make_network(width, 2 * actions, config.hidden, generator=generator)
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_learning_rate)
        self.policy_optimizer = Adam(self.policy.parameters(), config.policy_learning_rate)
        self.temperature_optimizer = Adam([self.log_temperature], config.policy_learning_rate)
        self.generator = make_generator(seed, 1)
        numbers = [one.detach().numpy() for one in self.policy.parameters()]
        # Views of the parameters, which each update changes in place.
        self.layers = tuple((weight.T, bias) for weight, bias in zip(numbers[::2], numbers[1::2], strict=True))
        self.acting = BehaviorPolicy(self.layers)

    def update(self, batch: tuple[Tensor, ...]) -> None:
        """Take a step of the critics, and every second time one of policy and temperature."""
        observations, following, actions, rewards, terminations = batch
        config = self.config
        with torch.no_grad():
            next_actions, log_densities = self._sample(following)
            next_values = self.target_critic(following, next_actions).amin(0)
            next_values -= self.log_temperature.exp() * log_densities
            targets = bellman_targets(rewards[:, 0], terminations[:, 0], next_values, config.discount)
        loss = (self.critic(observations, actions) - targets).square().mean(1).sum()
        descend(self.critic_optimizer, loss)
        update_target(self.target_critic, self.critic, config.target_rate)
        self.updates += 1
        if self.updates % 2 == 0:
            self._update_policy(observations)

    def _update_policy(self, observations: Tensor) -> None:
        own_actions, log_densities = self._sample(observations)
        temperature = self.log_temperature.exp()
        smallest = self.critic(observations, own_actions).amin(0)
        loss = (temperature.detach() * log_densities - smallest).mean()
        descend(self.policy_optimizer, loss, only=self.policy)
        temperature_loss = temperature * (self.actions - log_densities.detach().mean())
        descend(self.temperature_optimizer, temperature_loss)

    def _sample(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions of the policy and their log densities."""
        return sample_squashed(self.policy(observations), LOG_DEVIATIONS, self.generator)
