"""Success: whether an episode reached what it was for, and the share of those that did.

An episode has succeeded if `info["success"]` was true after any of its steps, as mazes, Adroit and Meta-World count;
OGBench ends an episode there. Where there is `info["is_success"]` instead, as in Fetch, the last step counts, as
for the authors of HER (https://arxiv.org/abs/1707.01495).

The interval of the share is Wilson's (`statistics.share_interval`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orlog.manifests.names import counted
from orlog.normalize.metrics.metrics import Metric, Number, Played
from orlog.normalize.statistics import share_interval


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
        interval=share_interval(shares, episodes),
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
