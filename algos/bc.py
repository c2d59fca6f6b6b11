"""Behavior cloning: a deterministic policy regressed on the dataset's actions.

    L(pi) = E_(s, a) ~ D [ || pi(s) - a ||^2 ]                  (Pomerleau 1988; mean over action
                                                                 dimensions, as CORL and TD3+BC do)

Defaults are CORL's (`any_percent_bc.py`; `manifests/recorded/published/hyperparameters.json`, BC / CORL):
two hidden layers of 256, tanh output, Adam at 3e-4, batches of 256, observations standardized over
the dataset with 1e-3 added to each deviation, layers that start as `torch.nn.Linear` does. Rewards,
terminations and truncations play no part.

What differs from CORL:
- The loss compares actions mapped from the bounds of the action space to [-1, 1]. CORL's is in the
  environment's unit and scales the policy by one number, the upper bound of the first action: the
  same where all bounds are -1 and 1.
- All transitions of the dataset are used. CORL reads D4RL's Q-learning view, without steps at
  timeouts, and leaves out the unfinished last episode of a file.
- There is no choice of the best episodes (CORL's `frac`, BC-10%): that is `percent_bc`.

What differs from the paper: Pomerleau's network chooses among output units that stand for steering
directions; here a policy for any continuous actions is regressed on them, with Adam.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos.encoders import Observations, encoder_of
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of
from orlog.algos.settings import Common
from orlog.loaders.batch import Batch


class BCConfig(Common, frozen=True, kw_only=True):
    """Settings of behavior cloning."""


def cloning_loss(predicted: Float32[Tensor, "batch act"], actions: Float32[Tensor, "batch act"]) -> Float32[Tensor, ""]:
    """Return the mean squared error over batch and action dimensions."""
    return (predicted - actions).square().mean()


class BC:
    """Behavior cloning with a deterministic tanh policy."""

    CONFIG = BCConfig
    REWARDS = False
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)

    @staticmethod
    def loader(config: BCConfig) -> tuple[str, dict[str, int]]:
        """Return the loader of its batches: transitions."""
        return "orlog.loaders.transitions:transitions", {"batch_size": config.batch_size}

    def __init__(self, config: BCConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config = config
        self.scaling = scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, action_dim = self.encoder.width, len(scaling.action_low)
        self.policy = make_network(width, action_dim, config.hidden, generator=generator)
        self.optimizer = Adam(parameters_of(self.encoder, self.policy), config.learning_rate)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        features = self.encoder(self.encoder.shift(batch.observations))
        actions = self.scaling.actions_to_unit(batch.actions)
        loss = cloning_loss(torch.tanh(self.policy(features)), actions)
        descend(self.optimizer, loss)
        return {"policy/loss": loss.detach()}

    @torch.no_grad()
    def act(self, observations: Observations) -> Float32[Tensor, "batch act"]:
        """Return the policy's actions in the environment's unit."""
        unit = torch.tanh(self.policy(self.encoder(observations)))
        return self.scaling.actions_from_unit(unit)
