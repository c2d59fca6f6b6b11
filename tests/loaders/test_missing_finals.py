"""Episodes of foreign files whose final observation was never recorded: zeros are never given for it."""

import functools

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.errors import SchemaError
from orlog.loaders.arrays import read_arrays
from orlog.loaders.batch import SequenceBatch
from tests.episodes import record_episodes, whole_episode

BOX = spaces.Box(-9, 9, (2,), np.float32)


@pytest.fixture
def dataset():
    episodes = []
    for number in range(4):
        is_missing = number == 2
        observations = np.full((4, 2), number + 1, np.float32)
        observations[-1] = 0 if is_missing else number + 1
        episodes.append(
            whole_episode(
                observations,
                np.zeros((3, 2), np.float32),
                end="termination" if is_missing else "truncation",
                metadata={"final_observation_missing": is_missing},
            )
        )
    return record_episodes("lab/read-v1", episodes, BOX, BOX)


@pytest.mark.parametrize("where", ["ram", "mmap"])
@pytest.mark.parametrize(
    "kind", [orlog.goals, orlog.episodes, functools.partial(orlog.sequences, length=2, with_next=True)]
)
def test_what_would_give_them_is_refused_and_a_view_without_them_is_not(dataset, kind, where):
    for data in (dataset, orlog.load_arrays(dataset, where)):
        with pytest.raises(SchemaError, match=r"1 episode was never recorded \(episode 2 is"):
            kind(data, 8, seed=0)
    view = dataset.filter_episodes("final_observation_missing == 0")
    assert view.total_episodes == 3
    batch = kind(orlog.load_arrays(view, where), 8, seed=0).batch(0)
    is_padded = isinstance(batch, SequenceBatch)
    found = batch.next_observations[batch.mask] if is_padded else batch.observations
    assert (found != 0).all()


def test_transitions_take_them_since_nothing_bootstraps_from_behind_a_termination(dataset):
    assert read_arrays(dataset).missing_finals == (2,)
    batch = orlog.transitions(dataset, 64, seed=0).batch(0)
    is_zero = (batch.next_observations == 0).all(1)
    assert is_zero.any()
    assert (batch.terminations[is_zero] == 1).all()
