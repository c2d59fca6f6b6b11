"""Meta-World's tasks as one environment, and the demonstrations that are recorded in it."""

import dataclasses

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import orlog
from orlog.datasets.worlds.environments import environment_versions, make_environment
from orlog.datasets.worlds.tasks import DATASETS, STATE, instruction_of, scripted_actions, tasks_of
from orlog.normalize.metrics import words_of_tasks

env_dict = pytest.importorskip("metaworld.env_dict", reason="needs Meta-World (orlog[tasks])")
MT10, MT50 = (f"orlog/metaworld-{one}-v0" for one in ("mt10", "mt50"))


def recipe_of(name):
    return DATASETS[f"tasks/{name}-v1"].recipe


def test_episodes_take_turns_with_the_tasks_of_the_package():
    names = [*env_dict.MT10_V3]
    assert tasks_of("MT10") == names
    assert instruction_of("button-press-topdown-v3") == "button press topdown"
    with make_environment(MT10, {}) as env:
        observation, info = env.reset(seed=1_000_003)
        assert info == {"task": 3, "instruction": instruction_of(names[3])}
        assert observation.dtype == np.float32
        assert observation[STATE:].tolist() == [float(index == 3) for index in range(10)]
        assert np.any(observation[36:STATE])  # the goal is seen
        _, reward, terminated, truncated, told = env.step(env.action_space.sample())
        assert told == {**info, "success": False}
        assert (type(reward), terminated, truncated) == (float, False, False)
        assert env.reset()[1]["task"] == 4
        assert env.reset(seed=9)[1]["task"] == 9
        assert env.reset()[1]["task"] == 0
    assert environment_versions(MT10).keys() == {"gymnasium", "metaworld", "mujoco", "numpy"}


def test_an_episode_is_that_of_the_package_from_the_same_place():
    task = tasks_of("MT10").index("push-v3")
    with make_environment(MT10, {}) as env:
        observation, _ = env.reset(seed=40 + task)
        own = env_dict.ALL_V3_ENVIRONMENTS["push-v3"]()
        own._freeze_rand_vec, own._set_task_called, own._partially_observable = True, True, False
        own.__dict__.pop("sawyer_observation_space")
        inside = env.unwrapped
        own._last_rand_vec = inside._simulators[task]._last_rand_vec
        state, _ = own.reset()
        rng = np.random.default_rng(0)
        for _ in range(20):
            np.testing.assert_array_equal(observation[:STATE], state.astype(np.float32))
            action = rng.uniform(-1, 1, 4).astype(np.float32)
            observation, reward, *_ = env.step(action)
            state, expected, *_ = own.step(action)
            assert reward == expected
        own.close()


@pytest.mark.filterwarnings("ignore:.*Box observation space:UserWarning")
def test_the_checker_of_gymnasium_finds_nothing():
    with make_environment(MT10, {}) as env:
        check_env(env.unwrapped, skip_render_check=True)


def test_scripted_policies_reach_the_goal_and_know_the_task_by_the_observation():
    tasks = tasks_of("MT10")
    with make_environment(MT10, {}) as env:
        for seed in (4, 5):  # the drawer, opened and closed
            observation, _ = env.reset(seed=seed)
            reached = truncated = False
            while not reached and not truncated:
                (action,) = scripted_actions(observation[None], tasks)
                assert action.dtype == np.float32
                assert np.abs(action).max() <= 1
                observation, _, _, truncated, info = env.step(action)
                reached = info["success"]
            assert reached


def test_demonstrations_name_their_task():
    recipe = dataclasses.replace(recipe_of("mt10"), count=12)
    episodes = list(recipe.episodes(8, 12))
    assert [one.metadata["task"] for one in episodes] == [8, 9, 0, 1]
    assert [one.metadata["noise"] for one in episodes] == [0.1, 0.1, 0.2, 0.2]
    assert [one.metadata["instruction"] for one in episodes][2:] == ["reach", "push"]
    assert {len(one.rewards) for one in episodes} == {200}


def test_a_dataset_has_the_roles_and_is_scored_by_task(monkeypatch, tmp_path):
    entry = DATASETS["tasks/mt10-v1"]
    recipe = dataclasses.replace(recipe_of("mt10"), count=5)
    monkeypatch.setitem(DATASETS, "tasks/tiny-v1", dataclasses.replace(entry, recipe=recipe))
    dataset = orlog.load_dataset(orlog.build_dataset("tasks/tiny-v1"))
    assert dataset.roles == {
        "episodes/instruction": "task_words",
        "episodes/success": "success",
        "episodes/task": "task",
    }
    assert dataset.checked_environment().id == MT10
    run = orlog.train(
        "bc",
        dataset.filter_episodes("task != 1"),
        steps=2,
        evaluations=0,
        settings={"hidden": (4,)},
        out=tmp_path / "run",
    )
    names = [one.name for one in orlog.evaluate(run, episodes=3).numbers]
    assert names == [
        "success rate, mean over tasks",
        "success rate in reach",
        "success rate in pick place",
        "success rate in tasks that were left out",
        "success rate",
    ]


@pytest.mark.parametrize("name", ["mt10", "mt50"])
def test_the_words_that_ship_are_those_of_the_package(name):
    words = words_of_tasks(f"tasks/{name}-v1")
    assert [*words.values()] == [instruction_of(one) for one in tasks_of(name.upper())]


@pytest.mark.thorough
def test_fifty_tasks_are_played_by_their_scripts():
    recipe = recipe_of("mt50")
    episodes = list(recipe.episodes(0, 50))
    assert [one.metadata["task"] for one in episodes] == [*range(50)]
    assert np.mean([one.metadata["success"] for one in episodes]) > 0.8
