"""Counts of transitions are those of a slow loop, also in a weighted mixture."""

import collections
import itertools

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.errors import SchemaError
from orlog.loaders.counts import count_transitions, transition_counts
from orlog.loaders.weights import weighted
from tests.levels import scaled

EPISODES = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(2, 4), st.integers(0, 1)), min_size=1, max_size=6), st.booleans()),
    min_size=1,
    max_size=5,
)


def record(name, episodes):
    """Store episodes of (state, action) pairs, whose last state is 2."""
    with orlog.DatasetWriter(
        name, observation_space=spaces.Discrete(3, start=2), action_space=spaces.Discrete(2)
    ) as writer:
        for steps, ended in episodes:
            states, actions = zip(*steps, strict=True)
            last = np.arange(len(steps)) == len(steps) - 1
            writer.add_steps(
                observations=[*states, 2],
                actions=list(actions),
                rewards=[float(one + 10 * index) for index, one in enumerate(states)],
                terminations=last & ended,
                truncations=last & (not ended),
            )
            writer.end_episode()
    return orlog.load_dataset(name)


names = (f"lab/counted{number}-v1" for number in itertools.count())


@settings(max_examples=scaled(60))
@given(EPISODES)
def test_counts_are_those_of_a_slow_loop(episodes):
    arrays = orlog.load_arrays(record(next(names), episodes))
    counts = collections.Counter()
    rewards = collections.defaultdict(float)
    for steps, ended in episodes:
        states = [*(state for state, _ in steps), 2]
        for index, (state, action) in enumerate(steps):
            terminates = ended and index == len(steps) - 1
            key = (state, action, states[index + 1], int(terminates))
            counts[key] += 1
            rewards[key] += state + 10 * index
    found = count_transitions(arrays)
    columns = (found.observations, found.actions, found.next_observations, found.terminations)
    keys = [tuple(int(value) for value in row) for row in zip(*(one.tolist() for one in columns), strict=True)]
    assert keys == sorted(counts)
    assert found.counts.tolist() == [counts[key] for key in keys]
    np.testing.assert_allclose(found.rewards, [rewards[key] / counts[key] for key in keys], rtol=1e-6)


def test_weights_count_and_every_batch_is_the_same():
    arrays = orlog.load_arrays(record("lab/few-v1", [([(2, 0), (3, 1), (4, 0)], True)]))
    heavy = weighted(arrays, np.array([0.0, 1.0, 2.0]))
    found = count_transitions(heavy)
    assert found.observations.tolist() == [3, 4]
    np.testing.assert_allclose(found.counts, [1.0, 2.0], rtol=1e-6)
    stream = transition_counts(arrays, seed=3)
    first, second = itertools.islice(stream, 2)
    assert first.counts.tolist() == second.counts.tolist() == stream.batch(7).counts.tolist()


def test_states_that_are_not_numbered_are_refused():
    with orlog.DatasetWriter(
        "lab/box-v1", observation_space=spaces.Box(-1, 1, (2,)), action_space=spaces.Discrete(2)
    ) as writer:
        writer.add_steps(
            observations=np.zeros((2, 2), np.float32),
            actions=[0],
            rewards=[1.0],
            terminations=[True],
            truncations=[False],
        )
        writer.end_episode()
    with pytest.raises(SchemaError, match="lab/box-v1: transitions are counted where states and"):
        transition_counts("lab/box-v1")
    with pytest.raises(SchemaError, match=r"takes observations that are numbers of states \(a Dis"):
        orlog.train("value_iteration", "lab/box-v1", evaluations=0, steps=1)
