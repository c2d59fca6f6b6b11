"""Flow Q-learning (Park, Li and Levine 2025, https://arxiv.org/abs/2502.02538).

A flow v imitates the data. A policy mu, one network of observation and noise z ~ N(0, 1), imitates where the flow
carries z, and seeks high values. Values never pass a gradient through the flow.

    L_v(theta) = E || v(s, x_t, t) - (a - z) ||^2,   x_t = (1 - t) z + t a             (flow matching)
    L_mu(omega) = E[ -Q(s, mu(s, z)) + distillation_weight || mu(s, z) - flow(s, z) ||^2 ]
                 flow(s, z): `flow_steps` Euler steps along v from z, clipped to [-1, 1]
                 Q the mean of two critics, of mu clipped to [-1, 1]
    L_Q(phi)   = E[ ( r + discount (1 - termination) Q_target(s', clip(mu(s', z'))) - Q(s, a) )^2 ]
                 Q_target the mean of two target networks, or their smaller one

Squared norms are means over action dimensions, losses of two critics are means too. All losses are computed from the
networks before the step; one Adam then moves all. The critics have layer normalization after each activation, which
is GELU. The policy acts with fresh noise at each step. Truncations bootstrap, terminations do not.

Defaults are the authors' (`manifests/recorded/published/hyperparameters.json`, FQL / official). They choose the
distillation weight for each environment; for new ones they recommend to normalize values (`normalize_values`, which
divides Q in L_mu by its mean absolute size) and to try weights of 0.03, 0.1, 0.3, 1, 3 and 10.

What differs from the paper's equations, as in the authors' code: mean squares in place of squared norms.

What differs from the authors' code (seohongpark/fql, `agents/fql.py`, in JAX):
- Observations are standardized over the dataset by default. The authors leave them, and so does their preset.
- Actions are mapped from the bounds of the action space to [-1, 1]. The authors leave them, and clip the data's to 1
  - 1e-5.
- One setting `hidden` is for policies and critics; the authors have two, of equal values.
- `orlog finetune` does as their `main.py` goes on in the environment: each step acts with fresh noise and brings an
  update, whose batch is drawn from the data and the new steps alike (`--prior even`, the default here). They keep 2 M
  steps, of which new ones replace the oldest, and refuse frames; here all are kept, and frames too.
- All networks share the convolutions of frames, and only the critics' loss trains them (`encoders.py`). Each network
  of the authors has its own, an IMPALA encoder with one residual block a stage and a layer of 512 units, target
  critics too.
As in their code, target networks move towards the critics as they were before the step. `tests/algos/recorded` holds
parameters after 100 of its updates.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos.critics import discounts_of, target_of, transitions_of
from orlog.algos.encoders import Observations, encoder_of
from orlog.algos.flows import ChunkActor, flow_actions, flow_errors
from orlog.algos.networks import Scaling, TwinCritic, make_generator, make_network
from orlog.algos.optimizers import Adam, descend_both, parameters_of, update_target
from orlog.algos.settings import Count, NotNegative, Valued, Widths
from orlog.loaders.batch import Batch


class FlowSettings(Valued, frozen=True, kw_only=True):
    """What is set of flow Q-learning, of single actions and of chunks."""

    hidden: Widths = (512, 512, 512, 512)
    target: Literal["mean", "smallest"] = "mean"
    """Which of the two target critics' values counts."""
    distillation_weight: NotNegative = 10.0
    """Weight of the distance to the flow's action in the policy's loss."""
    normalize_values: bool = False
    """Whether values in the policy's loss are divided by their mean absolute size."""
    flow_steps: Count = 10
    """Euler steps from noise to an action of the flow."""


class FQLConfig(FlowSettings, frozen=True, kw_only=True):
    """Settings of flow Q-learning."""

    n_steps: Count = 1
    """Steps whose rewards a target sums before the value of the state after them; the end of an episode stops it."""


class FQL:
    """Flow Q-learning for continuous actions."""

    CONFIG: Any = FQLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    CONSTANTS = ("config", "scaling", "seed")
    FINETUNING: ClassVar[dict[str, Any]] = {"prior": None}
    loader = staticmethod(transitions_of)

    def __init__(self, config: Any, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling, self.seed = config, scaling.to(device), seed
        self.generator, self.acting = make_generator(seed, 1, device), make_generator(seed, 2, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, actions, hidden = self.encoder.width, self.action_dim, config.hidden
        self.critic: Any = TwinCritic(width, actions, hidden, generator=generator, layer_norm=True, style="gelu")
        self.target_critic: Any = target_of(self.critic)
        self.flow = make_network(width + actions + 1, actions, hidden, generator=generator, style="gelu")
        self.policy = make_network(width + actions, actions, hidden, generator=generator, style="gelu")
        self.optimizer = Adam(parameters_of(self.encoder, self.critic, self.flow, self.policy), config.learning_rate)

    @property
    def action_dim(self) -> int:
        """Numbers that the policy gives at once."""
        return len(self.scaling.action_low)

    def taken(self, batch: Batch) -> tuple[Tensor, Tensor | float, Tensor | float, Tensor | float]:
        """Return the actions in [-1, 1], which of their numbers count, which of them are whole, and the discount."""
        return self.scaling.actions_to_unit(batch.actions), 1.0, 1.0, discounts_of(self.config, batch)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        features = self.encoder.shifted(batch.observations)
        fixed = features.detach()  # the critics alone train the encoder
        actions, valid, whole, discounts = self.taken(batch)

        with torch.no_grad():
            next_features = self.encoder.shifted(batch.next_observations)
            next_actions = self.unit_actions(next_features, self.generator)
            next_q = self.target_critic(next_features, next_actions)
            next_values = next_q.mean(0) if config.target == "mean" else next_q.amin(0)
            targets = batch.rewards + discounts * (1 - batch.terminations) * next_values
        q_values = self.critic(features, actions)
        critic_loss = ((q_values - targets).square() * whole).mean()

        flow_loss = (flow_errors(self.flow, fixed, actions, self.generator) * valid).mean()

        noise = torch.randn(actions.shape, generator=self.generator, device=actions.device)
        carried = flow_actions(self.flow, fixed, noise, config.flow_steps)
        predicted = self.policy(torch.cat([fixed, noise], -1))
        own_q = self.critic(fixed, predicted.clamp(-1, 1)).mean(0)
        scale = own_q.detach().abs().mean() if config.normalize_values else 1
        distance = (predicted - carried).square().mean()
        actor_loss = config.distillation_weight * distance - own_q.mean() / scale

        update_target(self.target_critic, self.critic, config.target_rate)
        descend_both(self.optimizer, critic_loss + flow_loss, actor_loss, self.policy)
        return {
            "critic/loss": critic_loss.detach(),
            "critic/mean": q_values.detach().mean(),
            "flow/loss": flow_loss.detach(),
            "policy/loss": actor_loss.detach(),
        }

    def act(self, observations: Observations) -> Float32[Tensor, "batch act"]:
        """Return the policy's first actions for fresh noise, in the environment's unit."""
        return self.plan(observations, self.acting)[:, 0]

    def actor(self, environments: int) -> ChunkActor:
        """Return what acts in an evaluation, always with the same noise."""
        return ChunkActor(self.plan, environments, make_generator(self.seed, 3, self.scaling.obs_mean.device))

    def explore(self, observations: Observations, generator: torch.Generator) -> Float32[Tensor, "batch length act"]:
        """Return actions to take one after the other, for noise of a generator."""
        return self.plan(observations, generator)

    def unit_actions(
        self, features: Float32[Tensor, "batch features"], generator: torch.Generator
    ) -> Float32[Tensor, "batch act"]:
        """Return actions of the policy in [-1, 1] for encoded observations and fresh noise."""
        noise = torch.randn((len(features), self.action_dim), generator=generator, device=features.device)
        actions: Tensor = self.policy(torch.cat([features, noise], -1))
        return actions.clamp(-1, 1)

    @torch.no_grad()
    def plan(self, observations: Observations, generator: torch.Generator) -> Float32[Tensor, "batch length act"]:
        """Return fresh actions to take one after the other, in the environment's unit."""
        unit = self.unit_actions(self.encoder(observations), generator)
        return self.scaling.actions_from_unit(unit.view(len(unit), -1, len(self.scaling.action_low)))
