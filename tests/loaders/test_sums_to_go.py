"""Sums of infos, and windows that have them, against slow loops over the episodes."""

import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog import sequences
from orlog.errors import NotFoundError, SchemaError
from orlog.loaders.arrays import Arrays, Leaf, add_infos
from orlog.loaders.best_episodes import best_transitions
from orlog.loaders.sequences import windows_with_sums
from orlog.loaders.statistics import info_numbers, info_sums
from orlog.loaders.weights import step_probabilities
from tests.levels import scaled

BOX = spaces.Box(-1, 1, (1,), np.float32)


def made(lengths, seed):
    """Return arrays with an info `cost`, and its values by episode."""
    rng = np.random.default_rng(seed)
    rows, told, costs = [], [], []
    for length in lengths:
        row = rng.normal(size=(length + 1, 5)).astype(np.float32)
        row[-1, 1:] = 0
        cost = rng.integers(0, 3, length).astype(np.float32)
        rows.append(row)
        told.append(np.append(cost, 0))
        costs.append(cost)
    values = torch.from_numpy(np.concatenate(told).astype(np.float32)[:, None])
    leaves = {"cost": Leaf(first=0, shape=())}
    counts = np.array(lengths)
    infos = Arrays(rows=values, lengths=counts, obs_dim=1, action_dim=0, ends=0, observation_leaves=leaves)
    matrix = torch.from_numpy(np.concatenate(rows))
    arrays = Arrays(rows=matrix, lengths=counts, obs_dim=1, action_dim=1, name="lab/x-v1")
    return add_infos(arrays, infos), costs


@settings(max_examples=scaled(60))
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 99), st.integers(1, 4))
def test_windows_have_what_is_still_to_come(lengths, seed, length):
    arrays, costs = made(lengths, seed)
    length = min(length, max(lengths))
    stream = windows_with_sums(arrays, 16, length=length, seed=seed, infos=("cost",), to_go=("cost",))
    plain = sequences(arrays, 16, length=length, seed=seed)
    firsts = {float(arrays.rows[row, 0]): episode for episode, row in enumerate(arrays.first_rows)}
    assert len(firsts) == len(lengths)
    rows = {float(one): row for row, one in enumerate(arrays.rows[:, 0])}
    for batch, same in itertools.islice(zip(stream, plain, strict=False), 3):
        seen, others = batch.observations, same.observations
        assert isinstance(seen, torch.Tensor)
        assert isinstance(others, torch.Tensor)
        assert torch.equal(seen, others)  # the stream of orlog.sequences
        for item in range(16):
            row = rows[float(seen[item, 0, 0])]
            episode = int(np.searchsorted(arrays.final_rows, row))
            begin = row - int(arrays.first_rows[episode])
            for slot in range(length):
                step = begin + slot
                is_step = step < lengths[episode]
                cost = costs[episode][step] if is_step else 0
                to_go = costs[episode][step:].sum() if is_step else 0
                assert batch.infos["cost"][item, slot] == cost
                assert batch.infos["cost_to_go"][item, slot] == to_go


def test_the_cheaper_an_episode_the_more_often_it_is_drawn():
    arrays, costs = made([4, 2, 5, 3], 1)
    sums = np.array([one.sum() for one in costs])
    np.testing.assert_array_equal(info_sums(arrays, "cost"), sums)
    limit = float(np.sort(sums)[-1])
    stream = windows_with_sums(arrays, 4000, length=1, seed=0, infos=("cost",), cheaper=("cost", limit))
    seen = next(iter(stream)).observations
    assert isinstance(seen, torch.Tensor)
    firsts = seen[:, 0, 0].numpy()
    rows = np.array([np.flatnonzero(arrays.rows[:, 0].numpy() == one)[0] for one in firsts])
    drawn = np.bincount(np.searchsorted(arrays.final_rows, rows), minlength=4) / 4000
    left = np.maximum(limit - sums, 0)
    np.testing.assert_allclose(drawn, left / left.sum(), atol=0.03)
    assert (drawn[left == 0] == 0).all()
    with pytest.raises(ValueError, match="no episode has a cost below 0; the least is"):
        windows_with_sums(arrays, length=2, seed=0, infos=("cost",), cheaper=("cost", 0.0))


def test_the_best_episodes_within_a_sum():
    arrays, costs = made([4, 2, 5, 3], 1)
    sums = [float(one.sum()) for one in costs]
    limit = sorted(sums)[1]
    stream = best_transitions(arrays, 8, percent=100, within=("cost", limit), seed=0)
    chances = step_probabilities(stream.arrays)
    allowed = np.repeat([one <= limit for one in sums], [4, 2, 5, 3])
    assert ((chances > 0) == allowed).all()
    with pytest.raises(ValueError, match=r"no episode has a cost of at most -1; the least is"):
        best_transitions(arrays, 8, within=("cost", -1.0), seed=0)


def record(name, cost, roles=None, info="cost"):
    with orlog.DatasetWriter(name, observation_space=BOX, action_space=BOX, roles=roles or {}) as writer:
        for length in (3, 2):
            writer.add_steps(
                observations=np.zeros((length + 1, 1), np.float32),
                actions=np.zeros((length, 1), np.float32),
                rewards=np.ones(length),
                terminations=np.arange(length) == length - 1,
                truncations=np.zeros(length, bool),
                infos={info: [cost] * length if isinstance(cost, str) else np.array([cost] * length)},
            )
            writer.end_episode()
    return orlog.load_dataset(name)


def test_a_column_is_found_by_its_role(home):
    del home
    data = record("lab/heat-v1", 2, {"infos/heat": "cost"}, "heat")
    batch = next(iter(orlog.transitions(data, 4, seed=0, infos=("cost", "heat"))))
    assert batch.infos["cost"].tolist() == batch.infos["heat"].tolist() == [2] * 4
    floats = record("lab/warm-v1", 0.5, {"infos/warm": "cost"}, "warm")
    batch = next(iter(orlog.transitions(floats, 4, seed=0, infos=("warm", "cost"))))
    assert batch.infos["cost"].tolist() == batch.infos["warm"].tolist() == [0.5] * 4
    np.testing.assert_array_equal(info_sums(data, "cost"), [6, 4])
    np.testing.assert_array_equal(info_sums(floats, "cost"), [1.5, 1])
    streamed = next(iter(orlog.transitions(floats, 4, seed=0, infos=("cost",), stream=True)))
    assert streamed.infos["cost"].tolist() == [0.5] * 4


def test_infos_that_are_no_numbers_are_refused(home):
    del home
    two = record("lab/two-v1", [1.0, 2.0])
    with pytest.raises(SchemaError, match=r"lab/two-v1: the info cost has values of shape \[2\]"):
        info_numbers(two, "cost")
    text = record("lab/text-v1", "much")
    with pytest.raises(SchemaError, match="the info cost has texts"):
        info_numbers(text, "cost")
    plain = record("lab/plain-v1", 1.0, info="other")
    with pytest.raises(NotFoundError, match=r"no info 'cost', and no column with the role cost .*roles="):
        info_numbers(plain, "cost")
