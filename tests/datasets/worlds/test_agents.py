import numpy as np
import pytest

import orlog
from orlog.datasets.worlds import agents
from orlog.datasets.worlds.agents import DATASETS
from orlog.datasets.worlds.environments import make_environment

pytest.importorskip("mpe2")

RECIPES = {name: entry.recipe for name, entry in DATASETS.items()}


@pytest.mark.parametrize("task", ["spread", "tag"])
def test_expert_teams_earn_more_than_medium_ones_and_these_more_than_random_ones(task):
    means = {}
    for level in ("random", "medium", "expert"):
        recipe = RECIPES[f"agents/{task}-{level}-v1"]
        episodes = list(recipe.episodes(0, 20))
        means[level] = np.mean([one.rewards.sum() for one in episodes])
        assert {len(one) for one in episodes} == {*recipe.lengths(agents.STEPS)}
        assert recipe.steps == agents.STEPS * recipe.count
    assert means["random"] < means["medium"] < means["expert"]


def test_an_episode_keeps_what_each_agent_got():
    recipe = RECIPES["agents/spread-medium-v1"]
    (alone,) = recipe.episodes(2, 3)
    assert all(alone.infos[f"agents/{agent}/acts"].all() for agent in alone.actions)
    own = [alone.infos[f"agents/{agent}/rewards"] for agent in alone.actions]
    np.testing.assert_allclose(np.sum(own, 0), alone.rewards)
    log_probs = [alone.infos[f"agents/{agent}/action_log_probs"] for agent in alone.actions]
    np.testing.assert_allclose(np.sum(log_probs, 0), alone.infos["action_log_probs"])
    chosen = np.exp(np.concatenate(log_probs))
    high, low = 0.6 + 0.4 / 5, 0.4 / 5
    assert np.isclose(chosen[:, None], [high, low]).any(1).all()
    assert abs(np.isclose(chosen, high).mean() - high) < 0.15


def test_the_expert_acts_as_its_controller_in_each_environment():
    recipe = RECIPES["agents/tag-expert-v1"]
    expert = recipe.expert()
    with make_environment(recipe.environment_id, {}) as env:
        seen = [env.reset(seed=seed)[0] for seed in (0, 1)]
        together = {agent: np.stack([one[agent] for one in seen]) for agent in seen[0]}
        actions = expert.policy(together)
        controller = agents.CONTROLLERS[recipe.expert_controller]
        for place, one in enumerate(seen):
            assert controller(one) == {agent: values[place] for agent, values in actions.items()}
            assert env.action_space.contains(controller(one))


def test_the_prey_runs_from_the_chaser_that_is_near():
    seen = np.zeros(14, np.float32)
    seen[8:14] = [0.1, 0.0, 0.9, 0.9, -0.9, -0.9]  # one is close to its right
    assert agents.flee(seen) == 1
    seen[2:4], seen[8] = [-0.99, 0.0], 0.5  # the edge is nearer
    assert agents.flee(seen) == 2


def test_datasets_are_of_the_family_of_agents():
    assert {*RECIPES} <= {one.name for one in orlog.list_datasets(family="agents")}
