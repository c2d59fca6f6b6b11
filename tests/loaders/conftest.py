"""Fixtures for the loaders: small datasets that are really written and really read."""

import itertools

import numpy as np
import pytest
from gymnasium import spaces

from orlog import Dataset
from orlog.datasets.columns.schema import Schema
from orlog.datasets.recording.episodes import EpisodeWriter
from orlog.datasets.recording.finishing import make_manifest
from orlog.manifests.manifest import MANIFEST_FILE
from tests.episodes import whole_episode


@pytest.fixture(scope="session")
def write(tmp_path_factory):
    """Return a function that writes episodes into a new store and opens it."""
    root = tmp_path_factory.mktemp("small")
    numbers = itertools.count()

    def write_dataset(episodes, observation_space, action_space, *, checked=True):
        folder = root / str(next(numbers))
        schema = Schema(observation_space=observation_space, action_space=action_space)
        writer = EpisodeWriter(folder, schema, "tests/small-v1@1.0.0")
        for number, episode in enumerate(episodes):
            if checked:
                writer.add_episode(episode)
            else:
                writer.add_block(unchecked_block(schema, episode, number), np.array([len(episode)]))
        written = writer.finish()
        manifest = make_manifest(
            written.schema,
            [written.part],
            written.objects,
            name="tests/small-v1",
            version="1.0.0",
            container="zarr",
            non_finite=written.non_finite,
        )
        (folder / MANIFEST_FILE).write_text(manifest.to_json(), "utf-8")
        return Dataset(folder)

    return write_dataset


def unchecked_block(schema, episode, number):
    """Return the rows of an episode whose flags may make no sense."""
    where, steps = f"episode {number}", len(episode)
    block = schema.step_rows(
        where,
        observations=(episode.observations, steps + 1),
        actions=episode.actions,
        rewards=episode.rewards,
        terminations=episode.terminations,
        truncations=episode.truncations,
        infos={},
    )
    return block | schema.episode_rows(where, steps, episode.rewards.sum(), None, {})


@pytest.fixture(scope="session")
def make():
    """Return a function that makes a random episode of given spaces, length and end."""

    def make_episode(observation_space, action_space, *, length, end, rng):
        observations = random_rows(observation_space, length + 1, rng)
        actions = random_rows(action_space, length, rng)
        return whole_episode(observations, actions, rng.normal(size=length), end=end)

    return make_episode


def random_rows(space, rows, rng):
    """Return random rows of a space of Box, Discrete, Text and Dict."""
    if isinstance(space, spaces.Dict):
        return {key: random_rows(value, rows, rng) for key, value in sorted(space.items())}
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=rows)
    if isinstance(space, spaces.Text):
        return ["word"] * rows
    assert isinstance(space, spaces.Box)
    scale = 1 if np.issubdtype(space.dtype, np.floating) else 100
    return np.asarray(rng.normal(size=(rows, *space.shape)) * scale).astype(space.dtype)
