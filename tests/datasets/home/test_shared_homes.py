"""Homes that several users share, below one's own: read, never written to."""

import os
import shutil

import pytest

import orlog
from orlog import repair_dataset
from orlog.datasets.download.download import download_version
from orlog.datasets.download.sources import source_of_url
from orlog.datasets.home.folders import datasets_folder, installed_names, installed_versions, version_folder
from orlog.datasets.home.records import known_versions
from orlog.errors import VersionExistsError
from tests.datasets.conftest import MINI


@pytest.fixture
def shared(built_mini, tmp_path, monkeypatch):
    """Return the folder of the small dataset in a shared home, where nothing may be written."""
    folder = tmp_path / "group" / "datasets" / MINI / "1.0.0"
    shutil.copytree(built_mini, folder)
    before = snapshot(folder.parents[3])
    monkeypatch.setenv("ORLOG_SHARED", os.pathsep.join([str(tmp_path / "gone"), str(tmp_path / "group")]))
    yield folder
    assert snapshot(folder.parents[3]).keys() == before.keys()


def snapshot(folder):
    return {str(path): path.lstat().st_mtime_ns for path in folder.rglob("*")}


def test_a_version_of_a_shared_home_is_found_verified_and_listed(shared, home):
    assert orlog.load_dataset(MINI).folder == shared
    assert orlog.load_dataset(f"{MINI}@1.0.0", download=True).folder == shared
    assert installed_names() == [MINI]
    assert installed_versions(MINI) == ["1.0.0"]
    assert known_versions(MINI)["1.0.0"][1]
    assert orlog.build_dataset(MINI) == shared
    assert orlog.verify_store(shared)[1] == []
    assert not (home / "datasets").exists()


def test_what_a_shared_home_has_is_not_downloaded(shared, served):
    assert download_version(source_of_url(served.url)) == shared
    assert not any("/c." in request.path for request in served.server.requests)


@pytest.mark.usefixtures("shared")
def test_no_version_is_recorded_or_saved_that_a_shared_home_has():
    ds = orlog.load_dataset(MINI)
    with pytest.raises(VersionExistsError, match="group"):
        orlog.save_dataset(ds[:2], MINI, version="1.0.0")
    with pytest.raises(VersionExistsError, match="group"):
        orlog.DatasetWriter(MINI, observation_space=ds.observation_space, action_space=ds.action_space)
    saved = orlog.save_dataset(ds[:2], MINI, version="2.0.0")
    assert saved.is_relative_to(datasets_folder())
    assert orlog.load_dataset(MINI).version == "2.0.0"


def test_a_version_damaged_in_a_shared_home_comes_into_ones_own(shared, served):
    damaged = shared / "rewards/c.0"
    data = bytearray(damaged.read_bytes())
    data[20] ^= 1
    damaged.write_bytes(data)
    problems = repair_dataset(shared)
    assert [problem.file for problem in problems] == ["rewards/c.0"]
    own = version_folder(MINI, "1.0.0")
    assert own == datasets_folder() / MINI / "1.0.0"
    assert orlog.verify_store(own)[1] == []
    assert damaged.read_bytes() == data
    objects = [request.path for request in served.server.requests if "/c." in request.path]
    assert objects == [f"/{MINI}/1.0.0/rewards/c.0"]
