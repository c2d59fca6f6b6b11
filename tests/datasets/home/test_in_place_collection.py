"""What `orlog cache gc` removes of versions that are read in place, also while they are read."""

import json
import multiprocessing
import os
import threading
import time

import numpy as np
import pytest

import orlog
from orlog import publish_dataset
from orlog.datasets.download import in_place
from orlog.datasets.download.in_place import collect_in_place, in_place_folder, kept_versions, open_in_place
from orlog.datasets.home.garbage import DAY
from orlog.datasets.recording.saving import convert_dataset
from orlog.datasets.store.chunk_hashes import CHUNKS_FILE, SHARDS_FILE
from tests.command_line import orlog as run
from tests.datasets.store.test_version import random_parts, record
from tests.levels import scaled
from tests.servers import FileServer

NAME = "lab/parts-v1"


@pytest.fixture
def whole(home, tmp_path):  # noqa: ARG001
    dataset = record(NAME, random_parts())
    return orlog.load_dataset(convert_dataset(dataset, tmp_path / "store", container="zarr", chunk_hashes=True))


@pytest.fixture
def served(whole, tmp_path, monkeypatch):
    """Return a server of a registry with the version, which an empty home reads in place."""
    publish_dataset(whole.folder, str(tmp_path / "registry"))
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "reader"))
    monkeypatch.setattr(in_place, "WHOLE_BYTES", 0)
    with FileServer(tmp_path / "registry") as server:
        run("registry", "add", "lab", server.url, "--in-place")
        yield server


def read_all(ds, whole):
    for name in whole.columns:
        found, expected = ds.column(name), whole.column(name)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def age(days):
    """Let all that is kept have been used so long ago."""
    then = time.time() - days * DAY
    for path in in_place_folder().rglob("*"):
        os.utime(path, (then, then))


@pytest.mark.usefixtures("served")
def test_only_what_nobody_opened_for_so_long_goes(whole):
    read_all(orlog.load_dataset(NAME), whole)
    assert collect_in_place(unused_days=30, max_bytes=0).removed == []
    age(days=3)
    assert collect_in_place(unused_days=30).removed == []
    orlog.load_dataset(NAME)  # which is a use
    assert collect_in_place(unused_days=2, max_bytes=0).removed == []
    age(days=3)
    said = run("cache", "gc", "--unused", "2", "--dry-run").stdout
    assert "not opened for 3 days" in said
    assert len(kept_versions()) == 1
    run("cache", "gc", "--unused", "2")
    assert kept_versions() == []
    assert json.loads(run("cache", "list", "--json").stdout)["in_place"] == []
    read_all(orlog.load_dataset(NAME), whole)


@pytest.mark.usefixtures("served")
def test_a_size_and_the_limit_remove_those_opened_least_recently(whole, monkeypatch):
    read_all(orlog.load_dataset(NAME), whole)
    (kept,) = kept_versions()
    age(days=3)
    assert collect_in_place(max_bytes=kept.size_bytes).removed == []
    said = run("cache", "gc", "--max-size", "1K").stdout
    assert "opened least recently, and room was asked for" in said
    assert kept_versions() == []
    read_all(orlog.load_dataset(NAME), whole)
    age(days=3)
    monkeypatch.setenv("ORLOG_CACHE", "1K")
    report = collect_in_place(dry_run=True)
    assert [one.path for one in report.removed] == [kept.folder]
    assert report.left_bytes == 0
    assert len(kept_versions()) == 1
    assert len(collect_in_place().removed) == 1


def test_what_is_of_a_removed_registry_goes_and_what_was_opened_by_its_url_stays(served, whole):
    read_all(orlog.load_dataset(NAME), whole)
    run("registry", "remove", "lab")
    said = run("cache", "gc").stdout
    assert "its registry lab was removed" in said
    assert kept_versions() == []
    read_all(open_in_place(f"{served.url}/{NAME}"), whole)
    run("cache", "gc")
    assert len(kept_versions()) == 1


@pytest.mark.usefixtures("served")
def test_what_killed_processes_left_goes(whole):
    read_all(orlog.load_dataset(NAME), whole)
    (kept,) = kept_versions()
    (in_place_folder() / f".{'a' * 64}.deleted").mkdir()
    (in_place_folder() / ("b" * 64)).mkdir()
    (in_place_folder() / "mine").mkdir()
    removed = {one.path.name for one in collect_in_place().removed}
    assert removed == {f".{'a' * 64}.deleted", "b" * 64}
    assert (in_place_folder() / "mine").is_dir()
    assert kept.folder.is_dir()


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("small", [True, False])
def test_who_reads_goes_on_while_all_is_removed(whole, monkeypatch, small):
    if not small:  # hashes of chunks are fetched by shard
        monkeypatch.setattr("orlog.datasets.store.chunk_hashes.MOST_WHOLE_BYTES", 0)
    ds = orlog.load_dataset(NAME)
    first = ds[0]
    assert len(collect_in_place(unused_days=0).removed) == 1
    assert not (in_place_folder() / SHARDS_FILE).exists()
    assert not (in_place_folder() / CHUNKS_FILE).exists()
    read_all(ds, whole)
    np.testing.assert_array_equal(first.rewards, whole[0].rewards)
    stop = threading.Event()

    def collect():
        while not stop.is_set():
            collect_in_place(unused_days=0)
            time.sleep(0.01)

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        for _ in range(2):
            read_all(orlog.load_dataset(NAME), whole)
    finally:
        stop.set()
        collector.join()


def collect_always(home, ready):
    """Remove all that is kept, again and again, until the process is ended."""
    os.environ["ORLOG_HOME"] = home
    while True:
        collect_in_place(unused_days=0)
        ready.touch()


@pytest.mark.usefixtures("served")
def test_who_opens_a_version_finds_all_of_it_while_another_process_removes_all(whole, tmp_path):
    ready = tmp_path / "ready"
    collector = multiprocessing.get_context("spawn").Process(
        target=collect_always, args=(os.environ["ORLOG_HOME"], ready), daemon=True
    )
    collector.start()
    try:
        while not ready.exists():
            assert collector.is_alive()
            time.sleep(0.02)
        for _ in range(scaled(100, some=8)):
            assert orlog.load_dataset(NAME).total_steps == whole.total_steps
        assert collector.is_alive()
    finally:
        collector.terminate()
        collector.join()
    read_all(orlog.load_dataset(NAME), whole)
