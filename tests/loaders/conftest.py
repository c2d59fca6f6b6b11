"""Fixtures for the loaders: small datasets that are really written and really read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from orlog.datasets.dataset import Dataset
from orlog.datasets.episode import Columns, Episode
from orlog.datasets.manifest import MANIFEST_FILE, MANIFEST_VERSION, STORE_FORMAT, Manifest
from orlog.datasets.spaces import space_to_json
from orlog.datasets.store import StoreWriter
from orlog.datasets.verify import make_objects
from orlog.datasets.writing import column_specs, write_episodes

Write: TypeAlias = Callable[..., Dataset]
Make: TypeAlias = Callable[..., Episode]


@pytest.fixture(scope="session")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Return a function that writes episodes into a new store and opens it."""
    root = tmp_path_factory.mktemp("small")
    numbers = itertools.count()

    def write_dataset(
        episodes: Sequence[Episode],
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        checked: bool = True,
    ) -> Dataset:
        folder = root / str(next(numbers))
        if checked:
            columns, _, _ = write_episodes(folder, episodes, observation_space, action_space)
        else:
            writer = StoreWriter(folder, column_specs(observation_space, action_space, {}))
            for episode in episodes:
                assert isinstance(episode.observations, np.ndarray)
                assert isinstance(episode.actions, np.ndarray)
                writer.append("observations", episode.observations)
                writer.append("actions", episode.actions)
                writer.append("rewards", episode.rewards)
                writer.append("terminations", episode.terminations)
                writer.append("truncations", episode.truncations)
                writer.append("episodes/lengths", np.array([len(episode)]))
                writer.append("episodes/seeds", np.array([-1]))
                writer.append("episodes/returns", np.array([episode.rewards.sum()]))
            columns = writer.finish()
        manifest = Manifest(
            manifest_version=MANIFEST_VERSION,
            name="tests/small-v1",
            version="1.0.0",
            description="",
            license="CC0-1.0",
            container="zarr",
            format_version=STORE_FORMAT,
            total_episodes=len(episodes),
            total_steps=sum(map(len, episodes)),
            observation_space=space_to_json(observation_space),
            action_space=space_to_json(action_space),
            environment=None,
            behavior_policy="",
            recipe=None,
            lineage=[],
            columns=columns,
            objects=make_objects(folder),
        )
        (folder / MANIFEST_FILE).write_text(manifest.to_json(), "utf-8")
        return Dataset(folder)

    return write_dataset


@pytest.fixture(scope="session")
def make() -> Make:
    """Return a function that makes a random episode of given spaces, length and end."""

    def make_episode(
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        length: int,
        end: str,
        rng: np.random.Generator,
    ) -> Episode:
        ends = np.zeros(length, np.bool_)
        ends[-1] = True
        never = np.zeros(length, np.bool_)
        return Episode(
            observations=random_rows(observation_space, length + 1, rng),
            actions=random_rows(action_space, length, rng),
            rewards=rng.normal(size=length),
            terminations=ends if end == "termination" else never,
            truncations=ends if end == "truncation" else never,
            infos={},
            seed=None,
        )

    return make_episode


def random_rows(space: gymnasium.Space[Any], rows: int, rng: np.random.Generator) -> Columns:
    """Return random rows of a space of Box, Discrete and Dict."""
    if isinstance(space, spaces.Dict):
        return {key: random_rows(value, rows, rng) for key, value in sorted(space.items())}
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=rows)
    assert isinstance(space, spaces.Box)
    scale = 1 if np.issubdtype(space.dtype, np.floating) else 100
    return np.asarray(rng.normal(size=(rows, *space.shape)) * scale).astype(space.dtype)
