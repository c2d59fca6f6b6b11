"""Sets scored runs beside what a publication reports at its checkpoints, with a verdict at each of them.

Success rates of seeds are compared as `orlog reproduce` compares scores with recorded ones (`orlog.normalize.verdicts`),
without pairs: the seeds of a publication are not those of ours. Only evaluations at a checkpoint itself count, since
neighboring points of a learning curve may lie far apart. The checkpoints of a row share the error rate.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Float

from orlog.algos.algorithms import known_as
from orlog.errors import NotFoundError, SchemaError
from orlog.manifests.benchmarks import plain_name
from orlog.manifests.names import counted
from orlog.normalize.metrics import EpisodeOutcomes
from orlog.normalize.published_scores import PublishedScore, checkpoint_scores, same_algorithm
from orlog.normalize.references import simulator_of
from orlog.normalize.statistics import Interval, share_interval
from orlog.normalize.verdicts import Verdict, compare
from orlog.runs.comparing import Row
from orlog.runs.plots import Curve
from orlog.runs.reproducing import verdict_json

Checkpoint = tuple[int, int]
"""Gradient steps, and how many of them were taken while acting in the environment."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A row of ours and a published method, at a checkpoint."""

    row: Row
    published: PublishedScore
    is_named: bool  # whether the published method has the name of ours; else all stand there
    seeds: dict[int, Float[np.ndarray, " episodes"]]  # 1 for each episode that succeeded, else 0, by training seed
    verdict: Verdict

    @property
    def shares(self) -> list[float]:
        """The success rate of each seed, in percent."""
        return [100 * float(episodes.mean()) for episodes in self.seeds.values()]

    @property
    def interval(self) -> Interval:
        """Interval of the mean success rate at 95 %, in percent."""
        low, high = _interval([*self.seeds.values()])
        return 100 * low, 100 * high

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "dataset": self.row.task,
            "method": self.row.name,
            "is_named": self.is_named,
            "seeds": [*self.seeds],
            "scores": self.shares,
            "score": float(np.mean(self.shares)),
            "interval": self.interval,
            "published": {**msgspec.structs.asdict(self.published), "interval": self.published.interval},
            "verdict": verdict_json(self.verdict),
        }


def beside_published(rows: Sequence[Row], publication: str) -> tuple[list[Pair], list[str]]:
    """Return rows of ours beside the methods of a publication at every checkpoint that ours were evaluated at, and notes.

    A row is compared with the methods of its own name, or with all where none has it. Which task of the publication a
    dataset is goes by its name: the task's, or that of the data which were learned from. `dqc:TASK` says it for all rows,
    by any of these names, short ones too.

    Raises NotFoundError if the publication is not known or has none of the tasks, or no checkpoint was evaluated;
    SchemaError if the environment of a row does not tell success.
    """
    key, _, task = publication.partition(":")
    scores = checkpoint_scores(key)
    tasks = list(dict.fromkeys(score.dataset for score in scores))
    if task and not _of_task(task, scores):
        several = dict.fromkeys(score.dataset for score in scores if _stem(score.data) == _stem(task))
        raise NotFoundError(f"{key} has no task {task!r}; its tasks are {', '.join(several or tasks)}.")
    pairs, notes = [], []
    for row in rows:
        there = _of_task(task or row.task, scores)
        if not there:
            notes.append(f"{row.task}: is none of the tasks of {key}; name one: --published {key}:TASK")
            continue
        first = there[0]
        if plain_name(row.task) not in (first.dataset, first.data):
            notes.append(f"{row.task} is taken for {first.data}, {'as told' if task else 'by name'}")
        variant = _variant(row)
        named = [
            score for score in there if (score.algorithm == variant if variant else _is_named(row, score.algorithm))
        ]
        measured = _measured(row)
        checkpoints = {_checkpoint(score): score.checkpoint for score in named or there}
        count = len(checkpoints.keys() & measured.keys())
        if missing := ", ".join(words for checkpoint, words in checkpoints.items() if checkpoint not in measured):
            notes.append(f"{row.title} on {row.task}: not evaluated after {missing}; the nearest are not taken")
        if simulator := simulator_of(row.scored.protocol):
            notes.append(f"{row.task}: evaluated in {simulator}; {key} does not say the versions of its own")
        pairs += [
            Pair(row=row, published=score, is_named=bool(named), seeds=seeds, verdict=_verdict(seeds, score, count))
            for score in named or there
            if (seeds := measured.get(_checkpoint(score)))
        ]
    if not pairs:
        steps = max(score.step or 0 for score in scores)
        raise NotFoundError(
            f"nothing stands beside {key}: {'; '.join(dict.fromkeys(notes))}. Its tasks are {', '.join(tasks)}; to be "
            f"evaluated at its checkpoints, train with: --steps {steps} --evaluations 4"
        )
    return pairs, list(dict.fromkeys(notes))


def _of_task(dataset: str, scores: Sequence[PublishedScore]) -> list[PublishedScore]:
    """Return the scores on the task that a dataset's name means, in any group and version; none if it is not one."""
    of_task = [score for score in scores if _stem(score.dataset) == _stem(dataset)]
    of_data = [score for score in scores if _stem(score.data) == _stem(dataset)]
    return of_task or (of_data if len({score.dataset for score in of_data}) == 1 else [])


def _stem(name: str) -> str:
    return re.sub(r"-v\d+$", "", plain_name(name).rpartition("/")[2])


def _variant(row: Row) -> str:
    """Return what the authors of DQC and QAM call the settings of a row, where these and no name of its own say it."""
    method = row.scored.method
    get = method.settings.get
    if row.name.partition(" ")[0] != method.algorithm or method.algorithm not in ("dqc", "qam"):
        return ""
    if method.algorithm == "qam":
        return "QAM-E" if get("edit_scale") else "QAM-F" if get("distillation_weight") else "QAM"
    steps, chunk = get("horizon"), get("policy_chunk")
    if get("chunk_critic"):
        return f"DQC h={steps} h_a={chunk}"
    if steps == 1:
        return "OS"
    if chunk == steps:
        return f"QC h={steps}"
    return f"NS n={steps}" if chunk == 1 else f"QC-NS n={steps} h_a={chunk}"


def _is_named(row: Row, algorithm: str) -> bool:
    """Return whether a published method has the name of a row, settings apart: `DQC h=25 h_a=5` for `dqc`."""
    ours = row.name.partition(" ")[0]
    return any(same_algorithm(known_as(theirs), known_as(ours)) for theirs in (algorithm, algorithm.partition(" ")[0]))


def _checkpoint(score: PublishedScore) -> Checkpoint:
    return score.step or 0, score.online_steps


def _measured(row: Row) -> dict[Checkpoint, dict[int, np.ndarray]]:
    """Return the successes of the episodes of each seed, where at least one was evaluated; by `orlog evaluate` first."""
    points: dict[int, dict[int, EpisodeOutcomes]] = {}
    for seed, run in zip(row.seeds, row.runs, strict=False):  # a file has no curves
        for step, outcomes in run.curve:
            points.setdefault(step, {})[seed] = outcomes
    points[row.scored.step] = {**points.get(row.scored.step, {}), **row.scored.played()}
    scored = row.scored
    first = int(scored.method.settings.get("online_step") or 0) if scored.method.online else None
    for of_seeds in points.values():
        if any("success" not in outcomes.metrics for outcomes in of_seeds.values()):
            raise SchemaError(
                f"{row.place}: its environment {scored.protocol.environment_id} does not tell whether episodes succeed "
                "(success or is_success in the info), and what is published are success rates; evaluate in one that does."
            )
    return {
        (step, 0 if first is None else max(0, step - first)): {
            seed: outcomes.metrics["success"].astype(float) for seed, outcomes in of_seeds.items()
        }
        for step, of_seeds in points.items()
    }


def _verdict(seeds: dict[int, np.ndarray], published: PublishedScore, checkpoints: int) -> Verdict:
    theirs = [score for score in published.per_seed if score is not None]
    return compare(
        {seed: np.array([100 * episodes.mean()]) for seed, episodes in seeds.items()},
        {-1 - place: np.array([score]) for place, score in enumerate(theirs)},  # none of ours is a pair of one
        same_run=False,
        numbers=checkpoints,
    )


def _interval(seeds: Sequence[np.ndarray]) -> Interval:
    return share_interval([float(episodes.mean()) for episodes in seeds], sum(map(len, seeds)))


def curves_beside(pairs: Sequence[Pair], publication: str) -> list[Curve]:
    """Return the learning curves of our rows, and of the published methods beside them, for `curves_plot`."""
    key, curves = publication.partition(":")[0], []
    for row in {id(pair.row): pair.row for pair in pairs}.values():
        points = {
            step: (float(np.mean([*map(np.mean, seeds.values())])), *_interval([*seeds.values()]))
            for (step, _), seeds in sorted(_measured(row).items())
            if len(seeds) == len(row.seeds)
        }
        curves += [_curve(row.task, row.title, len(row.seeds), points)] if points else []
    for task, *method in dict.fromkeys((pair.row.task, *_method(pair.published)) for pair in pairs):
        scores = [score for score in checkpoint_scores(key) if [*_method(score)] == method]
        points = {}
        for score in scores:
            low, high = score.interval or (score.score, score.score)
            points[score.step or 0] = score.score / 100, low / 100, high / 100
        curves.append(_curve(task, f"{scores[0].algorithm}, {key.upper()}", scores[0].seeds or 0, points))
    return curves


def _method(score: PublishedScore) -> tuple[str, str]:
    return score.dataset, score.algorithm


def _curve(task: str, label: str, seeds: int, points: dict[int, tuple[float, float, float]]) -> Curve:
    means, low, high = np.array([*points.values()]).T
    return Curve(task, label, f"{label} ({counted(seeds, 'seed')})", np.array([*points]), means, (low, high), False)
