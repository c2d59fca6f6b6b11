"""Flow Q-learning (Park, Li and Levine 2025, https://arxiv.org/abs/2502.02538).

A flow v imitates the data. A policy mu, one network of observation and noise z ~ N(0, 1), imitates
where the flow carries z, and seeks high values. Values never pass a gradient through the flow.

    L_v(theta) = E || v(s, x_t, t) - (a - z) ||^2,   x_t = (1 - t) z + t a             (flow matching)
    L_mu(omega) = E[ -Q(s, mu(s, z)) + distillation_weight || mu(s, z) - flow(s, z) ||^2 ]
                 flow(s, z): `flow_steps` Euler steps along v from z, clipped to [-1, 1]
                 Q the mean of two critics, of mu clipped to [-1, 1]
    L_Q(phi)   = E[ ( r + discount (1 - termination) Q_target(s', clip(mu(s', z'))) - Q(s, a) )^2 ]
                 Q_target the mean of two target networks, or their smaller one

Squared norms are means over action dimensions, losses of two critics are means too. All losses are
computed from the networks before the step; one Adam then moves all. The critics have layer
normalization after each activation, which is GELU. The policy acts with fresh noise at each step.
Truncations bootstrap, terminations do not.

Defaults are the authors' (`manifests/recorded/published/hyperparameters.json`, FQL / official). They
choose the distillation weight for each environment; for new ones they recommend to normalize
values (`normalize_values`, which divides Q in L_mu by its mean absolute size) and to try weights
of 0.03, 0.1, 0.3, 1, 3 and 10.

What differs from the paper's equations, as in the authors' code: mean squares in place of squared
norms.

What differs from the authors' code (seohongpark/fql, `agents/fql.py`, in JAX):
- Observations are standardized over the dataset by default. The authors leave them as they are, and
  so does their preset.
- Actions are mapped from the bounds of the action space to [-1, 1]. The authors leave them, and clip
  the data's to 1 - 1e-5.
- One setting `hidden` is for policies and critics; the authors have two, of equal values.
- All networks share the convolutions of frames, and only the critics' loss trains them
  (`encoders.py`). Each network of the authors has its own, an IMPALA encoder with one residual block
  a stage and a layer of 512 units, target critics too.
As in their code, target networks move towards the critics as they were before the step.
`tests/algos/recorded` holds parameters after 100 of its updates.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos.encoders import Observations, encoder_of
from orlog.algos.flows import NoisyActor, flow_actions, flow_errors
from orlog.algos.networks import Scaling, TwinCritic, bellman_targets, make_generator, make_network
from orlog.algos.optimizers import Adam, descend_both, parameters_of, update_target
from orlog.algos.settings import Count, NotNegative, Valued, Widths
from orlog.loaders.batch import Batch


class FQLConfig(Valued, frozen=True, kw_only=True):
    """Settings of flow Q-learning."""

    hidden: Widths = (512, 512, 512, 512)
    target: Literal["mean", "smallest"] = "mean"
    """Which of the two target critics' values counts."""
    distillation_weight: NotNegative = 10.0
    """Weight of the distance to the flow's action in the policy's loss, >= 0."""
    normalize_values: bool = False
    """Whether values in the policy's loss are divided by their mean absolute size."""
    flow_steps: Count = 10
    """Euler steps from noise to an action of the flow."""


def policy_loss(
    q_values: Float32[Tensor, "2 batch"],
    predicted: Float32[Tensor, "batch act"],
    carried: Float32[Tensor, "batch act"],
    distillation_weight: float,
    normalize_values: bool = False,
) -> Float32[Tensor, ""]:
    """Return the weighted distance to the flow's actions minus the mean value."""
    values = q_values.mean(0)
    scale = values.detach().abs().mean() if normalize_values else 1
    return distillation_weight * (predicted - carried).square().mean() - values.mean() / scale


def policy_actions(
    policy: nn.Module, features: Float32[Tensor, "batch features"], action_dim: int, generator: torch.Generator
) -> Float32[Tensor, "batch act"]:
    """Return actions of the policy in [-1, 1] for encoded observations and fresh noise."""
    shape = (len(features), action_dim)
    noise = torch.randn(shape, generator=generator, device=features.device)
    actions: Tensor = policy(torch.cat([features, noise], -1))
    return actions.clamp(-1, 1)


class FQL:
    """Flow Q-learning for continuous actions."""

    CONFIG = FQLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    CONSTANTS = ("config", "scaling", "seed")

    @staticmethod
    def loader(config: FQLConfig) -> tuple[str, dict[str, int]]:
        """Return the loader of its batches: transitions."""
        return "orlog.loaders.transitions:transitions", {"batch_size": config.batch_size}

    def __init__(self, config: FQLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config = config
        self.scaling = scaling.to(device)
        self.seed = seed
        self.generator = make_generator(seed, 1, device)
        self.acting = make_generator(seed, 2, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, action_dim = self.encoder.width, len(scaling.action_low)
        both, hidden = width + action_dim, config.hidden
        self.critic = TwinCritic(width, action_dim, hidden, generator=generator, layer_norm=True, style="gelu")
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.flow = make_network(both + 1, action_dim, hidden, generator=generator, style="gelu")
        self.policy = make_network(both, action_dim, hidden, generator=generator, style="gelu")
        self.optimizer = Adam(parameters_of(self.encoder, self.critic, self.flow, self.policy), config.learning_rate)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        features = self.encoder(self.encoder.shift(batch.observations))
        fixed = features.detach()  # the critics alone train the encoder
        actions = self.scaling.actions_to_unit(batch.actions)

        with torch.no_grad():
            next_features = self.encoder(self.encoder.shift(batch.next_observations))
            next_actions = policy_actions(self.policy, next_features, actions.shape[-1], self.generator)
            next_q = self.target_critic(next_features, next_actions)
            next_values = next_q.mean(0) if config.target == "mean" else next_q.amin(0)
            targets = bellman_targets(batch.rewards, batch.terminations, next_values, config.discount)
        q_values = self.critic(features, actions)
        critic_loss = (q_values - targets).square().mean()

        flow_loss = flow_errors(self.flow, fixed, actions, self.generator).mean()

        noise = torch.randn(actions.shape, generator=self.generator, device=actions.device)
        carried = flow_actions(self.flow, fixed, noise, config.flow_steps)
        predicted = self.policy(torch.cat([fixed, noise], -1))
        own_q = self.critic(fixed, predicted.clamp(-1, 1))
        actor_loss = policy_loss(own_q, predicted, carried, config.distillation_weight, config.normalize_values)

        update_target(self.target_critic, self.critic, config.target_rate)
        descend_both(self.optimizer, critic_loss + flow_loss, actor_loss, self.policy)
        return {
            "critic/loss": critic_loss.detach(),
            "critic/mean": q_values.detach().mean(),
            "flow/loss": flow_loss.detach(),
            "policy/loss": actor_loss.detach(),
        }

    @torch.no_grad()
    def act(self, observations: Observations) -> Float32[Tensor, "batch act"]:
        """Return the policy's actions for fresh noise, in the environment's unit."""
        return self._sample(observations, self.acting)

    def actor(self, environments: int) -> NoisyActor:  # noqa: ARG002 (as its interface says)
        """Return what acts in an evaluation, always with the same noise."""
        return NoisyActor(self._sample, make_generator(self.seed, 3, self.scaling.obs_mean.device))

    @torch.no_grad()
    def _sample(self, observations: Observations, generator: torch.Generator) -> Float32[Tensor, "batch act"]:
        features, width = self.encoder(observations), len(self.scaling.action_low)
        unit = policy_actions(self.policy, features, width, generator)
        return self.scaling.actions_from_unit(unit)
