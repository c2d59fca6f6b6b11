import numpy as np
import torch

import orlog
from orlog.loaders.goals import GoalMixture, GoalSampler, SubgoalSampler
from tests.loaders.test_goals import GOAL_SPACE, dataset_of, numbered, one_tensor


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
