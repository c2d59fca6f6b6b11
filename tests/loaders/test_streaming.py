import contextlib
import dataclasses
import itertools
import os
import pickle
import threading
import tracemalloc

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from orlog import Dataset, combine_datasets, transitions
from orlog.errors import IntegrityError, SchemaError
from orlog.loaders import streaming
from orlog.loaders.arrays import read_arrays
from orlog.loaders.batch import Batch
from orlog.loaders.transitions import TransitionSampler
from tests.episodes import whole_episode
from tests.levels import scaled

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTION = spaces.Box(-2, 3, (1,), np.float32)
PIXELS = spaces.Dict({"pixels": spaces.Box(0, 255, (16, 16, 3), np.uint8), "state": BOX})
ROW_BYTES = 4 * (2 + 1 + 3)


def episodes_of(lengths, *, pixels=False, seed=0):
    """Return episodes whose reward at a step is its number in the dataset."""
    rng = np.random.default_rng(seed)
    episodes = []
    first = 0
    for length in lengths:
        state = rng.normal(size=(length + 1, 2)).astype(np.float32)
        images = rng.integers(255, size=(length + 1, 16, 16, 3), dtype=np.uint8)
        episodes.append(
            whole_episode(
                {"pixels": images, "state": state} if pixels else state,
                rng.normal(size=(length, 1)).astype(np.float32),
                np.arange(first, first + length, dtype=np.float64),
                end="termination" if length % 2 == 0 else "truncation" if length % 3 == 0 else "",
            )
        )
        first += length
    return episodes


@pytest.fixture(scope="session")
def many(write):
    """Return a dataset of 40 episodes of 1 to 40 steps."""
    return write(episodes_of(list(range(1, 41))), BOX, ACTION)


def steps_of(batch):
    """Return the numbers of a batch's steps, which rewards are."""
    return batch.rewards.long().tolist()


def first_steps(stream, count):
    """Return the steps of the first batches of a stream."""
    return [step for batch in itertools.islice(stream, count) for step in steps_of(batch)]


def assert_same(found, expected):
    """Assert that two batches are the same, bit for bit."""
    torch.testing.assert_close(dataclasses.asdict(found), dataclasses.asdict(expected), rtol=0, atol=0)


@settings(max_examples=scaled(15, 5), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    batch_size=st.integers(1, 40),
    buffer=st.integers(1, 60 * ROW_BYTES),
    seed=st.integers(0, 2**32),
)
def test_each_step_comes_once_an_epoch_with_what_belongs_to_it(write, lengths, batch_size, buffer, seed):
    dataset = write(episodes_of(lengths), BOX, ACTION)
    stream = transitions(dataset, batch_size, seed=seed, buffer_bytes=buffer, stream=True)
    steps = dataset.total_steps
    batches = list(itertools.islice(stream, -(-3 * steps // batch_size)))
    for index, batch in enumerate(batches):
        assert_same(batch, stream.batch(index))
    drawn = [step for batch in batches for step in steps_of(batch)]
    for epoch in range(3):
        assert sorted(drawn[epoch * steps : (epoch + 1) * steps]) == list(range(steps))

    arrays = read_arrays(dataset)
    rows = torch.from_numpy(arrays.step_rows()[drawn])
    expected = arrays.transitions[rows]
    found = torch.cat(
        [
            torch.column_stack(
                (
                    batch.observations,
                    batch.actions,
                    batch.rewards,
                    batch.terminations,
                    batch.truncations,
                    batch.next_observations,
                )
            )
            for batch in batches
            if isinstance(batch, Batch)
        ]
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("pixels", [False, True])
def test_batches_are_those_of_memory(write, n_steps, pixels):
    dataset = write(episodes_of([4, 7, 1, 12, 3, 9], pixels=pixels), PIXELS if pixels else BOX, ACTION)
    arrays = read_arrays(dataset)
    sampler = TransitionSampler(arrays, n_steps, 0.9)
    shared = {"seed": 5, "n_steps": n_steps, "discount": 0.9}
    stream = transitions(dataset, 11, buffer_bytes=30_000 if pixels else 700, **shared, stream=True)
    assert stream.mixing.blocks > stream.mixing.blocks_in_group
    order = transitions(dataset, 11, buffer_bytes=30_000 if pixels else 700, **shared, stream=True)
    for index, batch in enumerate(itertools.islice(stream, 9)):
        assert type(batch) is Batch
        assert_same(batch, order.batch(index))
        # Sums of rewards hide the steps: find them by their states.
        states = batch.observations
        states = states["state"] if pixels else states
        state_rows = arrays.rows[arrays.step_rows(), :2]
        found = [int((state_rows == state).all(1).int().argmax()) for state in states]
        expected = dataclasses.asdict(sampler.gather(sampler.items_of(np.array(found))))
        names = dataclasses.asdict(batch)
        torch.testing.assert_close(names, {name: expected[name] for name in names}, rtol=0, atol=0)


def test_the_order_depends_on_seed_and_epoch_only(many):
    steps = many.total_steps
    streams = [transitions(many, 10, seed=seed, buffer_bytes=4000, stream=True) for seed in (0, 0, 1)]
    first, again, other = (first_steps(stream, 2 * steps // 10) for stream in streams)
    assert first == again
    assert first != other
    assert first[:steps] != first[steps:]
    # Neighbors of an episode are no longer neighbors.
    followed = np.mean(np.diff(first[:steps]) == 1)
    assert followed < 0.05


@pytest.mark.parametrize("stop", [0, 1, 7, 83, 200])
def test_going_on_in_the_middle(many, stop):
    def stream(**place):
        return transitions(many, 10, seed=3, buffer_bytes=4000, **place, stream=True)

    whole = first_steps(stream(), stop + 30)
    stopped = stream()
    first_steps(stopped, stop)
    state = stopped.state_dict()
    assert state["epoch"] == stop * 10 // many.total_steps
    fresh = stream()
    fresh.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert first_steps(fresh, 30) == whole[stop * 10 :]
    halves = [stream(rank=rank, ranks=2) for rank in range(2)]
    for half in halves:
        half.load_state_dict(state)
    pairs = zip(*(itertools.islice(half, 30) for half in halves), strict=True)
    assert [one for pair in pairs for half in pair for one in steps_of(half)] == whole[stop * 10 :]


@pytest.mark.parametrize(
    ("workers", "method"),
    [
        pytest.param(1, "spawn", marks=[pytest.mark.slow, pytest.mark.thorough]),
        pytest.param(2, "spawn", marks=[pytest.mark.slow, pytest.mark.thorough]),
        (2, "fork"),
    ],
)
def test_workers_give_the_same_stream(many, workers, method):
    stream = pickle.loads(pickle.dumps(transitions(many, 10, seed=3, buffer_bytes=4000, stream=True)))
    loader = DataLoader(stream, batch_size=None, num_workers=workers, multiprocessing_context=method)
    batches = [steps_of(batch) for batch in itertools.islice(loader, 12)]
    assert [step for batch in batches for step in batch] == first_steps(stream, 12)


def test_a_state_of_another_stream_is_refused(many):
    stream = transitions(many, 10, seed=3, stream=True)
    state = stream.state_dict()
    for other, pattern in (
        (transitions(many, 10, seed=4, stream=True), "seed is 3 there and 4 here"),
        (transitions(many, 20, seed=3, stream=True), "batch_size is 10 there and 20 here"),
        (transitions(many, 10, seed=3, buffer_bytes=99, stream=True), "kind is .*buffer=99"),
        (transitions(many[:5], 10, seed=3, stream=True), "digest is"),
    ):
        with pytest.raises(ValueError, match=pattern):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="not the state of a stream"):
        stream.load_state_dict({**state, "batch": -1})


@pytest.mark.parametrize("share", [3, 100])
def test_memory_is_bounded(write, share):
    dataset = write(episodes_of([50] * 240, pixels=True), PIXELS, ACTION)
    rows = dataset.total_steps + dataset.total_episodes
    buffer = rows * (16 * 16 * 3 + ROW_BYTES) // share
    stream = transitions(dataset, 8, seed=0, buffer_bytes=buffer, stream=True)
    tracemalloc.start()
    try:
        # Ended before tracing is: CPython before 3.12.9 and 3.13.2 may crash if a thread allocates while tracing stops, and
        # NumPy does so without holding the interpreter's lock (python/cpython#128679).
        with contextlib.closing(iter(stream)) as batches:
            for _ in itertools.islice(batches, 1000):
                pass
            _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Beside groups: a block as decoded, a chunk of 1 MiB, and orders of some bytes a step.
    assert peak < 1.25 * buffer + 2**21


@pytest.mark.parametrize("share", [2, 1000])
def test_small_columns_are_held_where_that_takes_little(write, share):
    """A stream is the same whether or not it reads them anew for each block."""
    dataset = write(episodes_of([9, 4, 12, 30], pixels=True), PIXELS, ACTION)
    stream = transitions(dataset, 8, seed=0, buffer_bytes=100_000 // share, stream=True)
    assert len(first_steps(stream, 7)) == 56
    assert bool(stream._held) == (share == 2)
    assert len(pickle.dumps(stream)) < len(pickle.dumps(dataset)) + 5000
    arrays = read_arrays(dataset)
    batch = stream.batch(3)
    rows = torch.from_numpy(arrays.step_rows()[steps_of(batch)])
    expected = arrays.observations(rows)
    for key, values in expected.items():
        torch.testing.assert_close(batch.observations[key], values, rtol=0, atol=0)


@pytest.mark.scaled
def test_mixing_is_as_the_formulas_say(many):
    stream = transitions(many, 16, seed=3, buffer_bytes=6000, stream=True)
    mixing = stream.mixing
    steps = many.total_steps
    drawn = np.array(first_steps(stream, scaled(40) * steps // 16)).reshape(-1, 16)
    followers = [np.isin(batch + 1, batch).sum() for batch in drawn]
    together = np.sum(followers) / drawn.size
    # A batch may lie across two groups, and the last step of an episode has no neighbor.
    assert together == pytest.approx(mixing.neighbors_together, rel=0.2)
    assert mixing.neighbors_together_shuffled == 15 / (steps - 1)
    assert mixing.blocks_in_batch <= mixing.blocks_in_group <= mixing.blocks


def test_abandoned_iterations_leave_no_thread(many):
    def threads():
        return {one for one in threading.enumerate() if one.name.startswith("orlog-stream")}

    before = threads()  # streams of other tests may still wait for the garbage collector
    batches = iter(transitions(many, 10, seed=3, buffer_bytes=4000, stream=True))
    next(batches)
    assert threads() > before
    del batches
    assert threads() <= before


def test_errors_come_out_of_the_thread_with_their_place(write):
    episodes = episodes_of([4] * 10)
    rewards = episodes[7].rewards.copy()
    rewards[2] = np.nan
    episodes[7] = dataclasses.replace(episodes[7], rewards=rewards)
    dataset = write(episodes, BOX, ACTION)
    stream = transitions(dataset, 4, seed=0, buffer_bytes=12 * ROW_BYTES, stream=True)
    with pytest.raises(SchemaError, match=r"tests/small-v1.*episode 7, step 2;.*allow_non_finite"):
        list(itertools.islice(stream, 20))
    allowed = transitions(dataset, 40, seed=0, allow_non_finite=True, stream=True)
    assert allowed.batch(0).rewards.isnan().sum() == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"seed": -1},
        {"start": -1},
        {"buffer_bytes": 0},
        {"n_steps": 0},
        {"discount": 1.1},
        {"rank": 1},
        {"ranks": 3},
    ],
)
def test_numbers_out_of_range(many, wrong):
    settings = {"batch_size": 10, "seed": 0}
    with pytest.raises(ValueError, match=r"found|rank must be"):
        transitions(many, **(settings | wrong), stream=True)


def test_a_weighted_mixture_is_not_streamed(many):
    mixed = combine_datasets([many, many[:5]], weights=[0.5, 0.5])
    with pytest.raises(SchemaError, match="weighted mixture has no epochs"):
        transitions(mixed, 10, seed=0, stream=True)


def test_a_large_block_is_cut_by_the_buffer(many, monkeypatch):
    one = transitions(many, 10, seed=0, stream=True)
    assert one.mixing.blocks == 1  # of 4 MiB
    monkeypatch.setattr(streaming, "BLOCK_BYTES", 500)
    assert transitions(many, 10, seed=0, stream=True).mixing.blocks > 20


@pytest.mark.parametrize("n_steps", [1, 2])
def test_views_of_images_are_streamed(write, n_steps):
    dataset = write(episodes_of([5, 9, 1, 12, 7, 3], pixels=True), PIXELS, ACTION)
    view = combine_datasets([dataset[[4, 1, 2, 3]], dataset[:2], dataset[5:]])
    arrays = read_arrays(view)
    stream = transitions(view, 7, seed=0, n_steps=n_steps, buffer_bytes=30_000, stream=True)
    assert stream.mixing.blocks > stream.mixing.blocks_in_group
    everything = arrays.observations(torch.from_numpy(arrays.step_rows()))
    expected = np.unique(everything["pixels"].flatten(1).numpy(), axis=0)
    batches = list(itertools.islice(stream, 30))
    found = torch.cat([batch.observations["pixels"] for batch in batches]).flatten(1).numpy()
    for epoch in range(4):
        drawn = found[epoch * view.total_steps : (epoch + 1) * view.total_steps]
        assert (np.unique(drawn, axis=0) == expected).all()


def test_batches_keep_their_values_while_memory_is_used_again(write):
    dataset = write(episodes_of([5, 9, 1, 12, 7, 3] * 2, pixels=True), PIXELS, ACTION)
    stream = transitions(dataset, 8, seed=0, buffer_bytes=30_000, stream=True)
    batches = list(itertools.islice(stream, 40))
    for index, batch in enumerate(batches):
        assert_same(batch, stream.batch(index))


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_gives_the_same_stream(write, monkeypatch, threads):
    dataset = write(episodes_of([5, 9, 1, 12, 7, 3], pixels=True), PIXELS, ACTION)
    stream = transitions(dataset, 8, seed=0, buffer_bytes=30_000, stream=True)
    expected = list(itertools.islice(stream, 12))
    monkeypatch.setattr(streaming, "_threads", lambda: threads)
    for batch, other in zip(stream, expected, strict=False):
        assert_same(batch, other)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores are chosen on Linux")
def test_a_process_on_one_core_decodes_on_one_thread():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert streaming._threads() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize("place", [0.1, 0.4, 0.7])
def test_a_damaged_image_ends_the_stream_and_is_named(write, place):
    dataset = write(episodes_of([9] * 20, pixels=True), PIXELS, ACTION)
    (shard,) = (dataset.folder / "observations" / "pixels").glob("c.*")
    data = bytearray(shard.read_bytes())
    data[int(place * len(data))] ^= 1
    shard.write_bytes(data)
    stream = transitions(Dataset(dataset.folder), 8, seed=0, buffer_bytes=30_000, stream=True)
    with pytest.raises(IntegrityError, match=r"pixels/c\.0\.0\.0\.0, chunk \d+: .*orlog verify"):
        list(itertools.islice(stream, 25))
