import dataclasses

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays, read_arrays
from tests.levels import scaled

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(-2, 3, (2,), np.float32)
NESTED = spaces.Dict(
    {
        "position": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
        "arm": spaces.Dict(
            {"zeal": spaces.Box(-np.inf, np.inf, (), np.float32), "angle": spaces.Box(-100, 100, (3,), np.int16)}
        ),
    }
)
STRUCTURES = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from(["termination", "truncation", "cut"])), min_size=1, max_size=6
)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def flatten(space, columns, row):
    """Return one observation as Gymnasium flattens it."""

    def pick(value):
        if isinstance(value, dict):
            return {key: pick(inner) for key, inner in value.items()}
        return value[row]

    return np.asarray(spaces.flatten(space, pick(columns)), np.float32)


@settings(max_examples=scaled(12), deadline=None)
@given(structure=STRUCTURES, nested=st.booleans(), seed=st.integers(0, 2**32))
def test_every_transition_is_the_one_of_its_episode(write, make, structure, nested, seed):
    rng = np.random.default_rng(seed)
    space = NESTED if nested else BOX
    dataset = write([make(space, ACTION, length=length, end=end, rng=rng) for length, end in structure], space, ACTION)
    packed = read_arrays(dataset)
    assert packed.obs_dim == spaces.flatdim(space)
    assert packed.action_dim == 2
    assert packed.total_steps == dataset.total_steps

    expected = []
    for episode in dataset:
        assert isinstance(episode.actions, np.ndarray)
        for step in range(len(episode)):
            parts = [
                flatten(space, episode.observations, step),
                episode.actions[step],
                [episode.rewards[step]],
                [episode.terminations[step]],
                [episode.truncations[step]],
                flatten(space, episode.observations, step + 1),
            ]
            expected += [np.concatenate(parts, dtype=np.float32, casting="unsafe")]
    found = packed.transitions[torch.from_numpy(packed.step_rows())].numpy()
    np.testing.assert_array_equal(found, np.stack(expected))

    observations = np.stack(expected)[:, : packed.obs_dim].astype(np.float64)
    mean, std = packed.observation_statistics()
    np.testing.assert_allclose(mean.numpy(), observations.mean(0), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(std.numpy(), observations.std(0), rtol=1e-6, atol=1e-7)


def test_statistics_of_many_rows_do_not_drift():
    rows = np.zeros((200_003, 5), np.float32)
    rows[:, 0] = 1000 + np.arange(len(rows)) % 2
    packed = Arrays(rows=torch.from_numpy(rows), lengths=np.array([66_667, 66_666, 66_667]), obs_dim=1, action_dim=1)
    mean, std = packed.observation_statistics()
    assert mean.tolist() == [1000.5]
    assert std.tolist() == [0.5]


@pytest.mark.parametrize(("column", "step"), [("observations", 3), ("observations", 4), ("actions", 2), ("rewards", 0)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused_with_its_place(write, make, column, step, value):
    rng = np.random.default_rng(0)
    episodes = [make(BOX, ACTION, length=length, end="cut", rng=rng) for length in (2, 4, 3)]
    rows = getattr(episodes[1], column).copy()
    rows[step] = value
    broken = dataclasses.replace(episodes[1], **{column: rows})
    dataset = write([episodes[0], broken, episodes[2]], BOX, ACTION)
    with pytest.raises(SchemaError, match=rf"tests/small-v1.*episode 1, step {step};"):
        read_arrays(dataset)


@pytest.mark.parametrize("place", ["observations", "actions"])
def test_integers_that_float32_would_round_are_refused(write, make, place):
    rng = np.random.default_rng(0)
    counts = spaces.Box(-(2**40), 2**40, (2,), np.int64)
    pair = (counts, ACTION) if place == "observations" else (BOX, counts)
    episodes = [make(*pair, length=n, end="cut", rng=rng) for n in (2, 3)]
    values = getattr(episodes[1], place)
    values[1, 1] = -(2**24)
    exact = read_arrays(write(episodes, *pair))
    row = exact.rows[exact.first_rows[1] + 1, exact.columns[place]]
    assert row[1] == -(2**24)
    values[1, 1] -= 1
    with pytest.raises(SchemaError, match=rf"column {place}, episode 1, step 1: -16777217 .*select_columns"):
        read_arrays(write(episodes, *pair))


@pytest.mark.parametrize("column", ["terminations", "truncations"])
def test_an_end_inside_an_episode_is_refused_with_its_place(write, make, column):
    rng = np.random.default_rng(0)
    episodes = [make(BOX, ACTION, length=length, end="cut", rng=rng) for length in (2, 4, 3)]
    flags = {column: np.array([False, False, True, False])}
    episodes[1] = dataclasses.replace(episodes[1], **flags)
    dataset = write(episodes, BOX, ACTION, checked=False)
    with pytest.raises(SchemaError, match=rf"column {column} is true at step 2 of episode 1"):
        read_arrays(dataset)


def test_a_dataset_of_one_step_has_one_transition(write, make):
    rng = np.random.default_rng(0)
    episode = make(BOX, ACTION, length=1, end="termination", rng=rng)
    packed = read_arrays(write([episode], BOX, ACTION))
    assert packed.transitions.shape == (1, 3 + 2 + 3 + 3)
    assert isinstance(episode.observations, np.ndarray)
    np.testing.assert_array_equal(packed.transitions[0, -3:].numpy(), episode.observations[1])


def test_the_view_shares_the_memory_of_the_rows(mini):
    packed = read_arrays(mini)
    assert packed.transitions.data_ptr() == packed.rows.data_ptr()
    assert packed.rows.shape[0] == mini.total_steps + mini.total_episodes


def test_a_number_too_large_for_float32_is_refused_with_its_place(write, make):
    rng = np.random.default_rng(0)
    episode = make(BOX, ACTION, length=3, end="cut", rng=rng)
    rewards = episode.rewards.copy()
    rewards[1] = 1e300
    dataset = write([dataclasses.replace(episode, rewards=rewards)], BOX, ACTION)
    with pytest.raises(SchemaError, match="episode 0, step 1"):
        read_arrays(dataset)
