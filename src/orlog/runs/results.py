"""Results of sweeps, each in a folder named by the hash of all that decides its numbers.

    $ORLOG_HOME/results/KEY/
      run.json, metrics.jsonl, checkpoint.safetensors, evaluation.json     as in every run's folder
      result.json    `job`, which is what went into the key; written last

KEY is the hex SHA-256 of the canonical JSON of `job`. A folder without result.json is a run that has begun: it
goes on from its checkpoint. Whoever trains in it holds the lock of the folder.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from orlog.algos.algorithms import algorithm_name
from orlog.algos.presets import recipe_for
from orlog.algos.training.data import find_device
from orlog.algos.training.evaluating import scoring_protocol
from orlog.algos.training.policy import check_goal_to_act_for, fitting_form
from orlog.algos.training.runs import (
    EVALUATION_FILE,
    METRICS_FILE,
    TrainOptions,
    check_files,
    code_versions,
    read_evaluation,
    read_metrics,
    read_sealed,
    write_sealed,
)
from orlog.algos.training.train import precision_here, run_config
from orlog.base.code_version import run_sources
from orlog.base.files import hash_file, make_folder, storage_errors
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import ManifestError
from orlog.manifests.documents import canonical_json

RESULT_FILE = "result.json"
_REPAIR = "delete the folder, then run the sweep again"
Decides: TypeAlias = dict[str, Any]  # all that decides the numbers of a run, as JSON


def results_folder() -> Path:
    """Return `$ORLOG_HOME/results`, which is not created."""
    return datasets_folder().parent / "results"


def key_of(decides: Decides) -> str:
    """Return the key of a job: 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(decides)).hexdigest()


def result_folder(key: str) -> Path:
    """Return the folder of a job's result, finished or not."""
    return results_folder() / key


def what_decides(algorithm: str, dataset: Dataset, options: TrainOptions, *, episodes: int) -> Decides:
    """Return all that decides the numbers of a run with these options, of which `steps` are needed.

    Equal ones are equal work. Each setting is in it, those that are taken from the data as None, and how rewards
    and observations are transformed; how the last policy is evaluated; the SHA-256 of the sources that
    decide the numbers (`orlog.base.code_version`), and the versions of NumPy, PyTorch and the environment's packages.
    The processor is not: results on another one may differ in their last bits, and each says on which it was computed.
    """
    kind = fitting_form(algorithm, dataset)
    check_goal_to_act_for(kind, dataset)
    recipe = recipe_for(algorithm, dataset, preset=options.preset)
    assert options.steps is not None
    settings = {**recipe.settings, **(options.settings or {})}
    config = run_config(kind, settings, steps=options.steps, seed=options.seed)
    device = find_device(options.device)
    versions = code_versions()
    protocol = scoring_protocol(dataset, episodes, trust_environment=options.trust_environment)
    decides = {
        "digest": dataset.digest,
        "algorithm": algorithm_name(algorithm),
        "config": config,
        "reward_scale": recipe.rewards.scale,
        "reward_shift": recipe.rewards.shift,
        "return_range": recipe.rewards.return_range,
        "standardize_observations": recipe.standardize_observations,
        "seed": options.seed,
        "steps": options.steps,
        "evaluations": options.evaluations,
        "curve_episodes": options.curve_episodes,
        "protocol": protocol,
        "code": run_sources(kind, config),
        "versions": {name: versions[name] for name in ("numpy", "torch")},
        "device": device.partition(":")[0],
        "precision": precision_here(options.precision, device),
        "keep_checkpoints": options.keep_checkpoints,
    }
    plain: Decides = msgspec.json.decode(msgspec.json.encode(decides))
    return plain


def read_result(key: str, *, with_checkpoint: bool = False, folder: Path | None = None) -> dict[str, Any] | None:
    """Return what `result.json` says, once it and the files beside it are shown unchanged; None without one."""
    folder = folder or result_folder(key)
    path = folder / RESULT_FILE
    if not path.is_file():
        return None
    body, files = read_sealed(path, dict[str, Any], version=("result_version", 1), repair=_REPAIR)
    if not isinstance(body.get("job"), dict) or key != key_of(body["job"]):
        raise ManifestError(
            f"{path}: its key is not that of its job, so it was edited or moved; {_REPAIR}.", file=str(path)
        )
    check_files(folder, files, _hashes(folder), RESULT_FILE)
    read_evaluation(folder, with_checkpoint=with_checkpoint)
    return body


def _hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the evaluation, which has a seal over all other files."""
    path = folder / EVALUATION_FILE
    return {EVALUATION_FILE: hash_file(path)} if path.is_file() else {}


def finished_results() -> Iterator[Path]:
    """Yield the folder of every finished result of this home, in the order of their keys. Errors: `read_result`."""
    for path in sorted(results_folder().glob(f"*/{RESULT_FILE}")):
        if read_result(path.parent.name) is not None:
            yield path.parent


def write_result(decides: Decides) -> None:
    """Write the result of a run that was trained and evaluated in its folder."""
    folder = result_folder(key_of(decides))
    lines = read_metrics(folder)
    if not lines or lines[-1]["step"] != decides["steps"]:
        path = folder / METRICS_FILE
        raise ManifestError(
            f"{path}: its last line is not that of step {decides['steps']:,}, the last one; {_REPAIR}.", file=str(path)
        )
    read_evaluation(folder, with_checkpoint=True)
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    with storage_errors(folder):
        write_sealed(folder / RESULT_FILE, {"job": decides, "finished": now}, _hashes(folder))


def set_aside(folder: Path) -> None:
    """Move a damaged folder to `results/.damaged`, in place of one that was moved there before."""
    place = results_folder() / ".damaged" / folder.name
    with storage_errors(folder):
        make_folder(place.parent)
        shutil.rmtree(place, ignore_errors=True)
        folder.rename(place)


class StoredSpace(NamedTuple):
    """How many results a home holds, how many runs there have only begun, and the bytes of both."""

    finished: int
    begun: int
    size_bytes: int


def stored_space() -> StoredSpace:
    """Return the space that the results of this home take."""
    folders = [path for path in results_folder().glob("[!.]*") if path.is_dir()]
    finished = sum((folder / RESULT_FILE).is_file() for folder in folders)
    return StoredSpace(finished, len(folders) - finished, sum(map(_size, folders)))


def _size(folder: Path) -> int:
    size = 0
    for below, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += Path(below, name).lstat().st_size
    return size
