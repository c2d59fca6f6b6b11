import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import orlog
from orlog.loaders.goals import GoalMixture, GoalSampler, MidpointSampler, SubgoalSampler, states_and_goal_chunks
from tests.levels import scaled
from tests.loaders.test_goals import GOAL_SPACE, LENGTHS, dataset_of, numbered, one_tensor, rows_of


def test_a_random_goal_ahead_in_the_same_episode_does_not_shorten_the_way():
    """OGBench's `HGCDataset` cuts the target off at the goal for later goals only."""
    sampler = SubgoalSampler(GoalSampler(numbered([9]), actor_goals=GoalMixture(random=1)), steps=4)
    chosen = sampler.choose(np.array([[0.12, 0.0, 0.25]]))
    assert chosen.tolist() == [[1, 1, 2, 5, 5]]
    later = GoalSampler(numbered([9]), actor_goals=GoalMixture(trajectory=1))
    chosen = SubgoalSampler(later, steps=4).choose(np.array([[0.12, 0.0, 0.1]]))
    assert chosen.tolist() == [[1, 1, 2, 5, 2]]


def test_a_subgoal_is_read_in_both_forms(write, make):
    dataset = dataset_of(write, make, GOAL_SPACE, [4, 2])
    batch = orlog.subgoals(dataset, 32, seed=5, steps=2, goal_key="achieved_goal").batch(0)
    states = one_tensor(batch.subgoal_observations)
    assert torch.equal(one_tensor(batch.subgoals), states[:, :2])
    whole = orlog.subgoals(dataset, 32, seed=5, steps=2).batch(0)
    assert torch.equal(one_tensor(whole.subgoals), states)
    assert torch.equal(one_tensor(batch.low_goals), one_tensor(whole.low_goals)[:, :2])


@settings(deadline=None, max_examples=scaled(60))
@given(lengths=LENGTHS, geometric=st.booleans(), final=st.sampled_from([0, 0.5, 1]), seed=st.integers(0, 2**64))
def test_a_midpoint_is_a_step_between_the_state_and_a_later_goal(lengths, geometric, final, seed):
    value_goals = GoalMixture(trajectory=1 - final, final=final, geometric=geometric)
    chosen = {"value_goals": value_goals, "final_goals": True}
    arrays = numbered(lengths)
    batch = orlog.goals(arrays, 64, seed=seed, midpoints=True, **chosen).batch(0)
    ends = np.repeat(arrays.final_rows, np.array(lengths) + 1)
    fields = (batch.observations, batch.midpoint_observations, batch.value_goals)
    for item, (row, middle, goal) in enumerate(zip(*map(rows_of, fields), strict=True)):
        assert row <= middle < goal <= ends[row]
        assert (batch.midpoint_offsets[item], batch.value_offsets[item]) == (middle - row, goal - row)
        assert batch.midpoint_actions[item] * 4 == middle
    assert torch.equal(one_tensor(batch.value_goal_observations), one_tensor(batch.value_goals))


def test_midpoints_are_drawn_after_all_else_and_each_is_as_likely():
    above = GoalSampler(numbered([5, 1, 9]), value_goals=GoalMixture(trajectory=1), final_goals=True)
    sampler = MidpointSampler(above)
    uniform = np.random.default_rng(6).random((100_000, sampler.draws))
    chosen = sampler.choose(uniform)
    assert torch.equal(chosen[:, :3], above.choose(uniform[:, :3]))
    assert sampler.kind == f"midpoints 1 {above.kind}"
    rows, goals, middles = chosen[:, 0].numpy(), chosen[:, 1].numpy(), chosen[:, 3].numpy()
    for length in range(2, 10):
        counts = np.bincount((middles - rows)[goals - rows == length], minlength=length)
        assert len(counts) == length
        assert stats.chisquare(counts).pvalue > 0.001
    largest = np.nextafter(1, 0)
    for length in range(1, 2000, 37):
        far = MidpointSampler(GoalSampler(numbered([length]), value_goals=GoalMixture(final=1), final_goals=True))
        assert far.choose(np.array([[0, 0, 0, largest]]))[0, [0, 1, 3]].tolist() == [0, length, length - 1]


@settings(deadline=None, max_examples=scaled(60))
@given(lengths=LENGTHS, length=st.integers(1, 6), mixture=st.sampled_from([(1, 0, 0), (0.2, 0.5, 0.3), (0, 0, 1)]))
def test_goal_chunks_are_those_of_a_slow_loop(lengths, length, mixture):
    """Goals may be the item's state, on the way, behind it and in other episodes."""
    arrays = numbered(lengths)
    making = {"seed": 3, "length": length, "value_goals": mixture, "discount": 0.9}
    if max(lengths) <= length:
        with pytest.raises(ValueError, match=f"horizon of {length} .* has {max(lengths)}; choose at most"):
            states_and_goal_chunks(arrays, 64, **making)
        return
    batch = next(iter(states_and_goal_chunks(arrays, 64, **making)))
    lasts = np.repeat(arrays.final_rows, np.array(lengths) + 1) - 1
    fields = (batch.observations, batch.next_observations, batch.value_goals)
    for item, (row, following, goal) in enumerate(zip(*map(rows_of, fields), strict=True)):
        last, steps = lasts[row], 0
        while steps < length and row + steps not in (last, goal):
            steps += 1
        is_reached = row + steps == goal and steps < length
        assert following == row + steps
        assert batch.masks[item] == 1 - is_reached
        assert batch.rewards[item] == pytest.approx(0.9**steps * is_reached)
        assert batch.discounts[item] == pytest.approx(0.9**steps)
        slots = [row + slot if row + slot < last else 0 for slot in range(length)]
        assert (batch.actions[item, :, 0] * 4).tolist() == slots
        assert batch.valid[item].tolist() == [row + slot < last for slot in range(length)]
