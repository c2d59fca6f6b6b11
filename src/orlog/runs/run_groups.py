"""Runs of a folder together: those that differ in their seeds only, their learning curves, and `orlog.load_runs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.base.terminal import ago
from orlog.manifests.documents import canonical_json
from orlog.normalize.metrics import EpisodeOutcomes, numbers_of
from orlog.normalize.statistics import score_interval, share_interval
from orlog.runs.pages import html_table
from orlog.runs.run_folders import RunSummary, find_run_folders, setting_words, varied_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVE, EVALUATED = "last point of the curve", "orlog evaluate"
Item = TypeVar("Item")


def seeds_together(
    items: Iterable[Item], key: Callable[[Item], Hashable], seeds: Callable[[Item], Sequence[int]]
) -> list[list[Item]]:
    """Put items of equal keys together, with each seed once: one that is there twice begins another group."""
    groups: dict[Hashable, list[list[Item]]] = {}
    order = []
    for item in items:
        alike = groups.setdefault(key(item), [])
        for group in alike:
            if not {seed for other in group for seed in seeds(other)} & {*seeds(item)}:
                group.append(item)
                break
        else:
            order.append([item])
            alike.append(order[-1])
    return order


def group_runs(runs: Sequence[RunSummary]) -> dict[tuple[str, str], list[RunSummary]]:
    """Return readable runs that differ in their seeds only, by dataset and label, in the order of the first of each.

    The label has the algorithm and the settings in which it differs from others on the dataset; of a seed that is
    there twice also the folder.
    """
    varied = varied_settings(runs)
    groups: dict[tuple[str, str], list[RunSummary]] = {}
    for group in seeds_together(
        [run for run in runs if run.record is not None],
        lambda run: (
            run.record and (run.record.dataset, run.record.algorithm),
            canonical_json(varied[run.folder]),
        ),
        lambda run: [run.record.seed] if run.record else [],
    ):
        record = group[0].record
        assert record is not None
        title = algorithm_title(record.algorithm, record.config)
        label = " ".join([title, *setting_words(varied[group[0].folder])])
        if (record.shown_dataset, label) in groups:
            label = f"{label} {group[0].folder}"
        groups[record.shown_dataset, label] = sorted(
            group, key=lambda run: run.record.seed if run.record else 0
        )
    return groups


def mean_curve(
    runs: Sequence[RunSummary], *, success: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return steps, mean over seeds, and the ends of its interval at 95 %, where all seeds were scored.

    Where there is no interval, its ends are the mean. With `success` it is the share of successful episodes in
    place of the score, where environments tell.
    """
    curves = [
        {
            step: episodes.metrics["success"] if success else run.scores_of(episodes)
            for step, episodes in run.curve
            if not success or "success" in episodes.metrics
        }
        for run in runs
    ]
    curves = [curve for curve in curves if curve]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    means, ends = [], []
    for step in steps:
        seeds = [curve[step] for curve in curves]
        of_seeds = [float(values.mean()) for values in seeds]
        interval = None
        if success:
            interval = share_interval(of_seeds, sum(map(len, seeds)))
        elif len(seeds) > 1:
            interval = score_interval(seeds)
        means.append(float(np.mean(of_seeds)))
        ends.append(interval or (means[-1], means[-1]))
    low, high = np.array(ends, float).reshape(-1, 2).T
    return np.array(steps), np.array(means), low, high


def scores_measured_alike(runs: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """Return means over seeds as JSON, each of one source (`EVALUATED` or `CURVE`), step and number of episodes."""
    alike: dict[tuple[str, int, int], list[tuple[RunSummary, EpisodeOutcomes]]] = {}
    for run in runs:
        measured = [(CURVE, *point) for point in run.curve[-1:]]
        if run.evaluation is not None and run.last is not None:
            measured.append((EVALUATED, *run.last))
        for source, step, episodes in measured:
            alike.setdefault((source, step, len(episodes.returns)), []).append((run, episodes))
    documents = []
    for (source, step, count), seeds in sorted(alike.items(), key=lambda item: item[0]):
        scores = [run.scores_of(episodes) for run, episodes in seeds]
        means = [float(of_seed.mean()) for of_seed in scores]
        documents.append(
            {
                "source": source,
                "step": step,
                "episodes": count,
                "seeds": [run.record.seed for run, _ in seeds if run.record is not None],
                "each": means,
                "score": float(np.mean(means)),
                "score_interval": score_interval(scores) if len(scores) > 1 else None,
                "counted": [str(number) for number in numbers_of([each for _, each in seeds])],
            }
        )
    return documents


class Runs(list[RunSummary]):
    """The runs of a folder, as they were when it was read; one that cannot be read says why."""

    def __init__(self, folder: Path) -> None:
        """Read them."""
        super().__init__(find_run_folders(folder))
        self.folder = folder

    def __repr__(self) -> str:
        """Return the folder, and how many runs of each algorithm are in it."""
        names = Counter(
            algorithm_title(run.record.algorithm, run.record.config) if run.record else "unreadable"
            for run in self
        )
        counts = ", ".join(f"{count} {name}" for name, count in names.items())
        return f"Runs({str(self.folder)!r}: {counts})"

    def plot(self, *, success: bool = False) -> Figure:
        """Return learning curves: mean score over seeds, and its 95 % interval as a band.

        With `success` it is the share of successful episodes, where the environment tells.

        Raises ValueError if no run has a curve; MissingExtraError if matplotlib is not installed.
        """
        from orlog.runs.statistics_plots import curves_plot

        return curves_plot(self, success=success)

    def _repr_html_(self) -> str:
        headings = ("run", "algorithm", "dataset", "seed", "step", "score", "state", "changed")
        return html_table(headings, [_cells(run) for run in self])


def _cells(run: RunSummary) -> tuple[str, ...]:
    record = run.record
    if record is None:
        return (str(run.folder), "", "", "", "", "", f"{run.state}: {run.problem}", "")
    return (
        str(run.folder),
        algorithm_title(record.algorithm, record.config),
        record.shown_dataset,
        str(record.seed),
        f"{run.step:,}/{record.steps:,}",
        "" if run.score is None else f"{run.score:z.1f}",
        run.state,
        ago(run.changed),
    )


def load_runs(folder: str | Path = "runs") -> Runs:
    """Return the runs in a folder and all folders in it: their settings, curves, scores and states.

    Raises NotFoundError if there is no such folder.
    """
    return Runs(Path(folder))
