"""Makes scored runs from the folders of evaluated runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from orlog.algos.algorithms import ALGORITHMS, AlgorithmLike, algorithm_name
from orlog.algos.settings import make_config
from orlog.algos.training.metrics import METRICS_FILE, read_metrics
from orlog.algos.training.policy import fitting_form
from orlog.algos.training.runs import VIEW_FILE, RunRecord, read_evaluation, read_run
from orlog.base.code_version import repository_and_commit, run_sources, sources_digest
from orlog.datasets.loading import load_dataset
from orlog.errors import NotFoundError, SchemaError
from orlog.runs.evaluated_runs import EvaluatedRun, check_seeds, find_runs
from orlog.runs.references import references_measured
from orlog.runs.scored_runs import (
    CodeUsed,
    Compute,
    DatasetUsed,
    Method,
    Scale,
    ScoredRuns,
    ScoredSeed,
    write_scored_runs,
)


def scored_runs(
    folders: Sequence[Path], *, tried: int | None = None, algorithm: AlgorithmLike | None = None
) -> list[ScoredRuns]:
    """Return what evaluated runs score, of each method and dataset.

    `tried` says how many settings were tried to choose these; `algorithm` is the file of one that is not orlog's,
    whose SHA-256 is stated then.

    Raises ValueError if runs of a method on a dataset are not seeds of one another; SchemaError if a run learned
    from a view, or was evaluated in another way than the other seeds.
    """
    groups: dict[tuple[str, str], list[EvaluatedRun]] = {}
    for run in find_runs(folders):
        groups.setdefault((run.method, run.dataset), []).append(run)
    return [
        _scored(sorted(runs, key=lambda one: one.seed), tried, algorithm)
        for runs in groups.values()
    ]


def write_all(out: Path, made: Sequence[ScoredRuns]) -> list[Path]:
    """Write scored runs to a file `..json`, or each to a file of its own in a folder; return the files.

    Raises SchemaError if there are several for one file.
    """
    if out.suffix != ".json":
        files = [
            out / one.dataset.name / f"{one.method.name.rpartition(':')[2]}.json" for one in made
        ]
    elif len(made) == 1:
        files = [out]
    else:
        names = ", ".join(f"{one.method.name} on {one.dataset.name}" for one in made)
        raise SchemaError(
            f"{out}: a file holds one method on one dataset, and these runs are {names}; name a folder instead: "
            f"--out {out.with_suffix('')}"
        )
    for file, one in zip(files, made, strict=True):
        write_scored_runs(file, one)
    return files


def _scored(
    runs: Sequence[EvaluatedRun], tried: int | None, algorithm: AlgorithmLike | None
) -> ScoredRuns:
    first = runs[0]
    check_seeds(first.method, first.dataset, runs)
    for run in runs:
        if run.protocol != first.protocol or run.step != first.step:
            raise SchemaError(
                f"{first.place} and {run.place} were evaluated in different ways; evaluate both with as many "
                "episodes, and the same packages: orlog evaluate RUN"
            )
        if (run.place / VIEW_FILE).exists():
            raise SchemaError(
                f"{run.place}: was trained on a view, which nobody else finds by its name; store it as a version "
                "first: orlog save VIEW NAME@VERSION"
            )
    records = {run.place: read_run(run.place) for run in runs}
    record = records[first.place]
    references = references_measured(first.dataset, first.digest, first.protocol)
    return ScoredRuns(
        dataset=DatasetUsed(name=first.dataset, version=first.version, digest=first.digest),
        method=Method(
            name=first.method,
            algorithm=first.algorithm,
            settings=first.settings,
            online=first.online,
            tried=tried,
            source="; ".join(filter(None, [record.preset, record.source])),
            options=None if record.online is not None else _options(record),
        ),
        protocol=first.protocol,
        policy=first.policy,
        step=first.step,
        seeds=[
            ScoredSeed(
                seed=run.seed,
                returns=run.returns.tolist(),
                metrics={name: values.tolist() for name, values in run.metrics.items()},
            )
            for run in runs
        ],
        references=None if references is None else Scale.of(references),
        code=_code(records, first, algorithm),
        compute=_compute(first, records),
    )


def _options(record: RunRecord) -> dict[str, object]:
    options = record.options()
    names = ("settings", "steps", "preset", "evaluations", "curve_episodes", "precision", "stream")
    return {name: getattr(options, name) for name in names}


def _code(
    records: Mapping[Path, RunRecord], run: EvaluatedRun, algorithm: AlgorithmLike | None
) -> CodeUsed:
    """Return what computed runs; sources are those of now, if the records show that they alone trained every seed."""
    record = records[run.place]
    unknown = CodeUsed(versions=record.versions)
    if algorithm is not None and algorithm_name(algorithm) != record.algorithm:
        raise ValueError(
            f"{run.place}: was trained with {record.algorithm}, not {algorithm_name(algorithm)}."
        )
    if algorithm is None and record.algorithm not in ALGORITHMS:
        return unknown  # code that a record names is not run
    try:
        dataset = load_dataset(f"{record.dataset}@{record.digest}")
        kind = fitting_form(algorithm or record.algorithm, dataset)
    except NotFoundError:  # the data are not here
        return unknown
    here = sources_digest(kind)
    if not here or any(code != here for one in records.values() for code in one.codes):
        return unknown
    config = make_config(kind, record.config)
    files = run_sources(kind, config)
    own = [module for module in files if not module.startswith("orlog.")]
    repository, commit = repository_and_commit(own or files)
    return CodeUsed(files=files, versions=record.versions, repository=repository, commit=commit)


def _compute(run: EvaluatedRun, records: Mapping[Path, RunRecord]) -> Compute:
    logs = [read_metrics(folder) for folder in records if (folder / METRICS_FILE).is_file()]
    seconds = [float(lines[-1].get("seconds", 0)) for lines in logs if lines]
    record = records[run.place]
    on_gpu = record.versions.get("gpu", record.device) if record.device != "cpu" else ""
    return Compute(
        steps=run.steps,
        hours=sum(seconds) / 3600 if len(seconds) == len(records) else None,
        device=on_gpu or read_evaluation(run.place).processor,
    )
