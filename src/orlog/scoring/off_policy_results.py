"""What off-policy evaluation gives: estimates with intervals, for each policy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orlog.algos.fitted_q_evaluation import FQESettings
from orlog.normalize.references import Protocol
from orlog.normalize.statistics import percentile_interval


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its 95 % interval: a bootstrap over episodes, for `fqe` also the spread of its fits.

    Attributes:
        value: The number.
        interval: None where resamples show no spread, or some of them have no such number.
    """

    value: float
    interval: tuple[float, float] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPolicy:
    """A checkpoint with its estimated values and the measured one.

    Attributes:
        run: Folder of the run.
        algorithm: Its algorithm.
        seed: Its seed.
        step: Gradient steps that the policy had taken.
        estimates: By estimator; without those that are left out.
        value: Measured mean discounted return; None if nothing was measured.
        mean_return: Measured mean undiscounted return of the same episodes.
        effective_episodes: How many equally weighted episodes the weights are worth; None without
            importance sampling.
        beyond_truncations: How much of `fqe`, `dr` and `wdr` at most stands for steps after
            truncations, which nothing recorded can correct: the mean over episodes of
            discount^H V(s_H), with H the length of a truncated episode.
    """

    run: Path
    algorithm: str
    seed: int
    step: int
    estimates: dict[str, Estimate]
    value: Estimate | None
    mean_return: float | None
    effective_episodes: float | None
    beyond_truncations: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyResult:
    """What `evaluate_off_policy` found.

    Attributes:
        dataset: Name of the dataset that the runs were trained on.
        digest: Its digest.
        on: Name of the other dataset that values were taken from; None if it is the same.
        on_digest: Its digest.
        discount: Weight of the next step in all values.
        settings: Settings of fitted Q evaluation.
        policies: The checkpoints.
        quality: By estimator, of those that all checkpoints have: `absolute_error`,
            `rank_correlation` and `regret_at_1`, over checkpoints. Empty if nothing was measured; with
            one checkpoint it holds the error only.
        left_out: By estimator the reason why it is left out.
        notes: What to know before the numbers are read, a sentence each.
        protocol: How returns were measured; None if they were not.
    """

    dataset: str
    digest: str
    on: str | None
    on_digest: str | None
    discount: float
    settings: FQESettings
    policies: list[EvaluatedPolicy]
    quality: dict[str, dict[str, Estimate]]
    left_out: dict[str, str]
    notes: list[str]
    protocol: Protocol | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        body: dict[str, Any] = msgspec.to_builtins(
            {field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            enc_hook=str,
        )
        return body


def estimate_of(value: float, draws: np.ndarray) -> Estimate:
    """Return a value with the interval of its resamples; none where they cannot show one."""
    if not np.isfinite(draws).all() or np.ptp(draws) == 0:
        return Estimate(value=value, interval=None)
    low, high = percentile_interval(draws, 0.95)
    return Estimate(value=value, interval=(float(low), float(high)))
