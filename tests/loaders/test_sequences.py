import dataclasses

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy import stats

from orlog import Episode, combine_datasets, sequences
from orlog.loaders.arrays import Arrays, read_arrays
from orlog.loaders.sequences import SequenceSampler
from orlog.loaders.statistics import returns_to_go
from tests.loaders.test_frames import every_step

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(-1, 1, (2,), np.float32)
PADDINGS = ("right", "left")


def random_episode(length, rng):
    ends = np.zeros((2, length), np.bool_)
    ends[rng.integers(2), -1] = rng.integers(2)
    return Episode(
        observations=rng.normal(size=(length + 1, 3)).astype(np.float32),
        actions=rng.normal(size=(length, 2)).astype(np.float32),
        rewards=rng.normal(size=length).astype(np.float32).astype(np.float64),
        terminations=ends[0],
        truncations=ends[1],
        infos={},
        seed=None,
    )


def pack(episodes):
    """Return the matrix of flat episodes, row by row."""
    rows = []
    for episode in episodes:
        assert isinstance(episode.observations, np.ndarray)
        assert isinstance(episode.actions, np.ndarray)
        for step in range(len(episode)):
            ends = [episode.rewards[step], episode.terminations[step], episode.truncations[step]]
            rows.append([*episode.observations[step], *episode.actions[step], *ends])
        rows.append([*episode.observations[-1], *np.zeros(5)])
    return Arrays(
        rows=torch.tensor(np.array(rows, np.float32)),
        lengths=np.array([len(one) for one in episodes]),
        obs_dim=3,
        action_dim=2,
        digest="sha256:" + "0" * 64,
    )


def flatten(batch):
    """Return the columns of a batch, those of dicts as `column/key`."""
    found = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, dict):
            found |= {f"{field.name}/{key}": tensor for key, tensor in value.items()}
        elif "observations" in field.name:
            found |= {} if value is None else {f"{field.name}/": value}
        else:
            found[field.name] = value
    return found


def test_not_a_number_beside_a_window_does_not_leak_into_its_padding():
    rng = np.random.default_rng(0)
    arrays = pack([random_episode(steps, rng) for steps in (3, 3, 3)])
    arrays.rows[4:7] = torch.nan  # the second episode
    for padding in PADDINGS:
        sampler = SequenceSampler(arrays, 3, padding=padding, with_next=True)
        batch = sampler.gather(sampler.choose(every_step(arrays)))
        for name, values in flatten(batch).items():
            assert not values[[0, 1, 2, 6, 7, 8]].isnan().any(), name


def test_returns_to_go_are_summed_in_double_precision():
    rng = np.random.default_rng(5)
    rewards = rng.normal(100, 1, size=30_000).astype(np.float32)
    rows = torch.zeros(30_002 + 1, 5)
    rows[:30_000, 2] = torch.from_numpy(rewards)
    rows[30_001, 2] = 3
    arrays = Arrays(rows=rows, lengths=np.array([30_000, 1]), obs_dim=1, action_dim=1)
    exact = rewards[::-1].astype(np.float64).cumsum()[::-1].astype(np.float32)
    np.testing.assert_allclose(returns_to_go(arrays)[:30_000].numpy(), exact, rtol=2e-7)
    assert returns_to_go(arrays)[30_000:].tolist() == [0, 3, 0]


def test_every_step_is_drawn_as_often_as_any_other():
    rng = np.random.default_rng(0)
    structure = [1, 8, 3, 20, 2]
    arrays = pack([random_episode(steps, rng) for steps in structure])
    sampler = SequenceSampler(arrays, 4, padding="right")
    chosen = sampler.choose(rng.random((40_000, 1)))
    counts = np.bincount(chosen[:, 0].numpy(), minlength=len(arrays.rows))[arrays.step_rows()]
    assert counts.sum() == 40_000
    assert stats.chisquare(counts).pvalue > 0.001


def test_a_mixture_keeps_its_weights(write, make):
    rng = np.random.default_rng(6)
    small, large = (
        write([make(OBS, ACTION, length=n, end="cut", rng=rng) for n in lengths], OBS, ACTION)
        for lengths in ((2, 3), (9, 8, 7))
    )
    arrays = read_arrays(combine_datasets([small, large], weights=[0.7, 0.3]))
    sampler = SequenceSampler(arrays, 3)
    chosen = sampler.choose(rng.random((40_000, sampler.draws)))
    counts = np.bincount(chosen[:, 0].numpy(), minlength=len(arrays.rows))[arrays.step_rows()]
    expected = np.array([0.7 / 5] * 5 + [0.3 / 24] * 24) * 40_000
    assert stats.chisquare(counts, expected).pvalue > 0.001


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length": 0}, "length must be >= 1"),
        ({"discount": 1.1}, "discount in"),
        ({"discount": -0.1}, "discount in"),
        ({"discount": float("nan")}, "discount in"),
        ({"padding": "both"}, "'right' or 'left', found 'both'"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, message):
    arrays = pack([random_episode(3, np.random.default_rng(0))])
    chosen = {"length": 2, "seed": 0, **wrong}
    with pytest.raises(ValueError, match=message):
        sequences(arrays, 4, **chosen)


def test_a_state_of_another_length_or_padding_is_refused():
    arrays = pack([random_episode(5, np.random.default_rng(0))])
    state = sequences(arrays, 4, length=3, seed=0).state_dict()
    for other in (sequences(arrays, 4, length=2, seed=0), sequences(arrays, 4, length=3, seed=0, padding="left")):
        with pytest.raises(ValueError, match=r"kind is 'sequences 1 length=3 padding=right'"):
            other.load_state_dict(state)
