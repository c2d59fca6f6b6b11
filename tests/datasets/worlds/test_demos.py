"""Demonstrations of a Fetch robot, and random play beside them."""

import dataclasses

import numpy as np
import pytest

import orlog
from orlog.datasets.worlds.demos import DATASETS, pick_and_place
from orlog.datasets.worlds.environments import environment_versions, make_environment
from orlog.errors import SimulatorError

pytest.importorskip("gymnasium_robotics", reason="needs Gymnasium-Robotics (orlog[mujoco])")


def test_demonstrations_come_first_and_succeed():
    recipe = dataclasses.replace(DATASETS["demos/fetch-mixed-v1"].recipe, demonstrations=3)
    episodes = list(recipe.episodes(0, 6))
    assert [one.metadata["demonstration"] for one in episodes] == [True] * 3 + [False] * 3
    assert [one.metadata["success"] for one in episodes[:3]] == [True] * 3
    for one in episodes[3:]:
        held = one.actions.reshape(10, 5, 4)
        assert (held == held[:, :1]).all()


def test_the_expert_acts_for_a_batch_and_lifts_the_block():
    recipe = DATASETS["demos/fetch-pick-v1"].recipe
    policy = recipe.expert().policy
    for seed in (0, 1):
        with make_environment(recipe.environment_id, {}) as env:
            observation, info = env.reset(seed=seed)
            for _ in range(50):
                (action,) = policy({key: one[None] for key, one in observation.items()})
                assert action.dtype == np.float32
                observation, _, _, _, info = env.step(action)
            assert info["is_success"]


def test_a_dataset_says_which_episodes_are_demonstrations(monkeypatch):
    entry = DATASETS["demos/fetch-mixed-v1"]
    recipe = dataclasses.replace(DATASETS["demos/fetch-mixed-v1"].recipe, count=4, demonstrations=1)
    monkeypatch.setitem(DATASETS, "demos/tiny-v1", dataclasses.replace(entry, recipe=recipe))
    dataset = orlog.load_dataset(orlog.build_dataset("demos/tiny-v1"))
    assert dataset.roles == {"episodes/demonstration": "demonstration", "episodes/success": "success"}
    assert dataset.filter_episodes("demonstration").total_episodes == 1
    assert environment_versions("FetchPickAndPlace-v4").keys() == {"gymnasium", "gymnasium-robotics", "mujoco", "numpy"}


def frames():
    env = make_environment("orlog/FetchFrames-v0", {})
    try:
        env.reset(seed=0)
    except SimulatorError as error:
        pytest.skip(f"no frames are drawn on this machine: {error}")
    return env


def test_frames_show_the_world_of_the_states():
    with frames() as env, make_environment("FetchPickAndPlace-v4", {}) as world:
        observation, info = env.reset(seed=3)
        state, its_info = world.reset(seed=3)
        seen = set()
        for _ in range(50):
            assert env.observation_space.contains(observation)
            seen.add(observation["frame"].tobytes())
            action = pick_and_place(state).astype(np.float32)
            observation, reward, terminated, truncated, info = env.step(action)
            state, *paid, its_info = world.step(action)
            assert (reward, terminated, truncated) == tuple(paid)
            assert np.array_equal(info["state"], state["observation"])
            assert np.allclose(observation["arm"][:3], state["observation"][:3])
            assert np.allclose(observation["goal"], state["desired_goal"])
        assert info["is_success"] == its_info["is_success"] == 1
        assert len(seen) > 40
    assert environment_versions("orlog/FetchFrames-v0").keys() == {"gymnasium", "gymnasium-robotics", "mujoco", "numpy"}


def test_demonstrations_in_frames_succeed_and_keep_the_state():
    frames().close()
    recipe = DATASETS["demos/fetch-pick-frames-v1"].recipe
    *_, last = recipe.episodes(0, 2)
    assert last.metadata == {"demonstration": True, "success": True}
    assert last.infos["state"].shape == (50, 25)
    assert last.observations["frame"].shape == (51, 64, 64, 3)


def test_where_nothing_draws_the_frames_it_is_said(monkeypatch):
    with frames() as env:

        def fail():
            raise RuntimeError("no EGL")

        monkeypatch.setattr(env.unwrapped, "_draw", fail)
        with pytest.raises(SimulatorError, match=r"no frames here: RuntimeError: no EGL; .* libegl1"):
            env.reset(seed=0)
