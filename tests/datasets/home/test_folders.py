import errno
import shutil

import pytest

from orlog.base.files import put_new, unfinished_folder
from orlog.datasets.home.folders import datasets_folder, installed_names, installed_versions, share_objects
from orlog.datasets.store.verify import verify_folder
from orlog.errors import StorageError
from orlog.manifests.manifest import read_manifest


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


def test_names_with_any_number_of_parts_are_listed_once():
    for name, version in [("b/x-v1", "1.0.0"), ("b/x-v1", "1.1.0"), ("a/b/c/y-v2", "1.0.0"), ("a/z-v0", "2.0.0")]:
        installed(name, version)
    (datasets_folder() / "b/x-v1/1.1.0").rename(datasets_folder() / "elsewhere")
    (datasets_folder() / "l/k-v1").mkdir(parents=True)
    (datasets_folder() / "l/k-v1/1.0.0").symlink_to(datasets_folder() / "elsewhere")
    assert installed_names() == ["a/b/c/y-v2", "a/z-v0", "b/x-v1", "l/k-v1"]


def test_what_is_unfinished_hidden_or_without_a_manifest_is_not_listed():
    for version in (".1.0.0.unfinished", ".1.0.0.replaced", "notes"):
        installed("b/x-v1", version)
    (datasets_folder() / "b/x-v1/1.0.0").mkdir()
    assert installed_versions("b/x-v1") == []
    (datasets_folder() / "b/x-v1/notes/manifest.json").unlink()
    assert installed_names() == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_interruption_leaves_nothing_and_frees_the_lock(home, error):
    destination = home / "datasets/b/x-v1/1.0.0"

    def interrupted():
        with unfinished_folder(destination) as folder:
            (folder / "file").write_text("x")
            raise error

    with pytest.raises(error):
        interrupted()
    assert {path.name for path in destination.parent.iterdir()} <= {".1.0.0.lock"}
    waited = []
    with unfinished_folder(destination, on_wait=lambda: waited.append(True)):
        assert waited == []


def test_a_home_that_cannot_be_made_is_a_storage_error(home):
    home.write_text("a file")
    with (
        pytest.raises(StorageError, match=r"cannot write: (File exists|Not a directory)") as caught,
        unfinished_folder(home / "datasets/b/x-v1/1.0.0"),
    ):
        pass
    assert caught.value.errno in (errno.ENOTDIR, errno.EEXIST)


def test_a_version_is_never_put_in_place_of_another(home):
    there = installed("b/x-v1", "1.0.0")
    new = home / "new"
    new.mkdir()
    (new / "manifest.json").write_text("new")
    with pytest.raises(StorageError):
        put_new(new, there)
    assert (there / "manifest.json").read_text() == "{}"
    put_new(new, there.with_name("1.1.0"))
    assert (there.with_name("1.1.0") / "manifest.json").read_text() == "new"
    assert not new.exists()


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
