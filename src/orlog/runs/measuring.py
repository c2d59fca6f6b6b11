"""Measures reference returns: those of a random policy and of an expert, in a dataset's environment."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from orlog.algos.algorithms import AlgorithmLike
from orlog.algos.training.data import one_thread
from orlog.algos.training.evaluating import load_run, run_protocol, scoring_protocol
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given
from orlog.datasets.worlds.recipe import Expert, catalogue
from orlog.errors import NotFoundError, SchemaError
from orlog.manifests.manifest import EnvironmentRecord
from orlog.normalize.references import (
    Protocol,
    PublishedProtocol,
    PublishedReferences,
    PublishedReturn,
    ReferenceReturn,
    ReferenceReturns,
    References,
    simulator_of,
)
from orlog.normalize.rollouts import Policy
from orlog.runs.references import benchmark_of, store_references, trained_policy

Anchor: TypeAlias = str | os.PathLike[str] | float
"""An expert: a run or its folder, `recipe` for the controller of the dataset's recipe, or a number."""

RECIPE = "recipe"
EPISODES = 1000
RANDOM_POLICY = "uniform over the action space, drawn by PCG64 with seed 0"


def measure_references(
    dataset: Given,
    *,
    expert: Anchor = RECIPE,
    source: str = "",
    episodes: int = EPISODES,
    keep: bool = False,
    algorithm: AlgorithmLike | None = None,
    trust_environment: bool = False,
    progress: Callable[[int], None] = lambda _done: None,
) -> References:
    """Run a random and an expert policy in a dataset's environment; return their returns.

    The random policy draws uniformly from the action space with its own generator, unless the recipe of the
    dataset says what is random there (`random_policy`), as where actions are texts.

    Args:
        dataset: A dataset, or the name or path of one.
        expert: A trained run or its folder, `recipe` for the controller of the dataset's recipe, or
            a published mean return, with its source.
        source: Where the number was published.
        episodes: Episodes of each policy.
        keep: Store them beside the data, where scores on all datasets of the environment find them.
        algorithm: The run's algorithm, if it is not one of orlog's.
        trust_environment: Consent to arguments of the environment that come with the data.
        progress: Called with the number of episodes done, first of one policy, then of the other.

    Raises:
        NotFoundError: the dataset names no environment, its recipe has no expert, or there is no
            such run.
        SchemaError: the action space has no uniform policy, the run is of another environment, the
            expert is not above the random policy, or the dataset's benchmark publishes references.
        SimulatorError: the environment needs consent, or cannot be made.
        ValueError: a number without its source, or a source without a number.
        StorageError: they cannot be kept; older ones stay.
    """
    dataset = load_dataset(dataset)
    _check_benchmark(dataset)
    random = _random(dataset)
    is_number = isinstance(expert, int | float) and not isinstance(expert, bool)
    if is_number and not source:
        raise ValueError(f"{dataset.name}: a published return needs its source: source=TEXT.")
    if source and not is_number:
        raise ValueError(f"{dataset.name}: a source is for a published return, a number; found {expert}.")
    policies = [random] if is_number else [random, _expert(dataset, expert, algorithm)]
    protocol = scoring_protocol(dataset, episodes, trust_environment=trust_environment)
    with one_thread():
        low, *measured = (
            ReferenceReturn.of(each.name, run_protocol(each.policy, protocol, progress).returns) for each in policies
        )
    try:
        if measured:
            references: References = ReferenceReturns(random=low, expert=measured[0], protocol=protocol)
        else:
            references = _with_number(low, float(expert), source, protocol)  # type: ignore[arg-type]  # it is a number
    except ValueError as error:
        raise SchemaError(f"{dataset.name}: {error}") from error
    if keep:
        keep_references(dataset, references)
    return references


def keep_references(dataset: Given, references: References) -> Path:
    """Store reference returns beside the data.

    Raises NotFoundError if the dataset names no environment; SchemaError if the dataset's benchmark publishes
    references; StorageError if they cannot be written; older ones stay.
    """
    dataset = load_dataset(dataset)
    _check_benchmark(dataset)
    return store_references(_environment(dataset), references)


def _environment(dataset: Dataset) -> EnvironmentRecord:
    if dataset.environment is None:
        raise NotFoundError(f"{dataset.name} names no environment, and references belong to an environment.")
    return dataset.environment


def _check_benchmark(dataset: Dataset) -> None:
    """Refuse own references where scores are by the benchmark's."""
    benchmark = benchmark_of(dataset.manifest)
    if benchmark is not None and benchmark.anchors is not None:
        raise SchemaError(
            f"{dataset.name} is scored by the references that {benchmark.benchmark.title} publishes "
            f"for {benchmark.name}; own ones are for other datasets."
        )


def _expert(dataset: Dataset, expert: Any, algorithm: AlgorithmLike | None) -> Expert:
    """Return the expert of a recipe, or the policy of a run."""
    if expert == RECIPE:
        entry = catalogue().get(dataset.name)
        known = entry.recipe.expert() if entry is not None else None
        if known is None:
            raise NotFoundError(
                f"{dataset.name}: no recipe is known that has an expert for it; name a run: expert=FOLDER."
            )
        return known
    run = load_run(expert, algorithm=algorithm)
    theirs, ours = run.dataset.environment, _environment(dataset)
    if theirs is None or _identity(theirs) != _identity(ours):
        raise SchemaError(
            f"{run.folder}: the run was trained for {_shown(theirs)} ({run.record.dataset}), but "
            f"{dataset.name} is of {_shown(ours)}; choose a run of that environment."
        )
    record = run.record
    name = (
        f"{record.algorithm}, seed {record.seed}, trained on {record.dataset}@{record.version} "
        f"({record.digest[:19]}), step {run.step:,} of {record.steps:,}: {trained_policy(record.config)}"
    )
    return Expert(name=name, policy=run.policy)


def _identity(environment: EnvironmentRecord) -> tuple[object, ...]:
    return environment.id, environment.kwargs, environment.max_episode_steps


def _shown(environment: EnvironmentRecord | None) -> str:
    if environment is None:
        return "no environment"
    arguments = f" with arguments {environment.kwargs!r:.100}" if environment.kwargs else ""
    return f"{environment.id}{arguments}"


def _with_number(low: ReferenceReturn, expert: float, source: str, protocol: Protocol) -> PublishedReferences:
    """Return a measured random policy with a published expert."""
    if not math.isfinite(expert):
        raise ValueError(f"the expert's return must be a finite number, found {expert}.")
    error = "" if low.standard_error is None else f", standard error {low.standard_error:.4g}"
    return PublishedReferences(
        random=PublishedReturn(
            policy=f"{low.policy}; measured with orlog, {len(low.returns)} episodes{error}", mean=low.mean
        ),
        expert=PublishedReturn(policy=f"as published: {source}", mean=expert),
        protocol=PublishedProtocol(
            environment_id=protocol.environment_id,
            environment_kwargs=protocol.environment_kwargs,
            versions=protocol.versions,
            episodes=protocol.episodes,
            description=(
                f"the random policy ran {protocol.episodes} episodes from seed "
                f"{protocol.first_seed}; the expert's return was not measured here"
            ),
        ),
        source=f"random policy measured with orlog, expert {source}",
        simulator=simulator_of(protocol),
        caveats=["the expert's return is a published number, which orlog did not measure."],
    )


def _random(dataset: Dataset) -> Expert:
    """Return the random policy of a dataset's recipe, if it says what is random there; else the uniform one."""
    entry = catalogue().get(dataset.name)
    own = getattr(entry.recipe, "random_policy", None) if entry is not None else None
    if own is not None:
        policy: Expert = own()
        return policy
    rng = np.random.Generator(np.random.PCG64(0))
    return Expert(name=RANDOM_POLICY, policy=_uniform(dataset.name, dataset.action_space, rng))


def _uniform(name: str, space: gymnasium.Space[Any], rng: np.random.Generator) -> Policy:
    """Return a policy that draws uniformly from an action space."""

    def rows(observations: Any) -> tuple[int, ...]:
        return (_count(observations), *(space.shape or ()))

    match space:
        case gymnasium.spaces.Dict():
            parts = {key: _uniform(name, part, rng) for key, part in space.spaces.items()}
            return lambda seen: {key: part(seen) for key, part in parts.items()}
        case gymnasium.spaces.Discrete():
            return lambda seen: rng.integers(int(space.start), int(space.start + space.n), rows(seen))
        case gymnasium.spaces.MultiDiscrete():
            return lambda seen: rng.integers(space.start, space.start + space.nvec, rows(seen))
        case gymnasium.spaces.MultiBinary():
            return lambda seen: rng.integers(0, 2, rows(seen), dtype=np.int8)
        case gymnasium.spaces.Box() if space.is_bounded():
            return lambda seen: rng.uniform(space.low, space.high, rows(seen)).astype(space.dtype)
    raise SchemaError(
        f"{name}: no uniform policy exists for its action space {space}: a random policy needs "
        "a bounded Box or discrete actions."
    )


def _count(observations: Any) -> int:
    """Return the number of observations in a batch of any space."""
    while isinstance(observations, (dict, tuple)):
        parts = observations.values() if isinstance(observations, dict) else observations
        observations = next(iter(parts))
    return len(observations)
