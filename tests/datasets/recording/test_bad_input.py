"""What once went wrong, across the modules of the room; each test states what should be true."""

import shutil
import signal
import subprocess
import sys

import pytest

import orlog
from orlog.base.files import unfinished_folder
from orlog.datasets.home.folders import datasets_folder
from orlog.errors import IntegrityError

MINI = "pointmaze/umaze-mini-v1"


# --- home.publish: a kill between its two renames loses the dataset that was there


REPLACE = """
import os, signal, sys
from pathlib import Path
from orlog.base.files import put_in_place, unfinished_folder

destination = Path(sys.argv[1])
renames = 0

def hook(event, arguments):
    global renames
    if event == "os.rename":
        renames += 1
        if renames == 2:
            os.kill(os.getpid(), signal.SIGKILL)

with unfinished_folder(destination) as folder:
    (folder / "store").mkdir()
    (folder / "store/manifest.json").write_text("new")
    sys.addaudithook(hook)
    put_in_place(folder / "store", destination)
"""


def kill_while_replacing(destination):
    destination.mkdir(parents=True)
    (destination / "manifest.json").write_text("old")
    done = subprocess.run([sys.executable, "-c", REPLACE, destination], check=False)
    # A replacement by one single rename (renameat2) may never come to a second one.
    assert done.returncode in (0, -signal.SIGKILL)


def test_a_kill_while_replacing_leaves_the_old_or_the_new_also_for_the_next_writer(home):
    destination = home / "datasets/b/x-v1/1.0.0"
    kill_while_replacing(destination)
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
