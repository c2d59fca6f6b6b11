"""Evaluates policies in the environment of their dataset: protocols, returns, and runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from orlog.algos.algorithms import AlgorithmLike, algorithm_name
from orlog.algos.training import runs
from orlog.algos.training.data import EVALUATING, one_thread, seeded
from orlog.algos.training.policy import find_tokenizer, make_from_record, make_policy, observation_width
from orlog.base.files import storage_errors
from orlog.base.processes import processor_name
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given
from orlog.datasets.worlds.environments import environment_versions, make_environment
from orlog.errors import IntegrityError, ManifestError, NotFoundError, SimulatorError
from orlog.manifests.names import counted, is_url
from orlog.normalize.metrics import as_fields, completed, counts_for, warn_of_untold
from orlog.normalize.references import Protocol
from orlog.normalize.rollouts import Count, Episodes, Policy, run_episodes

EPISODES = 100
FIRST_SEED = 1_000_000  # unlikely among the seeds of recipes, which are random 32-bit numbers
ENVIRONMENTS = 10  # few, since making one costs as much as 1,500 of its steps


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """A run whose last saved policy is in memory, with the gradient steps that this had taken and its class."""

    folder: Path
    record: runs.RunRecord
    dataset: Dataset
    step: int
    policy: Policy
    kind: type[Any]


def evaluate_run(
    folder: runs.PathLike,
    *,
    dataset: Given | None = None,
    algorithm: AlgorithmLike | None = None,
    episodes: int = EPISODES,
    trust_environment: bool = False,
    progress: Callable[[int], None] = lambda _done: None,
) -> tuple[runs.RunRecord, runs.Evaluation]:
    """Run a run's last saved policy in its dataset's environment and save the returns.

    The evaluation states the policy's number of gradient steps, for runs that were interrupted. The
    dataset is by default found by the recorded name and digest, or by the view that the run holds. An
    algorithm that is not orlog's must be given: code that a record names is not run unless it is named
    here too. `progress` is told the number of episodes done.
    """
    run = load_run(folder, dataset=dataset, algorithm=algorithm)
    evaluation = evaluate_loaded(run, episodes=episodes, trust_environment=trust_environment, progress=progress)
    return run.record, evaluation


def load_run(
    folder: runs.PathLike, *, dataset: Given | None = None, algorithm: AlgorithmLike | None = None
) -> LoadedRun:
    """Return a run with its last saved policy. Arguments are those of `evaluate_run`."""
    folder = runs.as_path(folder)
    record, dataset, kind = find_run(folder, dataset=dataset, algorithm=algorithm)
    with one_thread():
        made = make_from_record(record, dataset, kind)
        step = runs.load_state(made, folder, to_act=True).step
    policy = make_policy(made, dataset, record)
    return LoadedRun(folder=folder, record=record, dataset=dataset, step=step, policy=policy, kind=type(made))


def find_run(
    folder: Path, *, dataset: Given | None = None, algorithm: AlgorithmLike | None = None
) -> tuple[runs.RunRecord, Dataset, AlgorithmLike]:
    """Return record, dataset and algorithm of a run that has a checkpoint, which is not read.

    Arguments are those of `evaluate_run`.
    """
    record = runs.read_run(folder)
    if dataset is None:
        dataset = dataset_of_run(folder, record)
    else:  # a URL is not downloaded for a run that was streamed
        streamed = record.stream and isinstance(dataset, str) and is_url(dataset)
        dataset = load_dataset(dataset, in_place=True if streamed else None)
    if not runs.has_checkpoint(folder):
        command = runs.resume_command(folder, record, dataset)
        raise NotFoundError(f"{folder}: the run has no checkpoint yet; run: {command}")
    if dataset.digest != record.digest:
        raise IntegrityError(
            f"{folder}: trained on {record.dataset} {record.digest}, but this {dataset.name} is "
            f"{dataset.digest}; name the dataset that it was trained on.",
            expected=record.digest,
            found=dataset.digest,
        )
    kind = algorithm_of_run(folder, record, algorithm)
    find_tokenizer(folder, record.config)
    width = observation_width(dataset, kind)
    for name in ("obs_mean", "obs_std"):
        count = len(getattr(record, name))
        if count != width:
            raise ManifestError(
                f"{folder / runs.RUN_FILE}: {name} has {counted(count, 'number')}, but observations of "
                f"{dataset.name} have {width}; restore the file, or train again in another folder."
            )
    return record, dataset, kind


def algorithm_of_run(folder: Path, record: runs.RunRecord, algorithm: AlgorithmLike | None) -> AlgorithmLike:
    """Return the algorithm of a run; one that is not orlog's must be passed in."""
    if algorithm is None:
        if ":" in record.algorithm:
            raise NotFoundError(
                f"{folder}: trained with {record.algorithm}, which is not part of orlog; name its "
                "file: algorithm='FILE.py:CLASS'."
            )
        return record.algorithm
    if algorithm_name(algorithm) != record.algorithm:
        raise NotFoundError(f"{folder}: trained with {record.algorithm}, not with {algorithm_name(algorithm)}.")
    runs.check_config(folder, record, algorithm)
    return algorithm


def dataset_of_run(folder: Path, record: runs.RunRecord) -> Dataset:
    """Return the dataset a run was trained on: the view it holds, or the version it names."""
    view = folder / runs.VIEW_FILE
    if view.exists():
        return load_dataset(view)
    try:
        return load_dataset(f"{record.dataset}@{record.digest}")
    except NotFoundError as error:
        raise NotFoundError(f"{str(error).removesuffix('.')}; if it is elsewhere, name it: dataset=PATH.") from error


def evaluate_loaded(
    run: LoadedRun,
    *,
    episodes: int = EPISODES,
    trust_environment: bool = False,
    progress: Callable[[int], None] = lambda _done: None,
) -> runs.Evaluation:
    """Evaluate the policy of a loaded run and save the returns; see `evaluate_run`."""
    protocol, roles = scoring_protocol(run.dataset, episodes, trust_environment=trust_environment), run.dataset.roles
    with one_thread(), seeded(run.kind, run.record.seed, EVALUATING):
        played = run_protocol(run.policy, protocol, progress, counts=counts_for(roles))
    warn_of_untold(run.dataset.name, roles, played.metrics)
    evaluation = runs.Evaluation(
        step=run.step,
        protocol=protocol,
        returns=played.returns.tolist(),
        processor=processor_name(),
        **as_fields(completed(played.metrics, run.dataset)),
    )
    with storage_errors(run.folder / runs.EVALUATION_FILE):
        runs.write_evaluation(run.folder, evaluation)
    return evaluation


def scoring_protocol(dataset: Dataset, episodes: int, *, trust_environment: bool = False) -> Protocol:
    """Return how policies of a dataset are evaluated."""
    environment = dataset.checked_environment(trust_environment=trust_environment)
    with make_environment(environment.id, environment.kwargs) as env:
        limit = env.spec.max_episode_steps if env.spec is not None else None
    if limit != environment.max_episode_steps:
        raise NotFoundError(
            f"{environment.id} ends episodes after {limit} steps here, but after "
            f"{environment.max_episode_steps} where {dataset.name} was recorded, so returns could "
            "not be compared; install the recorded versions."
        )
    return Protocol(
        environment_id=environment.id,
        environment_kwargs=environment.kwargs,
        versions=environment_versions(environment.id, environment.kwargs),
        episodes=episodes,
        max_episode_steps=environment.max_episode_steps,
        first_seed=FIRST_SEED,
        environments=min(ENVIRONMENTS, episodes),
    )


@contextlib.contextmanager
def vector_environment(
    protocol: Protocol,
    wrap: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]] = lambda env: env,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[SyncVectorEnv]:
    """Make the environments of a protocol as one vector environment, each wrapped, with more arguments."""

    def make() -> gymnasium.Env[Any, Any]:
        return wrap(make_environment(protocol.environment_id, {**protocol.environment_kwargs, **arguments}))

    environments = SyncVectorEnv([make] * protocol.environments, autoreset_mode=AutoresetMode.NEXT_STEP)
    try:
        yield environments
    finally:
        environments.close()


def curve_point(policy: Policy, environments: SyncVectorEnv, protocol: Protocol) -> dict[str, list[Any]]:
    """Return what a line of the log says of an evaluation: returns, and what metrics of any dataset counted."""
    played = run_episodes(
        policy, environments, episodes=protocol.episodes, first_seed=FIRST_SEED, counts=counts_for({})
    )
    return {"returns": played.returns.tolist(), **as_fields(played.metrics)}


def exact_values(policy: Policy, protocol: Protocol, discounts: Sequence[float]) -> list[float] | None:
    """Return the exact mean discounted return of an episode for each discount; None where it is not known.

    An environment that can compute it has a method `policy_value(policy, discount)`, for policies that always
    take the same action in a state.
    """
    values = None
    with make_environment(protocol.environment_id, protocol.environment_kwargs) as env:
        if env.has_wrapper_attr("policy_value"):
            value = env.get_wrapper_attr("policy_value")
            values = [float(value(policy, discount)) for discount in discounts]
    return values


def run_protocol(
    policy: Policy,
    protocol: Protocol,
    progress: Callable[[int], None] = lambda _done: None,
    *,
    discount: float = 1.0,
    counts: Sequence[Count] = (),
    wrap: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]] = lambda env: env,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> Episodes:
    """Return what came of each episode of a protocol; environments may be wrapped, as to film them."""
    with vector_environment(protocol, wrap, arguments) as environments:
        played = run_episodes(
            policy,
            environments,
            episodes=protocol.episodes,
            first_seed=protocol.first_seed,
            discount=discount,
            counts=counts,
            progress=progress,
        )
    for what, values in {"return": played.returns, **played.metrics}.items():
        wrong = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        if wrong.any():
            episode = int(wrong.argmax())
            raise SimulatorError(
                f"{protocol.environment_id}: {int(wrong.sum())} of {len(wrong)} episodes have no finite "
                f"{what} (the one from seed {protocol.first_seed + episode}: {values[episode]}), so there "
                f"is no mean {what} and no score."
            )
    return played
