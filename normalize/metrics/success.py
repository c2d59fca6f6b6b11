"""Success: whether an episode reached what it was for, and the share of those that did.

An episode has succeeded if `info["success"]` was true after any of its steps, as mazes, Adroit and Meta-World count;
OGBench ends an episode there. Where there is `info["is_success"]` instead, as in Fetch, the last step counts, as
for the authors of HER (https://arxiv.org/abs/1707.01495).

The interval of one run's share is Wilson's (1927), which has a width where all or none succeeded too; over several
runs `share_interval` has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orlog.manifests.names import counted
from orlog.normalize.intervals import mean_interval
from orlog.normalize.metrics.metrics import Metric, Number, Played

_NORMAL = 1.959963984540054  # the 97.5 % quantile


def wilson_interval(successes: int, episodes: int) -> tuple[float, float]:
    """Return the interval of a share at 95 % (Wilson's score interval)."""
    share, square = successes / episodes, _NORMAL**2
    middle = (share + square / (2 * episodes)) / (1 + square / episodes)
    spread = share * (1 - share) / episodes + square / (4 * episodes**2)
    half = _NORMAL * spread**0.5 / (1 + square / episodes)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))  # rounding


def share_interval(counts: Sequence[np.ndarray], shares: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the mean share of runs: of each the episodes as flags, and its share.

    It is the union of Wilson's over all episodes and Student's t over the runs, between 0 and 1: near 0 and 1
    runs hardly differ, so that t alone is far too narrow, and elsewhere they differ more than their episodes do.
    """
    mean = float(np.mean(shares))
    pooled = wilson_interval(int(sum(one.sum() for one in counts)), sum(map(len, counts)))
    over_runs = mean_interval(np.array(shares, float)) or (mean, mean)
    return max(0.0, min(pooled[0], over_runs[0])), min(1.0, max(pooled[1], over_runs[1]))


def share_of_episodes(
    metric: str, name: str, counts: Sequence[np.ndarray], unit: str = "episode"
) -> Number:
    """Return the share of each run's episodes that count, given as flags; `unit` is what an episode is called."""
    shares = [float(one.mean()) for one in counts]
    count, episodes = int(sum(one.sum() for one in counts)), sum(map(len, counts))
    return Number(
        metric=metric,
        name=name,
        value=float(np.mean(shares)),
        interval=share_interval(counts, shares),
        note=f"{count} of {counted(episodes, unit)}" if len(counts) == 1 else "",
        is_share=True,
    )


def summarize(runs: Sequence[Played]) -> list[Number]:
    """Return the share of episodes that succeeded."""
    reached = [one.metrics["success"].astype(bool) for one in runs]
    return [share_of_episodes("success", "success rate", reached)]


METRIC = Metric(
    name="success",
    judge=lambda run: ("success rate in %", 100.0 * run.metrics["success"].astype(bool)),
    summarize=summarize,
    combine="any",
    infos=("success", "is_success"),
    at_end=frozenset({"is_success"}),
    kept_as="successes",
)
