"""Makes results to share from runs and from recorded baselines, and compares them with what is known here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from orlog.algos.algorithms import ALGORITHMS, AlgorithmLike, algorithm_name
from orlog.algos.settings import complete_config, make_config
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
from orlog.errors import (
    IntegrityError,
    ManifestError,
    NotFoundError,
    OrlogError,
    SchemaError,
    clause,
)
from orlog.experiments.result_folders import RESULT_FILE
from orlog.experiments.stored_results import read_result
from orlog.manifests.documents import canonical_json
from orlog.manifests.environments import own_arguments
from orlog.manifests.manifest import Manifest
from orlog.manifests.rebuilds import version_of
from orlog.manifests.shipped import recorded_folder, recorded_manifest
from orlog.normalize.baselines import Baseline, read_baseline
from orlog.normalize.metrics.metrics import modules_for
from orlog.normalize.references import References
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
from orlog.scoring.evaluated_runs import EvaluatedRun, check_seeds, find_runs, references_of_run
from orlog.scoring.references import described, references_of, trained_policy

_TRAINS_AGAIN = ("settings", "steps", "preset", "evaluations", "curve_episodes", "precision")
_CLOSE = 1e-9


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
    records = [read_run(folder) for folder in folders]
    record = records[0] if records else None
    references = references_of_run(first)
    scale = None if references is None else Scale.of(references)
    seeds = [trained_seed(run.seed, run.returns, run.metrics) for run in runs]
    files = {} if record is None else _sources(folders[0], record, first, stated.algorithm)
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
            options=None if record is None else _options(record),
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


def _options(record: RunRecord) -> dict[str, Any] | None:
    """Return the options that train a run again; None of one that goes on with another run."""
    if record.online is not None and record.online.run:
        return None
    options = record.options()
    streamed = {"stream": True} if options.stream else {}
    return {name: getattr(options, name) for name in _TRAINS_AGAIN} | streamed


def _sources(
    folder: Path, record: RunRecord, run: EvaluatedRun, algorithm: AlgorithmLike | None
) -> dict[str, str]:
    """Return the hash of each source that decides the numbers of a run; nothing if it is not known.

    A result of a sweep has those that computed it. Of another run they are those of now, if its record shows
    that they trained it.
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
        if not record.code or record.code != sources_digest(kind):
            return {}
        config = make_config(kind, record.config)
        return run_sources(kind, config, run.protocol.environment_id, modules_for(dataset.roles))
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


def baseline_results(name: str) -> list[SharedResult]:
    """Return the baselines of a dataset that ship with orlog, as results."""
    paths = sorted((recorded_folder(name) / "baselines").glob("*.json"))
    found = (read_baseline(path.stem, name) for path in paths)
    return [_result_of_baseline(one) for one in found if one is not None]


def _result_of_baseline(baseline: Baseline) -> SharedResult:
    manifest = recorded_manifest(baseline.dataset)
    same = manifest is not None and manifest.digest == baseline.digest
    references = None if manifest is None else references_of(manifest)
    scale = None if references is None else Scale.of(references)
    config = complete_config(baseline.algorithm, baseline.config)
    batch = config.get("batch_size")
    seeds = [
        trained_seed(
            int(seed), returns, {m: np.array(by[seed]) for m, by in baseline.metrics.items()}
        )
        for seed, returns in baseline.returns.items()
    ]
    found: SharedResult = with_digest(
        SharedResult(
            result_version=1,
            dataset=UsedData(
                name=baseline.dataset,
                version=manifest.version if manifest is not None and same else "",
                digest=baseline.digest,
            ),
            method=Method(
                name=baseline.algorithm,
                algorithm=baseline.algorithm,
                settings={one: v for one, v in config.items() if one not in ("seed", "steps")},
                tried=None,
                source="orlog's own recipe",
                options={"steps": baseline.steps},
                online=False,
            ),
            protocol=baseline.protocol,
            checkpoint=baseline.policy,
            step=baseline.steps,
            seeds=seeds,
            references=scale,
            scores=scores_of(seeds, scale),
            code=UsedCode(
                digest="", files={}, versions=baseline.versions, repository="", commit=""
            ),
            compute=Compute(
                steps=baseline.steps,
                batch_size=batch if isinstance(batch, int) else None,
                parameters=None,
                hours=None,
                device=baseline.processor,
            ),
            note="",
            by="recorded with orlog",
            signed_by="",
            created="",
            digest=NO_DIGEST,
        )
    )
    return found


def known_problems(result: SharedResult, looked_up: dict[str, Any] | None = None) -> list[str]:
    """Return what a result says that is not so, by what is known here: digest of the data, references.

    Each is a sentence that begins with the field. What is not known here is not compared. Where many results are
    compared, `looked_up` keeps what was found for the next one.
    """
    seen = {} if looked_up is None else looked_up
    data, protocol, scale = result.dataset, result.protocol, result.references
    name = f"{data.name}@{data.version}"
    if name not in seen:
        seen[name] = _known_manifest(data.name, data.version)
    problems = []
    if seen[name] is not None and seen[name].digest != data.digest:
        problems.append(
            f"dataset.digest: says {data.digest[:19]}, but {name} is {seen[name].digest[:19]}."
        )
    measured = [protocol.environment_id, protocol.environment_kwargs, protocol.max_episode_steps]
    where = canonical_json([data.name, data.digest, *measured, protocol.versions]).decode()
    if where not in seen:
        known = _known_references(result)
        seen[where] = None if known is None else Scale.of(known)
    here = seen[where]
    if here is None or scale is None:
        return problems
    if (here.source, here.simulator) != (scale.source, scale.simulator):
        return problems  # other ones, which tables keep apart
    for one in ("random", "expert"):
        said, is_so = getattr(scale, one).mean, getattr(here, one).mean
        if not math.isclose(said, is_so, rel_tol=_CLOSE, abs_tol=_CLOSE):
            problems.append(
                f"references.{one}: says {said:g}, but that of {scale.source} in {scale.simulator} is {is_so:g}."
            )
    return problems


def _known_manifest(name: str, version: str) -> Manifest | None:
    """Return the manifest that is known under a name and version, here or among those that ship."""
    if not version:
        return None
    try:
        found = described(f"{name}@{version}").manifest
    except OrlogError:  # not known, or an orlog.lock pins another one
        return None
    return found if found is not None and version_of(found) == version else None


def _known_references(result: SharedResult) -> References | None:
    run = EvaluatedRun(
        place=Path(),
        method=result.method.name,
        algorithm=result.method.algorithm,
        dataset=result.dataset.name,
        digest=result.dataset.digest,
        seed=0,
        settings={},
        code="",
        step=result.step,
        steps=result.compute.steps,
        protocol=result.protocol,
        returns=np.zeros(1),
        curve=[],
    )
    return references_of_run(run)
