"""Infos in batches of every kind, against slow loops over the episodes."""

import dataclasses
import functools
import itertools
import os
import pickle
import time

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.errors import NotFoundError, SchemaError
from orlog.loaders.arrays import read_arrays
from orlog.loaders.best_episodes import best_transitions
from orlog.loaders.goals import states_and_goals, states_and_subgoals
from orlog.loaders.packs import cached_packs, open_pack, pack_folder
from orlog.loaders.transforms import normalize_observations, scale_rewards
from orlog.loaders.weights import weighted
from tests.batches import columns
from tests.episodes import whole_episode
from tests.levels import scaled

FLAT = spaces.Box(-np.inf, np.inf, (2,), np.float32)
FRAMES = spaces.Dict({"camera": spaces.Box(0, 255, (3, 4, 1), np.uint8), "speed": FLAT})
ACTION = spaces.Box(-1, 1, (1,), np.float32)
ENDS = st.sampled_from(["termination", "truncation", "cut"])
STRUCTURES = st.lists(st.tuples(st.integers(1, 7), ENDS), min_size=1, max_size=6)
NAMES = (
    "cost",
    "sensor/front",
    "half",
    "image",
    "count",
    "large",
    "bits",
    "safe",
    "said",
    "episodes/task",
    "episodes/words",
    "episodes/seeds",
)
DTYPES = {
    "image": torch.uint8,
    "safe": torch.bool,
    **dict.fromkeys(("cost", "sensor/front", "half"), torch.float32),
}  # of all others, int64
POLICY = {"policy_goals": (0.0, 1.0, 0.0)}

KINDS = {
    "transitions": (orlog.transitions, {}, True),
    "n steps": (orlog.transitions, {"n_steps": 3}, True),
    "next actions": (orlog.transitions, {"next_actions": True}, True),
    "best": (best_transitions, {"percent": 60.0}, True),
    "returns": (orlog.transitions, {"returns_to_go": True}, True),
    "sequences": (orlog.sequences, {"length": 3}, True),
    "left": (orlog.sequences, {"length": 3, "padding": "left", "with_next": True}, True),
    "chunks": (orlog.action_chunks, {"length": 2}, True),
    "episodes": (orlog.episodes, {}, True),
    "packed": (orlog.episodes, {"layout": "packed"}, True),
    "frames": (orlog.transitions, {"stacks": 2, "n_steps": 2}, False),
    "goals": (orlog.goals, {}, True),
    "subgoals": (orlog.subgoals, {"steps": 2}, True),
    "states": (states_and_goals, POLICY, True),
    "substates": (states_and_subgoals, {**POLICY, "value_goals": (0, 1, 0), "steps": 2}, True),
    "priorities": (orlog.transitions, {"prioritized": True}, True),
    "preferences": (orlog.preferences, {"length": 2, "label": "none"}, True),
    "streamed": (orlog.transitions, {"stream": True, "buffer_bytes": 4000}, True),
}
"""How each kind is asked for, and whether it takes flat observations."""


def episode_of(length, end, space, number):
    """Return an episode whose rewards are unlike those of any other step."""
    rng = np.random.default_rng(number)
    observations = rng.normal(size=(length + 1, 2)).astype(np.float32)
    if isinstance(space, spaces.Dict):
        frames = rng.integers(0, 256, (length + 1, 3, 4, 1), np.uint8)
        observations = {"camera": frames, "speed": observations}
    return whole_episode(
        observations,
        rng.uniform(-1, 1, (length, 1)).astype(np.float32),
        np.arange(length) + 1.0 + 100 * number,
        end=end,
        infos={
            "cost": rng.normal(size=length),
            "sensor/front": rng.normal(size=(length, 2, 3)).astype(np.float32),
            "half": rng.normal(size=length).astype(np.float16),
            "image": rng.integers(0, 256, (length, 2, 3), np.uint8),
            "count": rng.integers(-(2**15), 2**15, length).astype(np.int16),
            "large": rng.integers(0, 2**40, (length, 2)).astype(np.uint64),
            "bits": rng.integers(0, 256, (length, 2), np.uint8),
            "safe": rng.random(length) < 0.5,
            "said": [f"word {one}" for one in rng.integers(0, 4, length)],
            "any": [np.arange(one) for one in range(length)],
        },
        seed=number,
        metadata={"task": number % 3, "words": ["push", "pull"][number % 2]},
    )


def made(write, structure, *, flat=True):
    space = FLAT if flat else FRAMES
    episodes = [episode_of(*one, space, number) for number, one in enumerate(structure)]
    return write(episodes, space, ACTION)


def slow_infos(dataset, texts):
    """Return the infos of each step by its reward, which no other step has; 0 is no step."""
    found = {}
    for episode in dataset:
        for step in range(len(episode)):
            infos = {
                name: np.asarray(values[step]) for name, values in episode.infos.items() if name not in ("said", "any")
            }
            infos["said"] = np.array(texts["infos/said"].index(episode.infos["said"][step]))
            words = episode.metadata["words"]
            infos["episodes/words"] = np.array(texts["episodes/words"].index(words))
            infos["episodes/task"] = np.asarray(episode.metadata["task"])
            infos["episodes/seeds"] = np.array(episode.seed)
            found[float(np.float32(episode.rewards[step]))] = infos
    some = next(iter(found.values()))
    found[0.0] = {name: np.zeros_like(value) for name, value in some.items()}
    return found


def rewards_of(kind, arrays, batch):
    """Return the rewards of the steps of a batch, as recorded, in the shape of its infos."""
    if kind in ("n steps", "frames", "chunks", "goals", "subgoals", "states", "substates"):
        steps = torch.from_numpy(arrays.step_rows())
        firsts = arrays.rows[steps][:, : arrays.obs_dim]
        observed = batch.observations
        if isinstance(observed, dict):
            observed = observed["speed"]
        (rows, places) = (firsts[:, None] == observed).all(2).nonzero().unbind(1)
        rewards = arrays.rows[steps[rows[places.argsort()]], -3]
        if kind != "chunks":
            return rewards
        later = [torch.where(valid, rewards[one] + torch.arange(2), 0) for one, valid in enumerate(batch.valid)]
        return torch.stack(later)
    return batch.rewards


def check(kind, arrays, expected, batch):
    """Assert that the infos of a batch are those of its steps."""
    rewards = rewards_of(kind, arrays, batch)
    assert list(batch.infos) == list(NAMES)
    for name, found in batch.infos.items():
        assert found.dtype == DTYPES.get(name, torch.int64), name
        values = np.stack([expected[one][name] for one in rewards.flatten().tolist()])
        if values.dtype == np.float64:
            values = values.astype(np.float32)
        wanted = values.reshape(*rewards.shape, *values.shape[1:])
        assert found.shape == wanted.shape, name
        np.testing.assert_array_equal(found.numpy(), wanted.astype(found.numpy().dtype), name)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=scaled(24))
@given(structure=STRUCTURES, size=st.integers(1, 5), seed=st.integers(0, 9), data=st.data())
def test_every_kind_gives_the_infos_of_its_steps(write, kind, structure, size, seed, data):
    stream, options, flat = KINDS[kind]
    structure = [(max(3, length), end) for length, end in structure[:1]] + structure[1:]
    dataset = made(write, structure, flat=flat if kind != "streamed" else data.draw(st.booleans()))
    arrays = read_arrays(dataset, infos=data.draw(st.permutations(NAMES)))
    expected = slow_infos(dataset, arrays.texts)
    given_ = dataset if kind == "streamed" else arrays
    options = {"batch_size": size, "seed": seed, "start": data.draw(st.integers(0, 70)), **options}
    plain = iter(stream(given_, **options))
    for batch in itertools.islice(stream(given_, infos=NAMES, **options), 3):
        check(kind, arrays, expected, batch)
        without = next(plain)
        assert without.infos == {}
        for name in columns(batch):  # the items are the same
            one, other = getattr(batch, name), getattr(without, name)
            if not isinstance(one, dict):
                one, other = {"": one}, {"": other}
            for key, value in one.items():
                if value is not None:
                    np.testing.assert_array_equal(value.numpy(), other[key].numpy())


@pytest.fixture(scope="module")
def dataset(write):
    return made(write, [(4, "termination"), (6, "truncation"), (3, "cut"), (9, "termination")])


STREAMS = {
    "transitions": orlog.transitions,
    "sequences": lambda data, size, **more: orlog.sequences(data, size, length=4, **more),
    "episodes": orlog.episodes,
    "packed": lambda data, size, **more: orlog.episodes(data, size, layout="packed", **more),
}


def same(one, other):
    for name, value in one.infos.items():
        assert torch.equal(value, other.infos[name]), name
    assert list(one.infos) == list(other.infos)


def test_a_batch_with_infos_goes_elsewhere_as_a_whole(dataset):
    batch = orlog.transitions(dataset, 4, seed=0, infos=("cost", "safe")).batch(0)
    assert "infos={'cost': float32[4], 'safe': bool[4]})" in " ".join(repr(batch).split())
    assert "infos" not in repr(orlog.transitions(dataset, 4, seed=0).batch(0))
    assert {one.device.type for one in batch.to("meta").infos.values()} == {"meta"}
    same(pickle.loads(pickle.dumps(batch)), batch)
    same(dataclasses.replace(batch, rewards=batch.rewards + 1), batch)
    assert isinstance(hash(batch), int)


def equal(found, expected):
    for name in ("rows", "obs_dim", "ends", "texts", "observation_leaves", "digest", "name"):
        one, other = getattr(found, name), getattr(expected, name)
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other, name
    assert found.others.keys() == expected.others.keys()
    for name, values in expected.others.items():
        assert torch.equal(found.others[name], values)
        assert found.others[name].dtype == values.dtype


def files_of(folder):
    return {one.name: one.read_bytes() for one in folder.iterdir()}


@pytest.mark.parametrize("names", [NAMES, ("cost",), ("image",), ("episodes/task",), ("said",)])
def test_a_pack_of_infos_is_what_would_be_in_memory(dataset, names, tmp_path, monkeypatch):
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path))
    open_pack(dataset)
    before = files_of(pack_folder(dataset))
    expected = read_arrays(dataset, infos=names)
    for _ in range(2):  # made, and then opened
        mapped = open_pack(dataset, infos=names[::-1])
        assert mapped.infos is not None
        assert expected.infos is not None
        equal(mapped, expected)
        equal(mapped.infos, dataclasses.replace(expected.infos, digest=mapped.infos.digest))
        assert len(list((tmp_path / "packs").glob("*/pack.json"))) == 2
    assert files_of(pack_folder(dataset)) == before  # that of the transitions is left alone
    kept = {one.name: one.is_view for one in cached_packs()}
    assert kept == {dataset.name: False, f"{dataset.name} (infos: {', '.join(sorted(names))})": False}
    mapped = open_pack(dataset, infos=names)
    assert mapped.infos is not None
    reopened = pickle.loads(pickle.dumps(mapped))
    equal(reopened, mapped)
    assert reopened.infos is not None
    equal(reopened.infos, mapped.infos)
    for one, other in itertools.islice(
        zip(
            orlog.transitions(mapped, 5, seed=0, infos=names),
            orlog.transitions(expected, 5, seed=0, infos=names),
            strict=True,
        ),
        3,
    ):
        same(one, other)


def test_a_damaged_pack_of_infos_is_made_again(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path))
    expected = read_arrays(dataset, infos=("cost", "image"))
    mapped = open_pack(dataset, infos=("cost", "image"))
    assert isinstance(mapped.infos, type(mapped))
    for name in ("rows.f32", "other0.uint8"):
        path = mapped.infos.folder / name
        data = bytearray(path.read_bytes())
        data[3] ^= 1
        path.write_bytes(data)
        os.utime(path, (time.time() + 2, time.time() + 2))
        again = open_pack(dataset, infos=("cost", "image"))
        assert again.infos is not None
        assert expected.infos is not None
        equal(again.infos, dataclasses.replace(expected.infos, digest=again.infos.digest))


def test_views_have_their_own_infos(dataset):
    view = dataset[[3, 1]]
    found = read_arrays(view, infos=NAMES)
    expected = slow_infos(view, found.texts)
    for batch in itertools.islice(orlog.sequences(found, 4, length=5, seed=0, infos=NAMES), 3):
        check("sequences", found, expected, batch)
    both = orlog.combine_datasets([view, dataset[:1]], weights=[0.5, 0.5])
    mixed = orlog.load_arrays(both, "ram", infos=("cost", "said"))
    assert set(orlog.transitions(mixed, 8, seed=0, infos=("said",)).batch(0).infos) == {"said"}


def test_weights_and_transforms_keep_infos(dataset):
    weights = np.ones(dataset.total_steps)
    arrays = weighted(dataset, weights, infos=("cost",))
    changed = scale_rewards(normalize_observations(arrays), scale=2.0)
    batch = orlog.transitions(changed, 64, seed=0, infos=("cost",)).batch(0)
    everything = np.concatenate([np.asarray(one.infos["cost"]) for one in dataset])
    assert set(batch.infos["cost"].tolist()) <= set(everything.astype(np.float32).tolist())


def test_arrays_elsewhere_have_their_infos(dataset):
    moved = read_arrays(dataset, infos=NAMES).to("meta")
    assert moved.infos is not None
    assert moved.infos.rows.device.type == "meta"
    assert {one.device.type for one in moved.infos.others.values()} == {"meta"}


def wrong_infos():
    yield ("costs",), NotFoundError, r"no info 'costs'; did you mean cost\?"
    yield ("rewards",), NotFoundError, r"It has: .*cost, .*episodes/task"
    yield ("any",), SchemaError, "infos/any may have another length"
    yield "cost", TypeError, r"infos must be names such as \(\"cost\",\), found str 'cost'"
    yield ("cost", 3), TypeError, "each of infos must be the name of an info, found int 3"
    yield ("cost", "cost"), ValueError, "'cost' is given more than once"


@pytest.mark.parametrize(("infos", "error", "message"), list(wrong_infos()))
@pytest.mark.parametrize("where", ["ram", "mmap"])
def test_wrong_infos_are_refused_before_anything_is_read(dataset, infos, error, message, where, tmp_path, monkeypatch):
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path))
    with pytest.raises(error, match=message):
        orlog.load_arrays(dataset, where, infos=infos)
    for stream in (orlog.transitions, functools.partial(orlog.transitions, stream=True)):
        with pytest.raises(error, match=message):
            stream(dataset, 4, seed=0, infos=infos)
    assert not (tmp_path / "packs").exists()


def test_arrays_without_an_info_say_what_to_call(dataset):
    without = read_arrays(dataset)
    with pytest.raises(SchemaError, match=r"no infos, without 'cost'.*load_arrays\(ds, infos=\('cost',"):
        orlog.transitions(without, 4, seed=0, infos=("cost",))
    other = read_arrays(dataset, infos=("safe",))
    with pytest.raises(SchemaError, match=r"infos safe, without 'cost'.*infos=\('safe', 'cost'\)"):
        orlog.goals(other, 4, seed=0, infos=("safe", "cost"))


def test_a_number_that_is_not_finite_is_refused_or_taken(write):
    episode = episode_of(4, "cut", FLAT, 0)
    episode.infos["cost"][2] = np.nan
    dataset = write([episode], FLAT, ACTION)
    with pytest.raises(SchemaError, match="in column infos/cost, episode 0, step 2"):
        orlog.load_arrays(dataset, "ram", infos=("cost",))
    arrays = orlog.load_arrays(dataset, "ram", infos=("cost",), allow_non_finite=True)
    batch = orlog.episodes(arrays, 1, seed=0, infos=("cost",)).batch(0)
    assert batch.infos["cost"].isnan().tolist() == [[False, False, True, False]]


def test_an_integer_that_int64_cannot_hold_is_refused(write):
    episode = episode_of(4, "cut", FLAT, 0)
    episode.infos["large"][1, 1] = 2**63
    dataset = write([episode], FLAT, ACTION)
    with pytest.raises(SchemaError, match=f"infos/large holds {2**63}, more than int64 can"):
        orlog.load_arrays(dataset, "ram", infos=("large",))


@pytest.mark.parametrize("kind", STREAMS)
def test_some_of_what_was_loaded_is_the_same_as_all(dataset, kind):
    arrays = read_arrays(dataset, infos=NAMES)
    whole = STREAMS[kind](arrays, 4, seed=1, infos=NAMES).batch(0)
    for name in NAMES:
        alone = STREAMS[kind](arrays, 4, seed=1, infos=(name,)).batch(0)
        assert torch.equal(alone.infos[name], whole.infos[name])
