"""Chunks of actions, of any spaces, against a slow loop."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog import action_chunks, combine_datasets
from orlog.loaders.arrays import read_arrays
from orlog.loaders.chunks import ChunkSampler
from orlog.loaders.weights import weighted
from tests.batches import columns
from tests.levels import scaled

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(-2, 3, (2,), np.float32)
CAMERA = spaces.Dict({"camera": spaces.Box(0, 255, (4, 3, 1), np.uint8), "state": BOX})
STRUCTURES = st.lists(
    st.tuples(st.integers(1, 8), st.sampled_from(["termination", "truncation", "cut"])), min_size=1, max_size=6
)


def parts(observations):
    return observations if isinstance(observations, dict) else {"": observations}


def slow_chunks(dataset, length, discount):
    """Yield the chunk that starts at each step, in order."""
    for episode in dataset:
        actions = np.asarray(episode.actions)
        for step in range(len(episode)):
            chunk = np.zeros((length, *actions.shape[1:]), actions.dtype)
            valid = np.zeros(length, np.bool_)
            total, power, last = 0.0, 1.0, step
            for slot in range(length):
                if step + slot < len(episode):
                    last = step + slot
                    chunk[slot], valid[slot] = actions[last], True
                    total += power * float(np.float32(episode.rewards[last]))
                    power *= discount
            found = {
                "actions": chunk,
                "valid": valid,
                "rewards": total,
                "discounts": power,
                "terminations": float(episode.terminations[last]),
                "truncations": float(episode.truncations[last]),
            }
            for key, values in parts(episode.observations).items():
                found[f"observations/{key}"] = np.asarray(values)[step]
                found[f"next_observations/{key}"] = np.asarray(values)[last + 1]
            yield found


def flatten(batch):
    found = {name: getattr(batch, name) for name in columns(batch)}
    for name in ("observations", "next_observations"):
        found |= {f"{name}/{key}": one for key, one in parts(found.pop(name)).items()}
    return found


@settings(deadline=None, max_examples=scaled(40))
@given(
    structure=STRUCTURES,
    discount=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    spaces_=st.sampled_from([(BOX, ACTION), (CAMERA, ACTION), (BOX, spaces.Discrete(5))]),
    data=st.data(),
)
def test_every_chunk_is_the_one_of_a_slow_loop(write, make, structure, discount, spaces_, data):
    length = data.draw(st.integers(1, max(steps for steps, _ in structure)))
    rng = np.random.default_rng(len(structure))
    episodes = [make(*spaces_, length=steps, end=end, rng=rng) for steps, end in structure]
    dataset = write(episodes, *spaces_)
    arrays = read_arrays(dataset)
    before = arrays.rows.clone()
    sampler, count = ChunkSampler(arrays, length, discount), arrays.total_steps
    batch = flatten(sampler.gather(sampler.choose(((np.arange(count) + 0.5) / count)[:, None])))
    chunks = list(slow_chunks(dataset, length, discount))
    assert set(batch) == set(chunks[0])
    for name, found in batch.items():
        expected = np.stack([chunk[name] for chunk in chunks])
        assert found.shape == expected.shape
        if name in ("rewards", "discounts"):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(found, expected, err_msg=name)
    assert torch.equal(arrays.rows, before)


def test_one_action_is_a_transition_and_lengths_are_told_apart(mini):
    one = action_chunks(mini, 64, seed=0, length=1, discount=0.9).batch(3)
    assert one.valid.all()
    assert one.actions.shape == (64, 1, 2)
    assert torch.equal(one.discounts, torch.full((64,), 0.9))
    four, five = (action_chunks(mini, 64, seed=0, length=length) for length in (4, 5))
    assert four.state_dict()["kind"] != five.state_dict()["kind"]
    with pytest.raises(ValueError, match="kind is"):
        four.load_state_dict(five.state_dict())


def test_a_stream_begins_where_it_is_told_and_respects_weights(mini):
    whole = iter(action_chunks(mini, 8, seed=1))
    for _ in range(5):
        next(whole)
    later = next(iter(action_chunks(mini, 8, seed=1, start=5)))
    for name, values in flatten(next(whole)).items():
        assert torch.equal(flatten(later)[name], values)
    mixed = combine_datasets([mini[:1], mini[1:2]], weights=[0, 1])
    starts = {tuple(one) for one in np.asarray(read_arrays(mini[1:2]).rows[:, :8]).tolist()}
    batch = action_chunks(mixed, 32, seed=0).batch(0)
    assert isinstance(batch.observations, torch.Tensor)
    assert all(tuple(one) in starts for one in batch.observations.tolist())
    arrays = orlog.load_arrays(mini)
    weights = np.zeros(arrays.total_steps)
    weights[7] = 1
    only = action_chunks(weighted(arrays, weights), 4, seed=0).batch(0)
    assert isinstance(only.observations, torch.Tensor)
    assert torch.equal(only.observations, arrays.rows[7, :8].expand(4, 8))


@pytest.mark.parametrize("wrong", [{"length": 0}, {"discount": 1.1}, {"discount": -0.1}, {"discount": np.nan}])
def test_numbers_out_of_range_are_refused(mini, wrong):
    with pytest.raises(ValueError, match=r"length must be >= 1 and discount in \[0, 1\]"):
        action_chunks(mini, 8, seed=0, **wrong)
