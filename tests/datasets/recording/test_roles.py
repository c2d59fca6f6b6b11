"""Roles of columns: recorded, read, kept by views and versions, and refused where they do not fit."""

import dataclasses
import json
from typing import Any

import gymnasium
import numpy as np
import pytest

import orlog
from orlog import DatasetWriter
from orlog.errors import SchemaError
from tests.command_line import orlog as run
from tests.datasets.recording.arms import NAME, make_episode, start


def costly(number, name="energy"):
    made = make_episode(number)
    return dataclasses.replace(made, infos={name: np.abs(made.rewards), **made.infos})


def record(name=NAME, info="energy", **arguments):
    with start(name, **arguments) as writer:
        for number in range(6):
            writer.add_episode(costly(number, info))
    return orlog.load_dataset(name)


def test_roles_are_stored_shown_and_kept():
    ds = record(roles={"infos/energy": "cost"})
    expected = {"episodes/task": "task_words", "infos/energy": "cost"}
    assert ds.manifest.roles == {"infos/energy": "cost"}
    assert ds.roles == ds.manifest.known_roles == ds[2:4].roles == expected
    assert ds.select_columns(["infos/torque"]).roles == {}
    saved = orlog.load_dataset(orlog.save_dataset(ds[:2], "lab/few-v1"))
    assert (saved.manifest.roles, saved.roles) == ({"infos/energy": "cost"}, expected)
    fewer = orlog.save_dataset(ds.select_columns([]), "lab/fewer-v1")
    assert orlog.load_dataset(fewer).manifest.roles == {}
    with DatasetWriter.append(ds, roles={"infos/torque": "objectives"}) as writer:
        writer.add_episode(costly(7))
    assert orlog.load_dataset(NAME).manifest.roles == {"infos/energy": "cost", "infos/torque": "objectives"}
    assert json.loads(run("show", NAME, "--json").stdout)["roles"]["infos/energy"] == "cost"
    shown = " ".join(run("show", NAME).stdout.split())
    assert "role cost infos/energy" in shown
    assert "role task_words episodes/task" in shown


def test_a_usual_name_needs_no_field_and_moves_no_digest():
    ds = record(info="cost")
    assert "roles" not in json.loads((ds.folder / "manifest.json").read_text("utf-8"))
    assert ds.roles["infos/cost"] == "cost"
    saved = orlog.load_dataset(orlog.save_dataset(ds, "lab/again-v1"))
    assert saved.manifest.roles == {}
    denied = record("lab/denied-v1", "cost", roles={"infos/cost": "none"})
    assert denied.roles == {"episodes/task": "task_words"}
    with pytest.raises(SchemaError, match="cannot be combined"):  # as ever: other columns
        orlog.combine_datasets([ds, record("lab/other-v1")])
    both = orlog.combine_datasets([ds, denied])
    assert both.stated_roles == {}


def test_a_wrong_role_is_named_once_the_first_episode_ended_and_nothing_is_lost():
    with pytest.raises(SchemaError, match=r"lab/arm-v1@1.0.0: .* unknown role 'costly'"):
        start(roles={"infos/energy": "costly"})
    writer = start(roles={"infos/note": "cost"})
    with pytest.raises(SchemaError, match=r"lab/arm-v1@1.0.0: column infos/note cannot have"):
        writer.add_episode(costly(0))
    writer.close()
    with start(roles={"infos/energy": "cost"}, resume=True) as writer:
        assert writer.total_episodes == 1
        writer.add_episode(costly(1))
    assert orlog.load_dataset(NAME).roles["infos/energy"] == "cost"


class Paid(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says what each step costs, and which choices there are after it."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        mask = np.array([1, 0], np.int8)
        info |= {"harm": abs(float(observation[0])), "action_mask": mask}
        return observation, reward, terminated, truncated, info


def paid():
    return Paid(gymnasium.make("CartPole-v1"))


def test_recorders_take_roles():
    roles = {"infos/harm": "cost"}
    with orlog.record(paid(), NAME, infos=["harm", "action_mask"], roles=roles) as env:
        env.reset(seed=0)
        while not any(env.step(env.action_space.sample())[2:4]):
            pass
    expected = {"infos/action_mask": "next_legal_actions", "infos/harm": "cost"}
    assert orlog.load_dataset(NAME).roles == expected
    envs = gymnasium.vector.SyncVectorEnv([paid, paid])
    with orlog.record_vector(envs, "lab/two-v1", infos=["harm"], roles=roles) as both:
        both.reset(seed=0)
        for _ in range(100):
            both.step(both.action_space.sample())
    assert orlog.load_dataset("lab/two-v1").roles == {"infos/harm": "cost"}


def test_roles_of_agents_are_given_by_a_pattern():
    pettingzoo = pytest.importorskip("pettingzoo")
    space = gymnasium.spaces.Box(-1, 1, (2,))

    class Team(pettingzoo.ParallelEnv):  # no types for mypy
        def __init__(self):
            self.metadata = {"name": "team"}
            self.possible_agents = ["left", "right"]

        def observation_space(self, _agent):
            return space

        def action_space(self, _agent):
            return space

        def reset(self, **_):
            self.agents = [*self.possible_agents]
            zeros = np.zeros(2, np.float32)
            return dict.fromkeys(self.agents, zeros), {one: {} for one in self.agents}

        def step(self, _actions):
            seen, _ = self.reset()
            ended = dict.fromkeys(self.agents, True)
            infos = {one: {"harm": 1.0} for one in self.agents}
            self.agents = []
            return seen, dict.fromkeys(seen, 1.0), ended, dict.fromkeys(seen, False), infos

    with orlog.record_parallel(Team(), NAME, infos=["harm"], roles={"infos/agents/*/harm": "cost"}) as env:
        env.reset(seed=0)
        env.step({one: np.zeros(2, np.float32) for one in env.agents})
    ds = orlog.load_dataset(NAME)
    assert ds.manifest.roles == {f"infos/agents/{one}/harm": "cost" for one in ("left", "right")}
    assert ds.roles["infos/agents/left/acts"] == "acts"
    assert "infos/agents/*/acts" in run("show", NAME).stdout
