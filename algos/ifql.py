"""Implicit flow Q-learning: IQL's values, a flow that imitates the data, and the best of its actions.

The baseline IFQL of Park, Li and Levine 2025 (https://arxiv.org/abs/2502.02538): implicit diffusion
Q-learning (Hansen-Estruch and others 2023, https://arxiv.org/abs/2304.10573) with a flow in place of
the diffusion.

    L_V(psi)   = E[ L2^tau( Q_target(s, a) - V(s) ) ],   L2^tau(u) = |tau - 1(u < 0)| u^2
                 Q_target the smaller of two target networks
    L_Q(theta) = E[ ( r + discount (1 - termination) V(s') - Q(s, a) )^2 ],       summed over two
    L_v(phi)   = E || v(s, x_t, t) - (a - z) ||^2,   x_t = (1 - t) z + t a             (flow matching)
    pi(s)      = argmax over `sampled_actions` actions of the flow of min(Q_1, Q_2)(s, .)

The squared norm is a mean over action dimensions. All losses are computed from the networks before
the step; one Adam then moves all. Values and critics have layer normalization after each activation,
which is GELU. The policy acts with fresh noise at each step. Truncations bootstrap, terminations do
not.

Defaults are the authors' (`manifests/recorded/published/hyperparameters.json`, IFQL / official).

What differs from IDQL, as in the authors' code: a flow in place of a diffusion, the best of the
sampled actions in place of one drawn by its weight, and flow matching on all data alike.

What differs from the authors' code (seohongpark/fql, `agents/ifql.py`, in JAX):
- Observations are standardized over the dataset by default. The authors leave them as they are, and
  so does their preset.
- Actions are mapped from the bounds of the action space to [-1, 1]. The authors leave them, and clip
  the data's to 1 - 1e-5.
- One setting `hidden` is for policy, value and critics; the authors have two, of equal values.
- All networks share the convolutions of frames, and only the critics' loss trains them
  (`encoders.py`). Each network of the authors has its own, an IMPALA encoder with one residual block
  a stage and a layer of 512 units, target critics too.
As in their code, target networks move towards the critics as they were before the step.
`tests/algos/recorded` holds parameters after 100 of its updates.
"""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos.encoders import Observations, encoder_of
from orlog.algos.flows import NoisyActor, flow_actions, flow_errors
from orlog.algos.iql import expectile_loss
from orlog.algos.networks import Scaling, TwinCritic, bellman_targets, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of, update_target
from orlog.algos.settings import Count, Inside, Valued, Widths
from orlog.loaders.batch import Batch


class IFQLConfig(Valued, frozen=True, kw_only=True):
    """Settings of implicit flow Q-learning."""

    hidden: Widths = (512, 512, 512, 512)
    expectile: Inside = 0.9
    """Expectile tau of the value loss, in (0, 1); 0.5 is the mean, 1 would be the maximum."""
    sampled_actions: Count = 32
    """Actions of the flow out of which the policy takes the best."""
    flow_steps: Count = 10
    """Euler steps from noise to an action of the flow."""


def best_actions(
    q_values: Float32[Tensor, "2 batch samples"], actions: Float32[Tensor, "batch samples act"]
) -> Float32[Tensor, "batch act"]:
    """Return of each row's actions the one whose smaller value is the highest."""
    best = q_values.amin(0).argmax(-1)
    return actions.take_along_dim(best[:, None, None], 1).squeeze(1)


class IFQL:
    """Implicit flow Q-learning for continuous actions."""

    CONFIG = IFQLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    CONSTANTS = ("config", "scaling", "seed")

    @staticmethod
    def loader(config: IFQLConfig) -> tuple[str, dict[str, int]]:
        """Return the loader of its batches: transitions."""
        return "orlog.loaders.transitions:transitions", {"batch_size": config.batch_size}

    def __init__(self, config: IFQLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config = config
        self.scaling = scaling.to(device)
        self.seed = seed
        self.generator = make_generator(seed, 1, device)
        self.acting = make_generator(seed, 2, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, action_dim = self.encoder.width, len(scaling.action_low)
        hidden, inputs = config.hidden, width + action_dim + 1
        self.critic = TwinCritic(width, action_dim, hidden, generator=generator, layer_norm=True, style="gelu")
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.value = make_network(width, 1, hidden, generator=generator, layer_norm=True, style="gelu")
        self.policy = make_network(inputs, action_dim, hidden, generator=generator, style="gelu")
        self.optimizer = Adam(parameters_of(self.encoder, self.critic, self.value, self.policy), config.learning_rate)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        features = self.encoder(self.encoder.shift(batch.observations))
        fixed = features.detach()  # the critics alone train the encoder
        actions = self.scaling.actions_to_unit(batch.actions)

        with torch.no_grad():
            target_q = self.target_critic(fixed, actions).amin(0)
            next_features = self.encoder(self.encoder.shift(batch.next_observations))
            next_values = self.value(next_features).squeeze(-1)
            targets = bellman_targets(batch.rewards, batch.terminations, next_values, config.discount)
        values = self.value(fixed).squeeze(-1)
        value_loss = expectile_loss(target_q - values, config.expectile)

        q_values = self.critic(features, actions)
        critic_loss = (q_values - targets).square().mean(-1).sum()

        actor_loss = flow_errors(self.policy, fixed, actions, self.generator).mean()

        # The losses share no trained parameter, so one backward pass gives the three gradients.
        update_target(self.target_critic, self.critic, config.target_rate)
        descend(self.optimizer, value_loss + critic_loss + actor_loss)
        return {
            "value/loss": value_loss.detach(),
            "value/mean": values.detach().mean(),
            "critic/loss": critic_loss.detach(),
            "critic/mean": q_values.detach().mean(),
            "policy/loss": actor_loss.detach(),
        }

    def act(self, observations: Observations) -> Float32[Tensor, "batch act"]:
        """Return the best of fresh actions of the flow, in the environment's unit."""
        return self._sample(observations, self.acting)

    def actor(self, environments: int) -> NoisyActor:  # noqa: ARG002 (as its interface says)
        """Return what acts in an evaluation, always with the same noise."""
        return NoisyActor(self._sample, make_generator(self.seed, 3, self.scaling.obs_mean.device))

    @torch.no_grad()
    def _sample(self, observations: Observations, generator: torch.Generator) -> Float32[Tensor, "batch act"]:
        count, act = self.config.sampled_actions, len(self.scaling.action_low)
        repeated = self.encoder(observations).repeat_interleave(count, 0)
        noise = torch.randn((len(repeated), act), generator=generator, device=repeated.device)
        unit = flow_actions(self.policy, repeated, noise, self.config.flow_steps)
        q_values = self.critic(repeated, unit).view(2, -1, count)
        best = best_actions(q_values, unit.view(-1, count, act))
        return self.scaling.actions_from_unit(best)
