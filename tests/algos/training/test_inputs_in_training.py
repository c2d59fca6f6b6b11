"""Runs on frames, dicts and integers, from the command line to scores, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.algos.bc import BC
from orlog.algos.training.metrics import read_metrics
from orlog.algos.training.runs import ONLINE_FILE
from orlog.errors import SchemaError, StoppedError
from tests import command_line
from tests.episodes import whole_episode
from tests.training import train_run

SIZE = 12
FRAMES = spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)
PLACE = spaces.Box(0, SIZE, (2,), np.float32)
PUSH = spaces.Box(-1, 1, (1,), np.float32)
SMALL_DT = ["--set", "width=8", "--set", "length=3", "--set", "encoder=impala"]
SMALL = ["--set", "hidden=[16]", "--set", "batch_size=32", "--set", "encoder=impala"]


class Dot(gymnasium.Env[Any, Any]):
    """A dot starts left or right of the middle; each step into the middle's direction earns 1."""

    def __init__(self, *, continuous, mixed=False, goal=""):
        self.action_space = PUSH if continuous else spaces.Discrete(2, start=1)
        self.observation_space = FRAMES
        self._mixed = mixed
        if mixed:
            self.observation_space = spaces.Dict(
                count=spaces.Discrete(5), eye=FRAMES, speed=spaces.Box(-1, 1, (2,), np.float32)
            )
        self._goal = goal
        if goal:
            space = FRAMES if goal == "frame" else PLACE
            self.observation_space = spaces.Dict(achieved_goal=space, desired_goal=space, observation=FRAMES)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self._place = int(self.np_random.choice([2, 9]))
        self._steps = 0
        return self._seen(), {}

    def step(self, action):
        goes_right = action == 2 if isinstance(self.action_space, spaces.Discrete) else action[0] > 0
        reward = float(bool(goes_right) == (self._place < SIZE / 2))
        self._steps += 1
        return self._seen(), reward, self._steps == 4, False, {}

    def _seen(self):
        frame = np.zeros(FRAMES.shape, np.uint8)
        frame[4:8, self._place - 1 : self._place + 2] = 255
        if self._goal:
            goal = frame if self._goal == "frame" else np.array([self._place, 0], np.float32)
            return {"achieved_goal": goal, "desired_goal": goal, "observation": frame}
        if not self._mixed:
            return frame
        return {"count": np.int64(self._steps), "eye": frame, "speed": np.zeros(2, np.float32)}


ENVIRONMENTS = {
    "orlog-tests/Dot-v0": {"continuous": False},
    "orlog-tests/PushedDot-v0": {"continuous": True},
    "orlog-tests/MixedDot-v0": {"continuous": True, "mixed": True},
    "orlog-tests/PlaceDot-v0": {"continuous": True, "goal": "place"},
    "orlog-tests/FrameDot-v0": {"continuous": True, "goal": "frame"},
}


def register():
    """Register the environments in this process."""
    for name, arguments in ENVIRONMENTS.items():
        gymnasium.register(name, entry_point=lambda **one: Dot(**one), kwargs=arguments, max_episode_steps=10)


@pytest.fixture(scope="module", autouse=True)
def registered():
    """Register the environments while these tests run."""
    register()
    yield
    for name in ENVIRONMENTS:
        del gymnasium.registry[name]


def record(environment, name, *, paid=True):
    """Return 60 recorded episodes of random actions."""
    with gymnasium.make(environment) as env:
        env.action_space.seed(0)
        with orlog.DatasetWriter(name, environment=env) as writer:
            for episode in range(60):
                observation, _ = env.reset(seed=episode)
                rows, actions, rewards = [observation], [], []
                for _ in range(4):
                    actions.append(env.action_space.sample())
                    observation, reward, *_ = env.step(actions[-1])
                    rows.append(observation)
                    rewards.append(reward)
                writer.add_episode(
                    whole_episode(
                        {key: np.stack([row[key] for row in rows]) for key in rows[0]}
                        if isinstance(rows[0], dict)
                        else np.stack(rows),
                        np.stack(actions),
                        paid * np.array(rewards, np.float64),
                    )
                )
    return orlog.load_dataset(name)


def scored(out, name, dataset, *settings, steps=120):
    """Return the mean return after training and evaluating on the command line."""
    ended = command_line.orlog(
        *("train", name, dataset, "--out", str(out), "--steps", str(steps)),
        *("--evaluations", "1", *(SMALL_DT if name == "dt" else SMALL), *settings),
    )
    assert ended.returncode == 0, ended.stderr
    ended = command_line.orlog("evaluate", str(out), "--episodes", "20", "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)["mean_return"]


FAST = {
    "bc": [],
    "cql": ["conservative_weight=0.1", "target_interval=10", "learning_rate=0.001", "discount=0.5"],
    "iql": ["target_rate=0.1", "inverse_temperature=10", "learning_rate=0.003", "discount=0.5"],
}


RARELY = [pytest.mark.thorough, pytest.mark.slow]


def seldom(*cases):
    """Return cases that `make test-all` alone tests."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=RARELY) for case in cases]


@pytest.mark.thorough
@pytest.mark.slow
def test_discrete_values_are_learned_from_frames(tmp_path):
    record("orlog-tests/Dot-v0", "lab/dot-v1")
    returns = {
        name: scored(tmp_path / name, name, "lab/dot-v1", *(word for one in settings for word in ("--set", one)))
        for name, settings in FAST.items()
    }
    assert returns["cql"] == returns["iql"] == 4 > returns["bc"]


@pytest.mark.parametrize(
    "name", ["bc", "fql", "iql", *seldom("awac", "calql", "cql", "dt", "edac", "ifql", "qcfql", "rebrac", "td3bc")]
)
def test_continuous_actions_are_learned_from_frames_and_mixtures(name, tmp_path):
    for environment, dataset in (("PushedDot", "lab/pushed-v1"), ("MixedDot", "lab/mixed-v1")):
        record(f"orlog-tests/{environment}-v0", dataset)
        settings = ["random_shift=1", *(["chunk_length=2"] if name == "qcfql" else [])]
        words = [word for one in settings for word in ("--set", one)]
        found = scored(tmp_path / environment, name, dataset, *words, steps=4)
        assert 0 <= found <= 4


@pytest.mark.parametrize("name", ["gcivl", *seldom("crl", "gcbc", "gciql", "hiql", "qrl")])
def test_goals_are_reached_for_from_frames(name, tmp_path):
    for environment in ("PlaceDot", "FrameDot"):
        record(f"orlog-tests/{environment}-v0", f"lab/{environment.lower()}-v1", paid=False)
        found = scored(tmp_path / environment, name, f"lab/{environment.lower()}-v1", steps=2)
        assert 0 <= found <= 4


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("bc", "Dot"),
        ("cql", "Dot"),
        ("iql", "Dot"),
        ("fql", "PushedDot"),
        *seldom(("hiql", "FrameDot"), ("rebrac", "PushedDot")),
    ],
)
def test_a_run_on_frames_that_was_stopped_and_resumed_equals_one_that_was_not(name, environment, tmp_path):
    dataset = record(f"orlog-tests/{environment}-v0", "lab/dot-v1")
    settings = {"hidden": [8], "batch_size": 8, "encoder": "impala", "random_shift": 2}

    def run(folder, **more):
        train_run(name, dataset, folder, seed=1, steps=6, settings=settings, evaluations=0, **more)

    run(tmp_path / "whole")
    calls = iter([False] * 2 + [True] * 9)
    with pytest.raises(StoppedError):
        run(tmp_path / "cut", stop=lambda: next(calls))
    run(tmp_path / "cut", resume=True)
    state = "checkpoint.safetensors"
    assert (tmp_path / "cut" / state).read_bytes() == (tmp_path / "whole" / state).read_bytes()
    assert len(read_metrics(tmp_path / "cut")) == len(read_metrics(tmp_path / "whole"))


@pytest.mark.parametrize("name", ["iql", *seldom("awac", "calql", "cql", "rlpd", "td3bc")])
def test_steps_with_frames_are_taken_and_kept_across_a_stop(name, tmp_path):
    dataset = record("orlog-tests/MixedDot-v0", "lab/mixed-v1")
    settings = {"hidden": [8], "batch_size": 8, "encoder": "impala", "random_shift": 1}
    if name == "rlpd":
        settings |= {"critics": 3, "updates": 2, "random_steps": 6}
    options = {"settings": settings, "evaluations": 0}

    def run(folder, **more):
        if name == "rlpd":
            train_run(name, dataset, folder, seed=1, steps=14, **options, **more)
        else:
            orlog.finetune(tmp_path / "offline", out=folder, steps=20, evaluations=0, **more)

    if name != "rlpd":
        train_run(name, dataset, tmp_path / "offline", seed=1, steps=2, **options)
    run(tmp_path / "whole")
    calls = iter([False] * 5 + [True] * 30)
    with pytest.raises(StoppedError):
        run(tmp_path / "cut", stop=lambda: next(calls))
    run(tmp_path / "cut", resume=True)
    for file in ("checkpoint.safetensors", ONLINE_FILE):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    steps = (tmp_path / "whole" / ONLINE_FILE).read_bytes()
    # 2 numbers of observations, an action, 3 of rewards and ends; a frame and an integer, all twice
    assert len(steps) == 20 * (4 * (2 * 2 + 1 + 3) + 2 * (SIZE * SIZE + 8))


def test_frames_too_small_for_an_encoder_are_refused_before_anything_is_written(tmp_path):
    dataset = record("orlog-tests/Dot-v0", "lab/dot-v1")
    with pytest.raises(SchemaError, match="lab/dot-v1: observations holds frames of 12 x 12 pixels, which are too"):
        train_run("cql", dataset, tmp_path / "run", seed=0, steps=1, evaluations=0)
    assert not (tmp_path / "run").exists()


def test_observations_that_an_algorithm_does_not_take_are_refused_with_those_that_do(tmp_path):
    class Vectors(BC):
        OBSERVATIONS: Any = ("vector",)

    dataset = record("orlog-tests/PushedDot-v0", "lab/pushed-v1")
    words = (
        "takes observations that are vectors of numbers (a Box, or a Dict or Tuple of such), found "
        f"{FRAMES}; choose one of: awac, bc, calql, cdt, chunked_flow, cpq, cql, cql_lagrangian, crl, dt, edac, fql, gcbc, gciql, gcivl, hiql, "
        "ifql, iql, percent_bc, qcfql, qrl, rebrac, rlpd, td3bc."
    )
    with pytest.raises(SchemaError, match=re.escape(words)):
        train_run(Vectors, dataset, tmp_path, seed=0, steps=1, evaluations=0)


@pytest.mark.parametrize("name", ["iql", "cql"])
def test_data_without_rewards_are_refused_to_all_but_cloning(name, tmp_path):
    record("orlog-tests/Dot-v0", "lab/unpaid-v1", paid=False)
    ended = command_line.orlog(*("train", name, "lab/unpaid-v1", "--out", str(tmp_path / name), *SMALL, "--steps", "1"))
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert f"lab/unpaid-v1: every reward is 0, and {name} learns from rewards; imitate" in ended.stderr
    assert not (tmp_path / name).exists()
    assert 0 <= scored(tmp_path / "bc", "bc", "lab/unpaid-v1", steps=1) <= 4
