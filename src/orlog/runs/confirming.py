"""Runs seeds of a file of scored runs again, and says whether they give what it states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from orlog.algos.algorithms import ALGORITHMS, AlgorithmLike, algorithm_name
from orlog.algos.settings import make_config
from orlog.algos.training.evaluating import evaluate_run, scoring_protocol
from orlog.algos.training.options import TrainOptions
from orlog.algos.training.policy import fitting_form
from orlog.algos.training.runs import Evaluation, RunRecord
from orlog.algos.training.train import train_run
from orlog.base.code_version import run_sources
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import IntegrityError, NotFoundError, SchemaError
from orlog.manifests.documents import convert_json
from orlog.normalize.references import Protocol, is_measured_alike
from orlog.normalize.verdicts import Verdict, compare_runs
from orlog.runs.references import references_measured
from orlog.runs.scored_runs import ScoredRuns, read_scored_runs

MOST_EVALUATIONS = 100
"""Most evaluations along a run for which a file from anywhere is taken at its word."""

Outcome = Literal["confirms", "contradicts", "unsettled"]
OUTCOMES: Mapping[str, Outcome] = {
    "identical": "confirms",
    "same": "confirms",
    "consistent": "confirms",
    "not consistent": "contradicts",
    "contradicted": "contradicts",
    "unsettled": "unsettled",
}
"""What each verdict says of the file."""


def reproduce_file(
    path: Path,
    folder: Path,
    *,
    seeds: Sequence[int] = (),
    algorithm: AlgorithmLike | None = None,
    trust_environment: bool = False,
    progress: Callable[[int, int, int], None] = lambda _seed, _step, _steps: None,
) -> Verdict:
    """Train and evaluate seeds of a file of scored runs as it says, by default the first, and return the verdict.

    The runs go into `folder`, and on from there if they were interrupted. A dataset that is not here is built
    or downloaded, with the digest of the file. The file of an algorithm that is not orlog's is given by
    `algorithm`, and must be the one whose SHA-256 is stated.

    Raises NotFoundError if the file does not say how to train it with orlog, or has no references, or its
    data cannot be had; SchemaError if it was trained with other settings, or evaluated elsewhere;
    IntegrityError if the algorithm's file is another one.
    """
    stated = read_scored_runs(path)
    asked = _options(stated, path)
    name = stated.method.algorithm
    given = algorithm or name
    if algorithm_name(given) != name or (algorithm is None and given not in ALGORITHMS):
        raise NotFoundError(
            f"{path}: method.algorithm: {name} is not one of orlog's; give the file that holds it: "
            "algorithm='FILE.py:CLASS'."
        )
    dataset = load_dataset(
        f"{stated.dataset.name}@{stated.dataset.digest}", build=True, download=True
    )
    episodes = stated.protocol.episodes
    here = scoring_protocol(dataset, episodes, trust_environment=trust_environment)
    _check_protocol(here, stated.protocol, path)
    references = references_measured(dataset.name, stated.dataset.digest, here) or stated.references
    if references is None:
        raise NotFoundError(
            f"{path}: references: none are known, so there are no scores to compare."
        )
    sources = _sources(stated, given, dataset, path)
    records, evaluations = [], {}
    for seed in seeds or [stated.seeds[0].seed]:
        progress(seed, 0, stated.compute.steps)
        run = folder / f"seed-{seed}"
        train_run(
            given,
            dataset,
            run,
            _limited(asked, seed, episodes, trust_environment=trust_environment),
            resume=True,
        )
        record, evaluations[seed] = evaluate_run(
            run,
            dataset=dataset,
            algorithm=algorithm,
            episodes=episodes,
            trust_environment=trust_environment,
        )
        _check_settings(stated, record, path)
        records.append(record)
        progress(seed, stated.compute.steps, stated.compute.steps)
    measured = next(iter(evaluations.values()))
    return compare_runs(
        {seed: one.played(records[0]) for seed, one in evaluations.items()},
        stated.played(),
        references.normalize,
        same_run=is_measured_alike(measured.protocol, stated.protocol),
        same_code=sources == stated.code.files
        and all(map(_gives_equal_bits, [stated] * len(records), records, evaluations.values())),
        processor=measured.processor,
        recorded_processor=stated.compute.device,
    )


def _options(stated: ScoredRuns, path: Path) -> TrainOptions:
    """Return the options that train it again, before data are fetched and seeds trained."""
    if stated.method.options is None:
        raise NotFoundError(
            f"{path}: method.options: there are none, so it is not said how to train it with orlog; a fine-tuned run "
            "is trained again with: orlog train, then orlog finetune"
        )
    if stated.step != stated.compute.steps:
        raise NotFoundError(
            f"{path}: step: the policy of step {stated.step:,} of {stated.compute.steps:,} was evaluated, and runs "
            "are trained again as a whole."
        )
    try:
        asked = convert_json(stated.method.options, TrainOptions)
        if ":" not in stated.method.algorithm:
            make_config(stated.method.algorithm, asked.settings or {})
    except NotFoundError:
        raise
    except ValueError as error:
        raise SchemaError(f"{path}: method.options: {error}") from error
    if asked.steps != stated.compute.steps:
        raise SchemaError(
            f"{path}: method.options.steps: says {asked.steps}, but it was trained for {stated.compute.steps}."
        )
    return asked


def _limited(
    asked: TrainOptions, seed: int, episodes: int, *, trust_environment: bool
) -> TrainOptions:
    """Return options of a file from anywhere: it gives no consent, and evaluates no more than is usual."""
    return TrainOptions(
        seed=seed,
        settings=asked.settings,
        steps=asked.steps,
        preset=asked.preset,
        evaluations=min(asked.evaluations, MOST_EVALUATIONS),
        curve_episodes=min(asked.curve_episodes, episodes),
        precision=asked.precision,
        stream=asked.stream,
        trust_environment=trust_environment,
    )


def _check_protocol(here: Protocol, stated: Protocol, path: Path) -> None:
    for name in ("environment_id", "environment_kwargs", "max_episode_steps", "first_seed"):
        if getattr(here, name) != getattr(stated, name):
            raise SchemaError(
                f"{path}: protocol.{name}: says {getattr(stated, name)}, but {getattr(here, name)} is what its "
                "dataset is evaluated with here, so returns cannot be compared."
            )


def _sources(
    stated: ScoredRuns, algorithm: AlgorithmLike, dataset: Dataset, path: Path
) -> dict[str, str]:
    """Return the hash of each source here that decides the numbers; an own algorithm's must be the stated one."""
    kind: type[Any] = fitting_form(algorithm, dataset)
    here = run_sources(kind, make_config(kind, {}))
    module = kind.__module__
    if module.startswith("orlog."):
        return here
    if module not in stated.code.files:
        raise NotFoundError(
            f"{path}: code.files: does not have {module}, so nothing shows that this is its code; who writes such "
            "a file names the algorithm: orlog evaluate RUNS --algorithm FILE.py:CLASS --out FILE.json"
        )
    if here[module] != stated.code.files[module]:
        place = " ".join(filter(None, [stated.code.repository, stated.code.commit]))
        raise IntegrityError(
            f"{path}: code.files.{module}: is another file than this one; take that of {place or 'its repository'}.",
            expected=stated.code.files[module],
            found=here[module],
        )
    return here


def _check_settings(stated: ScoredRuns, record: RunRecord, path: Path) -> None:
    """Refuse a run that was not trained with the settings that the file states."""
    here = record.every_setting
    for name, value in stated.method.settings.items():
        if name != "device" and (name not in here or here[name] != value):
            raise SchemaError(
                f"{path}: method.settings.{name}: says {value}, but orlog trains it with {here.get(name)} here, so "
                "nothing is compared."
            )


def _gives_equal_bits(stated: ScoredRuns, record: RunRecord, evaluation: Evaluation) -> bool:
    """Whether versions and processor of a run are those that a file states, so that bits must be equal."""
    return (
        record.versions == stated.code.versions
        and evaluation.protocol.versions == stated.protocol.versions
        and record.device == "cpu"
        and evaluation.processor == stated.compute.device
    )
