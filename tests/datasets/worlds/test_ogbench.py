import sys

import numpy as np
import pytest

from orlog.datasets.worlds.ogbench import DATASETS, _is_hallway, goal_observation, numpy_seed
from orlog.errors import MissingExtraError
from tests.tool_environments import run_tool, tool_python

OGBENCH = ("ogbench==1.2.2",)
needs_ogbench = pytest.mark.skipif(sys.version_info >= (3, 13), reason="labmaze, which ogbench needs, has no wheels")

BUILD = """
import dataclasses, os, warnings
import orlog
from orlog.datasets.worlds import build
from orlog.datasets.worlds.ogbench import DATASETS

if __name__ == "__main__":
    warnings.simplefilter("error")
    build.EPISODES_PER_TASK = 1
    for name, entry in list(DATASETS.items()):
        small = dataclasses.replace(entry.recipe, steps=250, episode_steps=100)
        tiny = name.replace("-v1", "-tiny-v1")
        DATASETS[tiny] = dataclasses.replace(entry, recipe=small)
        digests = set()
        for workers in (1, 2):
            os.environ["ORLOG_HOME"] = str(workers)
            build.build_dataset(tiny, workers=workers)
            dataset = orlog.load_dataset(tiny)
            digests.add(dataset.digest)
        assert len(digests) == 1, digests
        assert dataset.episode_lengths.tolist() == [100, 100, 50]
        assert dataset.environment.versions["ogbench"] == "1.2.2"
        goals = dataset.column("observations/desired_goal")
        assert goals.shape == dataset.column("observations/achieved_goal").shape
        (again,) = small.episodes(1, 2)
        assert again.actions.tobytes() == dataset[1].actions.tobytes()
"""


def test_without_ogbench_the_error_names_the_extra(monkeypatch):
    class NotInstalled:
        @staticmethod
        def find_spec(name, *_):
            if name == "ogbench":
                raise ModuleNotFoundError(name=name)

    monkeypatch.delitem(sys.modules, "ogbench", raising=False)
    monkeypatch.setattr(sys, "meta_path", [NotInstalled, *sys.meta_path])
    for entry in DATASETS.values():
        with pytest.raises(MissingExtraError, match=r'pip install "orlog\[ogbench\]"'):
            next(entry.recipe.episodes(0, 1))


def test_a_hallway_leads_straight_on_between_walls():
    walls = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 1, 0, 1, 1], [1, 1, 0, 1, 1]])
    assert not _is_hallway(walls, 1, 1)  # an end
    assert not _is_hallway(walls, 1, 2)  # a crossing
    assert _is_hallway(walls, 2, 2)


def test_numpys_global_generator_is_as_it_was_before():
    np.random.seed(5)  # noqa: NPY002
    with numpy_seed(3):
        inside = np.random.rand()  # noqa: NPY002
    with numpy_seed(3):
        assert np.random.rand() == inside  # noqa: NPY002
    after = np.random.rand()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    assert np.random.rand() == after  # noqa: NPY002


def test_observations_have_the_goal_beside_what_is_achieved():
    found = goal_observation(np.arange(4.0), slice(1, 3), np.array([7.0, 8.0]))
    assert {name: values.tolist() for name, values in found.items()} == {
        "achieved_goal": [1, 2],
        "desired_goal": [7, 8],
        "observation": [0, 1, 2, 3],
    }
    assert all(values.dtype == np.float32 for values in found.values())


@needs_ogbench
@pytest.mark.slow
@pytest.mark.thorough
def test_any_number_of_processes_gives_the_same_bytes(tmp_path):
    run_tool(tool_python(*OGBENCH), BUILD, folder=tmp_path)


@needs_ogbench
@pytest.mark.slow
@pytest.mark.thorough
def test_seeds_decide_tasks_and_episodes_and_the_oracle_leads_to_all_goals(tmp_path):
    code = """
    import os, warnings
    import numpy as np
    from orlog.datasets.worlds.ogbench import DATASETS
    from orlog.datasets.worlds.environments import make_environment

    def play(env, seed, choose, most=1000):
        observation, info = env.reset(seed=seed)
        seen, success, steps = [observation], False, 0
        while not success and steps < most:
            observation, reward, terminated, _, told = env.step(choose(env, observation))
            success, steps = told["success"], steps + 1
            assert success == terminated == (reward == 1.0)
            seen.append(observation)
        return info["task_id"], success, [
            {name: values.tolist() for name, values in one.items()} for one in seen
        ]

    def towards_goal(env, observation):
        inner = env.unwrapped.inner
        place, goal = observation["observation"], observation["desired_goal"]
        # The oracle goes to the middle of the goal's cell, from where only noise may reach the goal.
        is_near = inner.xy_to_ij(place) == inner.xy_to_ij(goal)
        away = (goal if is_near else inner.get_oracle_subgoal(place, goal)[0]) - place
        return (away / (np.linalg.norm(away) + 1e-6)).astype(np.float32)

    warnings.simplefilter("error")
    maze, cube = (one.recipe.environment_id for one in DATASETS.values())
    with make_environment(maze, {}) as env:
        played = [play(env, seed, towards_goal) for seed in range(5, 10)]
        assert [task for task, _, _ in played] == [1, 2, 3, 4, 5]
        assert all(success for _, success, _ in played)
        assert [play(env, seed, towards_goal) for seed in range(9, 4, -1)] == played[::-1]
    draw = np.random.default_rng(0)
    actions = draw.uniform(-1, 1, (30, 5)).astype(np.float32)
    with make_environment(cube, {}) as env:
        again = []
        for order in (range(5), reversed(range(5))):
            found = {}
            for seed in order:
                given = iter(actions)
                found[seed] = play(env, seed, lambda *_: next(given), most=30)
            again.append(found)
        assert again[0] == again[1]
        assert [found[0] for found in again[0].values()] == [1, 2, 3, 4, 5]
    """
    run_tool(tool_python(*OGBENCH), code, folder=tmp_path)
