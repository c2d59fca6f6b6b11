"""CQL with anchors among the data's states, after COCOA (Song, Lee and Kim 2024).

https://arxiv.org/abs/2404.04682, "Compositional Conservatism: A Transductive Approach in Offline
Reinforcement Learning", section 4. Policy and critics do not see a state s itself, but an anchor and
the difference from it (equation 2, after Netanyahu and others 2023):

    anchor(s)  = where a few steps of a learned policy lead from s, by a learned model of the dynamics
    network(s) = head( f(s - anchor(s)) . g(anchor(s)) )       "." sums products over an embedding

The learned policy leads back to the data. It is trained on rollouts of a reverse model, which go
away from states of the data in the direction of one action; played forward, they lead there (4.2).
A state far from the data is then a new combination of an anchor and a difference that were both seen.

orlog train ./cocoa.py:COCOA pointmaze/umaze-mini-v1
orlog evaluate runs/COCOA/pointmaze/umaze-mini-v1/seed-0 --algorithm ./cocoa.py:COCOA

What differs from the authors' code (runamu/compositional-conservatism):
- The models are one network each that predicts the change of the state, not seven Gaussian ones.
- Models, anchor policy and CQL are trained one after another in one run, for given numbers of steps.
- The anchor policy has no layer normalization.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from orlog.algos.cql import CQL, CQLConfig
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.settings import Count, Natural, NotNegative, Positive, Widths
from orlog.loaders.batch import Batch

Find: TypeAlias = Callable[[Tensor], Tensor]


class COCOAConfig(CQLConfig, frozen=True, kw_only=True):
    """Settings of CQL, and of the anchors."""

    horizon: Count = 1
    """Steps from a state to its anchor."""
    embedding: Count = 32
    """Products that are summed to each feature."""
    anchor_hidden: Widths = (100, 100)
    """Widths of the hidden layers of the policy that leads to anchors."""
    model_hidden: Widths = (200, 200, 200, 200)
    """Widths of the hidden layers of the models of the dynamics."""
    model_steps: Natural = 50_000
    """First gradient steps, which train the models."""
    anchor_steps: Natural = 50_000
    """Gradient steps after that, which train the policy that leads to anchors."""
    reverse_length: Count = 5
    """Steps of a reverse rollout."""
    action_scale: Positive = 0.8
    """Factor of the data's action that gives a reverse rollout its direction."""
    action_noise: NotNegative = 0.1
    """Standard deviation of the noise on each action of a reverse rollout."""
    anchor_learning_rate: Positive = 1e-3
    """Step size of Adam for the models and for the policy that leads to anchors."""

    def __post_init__(self) -> None:
        if self.target_gap is not None:
            raise ValueError(f"target_gap must be none, found {self.target_gap}.")


class Anchors(nn.Module):
    """Models of the dynamics, forward and in reverse, and the policy that leads to the data."""

    def __init__(self, obs_dim: int, action_dim: int, config: COCOAConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.horizon = config.horizon
        both, hidden = obs_dim + action_dim, config.model_hidden
        self.forward_model = make_network(both, obs_dim, hidden, generator=generator)
        self.reverse_model = make_network(both, obs_dim, hidden, generator=generator)
        self.policy = make_network(obs_dim, action_dim, config.anchor_hidden, generator=generator)

    @torch.no_grad()
    def find(self, observations: Tensor) -> Tensor:
        """Return the anchors of observations."""
        for _ in range(self.horizon):
            actions = torch.tanh(self.policy(observations))
            pairs = torch.cat([observations, actions], -1)
            observations = observations + self.forward_model(pairs)
        return observations

    def model_loss(self, observations: Tensor, actions: Tensor, next_observations: Tensor) -> Tensor:
        """Return the squared errors of both models."""
        change = next_observations - observations
        ahead = self.forward_model(torch.cat([observations, actions], -1))
        back = self.reverse_model(torch.cat([next_observations, actions], -1))
        found: Tensor = (ahead - change).square().mean() + (back + change).square().mean()
        return found

    @torch.no_grad()
    def reverse_rollout(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the states of a rollout that ends in the observations; actions is [steps, ..]."""
        states = []
        for action in actions:
            observations = observations + self.reverse_model(torch.cat([observations, action], -1))
            states.append(observations)
        return torch.stack(states)

    def policy_loss(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the squared error of the policy on a reverse rollout."""
        states = self.reverse_rollout(observations, actions)
        found: Tensor = (torch.tanh(self.policy(states)) - actions).square().mean()
        return found


class Transductive(nn.Module):
    """A network of an anchor and the difference from it, which are multiplied."""

    def __init__(self, inputs: int, outputs: int, config: COCOAConfig, generator: torch.Generator) -> None:
        super().__init__()
        width, hidden = config.hidden[-1], config.hidden
        products = width * config.embedding
        self.shape = (width, config.embedding)
        self.of_difference = make_network(inputs, products, hidden, generator=generator)
        self.of_anchor = make_network(inputs, products, hidden, generator=generator)
        self.head = make_network(width, outputs, hidden, generator=generator)

    def forward(self, difference: Tensor, anchor: Tensor) -> Tensor:
        """Return the head's outputs."""
        one = self.of_difference(difference).unflatten(-1, self.shape)
        other = self.of_anchor(anchor).unflatten(-1, self.shape)
        found: Tensor = self.head((one * other).sum(-1))
        return found


class Policy(nn.Module):
    """In place of CQL's policy: means and log deviations of observations."""

    def __init__(self, find: Find, network: Transductive) -> None:
        super().__init__()
        self.find, self.network = find, network

    def forward(self, observations: Tensor) -> Tensor:
        """Return what the policy's network of CQL returns."""
        anchors = self.find(observations)
        found: Tensor = self.network(observations - anchors, anchors)
        return found


class Critics(nn.Module):
    """In place of CQL's critics: two values of observations and actions."""

    def __init__(self, find: Find, first: Transductive, second: Transductive) -> None:
        super().__init__()
        self.find, self.first, self.second = find, first, second

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return both values, [2, batch]; both networks share the anchors."""
        anchors = self.find(observations)
        difference = torch.cat([observations - anchors, actions], -1)
        anchors = torch.cat([anchors, actions], -1)
        both = [one(difference, anchors).squeeze(-1) for one in (self.first, self.second)]
        return torch.stack(both)


class COCOA(CQL):
    """CQL whose policy and critics see anchors and differences."""

    CONFIG = COCOAConfig
    config: Any
    policy: Any
    critic: Any
    target_critic: Any
    optimizer: Any

    def __init__(self, config: COCOAConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        super().__init__(config, scaling, seed=seed, device=device)
        generator = make_generator(seed, 2, device)
        obs_dim, action_dim = len(scaling.obs_mean), len(scaling.action_low)
        self.anchors = Anchors(obs_dim, action_dim, config, generator)
        self.anchor_optimizer = torch.optim.Adam(self.anchors.parameters(), config.anchor_learning_rate)
        find = self.anchors.find

        def network(inputs: int, outputs: int) -> Transductive:
            return Transductive(inputs, outputs, config, generator)

        def critics() -> Critics:
            return Critics(find, *(network(obs_dim + action_dim, 1) for _ in range(2)))

        self.policy = Policy(find, network(obs_dim, 2 * action_dim))
        self.critic, self.target_critic = critics(), critics().requires_grad_(False)
        self.target_critic.load_state_dict(self.critic.state_dict())
        self.optimizer = torch.optim.Adam(
            [
                {"params": [*self.critic.parameters()], "lr": config.critic_learning_rate},
                {"params": [*self.policy.parameters(), self.log_temperature], "lr": config.policy_learning_rate},
            ]
        )
        self.prepared = 0

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Train the models, then the way to anchors, and from then on CQL."""
        config = self.config
        if self.prepared >= config.model_steps + config.anchor_steps:
            return super().update(batch)
        observations = self.scaling.observations(batch.observations)
        actions = self.scaling.actions_to_unit(batch.actions)
        if self.prepared < config.model_steps:
            next_observations = self.scaling.observations(batch.next_observations)
            loss = self.anchors.model_loss(observations, actions, next_observations)
            name = "anchors/model_loss"
        else:
            loss = self.anchors.policy_loss(observations, self.away(actions))
            name = "anchors/policy_loss"
        self.anchor_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.anchor_optimizer.step()
        self.prepared += 1
        return {name: loss.detach()}

    def away(self, actions: Tensor) -> Any:
        """Return the actions of reverse rollouts: one of the data for each, and noise in each step."""
        order = torch.rand(len(actions), generator=self.generator, device=actions.device).argsort()
        shape = (self.config.reverse_length, *actions.shape)
        noise = torch.randn(shape, generator=self.generator, device=actions.device)
        away = self.config.action_scale * actions[order] + self.config.action_noise * noise
        return away.clamp(-1, 1)
