"""Wins: whether an episode was won, and the share of those that were.

An episode is won if `info["won"]` was true after any of its steps, as games of TextWorld say it. The interval is that of
shares (`success.share_of_episodes`).
"""

from __future__ import annotations

from collections.abc import Sequence

from orlog.normalize.metrics.metrics import Metric, Number, Played
from orlog.normalize.metrics.success import share_of_episodes


def summarize(runs: Sequence[Played]) -> list[Number]:
    """Return the share of episodes that were won."""
    won = [one.metrics["wins"].astype(bool) for one in runs]
    return [share_of_episodes("wins", "share of wins", won, "game")]


METRIC = Metric(
    name="wins",
    summarize=summarize,
    combine="any",
    infos=("won",),
    judge=lambda run: ("share of wins in %", 100.0 * run.metrics["wins"].astype(bool)),
)
