"""Hashes of chunks, by which what is read in place is checked, come with what is recorded, saved and imported."""

import errno
import itertools
import os
import shutil

import pytest

import orlog
from orlog import Dataset, publish_dataset
from orlog.base import files
from orlog.datasets.download.in_place import open_in_place
from orlog.datasets.store import chunk_hashes
from orlog.datasets.store.chunk_hashes import CHUNKS_FILE, SHARDS_FILE, has_chunk_hashes
from orlog.datasets.store.version import StoredVersion
from orlog.errors import IntegrityError
from tests.command_line import orlog as run
from tests.datasets.recording.arms import (
    EPISODES,
    add,
    append,
    assert_same_episode,
    die,
    digest_of,
    in_child,
    record,
    resumed,
    start,
)
from tests.servers import FileServer

pytestmark = pytest.mark.usefixtures("small_shards")


@pytest.fixture
def large(monkeypatch):
    """Let the smallest recording count as one that is likely to be read in place."""
    monkeypatch.setattr(chunk_hashes, "LARGE_BYTES", 0)


def assert_right(dataset, tmp_path):
    """Compare the hashes of a version with those of its bytes, and read it in place."""
    manifest = dataset.manifest
    shards = [one for one in manifest.objects if one.path not in (CHUNKS_FILE, SHARDS_FILE)]
    for one in shards:
        (tmp_path / "again" / one.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(dataset.folder / one.path, tmp_path / "again" / one.path)
    chunks = StoredVersion(dataset.folder).chunks_of_shards()
    chunk_hashes.write_chunk_hashes(tmp_path / "again", chunks)
    for path in (CHUNKS_FILE, SHARDS_FILE):
        assert (dataset.folder / path).read_bytes() == (tmp_path / "again" / path).read_bytes()
    publish_dataset(dataset.folder, str(tmp_path / "registry"), audit=False)
    with FileServer(tmp_path / "registry") as server:
        there = open_in_place(f"{server.url}/{manifest.name}/{manifest.version}")
        assert len(there) == len(dataset)
        for here, other in zip(dataset, there, strict=True):
            assert_same_episode(here, other)


@pytest.mark.usefixtures("large")
def test_a_large_recording_has_them_and_what_is_appended_gets_its_own(tmp_path, monkeypatch):
    first = record(EPISODES[:3])
    assert has_chunk_hashes(first.manifest)
    hashed = []
    compute = chunk_hashes.hashes_of_shard

    def noted(shard, held, room):
        hashed.append(shard)
        return compute(shard, held, room)

    monkeypatch.setattr(chunk_hashes, "hashes_of_shard", noted)
    second = append(first, EPISODES[3:5])
    assert hashed
    assert all("parts/1/" in shard.as_posix() for shard in hashed)  # old shards are not read
    third = append(second, EPISODES[5:6])
    monkeypatch.setattr(chunk_hashes, "hashes_of_shard", compute)
    for number, dataset in enumerate((first, second, third)):
        assert_right(dataset, tmp_path / str(number))
        assert orlog.verify_store(dataset.folder)[1] == []


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("path", [CHUNKS_FILE, SHARDS_FILE])
def test_damaged_hashes_are_not_taken_over(path):
    first = record(EPISODES[:2])
    whole = (first.folder / path).read_bytes()
    (first.folder / path).unlink()
    (first.folder / path).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    writer = orlog.DatasetWriter.append(first)
    writer.add_episode(EPISODES[2])
    with pytest.raises(IntegrityError, match=rf"{path}.*orlog verify .* --repair"):
        writer.finish()
    writer.close()
    (first.folder / path).write_bytes(whole)
    with orlog.DatasetWriter.append(first, resume=True) as writer:
        assert writer.total_episodes == 1
    assert len(orlog.load_dataset(writer.folder)) == 3


def test_saves_and_imports_get_them_when_asked_for(tmp_path):
    first = record(EPISODES[:4])
    plain = Dataset(orlog.save_dataset(first[1:3], "lab/plain-v1"))
    saved = Dataset(orlog.save_dataset(first[1:3], "lab/saved-v1", chunk_hashes=True))
    assert not has_chunk_hashes(plain.manifest)
    assert_right(saved, tmp_path / "saved")
    with pytest.raises(ValueError, match=r"lab/one-v1@1\.0\.0: .* in the container zarr only"):
        orlog.save_dataset(first, "lab/one-v1", container="hdf5", chunk_hashes=True)

    assert run("export", first.name, "npz", "out", "--lossy", cwd=tmp_path).returncode == 0
    assert run("import", "out", "lab/plainly-v1", cwd=tmp_path).returncode == 0
    told = run("import", "out", "lab/asked-v1", "--chunk-hashes", cwd=tmp_path)
    asked = orlog.load_dataset("lab/asked-v1")
    assert asked.digest in told.stdout
    assert not has_chunk_hashes(orlog.load_dataset("lab/plainly-v1").manifest)
    assert_right(asked, tmp_path / "imported")


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_disk_that_is_full_or_a_kill_while_they_are_written_loses_nothing(number, is_killed, monkeypatch):
    expected = digest_of.__wrapped__(3)  # others have none
    written = itertools.count()

    def write_durably(path, data):
        if next(written) != number:
            files.write_durably(path, data)
        elif is_killed:
            die()
        else:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(chunk_hashes, "write_durably", write_durably)

    def work():
        writer = add(start(), EPISODES[:3])
        writer.checkpoint()
        writer.finish()

    code, told = in_child(work)
    assert code != 0
    assert is_killed or "StorageError" in told
    monkeypatch.setattr(chunk_hashes, "write_durably", files.write_durably)
    found = resumed(3)
    assert has_chunk_hashes(found.manifest)
    assert found.digest == expected
