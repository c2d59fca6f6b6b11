"""QC-FQL: flow Q-learning over chunks of actions (Li, Zhou and Levine 2025, https://arxiv.org/abs/2507.07969).

FQL (`algos/fql.py`) whose action A is the next `chunk_length` = h actions together:

    L_v(theta) = E || m (v(s, x_t, t) - (A - z)) ||^2,   x_t = (1 - t) z + t A         (flow matching)
                 m is 1 at actions before the end of the episode, else 0
    L_mu(omega) = E[ -Q(s, mu(s, z)) + distillation_weight || mu(s, z) - flow(s, z) ||^2 ]
                 flow(s, z): `flow_steps` Euler steps along v from z, clipped to [-1, 1]
                 Q the mean of two critics, of mu clipped to [-1, 1]
    L_Q(phi)   = E[ m_h ( R + discount^h (1 - termination) Q_target(s_h, clip(mu(s_h, z'))) - Q(s, A) )^2 ]
                 R = sum of discount^k r_k over the chunk, m_h: only chunks that are whole
                 Q_target the mean of two target networks, or their smaller one

Squared norms are means over all numbers of a chunk, losses of two critics are means too, and the
means count what a mask leaves out. All losses are computed from the networks before the step; one
Adam then moves all. In an episode the policy acts out a whole chunk before it looks again. A
termination ends the value, a truncation after a whole chunk bootstraps.

Defaults are the authors' (`manifests/recorded/published/hyperparameters.json`, QC-FQL / official). They
choose the distillation weight for each environment. `normalize_values` is FQL's: it divides Q in
L_mu by its mean absolute size.

What differs from the authors' code (ColinQiyangLi/qc at 48283b4, `agents/acfql.py` and `main.py`, in JAX):
- Only QC-FQL. Missing: QC (the best of several chunks of the flow), sums of n rewards without
  chunks, Fourier features of the time, weight decay.
- There is no online phase. Theirs goes on after 1 M offline steps: it acts for 1 M steps, and from the
  5,000th on each brings an update on the data and the new steps together. Scores from here compare
  with their results at 1 M steps, not with those after 2 M.
- Slots after the end of an episode hold zeros, theirs the actions of the next episode. No loss is
  taken there, but the flow and the critics see them among their inputs.
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
from torch import Tensor

from orlog.algos.encoders import Observations, encoder_of
from orlog.algos.flows import ChunkActor, flow_actions, flow_errors
from orlog.algos.fql import policy_actions, policy_loss
from orlog.algos.networks import Scaling, TwinCritic, make_generator, make_network
from orlog.algos.optimizers import Adam, descend_both, parameters_of, update_target
from orlog.algos.settings import Count, NotNegative, Valued, Widths
from orlog.loaders.batch import Batch


class QCFQLConfig(Valued, frozen=True, kw_only=True):
    """Settings of flow Q-learning over chunks."""

    chunk_length: Count = 5
    """Actions in a chunk, which the policy acts out one after the other."""
    hidden: Widths = (512, 512, 512, 512)
    target: Literal["mean", "smallest"] = "mean"
    """Which of the two target critics' values counts."""
    distillation_weight: NotNegative = 100.0
    """Weight of the distance to the flow's chunk in the policy's loss, >= 0."""
    normalize_values: bool = False
    """Whether values in the policy's loss are divided by their mean absolute size."""
    flow_steps: Count = 10
    """Euler steps from noise to a chunk of the flow."""


class QCFQL:
    """Flow Q-learning over chunks of continuous actions."""

    TITLE = "QC-FQL"
    CONFIG = QCFQLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    CONSTANTS = ("config", "scaling", "seed")

    @staticmethod
    def loader(config: QCFQLConfig) -> tuple[str, dict[str, int | float]]:
        """Return the loader of its batches: chunks of actions."""
        return "orlog.loaders.chunks:action_chunks", {
            "batch_size": config.batch_size,
            "length": config.chunk_length,
            "discount": config.discount,
        }

    def __init__(self, config: QCFQLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config = config
        self.scaling = scaling.to(device)
        self.seed = seed
        self.generator = make_generator(seed, 1, device)
        self.acting = make_generator(seed, 2, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, chunk_dim = self.encoder.width, len(scaling.action_low) * config.chunk_length
        both, hidden = width + chunk_dim, config.hidden
        self.critic = TwinCritic(width, chunk_dim, hidden, generator=generator, layer_norm=True, style="gelu")
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.flow = make_network(both + 1, chunk_dim, hidden, generator=generator, style="gelu")
        self.policy = make_network(both, chunk_dim, hidden, generator=generator, style="gelu")
        self.optimizer = Adam(parameters_of(self.encoder, self.critic, self.flow, self.policy), config.learning_rate)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        features = self.encoder(self.encoder.shift(batch.observations))
        fixed = features.detach()  # the critics alone train the encoder
        valid = batch.valid.unsqueeze(-1).expand_as(batch.actions).flatten(1)
        chunks = self.scaling.actions_to_unit(batch.actions).flatten(1) * valid

        with torch.no_grad():
            next_features = self.encoder(self.encoder.shift(batch.next_observations))
            next_chunks = policy_actions(self.policy, next_features, chunks.shape[-1], self.generator)
            next_q = self.target_critic(next_features, next_chunks)
            next_values = next_q.mean(0) if config.target == "mean" else next_q.amin(0)
            targets = batch.rewards + batch.discounts * (1 - batch.terminations) * next_values
        q_values = self.critic(features, chunks)
        critic_loss = ((q_values - targets).square() * batch.valid[:, -1]).mean()

        flow_loss = (flow_errors(self.flow, fixed, chunks, self.generator) * valid).mean()

        noise = torch.randn(chunks.shape, generator=self.generator, device=chunks.device)
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

    def act(self, observations: Observations) -> Float32[Tensor, "batch act"]:
        """Return the first action of a fresh chunk for each observation."""
        return self._plan(observations, self.acting)[:, 0]

    def actor(self, environments: int) -> ChunkActor:
        """Return what acts out whole chunks in an evaluation, always with the same noise."""
        generator = make_generator(self.seed, 3, self.scaling.obs_mean.device)
        return ChunkActor(self._plan, environments, generator)

    @torch.no_grad()
    def _plan(self, observations: Observations, generator: torch.Generator) -> Float32[Tensor, "batch length act"]:
        """Return fresh chunks in the environment's unit."""
        features, length = self.encoder(observations), self.config.chunk_length
        width = len(self.scaling.action_low) * length
        chunks = policy_actions(self.policy, features, width, generator)
        return self.scaling.actions_from_unit(chunks.view(len(chunks), length, -1))
