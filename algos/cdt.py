"""Constrained Decision Transformer (Liu and others 2023, https://arxiv.org/abs/2302.07351).

    sequence  R_1, C_1, s_1, a_1, .., R_K, C_K, s_K, a_K     returns- and costs-to-go, observations, actions
    L(theta)  = -E[ log pi(a_t | R_1, C_1, s_1, .., C_t, s_t) + temperature H(pi) ]
                + cost_prediction_weight E[ cross entropy of whether step t costs, read at a_t ]

As `dt`, whose transformer it shares, with the cost that an episode still has as a further token, and a Gaussian
policy whose entropy is held near -dim(A) by the temperature. To act, the first return-to-go is `target_return` and
the first cost-to-go is `cost_limit`: a return to ask for, and a cost that may be paid. Each reward is subtracted from
the one, and each cost, as the environment's info tells it, from the other.

The return to ask for is by default the mean of the best tenth of the data's episodes whose cost is within the limit,
so that what is asked for is in the data. Costs are the info `cost` of the dataset's steps, or the column with that
role.

Defaults are OSRL's for BulletSafetyGym (`manifests/recorded/published/hyperparameters.json`, safe / CDT), apart from
target and scales, which are taken from the data. What differs from OSRL (liuzuxin/OSRL, `osrl/algorithms/cdt.py`),
whose authors are the paper's:
- Missing: the augmentation of data with returns and costs that no episode has (section 4.2 of the paper), and the
  prediction of the next observation, whose weight OSRL sets to 0.
- Returns are scaled by 1 / the largest of an episode, and costs by 1 / the largest; OSRL takes 0.1 of returns, and 50
  - cost.
- The chance of an episode grows with how far its cost stays below `costliest`, as OSRL draws; its steps then are
  equally likely. OSRL draws starts up to a window's length before its end.
- Embeddings, layers, padding, dropout and weights at the start are those of `dt`.
- The mean of the loss is over the steps; the mean over action dimensions too, as there.
- Observations are standardized over the dataset by default. OSRL leaves them as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn

from orlog.algos.critics import COST, best_return_within, costs_of, one_over_largest
from orlog.algos.dt import DTActor, DTConfig, act_at_once, clipped_step
from orlog.algos.encoders import encode_windows, encoder_of
from orlog.algos.networks import Scaling, make_generator
from orlog.algos.optimizers import parameters_of
from orlog.algos.settings import Count, NotNegative, Positive
from orlog.algos.transformer import DecisionTransformer, make_dropout
from orlog.loaders.batch import SequenceBatch

_LOG_STDS = (-20.0, 2.0)  # OSRL's have no bounds


class CDTConfig(DTConfig, frozen=True, kw_only=True):
    """Settings of Constrained Decision Transformer; the return to ask for is by default one within the limit."""

    cost_limit: NotNegative = 10.0
    """Cost of an episode to ask for."""
    length: Count = 10
    heads: Count = 8
    longest_episode: Count = 300
    cost_scale: Positive | None = None
    """Factor of costs in the network; by default 1 / the dataset's largest cost of an episode."""
    costliest: NotNegative | None = 50.0
    """Cost from which on episodes are not drawn, the others the more often the cheaper; none draws all alike."""
    cost_prediction_weight: NotNegative = 0.02
    """Factor of the loss of predicting whether a step costs."""
    initial_temperature: Positive = 0.1
    """Factor of the entropy at the start."""
    temperature_learning_rate: Positive = 1e-4
    """Step size of Adam for the temperature."""
    warmup_steps: Count = 500
    batch_size: Count = 2048


class CostTransformer(DecisionTransformer):
    """A transformer that is asked for a return and a cost, and gives a mean and a log standard deviation."""

    WISHES, OUTPUTS = 2, 2


class CDT:
    """Constrained Decision Transformer for continuous actions."""

    CONFIG = CDTConfig
    REPLAYS = False
    FROM_DATA = {  # noqa: RUF012  # it is a constant
        "target_return": (
            "the mean return of the best tenth of the episodes whose cost is within the limit",
            best_return_within,
        ),
        "return_scale": (
            "1 / the largest absolute return of an episode",
            lambda _config, totals: one_over_largest(totals.returns),
        ),
        "cost_scale": (
            "1 / the largest cost of an episode",
            lambda _config, totals: one_over_largest(totals.sum_of(COST)),
        ),
    }
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    CONSTANTS = ("config", "scaling", "target_return", "scales")
    act = act_at_once

    @staticmethod
    def loader(config: CDTConfig) -> tuple[str, dict[str, object]]:
        """Return the loader of its batches: windows of steps, with costs and costs-to-go."""
        cheaper = None if config.costliest is None else (COST, config.costliest)
        arguments = {"batch_size": config.batch_size, "length": config.length}
        more = {"infos": (COST,), "to_go": (COST,), "cheaper": cheaper}
        return "orlog.loaders.sequences:windows_with_sums", {**arguments, **more}

    def __init__(self, config: CDTConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        if None in (config.target_return, config.return_scale, config.cost_scale):
            raise ValueError("target_return, return_scale and cost_scale must be set where no data set them.")
        self.config, self.scaling = config, scaling.to(device)
        assert config.target_return is not None
        self.target_return = config.target_return
        self.scales = [float(scale or 0) for scale in (config.return_scale, config.cost_scale)]
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        action_dim = len(scaling.action_low)
        self.policy = CostTransformer(
            self.encoder.width,
            action_dim,
            config.width,
            layers=config.layers,
            heads=config.heads,
            timesteps=config.longest_episode + config.length,
            generator=generator,
        )
        self.cost_head = nn.utils.skip_init(  # type: ignore[no-untyped-call]  # torch has no types for it
            nn.Linear, config.width, 2, device=device
        )
        nn.init.normal_(self.cost_head.weight, 0, 0.02, generator)
        nn.init.zeros_(self.cost_head.bias)
        temperature = torch.tensor(math.log(config.initial_temperature), device=device)
        self.log_temperature = nn.Parameter(temperature)
        self.optimizer = torch.optim.AdamW(
            parameters_of(self.encoder, self.policy, self.cost_head),
            config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.temperature_optimizer = torch.optim.Adam(
            [self.log_temperature], config.temperature_learning_rate, fused=True
        )
        self.generator = make_generator(seed, 1, device)
        self.step = 0

    def update(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config, mask = self.config, batch.mask
        actions = self.scaling.actions_to_unit(batch.actions)
        to_go = (batch.returns_to_go, batch.infos[f"{COST}_to_go"])
        features = self.policy.features(
            torch.stack([wish * scale for wish, scale in zip(to_go, self.scales, strict=True)], -1),
            encode_windows(self.encoder, batch.observations, mask),
            actions,
            batch.timesteps,
            make_dropout(config.dropout, generator=self.generator),
        )
        means, log_stds = self.policy.head(features[:, :, -2]).chunk(2, -1)
        log_stds = log_stds.clamp(*_LOG_STDS)
        steps = mask.sum()
        entropies = 0.5 + 0.5 * math.log(2 * math.pi) + log_stds
        entropy = (entropies * mask.unsqueeze(-1)).sum() / (steps * actions.shape[-1])
        errors = (actions - means) * torch.exp(-log_stds)
        logs = -(0.5 * errors.square() + log_stds + 0.5 * math.log(2 * math.pi))
        likelihood = (logs * mask.unsqueeze(-1)).sum() / (steps * actions.shape[-1])
        temperature = self.log_temperature.exp()
        policy_loss = -(likelihood + temperature.detach() * entropy)
        guessed = torch.log_softmax(self.cost_head(features[:, :, -1]), -1)
        is_costly = (costs_of(batch) > 0).long().unsqueeze(-1)
        cost_loss = -(guessed.gather(-1, is_costly).squeeze(-1) * mask).mean()
        loss = policy_loss + config.cost_prediction_weight * cost_loss

        norm = clipped_step(self, loss)
        self.temperature_optimizer.zero_grad()
        error = entropy.detach() + actions.shape[-1]
        (temperature * error).backward()
        self.temperature_optimizer.step()
        return {
            "policy/loss": policy_loss.detach(),
            "policy/entropy": entropy.detach(),
            "policy/temperature": temperature.detach(),
            "policy/gradient_norm": norm,
            "cost/loss": cost_loss.detach(),
        }

    def actor(self, environments: int) -> CDTActor:
        """Return what acts in some environments and remembers their episodes."""
        return CDTActor(self, environments)


class CDTActor(DTActor):
    """Acts as `DTActor` does, and asks for a cost besides."""

    algorithm: CDT

    def targets(self) -> list[float]:
        """Return the return and the cost that are asked for at the beginning of an episode."""
        return [self.algorithm.target_return, self.algorithm.config.cost_limit]

    def scales(self) -> list[float]:
        """Return the factors of both."""
        return self.algorithm.scales

    def actions_of(self, timesteps: Int64[Tensor, "batch length"]) -> Float32[Tensor, "batch length act"]:
        """Return the mean action of each step of the windows, within [-1, 1]."""
        policy = self.algorithm.policy
        features = policy.features(self.wishes, self.features, self.actions, timesteps)
        means, _ = policy.head(features[:, :, -2]).chunk(2, -1)
        actions: Tensor = means.clamp(-1, 1)
        return actions

    def notice(self, infos: Mapping[str, Tensor]) -> None:
        """Subtract costs from the cost that may still be paid."""
        self.to_go[:, 1] -= infos[COST]
