"""`orlog.record_parallel`: the agents of a parallel environment of PettingZoo."""

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.errors import SchemaError

pettingzoo = pytest.importorskip("pettingzoo")
NAME = "lab/agents-v1"


class Leaving(pettingzoo.ParallelEnv):  # no types for mypy
    """Three agents; agent k ends after k + 2 steps, the last one by truncation."""

    def __init__(self):
        self.metadata = {"name": "leaving"}
        self.possible_agents = ["agent_0", "agent_1", "agent_2"]
        self.agents = []

    def observation_space(self, agent):
        return spaces.Box(0, 99, (int(agent[-1]) + 1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(4, start=1) if agent == "agent_0" else spaces.Box(-1, 1, (1,))

    def observations(self):
        return {
            agent: np.full(self.observation_space(agent).shape, self.steps + 1, np.float32) for agent in self.agents
        }

    def reset(self, **_):
        self.agents, self.steps = [*self.possible_agents], 0
        return self.observations(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert actions.keys() == set(self.agents)
        self.steps += 1
        seen = self.observations()
        last = {agent: self.steps == int(agent[-1]) + 2 for agent in self.agents}
        rewards = {agent: 1.0 + int(agent[-1]) for agent in self.agents}
        terminations = {agent: last[agent] and agent != "agent_2" for agent in self.agents}
        truncations = {agent: last[agent] and agent == "agent_2" for agent in self.agents}
        infos = {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not last[agent]]
        return seen, rewards, terminations, truncations, infos


def actions_of(env):
    half = np.array([0.5], np.float32)
    return {agent: 3 if agent == "agent_0" else half for agent in env.agents}


def run(env, episodes, first=0):
    for seed in range(first, first + episodes):
        env.reset(seed=seed)
        while env.agents:
            env.step(actions_of(env))


def test_agents_that_leave_early_are_recorded_and_read_again():
    with orlog.record_parallel(Leaving(), NAME) as env:
        run(env, 1)
        assert env.metadata == {"name": "leaving"}
    with orlog.record_parallel(Leaving(), NAME, append=True) as env:
        run(env, 1, first=1)
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


def test_what_is_refused():
    with pytest.raises(TypeError, match="a parallel environment of PettingZoo"):
        orlog.record_parallel(spaces.Discrete(2), NAME)
    with orlog.record_parallel(Leaving(), NAME) as env:
        with pytest.raises(SchemaError, match=r"no episode is running"):
            env.step({})
        run(env, 1)
        with pytest.raises(SchemaError, match=r"no episode is running"):
            env.step({})


def test_a_space_without_a_blank_value_is_refused_and_the_name_stays_free():
    class Speaking(Leaving):
        def observation_space(self, _):
            return spaces.Text(3)

    for _ in range(2):
        with pytest.raises(SchemaError, match="a Text space of an agent cannot be recorded"):
            orlog.record_parallel(Speaking(), NAME)


def test_infos_and_log_probabilities_of_each_agent():
    class Telling(Leaving):
        def step(self, actions):
            *rest, infos = super().step(actions)
            return *rest, {agent: {"energy": 1.5, "word": agent} for agent in infos}

    options = {"infos": ["energy", "word"], "action_log_probs": True}
    with orlog.record_parallel(Telling(), NAME, **options) as env:
        env.reset(seed=0)
        while env.agents:
            actions = actions_of(env)
            with pytest.raises(SchemaError, match="step needs action_log_prob"):
                env.step(actions)
            with pytest.raises(SchemaError, match="action_log_probs lacks agent 'agent_2'"):
                env.step(actions, action_log_probs=dict.fromkeys(env.agents[:-1], -0.25))
            env.step(actions, action_log_probs=dict.fromkeys(env.agents, -0.25))
    with orlog.record_parallel(Telling(), NAME, append=True, **options):
        pass
    (episode,) = orlog.load_dataset(NAME)
    assert episode.infos["agents/agent_0/energy"].tolist() == [1.5, 1.5, 0, 0]
    assert episode.infos["agents/agent_1/word"] == ["agent_1"] * 3 + [""]
    assert episode.infos["agents/agent_0/action_log_probs"].tolist() == [-0.25, -0.25, 0, 0]
    assert episode.infos["action_log_probs"].tolist() == [-0.75, -0.75, -0.5, -0.25]
    with pytest.raises(SchemaError, match="infos cannot be named rewards"):
        orlog.record_parallel(Telling(), "lab/other-v1", infos=["rewards"])
    env = orlog.record_parallel(Telling(), "lab/other-v1", infos=["heat"])
    with pytest.raises(SchemaError, match="agent 'agent_0': its info has no 'heat'"):
        run(env, 1)
    env.close()


class Counting(Leaving):
    """A simulator whose state is the number of steps."""

    def get_state(self):
        return np.array([self.steps])

    def set_state(self, state):
        self.steps = int(state[0])


def test_a_recorded_state_is_put_back_where_all_agents_act():
    with orlog.record_parallel(Counting(), NAME, state=True) as env:
        run(env, 1)
    ds = orlog.load_dataset(NAME)
    again = Counting()
    seen = ds.restore(again, 0, 1)
    assert (again.steps, seen["agent_1"].tolist()) == (1, [2, 2])
    with pytest.raises(SchemaError, match="agent agent_0 takes no part in step 2"):
        ds.restore(Counting(), 0, 2)
    with orlog.record_parallel(Counting(), "lab/second-v1") as env:
        ds.restore(env, 0, 1)
        while env.agents:
            env.step({agent: env.action_space(agent).sample() for agent in env.agents})
    (episode,) = orlog.load_dataset("lab/second-v1")
    assert episode.observations["agent_2"][:, 0].tolist() == [2, 3, 4, 5]
    with pytest.raises(SchemaError, match="Leaving: no state of a simulator is found"):
        orlog.record_parallel(Leaving(), "lab/third-v1", state=True).reset()


def test_the_simulator_inside_of_mamujoco_is_put_back():
    robots = pytest.importorskip("gymnasium_robotics")

    def make():
        return robots.mamujoco_v1.parallel_env("HalfCheetah", "2x3")

    with orlog.record_parallel(make(), NAME, state=True, infos=["x_position"]) as env:
        env.reset(seed=0)
        actions = [{agent: np.full(3, 0.1 * step, np.float32) for agent in env.agents} for step in range(8)]
        for one in actions:
            env.step(one)
    ds = orlog.load_dataset(NAME)
    (episode,) = ds
    again = make()
    ds.restore(again, 0, 3)
    for step in range(3, 8):
        seen, _, _, _, infos = again.step(actions[step])
        np.testing.assert_array_equal(seen["agent_1"], episode.observations["agent_1"][step + 1])
        assert infos["agent_0"]["x_position"] == episode.infos["agents/agent_0/x_position"][step]


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (2, np.nan, "terminated is nan"),
        (3, np.nan, "truncated is nan"),
        (1, np.zeros(2), r"the reward is float64\[2\]"),
        (1, np.zeros(1), r"the reward is float64\[1\]"),
        (1, "much", "the reward is 'much'"),
    ],
)
def test_what_an_agent_cannot_have_got_names_step_and_agent(place, value, said):
    class Broken(Leaving):
        def step(self, actions):
            result = super().step(actions)
            if self.steps == 2:
                result[place]["agent_1"] = value
            return result

    env = orlog.record_parallel(Broken(), NAME)
    with pytest.raises(SchemaError, match=f"episode 0, step 1, agent 'agent_1': .*{said}"):
        run(env, 1)
    env.close()
    (episode,) = orlog.load_dataset(NAME)
    assert len(episode) == 1
    assert not np.any([episode.terminations, episode.truncations])
