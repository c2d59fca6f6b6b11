"""Windows around steps, against a slow loop over the episodes."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import orlog
from orlog.errors import SchemaError
from orlog.loaders import streams
from orlog.loaders.arrays import Arrays, read_arrays
from orlog.loaders.weights import weighted
from orlog.loaders.windows import WindowSampler, as_offsets
from tests.batches import columns
from tests.levels import scaled

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
CAMERA = spaces.Dict({"camera": spaces.Box(0, 255, (2, 3, 1), np.uint8), "state": BOX})
ACTION = spaces.Box(-2, 3, (2,), np.float32)
SPACES = [(BOX, ACTION), (CAMERA, ACTION), (BOX, spaces.Discrete(5)), (spaces.Discrete(9), ACTION)]
ENDS = st.sampled_from(["termination", "truncation", "cut"])
STRUCTURES = st.lists(st.tuples(st.integers(1, 7), ENDS), min_size=1, max_size=5)
OFFSETS = st.lists(st.integers(-9, 9), min_size=1, max_size=6, unique=True)


def parts(values):
    return values if isinstance(values, dict) else {"": values}


def slow_window(values, step, offsets, count, repeats):
    """Return the values around a step of an episode that has `count` of them, and which exist."""
    found, exists = [], []
    for offset in offsets:
        place = step + offset
        exists.append(0 <= place < count)
        nearest = np.asarray(values[min(max(place, 0), count - 1)])
        found.append(nearest if repeats or exists[-1] else np.zeros_like(nearest))
    return np.stack(found), np.array(exists)


def flatten(batch):
    found = {}
    for name in columns(batch):
        value = getattr(batch, name)
        if value is not None:
            found |= {f"{name}/{key}": one.numpy() for key, one in parts(value).items()}
    return found | {f"infos/{name}": one.numpy() for name, one in batch.infos.items()}


@settings(deadline=None, max_examples=scaled(80))
@given(
    structure=STRUCTURES,
    observations=OFFSETS,
    actions=OFFSETS,
    padding=st.sampled_from(["edge", "zero"]),
    rewards=st.booleans(),
    spaces_=st.sampled_from(SPACES),
)
def test_every_window_is_the_one_of_a_slow_loop(
    write, make, structure, observations, actions, padding, rewards, spaces_
):
    rng = np.random.default_rng(len(structure))
    episodes = [make(*spaces_, length=steps, end=end, rng=rng) for steps, end in structure]
    for number, episode in enumerate(episodes):
        episode.infos["cost"] = 1 + 10 * number + np.arange(len(episode))
    dataset = write(episodes, *spaces_)
    arrays = read_arrays(dataset, infos=("cost", "episodes/lengths"))
    options = {"observations": observations, "actions": actions}
    options |= {"padding": padding, "rewards": rewards}
    sampler, count = WindowSampler(arrays, **options), arrays.total_steps
    chosen = sampler.choose(((np.arange(count) + 0.5) / count)[:, None])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "_BLOCK_BYTES", 300)
        pieces = [flatten(one) for one in sampler.gather_many(chosen, 1)]
    batch = flatten(sampler.gather(chosen))
    for name, value in batch.items():
        np.testing.assert_array_equal(np.concatenate([one[name] for one in pieces]), value)
    rows = sampler.rows_of(chosen)
    place, repeats = 0, padding == "edge"
    for episode in dataset:
        length = len(episode)
        for step in range(length):
            found = {name: value[place] for name, value in batch.items()}
            for key, values in parts(episode.observations).items():
                expected, seen = slow_window(values, step, observations, length + 1, repeats)
                np.testing.assert_array_equal(found.pop(f"observations/{key}"), expected)
                np.testing.assert_array_equal(found["observations_valid/"], seen)
            del found["observations_valid/"]
            expected, valid = slow_window(episode.actions, step, actions, length, repeats)
            np.testing.assert_array_equal(found.pop("actions/"), expected)
            np.testing.assert_array_equal(found.pop("valid/"), valid)
            expected, _ = slow_window(episode.rewards, step, actions, length, repeats=False)
            if rewards:
                np.testing.assert_array_equal(found.pop("rewards/"), expected.astype(np.float32))
            assert found == {}
            expected, _ = slow_window(episode.infos["cost"], step, actions, length, repeats=False)
            assert arrays.infos is not None
            costs = arrays.infos.others["infos/cost"][rows[place]]
            np.testing.assert_array_equal(costs.numpy(), expected)
            place += 1


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    lengths = np.array([5, 1, 9])
    rows = torch.from_numpy(rng.normal(size=(18, 7)).astype(np.float32))
    rows[[5, 7, 17], 3:] = 0
    return Arrays(rows=rows, lengths=lengths, obs_dim=3, action_dim=1, name="small", digest="d")


@pytest.mark.parametrize("padding", ["edge", "zero"])
def test_any_start_rank_and_worker_gives_the_same(arrays, padding):
    def make(**options):
        return orlog.windows(arrays, 4, seed=3, padding=padding, rewards=True, **options)

    whole = list(itertools.islice(make(), 70))
    halves = [make(rank=rank, ranks=2, start=62) for rank in (0, 1)]
    loader = DataLoader(make(), batch_size=None, num_workers=2)
    for one, other in zip(whole, loader, strict=False):
        same(one, other)
    for index, *both in zip(range(62, 70), *halves, strict=False):
        same(make().batch(index), whole[index])
        for name in columns(whole[0]):
            joined = torch.cat([getattr(one, name) for one in both])
            assert torch.equal(joined, getattr(whole[index], name))


def same(one, other):
    for name in columns(one):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_the_steps_are_the_same_for_all_offsets_and_follow_weights(arrays):
    near = orlog.windows(arrays, 64, seed=0, observations=(0,), actions=(0,)).batch(2)
    far = orlog.windows(arrays, 64, seed=0, observations=(3, 0, -2), actions=(5, 0)).batch(2)
    assert torch.equal(parts(near.observations)[""][:, 0], parts(far.observations)[""][:, 1])
    assert torch.equal(near.actions[:, 0], far.actions[:, 1])
    first = weighted(arrays, np.eye(1, arrays.total_steps)[0])
    batch = orlog.windows(first, 8, seed=0, observations=(0,), actions=(0,)).batch(0)
    assert torch.equal(parts(batch.observations)[""][:, 0], arrays.rows[:1, :3].expand(8, -1))


def test_images_are_those_of_stacks(write, make):
    rng = np.random.default_rng(0)
    dataset = write([make(CAMERA, ACTION, length=6, end="cut", rng=rng)], CAMERA, ACTION)
    batch = orlog.windows(dataset, 32, seed=0, observations=range(-2, 1), actions=(0,)).batch(0)
    assert isinstance(batch.observations, dict)
    camera = batch.observations["camera"]
    assert (camera.dtype, camera.shape) == (torch.uint8, (32, 3, 2, 3, 1))
    stacks = {}
    for one in itertools.islice(orlog.transitions(dataset, 32, stacks=3, seed=0), 3):
        seen = parts(one.observations)
        for state, stack in zip(seen["state"], seen["camera"], strict=True):
            stacks[state.numpy().tobytes()] = stack
    for state, stack in zip(batch.observations["state"][:, 2], camera, strict=True):
        assert torch.equal(stacks[state.numpy().tobytes()], stack)


@pytest.mark.parametrize(
    ("offsets", "error", "message"),
    [
        ((), ValueError, "actions: expected different offsets"),
        ((0, 1, 0), ValueError, "actions: expected different offsets"),
        ((0, 0.5), TypeError, "each of actions must be an integer, found float 0.5"),
        ((0, True), TypeError, "each of actions must be an integer, found bool True"),
        ("01", TypeError, "actions must be offsets in steps"),
        (3, TypeError, "actions must be offsets in steps"),
        ((2**40,), ValueError, "actions: expected different offsets"),
    ],
)
def test_wrong_offsets_are_refused(arrays, offsets, error, message):
    with pytest.raises(error, match=message):
        orlog.windows(arrays, 4, seed=0, actions=offsets)
    with pytest.raises(error, match=message.replace("actions", "observations")):
        orlog.windows(arrays, 4, seed=0, observations=offsets)


def test_offsets_may_be_of_numpy_and_padding_is_one_of_two(arrays):
    assert as_offsets("actions", np.arange(-1, 2)) == [-1, 0, 1]
    with pytest.raises(ValueError, match="padding must be 'edge' or 'zero', found 'edges'"):
        orlog.windows(arrays, 4, seed=0, padding="edges")


def test_final_observations_that_were_never_recorded_are_not_given(arrays):
    lacking = dataclasses.replace(arrays, missing_finals=(1,))
    with pytest.raises(SchemaError, match="an observation after a step would give zeros"):
        orlog.windows(lacking, 4, seed=0, observations=(0, 1))
    orlog.windows(lacking, 4, seed=0, observations=(-1, 0)).batch(0)


def test_infos_are_those_of_the_actions(write, make):
    rng = np.random.default_rng(0)
    episode = make(BOX, ACTION, length=4, end="cut", rng=rng)
    episode.infos["cost"] = np.arange(1, 5)
    dataset = write([episode], BOX, ACTION)
    stream = orlog.windows(dataset, 16, seed=0, actions=(0, 1, -1), infos=("cost",))
    costs = next(iter(stream)).infos["cost"]
    steps = costs[:, 0]
    assert torch.equal(costs[:, 1], torch.where(steps < 4, steps + 1, 0))
    assert torch.equal(costs[:, 2], steps - 1)
