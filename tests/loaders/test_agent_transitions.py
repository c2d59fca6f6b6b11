"""Transitions of several agents, and their parts one by one, against slow loops over the episodes."""

from __future__ import annotations

import dataclasses
import itertools
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import orlog
from orlog import Episode
from orlog.errors import NotFoundError, SchemaError
from orlog.loaders.agent_transitions import AgentBatch, load_agents
from orlog.loaders.members import member_arrays, of_each
from tests.episodes import whole_episode
from tests.levels import scaled

AGENTS = ("a", "a-b", "c_2")
WIDTHS = {"a": 2, "a-b": 3, "c_2": 1}
CHOICES = {"a": 3, "a-b": 2, "c_2": 3}
STARTS = {"a": 0, "a-b": 4, "c_2": 0}


@dataclasses.dataclass(frozen=True)
class Kind:
    """What kind of data: equal spaces, continuous actions, which flags there are of what is legal."""

    equal: bool
    continuous: bool
    legal: str  # none, infos, after, both, observed


def width_of(kind, agent):
    return 2 if kind.equal else WIDTHS[agent]


def choices_of(kind, agent):
    return 3 if kind.equal else CHOICES[agent]


def spaces_of(kind):
    observed = {}
    acted = {}
    for agent in AGENTS:
        box = spaces.Box(-99, 99, (width_of(kind, agent),), np.float32)
        if kind.legal == "observed":
            flags = spaces.Box(0, 1, (choices_of(kind, agent),), np.int8)
            box = spaces.Dict({"action_mask": flags, "seen": box})
        observed[agent] = box
        size = width_of(kind, agent)
        start = 0 if kind.equal else STARTS[agent]
        acted[agent] = (
            spaces.Box(-2, 2, (size,), np.float32)
            if kind.continuous
            else spaces.Discrete(choices_of(kind, agent), start=start)
        )
    return spaces.Dict(observed), spaces.Dict(acted)


def episode_of(kind, length, number, acts):
    rng = np.random.default_rng(number)
    observations = {}
    actions = {}
    infos = {"state": rng.normal(size=(length, 2)).astype(np.float32)}
    for place, agent in enumerate(AGENTS):
        size, choices = width_of(kind, agent), choices_of(kind, agent)
        seen = rng.normal(size=(length + 1, size)).astype(np.float32)
        legal = rng.random((length + 1, choices)) < 0.6
        legal[np.arange(length + 1), rng.integers(0, choices, length + 1)] = True
        observations[agent] = seen
        if kind.legal == "observed":
            observations[agent] = {"action_mask": legal.astype(np.int8), "seen": seen}
        if kind.continuous:
            actions[agent] = rng.uniform(-2, 2, (length, size)).astype(np.float32)
        else:
            start = 0 if kind.equal else STARTS[agent]
            actions[agent] = start + rng.integers(0, choices, length)
        own = f"agents/{agent}/"
        infos[f"{own}acts"] = acts[:, place]
        infos[f"{own}rewards"] = rng.normal(size=length)
        infos[f"{own}terminations"] = (rng.random(length) < 0.3) & acts[:, place]
        infos[f"{own}truncations"] = (rng.random(length) < 0.3) & acts[:, place]
        if kind.legal in ("infos", "both"):
            infos[f"{own}legals"] = legal[:-1].astype(np.float32)
        if kind.legal in ("after", "both"):
            infos[f"{own}action_mask"] = legal[1:]
    end = ("termination", "truncation")[number % 2]
    return whole_episode(observations, actions, rng.normal(size=length), end=end, infos=infos)


KINDS = st.builds(
    Kind,
    equal=st.booleans(),
    continuous=st.booleans(),
    legal=st.sampled_from(["none", "infos", "after", "both", "observed"]),
)


def drawn(write, kind, lengths, seed):
    rng = np.random.default_rng(seed)
    episodes = []
    for number, length in enumerate(lengths):
        acts = rng.random((length, len(AGENTS))) < 0.7
        acts[0, 0] = True
        episodes.append(episode_of(kind, length, number, acts))
    return write(episodes, *spaces_of(kind))


def flat(seen, row):
    parts = [seen["action_mask"][row], seen["seen"][row]] if isinstance(seen, dict) else [seen[row]]
    return np.concatenate(parts).astype(np.float32)


def padded(values, size):
    return np.concatenate([values, np.zeros(size - len(values), values.dtype)])


def legal_at(kind, episode, agent, step):
    """Return what an agent may do before a step, or after the last one."""
    choices, own = choices_of(kind, agent), f"agents/{agent}/"
    everything = np.ones(choices, bool)
    if kind.legal == "observed":
        return np.asarray(episode.observations[agent]["action_mask"][step] > 0)
    if kind.legal in ("infos", "both") and step < len(episode):
        return np.asarray(episode.infos[f"{own}legals"][step] > 0)
    if kind.legal in ("after", "both") and step > 0:
        return np.asarray(episode.infos[f"{own}action_mask"][step - 1] > 0)
    return everything


def slow_item(kind, episode, step):
    """Return one item of a batch."""
    width = max(len(flat(episode.observations[agent], 0)) for agent in AGENTS)
    found = {}

    def put(name, value):
        found.setdefault(name, []).append(value)

    for agent in AGENTS:
        own = f"agents/{agent}/"
        put("observations", padded(flat(episode.observations[agent], step), width))
        put("next_observations", padded(flat(episode.observations[agent], step + 1), width))
        acts = bool(episode.infos[f"{own}acts"][step])
        put("acts", acts)
        later = step + 1 < len(episode) and bool(episode.infos[f"{own}acts"][step + 1])
        put("next_acts", later)
        for name in ("rewards", "terminations", "truncations"):
            put(name, np.float32(episode.infos[f"{own}{name}"][step]))
        action = episode.actions[agent][step]
        if kind.continuous:
            size = max(width_of(kind, one) for one in AGENTS)
            put("actions", padded(action, size))
            continue
        start = 0 if kind.equal else STARTS[agent]
        put("actions", (int(action) - start) * (acts or kind.equal))
        choices = max(choices_of(kind, one) for one in AGENTS)
        put("legal", padded(legal_at(kind, episode, agent, step), choices))
        put("next_legal", padded(legal_at(kind, episode, agent, step + 1), choices))
    return {**found, "team_rewards": np.float32(episode.rewards[step])}


@settings(deadline=None, max_examples=scaled(80, 8))
@given(
    kind=KINDS,
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    size=st.integers(1, 5),
    seed=st.integers(0, 9),
    start=st.integers(0, 70),
)
def test_every_item_is_what_a_slow_loop_finds_in_the_steps_of_plain_transitions(
    write, kind, lengths, size, seed, start
):
    dataset = drawn(write, kind, lengths, seed)
    places = [(one, step) for one, length in enumerate(lengths) for step in range(length)]
    stream = orlog.agent_transitions(dataset, size, seed=seed, start=start, infos=("state",))
    plain = iter(orlog.transitions(dataset, size, seed=seed, start=start, infos=("state",)))
    rewards = [np.float32(dataset[one].rewards[step]) for one, step in places]
    assert stream.agents == AGENTS
    for batch in itertools.islice(stream, 3):
        same = next(plain)
        assert torch.equal(batch.team_rewards, same.rewards)
        assert torch.equal(batch.infos["state"], same.infos["state"])
        for item, reward in enumerate(batch.team_rewards.tolist()):
            one, step = places[rewards.index(np.float32(reward))]
            for name, value in slow_item(kind, dataset[one], step).items():
                found = getattr(batch, name)[item].numpy()
                np.testing.assert_array_equal(found, np.array(value), f"{name} of {one}, {step}")
        assert (batch.legal is None) == kind.continuous
    mask = stream.observation_mask.numpy()
    for place, agent in enumerate(AGENTS):
        wide = len(flat(dataset[0].observations[agent], 0))
        assert mask[place].tolist() == [number < wide for number in range(mask.shape[1])]


@settings(deadline=None, max_examples=scaled(80, 8))
@given(
    kind=KINDS,
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    seed=st.integers(0, 9),
    rewards=st.sampled_from(["own", "team"]),
)
def test_the_part_of_each_agent_is_an_episode_of_its_own(write, kind, lengths, seed, rewards):
    dataset = drawn(write, kind, lengths, seed)
    arrays = member_arrays(load_agents(dataset, infos=("state",)), rewards=rewards, infos=["state"])
    limited = not kind.continuous and (kind.legal != "none" or not kind.equal)
    runs = []
    for place, agent in enumerate(AGENTS):
        for episode in dataset:
            acts = episode.infos[f"agents/{agent}/acts"]
            ends = episode.infos[f"agents/{agent}/terminations"]
            ends = ends | episode.infos[f"agents/{agent}/truncations"]
            first = None
            for step in np.flatnonzero(acts).tolist():
                first = step if first is None else first
                if ends[step] or not acts[step + 1 : step + 2].any():
                    runs.append((place, agent, episode, first, step + 1))
                    first = None
    assert arrays.lengths.tolist() == [stop - first for *_, first, stop in runs]
    row = 0
    for place, agent, episode, first, stop in runs:
        for step in range(first, stop + 1):
            item = slow_item(kind, episode, min(step, len(episode) - 1))
            name = "observations" if step < len(episode) else "next_observations"
            expected = [*item[name][place], *(np.arange(len(AGENTS)) == place)]
            if limited:
                choices = max(choices_of(kind, one) for one in AGENTS)
                expected += [*padded(legal_at(kind, episode, agent, step), choices)]
            np.testing.assert_array_equal(arrays.rows[row, : arrays.obs_dim], expected)
            rest = arrays.rows[row, arrays.obs_dim :].tolist()
            assert arrays.infos is not None
            if step == stop:
                assert not any(rest)
                assert not arrays.infos.rows[row].any()
            else:
                own = f"agents/{agent}/"
                earned = episode.infos[f"{own}rewards"] if rewards == "own" else episode.rewards
                ended = step == stop - 1
                terminated = bool(episode.infos[f"{own}terminations"][step])
                assert rest[-3] == np.float32(earned[step])
                assert rest[-2:] == [ended and terminated, ended and not terminated]
                if kind.continuous:
                    assert rest[:-3] == item["actions"][place].tolist()
                else:
                    assert arrays.others["actions"][row] == item["actions"][place]
                np.testing.assert_array_equal(arrays.infos.rows[row], episode.infos["state"][step])
            row += 1
    counts = [sum(one[0] == place for one in runs) for place in range(len(AGENTS))]
    if all(counts):
        several = of_each(arrays)
        assert [len(one.lengths) for one in several] == counts
        assert torch.equal(torch.cat([one.rows for one in several]), arrays.rows)
        assert len({one.digest for one in several}) == len(AGENTS)
    else:
        with pytest.raises(SchemaError, match=r"agent .+ acts in no step, .* agents=shared"):
            of_each(arrays)


PLAIN = Kind(equal=True, continuous=False, legal="infos")


def test_any_batch_rank_worker_and_place_has_the_same(write):
    dataset = drawn(write, PLAIN, [5, 3, 9, 2], 1)
    stream = orlog.agent_transitions(dataset, 4, seed=1)
    whole = list(itertools.islice(stream, 70))

    def check(one, other):
        for field in dataclasses.fields(one):
            if field.name != "infos":
                assert torch.equal(getattr(one, field.name), getattr(other, field.name)), field.name

    for index in (0, 5, 63, 64, 69):
        check(stream.batch(index), whole[index])
    for one, other in zip(whole[:6], DataLoader(stream, batch_size=None, num_workers=2), strict=False):
        check(one, other)
    halves = [orlog.agent_transitions(dataset, 4, seed=1, rank=rank, ranks=2) for rank in (0, 1)]
    for one, *parts in zip(whole[:5], *halves, strict=False):
        both = {
            field.name: torch.cat([getattr(part, field.name) for part in parts])
            for field in dataclasses.fields(one)
            if field.name != "infos"
        }
        check(one, AgentBatch(**both))
    mapped = orlog.agent_transitions(load_agents(dataset, "mmap"), 4, seed=1)
    for one, other in zip(whole[:5], mapped, strict=False):
        check(one, other)
    again = pickle.loads(pickle.dumps(stream))
    check(next(iter(again)), whole[0])


def test_actions_of_several_choices_and_columns_of_one_name_are_given_side_by_side(write):
    dataset = drawn(write, PLAIN, [4, 2], 0)
    batch = next(iter(orlog.transitions(dataset, 3, seed=0, infos=("agents/*/acts",))))
    agents = next(iter(orlog.agent_transitions(dataset, 3, seed=0)))
    assert batch.actions.shape == (3, 3)
    assert torch.equal(batch.actions, agents.actions)
    assert torch.equal(batch.infos["agents/*/acts"], agents.acts)
    unequal = drawn(write, dataclasses.replace(PLAIN, equal=False), [4], 0)
    with pytest.raises(SchemaError, match=r"columns of agents/\*/legals are given side by side only"):
        orlog.load_arrays(unequal, infos=("agents/*/legals",))
    with pytest.raises(NotFoundError, match=r"no info 'agents/\*/nothing'"):
        orlog.load_arrays(dataset, infos=("agents/*/nothing",))


# --- what is refused


def test_an_empty_set_of_legal_actions_names_agent_episode_and_step(write):
    episodes = [episode_of(PLAIN, 4, number, np.ones((4, 3), bool)) for number in range(3)]
    legal = episodes[1].infos["agents/c_2/legals"]
    legal[2] = 0
    dataset = write(episodes, *spaces_of(PLAIN))
    message = r"agent c_2 acts in step 2 of episode 1, but none of its actions is legal there"
    with pytest.raises(SchemaError, match=f"{dataset.name}: {message}"):
        orlog.agent_transitions(dataset, seed=0)
    episodes[1].infos["agents/c_2/acts"][2] = False  # of one that takes no part it says nothing
    orlog.agent_transitions(write(episodes, *spaces_of(PLAIN)), seed=0)


def test_data_of_one_agent_and_arrays_that_were_loaded_otherwise_are_refused(write):
    one = spaces.Box(-1, 1, (2,), np.float32)
    seen = np.zeros((3, 2), np.float32)
    flags = np.zeros(2, bool)
    single = Episode(observations=seen, actions=seen[:2], rewards=np.ones(2), terminations=flags, truncations=flags)
    with pytest.raises(SchemaError, match="these are no data of several agents"):
        orlog.agent_transitions(write([single], one, one), seed=0)
    dataset = drawn(write, PLAIN, [4], 0)
    with pytest.raises(SchemaError, match=r"load them with orlog\.loaders\.agent_transitions\.load_agents\(ds\)"):
        orlog.agent_transitions(orlog.load_arrays(dataset), seed=0)
    both = load_agents(orlog.combine_datasets([dataset, dataset], weights=[0.5, 0.5]))
    with pytest.raises(SchemaError, match="weighted mixture of teams"):
        member_arrays(both)


@pytest.mark.parametrize(
    ("observed", "acted", "words"),
    [
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), spaces.Discrete(2), r"agent b observes Box\(0, 255"),
        (spaces.Discrete(3), spaces.Discrete(2), r"agent b observes Discrete\(3\)"),
        (spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)), "mix floats and integers|agent b has actions in Box"),
        (spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2), r"agent b has actions in MultiBinary\(2\)"),
    ],
)
def test_spaces_that_no_batch_can_hold_name_the_agent(write, observed, acted, words):
    observations = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": observed})
    actions = spaces.Dict({"a": spaces.Discrete(2), "b": acted})
    episode = whole_episode(
        {key: np.stack([one.sample()] * 3) for key, one in observations.items()},
        {key: np.stack([one.sample()] * 2) for key, one in actions.items()},
        np.ones(2),
        end="",
        infos={f"agents/{agent}/acts": np.ones(2, bool) for agent in "ab"},
    )
    with pytest.raises(SchemaError, match=words):
        orlog.agent_transitions(write([episode], observations, actions), seed=0)


def test_what_agents_do_not_have_of_their_own_is_the_teams(write):
    episode = episode_of(PLAIN, 4, 0, np.ones((4, 3), bool))
    infos = {key: value for key, value in episode.infos.items() if key.endswith("acts")}
    dataset = write([dataclasses.replace(episode, infos=infos)], *spaces_of(PLAIN))
    batch = next(iter(orlog.agent_transitions(dataset, 8, seed=0)))
    assert torch.equal(batch.rewards, batch.team_rewards[:, None].expand(-1, 3))
    assert batch.terminations.any()
    assert torch.equal(batch.terminations, batch.terminations[:, :1].expand(-1, 3))
