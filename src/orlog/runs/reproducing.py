"""Trains and scores an algorithm with several seeds, and compares it with the recorded baseline."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orlog.algos.algorithms import known_as
from orlog.algos.presets import RECIPES
from orlog.algos.settings import complete_config
from orlog.algos.training.metrics import read_metrics
from orlog.algos.training.options import TrainOptions
from orlog.algos.training.runs import Evaluation, PathLike, RunRecord
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.given import Given
from orlog.errors import NotFoundError, SchemaError
from orlog.manifests.names import counted
from orlog.normalize.baselines import Baseline, equal_baselines, read_baseline
from orlog.normalize.metrics import Number, numbers_of
from orlog.normalize.references import References, is_measured_alike, score_caveats
from orlog.normalize.statistics import bootstrap_interval
from orlog.normalize.verdicts import Verdict, compare_runs, look_counts, recorded_outcomes
from orlog.runs.jobs import Executor, Job, Outcome, make_jobs, recorded_episodes, run_jobs
from orlog.runs.references import references_of_dataset, trained_policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a reproduction.

    Attributes:
        record: The first seed's run: settings, digest, versions.
        evaluations: Evaluation of each seed.
        updates_per_second: Training speed of each seed, measured while other seeds also ran.
        references: Reference returns that anchor the score; None if none were recorded.
        baseline: The recorded baseline; None if there is none.
        verdict: The comparison; None without a baseline or references, and where steps or settings
            are not the baseline's.
        not_compared: What of steps and settings is not the baseline's, so that scores are not compared;
            empty otherwise.
        notes: Differences from the recorded run that make the comparison less exact.
        folders: Folder of each seed's run.
        curves: Learning curve of each seed: gradient steps, and the mean return there.
    """

    record: RunRecord
    evaluations: dict[int, Evaluation]
    updates_per_second: dict[int, float]
    references: References | None
    baseline: Baseline | None
    verdict: Verdict | None
    notes: list[str]
    folders: dict[int, Path]
    curves: dict[int, list[tuple[int, float]]]
    not_compared: str = ""

    @property
    def returns(self) -> np.ndarray:
        """Returns [seeds, episodes]."""
        return np.array([evaluation.returns for evaluation in self.evaluations.values()])

    @property
    def scores(self) -> np.ndarray | None:
        """Normalized scores [seeds, episodes]; None without references."""
        return None if self.references is None else self.references.normalize(self.returns)

    @functools.cached_property
    def numbers(self) -> list[Number]:
        """What metrics give for the last policies of all seeds."""
        return numbers_of([one.played(self.record) for one in self.evaluations.values()])

    @functools.cached_property
    def recorded_numbers(self) -> dict[str, Number]:
        """What metrics gave for the recorded baseline, by the name of each number."""
        baseline = self.baseline
        if baseline is None or not baseline.metrics:
            return {}
        return {one.name: one for one in numbers_of([*recorded_outcomes(baseline).values()])}

    @property
    def caveats(self) -> list[str]:
        """The simulator of the scores and how the references' differs; empty without references."""
        if self.references is None:
            return []
        return score_caveats(self.references, next(iter(self.evaluations.values())).protocol)

    def as_baseline(self) -> Baseline:
        """Return this result as a baseline to record."""
        recipe = RECIPES.get((self.record.algorithm, self.record.dataset))
        return Baseline(
            algorithm=self.record.algorithm,
            dataset=self.record.dataset,
            digest=self.record.digest,
            steps=self.record.steps,
            config=self.record.config,
            policy=trained_policy(self.record.config),
            protocol=next(iter(self.evaluations.values())).protocol,
            versions=self.record.versions,
            returns={str(seed): item.returns for seed, item in self.evaluations.items()},
            metrics={
                name: {
                    str(seed): one.counted[name].tolist() for seed, one in self.evaluations.items()
                }
                for name in sorted(
                    set.intersection(*(set(one.counted) for one in self.evaluations.values()))
                )
            },
            processor=next(iter(self.evaluations.values())).processor or "unknown",
            settings_tried=recipe.settings_tried if recipe else 0,
            tuning_seeds=list(recipe.tuning_seeds) if recipe else [],
        )

    def score_interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval of the mean score; None without references or spread."""
        scores = self.scores
        return None if scores is None else bootstrap_interval(scores, np.random.default_rng(0))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; scores are None without references."""
        scores, verdict = self.scores, self.verdict
        recorded = None
        if self.baseline is not None and self.references is not None:
            means = [float(one.mean()) for one in self.baseline.scores(self.references).values()]
            recorded = {
                "normalized_score": sum(means) / len(means),
                "seeds": len(means),
                "processor": self.baseline.processor,
                "settings_tried": self.baseline.settings_tried,
                "tuning_seeds": self.baseline.tuning_seeds,
            }
        return {
            "algorithm": self.record.algorithm,
            "dataset": self.record.dataset,
            "version": self.record.version,
            "digest": self.record.digest,
            "steps": self.record.steps,
            "config": self.record.config,
            "settings": self.record.every_setting,
            "mean_return": float(self.returns.mean()),
            "normalized_score": None if scores is None else float(scores.mean()),
            "score_interval": self.score_interval(),
            "baseline": recorded,
            "verdict": None
            if verdict is None
            else {**dataclasses.asdict(verdict), "text": str(verdict)},
            "not_compared": self.not_compared or None,
            "notes": self.notes,
            "caveats": self.caveats,
            "numbers": [one.to_json() for one in self.numbers],
            "protocol": msgspec.to_builtins(next(iter(self.evaluations.values())).protocol),
            "seeds": [
                {
                    "seed": seed,
                    "folder": str(self.folders[seed]),
                    "mean_return": float(np.mean(evaluation.returns)),
                    "normalized_score": None if scores is None else float(scores[index].mean()),
                    "returns": evaluation.returns,
                    "metrics": {
                        name: values.tolist() for name, values in evaluation.counted.items()
                    },
                    "updates_per_second": self.updates_per_second[seed],
                }
                for index, (seed, evaluation) in enumerate(self.evaluations.items())
            ],
        }


def check_comparable(algorithm: str, dataset: Given, steps: int | None = None) -> None:
    """Check that a run can be shown to give the recorded scores, before anything is trained.

    Raises NotFoundError if there is no baseline, none of this data or so many steps, or no reference returns.
    """
    dataset = load_dataset(dataset)
    baseline = read_baseline(algorithm, dataset.name)
    if baseline is None:
        raise NotFoundError(
            f"no baseline of {algorithm} on {dataset.name} is recorded, so there is nothing "
            "to compare with."
        )
    if references_of_dataset(dataset) is None:
        raise NotFoundError(
            f"{dataset.name}: no reference returns are known, so its scores cannot be compared."
        )
    if baseline.digest != dataset.digest:
        raise NotFoundError(
            f"the baseline of {algorithm} on {dataset.name} was recorded on {baseline.digest[:19]}, but "
            f"this is {dataset.digest[:19]}: scores of other data cannot be shown to be the same."
        )
    if steps is not None and steps != baseline.steps:
        raise NotFoundError(
            f"the baseline of {algorithm} on {dataset.name} was recorded after {counted(baseline.steps, 'step')}, "
            f"not {steps:,}: leave out steps=."
        )


def summarize(
    dataset: Given, jobs: Sequence[Job], results: Sequence[Outcome], *, looks: int = 1
) -> Result:
    """Return the result of one algorithm's jobs, compared with the recorded baseline.

    `looks` is the number of times that the comparison is made while seeds are added.

    Raises SchemaError if a return is not a number, or seeds have different numbers of episodes.
    """
    dataset = load_dataset(dataset)
    record = results[0][0]
    return judge(
        record,
        {job.seed: result[1] for job, result in zip(jobs, results, strict=True)},
        {job.seed: job.folder for job in jobs},
        references=references_of_dataset(dataset),
        baseline=recorded_baseline(record.algorithm, dataset.name),
        looks=looks,
    )


def recorded_baseline(algorithm: str, dataset: str) -> Baseline | None:
    """Return the baseline that orlog has, with every setting; None without."""
    found = read_baseline(algorithm, dataset)
    if found is None:
        return None
    config = complete_config(found.algorithm, found.config)
    return msgspec.structs.replace(found, config=config)


def judge(
    record: RunRecord,
    evaluations: dict[int, Evaluation],
    folders: dict[int, Path],
    *,
    references: References | None,
    baseline: Baseline | None,
    looks: int = 1,
) -> Result:
    """Return the result of evaluations by seed, compared with a baseline; the folders hold the logs.

    Raises SchemaError if a return is not a number, or seeds have different numbers of episodes.
    """
    _check_returns(evaluations, folders)
    first = next(iter(evaluations.values()))
    verdict = None
    not_compared = "" if baseline is None else other_training(record, baseline)
    if baseline is not None and references is not None and not not_compared:
        same_run = record.digest == baseline.digest and all(
            is_measured_alike(evaluation.protocol, baseline.protocol)
            for evaluation in evaluations.values()
        )
        verdict = compare_runs(
            {seed: evaluation.played(record) for seed, evaluation in evaluations.items()},
            recorded_outcomes(baseline),
            references.normalize,
            same_run=same_run,
            looks=looks,
            processor=first.processor,
            recorded_processor=baseline.processor,
        )
    return Result(
        record=record,
        evaluations=evaluations,
        updates_per_second={seed: _updates_per_second(one) for seed, one in folders.items()},
        references=references,
        baseline=baseline,
        verdict=verdict,
        notes=_notes(record, first, baseline, references),
        folders=folders,
        curves={seed: _curve(one) for seed, one in folders.items()},
        not_compared=not_compared,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReproduceOptions:
    """What a reproduction is asked for.

    Attributes:
        seeds: Seeds to train.
        episodes: Episodes of each evaluation; by default as many as the baseline has, or 100.
        train: Options of each run; `steps` stands for those of the recipe, and is needed where there is
            neither recipe nor baseline.
        resume: Whether runs that were interrupted go on, and finished ones are not trained again.
        max_seeds: How many seeds there may be: they are added until the verdict is settled, first the
            recorded ones, each time as many as there are. None for those of `seeds`.
    """

    seeds: Sequence[int]
    episodes: int | None = None
    train: TrainOptions = TrainOptions()
    resume: bool = False
    max_seeds: int | None = None


def reproduce(
    algorithm: str,
    dataset: Given,
    folder: PathLike,
    options: ReproduceOptions,
    *,
    workers: int | None,
    executor: str | Executor = "processes",
    progress: Callable[[Job, int], None] = lambda _job, _step: None,
    on_look: Callable[[Result], None] = lambda _result: None,
) -> Result:
    """Train and score an algorithm by its recipe, and compare it with the recorded baseline.

    With `max_seeds`, the error rate is shared by the looks at the scores, whose numbers of seeds are fixed
    before the first; `on_look` gets the result before more are added. `progress` is called now and then with
    a running job and its last logged step.
    """
    algorithm, dataset = known_as(algorithm), load_dataset(dataset)
    seeds = options.seeds
    if options.max_seeds is not None:
        check_comparable(algorithm, dataset, options.train.steps)
    counts = look_counts(len(seeds), max(options.max_seeds or 0, len(seeds)))
    jobs = make_jobs(
        algorithm,
        dataset,
        folder,
        seeds=_more_seeds(algorithm, dataset.name, seeds, counts[-1]),
        episodes=options.episodes or recorded_episodes(algorithm, dataset.name),
        options=options.train,
        resume=options.resume,
    )
    outcomes: list[Outcome] = []
    for number, count in enumerate(counts, 1):
        wanted = jobs[len(outcomes) : count]
        outcomes += run_jobs(wanted, workers=workers, executor=executor, progress=progress)
        result = summarize(dataset, jobs[:count], outcomes, looks=len(counts))
        if number == len(counts) or result.verdict is None or result.verdict.is_settled:
            return result
        on_look(result)
    raise AssertionError("the last look returns")


def _more_seeds(algorithm: str, name: str, seeds: Sequence[int], count: int) -> list[int]:
    """Return the seeds and more, up to a number: first the recorded ones, to pair with these."""
    baseline = read_baseline(algorithm, name)
    recorded = sorted(map(int, baseline.returns)) if baseline is not None else []
    wanted = [*seeds, *recorded, *range(count + len(seeds) + len(recorded))]
    return list(dict.fromkeys(wanted))[:count]


def _updates_per_second(folder: Path) -> float:
    last = read_metrics(folder)[-1]
    return float(last["step"]) / float(last["seconds"])


def _curve(folder: Path) -> list[tuple[int, float]]:
    points = [line for line in read_metrics(folder) if "returns" in line]
    return [(int(line["step"]), float(np.mean(line["returns"]))) for line in points]


def _check_returns(evaluations: dict[int, Evaluation], folders: dict[int, Path]) -> None:
    for seed, evaluation in evaluations.items():
        returns = np.array(evaluation.returns)
        broken = int((~np.isfinite(returns)).sum())
        if broken:
            raise SchemaError(
                f"{folders[seed]}: {broken} of {len(returns)} returns are NaN or infinite, so there is no "
                "score; the policy or the environment gave them, so look at the run's metrics."
            )
    numbers = {seed: len(evaluation.returns) for seed, evaluation in evaluations.items()}
    if len({*numbers.values()}) > 1:
        listed = ", ".join(f"seed {seed}: {number}" for seed, number in numbers.items())
        raise SchemaError(
            f"seeds have different numbers of episodes ({listed}); evaluate each with the same number."
        )


def _notes(
    record: RunRecord,
    evaluation: Evaluation,
    baseline: Baseline | None,
    references: References | None,
) -> list[str]:
    """Return notes on how this run differs from the recorded one, apart from its scores."""
    notes = []
    if record.shown_dataset != record.dataset:
        notes.append(
            f"the data are a rebuild, {record.shown_dataset} ({record.digest[:19]}), not the recorded "
            f"{record.dataset}."
        )
    if baseline is None:
        notes.append("no baseline is recorded for this algorithm and dataset.")
    elif not other_training(record, baseline):
        if record.digest != baseline.digest:
            notes.append(
                f"the data are not those of the baseline ({record.digest[:19]} here, "
                f"{baseline.digest[:19]} in the baseline): the verdict compares scores of two datasets."
            )
        if equal := equal_baselines(baseline):
            notes.append(
                f"the recorded returns of {', '.join(equal)} are equal to these to the bit: agreeing with them is "
                f"no evidence for {record.algorithm}."
            )
        notes += _differing("the baseline", record.versions, baseline.versions)
        here, recorded = evaluation.protocol, baseline.protocol
        if here.episodes != recorded.episodes:
            notes.append(
                f"{counted(here.episodes, 'episode')} of each seed, but {recorded.episodes} were recorded: the "
                f"verdict compares the first {min(here.episodes, recorded.episodes)} of both."
            )
        notes += _differing("the baseline", here.versions, recorded.versions)
        if not is_measured_alike(here, recorded):
            notes.append("the protocol is not that of the baseline.")
    if references is None:
        notes.append("no reference returns are recorded, so there are raw returns and no scores.")
    return list(dict.fromkeys(notes))


def other_training(record: RunRecord, baseline: Baseline) -> str:
    """Return which steps and settings of a run are not those of the baseline; empty if all are."""
    here = {"steps": record.steps, **record.config}
    recorded = {"steps": baseline.steps, **baseline.config}
    return ", ".join(
        f"{name}={here.get(name)}, recorded with {recorded.get(name)}"
        for name in {**here, **recorded}
        if name != "seed" and here.get(name) != recorded.get(name)
    )


def _differing(what: str, here: dict[str, str], recorded: dict[str, str]) -> list[str]:
    return [
        f"{what} used {package} {recorded[package]}; this run uses {here[package]}."
        for package in sorted({*here} & {*recorded})
        if here[package] != recorded[package]
    ]
