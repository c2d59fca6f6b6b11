"""Results of runs, each in a folder named by the hash of all that decides its numbers.

    $ORLOG_HOME/results/KEY/
      run.json, metrics.jsonl, checkpoint.safetensors, evaluation.json     as in every run's folder
      result.json    what went into the key, and a seal over all files; written last

KEY is the hex SHA-256 of the canonical JSON of `job` in result.json. A folder without result.json is a
run that has begun: it goes on from its checkpoint. Whoever trains in it holds the lock of the folder.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from orlog.algos.training.metrics import METRICS_FILE, read_metrics
from orlog.algos.training.runs import (
    CHECKPOINT_FILE,
    EVALUATION_FILE,
    RUN_FILE,
    Evaluation,
    RunRecord,
    check_files,
    read_evaluation,
    read_run,
)
from orlog.algos.training.seals import read_sealed, write_sealed
from orlog.base.files import hash_file, storage_errors
from orlog.errors import ManifestError
from orlog.manifests.documents import canonical_json
from orlog.normalize.references import Protocol
from orlog.runs.result_folders import RESULT_FILE, result_folder, results_folder

_REPAIR = "delete the folder, then run the sweep again"


class JobIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that decides the numbers of a run; equal identities are equal work.

    The processor is not in it: results on another one may differ in their last bits, and a result
    says on which it was computed.

    Attributes:
        digest: Digest of the dataset.
        algorithm: Name of the algorithm; for one from elsewhere, module and class with a colon.
        config: Every setting of the algorithm; None for those that are taken from the data.
        reward_scale: Factor of rewards in training, before `return_range`.
        reward_shift: Added to rewards in training.
        return_range: Range that returns are brought to in training; None leaves them.
        standardize_observations: Whether networks see standardized observations.
        seed: Training seed.
        steps: Gradient steps.
        evaluations: Evaluations during training, evenly spread.
        curve_episodes: Episodes at each of these points.
        protocol: How the last policy was evaluated, with versions of the environment's packages.
        code: Hex SHA-256 of each room that decides the numbers (`orlog.base.code_version`).
        versions: Versions of numpy and torch.
        device: `cpu` or `cuda`.
        precision: Of the products between hidden layers: `float32` or `bf16`.
        keep_checkpoints: Whether the checkpoint of each point of the learning curve is kept.
    """

    digest: str
    algorithm: str
    config: dict[str, Any]
    reward_scale: float
    reward_shift: float
    return_range: float | None
    standardize_observations: bool
    seed: int
    steps: int
    evaluations: int
    curve_episodes: int
    protocol: Protocol
    code: dict[str, str]
    versions: dict[str, str]
    device: str
    precision: str
    keep_checkpoints: bool


class _Finished(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `result.json` holds beside its seal."""

    job: JobIdentity
    finished: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """The result of a job, with what the files beside it hold.

    Attributes:
        key: Hex SHA-256 of the canonical JSON of `job`.
        job: All that went into the key.
        record: The run: dataset and version, settings, preset, versions.
        evaluation: Returns of the last policy, protocol and processor.
        folder: Its folder.
        finished: When it was finished, in UTC, such as 2026-03-01T12:00:00Z.
    """

    key: str
    job: JobIdentity
    record: RunRecord
    evaluation: Evaluation
    folder: Path
    finished: str


def key_of(job: JobIdentity) -> str:
    """Return the key of a job: 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(msgspec.to_builtins(job))).hexdigest()


def read_result(
    key: str, *, with_checkpoint: bool = False, folder: Path | None = None
) -> StoredResult | None:
    """Return a finished result, once it and the files beside it are shown unchanged; None without one.

    One that is damaged or was edited, or does not give its key, is a ManifestError. `folder` is where it
    lies, if not among the results of this home.
    """
    folder = folder or result_folder(key)
    path = folder / RESULT_FILE
    if not path.is_file():
        return None
    found, seal = read_sealed(path, _Finished, version=("result_version", 1), repair=_REPAIR)
    if key != key_of(found.job):
        raise ManifestError(
            f"{path}: its key is not that of its job, so it was edited or moved; {_REPAIR}.",
            file=str(path),
        )
    sealed = {**seal.files}
    if not with_checkpoint:
        sealed.pop(CHECKPOINT_FILE, None)
    check_files(folder, sealed, _hashes(folder, sealed), RESULT_FILE)
    return StoredResult(
        key=key,
        job=found.job,
        record=read_run(folder),
        evaluation=read_evaluation(folder),
        folder=folder,
        finished=found.finished,
    )


def _hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    return {name: hash_file(folder / name) for name in names if (folder / name).is_file()}


def read_results() -> Iterator[StoredResult]:
    """Yield every finished result of this home, in the order of their keys. Errors: `read_result`."""
    for path in sorted(results_folder().glob(f"*/{RESULT_FILE}")):
        found = read_result(path.parent.name)
        if found is not None:
            yield found


def write_result(job: JobIdentity) -> None:
    """Write the result of a run that was trained and evaluated in its folder."""
    folder = result_folder(key_of(job))
    lines = read_metrics(folder)
    if not lines or lines[-1]["step"] != job.steps:
        path = folder / METRICS_FILE
        raise ManifestError(
            f"{path}: its last line is not that of step {job.steps:,}, the last one; {_REPAIR}.",
            file=str(path),
        )
    read_evaluation(folder)
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    body = msgspec.to_builtins(_Finished(job=job, finished=now))
    files = _hashes(folder, (RUN_FILE, METRICS_FILE, EVALUATION_FILE, CHECKPOINT_FILE))
    with storage_errors(folder):
        write_sealed(folder / RESULT_FILE, body, files)
