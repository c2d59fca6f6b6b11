"""Windows around steps, against a slow loop over the episodes."""

import dataclasses

import numpy as np
import pytest
import torch

import orlog
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays
from orlog.loaders.weights import weighted
from orlog.loaders.windows import as_offsets


def parts(values):
    return values if isinstance(values, dict) else {"": values}


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    lengths = np.array([5, 1, 9])
    rows = torch.from_numpy(rng.normal(size=(18, 7)).astype(np.float32))
    rows[[5, 7, 17], 3:] = 0
    return Arrays(rows=rows, lengths=lengths, obs_dim=3, action_dim=1, name="small", digest="d")


def test_the_steps_are_the_same_for_all_offsets_and_follow_weights(arrays):
    near = orlog.windows(arrays, 64, seed=0, observations=(0,), actions=(0,)).batch(2)
    far = orlog.windows(arrays, 64, seed=0, observations=(3, 0, -2), actions=(5, 0)).batch(2)
    assert torch.equal(parts(near.observations)[""][:, 0], parts(far.observations)[""][:, 1])
    assert torch.equal(near.actions[:, 0], far.actions[:, 1])
    first = weighted(arrays, np.eye(1, arrays.total_steps)[0])
    batch = orlog.windows(first, 8, seed=0, observations=(0,), actions=(0,)).batch(0)
    assert torch.equal(parts(batch.observations)[""][:, 0], arrays.rows[:1, :3].expand(8, -1))


@pytest.mark.parametrize(
    ("offsets", "error", "message"),
    [
        ((), ValueError, "actions: expected different offsets"),
        ((0, 1, 0), ValueError, "actions: expected different offsets"),
        ((0, 0.5), TypeError, "each of actions must be an integer, found float 0.5"),
        ((0, True), TypeError, "each of actions must be an integer, found bool True"),
        ("01", TypeError, "actions must be offsets in steps"),
        (3, TypeError, "actions must be offsets in steps"),
        ((2**40,), ValueError, "actions: expected different offsets"),
    ],
)
def test_wrong_offsets_are_refused(arrays, offsets, error, message):
    with pytest.raises(error, match=message):
        orlog.windows(arrays, 4, seed=0, actions=offsets)
    with pytest.raises(error, match=message.replace("actions", "observations")):
        orlog.windows(arrays, 4, seed=0, observations=offsets)


def test_offsets_may_be_of_numpy_and_padding_is_one_of_two(arrays):
    assert as_offsets("actions", np.arange(-1, 2)) == [-1, 0, 1]
    with pytest.raises(ValueError, match="padding must be 'edge' or 'zero', found 'edges'"):
        orlog.windows(arrays, 4, seed=0, padding="edges")


def test_final_observations_that_were_never_recorded_are_not_given(arrays):
    lacking = dataclasses.replace(arrays, missing_finals=(1,))
    with pytest.raises(SchemaError, match="an observation after a step would give zeros"):
        orlog.windows(lacking, 4, seed=0, observations=(0, 1))
    orlog.windows(lacking, 4, seed=0, observations=(-1, 0)).batch(0)
