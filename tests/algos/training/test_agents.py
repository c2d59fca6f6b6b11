"""Algorithms on data of several agents: shared, separate and for teams; what is legal; OG-MARL's vaults."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import orlog
from orlog.algos.mabcq import MABCQ, MABCQConfig, may_do
from orlog.algos.networks import Scaling
from orlog.algos.training.policy import make_from_record, make_policy
from orlog.algos.training.runs import state_names
from orlog.datasets.worlds.agents import Team
from orlog.errors import SchemaError
from orlog.loaders.agent_transitions import load_agents
from orlog.loaders.members import member_arrays, separately
from tests.datasets.formats import test_ogmarl as vaults
from tests.datasets.recording.test_parallel import Leaving
from tests.extending.test_new_algorithm import poles as poles
from tests.training import SMALL, short

pettingzoo = pytest.importorskip("pettingzoo")
ID = "orlog-tests/Doors-v0"


class Doors(pettingzoo.ParallelEnv):  # no types for mypy
    """Two agents, three doors each, of which one is locked: who tries that one gets an error."""

    def __init__(self):
        self.metadata = {"name": "doors"}
        self.possible_agents = ["left", "right"]
        self.agents = []

    def observation_space(self, agent):  # noqa: ARG002
        return spaces.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent):  # noqa: ARG002
        return spaces.Discrete(3)

    def told(self):
        self.locked = {agent: int(self.rng.integers(3)) for agent in self.agents}
        seen = {agent: self.rng.uniform(-1, 1, 2).astype(np.float32) for agent in self.agents}
        infos = {agent: {"action_mask": np.arange(3) != self.locked[agent]} for agent in self.agents}
        return seen, infos

    def reset(self, seed=None, options=None):  # noqa: ARG002
        self.rng, self.steps = np.random.default_rng(seed), 0
        self.agents = [*self.possible_agents]
        return self.told()

    def step(self, actions):
        there = [*self.agents]
        for agent in there:
            assert actions[agent] != self.locked[agent], f"{agent} tried a locked door"
        self.steps += 1
        left = {agent: self.steps == (4 if agent == "left" else 6) for agent in there}
        # The first door that is not locked is right.
        rewards = {agent: float(actions[agent] == (self.locked[agent] == 0)) for agent in there}
        self.agents = [agent for agent in there if not left[agent]]
        seen, infos = self.told()
        for agent in there:
            seen.setdefault(agent, np.zeros(2, np.float32))
            infos.setdefault(agent, {"action_mask": np.ones(3, bool)})
        return seen, rewards, left, dict.fromkeys(there, False), infos


def make_doors():
    return Team(Doors())


@pytest.fixture
def doors():
    """Return data of random legal actions, whose environment can be made."""
    if ID not in gymnasium.registry:
        gymnasium.register(ID, entry_point=f"{__name__}:make_doors", max_episode_steps=10)
    name, rng = "lab/doors-v1", np.random.default_rng(0)
    env = gymnasium.make(ID)
    env.reset(seed=0)
    infos = env.unwrapped.infos
    assert len(infos) == 2 * 5
    with orlog.record(env, name, infos=infos) as env:
        for seed in range(30):
            _, info = env.reset(seed=seed)
            done = False
            while not done:
                actions = {
                    agent: int(rng.choice(np.flatnonzero(info["agents"][agent]["action_mask"])))
                    for agent in info["agents"]
                }
                _, _, terminated, truncated, info = env.step({"left": 0, **actions})
                done = terminated or truncated
    return orlog.load_dataset(name)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("bc", {}),
        ("bc", {"agents": "separate"}),
        ("percent_bc", {"percent": 50}),
        ("iql", {"agent_rewards": "team"}),
        ("cql", {"agents": "separate"}),
        ("mabcq", {}),
    ],
)
def test_policies_of_any_algorithm_keep_to_what_is_legal(doors, tmp_path, algorithm, settings):
    run = short(algorithm, doors, tmp_path / "run", settings={**SMALL, **settings}, evaluations=1, curve_episodes=2)
    result = orlog.evaluate(run, episodes=12)  # a locked door raises an error
    assert len(result.returns) == 12
    assert 0 <= min(result.returns) <= max(result.returns) <= 10
    if algorithm != "mabcq":
        assert run.record.config["agents"] == settings.get("agents", "shared")
    policy = orlog.load_policy(tmp_path / "run")
    env = make_doors()
    observation, _ = env.reset(seed=0)
    actions = policy(observation)
    assert {*actions} == {"left", "right"}
    space = env.action_space
    assert all(space[agent].contains(one) for agent, one in actions.items())


def test_values_of_next_actions_are_those_of_legal_ones(doors, tmp_path):
    """Where the locked door has by far the largest value, only what it may do is learned from."""
    made = make_from_record(short("cql", doors, tmp_path / "run").record, doors)
    (learner,) = made.learners
    arrays = member_arrays(load_agents(doors))
    batch = next(iter(orlog.transitions(arrays, 64, seed=0)))
    key, place = learner.scaling.legal
    assert (key, place) == ("", slice(4, 7))
    legal = batch.next_observations[:, place] > 0
    assert legal.sum(1).max() <= 3
    values = torch.where(legal, 0.0, 1e6)
    found = torch.nn.Identity()
    found.forward = lambda _features: values
    learner.critic, kept = found, learner.critic
    chosen = learner.act(batch.next_observations)
    learner.critic = kept
    assert legal[torch.arange(64), chosen].all()


def test_an_agent_that_leaves_is_learned_from_up_to_its_end(doors):
    arrays = member_arrays(load_agents(doors))
    assert arrays.lengths.tolist() == [4] * 30 + [6] * 30
    last = arrays.final_rows - 1
    assert arrays.rows[last, -2].tolist() == [1] * 60


def test_separate_agents_share_no_weight_and_learn_from_their_own_steps(doors, tmp_path):
    made = make_from_record(short("bc", doors, tmp_path, settings={**SMALL, "agents": "separate"}).record, doors)
    left, right = made.learners
    assert not torch.equal(left.policy[0].weight, right.policy[0].weight)
    assert tuple(f"{name}.{n}" for n in (0, 1) for name in state_names(left)) == made.STATE
    arrays = member_arrays(load_agents(doors))
    path, arguments = made.loader(made.config)
    assert path == "orlog.loaders.members:separately"
    batches = next(separately(arrays, seed=0, **arguments))
    for place, batch in enumerate(batches):
        assert (batch.observations[:, 2 + place] == 1).all()
        assert (batch.observations[:, 3 - place] == 0).all()


def test_a_vault_of_og_marl_opens_and_trains_with_the_same_lines(tmp_path):
    steps = vaults.arrays()
    steps["infos.legals"][np.arange(12)[:, None], np.arange(3), steps["actions"]] = 1
    vaults.write(tmp_path / "3m.vlt" / "Good", steps)
    orlog.import_dataset(tmp_path / "3m.vlt", "lab/3m-v0")
    dataset = orlog.load_dataset("lab/3m-v0")
    batch = next(iter(orlog.agent_transitions(dataset, 16, seed=0, infos=("state",))))
    assert batch.observations.shape == (16, 3, 4)
    assert batch.infos["state"].shape == (16, 6)
    assert batch.legal is not None
    assert batch.legal.shape == (16, 3, 5)
    assert batch.legal.gather(-1, batch.actions[..., None]).all()
    flags = np.zeros((2, 5), bool)
    flags[:, 3] = True
    names = [f"agent_{number}" for number in range(3)]
    seen = {name: np.zeros((2, 4), np.float32) for name in names}
    for algorithm in ("bc", "iql", "cql", "mabcq"):
        record = short(algorithm, dataset, tmp_path / algorithm).record
        policy = make_policy(make_from_record(record, dataset), dataset, record)
        policy.inform({"agents": {name: {"legals": flags} for name in names}})
        assert {one.tolist() == [3, 3] for one in policy(seen).values()} == {True}
    # In a loop of one's own, of one environment or several:
    loop = orlog.load_policy(tmp_path / "bc", algorithm="bc")
    for given, legal in ((seen, flags), ({name: part[0] for name, part in seen.items()}, flags[0])):
        for told in (legal, ~legal):
            infos = {"agents": {name: {"legals": told} for name in names}}
            loop.begin(infos=infos) if told is legal else loop.reward(0.0, infos)
            for action in loop(given).values():
                assert (np.atleast_1d(action) == 3).all() == (told is legal)


def test_vaults_with_an_empty_set_of_legal_actions_name_agent_episode_and_step(tmp_path):
    steps = vaults.arrays()
    steps["infos.legals"][:] = 1
    steps["infos.legals"][5, 2] = 0
    vaults.write(tmp_path / "3m.vlt" / "Good", steps)
    orlog.import_dataset(tmp_path / "3m.vlt", "lab/3m-v0")
    message = "lab/3m-v0: agent agent_2 acts in step 1 of episode 1, but none of its actions is legal"
    with pytest.raises(SchemaError, match=message):
        short("bc", "lab/3m-v0", tmp_path / "run")


def test_agents_of_unequal_spaces_share_an_algorithm(tmp_path):
    with orlog.record_parallel(Unequal(), "lab/unequal-v1") as env:
        for seed in range(4):
            env.reset(seed=seed)
            while env.agents:
                env.step({agent: env.action_space(agent).sample() for agent in env.agents})
    dataset = orlog.load_dataset("lab/unequal-v1")
    record = short("bc", dataset, tmp_path / "run").record
    policy = make_policy(make_from_record(record, dataset), dataset, record)
    space = dataset.observation_space
    seen = {agent: np.stack([one.sample() for _ in range(50)]) for agent, one in space.items()}
    for agent, actions in policy(seen).items():
        assert all(dataset.action_space[agent].contains(one) for one in actions)


class Unequal(Leaving):
    """Agents of which each has other choices."""

    def action_space(self, agent):
        return spaces.Discrete(2 + int(agent[-1]), start=int(agent[-1]))


# --- the algorithm for teams


def team_of_two(**config):
    scaling = Scaling(
        obs_mean=torch.zeros(2),
        obs_std=torch.ones(2),
        action_low=torch.empty(0),
        action_high=torch.empty(0),
        action_space=spaces.Discrete(3),
        agents=2,
    )
    return MABCQ(MABCQConfig(hidden=(4,), **config), scaling, seed=0)


def test_what_the_data_may_do_is_legal_and_likely_enough():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]))
    legal = torch.tensor([[True, True, True], [False, True, True], [False, False, False]])
    found = may_do(logits, legal, 0.5).tolist()
    assert found == [[True, True, False], [False, True, True], [True, True, False]]
    assert may_do(logits, None, 0.0).all()


def test_the_policy_of_a_team_takes_the_best_of_what_the_data_may_do():
    made = team_of_two(threshold=0.4)
    made.values.forward = lambda _: torch.tensor([[[0.0, 5.0, 9.0], [7.0, 5.0, 0.0]]])
    made.imitation.forward = lambda _: torch.log(torch.tensor([[[0.6, 0.3, 0.1], [0.1, 0.45, 0.45]]]))
    seen = torch.zeros(1, 2, 2)
    assert made.act(seen).tolist() == [[1, 1]]
    legal = torch.tensor([[[True, False, True], [True, False, True]]])
    assert made.act(seen, legal).tolist() == [[0, 2]]


def test_the_teams_value_never_falls_in_that_of_an_agent():
    made = team_of_two()
    values = torch.randn(64, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    states = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    made.mixer(values, states).sum().backward()
    assert values.grad is not None
    assert (values.grad >= 0).all()
    assert values.grad.any()


# --- what is refused


class Pushing(Leaving):
    """Agents whose actions are numbers."""

    def action_space(self, agent):  # noqa: ARG002
        return spaces.Box(-1, 1, (1,))


def test_algorithms_and_settings_that_do_not_fit_are_refused(doors, poles, mini, tmp_path):
    with orlog.record_parallel(Pushing(), "lab/pushing-v1") as env:
        env.reset(seed=0)
        while env.agents:
            env.step({agent: np.zeros(1, np.float32) for agent in env.agents})
    for algorithm, dataset, settings, error, words in (
        ("dt", "lab/pushing-v1", {}, SchemaError, "lab/pushing-v1: dt remembers episodes, and such algorithms"),
        ("gcbc", "lab/pushing-v1", {}, SchemaError, "gcbc acts to reach goals"),
        ("rlpd", "lab/pushing-v1", {}, SchemaError, "rlpd starts in the environment"),
        ("mabcq", "lab/pushing-v1", {}, SchemaError, "of each agent, mabcq takes actions that are a Discrete"),
        ("mabcq", poles, {}, SchemaError, "mabcq learns from several agents that act at once"),
        ("mabcq", mini, {}, SchemaError, "mabcq takes actions that are a Discrete space"),
        ("bc", doors, {"agents": "none"}, ValueError, "bc: agents must be separate or shared, found"),
        ("bc", poles, {"agents": "shared"}, ValueError, "bc has no setting 'agents'"),
    ):
        with pytest.raises(error, match=words):
            short(algorithm, dataset, tmp_path / "run", settings=settings)
    assert not (tmp_path / "run").exists()


def test_actions_of_agents_that_leave_early_are_ignored():
    env = Team(Leaving())
    observation, _ = env.reset(seed=0)
    lengths, total = 0, 0.0
    terminated = truncated = False
    while not (terminated or truncated):
        assert env.observation_space.contains(observation)
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        lengths, total = lengths + 1, total + float(reward)
    assert (lengths, total) == (4, 2 * 1 + 3 * 2 + 4 * 3)
    assert (terminated, truncated) == (False, True)
