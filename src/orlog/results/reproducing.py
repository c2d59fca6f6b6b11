"""Runs seeds of a result again, and says by the verdicts of `orlog reproduce` whether they give what it states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from orlog.algos.algorithms import ALGORITHMS, AlgorithmLike, algorithm_name
from orlog.algos.settings import complete_config, make_config
from orlog.algos.training.evaluating import scoring_protocol
from orlog.algos.training.options import TrainOptions
from orlog.algos.training.policy import fitting_form
from orlog.algos.training.runs import RunRecord
from orlog.base.code_version import run_sources
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import IntegrityError, NotFoundError, SchemaError
from orlog.experiments.jobs import Job, Outcome, run_job
from orlog.experiments.reproducing import is_measured_alike
from orlog.manifests.documents import convert_json
from orlog.manifests.names import counted
from orlog.normalize.metrics.metrics import modules_for
from orlog.normalize.references import Protocol
from orlog.normalize.verdicts import Verdict, compare
from orlog.results.documents import (
    NO_DIGEST,
    TRANSFORMS,
    Note,
    SharedResult,
    TrainedSeed,
    now,
    trained_seed,
    with_digest,
)

Kind = Literal["confirmation", "contradiction", "unsettled"]
KINDS: Mapping[str, Kind] = {
    "identical": "confirmation",
    "same": "confirmation",
    "consistent": "confirmation",
    "not consistent": "contradiction",
    "unsettled": "unsettled",
}
"""What each verdict makes of seeds that were run again."""


def verdict_of(
    result: SharedResult,
    seeds: Sequence[TrainedSeed],
    protocol: Protocol,
    *,
    digest: str,
    device: str,
) -> Verdict:
    """Return the verdict on seeds that were run again, against all seeds of a result.

    Raises ValueError if the result has no references, in whose unit verdicts are.
    """
    scale = result.references
    if scale is None:
        raise ValueError("references: there are none, so there are no scores to compare.")

    def scores(of: Sequence[TrainedSeed]) -> dict[int, np.ndarray]:
        return {one.seed: scale.normalize(np.array(one.returns, float)) for one in of}

    return compare(
        scores(seeds),
        scores(result.seeds),
        same_run=digest == result.dataset.digest and is_measured_alike(protocol, result.protocol),
        processor=device,
        recorded_processor=result.compute.device,
    )


def note_problem(result: SharedResult, note: Note) -> str:
    """Return what is wrong with a reproduction, whose verdict follows from its returns; empty if nothing is."""
    if note.protocol is None:
        return ""
    if note.digest_of_data != result.dataset.digest:
        return "digest_of_data: it is of other data than its result."
    unlike = _other_measure(note.protocol, result.protocol)
    if unlike:
        return f"protocol.{unlike}: it is not that of its result."
    try:
        found = verdict_of(
            result, note.seeds, note.protocol, digest=note.digest_of_data, device=note.device
        )
    except ValueError as error:
        return str(error)
    if (found.word, KINDS[found.word]) != (note.verdict, note.kind):
        return f"verdict: says {note.verdict} ({note.kind}), but its returns are {found.word}."
    return ""


def _other_measure(here: Protocol, stated: Protocol) -> str:
    """Return in what returns were not measured in one environment; empty if they were."""
    names = ("environment_id", "environment_kwargs", "max_episode_steps", "first_seed")
    return next((one for one in names if getattr(here, one) != getattr(stated, one)), "")


def reproduce_result(
    result: SharedResult,
    folder: Path,
    *,
    seeds: Sequence[int],
    algorithm: AlgorithmLike | None = None,
    trust_environment: bool = False,
    by: str = "",
    progress: Callable[[int, int, int], None] = lambda _seed, _step, _steps: None,
) -> tuple[Note, Verdict]:
    """Train and evaluate seeds of a result as it says, and return what comes of it, which is written nowhere.

    The runs go into `folder`, and on from there if they were interrupted. A dataset that is not here is built
    or downloaded, with the digest of the result.

    Raises NotFoundError if the result does not say how to train it with orlog, or has no references, or its
    data cannot be had; SchemaError if it was trained with other settings or code, or evaluated elsewhere.
    """
    if result.method.options is None or result.step != result.compute.steps:
        raise NotFoundError(
            f"{result.path}: method.options: does not say how to train it with orlog to the step that was "
            "evaluated, so it cannot be run again here."
        )
    if result.references is None:
        raise NotFoundError(f"{result.path}: references: none, so there are no scores to compare.")
    given = algorithm or result.method.algorithm
    if algorithm_name(given) != result.method.algorithm or (
        algorithm is None and given not in ALGORITHMS
    ):
        raise NotFoundError(
            f"{result.path}: method.algorithm: {result.method.algorithm} is not one of orlog's; give the file "
            "that holds it, from the repository that the result names: algorithm='FILE.py:CLASS'."
        )
    options = _options(result, trust_environment)
    episodes = result.protocol.episodes
    dataset = load_dataset(
        f"{result.dataset.name}@{result.dataset.digest}", build=True, download=True
    )
    unlike = _other_measure(
        scoring_protocol(dataset, episodes, trust_environment=trust_environment), result.protocol
    )
    if unlike:
        raise SchemaError(
            f"{result.path}: protocol.{unlike}: is not how {dataset.name} is evaluated here, so returns cannot "
            "be compared."
        )
    if algorithm is not None:
        _check_code(result, algorithm, dataset)
    outcomes = []
    for seed in seeds:
        progress(seed, 0, result.compute.steps)
        job = Job(
            algorithm=str(given) if isinstance(given, str) else algorithm_name(given),
            dataset=dataset.folder,
            folder=folder / f"seed-{seed}",
            options=msgspec.structs.replace(options, seed=seed),
            episodes=episodes,
            resume=True,
        )
        outcomes.append(run_job(job))
        _check_settings(result, outcomes[-1][0])
        progress(seed, result.compute.steps, result.compute.steps)
    return _note(result, seeds, outcomes, by)


def _options(result: SharedResult, trust_environment: bool) -> TrainOptions:
    """Return the options to train with: of a file from anywhere, none that consents to anything."""
    try:
        given = convert_json({**(result.method.options or {})}, TrainOptions)
        make_config(result.method.algorithm, {}) if ":" not in result.method.algorithm else None
    except ValueError as error:
        raise SchemaError(f"{result.path}: method.options: {error}") from error
    return TrainOptions(
        settings=given.settings,
        steps=result.compute.steps,
        preset=given.preset,
        evaluations=min(given.evaluations, 100),
        curve_episodes=min(given.curve_episodes, result.protocol.episodes),
        precision=given.precision,
        stream=given.stream,
        trust_environment=trust_environment,
    )


def _check_code(result: SharedResult, algorithm: AlgorithmLike, dataset: Dataset) -> None:
    """Refuse a file that is not the one that was hashed when the result was added."""
    kind = fitting_form(algorithm, dataset)
    if kind.__module__ not in result.code.files:
        raise NotFoundError(
            f"{result.path}: code.files: does not have {kind.__module__}, so nothing shows that this is its "
            "code; who adds such a result names the file: orlog results add RUNS --algorithm FILE.py:CLASS"
        )
    config = make_config(kind, {})
    here = run_sources(kind, config, result.protocol.environment_id, modules_for(dataset.roles))
    if here[kind.__module__] != result.code.files[kind.__module__]:
        raise IntegrityError(
            f"{result.path}: code.files.{kind.__module__}: is another file than this one; take the one of "
            f"{result.code.repository or 'its repository'} {result.code.commit}.".replace(
                " .", "."
            ),
            expected=result.code.files[kind.__module__],
            found=here[kind.__module__],
        )


def _check_settings(result: SharedResult, record: RunRecord) -> None:
    """Refuse a run that was not trained with the settings that the result states."""
    stated = result.method.settings
    config = {name: value for name, value in stated.items() if name not in TRANSFORMS}
    stated = {**stated, **complete_config(result.method.algorithm, config)}
    here = {**record.config, **{one: getattr(record, one) for one in TRANSFORMS if one in stated}}
    for name, value in here.items():
        if name not in ("seed", "steps") and stated.get(name) != value:
            raise SchemaError(
                f"{result.path}: method.settings.{name}: says {stated.get(name)}, but orlog trains it with "
                f"{value} here, so nothing is compared."
            )


def _note(
    result: SharedResult, seeds: Sequence[int], outcomes: Sequence[Outcome], by: str
) -> tuple[Note, Verdict]:
    record, evaluation = outcomes[0]
    again = [
        trained_seed(seed, one.returns, one.counted)
        for seed, (_, one) in zip(seeds, outcomes, strict=True)
    ]
    found = verdict_of(
        result, again, evaluation.protocol, digest=record.digest, device=evaluation.processor
    )
    note = Note(
        note_version=1,
        kind=KINDS[found.word],
        of=result.digest,
        reason=f"{counted(len(seeds), 'seed')} run again; {found}",
        seeds=again,
        protocol=evaluation.protocol,
        verdict=found.word,
        digest_of_data=record.digest,
        versions=record.versions,
        device=evaluation.processor,
        by=by,
        signed_by="",
        created=now(),
        digest=NO_DIGEST,
    )
    return with_digest(note), found
