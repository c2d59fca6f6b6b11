"""Success by task, its mean over tasks, and in tasks that were left out of the training data.

Counted in runs on datasets with a column of the role `task`, in environments whose info has the number of the task:
`info["task"]`. A task counts as left out if no episode that the run was trained on has its number, so a run on
`ds.filter_episodes("task != 3")` is scored on the others, and apart from them on task 3, of which it has seen
nothing; runs that leave out a task each, summarized together, give the leave-one-out number. Learning-to-Modulate
(Schmied and others, 2023, https://arxiv.org/abs/2306.14884) leaves ten of 50 tasks out of the training of its
Decision Transformer, and then trains on them too; here nothing is learned from what was left out.

Tasks are called by their words where the dataset is here and has a column of the role `task_words`, or where they
ship, in `manifests/recorded/NAME/tasks.json`; else by their numbers. Each counts alike, however many episodes it
has. Where the environment tells no success it is the return.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from orlog.datasets.home.folders import datasets_folder, installed_versions
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import open_dataset
from orlog.errors import OrlogError
from orlog.loaders.arrays.texts import TextTable
from orlog.manifests.columns import offsets_column
from orlog.manifests.names import counted, parse_name
from orlog.manifests.roles import columns_with
from orlog.manifests.shipped import recorded_folder
from orlog.normalize.metrics.metrics import Metric, Number, Played, mean_over
from orlog.normalize.metrics.success import share_of_episodes
from orlog.normalize.statistics import mean_interval, share_interval

_LONGEST = 60  # characters of a task's words


def with_left_out(tasks: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Return the task of each episode, and whether it was left out of the training data: (episodes, 2)."""
    seen = [np.unique(dataset.column(one)) for one in columns_with(dataset.roles, "task")]
    return np.stack([tasks, ~np.isin(tasks, np.concatenate(seen))], axis=1).astype(np.float64)


def summarize(runs: Sequence[Played]) -> list[Number]:
    """Return the mean over tasks, the number of each task, and that of tasks that were left out."""
    is_success = all("success" in one.metrics for one in runs)
    what = "success rate" if is_success else "return"
    each: dict[int, list[np.ndarray]] = {}
    means, left_out, episodes = [], [], 0
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
            means.append(float(np.mean([one.mean() for one in here.values()])))
            episodes += sum(map(len, here.values()))

    found = []
    datasets = {one.dataset for one in runs}
    words = words_of_tasks(*datasets) if len(datasets) == 1 else {}
    if means:
        interval = share_interval(means, episodes) if is_success else mean_interval(np.array(means))
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
        _number(f"{what} in {words.get(number, f'task {number}')}", some, is_success)
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


def words_of_tasks(dataset: str) -> Mapping[int, str]:
    """Return the words of each task's number; of numbers that nobody has words for, none.

    A number has words if all of its episodes have the same ones, and no other number has them.
    """
    try:
        shipped = recorded_folder(parse_name(dataset).name) / "tasks.json"
        if shipped.is_file():
            return dict(enumerate(msgspec.json.decode(shipped.read_bytes(), type=list[str])))
        return _words_in_data(dataset, datasets_folder(), tuple(installed_versions(dataset)))
    except OrlogError:  # data that are not here, or not whole: numbers say enough
        return {}


@functools.lru_cache(maxsize=64)
def _words_in_data(name: str, _home: Path, _versions: tuple[str, ...]) -> Mapping[int, str]:
    """Return the words that a dataset has; read again where other versions are here."""
    dataset = open_dataset(name)
    numbers, words = _of_episodes(dataset, "task"), _of_episodes(dataset, "task_words")
    if numbers is None or words is None:
        return {}
    pairs = {*zip(numbers.tolist(), words.tolist(), strict=True)}
    all_numbers, all_words = ([pair[place] for pair in pairs] for place in (0, 1))
    return {
        int(number): word if len(word) <= _LONGEST else f"{word[: _LONGEST - 2]}.."
        for number, word in sorted(pairs)
        if word and all_words.count(word) == 1 and all_numbers.count(number) == 1
    }


def _of_episodes(dataset: Dataset, role: str) -> np.ndarray | None:
    """Return a value for each episode from the first column of a role; of steps that of the first step."""
    columns = [one for one in columns_with(dataset.roles, role) if not one.startswith("obs")]
    if not columns:
        return None
    name, *_ = columns
    rows = np.arange(len(dataset)) if name.startswith("episodes/") else dataset.episode_starts
    if offsets_column(name) not in dataset.columns:
        return dataset.rows(name, rows)
    table = TextTable(name)
    places = table.read(dataset, 0, int(rows[-1]) + 1 if len(rows) else 0)
    words: np.ndarray = np.array(table.texts, object)[places[rows]]
    return words


METRIC = Metric(
    name="by_task",
    summarize=summarize,
    combine="last",
    role="task",
    infos=("task",),
    complete=with_left_out,
)
