"""The lines that a user tries first, as they are written, on small data under the same names."""

import sys

import gymnasium
import numpy as np
import pytest

import orlog
from orlog.algos.training.runs import read_run
from orlog.datasets.worlds.environments import make_environment
from tests.command_line import orlog as orlog_command
from tests.docs.test_d4rl import run, with_goal
from tests.docs.test_d4rl import upstream as upstream
from tests.episodes import record_episodes, whole_episode
from tests.first_lines import run_lines

FEW = ("--steps", "5", "--evaluations", "0")  # a million steps take hours
MY_METHOD = """
from orlog.algos.bc import BC


class MyMethod(BC):
    pass
"""


def maze(name, environment_id):
    """Record two short episodes of random actions in a maze."""
    with (
        make_environment(environment_id, {}) as env,
        orlog.DatasetWriter(name, version="2.0.0", environment=env) as writer,
    ):
        env.action_space.seed(0)
        for seed in range(2):
            seen = [env.reset(seed=seed)[0]]
            actions = [env.action_space.sample() for _ in range(20)]
            seen += [env.step(action)[0] for action in actions]
            writer.add_episode(
                whole_episode(
                    {key: np.stack([one[key] for one in seen]) for key in seen[0]},
                    np.stack(actions),
                    np.arange(20) % 2.0,
                    end="truncation",
                )
            )
    return orlog.load_dataset(name)


def breakout():
    """Write an episode of frames and choices."""
    rng = np.random.default_rng(0)
    record_episodes(
        "lab/breakout-v1",
        [
            whole_episode(
                rng.integers(0, 256, (41, 36, 36, 1), np.uint8),
                rng.integers(0, 4, 40),
                rng.integers(0, 2, 40).astype(np.float64),
            )
        ],
        gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8),
        gymnasium.spaces.Discrete(4),
    )


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.usefixtures("jobs_run_here")
def test_the_first_lines_work_as_they_are_written(upstream, tmp_path):
    maze("pointmaze/large-v1", "PointMaze_Large-v3")
    said = run("train", "fql", "pointmaze/large-v1", "--seeds", "0-3", "--device", "cpu", *FEW)
    assert said.count("finished") == 4
    folders = [tmp_path / f"runs/fql/pointmaze/large-v1/seed-{seed}" for seed in range(4)]
    assert [read_run(one).seed for one in folders] == [0, 1, 2, 3]

    name = "d4rl/antmaze-medium-play-v2"
    upstream.has(name, with_goal(name))
    run("download", name)
    said = run("train", "iql", name, *FEW)
    record = read_run(tmp_path / "runs/iql" / name / "seed-0")
    assert (record.preset, record.config["expectile"], record.reward_shift) == ("authors", 0.9, -1)
    assert "preset authors: " in said

    breakout()
    run("train", "cql", "lab/breakout-v1", *FEW)
    record = read_run(tmp_path / "runs/cql/lab/breakout-v1/seed-0")
    assert record.algorithm == "cql"
    assert "target_interval" in record.config  # only discrete CQL has it

    dataset = maze("pointmaze/umaze-v1", "PointMaze_UMaze-v3")
    (tmp_path / "my_method.py").write_text(MY_METHOD, "utf-8")
    run("train", "./my_method.py:MyMethod", "pointmaze/umaze-v1", *FEW)

    trained = orlog.train("iql", dataset, seed=0, settings={"expectile": 0.8}, steps=5)
    assert trained.record.config["expectile"] == 0.8
    policy = orlog.load_policy("runs/iql/pointmaze/umaze-v1/seed-0")
    with make_environment("PointMaze_UMaze-v3", {}) as env:
        assert env.action_space.contains(policy(env.reset(seed=0)[0]))
    result = orlog.evaluate(trained, episodes=2)
    assert len(result.returns) == 2
    assert result.successes is not None

    said = run("finetune", "runs/iql/pointmaze/umaze-v1/seed-0", *FEW)
    assert "fine-tuned IQL for 5 steps" in said


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.usefixtures("jobs_run_here")
def test_the_lines_that_the_wheel_is_tried_with_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORLOG_IMPORT", "")
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run_here(words):
        ended = orlog_command(*words, cwd=tmp_path)
        return ended.returncode, ended.stdout + ended.stderr

    run_lines(run_here, tmp_path)
