"""How often the bootstrap's intervals hold the true value, for scores from a known distribution.

Seeds differ by 10 points and the 100 episodes of a seed by 20, so that seeds vary five times as much as
the mean of one is uncertain; for the recorded baselines that is 6 times (BC), 10 (CQL) and 3 (IQL).
`benchmarks/verdicts.py` measures verdicts.

    python benchmarks/intervals.py
"""

from __future__ import annotations

import json

import numpy as np

from orlog.normalize.statistics import (
    bootstrap_interval,
    interquartile_mean,
    percentile_interval,
    share_interval,
    stratified_resamples,
)

SEED_SPREAD, EPISODE_SPREAD, EPISODES = 10.0, 20.0, 100
COVERAGE_RUNS = 1000
RESAMPLES = 500
STRATIFIED_RUNS = STRATIFIED_RESAMPLES = 400
SHARE_RUNS = 20_000


def coverage(seeds: int, *, runs: int = COVERAGE_RUNS) -> float:
    """Return the percentage of bootstrap intervals that hold the mean of the distribution."""
    rng = np.random.default_rng(seeds)
    covered = 0
    for _ in range(runs):
        means = rng.normal(0, SEED_SPREAD, (seeds, 1))
        interval = bootstrap_interval(
            means + rng.normal(0, EPISODE_SPREAD, (seeds, EPISODES)), rng, resamples=RESAMPLES
        )
        covered += interval is not None and interval[0] <= 0 <= interval[1]
    return 100 * covered / runs


def stratified_coverage(seeds: int, tasks: int, *, runs: int = STRATIFIED_RUNS) -> float:
    """Return the percentage of stratified intervals that hold the interquartile mean over tasks."""
    rng = np.random.default_rng(seeds)
    covered = 0
    for _ in range(runs):
        scores = [
            rng.normal(0, SEED_SPREAD, (seeds, 1)) + rng.normal(0, EPISODE_SPREAD, (seeds, EPISODES))
            for _ in range(tasks)
        ]
        drawn = stratified_resamples(scores, rng, resamples=STRATIFIED_RESAMPLES)
        low, high = percentile_interval(interquartile_mean(drawn))
        covered += bool(low <= 0 <= high)
    return 100 * covered / runs


def share_coverage(seeds: int, share: float, correlation: float) -> float:
    """Return the percentage of intervals of shares that hold the method's share, over its seeds.

    Shares of seeds follow a beta distribution, under which two episodes of a seed have this correlation.
    """
    rng = np.random.default_rng(seeds)
    scale = 1 / correlation - 1
    of_seeds = rng.beta(share * scale, (1 - share) * scale, (SHARE_RUNS, seeds))
    ends = [share_interval(shares, EPISODES * seeds) for shares in rng.binomial(EPISODES, of_seeds) / EPISODES]
    return 100 * float(np.mean([low <= share <= high for low, high in ends]))


def main() -> None:
    """Print one JSON object."""
    found = {
        "bootstrap coverage of 95 %, by seeds": {seeds: round(coverage(seeds), 1) for seeds in (2, 3, 5, 8)},
        "stratified coverage of 95 % for the IQM, by seeds and tasks": {
            seeds: {tasks: round(stratified_coverage(seeds, tasks), 1) for tasks in (1, 3, 10)}
            for seeds in (2, 3, 5, 10)
        },
    }
    found["coverage of 95 % for shares, by share, correlation of a seed's episodes, and seeds"] = {
        share: {
            correlation: {seeds: round(share_coverage(seeds, share, correlation), 1) for seeds in (2, 3, 5, 10)}
            for correlation in (0.001, 0.05, 0.3)
        }
        for share in (0.5, 0.1, 0.02)
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
