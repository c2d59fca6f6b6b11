"""The policy of a run: its algorithm, made from the record, as a function of observations."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch

from orlog.algos.algorithms import (
    Algorithm,
    make_algorithm,
    make_config,
)
from orlog.algos.networks import Scaling
from orlog.algos.training.runs import RunRecord
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import (
    SchemaError,
)
from orlog.manifests.spaces import leaf_keys
from orlog.normalize.rollouts import Policy

__all__ = [
    "make_from_record",
    "make_policy",
]


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
