"""`orlog.record_parallel`: the agents of a parallel environment of PettingZoo."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.errors import SchemaError

pettingzoo = pytest.importorskip("pettingzoo")
NAME = "lab/agents-v1"


class Leaving(pettingzoo.ParallelEnv):  # type: ignore[misc, name-defined] # no types for mypy
    """Three agents; agent k ends after k + 2 steps, the last one by truncation."""

    def __init__(self) -> None:
        self.metadata = {"name": "leaving"}
        self.possible_agents = ["agent_0", "agent_1", "agent_2"]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 99, (int(agent[-1]) + 1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(4, start=1) if agent == "agent_0" else spaces.Box(-1, 1, (1,))

    def observations(self) -> dict[str, Any]:
        return {
            agent: np.full(self.observation_space(agent).shape, self.steps + 1, np.float32)
            for agent in self.agents
        }

    def reset(self, **_: Any) -> tuple[Any, Any]:
        self.agents, self.steps = [*self.possible_agents], 0
        return self.observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        assert actions.keys() == set(self.agents)
        self.steps += 1
        seen = self.observations()
        last = {agent: self.steps == int(agent[-1]) + 2 for agent in self.agents}
        rewards = {agent: 1.0 + int(agent[-1]) for agent in self.agents}
        terminations = {agent: last[agent] and agent != "agent_2" for agent in self.agents}
        truncations = {agent: last[agent] and agent == "agent_2" for agent in self.agents}
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not last[agent]]
        return seen, rewards, terminations, truncations, infos


def run(env: Any, episodes: int, first: int = 0) -> None:
    for seed in range(first, first + episodes):
        env.reset(seed=seed)
        while env.agents:
            env.step(
                {
                    agent: 3 if agent == "agent_0" else np.array([0.5], np.float32)
                    for agent in env.agents
                }
            )


def test_agents_that_leave_early_are_recorded_and_read_again() -> None:
    with orlog.record_parallel(Leaving(), NAME) as env:
        run(env, 2)
        assert env.metadata == {"name": "leaving"}
    ds = orlog.load_dataset(NAME)
    assert [episode.seed for episode in ds] == [0, 1]
    for episode in ds:
        assert episode.observations["agent_0"][:, 0].tolist() == [1, 2, 3, 0, 0]
        assert episode.observations["agent_1"][:, 1].tolist() == [1, 2, 3, 4, 0]
        assert episode.observations["agent_2"][:, 2].tolist() == [1, 2, 3, 4, 5]
        assert episode.actions["agent_0"].tolist() == [3, 3, 1, 1]
        assert episode.actions["agent_1"][:, 0].tolist() == [0.5, 0.5, 0.5, 0]
        assert episode.infos["agents/agent_0/acts"].tolist() == [True, True, False, False]
        assert episode.infos["agents/agent_1/rewards"].tolist() == [2, 2, 2, 0]
        assert episode.infos["agents/agent_0/terminations"].tolist() == [False, True, False, False]
        assert episode.infos["agents/agent_2/truncations"].tolist() == [False, False, False, True]
        assert episode.rewards.tolist() == [6, 6, 5, 3]
        assert episode.truncations.tolist() == [False, False, False, True]
        assert not episode.terminations.any()
    assert orlog.verify_store(ds.folder)[1] == []


def test_more_episodes_are_appended() -> None:
    with orlog.record_parallel(Leaving(), NAME) as env:
        run(env, 1)
    with orlog.record_parallel(Leaving(), NAME, append=True) as env:
        run(env, 1, first=1)
    assert [episode.seed for episode in orlog.load_dataset(NAME)] == [0, 1]


def test_what_is_refused() -> None:
    with pytest.raises(TypeError, match="a parallel environment of PettingZoo"):
        orlog.record_parallel(spaces.Discrete(2), NAME)
    with orlog.record_parallel(Leaving(), NAME) as env:
        with pytest.raises(SchemaError, match=r"no episode is running"):
            env.step({})
        run(env, 1)
        with pytest.raises(SchemaError, match=r"no episode is running"):
            env.step({})
