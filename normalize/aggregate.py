"""Aggregates of scores over seeds and tasks.

They are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice". Scores of a method are an array [seeds, tasks]: the mean score of each run. Leading axes, such as the
resamples of a bootstrap, are kept. Scores of different tasks must be normalized first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

Aggregate: TypeAlias = Callable[[np.ndarray], np.ndarray]


def mean(scores: Float[np.ndarray, "*resamples seeds tasks"]) -> Float[np.ndarray, "*resamples"]:
    """Return the mean over all runs; one task with extreme scores can decide it."""
    return np.asarray(scores.mean((-2, -1)))


def median(scores: Float[np.ndarray, "*resamples seeds tasks"]) -> Float[np.ndarray, "*resamples"]:
    """Return the median over tasks of the mean over seeds; half of the tasks do not count in it."""
    return np.asarray(np.median(scores.mean(-2), -1))


def interquartile_mean(
    scores: Float[np.ndarray, "*resamples seeds tasks"],
) -> Float[np.ndarray, "*resamples"]:
    """Return the mean of the middle half of all runs: those between the quartiles."""
    runs = scores.reshape(*scores.shape[:-2], -1)
    count = runs.shape[-1]
    low, high = count // 4, count - count // 4
    return np.asarray(np.partition(runs, (low, high - 1), -1)[..., low:high].mean(-1))


def optimality_gap(
    scores: Float[np.ndarray, "*resamples seeds tasks"], *, target: float = 100.0
) -> Float[np.ndarray, "*resamples"]:
    """Return by how much runs miss a score on average; what lies above it does not count."""
    return np.asarray(target - np.minimum(scores, target).mean((-2, -1)))


AGGREGATES: Mapping[str, Aggregate] = {
    "IQM": interquartile_mean,
    "median": median,
    "mean": mean,
    "optimality gap": optimality_gap,
}
"""Each aggregate by its name; of the optimality gap less is better."""
