"""Implicit flow Q-learning: IQL's values, a flow that imitates the data, and the best of its actions.

The baseline IFQL of Park, Li and Levine 2025 (https://arxiv.org/abs/2502.02538): implicit diffusion Q-learning
(Hansen-Estruch and others 2023, https://arxiv.org/abs/2304.10573) with a flow in place of the diffusion.

    L_V(psi)   = E[ L2^tau( Q_target(s, a) - V(s) ) ],   L2^tau(u) = |tau - 1(u < 0)| u^2
                 Q_target the smaller of two target networks
    L_Q(theta) = E[ ( r + discount (1 - termination) V(s') - Q(s, a) )^2 ],       summed over two
    L_v(phi)   = E || v(s, x_t, t) - (a - z) ||^2,   x_t = (1 - t) z + t a             (flow matching)
    pi(s)      = argmax over `sampled_actions` actions of the flow of min(Q_1, Q_2)(s, .)

The squared norm is a mean over action dimensions. All losses are computed from the networks before the step; one Adam
then moves all. Values and critics have layer normalization after each activation, which is GELU. The policy acts with
fresh noise at each step. Truncations bootstrap, terminations do not.

Defaults are the authors' (`manifests/recorded/published/hyperparameters.json`, IFQL / official).

What differs from IDQL, as in the authors' code: a flow in place of a diffusion, the best of the sampled actions in
place of one drawn by its weight, and flow matching on all data alike.

What differs from the authors' code (seohongpark/fql, `agents/ifql.py`, in JAX): observations, actions, `hidden` and
convolutions of frames, as `fql` lists. As in their code, target networks move towards the critics as they were before
the step. `tests/algos/recorded` holds parameters after 100 of its updates. `orlog finetune` is as `fql` says, and each
step takes the best of fresh actions.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos.critics import bellman_targets, discounts_of, expectile_loss, squared_errors, target_of, transitions_of
from orlog.algos.encoders import Observations, encoder_of
from orlog.algos.flows import ChunkActor, best_flow_actions, flow_errors
from orlog.algos.networks import Scaling, TwinCritic, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of, update_target
from orlog.algos.settings import Count, Inside, NStepValued, Widths
from orlog.loaders.batch import Batch


class IFQLConfig(NStepValued, frozen=True, kw_only=True):
    """Settings of implicit flow Q-learning."""

    hidden: Widths = (512, 512, 512, 512)
    expectile: Inside = 0.9
    """Expectile tau of the value loss; 0.5 is the mean, 1 would be the maximum."""
    sampled_actions: Count = 32
    """Actions of the flow out of which the policy takes the best."""
    flow_steps: Count = 10
    """Euler steps from noise to an action of the flow."""


class IFQL:
    """Implicit flow Q-learning for continuous actions."""

    CONFIG = IFQLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    CONSTANTS = ("config", "scaling", "seed")
    FINETUNING: ClassVar[dict[str, Any]] = {"prior": None}

    loader = staticmethod(transitions_of)

    def __init__(self, config: IFQLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling, self.seed = config, scaling.to(device), seed
        self.generator, self.acting = make_generator(seed, 1, device), make_generator(seed, 2, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, action_dim = self.encoder.width, len(scaling.action_low)
        hidden, inputs = config.hidden, width + action_dim + 1
        self.critic = TwinCritic(width, action_dim, hidden, generator=generator, layer_norm=True, style="gelu")
        self.target_critic = target_of(self.critic)
        self.value = make_network(width, 1, hidden, generator=generator, layer_norm=True, style="gelu")
        self.policy = make_network(inputs, action_dim, hidden, generator=generator, style="gelu")
        self.optimizer = Adam(parameters_of(self.encoder, self.critic, self.value, self.policy), config.learning_rate)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        features = self.encoder.shifted(batch.observations)
        fixed = features.detach()  # the critics alone train the encoder
        actions = self.scaling.actions_to_unit(batch.actions)

        with torch.no_grad():
            target_q = self.target_critic(fixed, actions).amin(0)
            next_features = self.encoder.shifted(batch.next_observations)
            next_values = self.value(next_features).squeeze(-1)
            targets = bellman_targets(batch.rewards, batch.terminations, next_values, discounts_of(config, batch))
        values = self.value(fixed).squeeze(-1)
        value_loss = expectile_loss(target_q - values, config.expectile)

        q_values = self.critic(features, actions)
        critic_loss = squared_errors(q_values, targets)

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
        return self.plan(observations, self.acting)[:, 0]

    def actor(self, environments: int) -> ChunkActor:
        """Return what acts in an evaluation, always with the same noise."""
        return ChunkActor(self.plan, environments, make_generator(self.seed, 3, self.scaling.obs_mean.device))

    @torch.no_grad()
    def plan(self, observations: Observations, generator: torch.Generator) -> Float32[Tensor, "batch 1 act"]:
        """Return the best of actions of the flow for noise of a generator, in the environment's unit."""
        features = self.encoder(observations)
        shape = (len(features), self.config.sampled_actions, len(self.scaling.action_low))
        noise = torch.randn(shape, generator=generator, device=features.device)
        best = best_flow_actions(self.policy, self.critic, features, noise, self.config.flow_steps)
        return self.scaling.actions_from_unit(best)

    explore = plan
