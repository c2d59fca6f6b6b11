"""Lost value: how far the mean return of a policy is from the best one that there is, where that is known exactly.

A world that knows its values says in `info["regret"]` what each action loses against the best one,
V*(s) - Q*(s, a) for the steps that are left (`datasets/environments/tables.py`); it is counted where the data have
such values too (role `optimal_value`). The mean over episodes of its sum is,
by the performance difference lemma (Kakade and Langford 2002), the best possible mean return minus that of the
policy; it varies less than returns do, and is exactly 0 for a policy that always acts best.
"""

from __future__ import annotations

from collections.abc import Sequence

from orlog.normalize.metrics.metrics import Metric, Number, Played, mean_over


def summarize(runs: Sequence[Played]) -> list[Number]:
    """Return the distance to the exact optimum, in the unit of returns."""
    value, interval = mean_over([one.metrics["lost_value"].astype(float) for one in runs])
    return [
        Number(
            metric="lost_value",
            name="distance to the optimum",
            value=value,
            interval=interval,
            digits=3,
        )
    ]


METRIC = Metric(
    name="lost_value", summarize=summarize, combine="sum", role="optimal_value", infos=("regret",)
)
