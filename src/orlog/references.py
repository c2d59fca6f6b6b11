"""Finds and measures reference returns: those of a random and an expert policy.

They are recorded in `manifests/references/*.json`, with the protocol that measured them. They
belong to an environment with its arguments, so all datasets of one environment share them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from orlog.algos.training.evaluating import run_protocol, scoring_protocol
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.given import Given
from orlog.datasets.recipes.catalogue import catalogue
from orlog.errors import NotFoundError
from orlog.manifests.manifest import Manifest
from orlog.manifests.shipped import records_folder
from orlog.normalize.baselines import write_record
from orlog.normalize.references import (
    ReferenceReturn,
    ReferenceReturns,
    References,
    read_references,
)
from orlog.normalize.rollouts import Policy

__all__ = [
    "measure_references",
    "record_references",
    "references_for",
    "references_of",
]


RANDOM_POLICY = "uniform over the action space, drawn by PCG64 with seed 0"
TRAINED_POLICY = "last checkpoint, deterministic actions"


def references_for(environment_id: str, environment_kwargs: dict[str, Any]) -> References | None:
    """Return the recorded reference returns of an environment, or None."""
    path = _references_path(environment_id, environment_kwargs)
    return None if path is None else read_references(path)


def _references_path(environment_id: str, environment_kwargs: dict[str, Any]) -> Path | None:
    wanted = (environment_id, environment_kwargs)
    for path in sorted((records_folder() / "references").glob("*.json")):
        protocol = read_references(path).protocol
        if (protocol.environment_id, protocol.environment_kwargs) == wanted:
            return path
    return None


def references_of(manifest: Manifest) -> References | None:
    """Return the recorded reference returns of a dataset's environment, or None."""
    environment = manifest.environment
    return None if environment is None else references_for(environment.id, environment.kwargs)


def measure_references(
    dataset: Given,
    *,
    episodes: int,
    trust_environment: bool = False,
    progress: Callable[[int], None] = lambda _done: None,
) -> ReferenceReturns:
    """Run a random and an expert policy in a dataset's environment; return their returns.

    The random policy draws uniformly from the action space with its own generator; the expert comes
    from the dataset's recipe.

    Raises:
        NotFoundError: the dataset has no recipe with an expert, or an action space without a
            uniform policy.
        SimulatorError: the environment needs consent (`trust_environment`), or cannot be made.
    """
    dataset = load_dataset(dataset)
    entry = catalogue().get(dataset.name)
    expert = entry.recipe.expert() if entry is not None else None
    if expert is None:
        raise NotFoundError(f"{dataset.name}: no recipe is known that has an expert for it.")
    protocol = scoring_protocol(dataset, episodes, trust_environment=trust_environment)
    returns = [
        run_protocol(policy, protocol, progress)
        for policy in (_random_policy(dataset.name, dataset.action_space), expert.policy)
    ]
    return ReferenceReturns(
        random=ReferenceReturn.of(RANDOM_POLICY, returns[0]),
        expert=ReferenceReturn.of(expert.name, returns[1]),
        protocol=protocol,
    )


def _random_policy(name: str, space: gymnasium.Space[Any]) -> Policy:
    """Return a policy that draws uniformly from an action space, with its own generator."""
    rng = np.random.Generator(np.random.PCG64(0))
    if isinstance(space, gymnasium.spaces.Discrete):
        first, end = int(space.start), int(space.start + space.n)
        return lambda observations: rng.integers(first, end, _rows(observations))
    if not isinstance(space, gymnasium.spaces.Box) or not space.is_bounded():
        raise NotFoundError(f"{name}: no uniform policy exists for its action space {space}.")
    low, high, shape, dtype = space.low, space.high, space.shape, space.dtype
    return lambda observations: rng.uniform(low, high, (_rows(observations), *shape)).astype(dtype)


def _rows(observations: Any) -> int:
    """Return the number of observations in a batch of any space."""
    while isinstance(observations, (dict, tuple)):
        parts = observations.values() if isinstance(observations, dict) else observations
        observations = next(iter(parts))
    return len(observations)


def record_references(dataset: Given, references: References) -> Path:
    """Add reference returns to those that ship with orlog; return the file.

    Raises:
        StorageError: orlog's folder cannot be written; use a checkout.
    """
    dataset = load_dataset(dataset)
    protocol = references.protocol
    path = _references_path(protocol.environment_id, protocol.environment_kwargs)
    new = records_folder() / "references" / f"{dataset.name.replace('/', '-')}.json"
    return write_record(path or new, references)
