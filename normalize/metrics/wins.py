"""Wins: whether an episode was won, and the share of those that were.

An episode is won if `info["won"]` was true after any of its steps, as games of TextWorld say it. The interval of one
run's share is Wilson's; over several runs it is Student's t of their shares.
"""

from __future__ import annotations

from collections.abc import Sequence

from orlog.manifests.names import counted
from orlog.normalize.metrics.metrics import Metric, Number, Played, mean_over
from orlog.normalize.metrics.success import wilson_interval


def summarize(runs: Sequence[Played]) -> list[Number]:
    """Return the share of episodes that were won."""
    won = [one.metrics["wins"].astype(bool) for one in runs]
    share, interval = mean_over(won)
    note = ""
    if len(won) == 1:
        count, episodes = int(won[0].sum()), len(won[0])
        interval = wilson_interval(count, episodes)
        note = f"{count} of {counted(episodes, 'game')}"
    return [
        Number(
            metric="wins",
            name="share of wins",
            value=share,
            interval=interval,
            note=note,
            is_share=True,
        )
    ]


METRIC = Metric(name="wins", summarize=summarize, combine="any", infos=("won",))
