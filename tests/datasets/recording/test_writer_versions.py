"""Recorded versions: names, numbers and facts, and what is appended to them."""

import errno
import functools
import itertools
import os
import shutil
import signal
import tracemalloc

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog import DatasetWriter
from orlog.datasets.home import folders
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.store.encoding import choose_encoding
from orlog.errors import IntegrityError, ManifestError, NotFoundError, SchemaError, StorageError, VersionExistsError
from orlog.manifests.manifest import read_manifest
from tests.datasets.recording.arms import (
    EPISODES,
    NAME,
    OBSERVATIONS,
    OPTIONS,
    add,
    append,
    assert_same_episode,
    die,
    digest_of,
    finished,
    in_child,
    interrupted,
    leftovers,
    opened,
    record,
    resumed,
    start,
    steps_of,
    tell,
)

pytestmark = pytest.mark.usefixtures("small_shards")


# --- versions


def test_a_version_is_never_overwritten():
    dataset = record(EPISODES[:2])
    before = {path: path.stat() for path in dataset.folder.rglob("*")}
    for options in OPTIONS:
        with pytest.raises(VersionExistsError, match=r"lab/arm-v1@1\.0\.0 is in .*overwritten"):
            start(**options)
    with pytest.raises(VersionExistsError):
        DatasetWriter.append(dataset, version="1.0.0")
    assert {path: path.stat() for path in dataset.folder.rglob("*")} == before
    assert record(EPISODES[:3], version="1.0.1").total_episodes == 3


def test_a_version_that_came_to_be_meanwhile_is_left_alone_and_nothing_is_lost():
    other = record(EPISODES[:2], version="2.0.0").folder
    writer = add(start(), EPISODES[:3])
    writer.checkpoint()
    shutil.copytree(other, writer.folder)
    with pytest.raises(VersionExistsError):
        writer.finish()
    writer.close()
    shutil.rmtree(writer.folder)
    resumed(3)


def test_one_version_has_one_writer_at_a_time():
    with start() as writer:
        writer.add_episode(EPISODES[0])
        writer.checkpoint()
        for options in OPTIONS:
            with pytest.raises(StorageError, match=r"1\.0\.0: another process is writing"):
                start(**options)
            code, told = in_child(functools.partial(start, **options))
            assert (code, told.partition(":")[0]) == (1, "StorageError"), told
        record(EPISODES[:1], version="1.0.1")  # another version is free
        writer.add_episode(EPISODES[1])
    assert len(opened(writer)) == 2


def test_an_interrupted_recording_is_neither_dropped_nor_gone_on_with_unasked():
    interrupted(EPISODES[:3])
    with pytest.raises(NotFoundError):
        orlog.load_dataset(NAME)
    message = r"interrupted recording of lab/arm-v1@1\.0\.0 .*3 episodes.*resume=True.*discard=True"
    with pytest.raises(StorageError, match=message):
        start()
    writer = start(resume=True)
    assert (writer.total_episodes, writer.total_steps) == (3, sum(map(len, EPISODES[:3])))
    assert finished(writer, EPISODES[3:4]).digest == digest_of(4)


def test_another_recording_is_not_gone_on_with():
    dataset = record(EPISODES[:1])
    interrupted(EPISODES[:1], version="1.1.0")
    other = [
        lambda: DatasetWriter(
            NAME, observation_space=OBSERVATIONS, action_space=spaces.Discrete(5), version="1.1.0", resume=True
        ),
        lambda: start(version="1.1.0", reward_dtype=np.float32, resume=True),
        lambda: start(version="1.1.0", container="hdf5", resume=True),
        lambda: DatasetWriter.append(dataset, resume=True),
    ]
    for begin in other:
        with pytest.raises(SchemaError, match=r"interrupted recording of lab/arm-v1@1\.1\.0"):
            begin()
    chunks = {"rewards": choose_encoding("rewards", np.dtype("f8"), (), chunk_rows=3)}
    with pytest.raises(SchemaError, match=r"chunk_rows=16.*chunk_rows=3.*; give the same encodings"):
        start(version="1.1.0", encodings=chunks, resume=True)
    resumed(1, version="1.1.0")


@pytest.mark.parametrize("damage", ["lost", "cut", "altered"])
@pytest.mark.parametrize("file", ["journal.json", "pending-1", "part/observations/c.0.0"])
def test_a_damaged_recording_is_not_gone_on_with(file, damage):
    writer = interrupted(EPISODES)
    path = writer.folder.with_name(".1.0.0.recording") / file
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.unlink()
    if damage != "lost":
        path.write_bytes(data[:-1] if damage == "cut" else data)
    if (file, damage) == ("journal.json", "lost"):
        # Nothing says that anything was there.
        assert len(resumed(0, EPISODES[:1])) == 1
        return
    error = ManifestError if file == "journal.json" else IntegrityError
    with pytest.raises(error):
        start(resume=True)
    assert len(record(EPISODES[:1], discard=True)) == 1


# --- appending


@pytest.mark.parametrize("container", ["zarr", "hdf5"])
def test_appending_in_row_gives_all_episodes_and_shares_the_files(container):
    if container == "hdf5":
        pytest.importorskip("h5py")
    versions = [record(EPISODES[:4], container=container)]
    versions.append(append(versions[-1], EPISODES[4:5], changes="one more"))
    versions.append(append(versions[-1], EPISODES[5:9]))
    versions.append(append(versions[-1], EPISODES[9:], version="2.0.0"))
    assert [one.version for one in versions] == ["1.0.0", "1.1.0", "1.2.0", "2.0.0"]
    assert versions[1].manifest.changes == "one more"
    for older, newer in itertools.pairwise(versions):
        (parent,) = newer.lineage
        assert (parent.digest, parent.operation) == (older.digest, "append")
        for item in older.manifest.objects:
            assert (newer.folder / item.path).stat().st_nlink > 1
    for dataset, count in zip(versions, (4, 5, 9, 12), strict=True):
        assert len(dataset) == count
        for found, expected in zip(dataset, EPISODES[:count], strict=True):
            assert_same_episode(found, expected)
        order = np.random.default_rng(0).permutation(count)
        for found, position in zip(dataset.iterate_episodes(order.tolist()), order, strict=True):
            assert_same_episode(found, EPISODES[position])
    whole = record(EPISODES, name="lab/whole-v1")
    for name in whole.columns:
        np.testing.assert_array_equal(versions[-1].column(name), whole.column(name))
        rows = np.random.default_rng(0).permutation(len(whole.column(name)))
        np.testing.assert_array_equal(versions[-1].rows(name, rows), whole.rows(name, rows))


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_writer_that_ended_holds_no_memory_for_rows(is_finished):
    tracemalloc.start()
    try:
        writer = add(start(), EPISODES)
        assert tracemalloc.get_traced_memory()[0] > 2**24
        if is_finished:
            writer.finish()
        writer.close()
        assert tracemalloc.get_traced_memory()[0] < 2**22
    finally:
        tracemalloc.stop()


def test_finishing_reads_no_manifest_of_another_dataset(monkeypatch):
    record(EPISODES)
    read = []

    def reading(path):
        read.append(path.parent.parent.name)
        return read_manifest(path)

    monkeypatch.setattr(folders, "read_manifest", reading)
    for version in ("1.0.0", "1.0.1"):
        record(EPISODES[:1], "lab/other-v1", version=version)
    assert {*read} == {"other-v1"}


def test_an_interrupted_append_goes_on_to_the_same_bytes():
    base = record(EPISODES[:4])
    expected = append(base, EPISODES[4:]).digest
    shutil.rmtree(base.folder.with_name("1.1.0"))

    def work():
        writer = add(DatasetWriter.append(base), EPISODES[4:8])
        tell(writer.checkpoint())
        writer.add_steps(**steps_of(77, 100))
        writer.checkpoint()
        die()

    assert in_child(work) == (-signal.SIGKILL, "4\n")
    with pytest.raises(StorageError, match="interrupted recording"):
        DatasetWriter.append(base)
    writer = DatasetWriter.append(base, resume=True)
    assert writer.total_episodes == 4
    assert finished(writer, EPISODES[8:]).digest == expected
    assert leftovers() == set()


def test_a_view_is_not_appended_to():
    dataset = record(EPISODES)
    with pytest.raises(SchemaError, match="a view cannot be appended to; save_dataset"):
        DatasetWriter.append(dataset[:2])


def test_folders_that_cannot_be_linked_are_copied(monkeypatch):
    def no_links(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    expected = append(record(EPISODES[:4]), EPISODES[4:]).digest
    shutil.rmtree(datasets_folder())
    monkeypatch.setattr(os, "link", no_links)
    assert append(record(EPISODES[:4]), EPISODES[4:]).digest == expected
