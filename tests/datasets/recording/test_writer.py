"""Recording: what goes in comes out, whole or in steps."""

import dataclasses
import errno
import os
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog import DatasetWriter
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.recording import finishing
from orlog.datasets.store import zarr_writer
from orlog.datasets.store.encoding import choose_encoding
from orlog.errors import SchemaError, StorageError
from tests.datasets.recording.arms import (
    ACTIONS,
    EPISODES,
    NAME,
    OBSERVATIONS,
    add,
    append,
    assert_same_episode,
    digest_of,
    finished,
    leftovers,
    make_episode,
    opened,
    pieces_of,
    record,
    resumed,
    start,
    steps_of,
)

pytestmark = pytest.mark.usefixtures("small_shards")


# --- what goes in comes out


@pytest.mark.parametrize("container", ["zarr", "hdf5"])
def test_episodes_come_back_as_they_were(container):
    if container == "hdf5":
        pytest.importorskip("h5py")
    dataset = record(EPISODES, container=container)
    assert len(dataset) == len(EPISODES)
    assert dataset.total_steps == sum(map(len, EPISODES))
    for found, expected in zip(dataset, EPISODES, strict=True):
        assert_same_episode(found, expected)
    for position in (0, 5, -1):
        assert_same_episode(dataset[position], EPISODES[position])
    returns = [episode.rewards.sum() for episode in EPISODES]
    np.testing.assert_allclose(dataset.column("episodes/returns"), returns)
    assert leftovers() == set()


def test_what_is_known_about_the_data_is_kept():
    facts = {
        "description": "Pushes a block.",
        "license": "CC0-1.0",
        "behavior_policy": "a human",
        "changes": "the first",
    }
    manifest = record(EPISODES[:1], version="3.1.4", reward_dtype=np.float64, **facts).manifest
    assert {name: getattr(manifest, name) for name in facts} == facts
    assert (manifest.name, manifest.version, manifest.lineage) == (NAME, "3.1.4", [])
    assert (manifest.environment, manifest.recipe) == (None, None)


def test_arrays_may_lie_in_memory_in_any_way():
    expected = digest_of(12)

    def scattered(values):
        if not isinstance(values, np.ndarray):
            return values
        wide = np.asfortranarray(np.repeat(values, 2, 0))[::2]
        assert len(values) < 2 or not wide.flags.c_contiguous
        wide.flags.writeable = False
        return wide

    fields = ("observations", "actions", "rewards", "terminations", "truncations")
    changed = [
        dataclasses.replace(
            episode,
            infos={name: scattered(values) for name, values in episode.infos.items()},
            **{field: scattered(getattr(episode, field)) for field in fields},
        )
        for episode in EPISODES
    ]
    assert record(changed).digest == expected


def test_an_episode_may_be_longer_than_many_shards():
    long = make_episode(0, 5000)
    writer = start()
    held = []
    for piece in pieces_of(long, range(10, 5000, 10)):
        writer.add_steps(**piece)
        columns = writer._writer.container.columns.values()
        held.append(sum(column.pending.nbytes for column in columns))
        assert all(len(column._running) <= zarr_writer.THREADS for column in columns)
    writer.end_episode(seed=long.seed, metadata=long.metadata)
    writer.finish()
    dataset = opened(writer)
    assert max(held) <= 512 * len(dataset.columns)
    assert len(list((dataset.folder / "observations").glob("c.*"))) > 100
    assert_same_episode(dataset[0], long)


LONG = """
import resource, sys
import numpy as np
from gymnasium import spaces
import orlog

frames = spaces.Box(0, 255, (64, 64, 3), np.uint8)
writer = orlog.DatasetWriter("lab/long-v1", observation_space=frames, action_space=spaces.Box(-1, 1, (6,)))
noise = np.random.default_rng(0).integers(0, 4, (101, 64, 64, 3), np.uint8)

def add(times, first):
    for number in range(times):
        writer.add_steps(
            observations=noise[: 101 if first and number == 0 else 100],
            actions=np.zeros((100, 6), np.float32),
            rewards=np.zeros(100),
            terminations=np.zeros(100, bool),
            truncations=np.zeros(100, bool),
        )

add(100, True)  # 120 MB, after which all buffers are in use
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
add(400, False)
writer.end_episode()
writer.finish()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_an_episode():
    done = subprocess.run([sys.executable, "-c", LONG], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 100  # MB; what was added takes 490
    dataset = orlog.load_dataset("lab/long-v1")
    assert dataset.episode_lengths.tolist() == [50_000]
    assert orlog.verify_store(dataset.folder)[1] == []


def test_numbers_that_are_not_finite_are_kept_and_counted():
    def spoiled(number):
        episode = make_episode(number, 40)
        assert isinstance(episode.observations, np.ndarray)
        episode.observations[3, 1] = np.nan
        episode.observations[-1] = np.inf
        episode.rewards[0] = -np.inf
        torque = episode.infos["torque"]
        assert isinstance(torque, np.ndarray)
        torque[1, 0] = np.nan
        return dataclasses.replace(episode, metadata={**episode.metadata, "weight": np.nan})

    expected = {"observations": 4, "rewards": 1, "infos/torque": 1, "episodes/weight": 1, "episodes/returns": 1}
    dataset = record([spoiled(0), EPISODES[1]])
    assert dataset.manifest.non_finite == expected
    assert_same_episode(dataset[0], spoiled(0))

    writer = add(DatasetWriter.append(dataset), [spoiled(2)])
    writer.checkpoint()
    writer.close()
    twice = {name: 2 * count for name, count in expected.items()}
    newer = append(dataset, EPISODES[3:4], resume=True)
    assert newer.manifest.non_finite == twice


def test_a_column_may_be_stored_otherwise():
    other = choose_encoding("observations", np.dtype(np.float32), (3,), chunk_rows=7, compression="none")
    plain = record(EPISODES).manifest
    dataset = record(EPISODES, version="1.0.1", encodings={"observations": other})
    assert dataset.manifest.columns == plain.columns
    assert dataset.manifest.objects != plain.objects
    for found, expected in zip(dataset, EPISODES, strict=True):
        assert_same_episode(found, expected)


# --- steps


def test_no_episode_makes_no_dataset():
    with pytest.raises(SchemaError, match="at least one episode") as caught, start():
        pass
    # Whoever keeps the error does not keep the lock.
    record(EPISODES[:1])
    assert caught.value is not None


def test_a_closed_writer_takes_nothing_more():
    writer = start()
    finished(writer, EPISODES[:1])
    writer.close()
    for work in (
        lambda: writer.add_episode(EPISODES[0]),
        lambda: writer.add_steps(**steps_of(1)),
        writer.end_episode,
        writer.checkpoint,
        writer.finish,
    ):
        with pytest.raises(ValueError, match="this writer is closed"):
            work()
    assert len(opened(writer)) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"description": "x" * 100_001},
        {"description": 5},
        {"behavior_policy": "\ud800"},
        {"container": "tar"},
        {"version": "../1.0.0"},
        {"reward_dtype": np.int64},
        {"name": "../arm-v1"},
        {"observation_space": spaces.Dict({"k" * 230: OBSERVATIONS})},
    ],
    ids=lambda arguments: f"{next(iter(arguments.items()))!r:.40}",
)
def test_what_could_not_be_opened_afterwards_is_refused_at_the_start(arguments):
    given = {"observation_space": OBSERVATIONS, "action_space": ACTIONS, **arguments}
    with pytest.raises(ValueError):  # noqa: PT011 (each has a message of its own)
        DatasetWriter(given.pop("name", NAME), **given)
    assert not any(datasets_folder().rglob("*.recording"))
    record(EPISODES[:1])


# --- what a review found


def test_an_episode_is_discarded_from_memory_and_from_the_disk():
    expected = digest_of(12)
    with start() as writer:
        writer.add_steps(**steps_of(55))  # the first of all: it brought the columns
        writer.discard_episode()
        for number, episode in enumerate(EPISODES):
            writer.add_episode(episode)
            writer.add_steps(**steps_of(77, 200 if number % 3 == 0 else 2))
            writer.discard_episode()
        with pytest.raises(SchemaError, match="no steps to discard"):
            writer.discard_episode()
        assert writer.total_episodes == 12
    assert opened(writer).digest == expected


def test_a_finish_that_fails_keeps_what_was_never_acknowledged(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(finishing, "put_new", full)
        with pytest.raises(StorageError):
            record(EPISODES[:7])
    assert resumed(7, EPISODES[7:]).digest == digest_of(12)
