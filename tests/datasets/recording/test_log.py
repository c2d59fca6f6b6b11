"""The log keeps episodes between two journals; what is torn or dropped is left out."""

import shutil

import numpy as np

import orlog
from orlog.datasets.store.zarr_writer import ColumnWriter
from tests.datasets.recording import arms
from tests.datasets.recording.arms import NAME, add, assert_same_episode, make_episode, pieces_of

EPISODES = [make_episode(number, 5, seed=number) for number in range(5)]


def start(**options):
    return arms.start(keep_every_episode=True, checkpoint_seconds=1e9, **options)


def seeds_after_a_kill():
    """Return the seeds of the episodes that are there when a recording goes on."""
    with start(resume=True) as writer:
        writer.finish()
    return [episode.seed or 0 for episode in orlog.load_dataset(NAME)]


def add_some_steps(writer, number, *, first):
    pieces = [*pieces_of(EPISODES[number], [3])]
    writer.add_steps(**pieces[0 if first else 1])


def test_episodes_without_a_checkpoint_are_kept():
    add(start(), EPISODES[:4]).close()  # acknowledges nothing
    with start(resume=True) as again:
        assert again.total_episodes == 4
        again.add_episode(EPISODES[4])
    for found, expected in zip(orlog.load_dataset(NAME), EPISODES, strict=True):
        assert_same_episode(found, expected)


def test_steps_in_pieces_and_dropped_ones():
    writer = add(start(), EPISODES[:1])
    add_some_steps(writer, 1, first=True)
    writer.discard_episode()
    add_some_steps(writer, 2, first=True)
    add_some_steps(writer, 2, first=False)
    writer.end_episode(seed=2, metadata=EPISODES[2].metadata)
    add_some_steps(writer, 3, first=True)  # not ended
    writer.close()
    assert seeds_after_a_kill() == [0, 2]
    assert orlog.load_dataset(NAME).column("episodes/lengths").tolist() == [5, 5]


def test_dropping_steps_that_fill_no_shard_reads_nothing_again(monkeypatch):
    writer = add(start(), EPISODES[:3])
    with monkeypatch.context() as patch:
        patch.setattr(ColumnWriter, "restore", None)
        add_some_steps(writer, 1, first=True)
        writer.discard_episode()
    add(writer, EPISODES[3:4]).close()
    assert seeds_after_a_kill() == [0, 1, 2, 3]


def test_a_checkpoint_inside_an_episode_leaves_it_whole():
    writer = add(start(), EPISODES[:1])
    add_some_steps(writer, 1, first=True)
    writer.checkpoint()
    add_some_steps(writer, 1, first=False)
    writer.end_episode(seed=1, metadata=EPISODES[1].metadata)
    add(writer, EPISODES[2:3]).close()
    assert seeds_after_a_kill() == [0, 1, 2]


def test_a_log_that_is_cut_anywhere_keeps_the_episodes_before(home):
    path = home / "datasets" / NAME / ".1.0.0.recording" / "episodes-1"
    writer = start()
    ends = []
    for number in range(3):
        writer.add_episode(EPISODES[number])
        ends.append(path.stat().st_size)
    writer.close()
    whole, kept = path.read_bytes(), home.with_name("kept")
    shutil.copytree(home, kept)
    rng = np.random.default_rng(0)
    for size in {0, 1, 7, 40, ends[1] - 1, ends[1], ends[2] - 1, *rng.integers(0, ends[2], 6)}:
        shutil.rmtree(home)
        shutil.copytree(kept, home)
        path.write_bytes(whole[:size])
        assert seeds_after_a_kill() == list(range(sum(size >= end for end in ends)))


def test_a_damaged_block_and_those_after_it_are_left_out(home):
    path = home / "datasets" / NAME / ".1.0.0.recording" / "episodes-1"
    writer = add(start(), EPISODES[:3])
    flipped = path.stat().st_size - 9
    add(writer, EPISODES[3:4]).close()
    data = bytearray(path.read_bytes())
    data[flipped] ^= 1
    path.write_bytes(data)
    assert seeds_after_a_kill() == [0, 1]
