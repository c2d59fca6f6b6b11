"""Contrastive RL (Eysenbach and others 2022, https://arxiv.org/abs/2206.07568).

    f(s, a, g) = phi(s, a)^T psi(g) / sqrt(d)                     d numbers in each representation
    L(phi, psi) = 1/B^2 sum_i sum_j  softplus( f(s_i, a_i, g_j) ) - 1(i = j) f(s_i, a_i, g_j)
    L(pi) = -mean f(s, mu(s, g), g) / mean |f(s, mu(s, g), g)|  -  w mean log pi(a | s, g)

In a batch of B items, g_i is a state of the same episode, a geometric number of steps with the discount after s_i.
L(phi, psi) is the binary cross-entropy of telling the pairs (s_i, a_i, g_i) from those with the goals of other items:
f becomes log p(g | s, a) / p(g), plus a constant, so that the action with the largest f makes g most likely. Nothing
bootstraps: no targets, no rewards.

There are two critics; L(phi, psi) is their mean, and the policy uses the smaller value. The denominator in L(pi) has
no gradient. The policy is a Gaussian of standard deviation 1 around mu; mu is clipped to [-1, 1] where f sees it and
when it acts. Terminations and truncations play no part.

The form and the defaults are those of OGBench (Park and others 2025, https://arxiv.org/abs/2410.20092;
`impls/agents/crl.py`), whose loss of the policy is TD3+BC's ("DDPG+BC") in place of the paper's.

What differs from OGBench's code, besides what `goal_networks.py` lists for all:
- Frames of states and goals pass the same convolutions, which only the critics' loss trains. Theirs have two in the
  critics, and others in the policy.
- Missing: the advantage-weighted policy, which goes with discrete actions there.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos import goal_networks
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend_both, parameters_of
from orlog.algos.settings import Count, Goals, NotNegative
from orlog.loaders.batch import GoalBatch


class CRLConfig(goal_networks.GoalValueSettings, frozen=True, kw_only=True):
    """Settings of contrastive RL."""

    representation: Count = 512
    """Numbers d in a representation."""
    cloning_weight: NotNegative = 0.1
    """Weight w of the log-likelihood of the data's actions in the policy's loss."""
    value_goals: Goals = (0.0, 1.0, 0.0)


def contrastive_loss(logits: Float32[Tensor, "critics batch batch"]) -> Float32[Tensor, ""]:
    """Return the mean cross-entropy of f(s_i, a_i, g_j) with 1 on the diagonal and 0 elsewhere."""
    matching = logits.diagonal(dim1=-2, dim2=-1)
    return nn.functional.softplus(logits).mean() - matching.mean() / logits.shape[-1]


class BilinearCritic(nn.Module):
    """Two critics of states, actions and goals, each an inner product of representations."""

    def __init__(
        self, state_dim: int, action_dim: int, goal_dim: int, config: CRLConfig, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(config.representation)
        self.phi, self.psi = (
            nn.ModuleList(
                make_network(
                    inputs, config.representation, config.hidden, generator=generator, layer_norm=True, style="gelu"
                )
                for _ in range(2)
            )
            for inputs in (state_dim + action_dim, goal_dim)
        )

    def represent(
        self, states: Tensor, actions: Tensor, goals: Tensor
    ) -> tuple[Float32[Tensor, "2 batch d"], Float32[Tensor, "2 batch d"]]:
        """Return phi(s, a) and psi(g) of both critics."""
        pairs = torch.cat([states, actions], -1)
        return torch.stack([phi(pairs) for phi in self.phi]), torch.stack([psi(goals) for psi in self.psi])

    def forward(self, states: Tensor, actions: Tensor, goals: Tensor) -> Float32[Tensor, "2 batch"]:
        """Return both values of each item for its own goal."""
        phi, psi = self.represent(states, actions, goals)
        return (phi * psi).sum(-1) * self.scale

    def every_pair(self, states: Tensor, actions: Tensor, goals: Tensor) -> Float32[Tensor, "2 batch batch"]:
        """Return both values of each item (row) for the goal of each item (column)."""
        phi, psi = self.represent(states, actions, goals)
        return phi @ psi.mT * self.scale


class CRL:
    """Contrastive RL for continuous actions."""

    CONFIG = CRLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    GOALS = True

    loader = staticmethod(goal_networks.states_with_goals)
    act = goal_networks.act_for_goals

    def __init__(self, config: CRLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = goal_networks.GoalEncoder(self.scaling, config, generator)
        width, action_dim = self.encoder.width, len(scaling.action_low)
        self.critic = BilinearCritic(width, action_dim, self.encoder.goal_width, config, generator=generator)
        self.policy = goal_networks.make_goal_policy(self.encoder, action_dim, config.hidden, generator=generator)
        self.optimizer = Adam(parameters_of(self.encoder, self.critic, self.policy), config.learning_rate)

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        batch = self.encoder.shifted(batch)
        states = self.encoder.states(batch.observations)
        fixed = states.detach()  # the critics alone train the encoder
        actions = self.scaling.actions_to_unit(batch.actions)
        with torch.no_grad():
            goals = self.encoder.goals(batch.actor_goals)

        logits = self.critic.every_pair(states, actions, self.encoder.goals(batch.value_goals))
        critic_loss = contrastive_loss(logits)

        means = goal_networks.policy_means(self.policy, fixed, goals)
        values = self.critic(fixed, means.clamp(-1, 1), goals).amin(0)
        log_likelihoods = goal_networks.log_likelihood(actions, means)
        policy_loss = goal_networks.value_and_cloning_loss(values, log_likelihoods, self.config.cloning_weight)

        descend_both(self.optimizer, critic_loss, policy_loss, self.policy)
        logits = logits.detach()
        matching = logits.diagonal(dim1=-2, dim2=-1)
        return {
            "critic/loss": critic_loss.detach(),
            "critic/matching": matching.mean(),
            "critic/accuracy": (matching >= logits.amax(-1)).float().mean(),
            "policy/loss": policy_loss.detach(),
            "policy/log_likelihood": log_likelihoods.detach().mean(),
        }
