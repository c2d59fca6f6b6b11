import dataclasses

import numpy as np
import pytest
import torch

from orlog import transitions
from orlog.loaders.arrays import Arrays, Leaf
from orlog.loaders.batch import Batch


def test_returns_are_those_of_a_slow_loop_and_all_else_is_as_without_them():
    rng = np.random.default_rng(0)
    lengths = np.array([1, 7, 3, 12])
    rows = torch.from_numpy(rng.normal(size=(27, 3 + 2 + 3)).astype(np.float32))
    arrays = Arrays(rows=rows, lengths=lengths, obs_dim=3, action_dim=2, digest="sha256:x")
    expected, first = {}, 0
    for length in lengths:
        total = 0.0
        for row in reversed(range(first, first + length)):
            total = float(rows[row, 5]) + 0.9 * total
            expected[float(rows[row, 0])] = total
        first += length + 1
    stream = transitions(arrays, 16, seed=1, discount=0.9, start=2, returns_to_go=True)
    for batch, other, _ in zip(stream, transitions(arrays, 16, seed=1, start=2), range(5), strict=False):
        for name in ("observations", "actions", "rewards", "next_observations", "terminations"):
            assert torch.equal(getattr(batch, name), getattr(other, name))
        for observation, found in zip(batch.observations, batch.returns_to_go, strict=True):
            assert float(found) == pytest.approx(expected[float(observation[0])], rel=1e-5)
    assert torch.equal(stream.batch(2).returns_to_go, next(iter(stream)).returns_to_go)
    with pytest.raises(ValueError, match="discount in"):
        transitions(arrays, 16, seed=1, discount=1.1, returns_to_go=True)


def test_returns_are_the_same_where_observations_are_frames():
    rng = np.random.default_rng(0)
    lengths = np.array([1, 7, 3, 12])
    rows = torch.from_numpy(rng.normal(size=(27, 3 + 2 + 3)).astype(np.float32))
    flat = Arrays(rows=rows, lengths=lengths, obs_dim=3, action_dim=2)
    eye = torch.from_numpy(rng.integers(0, 256, (27, 4, 4), np.uint8))
    leaves = {"eye": Leaf(column="eye"), "speed": Leaf(shape=(3,))}
    mixed = dataclasses.replace(flat, others={"eye": eye}, observation_leaves=leaves)
    streams = (transitions(one, 16, seed=1, discount=0.9, returns_to_go=True) for one in (flat, mixed))
    for batch, other, _ in zip(*streams, range(5), strict=False):
        assert isinstance(other, Batch)
        assert isinstance(other.observations, dict)
        assert torch.equal(batch.observations, other.observations["speed"])
        assert torch.equal(batch.returns_to_go, other.returns_to_go)
