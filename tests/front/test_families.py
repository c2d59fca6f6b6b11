"""Families of datasets: one table, with its page of the docs."""

import json
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.errors import NotFoundError
from orlog.manifests.roles import FAMILIES, families_of
from orlog.manifests.shipped import SHIPPED, shipped_names
from tests.command_line import orlog as run

ROOT = Path(__file__).parents[2]


def record(name, observations, actions, **infos):
    with orlog.DatasetWriter(name, observation_space=observations, action_space=actions) as writer:
        for length in (1, 2):
            observation = [observations.sample() for _ in range(length + 1)]
            writer.add_steps(
                observations=observation
                if not isinstance(observations, spaces.Dict)
                else {key: [one[key] for one in observation] for key in observations},
                actions=[actions.sample() for _ in range(length)],
                rewards=np.zeros(length),
                terminations=np.arange(length) == length - 1,
                truncations=np.zeros(length, bool),
                infos={key: np.array([value] * length) for key, value in infos.items()},
            )
            writer.end_episode()


def test_a_dataset_is_of_a_family_by_role_space_or_name():
    box, two = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    record("lab/costly-v1", box, two, cost=1.0)
    record("lab/goal-v1", spaces.Dict(achieved_goal=box, desired_goal=box, observation=box), two)
    record("lab/table-v1", spaces.Discrete(5), two, task=1)
    record("lab/text-v1", spaces.Text(5), two)
    record("lab/front-v1", box, box, objectives=[1.0, 2.0])
    record("lab/plain-v1", box, box)
    record("demos/lab/plain-v1", box, box)
    found = {
        one.name: [
            family
            for family in FAMILIES
            if one.name in [other.name for other in orlog.list_datasets("lab/", family=family)]
        ]
        for one in orlog.list_datasets("lab/")
    }
    assert found == {
        "demos/lab/plain-v1": ["demos"],
        "lab/costly-v1": ["safety"],
        "lab/front-v1": ["objectives"],
        "lab/goal-v1": ["goals"],
        "lab/plain-v1": [],
        "lab/table-v1": ["tasks", "tabular"],
        "lab/text-v1": ["words"],
    }
    for name, families in found.items():
        assert families_of(name, orlog.load_dataset(name).manifest) == families
    one_step = orlog.load_dataset("lab/plain-v1").filter_episodes("lengths == 1")[[0, 0]]
    manifest = orlog.load_dataset(orlog.save_dataset(one_step, "lab/shop-v1")).manifest
    assert families_of("lab/shop-v1", manifest) == ["bandits"]
    listed = json.loads(run("list", "lab/", "--family", "safety", "--json").stdout)["datasets"]
    assert [one["name"] for one in listed] == ["lab/costly-v1"]


def test_what_is_not_here_is_found_by_name_or_by_the_recorded_manifest():
    for family, names in {"safety": "dsrl", "agents": "ogmarl", "goals": "ogbench"}.items():
        remote = {one.name for one in orlog.list_datasets(remote=True, family=family)}
        assert {one for one in shipped_names() if one.startswith(f"{names}/")} <= remote
        assert {one.partition("/")[0] for one in remote} <= {*SHIPPED}
    built = {one.name for one in orlog.list_datasets(family="goals")}
    assert {one for one in built if one.startswith("pointmaze/")}
    assert "classic/cartpole-mixed-v1" not in built
    humans = run("list", "--remote", "--family", "demos", "d4rl").stdout
    assert "d4rl/pen-human-v1" in humans
    assert "d4rl/pen-cloned-v1" not in humans
    nothing = run("list", "hopper", "--family", "goals")
    assert "no dataset is found for hopper, family goals" in nothing.stderr


def test_an_unknown_family_names_the_nearest_and_all():
    message = r"no family is called 'safetyy'; did you mean safety\? There are safety, agents,"
    with pytest.raises(NotFoundError, match=message):
        orlog.list_datasets(family="safetyy")
    ended = run("list", "--remote", "--family", "safetyy")
    assert ended.returncode == 1
    assert "did you mean safety?" in ended.stderr
