"""Metrics: what is counted in the episodes of an evaluation beside their return, a file each.

A file of this folder declares its `METRIC`: which infos of steps are counted, and how, and how the episodes of
runs become named numbers. Nothing else names it: evaluations keep what every metric counted that applies, and
commands, reports and the viewer show the numbers of `numbers_of`.

A metric over tasks, weights or runs is no other thing: `summarize` is given all runs that are summarized together,
each with its returns, what all metrics counted, its dataset and its settings. (An aggregate over seeds and
tasks, such as the IQM, is another thing: `normalize/statistics.py`.)
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from orlog.datasets.reading.dataset import Dataset
from orlog.manifests.documents import convert_json
from orlog.manifests.roles import columns_with
from orlog.normalize.rollouts import Count
from orlog.normalize.statistics import mean_interval

_INFOS = "infos/"
_INFRASTRUCTURE = ("judging", "metrics")
_Kept = list[bool | float | list[float]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """What came of the episodes of one run, or of several runs in a row.

    Attributes:
        returns: Undiscounted return of each episode, (episodes,).
        metrics: What each metric counted, by its name: (episodes,), or (episodes, n) of a vector.
        dataset: Name of the dataset, or of the benchmark's that it is.
        settings: What the run was trained with.
    """

    returns: np.ndarray
    metrics: Mapping[str, np.ndarray]
    dataset: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number that a metric gives for episodes.

    Attributes:
        metric: Name of the metric.
        name: What it is, in words.
        value: The number.
        interval: Its interval at 95 %: over the episodes of one run, or over several runs; None without spread.
        note: What else is to be said of it, such as `safe`.
        is_share: Whether it is a share, which texts show in percent.
        digits: Digits behind the point in texts.
    """

    metric: str
    name: str
    value: float
    interval: tuple[float, float] | None = None
    note: str = ""
    is_share: bool = False
    digits: int = 1

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


HEADINGS = ("counted", "mean", "95 % interval", "")
"""What the cells of a number are; of a share the mean is in percent."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What is counted in episodes, and what it comes to.

    Attributes:
        name: Its name, which evaluations keep it under.
        summarize: Returns the numbers of one run, or of several runs that are summarized together.
        combine: What becomes of the infos of an episode's steps: their sum, the last one, or whether any was true.
        role: Role (`manifests/roles.py`) of the columns whose infos are counted, in runs on datasets that have
            one; empty for a metric of any dataset.
        infos: Names of infos that are counted besides; of each step the first that is there.
        at_end: Those of them of which only the last step of an episode counts.
        kept_as: Where evaluations keep it, if not with the others under its name.
        complete: Returns what is kept, from what was counted and the dataset that the run was trained on.
        judge: Returns what verdicts compare of a run beside its return: the number's name with its unit, and its
            values, of which 100 are the whole, so that 5 are as little as 5 points of a score; None if nothing.
    """

    name: str
    summarize: Callable[[Sequence[Played]], list[Number]]
    combine: Literal["sum", "last", "any"]
    role: str = ""
    infos: tuple[str, ...] = ()
    at_end: frozenset[str] = frozenset()
    kept_as: str = ""
    complete: Callable[[np.ndarray, Dataset], np.ndarray] = lambda values, _dataset: values
    judge: Callable[[Played], tuple[str, np.ndarray] | None] = lambda _played: None

    def count(self, roles: Mapping[str, str]) -> Count | None:
        """Return what is counted in runs on a dataset with these roles; None if it does not apply."""
        columns = columns_with(roles, self.role) if self.role else []
        if self.role and not columns:
            return None
        named = [one.removeprefix(_INFOS) for one in columns if one.startswith(_INFOS)]
        infos = (*named, *self.infos)
        return Count(name=self.name, infos=infos, at_end=self.at_end, combine=self.combine)


@functools.cache
def metrics() -> Mapping[str, Metric]:
    """Return every metric by name: the `METRIC` of each file of this folder.

    Raises ValueError if two files declare the same name.
    """
    package = importlib.import_module("orlog.normalize.metrics")
    found: dict[str, Metric] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.name in _INFRASTRUCTURE:
            continue
        one: Metric = importlib.import_module(f"{package.__name__}.{module.name}").METRIC
        if one.name in found:
            raise ValueError(
                f"{module.name}.py: another file declares the metric {one.name} already."
            )
        found[one.name] = one
    return MappingProxyType(found)


def counts_for(roles: Mapping[str, str]) -> list[Count]:
    """Return what is counted in evaluations of runs on a dataset with these roles."""
    counts = (one.count(roles) for one in metrics().values())
    return [one for one in counts if one is not None]


def modules_for(roles: Mapping[str, str]) -> list[str]:
    """Return the modules of the metrics that apply to a dataset with these roles: results depend on them."""
    return [m.summarize.__module__ for m in metrics().values() if m.count(roles) is not None]


def warn_of_untold(name: str, roles: Mapping[str, str], counted: Mapping[str, np.ndarray]) -> None:
    """Warn of what the roles of a dataset ask to count, and its environment has not told."""
    for count in counts_for(roles):
        if metrics()[count.name].role and count.name not in counted:
            warnings.warn(
                f"{name}: the environment's info has no {' or '.join(count.infos)}, so the {count.name} of "
                "episodes is not counted; score in an environment that tells it.",
                stacklevel=4,
            )


def completed(counted: Mapping[str, np.ndarray], dataset: Dataset) -> dict[str, np.ndarray]:
    """Return what metrics keep of what they counted, for a run that was trained on a dataset."""
    return {name: metrics()[name].complete(values, dataset) for name, values in counted.items()}


def as_fields(counted: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return what metrics counted as the fields in which evaluations keep it."""
    found: dict[str, Any] = {}
    for name, values in counted.items():
        kept_as = metrics()[name].kept_as
        if kept_as:
            found[kept_as] = values.tolist()
        else:
            found.setdefault("metrics", {})[name] = values.tolist()
    return found


def of_fields(fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return what metrics counted, from the fields of an evaluation or of a line of the log.

    Raises ValueError if these are no lists of numbers, flags or vectors.
    """
    kept = {one.name: fields.get(one.kept_as) for one in metrics().values() if one.kept_as}
    kept |= fields.get("metrics") or {}
    return {name: np.array(convert_json(one, _Kept)) for name, one in kept.items() if one}


def numbers_of(runs: Sequence[Played]) -> list[Number]:
    """Return the numbers of runs that are summarized together, of every metric that all of them have."""
    return [
        number
        for name, metric in metrics().items()
        if runs and all(name in one.metrics and len(one.metrics[name]) for one in runs)
        for number in metric.summarize(runs)
    ]


def in_short(numbers: Sequence[Number]) -> list[str]:
    """Return the first number of each metric, which says most, with its name."""
    return [one.short for one in {one.metric: one for one in reversed(numbers)}.values()][::-1]


def mean_over(runs: Sequence[np.ndarray]) -> tuple[float, tuple[float, float] | None]:
    """Return the mean of runs' values and its interval: over the episodes of one run, or over several runs.

    Each run counts alike, however many episodes it has.
    """
    means = np.array([one.mean() for one in runs], float)
    return float(means.mean()), mean_interval(
        means if len(runs) > 1 else np.asarray(runs[0], float)
    )
