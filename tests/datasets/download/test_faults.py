"""Disks that are full, cannot be written or have no hard links: nothing is lost or half there."""

import errno
import os
import shutil

import pytest

import orlog
from orlog import publish_dataset, repair_dataset
from orlog.datasets.download.download import download_version
from orlog.datasets.download.http import Patience
from orlog.datasets.download.sources import source_of_url
from orlog.datasets.download.transfer import TransferOptions
from orlog.datasets.home import records as remembered
from orlog.datasets.home.folders import datasets_folder, installed_versions
from orlog.errors import StorageError
from orlog.manifests.manifest import read_manifest
from tests.command_line import orlog as run
from tests.servers import COMES, FileServer
from tests.small_disks import change_mount, fill
from tests.stored_objects import change_unseen

MINI = "pointmaze/umaze-mini-v1"
SHARD = "observations/observation/c.0.0"
QUICK = Patience(idle=0, timeout=COMES, attempts=2, first_wait=0.01, longest_wait=0.1)
HEX_DIGITS = 64


@pytest.fixture
def server(built_mini):
    """Serve the folder of the small dataset."""
    with FileServer(built_mini) as running:
        yield running


def bring(server, **options):
    return download_version(source_of_url(server.url), TransferOptions(patience=QUICK, **options))


def total_bytes(folder):
    """Return what a download of a version transfers: of equal objects one."""
    objects = read_manifest(folder / "manifest.json").objects
    return sum({item.sha256: item.size_bytes for item in objects}.values())


def asked_bytes(server):
    """Return how many bytes of objects were asked for since the list of requests was cleared."""
    total = 0
    for request in server.requests:
        file = server.folder / request.path.lstrip("/")
        if file.name != "manifest.json":
            start = request.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-")
            total += file.stat().st_size - int(start)
    return total


def kept_bytes():
    """Return what is here of objects that came, whole or in part, of a version that is not."""
    return sum(
        path.stat().st_size
        for path in datasets_folder().rglob("*")
        if path.is_file() and len(path.name.removesuffix(".part")) == HEX_DIGITS
    )


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put_home_on(disk, monkeypatch):
    monkeypatch.setenv("ORLOG_HOME", str(disk / "home"))


# --- full disks


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0], ids=["at once", "midway", "at the end"])
def test_room_that_vanishes_ends_a_download_which_goes_on_once_there_is_some(server, mount, share, monkeypatch):
    disk = mount("size=8m")
    put_home_on(disk, monkeypatch)
    came = []

    def fill_midway(done, total):
        if done >= share * total and not came:
            came.append(done)
            fill(disk)

    with pytest.raises(StorageError, match="No space left on device; free some space") as caught:
        bring(server, progress=fill_midway)
    assert caught.value.errno == errno.ENOSPC
    assert installed_versions(MINI) == []
    assert not (datasets_folder() / MINI / "1.0.0").exists()
    kept = kept_bytes()
    assert kept >= came[0]
    # The room has not come back yet: nothing of what is kept is lost by trying.
    with pytest.raises(StorageError):
        bring(server)
    assert kept_bytes() >= kept
    (disk / "filler").unlink()
    kept = kept_bytes()
    server.requests.clear()
    folder = bring(server)
    assert orlog.verify_store(folder)[1] == []
    assert asked_bytes(server) == total_bytes(folder) - kept


@pytest.mark.parametrize("is_full_before", [True, False])
def test_a_repair_on_a_full_disk_changes_nothing_and_goes_on_once_there_is_room(
    server, mount, is_full_before, monkeypatch
):
    disk = mount("size=8m")
    put_home_on(disk, monkeypatch)
    folder = bring(server)
    (folder / SHARD).unlink()
    (folder / "rewards/c.0").write_bytes(b"damage")
    before = contents(folder)
    if is_full_before:
        fill(disk)

    def fill_midway(done, total):
        if total > done > 0 and not (disk / "filler").exists():
            fill(disk)

    words = "must still be downloaded" if is_full_before else "No space left on device; free some space"
    with pytest.raises(StorageError, match=words):
        repair_dataset(folder, progress=fill_midway)
    assert contents(folder) == before
    (disk / "filler").unlink()
    kept = kept_bytes()
    server.requests.clear()
    assert {problem.file for problem in repair_dataset(folder)} == {SHARD, "rewards/c.0"}
    assert orlog.verify_store(folder)[1] == []
    listed = read_manifest(folder / "manifest.json").objects
    damaged = sum(item.size_bytes for item in listed if item.path in (SHARD, "rewards/c.0"))
    assert asked_bytes(server) == damaged - kept


def test_a_full_registry_shows_no_half_version_and_publishing_goes_on_once_there_is_room(
    built_mini, mount, tmp_path, monkeypatch
):
    disk = mount("size=700k")
    registry = disk / "registry"
    with pytest.raises(StorageError, match="the disk is full: free some space"):
        publish_dataset(built_mini, str(registry))
    version = registry / MINI / "1.0.0"
    assert not (version / "manifest.json").exists()
    assert not (registry / "index.json").exists()
    listed = {item.path: item.size_bytes for item in read_manifest(built_mini / "manifest.json").objects}
    came = {path: (version / path).stat().st_ino for path in listed if (version / path).exists()}
    change_mount("remount,size=8m", disk)
    publish_dataset(built_mini, str(registry))
    assert came
    assert {path: (version / path).stat().st_ino for path in came} == came
    put_home_on(tmp_path, monkeypatch)
    assert orlog.verify_store(orlog.load_dataset(f"file://{version}").folder)[1] == []


# --- a home that cannot be written


@pytest.fixture
def closed_home(built_mini, mount, monkeypatch):
    """Return a home with the small dataset, verified once, on a disk that cannot be written."""
    disk = mount("size=8m")
    put_home_on(disk, monkeypatch)
    folder = datasets_folder() / MINI / "1.0.0"
    shutil.copytree(built_mini, folder)
    monkeypatch.setattr(remembered, "SETTLED_NS", -(10**10))
    orlog.verify_store(folder)
    change_mount("remount,ro", disk)
    return disk / "home"


@pytest.mark.slow
def test_a_home_that_cannot_be_written_is_read_and_says_what_to_do_where_it_must_be_written(
    closed_home, server, tmp_path, built_mini, reseal
):
    newer = tmp_path / "newer"
    shutil.copytree(built_mini, newer)
    reseal(newer, lambda body: body.update(version="1.0.1"))
    before = contents(closed_home)
    reading = [
        ["list"],
        ["show", MINI],
        ["verify", MINI],
        ["verify", "--quick", MINI],
        ["download", f"{MINI}@1.0.0"],
        ["download", server.url],
    ]
    writing = [["verify", MINI, "--repair", "--mirror", server.url], ["download", f"file://{newer}"]]
    adding = ["registry", "add", "lab", server.url]
    ends = [run(*words) for words in [*reading, *writing, adding]]
    done = [(end.returncode, " ".join((end.stdout + end.stderr).split())) for end in ends]
    for words, (code, told) in zip(reading, done[: len(reading)], strict=True):
        assert code == 0, (words, told)
    for words, (code, told) in zip(writing, done[len(reading) : -1], strict=True):
        assert code == 1, (words, told)
        assert "cannot write: " in told
        assert "set ORLOG_HOME to another disk" in told
    code, told = done[-1]
    assert code == 1
    assert "cannot write: " in told
    assert contents(closed_home) == before
    assert {request.path for request in server.requests} == {"/manifest.json"}


# --- a disk without hard links

# link_or_copy copies under the final name, so a cut copy counts as whole, or as a strange file.


def refuse_links(monkeypatch, number):
    """Let every attempt to make a hard link fail, as on FAT or between disks."""

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)


def test_download_share_and_repair_are_right_without_hard_links(server, tmp_path, monkeypatch):
    refuse_links(monkeypatch, errno.EXDEV)
    first = orlog.load_dataset(bring(server))
    assert orlog.verify_store(first.folder)[1] == []
    with orlog.DatasetWriter.append(first) as writer:
        writer.add_episode(first[0])
    newer = orlog.load_dataset(MINI)
    published = tmp_path / "published"
    shutil.move(newer.folder, published)
    with FileServer(published) as second:
        folder = bring(second)
        assert orlog.verify_store(folder)[1] == []
        assert second.sent_bytes < first.manifest.size_bytes / 4
        assert not (folder / SHARD).samefile(first.folder / SHARD)
        change_unseen(first.folder / SHARD)
        shutil.rmtree(folder / "rewards")
        assert [problem.file for problem in repair_dataset(first.folder)] == [SHARD]
        repair_dataset(folder)
    for one in (first.folder, folder):
        assert orlog.verify_store(one)[1] == []
