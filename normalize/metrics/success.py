"""Success: whether an episode reached what it was for, and the share of those that did.

An episode has succeeded if `info["success"]` was true after any of its steps, as mazes, Adroit and Meta-World count;
OGBench ends an episode there. Where there is `info["is_success"]` instead, as in Fetch, the last step counts, as
for the authors of HER (https://arxiv.org/abs/1707.01495).

The interval of one run's share is Wilson's (1927), which has a width where all or none succeeded too; over several
runs it is Student's t of their shares, cut off at 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orlog.manifests.names import counted
from orlog.normalize.metrics.metrics import Metric, Number, Played, mean_over

_NORMAL = 1.959963984540054  # the 97.5 % quantile


def wilson_interval(successes: int, episodes: int) -> tuple[float, float]:
    """Return the interval of a share at 95 % (Wilson's score interval)."""
    share, square = successes / episodes, _NORMAL**2
    middle = (share + square / (2 * episodes)) / (1 + square / episodes)
    spread = share * (1 - share) / episodes + square / (4 * episodes**2)
    half = _NORMAL * spread**0.5 / (1 + square / episodes)
    return max(0.0, middle - half), min(1.0, middle + half)


def share_of_episodes(
    metric: str, name: str, counts: Sequence[np.ndarray], unit: str = "episode"
) -> Number:
    """Return the share of each run's episodes that count, given as flags; `unit` is what an episode is called.

    Its interval is the union of Wilson's over all episodes and Student's t over the runs, between 0 and 1: near 0 and 1
    runs hardly differ, so that t alone is far too narrow, and elsewhere they differ more than their episodes do.
    """
    count, episodes = int(sum(one.sum() for one in counts)), sum(map(len, counts))
    low, high = wilson_interval(count, episodes)
    share, over_runs = mean_over(counts)
    note = f"{count} of {counted(episodes, unit)}" if len(counts) == 1 else ""
    if len(counts) > 1 and over_runs is not None:
        low, high = min(low, max(0.0, over_runs[0])), max(high, min(1.0, over_runs[1]))
    interval = low, high
    return Number(
        metric=metric, name=name, value=share, interval=interval, note=note, is_share=True
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
