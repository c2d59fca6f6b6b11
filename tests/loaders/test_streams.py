"""Streams as data loaders use them: workers, ranks, cursors, processes."""

import functools
import itertools
import json
import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import orlog
from orlog import transitions
from orlog.loaders.packs import open_pack
from tests.batches import columns

SIZE = 12
BATCHES = 150  # more than two blocks of choices


def rewards(batches, count):
    return [batch.rewards.tolist() for batch in itertools.islice(batches, count)]


@pytest.fixture(scope="module")
def expected(built_mini):
    stream = transitions(orlog.load_dataset(built_mini), SIZE, seed=3)
    return rewards(stream, BATCHES)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # few cores
@pytest.mark.parametrize(
    ("workers", "method"),
    [
        (0, None),
        *((workers, "fork") for workers in (1, 2, 3)),
        *(pytest.param(workers, "spawn", marks=pytest.mark.thorough) for workers in (1, 2, 3)),
    ],
)
def test_the_stream_is_the_same_for_any_number_of_workers(mini, expected, workers, method):
    stream = transitions(mini, SIZE, seed=3)
    loader = DataLoader(stream, batch_size=None, num_workers=workers, multiprocessing_context=method)
    assert rewards(loader, BATCHES) == expected


@pytest.mark.parametrize("start", [0, 1, 63, 64, 100])
def test_a_state_goes_on_where_it_was_taken(mini, expected, start):
    first = transitions(mini, SIZE, seed=3)
    rewards(first, start)
    state = first.state_dict()
    assert len(repr(state)) < 300
    second = transitions(mini, SIZE, seed=3)
    second.load_state_dict(state)
    assert rewards(second, 20) == expected[start : start + 20]
    assert second.state_dict()["batch"] == start + 20


def test_ranks_take_complete_and_disjoint_slices(mini, expected):
    for ranks in (1, 2, 3, 4, 6, 12):
        slices = [rewards(transitions(mini, SIZE, seed=3, rank=rank, ranks=ranks), BATCHES) for rank in range(ranks)]
        for number, parts in enumerate(zip(*slices, strict=True)):
            assert list(itertools.chain(*parts)) == expected[number]


def test_a_state_goes_on_with_another_number_of_ranks(mini, expected):
    first = transitions(mini, SIZE, seed=3, rank=1, ranks=2)
    rewards(first, 70)
    others = [transitions(mini, SIZE, seed=3, rank=rank, ranks=3) for rank in range(3)]
    for one in others:
        one.load_state_dict(first.state_dict())
    parts = [rewards(one, 5) for one in others]
    for number in range(5):
        assert [value for part in parts for value in part[number]] == expected[70 + number]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is deprecated, please do not call:UserWarning")  # torchdata
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.thorough), 2])
@pytest.mark.parametrize(
    "stop", [pytest.param(0, marks=pytest.mark.thorough), 1, 65, pytest.param(90, marks=pytest.mark.thorough)]
)
def test_a_stateful_loader_goes_on(mini, expected, workers, stop):
    def loader():
        stream = transitions(mini, SIZE, seed=3)
        return StatefulDataLoader(stream, batch_size=None, num_workers=workers)

    first = loader()
    assert rewards(first, stop) == expected[:stop]
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert rewards(second, 9) == expected[stop : stop + 9]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("digest", "sha256:" + "0" * 64),
        ("batch_size", SIZE + 1),
        ("seed", 4),
        ("kind", "transitions 1 n_steps=2"),
        ("cursor_version", 2),
        ("digest", None),
    ],
)
def test_a_state_of_another_stream_is_refused_with_both_values(mini, field, value):
    stream = transitions(mini, SIZE, seed=3)
    state = {**stream.state_dict(), field: value}
    with pytest.raises(ValueError, match=f"{field} is .* there and .* here") as caught:
        stream.load_state_dict(state)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("wrong", [{"batch": -1}, {"batch": "1"}, {"worker": 3}, {"batch": None}])
def test_a_state_that_is_none_is_refused(mini, wrong):
    stream = transitions(mini, SIZE, seed=3)
    with pytest.raises(ValueError, match="not the state of a stream"):
        stream.load_state_dict({**stream.state_dict(), **wrong})


def gather_on_rank(rank, meeting, folder, queue):
    """Sample a slice of each batch and give all slices of it to rank 0."""
    torch.distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=2)
    stream = transitions(orlog.load_dataset(folder), SIZE, seed=3, rank=rank, ranks=torch.distributed.get_world_size())
    found = []
    for batch in itertools.islice(stream, 10):
        parts = [torch.empty(SIZE // 2) for _ in range(2)]
        torch.distributed.all_gather(parts, batch.rewards.contiguous())
        found.append(torch.cat(parts).tolist())
    if rank == 0:
        queue.put(found)
    torch.distributed.destroy_process_group()


@pytest.mark.thorough
@pytest.mark.slow
def test_two_distributed_processes_share_the_stream(mini, expected, tmp_path):
    context = multiprocessing.get_context("spawn")
    queue, meeting = context.Queue(), tmp_path / "meeting"
    children = [context.Process(target=gather_on_rank, args=(rank, meeting, mini.folder, queue)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert queue.get() == expected[:10]


def test_steps_are_drawn_uniformly_and_independently(mini):
    small = transitions(mini[:1], 50, seed=0)
    steps = small.arrays.total_steps
    drawn = small._choose(0, 4000).numpy()
    counts = np.bincount(drawn, minlength=steps)
    expectation = len(drawn) / steps
    chi_square = float(((counts - expectation) ** 2 / expectation).sum())
    assert abs(chi_square - steps) < 5 * np.sqrt(2 * steps)
    pairs = np.corrcoef(drawn[:-1], drawn[1:])[0, 1]
    assert abs(pairs) < 5 / np.sqrt(len(drawn))


KINDS = {
    "transitions": orlog.transitions,
    "n_steps": functools.partial(orlog.transitions, n_steps=3),
    "sequences": functools.partial(orlog.sequences, length=5),
    "sequences, next": functools.partial(orlog.sequences, length=5, padding="left", with_next=True),
    "chunks": orlog.action_chunks,
    "episodes": orlog.episodes,
    "packed episodes": functools.partial(orlog.episodes, layout="packed"),
    "goals": orlog.goals,
    "preferences": functools.partial(orlog.preferences, length=5),
}


def test_a_pickled_stream_over_a_memory_map_takes_no_rows_along(mini):
    arrays = open_pack(mini)
    for kind in ("transitions", "sequences"):
        stream = KINDS[kind](arrays, SIZE, seed=1)
        stream.batch(0)
        assert len(pickle.dumps(stream)) < arrays.rows.numel() * 4 / 2


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64])
def test_integers_of_numpy_are_integers(mini, kind):
    stream = transitions(mini, 200, seed=0)
    for index in (7, 120):
        assert torch.equal(stream.batch(kind(index)).actions, stream.batch(index).actions)
    large = np.int32(2**31 - 1)
    assert torch.equal(stream.batch(large).actions, stream.batch(2**31 - 1).actions)
    for made, expected in (
        (orlog.sequences(mini, 4, seed=0, length=kind(4)), orlog.sequences(mini, 4, seed=0, length=4)),
        (orlog.preferences(mini, 4, seed=0, length=kind(4)), orlog.preferences(mini, 4, seed=0, length=4)),
        (transitions(mini, 4, seed=0, n_steps=kind(4)), transitions(mini, 4, seed=0, n_steps=4)),
    ):
        assert made.state_dict() == expected.state_dict()
        json.dumps(made.state_dict())
        assert torch.equal(made.batch(3).actions, expected.batch(3).actions)


def test_a_state_of_a_loader_is_told_from_that_of_a_stream(mini):
    with pytest.raises(ValueError, match="into the DataLoader"):
        transitions(mini, 8, seed=0).load_state_dict({"_num_yielded": 3})


def test_a_batch_goes_elsewhere_as_a_whole(mini):
    batch = transitions(mini, 8, seed=0, n_steps=2).batch(0)
    moved = batch.to("meta")
    assert type(moved) is type(batch)
    for name in columns(batch):
        found, expected = getattr(moved, name), getattr(batch, name)
        assert (found.device.type, found.shape) == ("meta", expected.shape)
    halved = batch.map(lambda tensor: tensor / 2)
    assert torch.equal(halved.rewards * 2, batch.rewards)


def test_a_huge_batch_is_not_chosen_sixty_four_times(mini, monkeypatch):
    stream = transitions(mini, 2**19, seed=0)
    chosen = []
    choose = stream.sampler.choose

    def count(uniform):
        chosen.append(len(uniform))
        return choose(uniform)

    monkeypatch.setattr(stream.sampler, "choose", count)
    assert torch.equal(next(iter(stream)).actions, stream.batch(0).actions)
    assert chosen == [2**19, 2**19]
