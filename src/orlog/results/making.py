"""Makes results to share from runs and from recorded baselines, and compares them with what is known here."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from orlog.algos.algorithms import ALGORITHMS, AlgorithmLike, algorithm_name
from orlog.algos.settings import make_config
from orlog.algos.training.metrics import METRICS_FILE, read_metrics
from orlog.algos.training.policy import fitting_form
from orlog.algos.training.runs import (
    CHECKPOINT_FILE,
    RUN_FILE,
    VIEW_FILE,
    RunRecord,
    read_evaluation,
    read_run,
)
from orlog.base.code_version import run_sources, sources_digest, unchanged_files
from orlog.base.repositories import repository_and_commit
from orlog.datasets.loading import load_dataset
from orlog.errors import IntegrityError, ManifestError, NotFoundError, SchemaError, clause
from orlog.experiments.result_folders import RESULT_FILE
from orlog.experiments.stored_results import read_result
from orlog.manifests.environments import own_arguments
from orlog.results.documents import (
    NO_DIGEST,
    TRANSFORMS,
    Compute,
    Method,
    Scale,
    SharedResult,
    UsedCode,
    UsedData,
    code_digest,
    now,
    scores_of,
    trained_seed,
    with_digest,
)
from orlog.results.going_on import earlier_records, options_of
from orlog.results.known import known_problems
from orlog.scoring.evaluated_runs import EvaluatedRun, check_seeds, find_runs, references_of_run
from orlog.scoring.references import trained_policy


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What a person says of a result, and no file does.

    Attributes:
        by: Who adds it.
        method: Name of the method; empty for that of the runs.
        tried: How many settings were tried to choose these, itself counted; None if that is not said.
        repository: Where the code is; empty for what git says.
        commit: Its commit there; empty for what git says.
        note: What else is to be said.
        algorithm: The algorithm, if it is not one of orlog's: its file is hashed.
    """

    by: str = ""
    method: str = ""
    tried: int | None = None
    repository: str = ""
    commit: str = ""
    note: str = ""
    algorithm: AlgorithmLike | None = None


def results_of_runs(places: Sequence[str | Path], stated: Stated = Stated()) -> list[SharedResult]:
    """Return a result for each method and dataset among evaluated runs, found as `orlog compare` finds them.

    Raises ValueError if runs of a method are not seeds of one another; SchemaError if a run learned from a
    view, or was evaluated in another way than its other seeds;
    IntegrityError if the data are not those of the manifest that is known under their name.
    """
    groups: dict[tuple[str, str], list[EvaluatedRun]] = {}
    for run in find_runs(places):
        groups.setdefault((stated.method or run.method, run.dataset), []).append(run)
    return [
        _result_of(name, sorted(runs, key=lambda one: one.seed), stated)
        for (name, _), runs in groups.items()
    ]


def _result_of(name: str, runs: Sequence[EvaluatedRun], stated: Stated) -> SharedResult:
    first = runs[0]
    where = f"{name} on {first.dataset}"
    check_seeds(name, first.dataset, runs)
    for run in runs:
        if run.protocol != first.protocol or run.step != first.step:
            raise SchemaError(
                f"{where}: {first.place} and {run.place} were evaluated in different ways; evaluate both with "
                "as many episodes, and the same packages: orlog evaluate RUN"
            )
        if (run.place / VIEW_FILE).exists():
            raise SchemaError(
                f"{run.place}: was trained on a view, which nobody else finds by its name; store it as a "
                f"version first: orlog save VIEW NAME@VERSION"
            )
    folders = [run.place for run in runs if (run.place / RUN_FILE).is_file()]
    by_folder = {folder: read_run(folder) for folder in folders}
    record = next(iter(by_folder.values()), None)
    codes = _codes(by_folder.values())
    references = references_of_run(first)
    scale = None if references is None else Scale.of(references)
    seeds = [trained_seed(run.seed, run.returns, run.metrics) for run in runs]
    files = {} if record is None else _sources(folders[0], record, codes, first, stated.algorithm)
    repository, commit = (stated.repository, stated.commit)
    if files and not repository and not commit:
        own = {module: one for module, one in files.items() if not module.startswith("orlog.")}
        repository, commit = repository_and_commit(unchanged_files(own or files))
    result = SharedResult(
        result_version=1,
        dataset=UsedData(name=first.dataset, version=first.version, digest=first.digest),
        method=Method(
            name=name,
            algorithm=first.algorithm,
            settings=_settings(first, record),
            tried=stated.tried,
            source=""
            if record is None
            else "; ".join(filter(None, [record.preset, record.source])),
            options=options_of(by_folder) if by_folder else None,
            online=record is not None and record.online is not None,
        ),
        protocol=first.protocol,
        checkpoint=trained_policy({} if record is None else record.config),
        step=first.step,
        seeds=seeds,
        references=scale,
        scores=scores_of(seeds, scale),
        code=UsedCode(
            digest=code_digest(files),
            files=files,
            versions={} if record is None else record.versions,
            repository=repository,
            commit=commit,
            trained_by=codes if len({one for those in codes.values() for one in those}) > 1 else {},
        ),
        compute=_compute(first, folders, record),
        note=stated.note,
        by=stated.by,
        signed_by="",
        created=now(),
        digest=NO_DIGEST,
    )
    try:
        found: SharedResult = with_digest(result)
    except ManifestError as error:
        raise SchemaError(f"{where}: {clause(error)}.") from error
    problems = known_problems(found)
    if problems:
        raise IntegrityError(f"{where}: {problems[0]}")
    return found


def _settings(run: EvaluatedRun, record: RunRecord | None) -> dict[str, Any]:
    """Return every setting of a run, and how rewards and observations are transformed."""
    if record is None:
        return {name: value for name, value in run.settings.items() if name != "steps"}
    settings = {
        name: value for name, value in record.config.items() if name not in ("seed", "steps")
    }
    for name in TRANSFORMS:
        settings[name] = getattr(record, name)
    return settings


def _codes(records: Iterable[RunRecord]) -> dict[str, list[str]]:
    """Return by seed each code that trained it, in order; that of runs that it goes on with comes first."""
    found = {}
    for record in records:
        chain = [*reversed(earlier_records(record)), record]
        begins = chain[0].online is None or not chain[0].online.run  # else a run before is not here
        every = ([] if begins else [""]) + [one for run in chain for one in run.codes]
        found[str(record.seed)] = [one for one, _ in itertools.groupby(every)]
    return found


def _sources(
    folder: Path,
    record: RunRecord,
    codes: Mapping[str, Sequence[str]],
    run: EvaluatedRun,
    algorithm: AlgorithmLike | None,
) -> dict[str, str]:
    """Return the hash of each source that decides the numbers of runs; nothing if it is not known.

    A result of a sweep has those that computed it. Of other runs they are those of now, if their records show
    that they alone trained them.
    """
    if (folder / RESULT_FILE).is_file():
        stored = read_result(folder.name, folder=folder)
        return {} if stored is None else stored.job.code
    if algorithm is not None and algorithm_name(algorithm) != record.algorithm:
        raise ValueError(
            f"{folder}: was trained with {record.algorithm}, not {algorithm_name(algorithm)}."
        )
    if algorithm is None and record.algorithm not in ALGORITHMS:
        return {}  # code that a record names is not run
    try:
        dataset = load_dataset(f"{record.dataset}@{record.digest}")
        kind = fitting_form(algorithm or record.algorithm, dataset)
        own_arguments(run.protocol.environment_id, {})  # which registers it
        here = sources_digest(kind)
        if not here or any(one != here for those in codes.values() for one in those):
            return {}
        config = make_config(kind, record.config)
        return run_sources(kind, config, run.protocol.environment_id)
    except NotFoundError:  # data or environment are not here
        return {}


def _compute(run: EvaluatedRun, folders: Sequence[Path], record: RunRecord | None) -> Compute:
    logs = [read_metrics(folder) for folder in folders if (folder / METRICS_FILE).is_file()]
    seconds = [float(lines[-1].get("seconds", 0)) for lines in logs if lines]
    batch = run.settings.get("batch_size")
    device = ""
    if record is not None:
        on_gpu = record.versions.get("gpu", record.device) if record.device != "cpu" else ""
        device = on_gpu or read_evaluation(folders[0]).processor
    return Compute(
        steps=run.steps,
        batch_size=batch if isinstance(batch, int) else None,
        parameters=_parameters(folders[0] / CHECKPOINT_FILE) if folders else None,
        hours=sum(seconds) / 3600 if len(seconds) == len(folders) and seconds else None,
        device=device,
    )


def _parameters(checkpoint: Path) -> int | None:
    """Return how many numbers of a checkpoint are trained: not optimizers, nor networks that only follow."""
    if not checkpoint.is_file():
        return None
    try:
        with safe_open(str(checkpoint), "np") as file:
            names = [one for one in file.keys() if not {"optimizer", "target"} & _words(one)]  # noqa: SIM118
            return int(sum(math.prod(file.get_slice(one).get_shape()) for one in names))
    except (OSError, SafetensorError):
        return None


def _words(name: str) -> set[str]:
    return {*name.partition("/")[0].replace("optimizers", "optimizer").lower().split("_")}
