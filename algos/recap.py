"""Advantage-conditioned cloning (RECAP of pi*0.6, Amin and others 2025, https://arxiv.org/abs/2511.14759).

    I(s, a) = A(s, a) > epsilon, or a person took over             whether the action improves on the data's policy
    L(pi)   = E_(s, a) ~ D [ || pi(s, I) - a ||^2 ]                I is left out of some of the steps
    act     = pi(s, I = 1)

Advantages come with the data: a column with the role `advantage`, such as `infos/advantage` of a layer (`orlog layer --run`, or
`Dataset.with_columns`). All steps are imitated, good and bad; which of them are good is told, and asked for when
acting. `epsilon` is such that a share `positive` of the steps is above it. With `interventions` a column with that role says
where a person took over, and those actions are good ones whatever their advantage.

What differs from the paper:
- The policy is `bc`'s network with I as one more input (1, -1, and 0 where it is left out); the paper's is a
  vision-language-action model that reads I as text and samples actions by a flow.
- The value function is not part of it: any column of advantages will do. The paper learns a distribution of the
  steps to success, for all tasks at once.
- One threshold for the dataset; the paper has one for each task. Guidance that sharpens I = 1 at acting is missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos.bc import BCConfig, cloning_loss
from orlog.algos.encoders import Observations, encoder_of
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of
from orlog.algos.settings import AnyNumber, Share
from orlog.loaders.batch import Batch

ADVANTAGE, INTERVENTION = "advantage", "intervention"


class RECAPConfig(BCConfig, frozen=True, kw_only=True):
    """Settings of advantage-conditioned cloning."""

    positive: Share = 0.3
    """Share of the steps whose advantage is above the threshold."""
    threshold: AnyNumber | None = None
    """Advantage above which an action is a good one; none takes it from `positive`."""
    left_out: Share = 0.3
    """Share of a batch's steps that are imitated without being told whether the action is a good one."""
    interventions: bool = False
    """Whether actions of a person who took over count as good ones: the column with the role `intervention`."""


def _threshold(config: Any, data: Any) -> float:
    return float(np.quantile(data.numbers_of(ADVANTAGE), 1 - config.positive))


class RECAP:
    """Behavior cloning that is told which actions improve on the data's policy, and acts as if the next one does."""

    TITLE = "RECAP"
    CONFIG = RECAPConfig
    REWARDS = False
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    FROM_DATA = {"threshold": ("the advantage that the share `positive` of the steps exceeds", _threshold)}  # noqa: RUF012

    @staticmethod
    def loader(config: RECAPConfig) -> tuple[str, dict[str, Any]]:
        """Return the loader of batches of transitions with their advantages."""
        infos = (ADVANTAGE, INTERVENTION) if config.interventions else (ADVANTAGE,)
        return "orlog.loaders.transitions:transitions", {"batch_size": config.batch_size, "infos": infos}

    def __init__(self, config: RECAPConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        action_dim = len(scaling.action_low)
        self.policy = make_network(self.encoder.width + 1, action_dim, config.hidden, generator=generator)
        self.optimizer = Adam(parameters_of(self.encoder, self.policy), config.learning_rate)
        self.generator = make_generator(seed, 1, device)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        assert self.config.threshold is not None  # filled in from the data
        good = batch.infos[ADVANTAGE].reshape(-1) > self.config.threshold
        if self.config.interventions:
            good = good | (batch.infos[INTERVENTION].reshape(-1) > 0)
        draws = torch.rand(len(good), generator=self.generator, device=good.device)
        indicator = torch.where(good, 1.0, -1.0) * (draws >= self.config.left_out)
        predicted = self._policy(self.encoder.shifted(batch.observations), indicator)
        loss = cloning_loss(predicted, self.scaling.actions_to_unit(batch.actions))
        descend(self.optimizer, loss)
        return {"policy/loss": loss.detach(), "policy/good": good.float().mean()}

    def _policy(self, features: Tensor, indicator: Tensor) -> Float32[Tensor, "batch act"]:
        return torch.tanh(self.policy(torch.cat([features, indicator.unsqueeze(-1)], -1)))

    @torch.no_grad()
    def act(self, observations: Observations) -> Float32[Tensor, "batch act"]:
        """Return the actions that the policy takes where they are to be good ones, in the environment's unit."""
        features = self.encoder(observations)
        return self.scaling.actions_from_unit(self._policy(features, features.new_ones(len(features))))
