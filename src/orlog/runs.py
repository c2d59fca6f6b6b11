"""A run: one algorithm on one dataset with one seed, in a folder that says all about it.

runs/iql/pointmaze/umaze-v1/seed-0/
  run.json                 dataset and digest, settings, seed, versions
  metrics.jsonl            one line now and then: step, metrics, and returns where evaluated
  checkpoint.safetensors   all state; resuming from it gives the same numbers as never stopping
  evaluation.json          the returns of the last evaluation, with their protocol
"""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv

import orlog
from orlog.algos.algorithms import Algorithm, Config, make_algorithm, make_config
from orlog.algos.checkpoint import load_checkpoint, save_checkpoint
from orlog.algos.networks import Scaling
from orlog.algos.recipes import recipe_for
from orlog.algos.train import train
from orlog.datasets.consent import check_environment
from orlog.datasets.dataset import Dataset
from orlog.datasets.environments import environment_versions, make_environment
from orlog.datasets.loading import load_dataset
from orlog.datasets.spaces import leaf_keys
from orlog.datasets.storage import hash_file
from orlog.errors import IntegrityError, NotFoundError, SchemaError
from orlog.loaders.arrays import Arrays, read_arrays
from orlog.loaders.transitions import Transitions
from orlog.normalize.references import Protocol
from orlog.normalize.rollouts import Policy, episode_returns

__all__ = ["Evaluation", "RunRecord", "evaluate_run", "read_metrics", "read_run", "train_run"]

RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
CHECKPOINT_FILE = "checkpoint.safetensors"
EVALUATION_FILE = "evaluation.json"

EPISODES = 100
FIRST_SEED = 1_000_000  # far from the seeds that recipes draw, which fill 32 bits at random
ENVIRONMENTS = 10  # making one costs as much as 1,500 of its steps, so not more than pay off
CURVE_EPISODES = 20
SAVES = 5


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
    seed: int
    steps: int
    config: dict[str, Any]
    obs_mean: list[float]
    obs_std: list[float]
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


def train_run(
    algorithm: str,
    dataset: Dataset,
    folder: Path,
    *,
    seed: int,
    settings: Mapping[str, object] | None = None,
    steps: int | None = None,
    resume: bool = False,
    evaluations: int = 5,
    trust_environment: bool = False,
    progress: Callable[[int, int], None] = lambda _step, _steps: None,
) -> RunRecord:
    """Train with the dataset's recipe, save the last state, and return the run's record.

    It uses one thread: networks of this size gain little from more, and the numbers then do not
    depend on the number of cores. Runs of several seeds belong in several processes.

    Args:
        algorithm: `bc`, `cql` or `iql`.
        dataset: What to learn from.
        folder: Folder of the run; it must be new unless `resume` is set.
        seed: Seed of networks, batches and noise.
        settings: Settings that differ from the recipe's.
        steps: Gradient steps; the recipe's by default.
        resume: Go on from the folder's checkpoint.
        evaluations: How often, evenly spread over the run and at its end, a few episodes are run
            for the learning curve and the state is saved; 0 needs no environment and saves 5 times.
        trust_environment: Consent to arguments of the environment that come with the data.
        progress: Called with steps done and steps in all.

    Raises:
        FileExistsError: the folder holds another run, or one that was not asked to resume.
        ValueError: no such algorithm, or a setting that it cannot have.
        SchemaError: the dataset's spaces do not fit these algorithms.
        NotFoundError: the dataset names no environment to evaluate in; `evaluations=0` needs none.
        SimulatorError: the environment needs consent, or cannot be made.
    """
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
        if not resume:
            raise FileExistsError(
                f"{folder} holds a run already; choose another folder, or resume it with --resume"
            )
        _check_same_run(folder, record)
    with one_thread():
        made = make_from_record(record, dataset)
        step = 0
        if resume and (folder / CHECKPOINT_FILE).exists():
            step = _load(made, folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / RUN_FILE, msgspec.to_builtins(record))
            (folder / METRICS_FILE).write_text("", "utf-8")
        saves = evaluations or SAVES
        _train_and_log(
            made, packed, dataset, folder, record, config, step, saves, protocol, progress
        )
    return record


def _train_and_log(
    algorithm: Algorithm,
    packed: Arrays,
    dataset: Dataset,
    folder: Path,
    record: RunRecord,
    config: Config,
    step: int,
    saves: int,
    protocol: Protocol | None,
    progress: Callable[[int, int], None],
) -> None:
    stream = Transitions(
        packed, dataset.digest, batch_size=config.batch_size, seed=record.seed, start=step
    )
    every = max(1, record.steps // 100)
    save_at = {round(record.steps * index / saves) for index in range(1, saves + 1)}
    policy = make_policy(algorithm, dataset)
    # What was logged after the checkpoint that a run goes on from will be logged again.
    logged = [line for line in read_metrics(folder) if line["step"] <= step]
    with contextlib.ExitStack() as stack:
        environments = None
        if protocol is not None:
            environments = stack.enter_context(vector_environment(protocol))
        log = stack.enter_context((folder / METRICS_FILE).open("w", encoding="utf-8"))
        log.writelines(json.dumps(line) + "\n" for line in logged)
        seconds = logged[-1]["seconds"] if logged else 0.0
        started = time.perf_counter()
        for done, metrics in train(
            algorithm, stream, first_step=step, last_step=record.steps, every=every
        ):
            seconds += time.perf_counter() - started
            line: dict[str, Any] = {"step": done, "seconds": round(seconds, 3), **metrics}
            save = any(done - every < at <= done for at in save_at)
            if save and environments is not None:
                line["returns"] = episode_returns(
                    policy, environments, episodes=CURVE_EPISODES, first_seed=FIRST_SEED
                ).tolist()
            # Logged first: a resumed run drops lines behind its checkpoint, but cannot make up one.
            log.write(json.dumps(line) + "\n")
            log.flush()
            if save:
                metadata = {"step": str(done), "run_sha256": hash_file(folder / RUN_FILE)}
                save_checkpoint(algorithm, folder / CHECKPOINT_FILE, metadata=metadata)
            progress(done, record.steps)
            started = time.perf_counter()


def evaluate_run(
    folder: Path,
    *,
    dataset: Dataset | None = None,
    episodes: int = EPISODES,
    trust_environment: bool = False,
    progress: Callable[[int], None] = lambda _done: None,
) -> tuple[RunRecord, Evaluation]:
    """Run a run's last saved policy in its dataset's environment and save the returns.

    The evaluation says how many steps the policy had taken, for runs that were cut short.

    Args:
        folder: Folder of the run.
        dataset: What it was trained on; found by the recorded name and digest if it is not given.
        episodes: Episodes to run.
        trust_environment: Consent to arguments of the environment that come with the data.
        progress: Called with the number of episodes done.

    Raises:
        NotFoundError: there is no checkpoint in the folder, its dataset is not here or names no
            environment.
        SimulatorError: the environment needs consent, or cannot be made.
        ValueError: the checkpoint is damaged or belongs to another run.
        IntegrityError: the dataset is not the one that the run was trained on.
    """
    record = read_run(folder)
    if not (folder / CHECKPOINT_FILE).is_file():
        raise NotFoundError(
            f"{folder}: the run has no checkpoint yet; run: orlog train ... --resume"
        )
    if dataset is None:
        dataset = load_dataset(f"{record.dataset}@{record.digest}")
    if dataset.digest != record.digest:
        raise IntegrityError(
            f"{folder}: trained on {record.dataset} {record.digest}, but {dataset.folder} is "
            f"{dataset.digest}",
            expected=record.digest,
            found=dataset.digest,
        )
    protocol = scoring_protocol(dataset, episodes, trust_environment=trust_environment)
    with one_thread():
        algorithm = make_from_record(record, dataset)
        step = _load(algorithm, folder)
        returns = run_protocol(make_policy(algorithm, dataset), protocol, progress)
    evaluation = Evaluation(step=step, protocol=protocol, returns=returns.tolist())
    write_json(folder / EVALUATION_FILE, msgspec.to_builtins(evaluation))
    return record, evaluation


def scoring_protocol(
    dataset: Dataset, episodes: int, *, trust_environment: bool = False
) -> Protocol:
    """Return how policies of a dataset are evaluated.

    Raises:
        NotFoundError: the dataset names no environment, or another time limit.
        SimulatorError: the environment needs consent, or cannot be made.
    """
    environment = check_environment(dataset, trust_environment=trust_environment)
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


def _load(algorithm: Algorithm, folder: Path) -> int:
    """Fill an algorithm from a run's checkpoint and return its step."""
    path = folder / CHECKPOINT_FILE
    metadata = load_checkpoint(algorithm, path)
    if metadata["run_sha256"] != hash_file(folder / RUN_FILE):
        raise ValueError(
            f"{path}: the checkpoint belongs to another {RUN_FILE}, or that was edited; train again"
        )
    return int(metadata["step"])


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


def read_run(folder: Path) -> RunRecord:
    """Return the record of a run.

    Raises:
        NotFoundError: there is no readable run in the folder.
    """
    try:
        body = json.loads((folder / RUN_FILE).read_text("utf-8"))
        return msgspec.convert(body, RunRecord, strict=True)
    except (OSError, ValueError) as error:
        raise NotFoundError(f"{folder}: no readable run: {error}") from error


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines that were logged; a last line that was cut by a kill is left out."""
    lines = (folder / METRICS_FILE).read_text("utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def code_versions() -> dict[str, str]:
    """Return the versions of what computes a run."""
    return {
        "numpy": np.__version__,
        "orlog": orlog.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def write_json(path: Path, body: object) -> None:
    """Write indented JSON; the file is replaced whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(json.dumps(body, indent=1, allow_nan=False) + "\n", "utf-8")
    unfinished.replace(path)


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
