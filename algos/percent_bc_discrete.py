"""BC-10% of discrete actions: a classifier of the actions of the best episodes.

    L(pi) = E_(s, a) ~ best episodes [ -log pi(a | s) ] + log_penalty E_s [ mean_a (log pi(a | s))^2 ]

Which episodes are the best is said in `percent_bc`; network, loss and defaults are those of the discrete
form of `bc`, d3rlpy's, which has no choice of episodes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from orlog.algos.bc_discrete import cloning_loss
from orlog.algos.discrete import action_count, actions_from_indices, actions_to_indices
from orlog.algos.encoders import EncoderKind, make_encoder
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam
from orlog.algos.settings import check_settings
from orlog.loaders.batch import StructuredBatch

__all__ = ["PercentBCDiscrete", "PercentBCDiscreteConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PercentBCDiscreteConfig:
    """Settings of behavior cloning of the best episodes, for discrete actions."""

    percent: float = 10.0
    """Share of the episodes, by return, that are imitated, in (0, 100]."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    learning_rate: float = 1e-3
    """Step size of Adam."""
    batch_size: int = 100
    """Transitions in a batch."""
    log_penalty: float = 0.5
    """Weight of the squared logarithms of the likelihoods, >= 0."""
    encoder: EncoderKind = "nature"
    """Convolutions for frames: `nature` or `impala`."""
    random_shift: int = 0
    """Pixels by which frames are moved at random in training, at most; 0 leaves them."""

    def __post_init__(self) -> None:
        check_settings(self)


class PercentBCDiscrete:
    """Behavior cloning of the best episodes with a softmax over discrete actions."""

    CONFIG = PercentBCDiscreteConfig
    FROM_RUN = ()
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("discrete",)
    STATE = ("encoder", "policy", "optimizer")
    CONSTANTS = ("config", "scaling")

    @staticmethod
    def loader(config: PercentBCDiscreteConfig) -> tuple[str, dict[str, float]]:
        """Return the loader of its batches: transitions of the best episodes."""
        arguments = {"batch_size": config.batch_size, "percent": config.percent}
        return "orlog.loaders.best_episodes:best_transitions", arguments

    def __init__(
        self, config: PercentBCDiscreteConfig, scaling: Scaling, *, seed: int, device: str = "cpu"
    ) -> None:
        self.config = config
        self.scaling = scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = make_encoder(
            self.scaling, config.encoder, generator=generator, random_shift=config.random_shift
        )
        self.policy = make_network(
            self.encoder.width, action_count(scaling), config.hidden, generator=generator
        )
        self.optimizer = Adam(
            [*self.encoder.parameters(), *self.policy.parameters()], config.learning_rate
        )

    def update(self, batch: StructuredBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        features = self.encoder(self.encoder.shift(batch.observations))
        actions = actions_to_indices(self.scaling, batch.actions)
        log_likelihoods = torch.log_softmax(self.policy(features), -1)
        loss = cloning_loss(log_likelihoods, actions, self.config.log_penalty)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.optimizer.step()
        agreement = (log_likelihoods.argmax(-1) == actions).to(log_likelihoods.dtype).mean()
        return {"policy/loss": loss.detach(), "policy/agreement": agreement}

    @torch.no_grad()
    def act(self, observations: Any) -> Int64[Tensor, " batch"]:
        """Return the most likely actions."""
        indices = self.policy(self.encoder(observations)).argmax(-1)
        return actions_from_indices(self.scaling, indices)
