"""What `orlog cache gc` removes of versions that are read in place, also while they are read."""

import json
import multiprocessing
import os
import time

import numpy as np
import pytest

import orlog
from orlog import publish_dataset
from orlog.datasets.download import in_place
from orlog.datasets.download.in_place import collect_in_place, in_place_folder, kept_versions, open_in_place
from orlog.datasets.home.garbage import DAY
from orlog.datasets.recording.saving import convert_dataset
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
        np.testing.assert_array_equal(np.asarray(ds.column(name)), np.asarray(whole.column(name)))


def age(days):
    """Let all that is kept have been used so long ago."""
    then = time.time() - days * DAY
    for path in in_place_folder().rglob("*"):
        os.utime(path, (then, then))


@pytest.mark.usefixtures("served")
def test_what_nobody_opened_for_so_long_or_is_above_a_size_goes(whole, monkeypatch):
    read_all(orlog.load_dataset(NAME), whole)
    (kept,) = kept_versions()
    assert collect_in_place(unused_days=30, max_bytes=0).removed == []
    age(days=3)
    assert collect_in_place(unused_days=30).removed == []
    orlog.load_dataset(NAME)  # which is a use
    assert collect_in_place(unused_days=2, max_bytes=0).removed == []
    age(days=3)
    assert "not opened for 3 days" in run("cache", "gc", "--unused", "2", "--dry-run").stdout
    assert len(kept_versions()) == 1
    run("cache", "gc", "--unused", "2")
    assert json.loads(run("cache", "list", "--json").stdout)["in_place"] == []
    read_all(orlog.load_dataset(NAME), whole)
    age(days=3)
    assert collect_in_place(max_bytes=kept.size_bytes).removed == []
    assert "opened least recently" in run("cache", "gc", "--max-size", "1K").stdout
    assert kept_versions() == []
    read_all(orlog.load_dataset(NAME), whole)
    age(days=3)
    monkeypatch.setenv("ORLOG_CACHE", "1K")
    report = collect_in_place(dry_run=True)
    assert ([one.path for one in report.removed], report.left_bytes) == ([kept.folder], 0)
    assert len(kept_versions()) == 1
    assert len(collect_in_place().removed) == 1


def test_what_is_of_a_removed_registry_or_a_killed_process_goes_and_what_has_a_url_stays(served, whole):
    read_all(orlog.load_dataset(NAME), whole)
    run("registry", "remove", "lab")
    assert "its registry lab was removed" in run("cache", "gc").stdout
    assert kept_versions() == []
    read_all(open_in_place(f"{served.url}/{NAME}"), whole)
    left = [f".{'a' * 64}.deleted", "b" * 64]
    for name in (*left, "mine"):
        (in_place_folder() / name).mkdir()
    assert {one.path.name for one in collect_in_place().removed} == {*left}
    assert (in_place_folder() / "mine").is_dir()
    assert len(kept_versions()) == 1


def collect_always(home, ready):
    """Remove all that is kept, again and again, until the process is ended."""
    os.environ["ORLOG_HOME"] = home
    while True:
        collect_in_place(unused_days=0)
        ready.touch()
        time.sleep(0.005)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("small", [True, False])
def test_who_opens_and_reads_goes_on_while_another_process_removes_all(whole, monkeypatch, small, tmp_path):
    if not small:  # hashes of chunks are fetched by shard
        monkeypatch.setattr("orlog.datasets.store.chunk_hashes.MOST_WHOLE_BYTES", 0)
    ds = orlog.load_dataset(NAME)
    first = ds[0]
    assert len(collect_in_place(unused_days=0).removed) == 1
    read_all(ds, whole)
    np.testing.assert_array_equal(first.rewards, whole[0].rewards)
    ready = tmp_path / "ready"
    collector = multiprocessing.get_context("spawn").Process(
        target=collect_always, args=(os.environ["ORLOG_HOME"], ready), daemon=True
    )
    collector.start()
    try:
        while not ready.exists():
            assert collector.is_alive()
            time.sleep(0.02)
        for _ in range(scaled(50, some=4)):
            read_all(orlog.load_dataset(NAME), whole)
        assert collector.is_alive()
    finally:
        collector.terminate()
        collector.join()
    read_all(orlog.load_dataset(NAME), whole)
