"""Confidence intervals of means and other statistics over seeds and episodes.

Scores of one algorithm on one dataset are an array [seeds, episodes]. Two things vary: how a seed
trained, and how an episode went. The bootstrap therefore resamples seeds, and inside each seed its
episodes (Davison and Hinkley 1997, section 3.8); every function takes its generator. Over several
tasks it is stratified: each task draws its own seeds (Agarwal et al. 2021, section 4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from orlog.normalize.method_scores import check_finite

BOOTSTRAP_COVERAGE = {2: 64, 3: 78, 5: 85, 8: 89}
"""Percent of 95 % intervals that hold the mean, by number of seeds (`benchmarks/intervals.py`)."""

BOOTSTRAP_NOTE = (
    "The interval is a bootstrap over seeds and over the episodes of each seed. With few seeds it is "
    "too narrow: the mean should lie inside it in 95 % of cases, but does so in "
    + ", ".join(f"{share} % with {seeds} seeds" for seeds, share in BOOTSTRAP_COVERAGE.items())
    + " (measured on normally distributed scores whose seeds vary five times as much as the mean of "
    "one seed is uncertain; fewer where they vary more). The interval of a single seed says nothing "
    "about other seeds. Where all scores are equal, there is no interval."
)
"""What to print where the interval is printed."""

_MOST_DRAWN = 2_000_000  # numbers drawn at once: 16 MB


def mean_interval(values: Float[np.ndarray, " values"]) -> tuple[float, float] | None:
    """Return the interval of the mean at 95 % by Student's t; None without spread."""
    if len(values) < 2 or np.ptp(values) == 0:
        return None
    from scipy.special import stdtrit  # the quantile of Student's t; scipy.stats imports slowly

    count, mean = len(values), float(values.mean())
    half = float(stdtrit(count - 1, 0.975)) * float(values.std(ddof=1)) / count**0.5
    return mean - half, mean + half


def bootstrap_interval(
    scores: Float[np.ndarray, "seeds episodes"],
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> tuple[float, float] | None:
    """Return the percentile interval of the mean over seeds and episodes.

    None where the scores show no spread: an interval without width would claim to be certain. With
    few seeds it is too narrow (`BOOTSTRAP_COVERAGE`): three can show hardly more than their range.
    """
    if np.ptp(scores) == 0:
        return None
    seeds, episodes = scores.shape
    means = np.empty(resamples)
    for index in range(resamples):
        chosen = rng.integers(seeds, size=(seeds, 1))
        which = rng.integers(episodes, size=(seeds, episodes))
        means[index] = scores[chosen, which].mean()
    outside = (1 - confidence) / 2
    low, high = np.quantile(means, [outside, 1 - outside])
    return (float(low), float(high)) if low < high else None


def stratified_resamples(
    scores: Sequence[Float[np.ndarray, "seeds episodes"]],
    rng: np.random.Generator,
    *,
    resamples: int,
) -> Float[np.ndarray, "resamples seeds tasks"]:
    """Return the mean score of each run in bootstrap resamples of a method's scores by task.

    Each task draws seeds with replacement, and each drawn seed its episodes. With one episode for
    each seed, such as a mean that others published, only seeds are drawn, as rliable does.
    """
    seeds = len(scores[0])
    means = np.empty((resamples, seeds, len(scores)))
    for task, one in enumerate(scores):
        episodes = one.shape[1]
        at_once = max(1, _MOST_DRAWN // (seeds * episodes))
        for start in range(0, resamples, at_once):
            size = (min(at_once, resamples - start), seeds)
            chosen = rng.integers(seeds, size=size)
            which = rng.integers(episodes, size=(*size, episodes))
            means[start : start + at_once, :, task] = one[chosen[..., None], which].mean(-1)
    return means


def stratified_interval(
    statistic: Callable[..., np.ndarray],
    *scores: Sequence[Float[np.ndarray, "seeds episodes"]],
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the percentile interval of a statistic, from a stratified bootstrap.

    The scores of several methods are resampled independently. With few seeds the interval is too narrow, as
    is that of `bootstrap_interval`; where scores do not differ it has no width. A method with one seed is
    refused, which says nothing about other seeds.

    The statistic takes, for each method, an array [resamples, seeds, tasks] of mean scores of runs, and
    returns an array with one entry, or one row of entries, for each resample. Scores are those of each method
    by task; methods may have different numbers of seeds, tasks may not.
    """
    if min(len(one[0]) for one in scores) < 2:
        raise ValueError("an interval over seeds needs at least two of them.")
    for one in scores:
        for task in one:
            check_finite(task)
    drawn = [stratified_resamples(one, rng, resamples=resamples) for one in scores]
    return percentile_interval(statistic(*drawn), confidence)


def percentile_interval(
    values: Float[np.ndarray, "resamples ..."], confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends between which the middle of a statistic's resampled values lies."""
    outside = (1 - confidence) / 2
    low, high = np.quantile(values, [outside, 1 - outside], axis=0)
    return np.asarray(low), np.asarray(high)
