"""Runs that differ in their seeds only, their learning curves and their scores."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.manifests.documents import canonical_json
from orlog.normalize.metrics import EpisodeOutcomes, numbers_of
from orlog.normalize.statistics import score_interval, share_interval
from orlog.runs.run_folders import RunSummary, setting_words, varied_settings

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
        lambda run: (run.record and (run.record.dataset, run.record.algorithm), canonical_json(varied[run.folder])),
        lambda run: [run.record.seed] if run.record else [],
    ):
        record = group[0].record
        assert record is not None
        title = algorithm_title(record.algorithm, record.config)
        label = " ".join([title, *setting_words(varied[group[0].folder])])
        if (record.shown_dataset, label) in groups:
            label = f"{label} {group[0].folder}"
        groups[record.shown_dataset, label] = sorted(group, key=lambda run: run.record.seed if run.record else 0)
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
