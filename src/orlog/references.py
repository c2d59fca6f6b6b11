"""What ships recorded: reference returns of environments and baselines of algorithms.

- `manifests/references/*.json`: returns of a random and an expert policy, with protocol.
  They belong to an environment with its arguments, so all datasets of one share them.
- `manifests/NAME/baselines/ALGO.json`: recorded per-seed returns, settings, digest and versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np

from orlog.algos.training.runs import (
    DatasetLike,
    as_dataset,
    run_protocol,
    scoring_protocol,
    write_json,
)
from orlog.datasets.recipes.catalogue import CATALOGUE, recorded_folder, records_folder
from orlog.datasets.recipes.pointmaze import CONTROLLER, WaypointController
from orlog.errors import NotFoundError, StorageError
from orlog.manifests.manifest import Manifest
from orlog.normalize.references import (
    Protocol,
    ReferenceReturn,
    ReferenceReturns,
    read_references,
)
from orlog.normalize.rollouts import Policy

__all__ = [
    "Baseline",
    "measure_references",
    "read_baseline",
    "record_baseline",
    "record_references",
    "references_for",
    "references_of",
]


RANDOM_POLICY = "uniform over the action space, drawn by PCG64 with seed 0"
TRAINED_POLICY = "last checkpoint, deterministic actions"


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was recorded of an algorithm on a dataset.

    Attributes:
        algorithm: Name of the algorithm.
        dataset: Name of the dataset.
        digest: Digest of the dataset that it was trained on.
        steps: Gradient steps.
        config: Every setting.
        policy: Which of a run's policies was run, and how it acts.
        protocol: How its returns were measured.
        versions: Code that trained.
        returns: Returns of each evaluation episode, by training seed.
    """

    algorithm: str
    dataset: str
    digest: str
    steps: int
    config: dict[str, Any]
    policy: str
    protocol: Protocol
    versions: dict[str, str]
    returns: dict[str, list[float]]

    def scores(self, references: ReferenceReturns) -> dict[int, np.ndarray]:
        """Return normalized scores of each episode, by training seed."""
        return {
            int(seed): references.normalize(np.array(returns))
            for seed, returns in self.returns.items()
        }


def references_for(
    environment_id: str, environment_kwargs: dict[str, Any]
) -> ReferenceReturns | None:
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


def references_of(manifest: Manifest) -> ReferenceReturns | None:
    """Return the recorded reference returns of a dataset's environment, or None."""
    environment = manifest.environment
    return None if environment is None else references_for(environment.id, environment.kwargs)


def read_baseline(algorithm: str, name: str) -> Baseline | None:
    """Return the recorded baseline of an algorithm on a dataset, or None."""
    path = recorded_folder(name) / "baselines" / f"{algorithm}.json"
    if not path.is_file():
        return None
    return msgspec.convert(json.loads(path.read_text("utf-8")), Baseline, strict=True)


def record_baseline(baseline: Baseline) -> Path:
    """Write a baseline among those that ship with orlog; return the file.

    Raises:
        StorageError: orlog is installed where it cannot be written; use a checkout.
    """
    folder = recorded_folder(baseline.dataset) / "baselines"
    return _write(folder / f"{baseline.algorithm}.json", baseline)


def measure_references(
    dataset: DatasetLike,
    *,
    episodes: int,
    trust_environment: bool = False,
    progress: Callable[[int], None] = lambda _done: None,
) -> ReferenceReturns:
    """Run the random and the expert policy in a dataset's environment and return their returns.

    The random policy draws uniformly from the action space with a generator of its own; the expert
    is the recipe's controller without noise, driving to the goal of the scored task.

    Raises:
        NotFoundError: the dataset has no recipe, hence no expert.
        SimulatorError: the environment needs consent (`trust_environment`), or cannot be made.
    """
    dataset = as_dataset(dataset)
    entry = CATALOGUE.get(dataset.name)
    if entry is None:
        raise NotFoundError(f"{dataset.name} has no recipe, so orlog knows no expert for it")
    protocol = scoring_protocol(dataset, episodes, trust_environment=trust_environment)
    space = dataset.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    rng = np.random.Generator(np.random.PCG64(0))

    def random_policy(observations: Any) -> np.ndarray:
        rows = len(observations["observation"])
        return rng.uniform(space.low, space.high, (rows, *space.shape)).astype(space.dtype)

    returns = [
        run_protocol(policy, protocol, progress)
        for policy in (random_policy, _expert(entry.recipe.maze))
    ]
    return ReferenceReturns(
        random=ReferenceReturn.of(RANDOM_POLICY, returns[0]),
        expert=ReferenceReturn.of(f"{CONTROLLER}, to the goal of the scored task", returns[1]),
        protocol=protocol,
    )


def _expert(maze: tuple[str, ...]) -> Policy:
    controller = WaypointController(maze)

    def expert(observations: Any) -> np.ndarray:
        states = observations["observation"].tolist()
        goals = observations["desired_goal"].tolist()
        actions = [
            controller.action(x, y, velocity_x, velocity_y, (goal_x, goal_y))
            for (x, y, velocity_x, velocity_y), (goal_x, goal_y) in zip(states, goals, strict=True)
        ]
        return np.array(actions, np.float32)

    return expert


def record_references(dataset: DatasetLike, references: ReferenceReturns) -> Path:
    """Write reference returns among those that ship with orlog; return the file.

    Raises:
        StorageError: orlog is installed where it cannot be written; use a checkout.
    """
    dataset = as_dataset(dataset)
    protocol = references.protocol
    path = _references_path(protocol.environment_id, protocol.environment_kwargs)
    new = records_folder() / "references" / f"{dataset.name.replace('/', '-')}.json"
    return _write(path or new, references)


def _write(path: Path, record: msgspec.Struct) -> Path:
    try:
        write_json(path, msgspec.to_builtins(record))
    except OSError as error:
        raise StorageError(
            f"{path}: cannot write the record: {error.strerror}; use a checkout of orlog",
            errno=error.errno,
        ) from error
    return path
