"""Behavior cloning: a deterministic policy regressed on the dataset's actions.

    L(pi) = E_(s, a) ~ D [ || pi(s) - a ||^2 ]                  (Pomerleau 1988; mean over action
                                                                 dimensions, as CORL and TD3+BC do)

Defaults are CORL's (`any_percent_bc.py`; `manifests/recorded/published/hyperparameters.json`, BC / CORL): tanh
output, observations standardized over the dataset with 1e-3 added to each deviation, layers that start as
`torch.nn.Linear` does. Rewards, terminations and truncations play no part.

What differs from CORL:
- The loss compares actions mapped from the bounds of the action space to [-1, 1]. CORL's is in the environment's unit
  and scales the policy by the upper bound of the first action: the same where all bounds are -1 and 1.
- All transitions are used. CORL reads D4RL's Q-learning view, without steps at timeouts, and leaves out the
  unfinished last episode of a file.
- There is no choice of the best episodes (CORL's `frac`, BC-10%): that is `percent_bc`.

What differs from the paper: Pomerleau's network chooses among output units that stand for steering directions.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos.critics import transitions_of
from orlog.algos.encoders import encoder_of
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of
from orlog.algos.policies import act_tanh
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
    loader = staticmethod(transitions_of)
    act = act_tanh

    def __init__(self, config: BCConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        self.policy = make_network(self.encoder.width, len(scaling.action_low), config.hidden, generator=generator)
        self.optimizer = Adam(parameters_of(self.encoder, self.policy), config.learning_rate)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        features = self.encoder.shifted(batch.observations)
        actions = self.scaling.actions_to_unit(batch.actions)
        loss = cloning_loss(torch.tanh(self.policy(features)), actions)
        descend(self.optimizer, loss)
        return {"policy/loss": loss.detach()}
