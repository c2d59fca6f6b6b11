"""What once went wrong, across the modules of the room; each test states what should be true."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import orlog
from orlog.base.files import unfinished_folder
from orlog.datasets.home.folders import datasets_folder, installed_names, installed_versions
from orlog.datasets.worlds.environments import make_environment
from orlog.errors import IntegrityError
from tests.programs import run_program

MINI = "pointmaze/umaze-mini-v1"

Reseal: TypeAlias = Callable[[Path, Callable[[dict[str, Any]], object]], Path]


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


def kill_while_replacing(destination: Path) -> None:
    destination.mkdir(parents=True)
    (destination / "manifest.json").write_text("old")
    done = subprocess.run([sys.executable, "-c", REPLACE, destination], check=False)
    # A replacement by one single rename (renameat2) may never come to a second one.
    assert done.returncode in (0, -signal.SIGKILL)


def test_a_kill_while_replacing_leaves_the_old_or_the_new_also_for_the_next_writer(
    home: Path,
) -> None:
    destination = home / "datasets/b/x-v1/1.0.0"
    kill_while_replacing(destination)
    assert (destination / "manifest.json").read_text() in ("old", "new")
    with unfinished_folder(destination):
        pass
    assert (destination / "manifest.json").is_file()
    assert {path.name for path in destination.parent.iterdir()} <= {"1.0.0", ".1.0.0.lock"}


# --- dataset: a name opens whatever lies in its folder


def test_another_dataset_in_the_folder_of_a_name_is_not_opened_by_that_name(
    mini_folder: Path,
) -> None:
    shutil.copytree(mini_folder, datasets_folder() / "pointmaze/umaze-v1/1.0.0")
    with pytest.raises(IntegrityError, match="umaze-mini-v1"):
        orlog.load_dataset("pointmaze/umaze-v1@1.0.0")
    shutil.copytree(mini_folder, mini_folder.with_name("2.0.0"))
    with pytest.raises(IntegrityError, match=r"1\.0\.0"):
        orlog.load_dataset(f"{MINI}@2.0.0")


# --- dataset._check_objects: only the last part of a path is checked for links


@pytest.mark.parametrize("name", ["actions", "observations/observation"])
def test_a_link_in_place_of_a_folder_is_refused_at_once(
    mini_folder: Path, tmp_path: Path, name: str
) -> None:
    shutil.move(mini_folder / name, tmp_path / "outside")
    (mini_folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(IntegrityError):
        orlog.load_dataset(mini_folder)


# --- dataset: lengths, starts and open files are kept from one read to the next


# --- manifest.manifest_from_json: msgspec looks at the types at first use, and crashes if two
# threads do so at once; to build the decoder when the module is imported would be enough


FIRST_READ = """
import sys, threading
from pathlib import Path
from orlog.manifests.manifest import read_manifest

start = threading.Barrier(8)

def read():
    start.wait(120)
    read_manifest(Path(sys.argv[1]))

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_the_first_manifest_may_be_read_by_several_threads(built_mini: Path) -> None:
    for _ in range(2):
        done = run_program([sys.executable, "-c", FIRST_READ, built_mini / "manifest.json"])
        assert (done.returncode, done.stderr) == (0, "")


# --- manifests and spaces: what is malformed raises something else than it should, or is bent until it fits


# --- home.installed_versions: a stray folder breaks every load by name


@pytest.mark.parametrize("stray", ["1..0", "²"])
def test_a_stray_folder_does_not_hide_the_versions_beside_it(mini_folder: Path, stray: str) -> None:
    shutil.copytree(mini_folder, mini_folder.with_name(stray))
    assert installed_versions(MINI) == ["1.0.0"]
    assert orlog.load_dataset(MINI).folder == mini_folder


def test_a_stray_manifest_in_the_root_does_not_hide_the_names_below_it(mini_folder: Path) -> None:
    shutil.copy(mini_folder / "manifest.json", datasets_folder())
    assert installed_names() == [MINI]


# --- environments.make_environment: every maze leaves a file in the folder for temporary files


def test_an_environment_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    make_environment("PointMaze_UMaze-v3", {}).close()
    assert list(folder.iterdir()) == []


# --- dataset: names as paths
