"""Runs seeds of a result again, and says by the verdicts of `orlog reproduce` whether they give what it states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orlog.algos.algorithms import ALGORITHMS, AlgorithmLike, algorithm_name
from orlog.algos.settings import complete_config, make_config
from orlog.algos.training.evaluating import evaluate_run, scoring_protocol
from orlog.algos.training.options import TrainOptions
from orlog.algos.training.policy import fitting_form
from orlog.algos.training.runs import Evaluation, RunRecord
from orlog.base.code_version import run_sources
from orlog.datasets.loading import load_dataset
from orlog.errors import IntegrityError, NotFoundError, SchemaError
from orlog.manifests.names import counted
from orlog.normalize.verdicts import Verdict
from orlog.results.documents import (
    NO_DIGEST,
    TRANSFORMS,
    Note,
    SharedResult,
    now,
    trained_seed,
    with_digest,
)
from orlog.results.going_on import check_options, run_again
from orlog.results.judging import KINDS, other_measure, verdict_of

MOST_EVALUATIONS = 100
"""Most evaluations along a run for which a file from anywhere is taken at its word."""


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
    if result.method.options is None:
        raise NotFoundError(
            f"{result.path}: method.options: there are none, so it is not said how to train it with orlog; who has "
            "its runs can add it again."
        )
    if result.step != result.compute.steps:
        raise NotFoundError(
            f"{result.path}: step: the policy of step {result.step:,} of {result.compute.steps:,} was evaluated, and "
            "runs are trained again as a whole."
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
    _check_options(result)
    episodes = result.protocol.episodes
    dataset = load_dataset(
        f"{result.dataset.name}@{result.dataset.digest}", build=True, download=True
    )
    unlike = other_measure(
        scoring_protocol(dataset, episodes, trust_environment=trust_environment), result.protocol
    )
    if unlike:
        raise SchemaError(
            f"{result.path}: protocol.{unlike}: is not how {dataset.name} is evaluated here, so returns cannot "
            "be compared."
        )
    kind = fitting_form(given, dataset)
    here = _sources_here(result, kind)
    if algorithm is not None:
        _check_code(result, kind, here)
    limits = TrainOptions(
        evaluations=MOST_EVALUATIONS, curve_episodes=episodes, trust_environment=trust_environment
    )
    outcomes, notes = [], []
    for seed in seeds:
        progress(seed, 0, result.compute.steps)
        run = folder / f"seed-{seed}"
        notes += run_again(result.method.options, seed, run, dataset, given, limits)
        outcomes.append(
            evaluate_run(
                run,
                dataset=dataset,
                algorithm=algorithm,
                episodes=episodes,
                trust_environment=trust_environment,
            )
        )
        _check_settings(result, outcomes[-1][0])
        progress(seed, result.compute.steps, result.compute.steps)
    same_code = all(_gives_equal_bits(result, here, *one) for one in outcomes)
    return _note(result, seeds, outcomes, by, notes, same_code=same_code)


def _check_options(result: SharedResult) -> None:
    """Refuse options that cannot be read, or that do not say all, before data are fetched and seeds trained."""
    options = result.method.options or {}
    try:
        if ":" not in result.method.algorithm:
            make_config(result.method.algorithm, {})
        check_options(options, result.compute.steps)
    except NotFoundError as error:
        raise NotFoundError(f"{result.path}: {error}") from error
    except ValueError as error:
        raise SchemaError(f"{result.path}: method.options: {error}") from error


def _sources_here(result: SharedResult, kind: type[Any]) -> dict[str, str]:
    """Return the hash of each source here that decides the numbers of such a run."""
    config = make_config(kind, {})
    environment = result.protocol.environment_id
    return run_sources(kind, config, environment)


def _check_code(result: SharedResult, kind: type[Any], here: dict[str, str]) -> None:
    """Refuse a file that is not the one that was hashed when the result was added."""
    if kind.__module__ not in result.code.files:
        raise NotFoundError(
            f"{result.path}: code.files: does not have {kind.__module__}, so nothing shows that this is its "
            "code; who adds such a result names the file: orlog results add RUNS --algorithm FILE.py:CLASS"
        )
    if here[kind.__module__] != result.code.files[kind.__module__]:
        raise IntegrityError(
            f"{result.path}: code.files.{kind.__module__}: is another file than this one; take the one of "
            f"{result.code.repository or 'its repository'} {result.code.commit}.".replace(
                " .", "."
            ),
            expected=result.code.files[kind.__module__],
            found=here[kind.__module__],
        )


def _gives_equal_bits(
    result: SharedResult, here: dict[str, str], record: RunRecord, evaluation: Evaluation
) -> bool:
    """Whether code, versions and processor of a run are those that a result states, so that bits must be equal."""
    return (
        here == result.code.files
        and record.versions == result.code.versions
        and evaluation.protocol.versions == result.protocol.versions
        and record.device == "cpu"
        and evaluation.processor == result.compute.device
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
    result: SharedResult,
    seeds: Sequence[int],
    outcomes: Sequence[tuple[RunRecord, Evaluation]],
    by: str,
    notes: Sequence[str],
    *,
    same_code: bool,
) -> tuple[Note, Verdict]:
    record, evaluation = outcomes[0]
    again = [
        trained_seed(seed, one.returns, one.counted)
        for seed, (_, one) in zip(seeds, outcomes, strict=True)
    ]
    found = verdict_of(
        result,
        again,
        evaluation.protocol,
        digest=record.digest,
        device=evaluation.processor,
        same_code=same_code,
    )
    note = Note(
        note_version=1,
        kind=KINDS[found.word],
        of=result.digest,
        reason="; ".join(
            [
                f"{counted(len(seeds), 'seed')} run again",
                *(() if found.word == "identical" else notes),
                str(found),
            ]
        ),
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
