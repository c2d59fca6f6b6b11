import numpy as np
import pytest

import orlog
from orlog.datasets.worlds import agents, environments
from orlog.datasets.worlds import agents as worlds
from orlog.datasets.worlds.agents import DATASETS
from orlog.datasets.worlds.environments import check_installed, make_environment
from orlog.errors import MissingExtraError

pytest.importorskip("mpe2")

RECIPES = {name: entry.recipe for name, entry in DATASETS.items()}


@pytest.mark.parametrize("task", ["spread", "tag"])
def test_expert_teams_earn_more_than_medium_ones_and_these_more_than_random_ones(task):
    means = {}
    for level in ("random", "medium", "expert"):
        recipe = RECIPES[f"agents/{task}-{level}-v1"]
        episodes = list(recipe.episodes(0, 20))
        means[level] = np.mean([one.rewards.sum() for one in episodes])
        assert {len(one) for one in episodes} == {worlds_steps(recipe)}
    assert means["random"] < means["medium"] < means["expert"]


def worlds_steps(recipe):
    (steps,) = {*recipe.lengths(agents.STEPS)}
    assert recipe.steps == steps * recipe.count
    return steps


def test_an_episode_depends_on_seed_and_number_alone_and_keeps_what_each_agent_got():
    recipe = RECIPES["agents/spread-medium-v1"]
    several, (alone,) = list(recipe.episodes(0, 3)), recipe.episodes(2, 3)
    for agent, values in alone.observations.items():
        assert values.tobytes() == several[2].observations[agent].tobytes()
        assert alone.actions[agent].tolist() == several[2].actions[agent].tolist()
        assert alone.infos[f"agents/{agent}/acts"].all()
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
    assert worlds.flee(seen) == 1
    seen[2:4], seen[8] = [-0.99, 0.0], 0.5  # the edge is nearer
    assert worlds.flee(seen) == 2


def test_a_dataset_has_the_roles_of_agents_and_its_world_names_the_extra(monkeypatch):
    assert {"agents/spread-medium-v1"} <= {one.name for one in orlog.list_datasets(family="agents")}

    def missing(module):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(environments, "_import_quietly", missing)
    with pytest.raises(MissingExtraError, match=r'needs mpe2, .*pip install "orlog\[agents\]"'):
        check_installed("orlog/tag-v0")
