"""Compares methods over tasks by every statistic of this package, each with its interval."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from orlog.normalize.aggregate import AGGREGATES
from orlog.normalize.improvement import probability_of_improvement
from orlog.normalize.intervals import percentile_interval, stratified_resamples
from orlog.normalize.method_scores import MethodScores, check_method_scores, run_means
from orlog.normalize.profiles import performance_profile, profile_thresholds
from orlog.normalize.ranks import Consensus, kemeny_consensus, mean_ranks
from orlog.normalize.variance import VarianceSplit, split_variance

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic with its 95 % interval, which is None if the scores cannot show one.

    Attributes:
        value: The statistic.
        interval: Its interval.
        digits: Digits after the point that its text has: 1 for scores, 2 for probabilities and ranks.
    """

    value: float
    interval: tuple[float, float] | None
    digits: int = dataclasses.field(default=1, compare=False)

    def __str__(self) -> str:
        """Return the value with its interval."""
        return self.text(f"z.{self.digits}f")

    def to_json(self) -> dict[str, Any]:
        """Return value and interval as JSON."""
        return {"value": self.value, "interval": self.interval}

    def text(self, form: str) -> str:
        """Return the value with its interval, each number in a format."""
        if self.interval is None:
            return f"{self.value:{form}}"
        low, high = self.interval
        return f"{self.value:{form}} ({low:{form}} to {high:{form}})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A performance profile: the share of runs above each threshold, with its 95 % band."""

    thresholds: np.ndarray
    shares: np.ndarray
    band: tuple[np.ndarray, np.ndarray] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Several methods on the same tasks.

    Attributes:
        tasks: Names of the tasks.
        runs: By method, the mean score of each run [seeds, tasks].
        aggregates: By method and name of the aggregate.
        ranks: Mean rank over tasks of each method that is ranked, 1 being best; empty for one method.
        consensus: The ranking of these that disagrees least with the tasks' rankings; None for one method.
        improvement: For each ordered pair of methods, the probability that the first is above.
        profiles: Performance profile of each method.
        variances: By method and task; None where a method has one seed or one episode.
    """

    tasks: list[str]
    runs: dict[str, np.ndarray]
    aggregates: dict[str, dict[str, Estimate]]
    ranks: dict[str, Estimate]
    consensus: Consensus | None
    improvement: dict[tuple[str, str], Estimate]
    profiles: dict[str, Profile]
    variances: dict[str, dict[str, VarianceSplit | None]]

    @property
    def methods(self) -> list[str]:
        """Names of the methods."""
        return list(self.runs)

    def ranking(self) -> list[str]:
        """Return the methods in the order of the consensus, the best first, and those that are not ranked last."""
        ranked = list(self.ranks)
        order = () if self.consensus is None else self.consensus.order
        first = [ranked[index] for index in order]
        return first + [method for method in self.methods if method not in first]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        consensus = None
        if self.consensus is not None:
            order = self.ranking()[: len(self.ranks)]
            consensus = {**dataclasses.asdict(self.consensus), "order": order}
        return {
            "tasks": self.tasks,
            "methods": [
                {
                    "method": method,
                    "seeds": len(runs),
                    "scores": {
                        task: runs[:, index].tolist() for index, task in enumerate(self.tasks)
                    },
                    "aggregates": {
                        name: one.to_json() for name, one in self.aggregates[method].items()
                    },
                    "mean_rank": self.ranks[method].to_json() if method in self.ranks else None,
                    "profile": {
                        "thresholds": self.profiles[method].thresholds.tolist(),
                        "shares": self.profiles[method].shares.tolist(),
                    },
                    "variance": {
                        task: None if one is None else dataclasses.asdict(one)
                        for task, one in self.variances[method].items()
                    },
                }
                for method, runs in self.runs.items()
            ],
            "consensus": consensus,
            "improvement": [
                {"above": first, "below": second, **one.to_json()}
                for (first, second), one in self.improvement.items()
            ],
        }


def compare_methods(
    scores: MethodScores,
    rng: np.random.Generator,
    *,
    resamples: int = 2000,
    aggregates: Sequence[str] = tuple(AGGREGATES),
    checkpoints: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    unranked: Collection[str] = (),
) -> Comparison:
    """Return every statistic of methods on the same tasks, with intervals from one bootstrap of each method.

    Args:
        scores: By method and task, an array [seeds, episodes]; normalized where there are several
            tasks.
        rng: Draws the resamples.
        resamples: Resamples of each method.
        aggregates: Which of `AGGREGATES`; the optimality gap is of normalized scores only.
        checkpoints: By method and task, scores [seeds, checkpoints, episodes] of the last checkpoints,
            from which variances are split; by default `scores`, which are of one checkpoint.
        unranked: Methods that get no rank (`unranked_methods`).

    Raises:
        ValueError: scores cannot be compared (`check_method_scores`).
    """
    check_method_scores(scores)
    tasks = list(next(iter(scores.values())))
    of_tasks = {method: [one[task] for task in tasks] for method, one in scores.items()}
    runs = {method: run_means(one) for method, one in of_tasks.items()}

    drawn = {
        method: stratified_resamples(one, rng, resamples=resamples)
        for method, one in of_tasks.items()
        if len(runs[method]) > 1
    }

    def estimate(
        statistic: Callable[..., np.ndarray], *methods: str, digits: int = 1
    ) -> list[Estimate]:
        values = np.atleast_1d(statistic(*(runs[method] for method in methods))).tolist()
        if not drawn.keys() >= set(methods):
            return [Estimate(value, None, digits) for value in values]
        found = statistic(*(drawn[method] for method in methods)).reshape(resamples, -1)
        ends = percentile_interval(found, CONFIDENCE)
        return [
            Estimate(value, (low, high) if low < high else None, digits)
            for value, low, high in zip(values, *(end.tolist() for end in ends), strict=True)
        ]

    def ranks(*methods: np.ndarray) -> np.ndarray:
        return mean_ranks(np.stack([one.mean(-2) for one in methods], axis=-2))

    ranked = [method for method in runs if method not in unranked]
    several = len(ranked) > 1
    thresholds = profile_thresholds(*runs.values())
    return Comparison(
        tasks=tasks,
        runs=runs,
        aggregates={
            method: {name: estimate(AGGREGATES[name], method)[0] for name in aggregates}
            for method in runs
        },
        ranks=dict(zip(ranked, estimate(ranks, *ranked, digits=2), strict=True)) if several else {},
        consensus=kemeny_consensus(np.array([runs[method].mean(0) for method in ranked]))
        if several
        else None,
        improvement={
            pair: estimate(probability_of_improvement, *pair, digits=2)[0]
            for pair in itertools.permutations(runs, 2)
        },
        profiles={
            method: Profile(
                thresholds=thresholds,
                shares=performance_profile(one, thresholds),
                band=percentile_interval(performance_profile(drawn[method], thresholds), CONFIDENCE)
                if method in drawn
                else None,
            )
            for method, one in runs.items()
        },
        variances={
            method: {
                task: _variance(
                    scores[method][task][:, None]
                    if checkpoints is None or task not in checkpoints.get(method, {})
                    else checkpoints[method][task]
                )
                for task in tasks
            }
            for method in runs
        },
    )


def _variance(scores: np.ndarray) -> VarianceSplit | None:
    seeds, _, episodes = scores.shape
    return None if min(seeds, episodes) < 2 else split_variance(scores)
