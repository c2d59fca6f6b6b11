"""Weights: those of the objectives in each episode, which an environment tells in `info["weights"]`.

They come to no number of their own; metrics over several weights, such as the hypervolume, group episodes by them.
"""

from __future__ import annotations

from collections.abc import Sequence

from orlog.normalize.metrics.metrics import Metric, Number, Played


def summarize(_runs: Sequence[Played]) -> list[Number]:
    """Return no number."""
    return []


METRIC = Metric(
    name="episode_weights", summarize=summarize, combine="last", role="weights", infos=("weights",)
)
