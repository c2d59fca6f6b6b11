"""Transitions over several steps, and of spaces that are no flat vectors, against slow loops."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog import transitions
from orlog.loaders.arrays import read_arrays
from orlog.loaders.batch import Batch
from tests.levels import scaled

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(-2, 3, (2,), np.float32)
IMAGES = spaces.Dict({"camera": spaces.Box(0, 255, (4, 5, 3), np.uint8), "state": BOX, "floor": spaces.Discrete(7)})
STRUCTURES = st.lists(
    st.tuples(st.integers(1, 8), st.sampled_from(["termination", "truncation", "cut"])), min_size=1, max_size=6
)


def dataset_of(write, make, structure, observation_space=BOX, action_space=ACTION):
    rng = np.random.default_rng(len(structure))
    episodes = [make(observation_space, action_space, length=length, end=end, rng=rng) for length, end in structure]
    return write(episodes, observation_space, action_space)


def slow_transitions(dataset, n_steps, discount):
    """Return what comes of each step, by the bytes of its observation."""
    found = {}
    for episode in dataset:
        assert isinstance(episode.observations, np.ndarray)
        for step in range(len(episode)):
            total, ahead = 0.0, 0
            while ahead < n_steps and step + ahead < len(episode):
                total += discount**ahead * float(np.float32(episode.rewards[step + ahead]))
                ahead += 1
            last = step + ahead - 1
            found[episode.observations[step].tobytes()] = (
                np.asarray(episode.actions)[step],
                np.float32(total),
                episode.observations[last + 1],
                episode.terminations[last],
                episode.truncations[last],
                np.float32(discount**ahead),
            )
    return found


@settings(max_examples=scaled(25), deadline=None)
@given(structure=STRUCTURES, n_steps=st.integers(2, 10), discount=st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_every_item_is_what_a_slow_loop_finds(write, make, structure, n_steps, discount):
    dataset = dataset_of(write, make, structure)
    expected = slow_transitions(dataset, n_steps, discount)
    stream = transitions(dataset, 32, seed=1, n_steps=n_steps, discount=discount)
    for index in range(3):
        batch = stream.batch(index)
        assert isinstance(batch, Batch)
        for item in range(32):
            found = expected[batch.observations[item].numpy().tobytes()]
            np.testing.assert_array_equal(batch.actions[item], found[0])
            np.testing.assert_allclose(batch.rewards[item], found[1], rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(batch.next_observations[item], found[2])
            assert bool(batch.terminations[item]) == found[3]
            assert bool(batch.truncations[item]) == found[4]
            assert float(batch.discounts[item]) == found[5]


def test_one_step_is_a_plain_batch_and_more_choose_other_steps(mini):
    one, five = (transitions(mini, 8, seed=0, n_steps=n_steps) for n_steps in (1, 5))
    assert type(one.batch(0)) is Batch
    assert one.sampler.kind == "transitions 1"
    assert one.state_dict()["kind"] != five.state_dict()["kind"]
    with pytest.raises(ValueError, match="kind is"):
        one.load_state_dict(five.state_dict())


@pytest.mark.parametrize("wrong", [{"n_steps": 0}, {"n_steps": 2, "discount": 1.1}, {"n_steps": 2, "discount": -0.1}])
def test_numbers_out_of_range_are_refused(mini, wrong):
    with pytest.raises(ValueError, match="n_steps must be"):
        transitions(mini, 8, seed=0, **wrong)


@settings(max_examples=scaled(10), deadline=None)
@given(structure=STRUCTURES, n_steps=st.integers(1, 4))
def test_images_integers_and_keys_are_given_as_they_are(write, make, structure, n_steps):
    dataset = dataset_of(write, make, structure, IMAGES, spaces.Discrete(5))
    batch = transitions(dataset, 16, seed=0, n_steps=n_steps).batch(0)
    assert isinstance(batch, Batch)
    assert isinstance(batch.observations, dict)
    assert isinstance(batch.next_observations, dict)
    assert {key: (one.dtype, tuple(one.shape)) for key, one in batch.observations.items()} == {
        "camera": (torch.uint8, (16, 4, 5, 3)),
        "floor": (torch.int64, (16,)),
        "state": (torch.float32, (16, 3)),
    }
    assert batch.actions.dtype == torch.int64
    places = {}
    for number, episode in enumerate(dataset):
        assert isinstance(episode.observations, dict)
        for step, state in enumerate(np.asarray(episode.observations["state"])):
            places[state.tobytes()] = number, step
    for item in range(16):
        number, step = places[batch.observations["state"][item].numpy().tobytes()]
        episode = dataset[number]
        assert isinstance(episode.observations, dict)
        after = min(step + n_steps, len(episode))
        for key, values in episode.observations.items():
            np.testing.assert_array_equal(batch.observations[key][item], np.asarray(values)[step])
            np.testing.assert_array_equal(batch.next_observations[key][item], np.asarray(values)[after])
        assert int(batch.actions[item]) == np.asarray(episode.actions)[step]


def test_one_image_is_no_dict(write, make):
    space = spaces.Box(0, 255, (4, 4), np.uint8)
    dataset = dataset_of(write, make, [(3, "cut"), (2, "termination")], space)
    arrays = read_arrays(dataset)
    assert (arrays.obs_dim, list(arrays.others)) == (0, ["observations"])
    batch = orlog.transitions(dataset, 8, seed=0).batch(0)
    assert batch.observations.shape == (8, 4, 4)
    assert batch.actions.shape == (8, 2)


def test_arrays_are_taken_as_well_as_datasets(mini):
    arrays = read_arrays(mini)
    one, other = (transitions(data, 8, seed=0).batch(5) for data in (mini, arrays))
    assert torch.equal(one.observations, other.observations)
    assert arrays.lengths.tolist() == mini.episode_lengths.tolist()
    rows = np.repeat(arrays.final_rows, arrays.lengths + 1)
    assert np.flatnonzero(rows == np.arange(len(rows))).tolist() == (arrays.first_rows + arrays.lengths).tolist()
