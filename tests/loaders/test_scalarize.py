"""Rewards of several objectives become one as a slow loop would weigh them."""

import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.errors import NotFoundError, SchemaError
from tests.levels import scaled

SPACE = spaces.Dict(state=spaces.Box(-9, 9, (1,), np.float32), weights=spaces.Box(0, 1, (2,), np.float32))


def record(name, lengths, objectives=None):
    rng = np.random.default_rng(len(lengths))
    with orlog.DatasetWriter(name, observation_space=SPACE, action_space=spaces.Discrete(3)) as writer:
        for length in lengths:
            given = rng.normal(size=(length, 2)) if objectives is None else objectives
            writer.add_steps(
                observations={
                    "state": rng.normal(size=(length + 1, 1)).astype(np.float32),
                    "weights": np.tile(np.array([0.25, 0.75], np.float32), (length + 1, 1)),
                },
                actions=rng.integers(3, size=length),
                rewards=np.ones(length),
                terminations=np.arange(length) == length - 1,
                truncations=np.zeros(length, bool),
                infos={"objectives": given},
            )
            writer.end_episode()
    return orlog.load_dataset(name)


names = (f"lab/weighed{number}-v1" for number in itertools.count())


@settings(max_examples=scaled(40))
@given(share=st.floats(0, 1))
def test_rewards_are_those_of_a_slow_loop_and_weights_are_seen(share):
    dataset = record(next(names), [3, 1, 4])
    arrays = orlog.load_arrays(dataset, infos=("objectives",))
    before = arrays.rows.clone()
    weights = (share, 1 - share)
    ready = orlog.scalarize(arrays, weights=weights)
    assert torch.equal(arrays.rows, before)
    wanted = [share * one + (1 - share) * two for episode in dataset for one, two in episode.infos["objectives"]]
    rows = torch.from_numpy(ready.step_rows())
    found = ready.rows[rows][:, ready.columns["rewards"]].ravel()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    batch = next(iter(orlog.transitions(ready, 16, seed=0)))
    np.testing.assert_allclose(batch.observations[:, 1:], np.tile(weights, (16, 1)), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(batch.next_observations[:, 1:], np.tile(weights, (16, 1)), rtol=1e-6, atol=1e-9)
    same = orlog.scalarize(arrays, weights=weights)
    assert same.digest == ready.digest != arrays.digest


def test_wrong_weights_and_objectives_are_refused_by_name():
    data = record("lab/checked-v1", [2, 3])
    for weights, message in (
        ((0.7, 0.2), r"lab/checked-v1: weights must sum to 1, found \[0.7, 0.2\], which sum to 0.9"),
        ((0.5, 0.25, 0.25), "infos/objectives has 2 objectives, and there are 3 weights; give one"),
        ((1.5, -0.5), "weights must be numbers >= 0"),
        ((float("nan"), 1.0), "weights must be numbers >= 0"),
    ):
        with pytest.raises(ValueError, match=message):
            orlog.scalarize(data, weights=weights)
    with pytest.raises(NotFoundError, match="gains"):
        orlog.scalarize(data, weights=(0.5, 0.5), objectives="gains")
    flat = record("lab/flat-v1", [2], np.array([1.0, 2.0]))
    with pytest.raises(SchemaError, match="holds one number for each step, expected a vector"):
        orlog.scalarize(flat, weights=(1.0,))
    with pytest.raises(TypeError, match="data must be a dataset"):
        orlog.scalarize(3, weights=(1.0,))
