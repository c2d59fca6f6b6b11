"""What once went wrong, across the modules of the room; each test states what should be true."""

import shutil

import pytest

import orlog
from orlog.base.files import put_in_place, unfinished_folder
from orlog.datasets.home.folders import datasets_folder
from orlog.errors import IntegrityError
from tests.kills import killed_at

MINI = "pointmaze/umaze-mini-v1"


# --- home.publish: a kill between its two renames loses the dataset that was there


def test_a_kill_while_replacing_leaves_the_old_or_the_new_also_for_the_next_writer(home):
    destination = home / "datasets/b/x-v1/1.0.0"

    def replace(_):
        with unfinished_folder(destination) as folder:
            (folder / "store").mkdir()
            (folder / "store/manifest.json").write_text("new")
            put_in_place(folder / "store", destination)

    destination.mkdir(parents=True)
    (destination / "manifest.json").write_text("old")
    _, total = killed_at(replace, 0, home)
    for instant in range(1, total + 1):
        (destination / "manifest.json").write_text("old")
        assert killed_at(replace, instant, home)[0]
        assert (destination / "manifest.json").read_text() in ("old", "new")
        with unfinished_folder(destination):
            pass
        assert (destination / "manifest.json").is_file()
        assert {path.name for path in destination.parent.iterdir()} <= {"1.0.0", ".1.0.0.lock"}


# --- dataset: a name opens whatever lies in its folder


def test_another_dataset_in_the_folder_of_a_name_is_not_opened_by_that_name(mini_folder):
    shutil.copytree(mini_folder, datasets_folder() / "pointmaze/umaze-v1/1.0.0")
    with pytest.raises(IntegrityError, match="umaze-mini-v1"):
        orlog.load_dataset("pointmaze/umaze-v1@1.0.0")
    shutil.copytree(mini_folder, mini_folder.with_name("2.0.0"))
    with pytest.raises(IntegrityError, match=r"1\.0\.0"):
        orlog.load_dataset(f"{MINI}@2.0.0")


# --- dataset._check_objects: only the last part of a path is checked for links


@pytest.mark.parametrize("name", ["actions", "observations/observation"])
def test_a_link_in_place_of_a_folder_is_refused_at_once(mini_folder, tmp_path, name):
    shutil.move(mini_folder / name, tmp_path / "outside")
    (mini_folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(IntegrityError):
        orlog.load_dataset(mini_folder)
