import dataclasses
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog import combine_datasets, transitions
from orlog.datasets.columns.schema import Schema
from orlog.errors import SchemaError, StorageError
from orlog.loaders import filling, packs
from orlog.loaders.arrays import Arrays, read_arrays
from orlog.loaders.packs import MappedArrays, is_packed, open_pack, pack_folder
from tests.episodes import whole_episode
from tests.levels import scaled
from tests.small_disks import files_limited_to

FLAT = spaces.Box(-np.inf, np.inf, (3,), np.float32)
PIXELS = spaces.Box(0, 255, (16, 17, 3), np.uint8)
OBSERVATIONS = {
    "flat": FLAT,
    "nothing": spaces.Box(0, 1, (0,), np.float64),
    "pixels": PIXELS,
    "integer": spaces.Discrete(5),
    "dict": spaces.Dict(
        {
            "pixels": PIXELS,
            "arm": spaces.Dict({"angle": spaces.Box(-100, 100, (2, 2), np.int16)}),
            "goal": spaces.MultiDiscrete([3, 4]),
            "speed": spaces.Box(-np.inf, np.inf, (), np.float64),
        }
    ),
}
ACTIONS = {
    "floats": spaces.Box(-2, 3, (2,), np.float32),
    "integer": spaces.Discrete(4),
    "integers": spaces.MultiDiscrete([3, 4, 5]),
    "bits": spaces.MultiBinary(3),
}
STRUCTURES = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from(["termination", "truncation", "cut"])), min_size=1, max_size=7
)


def rows_of(space, count, rng):
    """Return random rows of a space."""
    if isinstance(space, spaces.Dict):
        return {key: rows_of(value, count, rng) for key, value in space.items()}
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=count)
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(space.nvec, size=(count, *space.shape))
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(2, size=(count, *space.shape), dtype=np.int8)
    assert isinstance(space, spaces.Box)
    if np.issubdtype(space.dtype, np.integer):
        limit = min(255, int(np.iinfo(space.dtype).max))
        return rng.integers(limit, size=(count, *space.shape)).astype(space.dtype)
    return rng.normal(size=(count, *space.shape)).astype(space.dtype)


def episodes_of(structure, observation_space=FLAT, action_space=ACTIONS["floats"], seed=0):
    """Return random episodes of some lengths and ends."""
    rng = np.random.default_rng(seed)
    episodes = []
    for length, end in structure:
        observations = rows_of(observation_space, length + 1, rng)
        actions = rows_of(action_space, length, rng)
        episodes.append(whole_episode(observations, actions, rng.normal(size=length), end=end))
    return episodes


@pytest.fixture(scope="session")
def small(write):
    """Return a dataset of three episodes."""
    structure = [(3, "termination"), (5, "truncation"), (2, "cut")]
    return write(episodes_of(structure), FLAT, ACTIONS["floats"])


def assert_equal(found, expected):
    """Assert that two are the same, bit for bit and type for type."""
    for field in dataclasses.fields(Arrays):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "mixture" and theirs is not None:
            ours, theirs = dataclasses.asdict(ours), dataclasses.asdict(theirs)
        if not isinstance(theirs, dict):
            ours, theirs = {"": ours}, {"": theirs}
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            assert type(ours[key]) is type(value), field.name
            if isinstance(value, np.ndarray | torch.Tensor):
                assert ours[key].dtype == value.dtype
                np.testing.assert_array_equal(np.asarray(ours[key]), np.asarray(value))
            else:
                assert ours[key] == value
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_array_equal(found.final_rows, expected.final_rows)
    np.testing.assert_array_equal(found.step_rows(), expected.step_rows())


@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("actions", ACTIONS)
@settings(max_examples=scaled(4, 2), deadline=None)
@given(structure=STRUCTURES, block=st.integers(1, 5000), seed=st.integers(0, 2**32))
def test_a_pack_is_what_would_be_in_memory(write, observations, actions, structure, block, seed):
    pair = OBSERVATIONS[observations], ACTIONS[actions]
    dataset = write(episodes_of(structure, *pair, seed), *pair)
    order = np.random.default_rng(seed).permutation(len(structure))[: 1 + seed % len(structure)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "BLOCK_BYTES", block)
        for data in (dataset, dataset[order]):
            assert_equal(open_pack(data), read_arrays(data))
            assert_equal(open_pack(data), read_arrays(data))


def test_weighted_mixtures_and_their_batches_are_the_same(write):
    parts = [write(episodes_of([(count, "cut"), (4, "cut")], seed=count), FLAT, ACTIONS["floats"]) for count in (3, 5)]
    mixed = combine_datasets(parts, weights=[0.8, 0.2])
    arrays = open_pack(mixed)
    assert_equal(arrays, read_arrays(mixed))
    ours = transitions(arrays, 16, seed=1).batch(3)
    theirs = transitions(mixed, 16, seed=1).batch(3)
    torch.testing.assert_close(dataclasses.asdict(ours), dataclasses.asdict(theirs), rtol=0, atol=0)


def test_it_is_made_once_and_its_pages_are_private(small):
    assert not is_packed(small)
    first = open_pack(small)
    assert is_packed(small)
    inodes = {path: path.stat().st_ino for path in pack_folder(small).iterdir()}
    before = first.rows.clone()
    first.rows.zero_()
    second = open_pack(small)
    torch.testing.assert_close(second.rows, before, rtol=0, atol=0)
    assert inodes == {path: path.stat().st_ino for path in pack_folder(small).iterdir()}
    assert not [path.name for path in pack_folder(small).parent.glob(".*.unfinished")]


def test_long_histories_are_no_hindrance(small):
    view = small
    for _ in range(sys.getrecursionlimit() + 100):
        view = view[:2]
    assert open_pack(view).total_steps == 8
    (source,) = json.loads((pack_folder(view) / "pack.json").read_text())["sources"]
    assert source == small.digest


def test_pickling_sends_the_path_and_what_was_replaced(small):
    arrays = open_pack(small)
    data = pickle.dumps(arrays)
    assert len(data) < 2000
    again = pickle.loads(data)
    assert isinstance(again, MappedArrays)
    assert_equal(again, arrays)
    scaled = dataclasses.replace(arrays, rows=arrays.rows * 2, name="scaled")
    again = pickle.loads(pickle.dumps(scaled))
    assert_equal(again, scaled)
    assert again.lengths is again.pack.fields["lengths"]
    fewer = dataclasses.replace(arrays, rows=arrays.rows[:4].clone(), lengths=np.array([3]))
    assert fewer.step_rows().tolist() == [0, 1, 2]


def sum_of_rows(arrays):
    """Return what a worker process sees."""
    return float(arrays.rows.double().sum())


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.slow), "fork"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork beside threads
def test_worker_processes_map_the_same_files(small, method):
    arrays = open_pack(small)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(sum_of_rows, (arrays,)) == sum_of_rows(arrays)


def test_checks_are_those_of_memory(write, monkeypatch):
    monkeypatch.setattr(packs, "BLOCK_BYTES", 64)
    episodes = episodes_of([(2, "cut"), (4, "cut"), (3, "cut")])
    rewards = episodes[1].rewards.copy()
    rewards[2] = np.inf
    infinite = [episodes[0], dataclasses.replace(episodes[1], rewards=rewards), episodes[2]]
    dataset = write(infinite, FLAT, ACTIONS["floats"])
    with pytest.raises(SchemaError, match="episode 1, step 2"):
        open_pack(dataset)
    assert not is_packed(dataset)
    assert open_pack(dataset, allow_non_finite=True).rows.isinf().sum() == 1
    with pytest.raises(SchemaError, match="episode 1, step 2"):  # also of a pack that is there
        open_pack(dataset)

    flags = np.array([False, True, False, False])
    early = [episodes[0], dataclasses.replace(episodes[1], truncations=flags), episodes[2]]
    dataset = write(early, FLAT, ACTIONS["floats"], checked=False)
    with pytest.raises(SchemaError, match="column truncations is true at step 1 of episode 1"):
        open_pack(dataset)


@pytest.mark.parametrize(
    ("limit", "byte", "message"),
    [(2500, ord("a"), "distinct texts of observations/task take"), (10**6, 0xFF, "is not UTF-8")],
    ids=["too long", "not UTF-8"],
)
def test_texts_that_are_refused_are_found_before_the_rest_is_written(write, monkeypatch, limit, byte, message):
    monkeypatch.setattr(packs, "LARGEST_FILE", limit)
    step_rows = Schema.step_rows

    def rows_with_such_bytes(*arguments, **more):
        block = step_rows(*arguments, **more)
        values = block["observations/task@values"]
        return block | {"observations/task@values": np.full_like(values, byte)}

    monkeypatch.setattr(Schema, "step_rows", rows_with_such_bytes)
    space = spaces.Dict({"state": FLAT, "task": spaces.Text(5000), "pixels": PIXELS})
    (episode,) = episodes_of([(4, "cut")], spaces.Dict({"state": FLAT, "pixels": PIXELS}))
    assert isinstance(episode.observations, dict)
    told = {**episode.observations, "task": ["b"] * 4 + ["a" * 3000]}
    episode = dataclasses.replace(episode, observations=told)
    dataset = write([episode], space, ACTIONS["floats"], checked=False)
    written = []
    with pytest.raises(SchemaError, match=message):
        open_pack(dataset, progress=written.append)
    assert sum(written) == 5 * 8  # places of the texts, and nothing else
    assert not is_packed(dataset)


def test_a_full_disk_leaves_nothing(small):
    with files_limited_to(100), pytest.raises(StorageError, match="free some space or set ORLOG_HOME"):
        open_pack(small)
    assert not pack_folder(small).exists()
    assert_equal(open_pack(small), read_arrays(small))


def test_a_disk_without_room_is_said_before(small, monkeypatch):
    monkeypatch.setattr(filling.Layout, "total_bytes", 10**18)
    with pytest.raises(StorageError, match=r"1,000,000,000,000,000,000 bytes.*stream=True"):
        open_pack(small)


SLOW_MAKER = """
import pathlib, sys, time
import orlog
from orlog.loaders import packs

fill = packs.fill_matrix

def slow_fill(*arguments):
    pathlib.Path(sys.argv[2]).touch()
    time.sleep(float(sys.argv[3]))
    return fill(*arguments)

packs.fill_matrix = slow_fill
packs.open_pack(orlog.load_dataset(sys.argv[1]))
"""


def start_maker(dataset, flag, seconds):
    """Start a process that makes the pack, waiting long at each block, and wait until it is in."""
    arguments = [str(dataset.folder), str(flag), str(seconds)]
    maker = subprocess.Popen([sys.executable, "-c", textwrap.dedent(SLOW_MAKER), *arguments])
    while not flag.exists():
        assert maker.poll() is None
        time.sleep(0.01)
    return maker


@pytest.mark.slow
def test_a_killed_maker_leaves_what_the_next_one_clears(small, tmp_path):
    maker = start_maker(small, tmp_path / "flag", 600)
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    assert not is_packed(small)
    assert_equal(open_pack(small), read_arrays(small))
    names = {path.name for path in pack_folder(small).parent.iterdir()}
    assert names == {pack_folder(small).name, f".{pack_folder(small).name}.lock"}


@pytest.mark.slow
def test_of_two_processes_one_makes_it_and_one_waits(small, tmp_path, monkeypatch):
    maker = start_maker(small, tmp_path / "flag", 1)

    def not_here(*_):
        raise AssertionError("made twice")

    monkeypatch.setattr(packs, "fill_matrix", not_here)
    found = open_pack(small)
    assert maker.wait() == 0
    assert_equal(found, read_arrays(small))


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-4])


def written_again(path):
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, (time.time() + 2, time.time() + 2))


def other_text(path):
    path.write_text(path.read_text().replace("1", "2"))


DAMAGE = [
    ("rows.f32", cut_off),
    ("rows.f32", written_again),
    ("since.u8", os.unlink),
    ("lengths.i64", cut_off),
    ("pack.json", cut_off),
    ("pack.json", other_text),
    ("pack.json", lambda path: path.write_text("[]")),
]


@pytest.mark.parametrize(("file", "damage"), DAMAGE)
def test_a_damaged_pack_is_made_again(small, caplog, file, damage):
    first = open_pack(small)
    before = first.rows.clone()
    damage(pack_folder(small) / file)
    assert_equal(open_pack(small), read_arrays(small))
    assert "is damaged and is made again" in caplog.text
    caplog.clear()
    open_pack(small)
    assert not caplog.text
    assert file == "rows.f32" or torch.equal(first.rows, before)  # what is open stays readable
