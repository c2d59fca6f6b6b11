"""A run: one algorithm on one dataset with one seed, in a folder with all its files.

runs/iql/pointmaze/umaze-v1/seed-0/
  run.json                 dataset and digest, settings, seed, versions
  metrics.jsonl            lines of step, metrics, and returns and metrics if evaluated
  checkpoint.safetensors   all state; resuming from it gives the same numbers as never stopping
  view.json                the view that it was trained on, if it was a view
  online-steps.bin         the steps that it took in the environment, if any (`replay.py`)
  evaluation.json          the returns of the last evaluation, with their protocol
  checkpoints/             on request, the checkpoint of each point of the learning curve
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
import torch

from orlog.algos.algorithms import ALGORITHMS, Algorithm, AlgorithmLike, algorithm_name, is_own
from orlog.algos.settings import check_for_any_form, complete_config
from orlog.algos.training.checkpoint import (
    checkpoint_metadata,
    is_of_another_algorithm,
    load_checkpoint,
    save_checkpoint,
)
from orlog.algos.training.metrics import METRICS_FILE, metrics_sha256
from orlog.algos.training.options import Earlier, TrainOptions
from orlog.algos.training.seals import Seal, read_sealed, record_sha256, write_sealed
from orlog.base.files import NO_ROOM, hash_file, make_folder, replace_file, sync
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import CheckpointError, ManifestError, NotFoundError, OrlogError, StorageError, clause
from orlog.manifests.documents import convert_json, read_json_file
from orlog.manifests.names import is_name
from orlog.normalize.metrics import EpisodeOutcomes, of_fields
from orlog.normalize.references import Protocol

PathLike: TypeAlias = str | os.PathLike[str]

RUN_FILE = "run.json"
CHECKPOINT_FILE = "checkpoint.safetensors"
EVALUATION_FILE = "evaluation.json"
KEPT_FOLDER = "checkpoints"
VIEW_FILE = "view.json"
ONLINE_FILE = "online-steps.bin"

_REPAIR = "restore the file, or train again in another folder"


ONLINE_SETTINGS = ("step", "prior", "random_steps", "noise")
"""What of an `OnlineRecord` are settings."""


class OnlineRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a run acts in the environment of its dataset while it is trained.

    Attributes:
        run: Folder of the run that it goes on with, as it was given; empty if it starts from nothing.
        checkpoint_sha256: SHA-256 of that run's checkpoint.
        step: Gradient steps that the checkpoint had.
        prior: Share of the dataset in each batch; None gives each step of the dataset and of the
            environment the same chance.
        random_steps: First steps in the environment, with uniform actions and without updates.
        noise: Standard deviation of Gaussian noise on the policy's actions, where the space's bounds
            count as -1 and 1; None explores as the algorithm does.
    """

    run: str = ""
    checkpoint_sha256: str = ""
    step: int = 0
    prior: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = 0.5
    random_steps: Annotated[int, msgspec.Meta(ge=0)] = 0
    noise: Annotated[float, msgspec.Meta(ge=0)] | None = None


class RunRecord(TrainOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `run.json` holds; fields that have a default may be missing there.

    It has the options of the run (`TrainOptions`), with those that a recipe or the machine decides:
    steps, preset, device and precision.

    Attributes:
        algorithm: Name of the algorithm; for one from elsewhere, module and class with a colon.
        dataset: Name of the dataset.
        version: Content version of the dataset.
        digest: Digest of the dataset.
        config: Every setting of the algorithm.
        obs_mean: Subtracted from each number of the flattened observation.
        obs_std: Divisor of each number of the flattened observation after that.
        versions: Versions of orlog, torch, numpy and python in training.
        source: Source of its steps, settings and transforms.
        reward_scale: In training, `reward_scale * reward + reward_shift` stands for a reward.
        reward_shift: See `reward_scale`.
        standardize_observations: Whether `obs_mean` and `obs_std` are those of the dataset;
            if not, they are 0 and 1, which leaves observations as they are.
        online: How it acts in the environment; None for a run that learns from the dataset alone.
        imports: Modules that were imported to register environments (`--import`). They stand in the
            commands that orlog prints for the run, and are never imported because they stand here.
        code: What shows whether it was trained by the code that is here
            (`orlog.base.code_version.sources_digest`).
        later_code: The same of each other code with which it went on after a stop, in order.
        earlier: Steps and settings that it had before it was told to take more steps, in order.
    """

    algorithm: str
    dataset: str
    version: str
    digest: str
    seed: Annotated[int, msgspec.Meta(ge=0)]
    steps: Annotated[int, msgspec.Meta(ge=1)]
    config: dict[str, Any]
    settings: dict[str, Any]
    obs_mean: list[float]
    obs_std: list[Annotated[float, msgspec.Meta(gt=0)]]
    versions: dict[str, str]
    source: str = ""
    reward_scale: float = 1.0
    reward_shift: float = 0.0
    standardize_observations: bool = True
    online: OnlineRecord | None = None
    imports: tuple[str, ...] = ()
    code: str = ""
    later_code: tuple[str, ...] = ()
    earlier: tuple[Earlier, ...] = ()
    precision: Literal["float32", "bf16"] = "float32"

    @property
    def shown_dataset(self) -> str:
        """Name of the dataset for people; that of a rebuild has its version."""
        return f"{self.dataset}@{self.version}" if "+" in self.version else self.dataset

    @property
    def codes(self) -> tuple[str, ...]:
        """Every code that trained it, in order."""
        return (self.code, *self.later_code)

    @property
    def every_setting(self) -> dict[str, Any]:
        """All that runs of one algorithm on one dataset can differ in, apart from the seed.

        Settings of the algorithm, steps, preset, how rewards and observations are transformed, device, precision and
        streaming, and as `online_..` how it acts in the environment.
        """
        found = {name: value for name, value in self.config.items() if name != "seed"}
        names = ("steps", "preset", "reward_scale", "reward_shift", "standardize_observations")
        found |= {name: getattr(self, name) for name in names}
        found |= {"device": self.device.partition(":")[0], "precision": self.precision}
        if self.stream:
            found["stream"] = True
        online = self.online
        if online is not None:
            # An algorithm that starts in the environment has settings of the same names.
            own = [name for name in ONLINE_SETTINGS if online.run or name not in self.config]
            found |= {f"online_{name}": getattr(online, name) for name in own}
        return found

    def options(self) -> TrainOptions:
        """Return the options that make this run again."""
        return TrainOptions(**{name: getattr(self, name) for name in TrainOptions.__struct_fields__})


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Returns of a trained policy: last checkpoint; it acts without chance, or by draws that are always the same.

    Attributes:
        step: Gradient steps that the policy had taken.
        protocol: How the returns were measured.
        returns: Undiscounted return of each episode.
        successes: Whether each episode succeeded; None if the environment does not tell, and in
            evaluations that were saved before it was noted.
        processor: Name of the processor; empty in evaluations that were saved before it was noted.
        metrics: What other metrics counted in each episode (`orlog/normalize/metrics.py`), by their names.
    """

    step: int
    protocol: Protocol
    returns: list[float]
    successes: list[bool] | None = None
    processor: str = ""
    metrics: dict[str, list[bool | float | list[float]]] = {}

    @property
    def counted(self) -> dict[str, np.ndarray]:
        """What every metric counted in each episode, by its name."""
        return of_fields(msgspec.structs.asdict(self))

    def played(self, record: RunRecord) -> EpisodeOutcomes:
        """Return what came of the episodes of a run, for `numbers_of`."""
        returns = np.array(self.returns, float)
        return EpisodeOutcomes(returns=returns, metrics=self.counted, dataset=record.dataset, settings=record.config)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a run continues.

    Attributes:
        step: Gradient steps taken.
        sums: Sums of the metrics since the last line of the log.
        seconds: Time spent on training.
        online: What the checkpoint says of the steps taken in the environment (`replay.py`).
    """

    step: int = 0
    sums: dict[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    online: dict[str, str] = dataclasses.field(default_factory=dict)


def save_state(algorithm: Algorithm, folder: Path, position: Position) -> None:
    """Write a run's checkpoint, once every line that was logged before it is durable."""
    metadata = {"step": str(position.step), "run_sha256": record_sha256(folder / RUN_FILE), **position.online}
    if position.sums:
        # Only for a save between two lines of the log, whose place depends on time. All other
        # checkpoints of equal runs are equal files.
        metadata["sums"] = json.dumps(position.sums)
        metadata["seconds"] = repr(position.seconds)
    sync(folder / METRICS_FILE)
    save_checkpoint(algorithm, folder / CHECKPOINT_FILE, metadata=metadata, generators=is_own(type(algorithm)))


def keep_checkpoint(folder: Path, step: int) -> None:
    """Keep a copy of a run's checkpoint, which the next one would replace."""
    kept = folder / KEPT_FOLDER
    make_folder(kept)
    replace_file(kept / f"step-{step:09}.safetensors", (folder / CHECKPOINT_FILE).read_bytes())


def kept_checkpoints(folder: PathLike) -> dict[int, Path]:
    """Return the checkpoints that a run has kept, by step; or the last one, if it kept none."""
    folder = as_path(folder)
    found = {
        int(path.stem.removeprefix("step-")): path
        for path in sorted((folder / KEPT_FOLDER).glob("step-*.safetensors"))
        if path.stem.removeprefix("step-").isdecimal()
    }
    last = saved_step(folder)
    return found or ({} if last is None else {last: folder / CHECKPOINT_FILE})


def load_state(algorithm: Algorithm, folder: Path, *, to_act: bool = False, path: Path | None = None) -> Position:
    """Load a run's checkpoint into an algorithm and return the run's position.

    With `to_act` it is not to go on training, so another device than the one that trained will do.
    `path` names one of `kept_checkpoints` instead of the last.
    """
    path = folder / CHECKPOINT_FILE if path is None else path
    is_whole = False

    def check(metadata: dict[str, str]) -> None:
        nonlocal is_whole
        whose = ""
        if is_of_another_algorithm(algorithm, metadata):
            whose = f", of another algorithm than {read_run(folder).algorithm}"
        check_record(folder, path, metadata, whose)
        is_whole = True

    try:
        metadata = load_checkpoint(algorithm, path, check=check, to_act=to_act)
    except CheckpointError as error:
        trained = read_run(folder).versions.get("orlog", "unknown")
        here = code_versions()["orlog"]
        if not is_whole or trained == here:
            raise
        raise CheckpointError(
            f"{clause(error)}; it was written by orlog {trained}, and this is {here}: use that "
            "version for it, or train again in another folder."
        ) from error
    try:
        return Position(
            step=int(metadata["step"]),
            sums=convert_json(json.loads(metadata.get("sums", "{}")), dict[str, float]),
            seconds=float(metadata.get("seconds", 0)),
            online={key: one for key, one in metadata.items() if key.startswith("online_")},
        )
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the checkpoint's metadata cannot be read: {error!r}; {_REPAIR}.") from error


def check_record(folder: Path, path: Path, metadata: Mapping[str, str], whose: str = "") -> None:
    """Refuse a checkpoint whose metadata name another `run.json` than that of its folder.

    `whose` says more of the other one.
    """
    if metadata.get("run_sha256") != record_sha256(folder / RUN_FILE):
        whose = f"another {RUN_FILE}{whose or ', or that was edited'}"
        raise CheckpointError(f"{path}: the checkpoint belongs to {whose}; {_REPAIR}.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A trained run. It can be given wherever the path of a run's folder can.

    Attributes:
        folder: Its folder, with all files.
        record: What its `run.json` holds: settings, transforms, digest of the dataset, versions.
    """

    folder: Path
    record: RunRecord

    def __fspath__(self) -> str:
        """Return the path of its folder."""
        return str(self.folder)


def as_path(path: PathLike) -> Path:
    """Return a path that was given as text or as a path."""
    return Path(path).expanduser()


def run_folder(root: PathLike, algorithm: AlgorithmLike, dataset: Dataset, seed: int) -> Path:
    """Return the default folder of a run: below `root`, with a folder of its own for each view."""
    folder = as_path(root) / algorithm_name(algorithm).rpartition(":")[2] / dataset.name
    if dataset.operation is not None:
        try:
            name = dataset.folder.stem
        except NotFoundError:  # saved nowhere
            name = "view"
        folder /= f"{name}-{dataset.digest.removeprefix('sha256:')[:12]}"
    return folder / f"seed-{seed}"


def has_checkpoint(folder: PathLike) -> bool:
    """Whether a run has been saved in a folder."""
    return (as_path(folder) / CHECKPOINT_FILE).exists()


def saved_step(folder: PathLike) -> int | None:
    """Return the step of a run's checkpoint, without reading the rest of it; None if there is none."""
    path = as_path(folder) / CHECKPOINT_FILE
    if not path.exists():
        return None
    step = checkpoint_metadata(path).get("step", "")
    if not step.isdecimal():
        raise CheckpointError(f"{path}: the checkpoint does not say its step; {_REPAIR}.")
    return int(step)


def read_run(folder: PathLike) -> RunRecord:
    """Return the record of a run."""
    path = as_path(folder) / RUN_FILE
    if not path.exists():
        raise NotFoundError(f"{folder} is not the folder of a run: there is no {RUN_FILE} in it.")
    record = read_json_file(path, RunRecord, version=("run_version", 1), repair=_REPAIR)
    if not is_name(record.dataset):  # a path or an address would be opened
        raise ManifestError(
            f"{path}: dataset {record.dataset!r:.80} is not the name of a dataset; {_REPAIR}.", file=str(path)
        )
    # Algorithms from elsewhere are not imported here: a record may come from anyone.
    if ":" not in record.algorithm:
        if record.algorithm not in ALGORITHMS:
            raise ManifestError(
                f"{path}: no algorithm {record.algorithm!r} in this orlog, which has "
                f"{', '.join(ALGORITHMS)}; {_REPAIR}.",
                file=str(path),
            )
        check_config(folder, record, record.algorithm)
    config = complete_config(record.algorithm, record.config)
    return msgspec.structs.replace(record, config=config)


def read_evaluation(folder: PathLike) -> Evaluation:
    """Return the last evaluation of a run, once it and the files beside it are shown unchanged.

    The checkpoint is not read: `read_sealed_evaluation` compares it too.
    """
    return read_sealed_evaluation(folder, with_checkpoint=False)[0]


def read_sealed_evaluation(folder: PathLike, *, with_checkpoint: bool = True) -> tuple[Evaluation, Seal]:
    """Return the last evaluation of a run and its seal."""
    folder = as_path(folder)
    path = folder / EVALUATION_FILE
    repair = f"run again: orlog evaluate {folder}"
    found, seal = read_sealed(path, Evaluation, version=("evaluation_version", 1), repair=repair)
    sealed = {**seal.files}
    if not with_checkpoint or _has_gone_on(folder, found.step):
        sealed.pop(CHECKPOINT_FILE, None)
    check_files(folder, sealed, _files_of(folder, found.step, sealed), EVALUATION_FILE)
    return found, seal


def write_evaluation(folder: Path, evaluation: Evaluation) -> None:
    """Write the last evaluation of a run, with a seal of itself and of the run's files."""
    files = _files_of(folder, evaluation.step, (RUN_FILE, METRICS_FILE, CHECKPOINT_FILE))
    if _has_gone_on(folder, evaluation.step):  # a process trains beside: it is another checkpoint
        files.pop(CHECKPOINT_FILE, None)
    write_sealed(folder / EVALUATION_FILE, msgspec.to_builtins(evaluation), files)


def check_files(folder: Path, sealed: Mapping[str, str], found: Mapping[str, str], by: str) -> None:
    """Refuse a folder where a file is not what another file of it has sealed."""
    for name, expected in sealed.items():
        if found.get(name) != expected:
            path = folder / name
            is_there = path.exists()
            raise ManifestError(
                f"{path}: {'is not what it was' if is_there else 'is missing'}, so it is damaged or was "
                f"edited: {by} beside it states the SHA-256 {expected[:12]}.., found "
                f"{found.get(name, 'none')[:12]}..; {_REPAIR}.",
                file=str(path),
            )


def _files_of(folder: Path, step: int, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of files of a run, of its log up to a step; without those not there."""
    found = {name: hash_file(folder / name) for name in names if (folder / name).is_file()}
    if METRICS_FILE in found:
        found[METRICS_FILE] = metrics_sha256(folder, step)
    if RUN_FILE in found:
        found[RUN_FILE] = record_sha256(folder / RUN_FILE)
    return found


def _has_gone_on(folder: Path, step: int) -> bool:
    """Whether a run has been trained beyond a step, so that its checkpoint is another one."""
    return has_checkpoint(folder) and saved_step(folder) != step


def check_config(folder: PathLike, record: RunRecord, algorithm: AlgorithmLike) -> None:
    """Refuse a record whose settings the algorithm does not have."""
    try:
        check_for_any_form(algorithm, record.config)
    except ValueError as error:
        path = as_path(folder) / RUN_FILE
        reason = clause(error)
        raise ManifestError(f"{path}: config: {reason}; {_REPAIR}.", file=str(path)) from error


def code_versions() -> dict[str, str]:
    """Return the versions of the packages that compute a run."""
    return {
        "numpy": np.__version__,
        "orlog": metadata.version("orlog"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Restrict torch to one thread inside the `with` block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def write_errors(folder: Path, saved_step: int | None) -> Iterator[None]:
    """Turn errors of a full or unwritable disk into a StorageError: what was saved, what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, OrlogError):
            raise
        stands = "it has no checkpoint yet" if saved_step is None else f"its checkpoint of step {saved_step:,} is kept"
        advice = "free some space" if error.errno in NO_ROOM else "make it writable"
        raise StorageError(
            f"{folder}: cannot write the run: {error.strerror or error}; {stands}; {advice}, "
            "then do the same again with resume=True.",
            errno=error.errno,
        ) from error
