import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog import goals, subgoals
from orlog.loaders.goals import GoalMixture, GoalSampler, SubgoalSampler
from tests.batches import columns
from tests.levels import scaled
from tests.loaders.test_goals import GOAL_SPACE, LENGTHS, MIXTURES, dataset_of, numbered, one_tensor, rows_of


@settings(deadline=None, max_examples=scaled(60))
@given(lengths=LENGTHS, actor_goals=MIXTURES, steps=st.integers(1, 9), seed=st.integers(0, 2**64))
def test_every_item_is_what_a_slow_loop_finds(lengths, actor_goals, steps, seed):
    arrays = numbered(lengths)
    above = GoalSampler(arrays, actor_goals=actor_goals)
    sampler = SubgoalSampler(above, steps=steps)
    uniform = np.random.default_rng(seed).random((64, sampler.draws))
    chosen = sampler.choose(uniform)
    batch = sampler.gather(chosen)
    assert torch.equal(chosen[:, :3], above.choose(uniform))
    last_of = {}
    first = 0
    for length in lengths:
        last_of.update(dict.fromkeys(range(first, first + length), first + length - 1))
        first += length + 1
    not_random = actor_goals.current + actor_goals.trajectory + actor_goals.final
    for item in range(64):
        row, goal = rows_of(batch.observations)[item], rows_of(batch.actor_goals)[item]
        low = row
        while low < last_of[row] and low < row + steps:
            low += 1
        subgoal = row
        if uniform[item, 2] < not_random and not np.isclose(uniform[item, 2], not_random):
            while subgoal < goal and subgoal < row + steps:
                subgoal += 1
        else:
            subgoal = low
        assert rows_of(batch.low_goals)[item] == low
        assert rows_of(batch.subgoals)[item] == subgoal
        assert rows_of(batch.subgoal_observations)[item] == subgoal


def test_a_random_goal_ahead_in_the_same_episode_does_not_shorten_the_way():
    """OGBench's `HGCDataset` cuts the target off at the goal for later goals only."""
    sampler = SubgoalSampler(GoalSampler(numbered([9]), actor_goals=GoalMixture(random=1)), steps=4)
    chosen = sampler.choose(np.array([[0.12, 0.0, 0.25]]))
    assert chosen.tolist() == [[1, 1, 2, 5, 5]]
    later = GoalSampler(numbered([9]), actor_goals=GoalMixture(trajectory=1))
    chosen = SubgoalSampler(later, steps=4).choose(np.array([[0.12, 0.0, 0.1]]))
    assert chosen.tolist() == [[1, 1, 2, 5, 2]]


def test_batches_are_those_of_goals_and_start_anywhere():
    arrays = numbered([3, 1, 6])
    mixture = GoalMixture(trajectory=0.5, random=0.5)
    settled = {"seed": 3, "steps": 2, "actor_goals": mixture}
    whole = subgoals(arrays, 8, **settled)
    parts = [iter(subgoals(arrays, 8, start=2, rank=rank, ranks=2, **settled)) for rank in (0, 1)]
    for index, batch in enumerate(itertools.islice(subgoals(arrays, 8, start=2, **settled), 4), 2):
        first, second = (next(part) for part in parts)
        for name in columns(batch):
            tensor = getattr(batch, name)
            assert torch.equal(tensor, getattr(whole.batch(index), name))
            halves = [getattr(first, name), getattr(second, name)]
            assert torch.equal(torch.cat(halves), tensor)
    assert whole.cursor.kind != subgoals(arrays, 8, **{**settled, "steps": 3}).cursor.kind
    assert whole.cursor.kind != goals(arrays, 8, seed=3, actor_goals=mixture).cursor.kind


def test_a_subgoal_is_read_in_both_forms(write, make):
    dataset = dataset_of(write, make, GOAL_SPACE, [4, 2])
    batch = orlog.subgoals(dataset, 32, seed=5, steps=2, goal_key="achieved_goal").batch(0)
    states = one_tensor(batch.subgoal_observations)
    assert torch.equal(one_tensor(batch.subgoals), states[:, :2])
    whole = orlog.subgoals(dataset, 32, seed=5, steps=2).batch(0)
    assert torch.equal(one_tensor(whole.subgoals), states)
    assert torch.equal(one_tensor(batch.low_goals), one_tensor(whole.low_goals)[:, :2])


def test_steps_must_be_a_positive_integer():
    with pytest.raises(ValueError, match="steps must be >= 1, found 0"):
        subgoals(numbered([3]), 8, seed=0, steps=0)
    with pytest.raises(TypeError, match="steps must be an integer"):
        subgoals(numbered([3]), 8, seed=0, steps=2.0)  # the point
    assert len(subgoals(numbered([3]), 8, seed=0, steps=1).batch(0).actions) == 8
