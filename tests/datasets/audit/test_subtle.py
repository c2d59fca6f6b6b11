"""Defects of a single episode out of sixty, and of all of them: shifts, freezes, repeats, saturation."""

import copy
import json
import re
from typing import Any

import gymnasium
import numpy as np
import pytest

import orlog
from orlog.datasets.audit.findings import THRESHOLDS
from tests.command_line import orlog as run

EPISODES, BAD = 60, 23
Draft = dict[str, Any]


def record(environment, horizon, scale):
    """Return episodes of an environment with random actions that are held for a few steps."""
    env = gymnasium.make(environment, max_episode_steps=horizon)
    rng = np.random.default_rng(0)
    is_discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
    drafts = []
    for seed in range(EPISODES):
        seen, actions, rewards = [env.reset(seed=seed)[0]], [], []
        ends = []
        while not ends or not any(ends[-1]):
            size = env.action_space.shape or ()
            box = (scale * rng.uniform(-1, 1, size)).astype(np.float32)
            action = np.int64(rng.integers(2)) if is_discrete else box
            observation, reward, *flags, _ = env.step(action)
            seen.append(observation)
            actions.append(action)
            rewards.append(float(reward))
            ends.append(flags)
        drafts.append(
            {
                "observations": np.array(seen),
                "actions": np.array(actions),
                "rewards": np.array(rewards),
                "terminations": np.array(ends)[:, 0],
                "truncations": np.array(ends)[:, 1],
            }
        )
    return env, drafts


@pytest.fixture(scope="module")
def pendulum():
    return record("Pendulum-v1", 200, 2.0)


@pytest.fixture(scope="module")
def cheetah():
    return record("HalfCheetah-v5", 100, 1.0)


@pytest.fixture(scope="module")
def poles():
    return record("CartPole-v1", 500, 1.0)


def findings(env, drafts, name="lab/subtle-v1"):
    with orlog.DatasetWriter(name, environment=env) as writer:
        for draft in drafts:
            writer.add_episode(orlog.Episode(**draft))
    return orlog.audit(writer.folder).findings


def freeze(draft):
    start = len(draft["actions"]) // 3
    draft["observations"][start : start + 40, -1] = draft["observations"][start, -1]


def repeat_final(draft):
    draft["observations"][-1] = draft["observations"][-2]


def saturate(draft):
    half = 0.4 * np.abs(draft["actions"]).max()
    draft["actions"] = draft["actions"].clip(-half, half)


def shift_actions(draft):
    draft["actions"] = np.roll(draft["actions"], 1, axis=0)


def shift_rewards(draft):
    draft["rewards"] = np.roll(draft["rewards"], 1)


CASES = [
    ("pendulum", freeze, {"stuck"}),
    ("cheetah", freeze, {"stuck"}),
    ("pendulum", repeat_final, {"final observations"}),
    ("cheetah", repeat_final, {"final observations"}),
    ("poles", repeat_final, {"final observations"}),
    ("pendulum", saturate, {"saturated"}),
    ("cheetah", saturate, {"saturated"}),
    ("pendulum", shift_actions, {"alignment"}),
    ("cheetah", shift_actions, {"alignment"}),
    ("poles", shift_actions, {"alignment"}),
    ("pendulum", shift_rewards, {"alignment", "rewards"}),
    ("cheetah", shift_rewards, {"alignment", "rewards"}),
]


@pytest.mark.parametrize(
    ("kind", "plant", "checks"), CASES, ids=[f"{kind}-{plant.__name__}" for kind, plant, _ in CASES]
)
def test_a_defect_of_one_episode_of_sixty_is_found_and_named(kind, plant, checks, request):
    env, good = request.getfixturevalue(kind)
    drafts = copy.deepcopy(good)
    # Random actions end some episodes of poles before there is anything to tell.
    bad = BAD if kind != "poles" else int(np.argmax([len(one["actions"]) for one in good]))
    plant(drafts[bad])
    found = [one for one in findings(env, drafts) if one.check in checks]
    assert bad in {one.episode for one in found}, found
    assert {one.severity for one in found} <= {"warning", "error"}


@pytest.mark.parametrize("kind", ["pendulum", "cheetah", "poles"])
@pytest.mark.parametrize("plant", [shift_actions, shift_rewards])
def test_a_shift_of_all_episodes_is_found(kind, plant, request):
    env, good = request.getfixturevalue(kind)
    if kind == "poles" and plant is shift_rewards:
        pytest.skip("all its rewards are 1")
    drafts = copy.deepcopy(good)
    for draft in drafts:
        plant(draft)
    found = findings(env, drafts)
    assert any(one.check in ("alignment", "rewards") for one in found), found


@pytest.mark.parametrize("kind", ["pendulum", "cheetah", "poles"])
def test_good_data_raise_no_alarm(kind, request):
    env, good = request.getfixturevalue(kind)
    assert [one for one in findings(env, good) if one.severity != "note"] == []


def test_what_rests_in_one_task_by_nature_is_no_defect_and_one_episode_of_the_other_is(pendulum):
    env, good = pendulum
    drafts = copy.deepcopy(good)
    for number, draft in enumerate(drafts):
        draft["metadata"] = {"task": number % 3}
        if number % 3 == 1:  # nothing of the last number is seen in this task
            draft["observations"][:, -1] = 1.0
    assert [one for one in findings(env, drafts) if one.check == "stuck"] == []
    drafts[24]["observations"][:, -1] = 0.5
    (found,) = [one for one in findings(env, drafts, "lab/one-v1") if one.check == "stuck"]
    assert (found.episode, found.count, found.column) == (24, 1, "observations[2]")
    for draft in drafts:
        del draft["metadata"]
    assert [one.count for one in findings(env, drafts, "lab/all-v1") if one.check == "stuck"] == [21]


def test_the_command_prints_findings_and_its_page_plots_the_place(pendulum, tmp_path):
    env, good = pendulum
    drafts = copy.deepcopy(good)
    freeze(drafts[BAD])
    findings(env, drafts)
    written = run("audit", "lab/subtle-v1", "--html", str(tmp_path / "audit.html"), "--json")
    assert written.returncode == 3  # the rewards of these steps are wrong then
    body = json.loads(written.stdout)
    assert (body["findings"][0]["episode"], body["is_good"]) == (BAD, False)
    page = (tmp_path / "audit.html").read_text("utf-8")
    assert "rewards differ from the environment" in page
    assert all(name in page for name in THRESHOLDS)
    assert page.count("<svg") == 3
    assert f"episode {BAD}" in page
    places = set(re.findall(r'<td[^>]*><a href="#([a-z0-9-]+)">', page))
    assert places
    assert places <= set(re.findall(r'<div id="([a-z0-9-]+)"><figure', page))
    assert "orlog open lab/subtle-v1" in page


@pytest.mark.parametrize(("way_back", "copies"), [(1, 0), (2, 0), (3, 24), (20, 24)])
def test_a_way_there_and_back_is_no_copy_but_a_repeated_piece_is(pendulum, way_back, copies):
    """As where an agent between two walls pushes back and forth with all its force."""
    env, drafts = pendulum
    drafts = copy.deepcopy(drafts)
    for draft in drafts[:24]:
        period = 2 * way_back
        for name in ("observations", "actions", "rewards"):
            draft[name][100 + period] = draft[name][100]
        draft["observations"][101 + period] = draft["observations"][101]
    found = [one for one in findings(env, drafts) if one.check == "duplicates"]
    assert [(one.column, one.count) for one in found] == ([("steps", copies)] if copies else [])
