"""A run: one algorithm on one dataset with one seed, in a folder that says all about it.

runs/iql/pointmaze/umaze-v1/seed-0/
  run.json                 dataset and digest, settings, seed, versions
  metrics.jsonl            one line now and then: step, metrics, and returns where evaluated
  checkpoint.safetensors   all state; resuming from it gives the same numbers as never stopping
  view.json                the view that it was trained on, where it was one
  evaluation.json          the returns of the last evaluation, with their protocol
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import gymnasium
import msgspec
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv
from torch import Tensor

from orlog.algos.algorithms import (
    ALGORITHMS,
    Algorithm,
    Config,
    make_algorithm,
    make_config,
)
from orlog.algos.networks import Scaling
from orlog.algos.presets import recipe_for
from orlog.algos.training.checkpoint import check_state, load_checkpoint, save_checkpoint
from orlog.algos.training.loop import train
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.views import save_view
from orlog.errors import (
    CheckpointError,
    IntegrityError,
    ManifestError,
    NotFoundError,
    OrlogError,
    SchemaError,
    StoppedError,
    StorageError,
)
from orlog.files import hash_file, sync
from orlog.loaders.arrays.arrays import Arrays, read_arrays
from orlog.loaders.transitions import Transitions
from orlog.manifests.documents import read_json_file, replace_bytes, write_json
from orlog.manifests.environments import environment_versions, make_environment
from orlog.manifests.spaces import leaf_keys, leaf_spaces
from orlog.normalize.references import Protocol
from orlog.normalize.rollouts import Policy, episode_returns

__all__ = [
    "Evaluation",
    "RunRecord",
    "as_dataset",
    "as_path",
    "evaluate_run",
    "has_checkpoint",
    "read_metrics",
    "read_run",
    "run_folder",
    "train_run",
]

PathLike: TypeAlias = str | os.PathLike[str]
DatasetLike: TypeAlias = Dataset | PathLike
"""An opened dataset, or what `load_dataset` opens."""

RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
CHECKPOINT_FILE = "checkpoint.safetensors"
EVALUATION_FILE = "evaluation.json"
VIEW_FILE = "view.json"

EPISODES = 100
FIRST_SEED = 1_000_000  # far from the seeds that recipes draw, which fill 32 bits at random
ENVIRONMENTS = 10  # making one costs as much as 1,500 of its steps, so not more than pay off
CURVE_EPISODES = 20
SAVES = 5
SAVE_SECONDS = 300.0
PROGRESS_SECONDS = 0.5


class RunRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `run.json` holds.

    Attributes:
        algorithm: Name of the algorithm.
        dataset: Name of the dataset.
        version: Content version of the dataset.
        digest: Digest of the dataset.
        seed: Seed of networks, batches and noise.
        steps: Gradient steps of the whole run.
        config: Every setting of the algorithm.
        obs_mean: Mean of each number of the flattened observation over the dataset.
        obs_std: What observations are divided by.
        versions: orlog, torch, numpy and python that trained.
    """

    algorithm: str
    dataset: str
    version: str
    digest: str
    seed: Annotated[int, msgspec.Meta(ge=0)]
    steps: Annotated[int, msgspec.Meta(ge=1)]
    config: dict[str, Any]
    obs_mean: list[float]
    obs_std: list[Annotated[float, msgspec.Meta(gt=0)]]
    versions: dict[str, str]


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Returns of a trained policy: last checkpoint, deterministic actions.

    Attributes:
        step: Gradient steps that the policy had taken.
        protocol: How the returns were measured.
        returns: Undiscounted return of each episode.
    """

    step: int
    protocol: Protocol
    returns: list[float]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Position:
    """Where a run goes on from.

    Attributes:
        step: Gradient steps taken.
        sums: Sums of the metrics since the last line of the log.
        seconds: Spent on training.
    """

    step: int = 0
    sums: dict[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


def train_run(
    algorithm: str,
    dataset: DatasetLike,
    folder: PathLike,
    *,
    seed: int,
    settings: Mapping[str, object] | None = None,
    steps: int | None = None,
    resume: bool = False,
    evaluations: int = 5,
    trust_environment: bool = False,
    progress: Callable[[int, int], None] = lambda _step, _steps: None,
    stop: Callable[[], bool] = lambda: False,
) -> RunRecord:
    """Train with the dataset's recipe, save the last state, and return the run's record.

    It uses one thread: networks of this size gain little from more, and the numbers then do not
    depend on the number of cores. Runs of several seeds belong in several processes. The state is
    saved after each point of the learning curve, and at least every 5 minutes.

    Args:
        algorithm: `bc`, `cql` or `iql`.
        dataset: What to learn from: a dataset, or the name or path of one.
        folder: Folder of the run; it must be new unless `resume` is set.
        seed: Seed of networks, batches and noise.
        settings: Settings that differ from the recipe's.
        steps: Gradient steps; the recipe's by default.
        resume: Go on from the folder's checkpoint, or from the start where it has none.
        evaluations: How often, evenly spread over the run and at its end, a few episodes are run
            for the learning curve and the state is saved; 0 needs no environment and saves 5 times.
        trust_environment: Consent to arguments of the environment that come with the data.
        progress: Called with steps done and steps in all: before the first step, then about twice a
            second.
        stop: Asked after each step; where it says so, the state is saved and StoppedError raised.

    Raises:
        FileExistsError: the folder holds another run, or one that was not asked to resume.
        ValueError: no such algorithm, or a setting that it cannot have.
        SchemaError: the dataset's spaces do not fit these algorithms.
        NotFoundError: the dataset names no environment to evaluate in; `evaluations=0` needs none.
            Or a run is to be resumed whose `run.json` is missing.
        SimulatorError: the environment needs consent, or cannot be made.
        ManifestError: the `run.json` of the run to resume is malformed.
        CheckpointError: the checkpoint to resume from is damaged or of another run.
        StorageError: the folder cannot be written; the last checkpoint stands.
        StoppedError: `stop` said so.
    """
    dataset, folder = as_dataset(dataset), as_path(folder)
    _check_folder(folder, resume=resume)
    recipe = recipe_for(algorithm, dataset.name)
    steps = recipe.steps if steps is None else steps
    chosen: dict[str, object] = {**recipe.settings, **(settings or {})}
    if algorithm == "iql" and chosen.setdefault("steps", steps) != steps:
        raise ValueError("the number of steps is that of the run: use --steps, not --set steps")
    config = make_config(algorithm, chosen)
    packed = read_arrays(dataset)
    if not packed.is_flat:
        raise SchemaError(
            f"{dataset.name}: the algorithms take observations and actions that are vectors of "
            f"floats, found {dataset.observation_space} and {dataset.action_space}"
        )
    protocol = None
    if evaluations:
        if dataset.environment is None:
            raise NotFoundError(
                f"{dataset.name} names no environment to evaluate in; train without evaluations: "
                "--evaluations 0, or evaluations=0 in Python"
            )
        protocol = scoring_protocol(dataset, CURVE_EPISODES, trust_environment=trust_environment)
    mean, std = packed.observation_statistics()
    record = RunRecord(
        algorithm=algorithm,
        dataset=dataset.name,
        version=dataset.version,
        digest=dataset.digest,
        seed=seed,
        steps=steps,
        config=msgspec.json.decode(msgspec.json.encode(config)),
        obs_mean=mean.tolist(),
        # CORL adds 1e-3 to each deviation, so that constant numbers do not blow up.
        obs_std=(std + 1e-3).tolist(),
        versions=code_versions(),
    )
    if (folder / RUN_FILE).exists():
        _check_same_run(folder, record)
    with one_thread():
        made = make_from_record(record, dataset)
        check_state(made)
        if has_checkpoint(folder):
            position = _resume(made, folder)
        else:
            position = _Position()
            _start(folder, record, dataset)
        saves = evaluations or SAVES
        _train_and_log(
            made, packed, dataset, folder, record, config, position, saves, protocol, progress, stop
        )
    return record


def _check_folder(folder: Path, *, resume: bool) -> None:
    """Refuse a folder with a run that is not to be resumed, or of which a part is missing."""
    has_record = (folder / RUN_FILE).exists()
    if not resume and (has_record or has_checkpoint(folder)):
        raise FileExistsError(
            f"{folder} holds a run already; choose another folder, or resume it with --resume"
        )
    if has_checkpoint(folder) and not has_record:
        raise NotFoundError(
            f"{folder / RUN_FILE} is missing, and without it {CHECKPOINT_FILE} cannot be used; "
            "restore it, or train in another folder"
        )


def _start(folder: Path, record: RunRecord, dataset: Dataset) -> None:
    """Write what a run consists of before its first step."""
    with _write_errors(folder, None):
        folder.mkdir(parents=True, exist_ok=True)
        if dataset.operation is not None:
            (folder / VIEW_FILE).unlink(missing_ok=True)
            save_view(dataset, folder / VIEW_FILE)
        replace_bytes(folder / METRICS_FILE, b"")
        write_json(folder / RUN_FILE, msgspec.to_builtins(record))


def _resume(algorithm: Algorithm, folder: Path) -> _Position:
    """Fill an algorithm from a run's checkpoint and drop what was logged after it."""
    position = _load(algorithm, folder)
    with _write_errors(folder, position.step):
        logged = _keep_metrics(folder, position.step)
    if logged and not position.sums:
        return dataclasses.replace(position, seconds=float(logged[-1].get("seconds", 0)))
    return position


def _train_and_log(
    algorithm: Algorithm,
    packed: Arrays,
    dataset: Dataset,
    folder: Path,
    record: RunRecord,
    config: Config,
    position: _Position,
    saves: int,
    protocol: Protocol | None,
    progress: Callable[[int, int], None],
    stop: Callable[[], bool],
) -> None:
    every = max(1, record.steps // 100)
    save_at = {round(record.steps * index / saves) for index in range(1, saves + 1)}
    policy = make_policy(algorithm, dataset)
    first, seconds = position.step, position.seconds
    sums: dict[str, Tensor | float] = {**position.sums}
    stream = Transitions(
        packed, dataset.digest, batch_size=config.batch_size, seed=record.seed, start=first
    )
    saved_step = first or None
    saved_at = shown_at = time.monotonic()

    def pauses() -> bool:
        now = time.monotonic()
        return stop() or now - shown_at > PROGRESS_SECONDS or now - saved_at > SAVE_SECONDS

    with contextlib.ExitStack() as stack:
        environments = None
        if protocol is not None:
            environments = stack.enter_context(vector_environment(protocol))
        progress(first, record.steps)
        started = time.perf_counter()
        for step, metrics in train(
            algorithm,
            stream,
            first_step=first,
            last_step=record.steps,
            every=every,
            sums=sums,
            pauses=pauses,
        ):
            seconds += time.perf_counter() - started
            is_logged = step % every == 0 or step == record.steps
            is_point = is_logged and any(step - every < at <= step for at in save_at)
            if is_logged:
                line: dict[str, Any] = {"step": step, "seconds": round(seconds, 3), **metrics}
                if is_point and environments is not None:
                    line["returns"] = episode_returns(
                        policy, environments, episodes=CURVE_EPISODES, first_seed=FIRST_SEED
                    ).tolist()
                # Logged before the state is saved: a resumed run drops lines after its checkpoint,
                # but cannot make one up.
                with _write_errors(folder, saved_step):
                    _log(folder, line)
            stops = stop() and step < record.steps
            if is_point or stops or time.monotonic() - saved_at > SAVE_SECONDS:
                with _write_errors(folder, saved_step):
                    _save(
                        algorithm, folder, _Position(step=step, sums=_floats(sums), seconds=seconds)
                    )
                saved_step, saved_at = step, time.monotonic()
            if stops:
                raise StoppedError(
                    f"{folder}: stopped at step {step:,} of {record.steps:,}, where a checkpoint is "
                    "written; to go on, train again with --resume, or resume=True in Python",
                    step=step,
                )
            progress(step, record.steps)
            shown_at = time.monotonic()
            started = time.perf_counter()


def _floats(sums: Mapping[str, Tensor | float]) -> dict[str, float]:
    return {name: float(total) for name, total in sums.items()}


def evaluate_run(
    folder: PathLike,
    *,
    dataset: DatasetLike | None = None,
    episodes: int = EPISODES,
    trust_environment: bool = False,
    progress: Callable[[int], None] = lambda _done: None,
) -> tuple[RunRecord, Evaluation]:
    """Run a run's last saved policy in its dataset's environment and save the returns.

    The evaluation says how many steps the policy had taken, for runs that were cut short.

    Args:
        folder: Folder of the run.
        dataset: What it was trained on; by default it is found by the recorded name and digest, or
            by the view that the run holds.
        episodes: Episodes to run.
        trust_environment: Consent to arguments of the environment that come with the data.
        progress: Called with the number of episodes done.

    Raises:
        NotFoundError: there is no checkpoint in the folder, its dataset is not here or names no
            environment.
        SimulatorError: the environment needs consent, or cannot be made.
        ManifestError: `run.json` is malformed.
        CheckpointError: the checkpoint is damaged or belongs to another run.
        IntegrityError: the dataset is not the one that the run was trained on.
        StorageError: the evaluation cannot be written.
    """
    folder = as_path(folder)
    record = read_run(folder)
    if not has_checkpoint(folder):
        raise NotFoundError(
            f"{folder}: the run has no checkpoint yet; run: orlog train ... --resume"
        )
    dataset = _find_dataset(folder, record) if dataset is None else as_dataset(dataset)
    if dataset.digest != record.digest:
        raise IntegrityError(
            f"{folder}: trained on {record.dataset} {record.digest}, but {dataset.folder} is "
            f"{dataset.digest}",
            expected=record.digest,
            found=dataset.digest,
        )
    protocol = scoring_protocol(dataset, episodes, trust_environment=trust_environment)
    _check_statistics(folder, record, dataset)
    with one_thread():
        algorithm = make_from_record(record, dataset)
        step = _load(algorithm, folder).step
        returns = run_protocol(make_policy(algorithm, dataset), protocol, progress)
    evaluation = Evaluation(step=step, protocol=protocol, returns=returns.tolist())
    try:
        write_json(folder / EVALUATION_FILE, msgspec.to_builtins(evaluation))
    except OSError as error:
        raise StorageError(
            f"{folder / EVALUATION_FILE}: cannot write: {error.strerror or error}; free some space, "
            "then run the same command again",
            errno=error.errno,
        ) from error
    return record, evaluation


def _find_dataset(folder: Path, record: RunRecord) -> Dataset:
    """Return what a run was trained on: the view it holds, or the version it names."""
    view = folder / VIEW_FILE
    if view.exists():
        return load_dataset(view)
    try:
        return load_dataset(f"{record.dataset}@{record.digest}")
    except NotFoundError as error:
        raise NotFoundError(
            f"{error}; if it is elsewhere, name it with --dataset, or dataset= in Python"
        ) from error


def _check_statistics(folder: Path, record: RunRecord, dataset: Dataset) -> None:
    """Refuse statistics in `run.json` that do not fit the dataset's observations."""
    leaves = leaf_spaces(dataset.observation_space, "")
    width = sum(math.prod(space.shape or ()) for _, space in leaves)
    for name in ("obs_mean", "obs_std"):
        found = len(getattr(record, name))
        if found != width:
            raise ManifestError(
                f"{folder / RUN_FILE}: {name} has {found} numbers, but observations of "
                f"{dataset.name} have {width}; restore the file, or train again in another folder"
            )


def scoring_protocol(
    dataset: Dataset, episodes: int, *, trust_environment: bool = False
) -> Protocol:
    """Return how policies of a dataset are evaluated.

    Raises:
        NotFoundError: the dataset names no environment, or another time limit.
        SimulatorError: the environment needs consent, or cannot be made.
    """
    environment = dataset.checked_environment(trust_environment=trust_environment)
    with make_environment(environment.id, environment.kwargs) as env:
        limit = env.spec.max_episode_steps if env.spec is not None else None
    if limit != environment.max_episode_steps:
        raise NotFoundError(
            f"{environment.id} ends episodes after {limit} steps here, but after "
            f"{environment.max_episode_steps} where {dataset.name} was recorded: returns would not "
            "compare; install the recorded versions"
        )
    return Protocol(
        environment_id=environment.id,
        environment_kwargs=environment.kwargs,
        versions=environment_versions(environment.id),
        episodes=episodes,
        max_episode_steps=environment.max_episode_steps,
        first_seed=FIRST_SEED,
        environments=min(ENVIRONMENTS, episodes),
    )


@contextlib.contextmanager
def vector_environment(protocol: Protocol) -> Iterator[SyncVectorEnv]:
    """Give the environments of a protocol, side by side."""

    def make() -> gymnasium.Env[Any, Any]:
        return make_environment(protocol.environment_id, protocol.environment_kwargs)

    environments = SyncVectorEnv([make] * protocol.environments)
    try:
        yield environments
    finally:
        environments.close()


def run_protocol(
    policy: Policy, protocol: Protocol, progress: Callable[[int], None] = lambda _done: None
) -> np.ndarray:
    """Return the return of each episode of a protocol."""
    with vector_environment(protocol) as environments:
        return episode_returns(
            policy,
            environments,
            episodes=protocol.episodes,
            first_seed=protocol.first_seed,
            progress=progress,
        )


def _save(algorithm: Algorithm, folder: Path, position: _Position) -> None:
    """Write a run's checkpoint, once every line that was logged before it is durable."""
    metadata = {"step": str(position.step), "run_sha256": hash_file(folder / RUN_FILE)}
    if position.sums:
        # Only between two lines of the log: there it depends on time where a run is saved, and
        # checkpoints of equal runs are equal files otherwise.
        metadata["sums"] = json.dumps(position.sums)
        metadata["seconds"] = repr(position.seconds)
    sync(folder / METRICS_FILE)
    save_checkpoint(algorithm, folder / CHECKPOINT_FILE, metadata=metadata)


def _load(algorithm: Algorithm, folder: Path) -> _Position:
    """Fill an algorithm from a run's checkpoint and return where it was."""
    path = folder / CHECKPOINT_FILE
    metadata = load_checkpoint(algorithm, path)
    if metadata.get("run_sha256") != hash_file(folder / RUN_FILE):
        raise CheckpointError(
            f"{path}: the checkpoint belongs to another {RUN_FILE}, or that was edited; train again"
        )
    try:
        return _Position(
            step=int(metadata["step"]),
            sums=json.loads(metadata.get("sums", "{}")),
            seconds=float(metadata.get("seconds", 0)),
        )
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: the checkpoint's metadata: {error!r}") from error


def make_policy(algorithm: Algorithm, dataset: Dataset) -> Policy:
    """Return a callable from batched observations of the environment to batched actions."""
    leaves = leaf_keys(dataset.observation_space)
    space = dataset.action_space
    assert isinstance(space, gymnasium.spaces.Box)

    def policy(observations: Any) -> np.ndarray:
        parts = [_leaf(observations, keys) for keys in leaves]
        flat = np.concatenate([part.reshape(len(part), -1) for part in parts], 1, dtype=np.float32)
        actions = algorithm.act(torch.from_numpy(flat)).numpy().reshape(-1, *space.shape)
        return actions.clip(space.low, space.high).astype(np.dtype(space.dtype))

    return policy


def _leaf(observations: Any, keys: tuple[str | int, ...]) -> np.ndarray:
    for key in keys:
        observations = observations[key]
    return np.asarray(observations)


def make_from_record(record: RunRecord, dataset: Dataset) -> Algorithm:
    """Return the algorithm of a run, before any training."""
    space = dataset.action_space
    if not isinstance(space, gymnasium.spaces.Box):
        raise SchemaError(
            f"{dataset.name}: {record.algorithm} needs a Box of actions, found {space}"
        )
    scaling = Scaling(
        obs_mean=torch.tensor(record.obs_mean),
        obs_std=torch.tensor(record.obs_std),
        action_low=torch.from_numpy(space.low.reshape(-1).astype(np.float32)),
        action_high=torch.from_numpy(space.high.reshape(-1).astype(np.float32)),
    )
    config = make_config(record.algorithm, record.config)
    return make_algorithm(record.algorithm, config, scaling, seed=record.seed)


def as_path(path: PathLike) -> Path:
    """Return a path that was given as text or as a path."""
    return Path(path).expanduser()


def as_dataset(dataset: DatasetLike) -> Dataset:
    """Return a dataset that was given itself, or by the name or path that `load_dataset` takes."""
    if isinstance(dataset, Dataset):
        return dataset
    return load_dataset(dataset if isinstance(dataset, str) else Path(dataset))


def run_folder(root: PathLike, algorithm: str, dataset: Dataset, seed: int) -> Path:
    """Return the folder where a run goes by default: below `root`, another one for each view."""
    folder = as_path(root) / algorithm / dataset.name
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


def read_run(folder: PathLike) -> RunRecord:
    """Return the record of a run.

    Raises:
        NotFoundError: there is no run in the folder.
        ManifestError: its `run.json` is malformed.
    """
    path = as_path(folder) / RUN_FILE
    if not path.exists():
        raise NotFoundError(f"{folder}: no readable run: there is no {RUN_FILE} in it")
    repair = "restore the file, or train again in another folder"
    record = read_json_file(path, RunRecord, version=("run_version", 1), repair=repair)
    if record.algorithm not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise ManifestError(
            f"{path}: algorithm is {record.algorithm!r}; this orlog has {known}", file=str(path)
        )
    try:
        make_config(record.algorithm, record.config)
    except ValueError as error:
        raise ManifestError(f"{path}: config: {error}; {repair}", file=str(path)) from error
    return record


def read_metrics(folder: PathLike) -> list[dict[str, Any]]:
    """Return the lines that were logged; a last line that was cut by a kill is left out.

    Raises:
        NotFoundError: nothing was logged there.
        IntegrityError: a line is malformed.
    """
    path = as_path(folder) / METRICS_FILE
    return [
        _parse_metrics(path, number, line) for number, line in enumerate(_metric_lines(path), 1)
    ]


def _metric_lines(path: Path) -> list[bytes]:
    """Return the lines of a log that are whole, with their ends."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotFoundError(f"{path}: no readable metrics: {error.strerror or error}") from error
    return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]


def _parse_metrics(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        body, reason = None, f"is not JSON: {error}"
    else:
        reason = "has no whole number 'step'"
    if not isinstance(body, dict) or type(body.get("step")) is not int:
        raise IntegrityError(
            f"{path}: line {number} {reason}; remove the line, or train again in another folder",
            file=str(path),
        )
    return body


def _keep_metrics(folder: Path, step: int) -> list[dict[str, Any]]:
    """Drop what was logged after a step, because it will be logged again; return the rest."""
    path = folder / METRICS_FILE
    lines = _metric_lines(path) if path.exists() else []
    parsed = [_parse_metrics(path, number, line) for number, line in enumerate(lines, 1)]
    kept = [(line, body) for line, body in zip(lines, parsed, strict=True) if body["step"] <= step]
    data = b"".join(line for line, _ in kept)
    if not path.exists() or path.read_bytes() != data:
        replace_bytes(path, data)
    return [body for _, body in kept]


def _log(folder: Path, line: Mapping[str, Any]) -> None:
    """Add a line to the log, which is opened each time so that closing it cannot fail later."""
    with (folder / METRICS_FILE).open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")


def code_versions() -> dict[str, str]:
    """Return the versions of what computes a run."""
    return {
        "numpy": np.__version__,
        "orlog": metadata.version("orlog"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


@contextlib.contextmanager
def _write_errors(folder: Path, saved_step: int | None) -> Iterator[None]:
    """Turn a full or unwritable disk into a StorageError that says what stands and what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, OrlogError):
            raise
        stands = (
            "it has no checkpoint yet"
            if saved_step is None
            else f"its checkpoint of step {saved_step:,} stands"
        )
        raise StorageError(
            f"{folder}: cannot write the run: {error.strerror or error}; {stands}; free some space, "
            "then run the same command with --resume (resume=True in Python)",
            errno=error.errno,
        ) from error


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _check_same_run(folder: Path, record: RunRecord) -> None:
    there = read_run(folder)
    for name in ("algorithm", "digest", "seed", "steps", "config"):
        if getattr(there, name) != getattr(record, name):
            raise FileExistsError(
                f"{folder} holds another run: its {name} is {getattr(there, name)}, asked for is "
                f"{getattr(record, name)}"
            )
