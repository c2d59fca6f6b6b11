"""BC-10%: behavior cloning of the best episodes of the data, by their returns.

    L(pi) = E_(s, a) ~ best episodes [ || pi(s) - a ||^2 ]          (%BC in Chen and others 2021,
                                                                     https://arxiv.org/abs/2106.01345)

It shows what learning from rewards adds to choosing the data by them. Defaults are CORL's
(`any_percent_bc.py` with `frac=0.1`; `manifests/published/hyperparameters.json`, BC-10% / CORL), with
the network and the loss of `bc`.

What differs from CORL, besides what `bc` lists:
- The number of episodes is rounded up. CORL rounds it down.
- Observations are standardized over all episodes, not over the best ones.

What differs from the paper: it chooses the best timesteps, by the returns of their episodes, and
reports 10, 25, 40 and 100 %.
"""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos.bc import cloning_loss
from orlog.algos.encoders import EncoderKind, Observations, make_encoder
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam
from orlog.algos.settings import check_settings
from orlog.loaders.batch import Batch

__all__ = ["PercentBC", "PercentBCConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PercentBCConfig:
    """Settings of behavior cloning of the best episodes."""

    percent: float = 10.0
    """Share of the episodes, by return, that are imitated, in (0, 100]."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    learning_rate: float = 3e-4
    """Step size of Adam."""
    batch_size: int = 256
    """Transitions in a batch."""
    encoder: EncoderKind = "nature"
    """Convolutions for frames: `nature` or `impala`."""
    random_shift: int = 0
    """Pixels by which frames are moved at random in training, at most; 0 leaves them."""

    def __post_init__(self) -> None:
        check_settings(self)


class PercentBC:
    """Behavior cloning of the best episodes with a deterministic tanh policy."""

    CONFIG = PercentBCConfig
    FROM_RUN = ()
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    STATE = ("encoder", "policy", "optimizer")
    CONSTANTS = ("config", "scaling")

    @staticmethod
    def loader(config: PercentBCConfig) -> tuple[str, dict[str, float]]:
        """Return the loader of its batches: transitions of the best episodes."""
        arguments = {"batch_size": config.batch_size, "percent": config.percent}
        return "orlog.loaders.best_episodes:best_transitions", arguments

    def __init__(
        self, config: PercentBCConfig, scaling: Scaling, *, seed: int, device: str = "cpu"
    ) -> None:
        self.config = config
        self.scaling = scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = make_encoder(
            self.scaling, config.encoder, generator=generator, random_shift=config.random_shift
        )
        width, action_dim = self.encoder.width, len(scaling.action_low)
        self.policy = make_network(width, action_dim, config.hidden, generator=generator)
        self.optimizer = Adam(
            [*self.encoder.parameters(), *self.policy.parameters()], config.learning_rate
        )

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        features = self.encoder(self.encoder.shift(batch.observations))
        actions = self.scaling.actions_to_unit(batch.actions)
        loss = cloning_loss(torch.tanh(self.policy(features)), actions)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.optimizer.step()
        return {"policy/loss": loss.detach()}

    @torch.no_grad()
    def act(self, observations: Observations) -> Float32[Tensor, "batch act"]:
        """Return the policy's actions in the environment's unit."""
        unit = torch.tanh(self.policy(self.encoder(observations)))
        return self.scaling.actions_from_unit(unit)
