"""Where versions are found, in homes of one user and of several, and what readers of deleted versions see."""

import contextlib
import multiprocessing
import os
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import orlog
from orlog import repair_dataset
from orlog.base.files import put_new
from orlog.cli.commands import app
from orlog.datasets.download.download import download_version
from orlog.datasets.download.sources import source_of_url
from orlog.datasets.home.folders import (
    datasets_folder,
    installed_names,
    installed_versions,
    share_objects,
    version_folder,
)
from orlog.datasets.home.garbage import delete_version
from orlog.datasets.home.records import known_versions
from orlog.datasets.store.verify import verify_folder
from orlog.errors import IntegrityError, NotFoundError, StorageError, VersionExistsError
from orlog.manifests.manifest import read_manifest
from tests.datasets.conftest import MINI


def installed(name, version):
    folder = datasets_folder() / name / version
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    return folder


def test_datasets_live_in_orlog_home_then_in_the_cache_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("ORLOG_HOME", "~/mine")
    assert datasets_folder() == tmp_path / "mine/datasets"
    monkeypatch.setenv("ORLOG_HOME", "")
    assert datasets_folder() == tmp_path / "xdg/orlog/datasets"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert datasets_folder() == tmp_path / ".cache/orlog/datasets"
    assert list(tmp_path.iterdir()) == []


def test_names_are_listed_once_and_what_is_unfinished_or_without_a_manifest_is_not():
    for name, version in [("b/x-v1", "1.0.0"), ("b/x-v1", "1.1.0"), ("a/b/c/y-v2", "1.0.0"), ("a/z-v0", "2.0.0")]:
        installed(name, version)
    (datasets_folder() / "b/x-v1/1.1.0").rename(datasets_folder() / "elsewhere")
    (datasets_folder() / "l/k-v1").mkdir(parents=True)
    (datasets_folder() / "l/k-v1/1.0.0").symlink_to(datasets_folder() / "elsewhere")
    for version in (".1.0.0.unfinished", ".1.0.0.replaced", "notes"):
        installed("c/x-v1", version)
    (datasets_folder() / "c/x-v1/1.0.0").mkdir()
    (datasets_folder() / "c/x-v1/notes/manifest.json").unlink()
    assert installed_names() == ["a/b/c/y-v2", "a/z-v0", "b/x-v1", "l/k-v1"]
    assert installed_versions("c/x-v1") == []


def test_a_version_is_never_put_in_place_of_another(home):
    there = installed("b/x-v1", "1.0.0")
    (home / "new").mkdir()
    (home / "new/manifest.json").write_text("new")
    with pytest.raises(StorageError):
        put_new(home / "new", there)
    assert (there / "manifest.json").read_text() == "{}"


def test_equal_files_of_versions_are_stored_once_and_damaged_ones_are_not_taken_over(mini_folder, tmp_path):
    manifest = read_manifest(mini_folder / "manifest.json")
    new = tmp_path / "new"
    shutil.copytree(mini_folder, new)
    good = (mini_folder / "rewards/c.0").read_bytes()
    (mini_folder / "rewards/c.0").write_bytes(bytes(len(good)))
    (mini_folder / "actions/c.0.0").unlink()
    assert share_objects(new, manifest.objects) > 0
    assert (new / "rewards/c.0").read_bytes() == good
    sums = [item.sha256 for item in manifest.objects]
    unique = {item.path for item in manifest.objects if sums.count(item.sha256) == 1}
    shared = {path for path in unique if (new / path).stat().st_nlink == 2}
    assert shared == unique - {"rewards/c.0", "actions/c.0.0"}
    assert verify_folder(new)[1] == []


# --- homes that are shared


@pytest.fixture
def shared(built_mini, tmp_path, monkeypatch):
    """Return the folder of the small dataset in a shared home, where nothing may be written."""
    folder = tmp_path / "group" / "datasets" / MINI / "1.0.0"
    shutil.copytree(built_mini, folder)
    before = {*(tmp_path / "group").rglob("*")}
    monkeypatch.setenv("ORLOG_SHARED", os.pathsep.join([str(tmp_path / "gone"), str(tmp_path / "group")]))
    yield folder
    assert {*(tmp_path / "group").rglob("*")} == before


def test_a_version_of_a_shared_home_is_found_verified_and_listed(shared, home):
    assert orlog.load_dataset(MINI).folder == shared
    assert orlog.load_dataset(f"{MINI}@1.0.0", download=True).folder == shared
    assert installed_names() == [MINI]
    assert known_versions(MINI)["1.0.0"][1]
    assert orlog.build_dataset(MINI) == shared
    assert orlog.verify_store(shared)[1] == []
    assert not (home / "datasets").exists()


def test_what_a_shared_home_has_is_not_downloaded_and_comes_into_ones_own_where_it_is_damaged(shared, served):
    def asked():
        return [request.path for request in served.server.requests if "/c." in request.path]

    assert download_version(source_of_url(served.url)) == shared
    assert asked() == []
    damaged = shared / "rewards/c.0"
    data = bytearray(damaged.read_bytes())
    data[20] ^= 1
    damaged.write_bytes(data)
    assert [problem.file for problem in repair_dataset(shared)] == ["rewards/c.0"]
    own = version_folder(MINI, "1.0.0")
    assert own == datasets_folder() / MINI / "1.0.0"
    assert orlog.verify_store(own)[1] == []
    assert damaged.read_bytes() == data
    assert asked() == [f"/{MINI}/1.0.0/rewards/c.0"]


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


ROUNDS = 60


def delete_and_put_back(folder, copy):
    for number in range(ROUNDS):
        spare = copy.with_name(f"copy-{number}")
        shutil.copytree(copy, spare, copy_function=os.link)
        delete_version(MINI, "1.0.0")
        spare.rename(folder)


def test_what_is_deleted_while_it_is_read_is_not_found(mini_folder, tmp_path):
    copy = tmp_path / "copies/copy"
    shutil.copytree(mini_folder, copy)
    context = multiprocessing.get_context("fork")
    other = context.Process(target=delete_and_put_back, args=(mini_folder, copy))
    other.start()
    ways = [
        lambda: orlog.load_dataset(MINI).column("rewards"),
        lambda: orlog.load_dataset(mini_folder)[3:5].column("observations/observation"),
        lambda: orlog.load_dataset(f"{MINI}@1.0.0")[0],
        lambda: check(orlog.verify_store(mini_folder)[1]),
        lambda: check(orlog.verify_store(mini_folder, quick=True)[1]),
    ]
    while other.is_alive():
        for read in ways:
            with contextlib.suppress(NotFoundError):
                read()
    assert other.exitcode == 0
    for read in ways:
        read()
    assert orlog.verify_store(mini_folder)[1] == []


def check(problems):
    assert problems == []


def test_a_version_that_was_deleted_since_it_was_opened_says_so(mini):
    view = mini[2:4]
    delete_version(MINI, "1.0.0")
    for read in (
        lambda: mini.column("rewards"),
        lambda: mini.rows("rewards", np.array([3, 1])),
        lambda: view[0],
        lambda: next(mini.blocks()),
        lambda: orlog.verify_store(mini.folder),
        lambda: orlog.publish_dataset(mini.folder, "registry"),
    ):
        with pytest.raises(NotFoundError, match="was deleted while it was read"):
            read()


def test_what_is_damaged_is_still_damaged(mini):
    (mini.folder / "rewards/c.0").unlink()
    with pytest.raises(IntegrityError):
        mini.column("rewards")
    assert [one.kind for one in orlog.verify_store(mini.folder)[1]] == ["missing"]
    (mini.folder / "manifest.json").unlink()
    with pytest.raises(IntegrityError):
        orlog.verify_store(mini.folder)
    assert isinstance(CliRunner().invoke(app, ["verify", MINI]).exception, NotFoundError)
