"""A flow policy over windows of observations and chunks of actions, acted out in part before it looks again.

    L(theta) = E || v(o, x_t, t) - (A - z) ||^2,   x_t = (1 - t) z + t A,  z ~ N(0, 1),  t uniform     (flow matching)
               o: the last `seen` observations, A: the next `planned` actions
    act        A from `flow_steps` Euler steps along v from noise, clipped to [-1, 1]; its first `executed`
               actions are taken, then it plans anew (receding horizon)

It imitates: rewards play no part. Windows and chunks are used as Diffusion Policy (Chi and others 2023,
https://arxiv.org/abs/2303.04137) uses them, 2 observations, 16 actions planned and 8 executed, which are the
defaults; ACT (Zhao and others 2023, https://arxiv.org/abs/2304.13705) plans chunks too, 100 actions long. The flow is
that of `flows.py`, as in QC-FQL. A whole chunk is drawn at once, so that where demonstrations go either left or
right, the policy goes one way, and not the mean of both.

What differs from Diffusion Policy's code (real-stanford/diffusion_policy):
- A flow takes the place of diffusion, and a network of the window, the chunk and the time that of a U-Net or a
  Transformer along the chunk.
- Chunks begin with the present action. Theirs begin with that of the first observation of the window, and what is
  past of them is not executed.
- Observations are standardized over the dataset, theirs are brought to [-1, 1]. Actions are mapped from the bounds of
  the action space to [-1, 1], theirs from the smallest and largest of the data.
- Missing: the average of the weights over training steps, with which theirs acts, and the learning rate that falls.
As theirs, windows repeat the first observation before the beginning of an episode, and chunks the last action after
its end, which counts in the loss like others.

What differs from ACT: no variational autoencoder, no Transformer, and no average of the plans of several steps.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos.encoders import Observations, encode_windows, encoder_of
from orlog.algos.flows import ChunkActor, flow_actions, flow_errors
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of
from orlog.algos.settings import Common, Count, Widths
from orlog.loaders.batch import WindowBatch


class ChunkedFlowConfig(Common, frozen=True, kw_only=True):
    """Settings of the flow policy over windows and chunks."""

    seen: Count = 2
    """Observations that it sees: the present one and those before."""
    planned: Count = 16
    """Actions that it plans at once, from the present one on."""
    executed: Count = 8
    """Actions of a plan that it takes before it looks again, at most `planned`."""
    hidden: Widths = (512, 512, 512)
    flow_steps: Count = 10
    """Euler steps from noise to a chunk."""

    def __post_init__(self) -> None:
        if self.executed > self.planned:
            raise ValueError(f"executed must be at most planned, found {self.executed} of {self.planned}.")


class ChunkedFlow:
    """A flow policy over windows of observations and chunks of continuous actions."""

    CONFIG = ChunkedFlowConfig
    REWARDS = False
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    CONSTANTS = ("config", "scaling", "seed")

    @staticmethod
    def loader(config: ChunkedFlowConfig) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: windows of observations with chunks of actions."""
        return "orlog.loaders.windows:windows", {
            "batch_size": config.batch_size,
            "observations": range(1 - config.seen, 1),
            "actions": range(config.planned),
        }

    def __init__(self, config: ChunkedFlowConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling, self.seed = config, scaling.to(device), seed
        self.generator = make_generator(seed, 1, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        seen, chunk = self.encoder.width * config.seen, len(scaling.action_low) * config.planned
        self.flow = make_network(seen + chunk + 1, chunk, config.hidden, generator=generator, style="gelu")
        self.optimizer = Adam(parameters_of(self.encoder, self.flow), config.learning_rate)

    def update(self, batch: WindowBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        everywhere = torch.ones_like(batch.observations_valid)  # what is repeated is an observation
        features = encode_windows(self.encoder, batch.observations, everywhere).flatten(1)
        chunks = self.scaling.actions_to_unit(batch.actions).flatten(1)
        loss = flow_errors(self.flow, features, chunks, self.generator).mean()
        descend(self.optimizer, loss)
        return {"flow/loss": loss.detach()}

    def act(self, observations: Observations) -> Float32[Tensor, "batch act"]:
        """Return what it would do first if episodes began with these observations."""
        part = next(iter(observations.values())) if isinstance(observations, dict) else observations
        return self.actor(len(part)).act(observations)

    def actor(self, environments: int) -> ChunkedFlowActor:
        """Return what acts in an evaluation, always with the same noise."""
        return ChunkedFlowActor(self, environments)

    @torch.no_grad()
    def plan(
        self, features: Float32[Tensor, "batch seen width"], generator: torch.Generator
    ) -> Float32[Tensor, "batch executed act"]:
        """Return the actions to take before it looks again, in the environment's unit."""
        config, size = self.config, len(self.scaling.action_low)
        noise = torch.randn((len(features), config.planned * size), generator=generator, device=features.device)
        chunks = flow_actions(self.flow, features.flatten(1), noise, config.flow_steps)
        executed = chunks.view(len(chunks), config.planned, size)[:, : config.executed]
        return self.scaling.actions_from_unit(executed)


class ChunkedFlowActor:
    """Acts in several environments, and remembers the last observations of each."""

    def __init__(self, algorithm: ChunkedFlow, environments: int) -> None:
        self.algorithm = algorithm
        like = algorithm.scaling.obs_mean
        shape = (environments, algorithm.config.seen, algorithm.encoder.width)
        self.features = like.new_zeros(shape)
        self.is_new = torch.ones(environments, dtype=torch.bool, device=like.device)
        generator = make_generator(algorithm.seed, 3, like.device)
        self.chunks = ChunkActor(self._plan, environments, generator)

    def begin(self, which: Tensor) -> None:
        """Forget the episodes of some environments."""
        self.is_new |= which.to(self.is_new.device)
        self.chunks.begin(which)

    @torch.no_grad()
    def act(self, observations: Observations) -> Float32[Tensor, "batch act"]:
        """Return the next actions of the plans, in the environment's unit."""
        present = self.algorithm.encoder(observations).unsqueeze(1)
        later = torch.cat([self.features[:, 1:], present], 1)
        self.features = torch.where(self.is_new[:, None, None], present, later)
        self.is_new.fill_(False)
        return self.chunks.act(observations)

    def reward(self, rewards: Float32[Tensor, " batch"]) -> None:
        """Do nothing."""

    def _plan(self, _observations: Observations, generator: torch.Generator) -> Tensor:
        return self.algorithm.plan(self.features, generator)
