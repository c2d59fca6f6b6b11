"""Runs that differ in their seeds only, and what is said of them together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.manifests.documents import canonical_json
from orlog.normalize.metrics import EpisodeOutcomes, Number, numbers_of
from orlog.normalize.statistics import score_interval, share_interval
from orlog.runs.run_folders import RunSummary, setting_words, varied_settings

CURVE, EVALUATED = "last point of the curve", "orlog evaluate"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SeedScores:
    """Scores of seeds that were measured alike, so that a mean over them says something.

    Attributes:
        source: `EVALUATED` or `CURVE`.
        step: Gradient steps of the policies.
        episodes: Episodes of each.
        runs: The runs.
        scores: Scores of the episodes of each.
        played: What came of the episodes of each, with what metrics counted, where this is known.
    """

    source: str
    step: int
    episodes: int
    runs: list[RunSummary] = dataclasses.field(default_factory=list)
    scores: list[np.ndarray] = dataclasses.field(default_factory=list)
    played: list[EpisodeOutcomes] = dataclasses.field(default_factory=list)

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return [run.record.seed for run in self.runs if run.record is not None]

    @property
    def score(self) -> float:
        """Mean over the seeds."""
        return float(np.mean(self.means))

    @property
    def means(self) -> list[float]:
        """Mean score of each run."""
        return [float(scores.mean()) for scores in self.scores]

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval of the mean at 95 % over seeds (`score_interval`); None without spread, or of one seed."""
        return score_interval(self.scores) if len(self.scores) > 1 else None

    @property
    def numbers(self) -> list[Number]:
        """What metrics give, over the seeds."""
        return numbers_of(self.played)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "source": self.source,
            "step": self.step,
            "episodes": self.episodes,
            "seeds": self.seeds,
            "score": self.score,
            "score_interval": self.interval,
            "numbers": [one.to_json() for one in self.numbers],
        }


Measured: TypeAlias = tuple[str, int, RunSummary, np.ndarray, EpisodeOutcomes | None]


def measured_alike(measured: Iterable[Measured]) -> list[SeedScores]:
    """Put scores together that have one source, one step and one number of episodes."""
    found: dict[tuple[str, int, int], SeedScores] = {}
    for source, step, run, scores, played in measured:
        alike = source, step, len(scores)
        one = found.setdefault(alike, SeedScores(source=source, step=step, episodes=len(scores)))
        one.runs.append(run)
        one.scores.append(scores)
        one.played.extend([] if played is None else [played])
    return list(found.values())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs that differ in their seeds only.

    Attributes:
        algorithm: Name of the algorithm.
        dataset: Name of the dataset.
        settings: What they have in common and other runs of the algorithm on the dataset have not.
        runs: The runs, one for each seed, by seed.
        left_out: Runs whose seed another run has, by folder, and the run that counts: the newest of
            those that have a score.
    """

    algorithm: str
    dataset: str
    settings: dict[str, Any]
    runs: list[RunSummary]
    left_out: list[tuple[RunSummary, RunSummary]] = dataclasses.field(default_factory=list)

    @property
    def title(self) -> str:
        """The algorithm as people write it, with its settings."""
        record = self.runs[0].record if self.runs else None
        return algorithm_title(self.algorithm, None if record is None else record.config)

    @property
    def label(self) -> str:
        """Algorithm, and the settings that set it apart."""
        return " ".join([self.title, *setting_words(self.settings)])

    @property
    def shown_dataset(self) -> str:
        """Name of the dataset for people; that of a rebuild has its version."""
        record = self.runs[0].record
        return self.dataset if record is None else record.shown_dataset

    @property
    def last_scores(self) -> list[SeedScores]:
        """The last scores of the runs: of evaluations first, of more steps first, of more seeds first."""
        found = measured_alike(
            (EVALUATED if run.is_evaluated else CURVE, run.scored_step, run, run.scores, run.played)
            for run in self.runs
            if run.scores is not None
        )
        return sorted(
            found, key=lambda one: (one.source == EVALUATED, one.step, len(one.runs)), reverse=True
        )

    @property
    def all_scores(self) -> list[SeedScores]:
        """Scores of evaluations and of the last points of learning curves."""
        measured: list[Measured] = []
        for run in self.runs:
            if run.is_evaluated and run.scores is not None:
                measured.append((EVALUATED, run.scored_step, run, run.scores, run.played))
            for (step, scores), played in zip(run.points[-1:], run.counted[-1:], strict=True):
                measured.append((CURVE, step, run, scores, played))
        return sorted(
            measured_alike(measured), key=lambda one: (one.source, one.step, one.episodes)
        )

    def curve(
        self, *, success: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return steps, mean over seeds, and the ends of its interval, where all seeds were scored.

        Where there is no interval, its ends are the mean. With `success` it is the share of
        successful episodes instead of the score.
        """
        by_seed = [
            {
                step: one.metrics["success"] if success else scores
                for (step, scores), one in zip(run.points, run.counted, strict=True)
                if not success or "success" in one.metrics
            }
            for run in self.runs
        ]
        by_seed = [points for points in by_seed if points]
        steps = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
        means, ends = [], []
        for step in steps:
            each = [points[step] for points in by_seed]
            of_seeds = [float(one.mean()) for one in each]
            mean = float(np.mean(of_seeds))
            means.append(mean)
            interval = None
            if success:
                interval = share_interval(of_seeds, sum(map(len, each)))
            elif len(each) > 1:
                interval = score_interval(each)
            ends.append(interval or (mean, mean))
        low, high = np.array(ends, float).reshape(-1, 2).T
        return np.array(steps), np.array(means), low, high

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON: the first of the last scores, and all of them."""
        scores = self.last_scores
        first = scores[0] if scores else None
        rates = [] if first is None else [run.success_rate for run in first.runs]
        known = [rate for rate in rates if rate is not None]
        return {
            "algorithm": self.algorithm,
            "dataset": self.dataset,
            "settings": self.settings,
            "seeds": [run.record.seed for run in self.runs if run.record is not None],
            "scored_seeds": 0 if first is None else len(first.runs),
            "score": None if first is None else first.score,
            "score_interval": None if first is None else first.interval,
            "success_rate": float(np.mean(known)) if known else None,
            "numbers": [] if first is None else [one.to_json() for one in first.numbers],
            "scores": [one.to_json() for one in scores],
            "normalized": all(run.is_normalized for run in self.runs),
            "folders": [str(run.folder) for run in self.runs],
            "left_out": [str(run.folder) for run, _ in self.left_out],
        }


def group_runs(runs: Sequence[RunSummary]) -> list[RunGroup]:
    """Return readable runs by algorithm, dataset and settings, in the order of the first of each."""
    varied = varied_settings(runs)
    groups: dict[tuple[str, str, bytes], list[RunSummary]] = {}
    for run in runs:
        if run.record is not None:
            key = canonical_json(varied[run.folder])
            groups.setdefault((run.record.dataset, run.record.algorithm, key), []).append(run)
    return [
        _group(algorithm, dataset, varied[group[0].folder], group)
        for (dataset, algorithm, _), group in groups.items()
    ]


def _group(
    algorithm: str, dataset: str, settings: dict[str, Any], runs: Sequence[RunSummary]
) -> RunGroup:
    by_seed: dict[int, list[RunSummary]] = {}
    for run in runs:
        by_seed.setdefault(run.record.seed if run.record else 0, []).append(run)
    kept, left_out = [], []
    for seed in sorted(by_seed):
        there = by_seed[seed]
        counts = max(there, key=lambda run: (run.scores is not None, run.changed))
        kept.append(counts)
        left_out += [(run, counts) for run in there if run is not counts]
    return RunGroup(
        algorithm=algorithm, dataset=dataset, settings=settings, runs=kept, left_out=left_out
    )
