"""Metrics: what is counted in the episodes of an evaluation beside their return, and the numbers that it comes to.

`METRICS` has each of them: which infos of steps are counted, and how, and the function that makes named numbers of
runs. Nothing else names them: evaluations keep what every metric counted that applies, and commands, reports and the
viewer show the numbers of `numbers_of`. The function is given all runs that are summarized together, each with its
returns, what all metrics counted, its dataset and its settings, so that a metric may be over tasks, weights or runs.
(An aggregate over seeds and tasks, such as the IQM, is another thing: `normalize/statistics.py`.)

An episode has succeeded if `info["success"]` was true after any of its steps, as mazes, Adroit and Meta-World count;
of `info["is_success"]`, as in Fetch, the last step counts, as for the authors of HER
(https://arxiv.org/abs/1707.01495). A normalized cost is the cost divided by a limit, and safe if at most 1 (DSRL, Liu
and others, 2023). `info["regret"]` is what an action loses against the best one, V*(s) - Q*(s, a); the mean over
episodes of its sum is the best possible mean return minus that of the policy (Kakade and Langford 2002).
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from jaxtyping import Float

from orlog.datasets.home.folders import datasets_folder, installed_versions
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import open_dataset
from orlog.datasets.reading.selection import episode_column
from orlog.datasets.worlds import objectives
from orlog.errors import OrlogError
from orlog.manifests.benchmarks import find_benchmark_dataset
from orlog.manifests.columns import axis_of
from orlog.manifests.documents import convert_json
from orlog.manifests.names import counted, parse_name
from orlog.manifests.roles import columns_with
from orlog.manifests.shipped import recorded_folder
from orlog.normalize.references import normalized_cost
from orlog.normalize.rollouts import Count
from orlog.normalize.statistics import mean_interval, share_interval

COST_LIMITS = (10.0, 20.0, 40.0)  # the limits of DSRL for BulletSafetyGym, for datasets without limits of their own

# Reference points of hypervolumes: a little worse than all that the best policies come to; zeros elsewhere.
REFERENCE_POINTS: dict[str, tuple[float, ...]] = {
    "objectives/treasure-v1": (0.0, -25.0),
    "objectives/gathering-v1": (-0.25, 0.0, 0.0),
}
HEADINGS = ("counted", "mean", "95 % interval", "")  # what the cells of a number are; of a share the mean is in percent
_INFOS = "infos/"
_LONGEST = 60  # characters of a task's words
_Kept = list[bool | float | list[float]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeOutcomes:
    """What came of the episodes of one run, or of several runs in a row."""

    returns: np.ndarray  # undiscounted return of each episode, (episodes,)
    metrics: Mapping[str, np.ndarray]  # what each counted: (episodes,), or (episodes, n) of a vector
    dataset: str = ""  # name of the dataset, or of the benchmark's that it is
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def first(self, episodes: int) -> EpisodeOutcomes:
        """Return what came of the first episodes alone."""
        metrics = {name: values[:episodes] for name, values in self.metrics.items()}
        return dataclasses.replace(self, returns=self.returns[:episodes], metrics=metrics)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number that a metric gives for episodes."""

    metric: str
    name: str  # what it is, in words
    value: float
    # Its interval at 95 %: over the episodes of one run, or over several runs; None without spread.
    interval: tuple[float, float] | None = None
    note: str = ""  # what else is to be said of it, such as `safe`
    is_share: bool = False  # whether it is a share, which texts show in percent
    digits: int = 1  # digits behind the point in texts

    def cells(self) -> list[str]:
        """Return name, value, interval and note, for a row of a table (`HEADINGS`)."""
        return [self.name, self._text(self.value), self._interval(), self.note]

    @property
    def short(self) -> str:
        """Name and value."""
        return f"{self.name} {self._text(self.value)}"

    def __str__(self) -> str:
        """Return it in one line: `success rate 40.0 % (4 of 10 episodes, 95 % interval 16.8 to 68.7)`."""
        interval = f"95 % interval {self._interval()}" if self.interval is not None else ""
        more = ", ".join(filter(None, (self.note, interval)))
        return self.short + (f" ({more})" if more else "")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "metric": self.metric,
            "name": self.name,
            "value": self.value,
            "interval": None if self.interval is None else list(self.interval),
            "note": self.note,
        }

    def _text(self, value: float) -> str:
        return f"{100 * value:z.{self.digits}f} %" if self.is_share else f"{value:z.{self.digits}f}"

    def _interval(self) -> str:
        ends = [self._text(end).removesuffix(" %") for end in self.interval or ()]
        return " to ".join(ends)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What is counted in episodes, and what it comes to."""

    # Returns the numbers of one run, or of several runs that are summarized together.
    summarize: Callable[[Sequence[EpisodeOutcomes]], list[Number]]
    combine: Literal["sum", "last", "any"]  # what becomes of the infos of an episode's steps
    role: str = ""  # of the columns whose infos are counted; empty for a metric of any dataset
    infos: tuple[str, ...] = ()  # that are counted besides; of each step the first that is there
    at_end: frozenset[str] = frozenset()  # those of which only the last step of an episode counts
    kept_as: str = ""  # where evaluations keep it, if not with the others under its name
    # Returns what is kept, from what was counted and the dataset that the run was trained on.
    complete: Callable[[np.ndarray, Dataset], np.ndarray] = lambda values, _dataset: values
    # Returns what verdicts compare of a run beside its return: the number's name with its unit, and its values,
    # of which 100 are the whole, so that 5 are as little as 5 points of a score; None if nothing.
    judge: Callable[[EpisodeOutcomes], tuple[str, np.ndarray] | None] = lambda _run: None


# What evaluations count and keep.


def counts_for(roles: Mapping[str, str]) -> list[Count]:
    """Return what is counted in evaluations of runs on a dataset with these roles."""
    counts = []
    for name, metric in METRICS.items():
        columns = columns_with(roles, metric.role) if metric.role else []
        if columns or not metric.role:
            recorded = [column.removeprefix(_INFOS) for column in columns if column.startswith(_INFOS)]
            infos = (*recorded, *metric.infos)
            counts.append(Count(name=name, infos=infos, at_end=metric.at_end, combine=metric.combine))
    return counts


def warn_of_untold(name: str, roles: Mapping[str, str], counted: Mapping[str, np.ndarray]) -> None:
    """Warn of what the roles of a dataset ask to count, and its environment has not told."""
    for count in counts_for(roles):
        if METRICS[count.name].role and count.name not in counted:
            warnings.warn(
                f"{name}: the environment's info has no {' or '.join(count.infos)}, so the {count.name} of "
                "episodes is not counted; score in an environment that tells it.",
                stacklevel=4,
            )


def completed(counted: Mapping[str, np.ndarray], dataset: Dataset) -> dict[str, np.ndarray]:
    """Return what metrics keep of what they counted, for a run that was trained on a dataset."""
    return {name: METRICS[name].complete(values, dataset) for name, values in counted.items()}


def as_fields(counted: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return what metrics counted as the fields in which evaluations keep it."""
    fields: dict[str, Any] = {}
    for name, values in counted.items():
        kept_as = METRICS[name].kept_as
        if kept_as:
            fields[kept_as] = values.tolist()
        else:
            fields.setdefault("metrics", {})[name] = values.tolist()
    return fields


def of_fields(fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return what metrics counted, from the fields of an evaluation or of a line of the log."""
    kept = {name: fields.get(metric.kept_as) for name, metric in METRICS.items() if metric.kept_as}
    kept |= fields.get("metrics") or {}
    return {name: np.array(convert_json(values, _Kept)) for name, values in kept.items() if values}


# The numbers of runs.


def numbers_of(runs: Sequence[EpisodeOutcomes]) -> list[Number]:
    """Return the numbers of runs that are summarized together, of every metric that all of them have."""
    return [
        number
        for name, metric in METRICS.items()
        if runs and all(name in run.metrics and len(run.metrics[name]) for run in runs)
        for number in metric.summarize(runs)
    ]


def in_short(numbers: Sequence[Number]) -> list[str]:
    """Return the first number of each metric, which says most, with its name."""
    first: dict[str, Number] = {}
    for number in numbers:
        first.setdefault(number.metric, number)
    return [number.short for number in first.values()]


def mean_of_runs(metric: str, name: str, runs: Sequence[np.ndarray], digits: int = 1, note: str = "") -> Number:
    """Return the mean of runs' values with its interval over the episodes of one run, or over several runs.

    Each run counts alike, however many episodes it has.
    """
    means = np.array([values.mean() for values in runs], float)
    interval = mean_interval(means if len(runs) > 1 else np.asarray(runs[0], float))
    return Number(metric=metric, name=name, value=float(means.mean()), interval=interval, note=note, digits=digits)


def share_of_episodes(metric: str, name: str, flags: Sequence[np.ndarray], unit: str = "episode") -> Number:
    """Return the share of each run's episodes that count, given as flags; `unit` is what an episode is called."""
    shares = [float(of_run.mean()) for of_run in flags]
    episodes = sum(map(len, flags))
    return Number(
        metric=metric,
        name=name,
        value=float(np.mean(shares)),
        interval=share_interval(shares, episodes),
        note=f"{int(flags[0].sum())} of {counted(episodes, unit)}" if len(flags) == 1 else "",
        is_share=True,
    )


def _values(runs: Sequence[EpisodeOutcomes], metric: str) -> list[np.ndarray]:
    return [run.metrics[metric].astype(float) for run in runs]


# Cost.


def cost_limits(runs: Sequence[EpisodeOutcomes]) -> list[float]:
    """Return the limits at which runs are scored, ascending.

    DSRL scores at three limits, those of its table for the dataset; other datasets have `COST_LIMITS`, and all
    that a run was trained for counts too (its setting `cost_limit`).
    """
    limits: set[float] = set()
    for run in runs:
        known = find_benchmark_dataset(run.dataset)
        listed = "" if known is None else known.facts.get("target_cost_thresholds", "")
        limits |= {*map(float, listed.split())} or {*COST_LIMITS}
        own = run.settings.get("cost_limit")
        if isinstance(own, int | float) and own >= 0:
            limits.add(float(own))
    return sorted(limits)


def _cost(runs: Sequence[EpisodeOutcomes]) -> list[Number]:
    mean = mean_of_runs("cost", "cost", _values(runs, "cost"))
    if mean.interval is not None:  # Student's t knows nothing of what a cost may be
        mean = dataclasses.replace(mean, interval=(max(0.0, mean.interval[0]), mean.interval[1]))
    numbers = [mean]
    for limit in cost_limits(runs):
        value, *ends = (normalized_cost(np.array(cost), limit) for cost in (mean.value, *(mean.interval or ())))
        numbers.append(
            Number(
                metric="cost",
                name=f"normalized cost at {limit:g}",
                value=value,
                interval=(ends[0], ends[1]) if ends else None,
                note="safe" if value <= 1 else "not safe",
                digits=2,
            )
        )
    return numbers


def _judged_cost(run: EpisodeOutcomes) -> tuple[str, np.ndarray]:
    """Return the cost of each episode, in percent of the limit that the run was trained for or of a usual one."""
    own, limits = run.settings.get("cost_limit"), cost_limits([run])
    limit = float(own) if own in limits else limits[len(limits) // 2]
    costs = [100 * normalized_cost(cost, limit) for cost in run.metrics["cost"].astype(float)]
    return f"cost in % of the limit {limit:g}", np.array(costs)


# Tasks.


def _with_left_out(tasks: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Return the task of each episode, and whether it was left out of the training data: (episodes, 2)."""
    # It was if no episode of the data has its number, as task 3 of `ds.filter_episodes("task != 3")`.
    seen = [np.unique(dataset.column(column)) for column in columns_with(dataset.roles, "task")]
    return np.stack([tasks, ~np.isin(tasks, np.concatenate(seen))], axis=1).astype(np.float64)


def _by_task(runs: Sequence[EpisodeOutcomes]) -> list[Number]:
    """Return the mean over tasks, the number of each task, and that of tasks that were left out."""
    is_success = all("success" in run.metrics for run in runs)
    what = "success rate" if is_success else "return"
    of_tasks: dict[int, list[np.ndarray]] = {}
    means, left_out = [], []
    for run in runs:
        values = np.asarray(run.metrics["success"] if is_success else run.returns, np.float64)
        tasks, is_left_out = run.metrics["by_task"].T
        own = []
        for task in np.unique(tasks).astype(int).tolist():
            chosen = values[tasks == task]
            if is_left_out[tasks == task].any():
                left_out.append(chosen)
            else:
                of_tasks.setdefault(task, []).append(chosen)
                own.append(float(chosen.mean()))
        if own:
            means.append(float(np.mean(own)))

    def number(where: str, some: list[np.ndarray]) -> Number:
        make = share_of_episodes if is_success else mean_of_runs
        return make("by_task", f"{what} in {where}", some)

    numbers = []
    if means:
        episodes = sum(len(chosen) for some in of_tasks.values() for chosen in some)
        numbers.append(
            Number(
                metric="by_task",
                name=f"{what}, mean over tasks",
                value=float(np.mean(means)),
                interval=share_interval(means, episodes) if is_success else mean_interval(np.array(means)),
                note=counted(len(of_tasks), "task"),
                is_share=is_success,
            )
        )
    datasets = {run.dataset for run in runs}
    words = words_of_tasks(*datasets) if len(datasets) == 1 else {}
    numbers += [number(words.get(task, f"task {task}"), of_tasks[task]) for task in sorted(of_tasks)]
    return numbers + ([number("tasks that were left out", left_out)] if left_out else [])


def words_of_tasks(dataset: str) -> Mapping[int, str]:
    """Return the words of each task's number; of numbers that nobody has words for, none.

    They are those that ship, in `manifests/recorded/NAME/tasks.json`, else those of the data, where these are here
    and have columns of episodes of the roles `task` and `task_words`. A number has words if all of its episodes
    have the same ones, and no other number has them.
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
    columns = [
        [column for column in columns_with(dataset.roles, role) if axis_of(column) == "episode"]
        for role in ("task", "task_words")
    ]
    if not all(columns):
        return {}
    numbers, words = (episode_column(dataset, names[0]).tolist() for names in columns)
    pairs = {*zip(numbers, words, strict=True)}
    all_numbers, all_words = ([pair[place] for pair in pairs] for place in (0, 1))
    return {
        int(number): word if len(word) <= _LONGEST else f"{word[: _LONGEST - 2]}.."
        for number, word in sorted(pairs)
        if word and all_words.count(word) == 1 and all_numbers.count(number) == 1
    }


# Hypervolume.


def hypervolume(points: Float[np.ndarray, "points objectives"], reference: Float[np.ndarray, " objectives"]) -> float:
    """Return the volume of all vectors between a reference point and the points (Zitzler and Thiele 1999).

    They are at most as good as one of the points in every objective, of which more is better, and at least as good
    as the reference. Points that are not above the reference in all objectives count nothing.
    """
    above = np.unique(points[(points > reference).all(1)], axis=0)
    if not len(above):
        return 0.0
    if above.shape[1] == 1:
        return float(above.max() - reference[0])
    # Slices along the last objective: between two levels, what reaches the upper one counts.
    volume, below = 0.0, float(reference[-1])
    for level in np.unique(above[:, -1]):
        reaching = above[above[:, -1] >= level, :-1]
        volume += (float(level) - below) * hypervolume(reaching, reference[:-1])
        below = float(level)
    return volume


def points_of(run: EpisodeOutcomes) -> Float[np.ndarray, "weights objectives"]:
    """Return the mean objectives of a run's episodes for each of their weights, in lexical order of these."""
    gained, weights = run.metrics["hypervolume"], run.metrics["episode_weights"]
    if gained.shape != weights.shape:
        raise ValueError(
            f"{run.dataset}: an episode has {gained.shape[-1]} objectives and {weights.shape[-1]} weights; "
            "let the environment tell as many of both."
        )
    which = np.unique(weights.round(6), axis=0, return_inverse=True)[1].ravel()
    return np.stack([gained[which == place].mean(0) for place in range(which.max() + 1)])


def known_hypervolume(dataset: str) -> float | None:
    """Return the hypervolume of the best policies for all weights of a world's grid, if they are known."""
    if dataset not in REFERENCE_POINTS:
        return None
    world = dataset.rpartition("/")[2].removesuffix("-v1")
    return hypervolume(objectives.front(world), np.array(REFERENCE_POINTS[dataset]))


def _hypervolume_of(run: EpisodeOutcomes) -> float:
    points = points_of(run)
    zeros = np.zeros(points.shape[1])
    return hypervolume(points, np.array(REFERENCE_POINTS.get(run.dataset, zeros)))


def _hypervolume(runs: Sequence[EpisodeOutcomes]) -> list[Number]:
    """Return the hypervolume, over several runs its mean; no number where no weights were told."""
    if any("episode_weights" not in run.metrics for run in runs):
        return []
    known = {known_hypervolume(run.dataset) for run in runs}
    whole = known.pop() if len(known) == 1 else None
    note = "" if whole is None else f"{whole:z.3f} is that of the known front"
    volumes = [np.array([_hypervolume_of(run)]) for run in runs]
    return [mean_of_runs("hypervolume", "hypervolume", volumes, 3, note)]


def _judged_hypervolume(run: EpisodeOutcomes) -> tuple[str, np.ndarray] | None:
    """Return the hypervolume in percent of the known front's; None where that or the weights are not known."""
    whole = known_hypervolume(run.dataset)
    if whole is None or "episode_weights" not in run.metrics:
        return None
    return "hypervolume in % of the front's", np.array([100 * _hypervolume_of(run) / whole])


def _share(metric: str, name: str, unit: str, infos: tuple[str, ...], **more: Any) -> Metric:
    """Return a metric that counts the episodes with an info that was true after any of their steps."""

    def flags(run: EpisodeOutcomes) -> np.ndarray:
        return run.metrics[metric].astype(bool)

    return Metric(
        summarize=lambda runs: [share_of_episodes(metric, name, [*map(flags, runs)], unit)],
        combine="any",
        infos=infos,
        judge=lambda run: (f"{name} in %", 100.0 * flags(run)),
        **more,
    )


# Each metric by its name.
METRICS: dict[str, Metric] = {
    "by_task": Metric(summarize=_by_task, combine="last", role="task", infos=("task",), complete=_with_left_out),
    "cost": Metric(summarize=_cost, combine="sum", role="cost", judge=_judged_cost),
    "episode_weights": Metric(summarize=lambda _runs: [], combine="last", role="weights", infos=("weights",)),
    "hypervolume": Metric(summarize=_hypervolume, combine="sum", role="objectives", judge=_judged_hypervolume),
    "lost_value": Metric(
        summarize=lambda runs: [mean_of_runs("lost_value", "distance to the optimum", _values(runs, "lost_value"), 3)],
        combine="sum",
        role="optimal_value",
        infos=("regret",),
    ),
    "success": _share(
        *("success", "success rate", "episode", ("success", "is_success")),
        at_end=frozenset({"is_success"}),
        kept_as="successes",
    ),
    "wins": _share("wins", "share of wins", "game", ("won",)),
}
