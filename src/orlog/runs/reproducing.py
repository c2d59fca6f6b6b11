"""Trains and scores seeds, and compares them with what was recorded: with a baseline, or with a file of results."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from orlog.algos.algorithms import ALGORITHMS, AlgorithmLike, algorithm_name, algorithm_title
from orlog.algos.presets import RECIPES
from orlog.algos.settings import complete_config, make_config
from orlog.algos.training.evaluating import scoring_protocol
from orlog.algos.training.policy import fitting_form
from orlog.algos.training.runs import RunRecord, TrainOptions
from orlog.base.code_version import run_sources
from orlog.base.jobs import Execute
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given
from orlog.errors import IntegrityError, NotFoundError, SchemaError
from orlog.manifests.documents import convert_json
from orlog.manifests.names import counted
from orlog.normalize.metrics import Number, numbers_of
from orlog.normalize.references import (
    Baseline,
    References,
    equal_baselines,
    is_measured_alike,
    read_baseline,
    score_caveats,
)
from orlog.normalize.statistics import bootstrap_interval
from orlog.normalize.verdicts import Verdict, compare_runs, recorded_outcomes
from orlog.runs.evaluating import Score, read_score
from orlog.runs.jobs import Job, jobs_of, run_jobs
from orlog.runs.scored_runs import ScoredRuns, read_scored_runs
from orlog.runs.scores import references_measured, references_of_dataset, trained_policy

# Settings that may differ from those of a file: preset and data give the scale, whose last bits vary by processor.
NOT_CHOSEN = ("device", "reward_scale", "reward_shift")
MOST_EVALUATIONS = 100  # most evaluations along a run for which a file from anywhere is taken at its word

# What each verdict says of a file.
OUTCOMES: Mapping[str, Literal["confirms", "contradicts", "unsettled"]] = {
    "identical": "confirms",
    "same": "confirms",
    "consistent": "confirms",
    "not consistent": "contradicts",
    "contradicted": "contradicts",
    "unsettled": "unsettled",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What seeds of one method score on one dataset, and how that compares with the recorded baseline."""

    seeds: dict[int, Score]  # score of each seed
    baseline: Baseline | None  # the recorded baseline; None if there is none
    # The comparison; None without a baseline or references, and where steps or settings are not the baseline's.
    verdict: Verdict | None
    notes: list[str]  # differences from the recorded run that make the comparison less exact
    not_compared: str = ""  # steps and settings that are not the baseline's, so that scores are not compared

    def __str__(self) -> str:
        """Return method, dataset, score and what was recorded in one line."""
        means = self.recorded_scores
        words = [f"return {self.returns.mean():z.2f}"]
        if self.scores is not None:
            interval = " (95 % interval {:z.1f} to {:z.1f})".format(*self.interval) if self.interval else ""
            words.insert(0, f"score {self.scores.mean():z.1f}{interval}")
        words.append(f"{counted(len(self.seeds), 'seed')} of {counted(self.returns.shape[1], 'episode')}")
        if means:
            words[-1] += f"; recorded {sum(means) / len(means):z.1f} from {counted(len(means), 'seed')}"
        return f"{self.title} on {self.record.shown_dataset}: {', '.join(words)}"

    @property
    def title(self) -> str:
        """How people write the algorithm with these settings."""
        return algorithm_title(self.record.algorithm, self.record.config)

    @property
    def first(self) -> Score:
        """The first seed, for what all seeds have in common."""
        return next(iter(self.seeds.values()))

    @property
    def record(self) -> RunRecord:
        """The run of the first seed: settings, digest, versions."""
        return self.first.record

    @property
    def references(self) -> References | None:
        """Reference returns that anchor the score; None if none were recorded."""
        return self.first.references

    @property
    def returns(self) -> np.ndarray:
        """Returns [seeds, episodes]."""
        return np.array([score.returns for score in self.seeds.values()])

    @property
    def scores(self) -> np.ndarray | None:
        """Normalized scores [seeds, episodes]; None without references."""
        return None if self.references is None else self.references.normalize(self.returns)

    @functools.cached_property
    def interval(self) -> tuple[float, float] | None:
        """Interval of the mean score at 95 %; None without references or spread."""
        scores = self.scores
        return None if scores is None else bootstrap_interval(scores, np.random.default_rng(0))

    @functools.cached_property
    def numbers(self) -> list[Number]:
        """What metrics give for the last policies of all seeds."""
        return numbers_of([score.outcomes for score in self.seeds.values()])

    @functools.cached_property
    def recorded_numbers(self) -> dict[str, Number]:
        """What metrics gave for the recorded baseline, by the name of each number."""
        baseline = self.baseline
        if baseline is None or not baseline.metrics:
            return {}
        return {number.name: number for number in numbers_of([*recorded_outcomes(baseline).values()])}

    @property
    def recorded_scores(self) -> list[float]:
        """Mean score of each recorded seed; empty without a baseline or references."""
        if self.baseline is None or self.references is None:
            return []
        return [float(values.mean()) for values in self.baseline.scores(self.references).values()]

    @property
    def caveats(self) -> list[str]:
        """The simulator of the scores and how the references' differs; empty without references."""
        references = self.references
        return [] if references is None else score_caveats(references, self.first.protocol)

    @property
    def judgement(self) -> str:
        """The verdict with its reasons, or why scores are not compared with those recorded; empty for neither."""
        text = f"not compared: {self.not_compared}" if self.not_compared else ""
        if self.verdict is not None:
            text = f"{'the ' if self.verdict.word == 'same' else ''}{self.verdict}"
        return text and f"{self.title} is {text}."

    def as_baseline(self) -> Baseline:
        """Return this result as a baseline to record."""
        record, seeds = self.record, self.seeds.items()
        recipe = RECIPES.get((record.algorithm, record.dataset))
        metrics = set.intersection(*(set(score.metrics) for score in self.seeds.values()))
        return Baseline(
            algorithm=record.algorithm,
            dataset=record.dataset,
            digest=record.digest,
            steps=record.steps,
            config=record.config,
            policy=trained_policy(record.config),
            protocol=self.first.protocol,
            versions=record.versions,
            returns={str(seed): score.evaluation.returns for seed, score in seeds},
            metrics={
                name: {str(seed): score.metrics[name].tolist() for seed, score in seeds} for name in sorted(metrics)
            },
            processor=self.first.evaluation.processor or "unknown",
            settings_tried=recipe.settings_tried if recipe else 0,
            tuning_seeds=list(recipe.tuning_seeds) if recipe else [],
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; scores are None without references."""
        scores, baseline, means = self.scores, self.baseline, self.recorded_scores
        seeds = [score.to_json() for score in self.seeds.values()]
        recorded = None
        if baseline is not None and means:
            names = ("processor", "settings_tried", "tuning_seeds")
            recorded = {"normalized_score": sum(means) / len(means), "seeds": len(means)}
            recorded |= {name: getattr(baseline, name) for name in names}
        of_all = ("algorithm", "dataset", "version", "digest", "steps", "config", "settings", "protocol")
        of_each = ("seed", "mean_return", "normalized_score", "returns", "metrics")
        return {
            **{name: seeds[0][name] for name in of_all},
            "mean_return": float(self.returns.mean()),
            "normalized_score": None if scores is None else float(scores.mean()),
            "score_interval": self.interval,
            "baseline": recorded,
            "verdict": self.verdict and verdict_json(self.verdict),
            "not_compared": self.not_compared or None,
            "notes": self.notes,
            "caveats": self.caveats,
            "numbers": [number.to_json() for number in self.numbers],
            "seeds": [
                {name: body[name] for name in of_each}
                | {"folder": body["run"], "updates_per_second": score.updates_per_second}
                for body, score in zip(seeds, self.seeds.values(), strict=True)
            ],
        }


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON, with its line."""
    return {**dataclasses.asdict(verdict), "text": str(verdict)}


def reproduce(
    jobs: Sequence[Job],
    counts: Sequence[int],
    *,
    workers: int | None,
    executor: str | Execute = "processes",
    progress: Callable[[Job, int], None] = lambda _job, _step: None,
    on_look: Callable[[Reproduction], None] = lambda _so_far: None,
) -> Reproduction:
    """Train and score seeds of an algorithm, and compare them with the recorded baseline.

    Scores are looked at after each of `counts` seeds, and no more are run once the verdict is settled. The looks
    share the error rate, so that they are fixed before the first (`look_counts`). `on_look` is called before more
    seeds are added.
    """
    done = 0
    for count in counts:
        run_jobs(jobs[done:count], workers=workers, executor=executor, progress=progress)
        done, so_far = count, summarize(jobs[:count], looks=len(counts))
        if count == counts[-1] or so_far.verdict is None or so_far.verdict.is_settled:
            return so_far
        on_look(so_far)
    raise AssertionError("the last look returns")


def more_seeds(algorithm: str, name: str, seeds: Sequence[int], count: int) -> list[int]:
    """Return the seeds and more, up to a number: first the recorded ones, to pair with these."""
    baseline = read_baseline(algorithm, name)
    recorded = sorted(map(int, baseline.returns)) if baseline is not None else []
    wanted = [*seeds, *recorded, *range(count + len(seeds) + len(recorded))]
    return list(dict.fromkeys(wanted))[:count]


def summarize(jobs: Sequence[Job], *, looks: int = 1) -> Reproduction:
    """Return what jobs of one algorithm and dataset scored that were run, compared with the recorded baseline."""
    references = references_of_dataset(load_dataset(jobs[0].dataset))
    return judge({job.seed: read_score(job.folder, references) for job in jobs}, looks=looks)


def judge(seeds: dict[int, Score], *, looks: int = 1) -> Reproduction:
    """Return what seeds of one algorithm and dataset score, compared with the baseline that orlog has."""
    if len({len(score.returns) for score in seeds.values()}) > 1:
        listed = ", ".join(f"seed {seed}: {len(score.returns)}" for seed, score in seeds.items())
        raise SchemaError(f"seeds have different numbers of episodes ({listed}); evaluate each with the same number.")
    first = next(iter(seeds.values()))
    record, references = first.record, first.references
    baseline = recorded_baseline(record.algorithm, record.dataset)
    verdict = None
    not_compared = "" if baseline is None else other_training(record, baseline)
    if baseline is not None and references is not None and not not_compared:
        verdict = compare_runs(
            {seed: score.outcomes for seed, score in seeds.items()},
            recorded_outcomes(baseline),
            references.normalize,
            same_run=record.digest == baseline.digest
            and all(is_measured_alike(score.protocol, baseline.protocol) for score in seeds.values()),
            looks=looks,
            processor=first.evaluation.processor,
            recorded_processor=baseline.processor,
        )
    return Reproduction(
        seeds=seeds, baseline=baseline, verdict=verdict, notes=_notes(first, baseline), not_compared=not_compared
    )


def recorded_baseline(algorithm: str, dataset: str) -> Baseline | None:
    """Return the baseline that orlog has, with every setting; None without."""
    baseline = read_baseline(algorithm, dataset)
    if baseline is None:
        return None
    config = complete_config(baseline.algorithm, baseline.config)
    return msgspec.structs.replace(baseline, config=config)


def check_comparable(algorithm: str, dataset: Given, steps: int | None = None) -> None:
    """Check that a run can be shown to give the recorded scores, before anything is trained."""
    dataset = load_dataset(dataset)
    baseline, problem = read_baseline(algorithm, dataset.name), ""
    if baseline is None:
        problem = "is not recorded, so there is nothing to compare with"
    elif references_of_dataset(dataset) is None:
        problem = "has no references, so scores cannot be compared"
    elif baseline.digest != dataset.digest:
        problem = (
            f"was recorded on {baseline.digest[:19]}, but this is {dataset.digest[:19]}: scores of other data "
            "cannot be shown to be the same"
        )
    elif steps not in (None, baseline.steps):
        problem = f"was recorded after {counted(baseline.steps, 'step')}, not {steps:,}: leave out steps="
    if problem:
        raise NotFoundError(f"the baseline of {algorithm} on {dataset.name} {problem}.")


def _notes(score: Score, baseline: Baseline | None) -> list[str]:
    """Return notes on how a run differs from the recorded one, apart from its scores."""
    record, protocol, notes = score.record, score.protocol, []
    if record.shown_dataset != record.dataset:
        notes.append(f"the data are a rebuild, {record.shown_dataset}, not the recorded {record.dataset}.")
    if baseline is None:
        notes.append("no baseline is recorded for this algorithm and dataset.")
    elif not other_training(record, baseline):
        recorded = baseline.protocol
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
        for here, there in ((record.versions, baseline.versions), (protocol.versions, recorded.versions)):
            notes += [
                f"the baseline used {package} {there[package]}; this run uses {here[package]}."
                for package in sorted({*here} & {*there})
                if here[package] != there[package]
            ]
        if protocol.episodes != recorded.episodes:
            notes.append(
                f"{counted(protocol.episodes, 'episode')} of each seed, but {recorded.episodes} were recorded: the "
                f"verdict compares the first {min(protocol.episodes, recorded.episodes)} of both."
            )
        if not is_measured_alike(protocol, recorded):
            notes.append("the protocol is not that of the baseline.")
    if score.references is None:
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


def reproduce_file(
    path: Path,
    folder: Path,
    *,
    seeds: Sequence[int] = (),
    algorithm: str | None = None,
    trust_environment: bool = False,
    workers: int | None = 1,
    progress: Callable[[Job, int], None] = lambda _job, _step: None,
) -> Verdict:
    """Train and evaluate seeds of a file of scored runs as it says, by default the first, and return the verdict.

    The runs go into `folder`, and on from there if they were interrupted. A dataset that is not here is built
    or downloaded, with the digest of the file. The file of an algorithm that is not orlog's is given by
    `algorithm`, as `FILE.py:CLASS`, and must be the one whose SHA-256 is stated.

    Raises NotFoundError if the file does not say how to train it with orlog, or has no references, or its
    data cannot be had; SchemaError if it was trained with other settings, or evaluated elsewhere;
    IntegrityError if the algorithm's file is another one.
    """
    stated = read_scored_runs(path)
    name, protocol = stated.method.algorithm, stated.protocol
    options = _options(stated, path, trust_environment=trust_environment)
    given = algorithm or name
    if algorithm_name(given) != name or (algorithm is None and given not in ALGORITHMS):
        raise NotFoundError(
            f"{path}: method.algorithm: {name} is not one of orlog's; give its file: algorithm='FILE.py:CLASS'."
        )
    dataset = load_dataset(f"{stated.dataset.name}@{stated.dataset.digest}", build=True, download=True)
    here = scoring_protocol(dataset, protocol.episodes, trust_environment=trust_environment)
    for field in ("environment_id", "environment_kwargs", "max_episode_steps", "first_seed"):
        if getattr(here, field) != getattr(protocol, field):
            raise SchemaError(
                f"{path}: protocol.{field}: says {getattr(protocol, field)}, but {getattr(here, field)} is "
                "what its dataset is evaluated with here, so returns cannot be compared."
            )
    references = references_measured(dataset.name, stated.dataset.digest, here) or stated.references
    if references is None:
        raise NotFoundError(f"{path}: references: none are known, so there are no scores to compare.")
    sources = _sources(stated, given, dataset, path)
    folders = {seed: folder / f"seed-{seed}" for seed in seeds or [stated.seeds[0].seed]}
    jobs = jobs_of(given, dataset, folders, options, episodes=protocol.episodes, resume=True)
    run_jobs(jobs, workers=workers, progress=progress)
    scores = {job.seed: read_score(job.folder, None) for job in jobs}
    first = next(iter(scores.values()))
    trained = first.record.every_setting
    for setting, value in stated.method.settings.items():
        if setting not in NOT_CHOSEN and (setting not in trained or trained[setting] != value):
            raise SchemaError(
                f"{path}: method.settings.{setting}: says {value}, but orlog trains it with {trained.get(setting)} "
                "here, so nothing is compared."
            )
    gives_equal_bits = sources == stated.code.files and all(
        (score.record.versions, score.protocol.versions) == (stated.code.versions, protocol.versions)
        and (score.record.device, score.evaluation.processor) == ("cpu", stated.compute.device)
        for score in scores.values()
    )
    return compare_runs(
        {seed: score.outcomes for seed, score in scores.items()},
        stated.played(),
        references.normalize,
        same_run=is_measured_alike(first.protocol, protocol),
        same_code=gives_equal_bits,
        processor=first.evaluation.processor,
        recorded_processor=stated.compute.device,
    )


def _options(stated: ScoredRuns, path: Path, *, trust_environment: bool) -> TrainOptions:
    """Return the options that train it again; a file from anywhere gives no consent, and evaluates no more than usual."""
    method, steps = stated.method, stated.compute.steps
    if method.options is None:
        raise NotFoundError(
            f"{path}: method.options: there are none, so it is not said how to train it with orlog; a fine-tuned run "
            "is trained again with: orlog train, then orlog finetune"
        )
    if stated.step != steps:
        raise NotFoundError(f"{path}: step: {stated.step:,} of {steps:,}, and runs are trained again as a whole.")
    try:
        asked = convert_json(method.options, TrainOptions)
        if ":" not in method.algorithm:
            make_config(method.algorithm, asked.settings or {})
    except NotFoundError:
        raise
    except ValueError as error:
        raise SchemaError(f"{path}: method.options: {error}") from error
    if asked.steps != steps:
        raise SchemaError(f"{path}: method.options.steps: says {asked.steps}, but it was trained for {steps}.")
    return TrainOptions(
        **{name: getattr(asked, name) for name in ("settings", "steps", "preset", "precision", "stream", "weights")},
        evaluations=min(asked.evaluations, MOST_EVALUATIONS),
        curve_episodes=min(asked.curve_episodes, stated.protocol.episodes),
        trust_environment=trust_environment,
    )


def _sources(stated: ScoredRuns, algorithm: AlgorithmLike, dataset: Dataset, path: Path) -> dict[str, str]:
    """Return the hash of each source here that decides the numbers; an own algorithm's must be the stated one."""
    kind: type[Any] = fitting_form(algorithm, dataset)
    here, module = run_sources(kind, make_config(kind, {})), kind.__module__
    if module.startswith("orlog."):
        return here
    code = stated.code
    if module not in code.files:
        raise NotFoundError(
            f"{path}: code.files: does not have {module}, so nothing shows that this is its code; who writes such "
            "a file names the algorithm: orlog evaluate RUNS --algorithm FILE.py:CLASS --out FILE.json"
        )
    if here[module] != code.files[module]:
        place = f"{code.repository} {code.commit}".strip() or "its repository"
        raise IntegrityError(
            f"{path}: code.files.{module}: is another file than this one; take that of {place}.",
            expected=code.files[module],
            found=here[module],
        )
    return here
