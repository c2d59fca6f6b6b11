"""Success by task, its mean over tasks, and in tasks that were left out of the training data.

Counted in runs on datasets with a column of the role `task`, in environments whose info has the number of the task:
`info["task"]`. A task counts as left out if no episode that the run was trained on has its number, so a run on
`ds.filter_episodes("task != 3")` is scored on the others, and apart from them on task 3, of which it has seen
nothing; runs that leave out a task each, summarized together, give the leave-one-out number. Learning-to-Modulate
(Schmied and others, 2023, https://arxiv.org/abs/2306.14884) leaves ten of 50 tasks out of the training of its
Decision Transformer, and then trains on them too; here nothing is learned from what was left out.

Each task counts alike, however many episodes it has. Where the environment tells no success it is the return.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orlog.datasets.reading.dataset import Dataset
from orlog.manifests.names import counted
from orlog.manifests.roles import columns_with
from orlog.normalize.intervals import mean_interval
from orlog.normalize.metrics.metrics import Metric, Number, Played, mean_over
from orlog.normalize.metrics.success import share_of_episodes


def with_left_out(tasks: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Return the task of each episode, and whether it was left out of the training data: (episodes, 2)."""
    seen = [np.unique(dataset.column(one)) for one in columns_with(dataset.roles, "task")]
    return np.stack([tasks, ~np.isin(tasks, np.concatenate(seen))], axis=1).astype(np.float64)


def summarize(runs: Sequence[Played]) -> list[Number]:
    """Return the mean over tasks, the number of each task, and that of tasks that were left out."""
    is_success = all("success" in one.metrics for one in runs)
    what = "success rate" if is_success else "return"
    each: dict[int, list[np.ndarray]] = {}
    means, left_out = [], []
    for run in runs:
        values = np.asarray(run.metrics["success"] if is_success else run.returns, np.float64)
        task, is_left_out = run.metrics["by_task"].T
        here = {}
        for number in np.unique(task).astype(int).tolist():
            chosen = values[task == number]
            if is_left_out[task == number].any():
                left_out.append(chosen)
            else:
                here[number] = chosen
        for number, chosen in here.items():
            each.setdefault(number, []).append(chosen)
        if here:
            means.append(np.mean([one.mean() for one in here.values()]))

    found = []
    if means:
        interval = mean_interval(np.array(means)) if len(means) > 1 else None
        found.append(
            Number(
                metric="by_task",
                name=f"{what}, mean over tasks",
                value=float(np.mean(means)),
                interval=interval,
                note=counted(len(each), "task"),
                is_share=is_success,
            )
        )
    found += [
        _number(f"{what} in task {number}", some, is_success)
        for number, some in sorted(each.items())
    ]
    if left_out:
        found.append(_number(f"{what} in tasks that were left out", left_out, is_success))
    return found


def _number(name: str, some: list[np.ndarray], is_success: bool) -> Number:
    """Return the mean of some episodes: those of a run, or of several, which count alike."""
    if is_success:
        return share_of_episodes("by_task", name, some)
    value, interval = mean_over(some)
    return Number(metric="by_task", name=name, value=value, interval=interval)


METRIC = Metric(
    name="by_task",
    summarize=summarize,
    combine="last",
    role="task",
    infos=("task",),
    complete=with_left_out,
)
