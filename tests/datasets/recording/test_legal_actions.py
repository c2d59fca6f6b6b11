"""Flags of legal choices of agents that come, leave, die and come back: recorded, read and given in batches."""

import dataclasses
import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog import DatasetWriter, Episode
from orlog.datasets.worlds.agents import Team
from orlog.errors import SchemaError
from orlog.loaders.agent_transitions import AgentTransitionSampler, load_agents
from orlog.loaders.members import member_arrays
from orlog.loaders.teams import TeamArrays
from tests.levels import scaled

pettingzoo = pytest.importorskip("pettingzoo")
NAME = "lab/choices-v1"
CHOICES = {"a": 5, "b": 2, "c": 3}
STARTS = {"a": 0, "b": 0, "c": 4}
"""Of each agent and step whether it takes part (`x`), not (`.`), or dies in it and may be back at once (`!`)."""

WHOLE = {"a": "xxx", "b": "xxx", "c": "xxx"}
LEAVES = {"a": "xxxx", "b": "xx..", "c": "xxx."}
LATE = {"a": "xxx.", "b": "..xx", "c": ".x.x"}
ALONE = {"a": "xx", "b": "..", "c": ".."}


class Choices(pettingzoo.ParallelEnv):  # no types for mypy
    """Agents with unequal numbers of choices, of which those that are legal change with each step.

    Attributes:
        log: Of each episode and step the flags of every agent that acts.
    """

    def __init__(self, plans, mask="action_mask", place="infos"):
        self.metadata = {"name": "choices"}
        self.possible_agents = [*CHOICES]
        self.agents = []
        self.plans, self.mask, self.place = plans, mask, place
        self.rng = np.random.default_rng(0)
        self.log = []

    def observation_space(self, agent):
        flags = spaces.Box(0, 1, (CHOICES[agent],), np.int8)
        seen = spaces.Box(-1, 1, (2,), np.float32)
        return seen if self.place == "infos" else spaces.Dict({"seen": seen, self.mask: flags})

    def action_space(self, agent):
        return spaces.Discrete(CHOICES[agent], start=STARTS[agent])

    def at(self, step):
        """Come to a step, and return what the agents that act in it see and are told."""
        self.steps = step
        self.agents = [a for a in CHOICES if self.plan[a][step : step + 1] in ("x", "!")]
        self.flags = {}
        for agent in self.agents:
            flags = self.rng.random(CHOICES[agent]) < 0.5
            flags[self.rng.integers(CHOICES[agent])] = True
            self.flags[agent] = flags.astype(np.int8)
        seen = {agent: np.ones(2, np.float32) for agent in self.agents}
        if self.place == "infos":
            return seen, {a: {self.mask: flags, "heat": 1.5} for a, flags in self.flags.items()}
        of_all = {a: {"seen": seen[a], self.mask: flags} for a, flags in self.flags.items()}
        return of_all, {agent: {} for agent in self.agents}

    def reset(self, **_):
        self.plan = self.plans[len(self.log)]
        self.log.append([])
        return self.at(0)

    def step(self, actions):
        there, step = self.agents, self.steps
        assert [*actions] == there
        assert all(self.flags[a][actions[a] - STARTS[a]] for a in there)
        self.log[-1].append(self.flags)
        seen, infos = self.at(step + 1)
        dies = {a: a not in self.agents or self.plan[a][step] == "!" for a in there}
        for agent in there:  # one that has left is not told what it may do
            seen.setdefault(agent, self.observation_space(agent).sample())
            infos.setdefault(agent, {"heat": 1.5} if self.place == "infos" else {})
        return seen, dict.fromkeys(there, 1.0), dies, dict.fromkeys(there, False), infos


def record(env, name=NAME, **options):
    rng = np.random.default_rng(1)
    with orlog.record_parallel(env, name, **options) as recorder:
        for _ in env.plans[len(env.log) :]:
            recorder.reset()
            while env.agents:
                legal = {agent: np.flatnonzero(env.flags[agent]) for agent in env.agents}
                actions = {a: STARTS[a] + int(rng.choice(legal[a])) for a in env.agents}
                recorder.step(actions)
    return orlog.load_dataset(name)


def acting(plan, agent, step):
    return plan[agent][step : step + 1] in ("x", "!")


def check_columns(env, ds):
    """Compare what is stored with what the environment has logged."""
    assert len(ds) == len(env.plans)
    for episode, plan, log in zip(ds, env.plans, env.log, strict=True):
        for agent, step in itertools.product(CHOICES, range(len(log))):
            acts = acting(plan, agent, step)
            assert episode.infos[f"agents/{agent}/acts"][step] == acts
            if env.place == "infos":
                flags = episode.infos[f"agents/{agent}/{env.mask}"][step]
                later = log[step + 1].get(agent) if step + 1 < len(log) else None
                expected = np.zeros(CHOICES[agent], np.int8) if later is None else later
            else:
                flags = episode.observations[agent][env.mask][step]
                expected = log[step].get(agent, flags)
            assert (flags.dtype, flags.tolist()) == (np.int8, expected.tolist())


def check_batches(env, ds):
    """Compare what is given to algorithms with what the environment has logged."""
    arrays = load_agents(ds, "ram")
    steps = np.arange(arrays.total_steps)
    batch = AgentTransitionSampler(arrays).gather(torch.from_numpy(arrays.step_table.take(steps)))
    assert batch.legal is not None
    assert batch.next_legal is not None
    position = 0
    runs = {agent: [] for agent in CHOICES}
    for plan, log in zip(env.plans, env.log, strict=True):
        for step, place in itertools.product(range(len(log)), range(3)):
            agent = [*CHOICES][place]
            known = np.ones(CHOICES[agent]) if env.place == "infos" and step == 0 else None
            for legal, after in ((batch.legal, 0), (batch.next_legal, 1)):
                if acting(plan, agent, step + after):
                    flags = legal[position + step, place]
                    expected = log[step + after][agent] if after or known is None else known
                    assert flags[: CHOICES[agent]].tolist() == expected.astype(bool).tolist()
                    assert not flags[CHOICES[agent] :].any()
            if acting(plan, agent, step):
                assert batch.legal[position + step, place, batch.actions[position + step, place]]
                goes_on = step and plan[agent][step - 1] == "x"
                runs[agent] += [] if goes_on else [[]]
                runs[agent][-1].append(log[step][agent] if known is None else known)
        position += len(log)
    members = member_arrays(arrays, rewards="own")
    first = 0
    for agent, episodes in runs.items():
        lengths = members.lengths[first : first + len(episodes)]
        assert lengths.tolist() == [*map(len, episodes)]
        rows = members.first_rows[first : first + len(episodes)]
        flags_at = slice(arrays.team.width + 3, arrays.team.width + 3 + CHOICES[agent])
        for row, several in zip(rows, episodes, strict=True):
            given_flags = members.rows[row : row + len(several), flags_at]
            assert given_flags.tolist() == np.stack(several).tolist()
        first += len(episodes)
    assert first == len(members.lengths)


plans = st.integers(1, 5).flatmap(
    lambda steps: st.lists(
        st.tuples(*[st.sampled_from("x!.")] * 3).filter(lambda there: {*there} != {"."}), min_size=steps, max_size=steps
    ).map(lambda rows: {agent: "".join(row[n] for row in rows) for n, agent in enumerate("abc")})
)
KINDS = [("infos", "action_mask"), ("infos", "avail_actions"), ("observations", "action_mask")]


@settings(max_examples=scaled(15, 6), deadline=None)
@given(plan=st.lists(plans, min_size=1, max_size=4), kind=st.sampled_from(KINDS))
def test_flags_of_agents_that_come_and_go_are_those_of_the_log(plan, kind, tmp_path_factory):
    env = Choices(plan, kind[1], kind[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path_factory.mktemp("home")))
        ds = record(env, infos=[kind[1], "heat"] if kind[0] == "infos" else [])
        check_columns(env, ds)
        assert {*ds.roles.values()} == {"acts", "next_legal_actions" if kind[0] == "infos" else "legal_actions"}
        check_batches(env, ds)


def test_a_team_as_one_environment_keeps_the_flags_of_those_that_come_late():
    parallel = Choices([LATE, WHOLE])
    env = Team(parallel)
    env.reset()
    parallel.log.clear()
    with orlog.record(env, NAME, infos=env.infos) as recorder:
        for _ in parallel.plans:
            recorder.reset()
            ended = False
            while not ended:
                legal = {agent: np.flatnonzero(parallel.flags.get(agent, [1])) for agent in CHOICES}
                actions = {agent: STARTS[agent] + int(legal[agent][-1]) for agent in CHOICES}
                *_, terminated, truncated, _ = recorder.step(actions)
                ended = terminated or truncated
    check_batches(parallel, orlog.load_dataset(NAME))


@pytest.mark.parametrize("first", [LEAVES, LATE, ALONE, WHOLE])
def test_blank_flags_are_as_many_as_the_choices_of_the_agent(first):
    env = Choices([first, LEAVES, LATE])
    options = {"infos": ["action_mask", "heat"]}
    env.plans = [first]
    record(env, **options)
    env.plans = [first, LEAVES, LATE]
    ds = record(env, append=True, **options)
    check_columns(env, ds)
    assert ds.schema.variable == {"episodes/options": "text"}


class Near(Choices):
    """Each agent is told of as many others as it has choices, and of a word and things of any length."""

    def at(self, step):
        seen, infos = super().at(step)
        for agent, info in infos.items():
            near = np.arange(CHOICES[agent], dtype=np.float32) + 1
            info |= {"near": near, "word": agent, "things": np.ones((step + 1, 2))}
        return seen, infos

    def step(self, actions):
        *rest, infos = super().step(actions)
        for agent in actions:
            infos[agent].setdefault("near", np.ones(CHOICES[agent], np.float32))
            infos[agent].setdefault("word", agent)
            infos[agent].setdefault("things", np.ones((1, 2)))
        return *rest, infos


def test_infos_of_an_absent_agent_have_the_form_of_its_own():
    ds = record(Near([LEAVES, LATE, ALONE, WHOLE]), infos=["near", "word", "things"])
    assert {"infos/agents/b/things", "infos/agents/b/word"} <= ds.schema.variable.keys()
    late = ds[1].infos
    assert late["agents/b/near"].tolist() == [[0, 0], [1, 2], [1, 2], [1, 1]]  # told once it has come
    assert late["agents/b/word"] == ["", "b", "b", "b"]
    assert [len(things) for things in late["agents/b/things"]] == [0, 3, 4, 1]
    assert ds[2].infos["agents/c/near"].tolist() == [[0, 0, 0]] * 2
    assert [len(things) for things in ds[2].infos["agents/c/things"]] == [0, 0]
    with pytest.raises(SchemaError, match=r"lab/alone-v1: agent 'b' .* first episode.*'near'"):
        record(Near([{**LEAVES, "b": "...."}]), "lab/alone-v1", infos=["near"])


def test_one_that_comes_and_is_not_told_what_it_may_do_may_do_all():
    class Untold(Choices):
        def step(self, actions):
            *rest, infos = super().step(actions)
            return *rest, {agent: infos[agent] for agent in actions}

    arrays = load_agents(record(Untold([WHOLE, LATE]), infos=["action_mask"]), "ram")
    legal = TeamArrays(arrays.team, arrays).legal(torch.arange(4, 8))
    assert legal is not None
    assert legal[2, 1].tolist() == [True, True, False, False, False]  # b comes in step 2
    assert legal[1, 2].tolist() == [True, True, True, False, False]


class Facing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Tells under some name what may be done next."""

    def __init__(self, mask, value):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.mask, self.value = mask, value

    def step(self, action):
        observation, reward, terminated, truncated, _ = self.env.step(action)
        value = np.arange(truncated or terminated) if self.value is None else self.value
        return observation, reward, terminated, truncated, {self.mask: value}


def play(name, mask, value, **options):
    with orlog.record(Facing(mask, value), name, infos=[mask], **options) as env:
        env.reset(seed=0)
        while not any(env.step(env.action_space.sample())[2:4]):
            pass
    return orlog.load_dataset(name)


FLAGS = np.array([1, 0], np.int8)


def test_what_an_environment_tells_is_legal_in_the_step_after():
    for mask in ("legals", "legal_actions", "avail_actions", "legal_moves", "action_mask"):
        ds = play(f"lab/{mask}-v1", mask, FLAGS)
        assert ds.roles == {f"infos/{mask}": "next_legal_actions"}
    roles = {"infos/legals": "legal_actions"}
    assert play("lab/now-v1", "legals", FLAGS, roles=roles).roles == roles
    roles = {"infos/legals": "none"}
    assert play("lab/none-v1", "legals", 1.5, roles=roles).roles == {}


@pytest.mark.parametrize(
    ("value", "said"),
    [(1.5, r"float64 \(\)"), ("both", "text"), (None, "array"), (np.ones((2, 2)), r"float64 \(2, 2\)")],
)
def test_flags_of_a_wrong_form_are_refused_and_what_was_recorded_is_kept(value, said):
    message = rf"lab/wrong-v1@1.0.0: column infos/legal_moves .*but holds {said}, .*one flag for each"
    with pytest.raises(SchemaError, match=message):
        play("lab/wrong-v1", "legal_moves", value)
    roles = {"infos/legal_moves": "none"}
    with orlog.record(Facing("legal_moves", value), "lab/wrong-v1", infos=["legal_moves"], roles=roles, resume=True):
        pass
    ds = orlog.load_dataset("lab/wrong-v1")
    assert (len(ds), ds.roles) == (1, {})


def whole(**infos):
    flags = np.array([False, True])
    return Episode(
        observations=np.zeros((3, 2), np.float32),
        actions=np.zeros(2, np.int64),
        rewards=np.zeros(2),
        terminations=flags,
        truncations=~flags & flags,
        infos=infos,
    )


def test_a_writer_asks_what_usual_names_mean():
    box, choices = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
    with pytest.raises(SchemaError, match=r"observations/avail_actions .* 'legal_actions' if"):
        DatasetWriter(
            NAME,
            observation_space=spaces.Dict({"avail_actions": spaces.MultiBinary(2), "seen": box}),
            action_space=choices,
        )
    given = {"observation_space": box, "action_space": choices}
    message = r"infos/avail_actions .*'next_legal_actions' if in the step after, or 'none'"
    masks = np.ones((2, 2), np.int8)
    with pytest.raises(SchemaError, match=message), DatasetWriter(NAME, **given) as writer:
        writer.add_episode(whole(avail_actions=masks))
    with pytest.raises(SchemaError, match=message):
        DatasetWriter(NAME, **given, resume=True).finish()
    roles = {"infos/avail_actions": "legal_actions"}
    with DatasetWriter(NAME, **given, resume=True, roles=roles) as writer:
        assert writer.total_episodes == 1
    assert orlog.load_dataset(NAME).roles == roles
    given["action_space"] = spaces.Box(-1, 1, (), np.float32)
    with DatasetWriter("lab/forces-v1", **given) as writer:  # nothing is chosen there
        episode = whole(valid_actions=["a", "b"])
        writer.add_episode(dataclasses.replace(episode, actions=np.zeros(2, np.float32)))
