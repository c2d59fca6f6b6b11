"""Data whose steps can be told apart, for tests of what reads them block by block."""

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from tests.episodes import whole_episode

NAME = "lab/steps-v1"


def write(name, lengths, width, *, noise=True):
    """Record episodes whose reward at a step is its number in the dataset."""
    rng = np.random.default_rng(0)
    first = 0
    with orlog.DatasetWriter(
        name,
        observation_space=spaces.Box(-np.inf, np.inf, (width,), np.float32),
        action_space=spaces.Box(-1, 1, (2,), np.float32),
    ) as writer:
        for length in lengths:
            seen = rng.normal(size=(length + 1, width)) if noise else np.ones((length + 1, width))
            writer.add_episode(
                whole_episode(
                    seen.astype(np.float32),
                    rng.uniform(-1, 1, (length, 2)).astype(np.float32),
                    np.arange(first, first + length, dtype=np.float64),
                )
            )
            first += length
    return orlog.load_dataset(name)


@pytest.fixture
def steps(home):  # noqa: ARG001
    return write(NAME, [5, 40, 1, 17, 8, 29, 3, 60, 12, 25] * 3, 3)
