import dataclasses
import hashlib
import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog import load_dataset, transitions
from orlog.loaders.arrays import Arrays, Leaf
from orlog.loaders.batch import Batch
from orlog.loaders.streams import BLOCK, Batches, draw, stream_key
from orlog.loaders.transitions import TransitionSampler
from tests.batches import columns
from tests.levels import scaled

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(-1, 1, (2,), np.float32)
DIGEST = "sha256:" + "0" * 64


@pytest.fixture(scope="module")
def dataset(write, make):
    rng = np.random.default_rng(1)
    ends = itertools.cycle(["termination", "truncation", "cut"])
    episodes = [make(OBS, ACTION, length=length, end=next(ends), rng=rng) for length in (1, 5, 1, 9, 3)]
    return write(episodes, OBS, ACTION)


def numbered(steps):
    """Return transitions of one episode whose observations and rewards are 0, 1, 2, ..."""
    rows = torch.zeros(steps + 1, 1 + 1 + 3)
    rows[:, 0] = rows[:, 2] = torch.arange(steps + 1)
    return Arrays(rows=rows, lengths=np.array([steps]), obs_dim=1, action_dim=1)


def same(one, other):
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in columns(Batch))


def digest_of(stream, batches):
    total = hashlib.sha256()
    for batch in itertools.islice(stream, batches):
        for name in columns(Batch):
            total.update(getattr(batch, name).contiguous().numpy().tobytes())
    return total.hexdigest()


@settings(deadline=None, max_examples=scaled(30))
@given(
    start=st.one_of(st.integers(0, 3), st.integers(BLOCK - 2, BLOCK + 2), st.integers(0, 10**9)),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 2**70),
)
def test_iterating_from_any_start_gives_the_batches_of_that_place(start, batch_size, seed):
    packed = numbered(101)
    stream = Batches(TransitionSampler(packed), DIGEST, batch_size=batch_size, seed=seed, start=start)
    fresh = Batches(TransitionSampler(packed), DIGEST, batch_size=batch_size, seed=seed)
    for index, batch in enumerate(itertools.islice(stream, BLOCK + 3), start):
        assert same(batch, fresh.batch(index))
    assert same(next(iter(stream)), fresh.batch(start))


def test_starting_late_equals_skipping():
    packed = numbered(50)
    whole = list(itertools.islice(Batches(TransitionSampler(packed), DIGEST, batch_size=3, seed=0), 3 * BLOCK))
    for start in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK):
        late = Batches(TransitionSampler(packed), DIGEST, batch_size=3, seed=0, start=start)
        for one, other in zip(whole[start:], late, strict=False):
            assert same(one, other)


@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_batches_are_slices_of_one_stream_of_draws(batch_size):
    packed = numbered(50)
    stream = Batches(TransitionSampler(packed), DIGEST, batch_size=batch_size, seed=2)
    found = torch.cat([batch.rewards for batch in itertools.islice(stream, BLOCK + 5)])
    expected = draw(stream_key(DIGEST, 2), 0, (BLOCK + 5) * batch_size, 50)
    assert found.tolist() == expected.tolist()


def test_every_batch_holds_rows_of_the_dataset(dataset):
    known = set()
    for episode in dataset:
        assert isinstance(episode.observations, np.ndarray)
        assert isinstance(episode.actions, np.ndarray)
        for step in range(len(episode)):
            row = [
                *episode.observations[step],
                *episode.actions[step],
                np.float32(episode.rewards[step]),
                episode.terminations[step],
                episode.truncations[step],
                *episode.observations[step + 1],
            ]
            known.add(tuple(float(value) for value in row))
    seen = set()
    for batch in itertools.islice(transitions(dataset, 8, seed=0), 40):
        for index in range(8):
            parts = (
                batch.observations[index],
                batch.actions[index],
                batch.rewards[index : index + 1],
                batch.terminations[index : index + 1],
                batch.truncations[index : index + 1],
                batch.next_observations[index],
            )
            seen.add(tuple(torch.cat(parts).tolist()))
    assert seen == known  # 320 draws of 19 transitions leave none out


def test_next_actions_are_those_of_the_next_step_of_the_same_episode(dataset):
    following = {}
    for episode in dataset:
        assert isinstance(episode.observations, np.ndarray)
        assert isinstance(episode.actions, np.ndarray)
        for step in range(len(episode)):
            next_action = episode.actions[step + 1] if step + 1 < len(episode) else None
            following[tuple(episode.observations[step].tolist())] = next_action
    plain = transitions(dataset, 8, seed=0)
    stream = transitions(dataset, 8, seed=0, next_actions=True)
    kinds = set()
    for batch, other in itertools.islice(zip(plain, stream, strict=False), 40):
        assert isinstance(other, Batch)
        assert same(batch, other)
        for index, row in enumerate(other.observations.tolist()):
            expected = following[tuple(row)]
            kinds.add(expected is None)
            assert other.has_next_action[index].item() == (expected is not None)
            found = other.next_actions[index].numpy()
            np.testing.assert_array_equal(found, 0 if expected is None else expected)
    assert kinds == {True, False}
    again = pickle.loads(pickle.dumps(stream))
    assert torch.equal(next(iter(again)).next_actions, next(iter(stream)).next_actions)


def test_next_actions_are_the_same_where_observations_are_frames():
    rng = np.random.default_rng(0)
    lengths = np.array([1, 7, 3, 12])
    rows = torch.from_numpy(rng.normal(size=(27, 3 + 2 + 3)).astype(np.float32))
    rows[np.cumsum(lengths + 1) - 1, 3:] = 0
    flat = Arrays(rows=rows, lengths=lengths, obs_dim=3, action_dim=2)
    eye = torch.from_numpy(rng.integers(0, 256, (27, 4, 4), np.uint8))
    leaves = {"eye": Leaf(column="eye"), "speed": Leaf(shape=(3,))}
    mixed = dataclasses.replace(flat, others={"eye": eye}, observation_leaves=leaves)
    streams = (transitions(one, 16, seed=1, next_actions=True) for one in (flat, mixed))
    for batch, other, _ in zip(*streams, range(5), strict=False):
        assert isinstance(other, Batch)
        assert isinstance(other.observations, dict)
        assert torch.equal(batch.observations, other.observations["speed"])
        for name in ("actions", "next_actions", "has_next_action"):
            assert torch.equal(getattr(batch, name), getattr(other, name))


def test_a_new_process_draws_the_same_batches(dataset):
    script = (
        "import sys, itertools, hashlib, dataclasses, pathlib\n"
        "from orlog.loaders.batch import Batch\n"
        "import orlog\n"
        "total = hashlib.sha256()\n"
        "data = orlog.load_dataset(pathlib.Path(sys.argv[1]))\n"
        "for batch in itertools.islice(orlog.transitions(data, 7, seed=3, start=60), 10):\n"
        "    for field in dataclasses.fields(Batch)[1:7]:\n"
        "        total.update(getattr(batch, field.name).contiguous().numpy().tobytes())\n"
        "print(total.hexdigest())\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", script, str(dataset.folder)], check=True, capture_output=True, text=True
    )
    assert child.stdout.strip() == digest_of(transitions(dataset, 7, seed=3, start=60), 10)


def test_batches_are_float32_of_the_asked_size(mini):
    batch = transitions(mini, seed=0).batch(0)
    for name in columns(Batch):
        tensor = getattr(batch, name)
        assert tensor.dtype == torch.float32
        assert len(tensor) == 256
    assert batch.rewards.ndim == batch.terminations.ndim == batch.truncations.ndim == 1


def test_a_stream_depends_on_seed_and_on_the_dataset(mini_folder):
    mini = load_dataset(mini_folder)
    packed = transitions(mini, seed=0).arrays
    streams = [
        Batches(TransitionSampler(packed), digest, batch_size=16, seed=seed)
        for digest, seed in [(mini.digest, 0), (mini.digest, 1), (DIGEST, 0)]
    ]
    assert len({digest_of(stream, 2) for stream in streams}) == 3


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"seed": -1}, {"start": -1}])
def test_numbers_out_of_range_are_refused(wrong):
    chosen = {"batch_size": 4, "seed": 0, "start": 0, **wrong}
    with pytest.raises(ValueError, match="must be"):
        Batches(TransitionSampler(numbered(5)), DIGEST, **chosen)
