"""Showing and removing packs: beside processes that make, open, hold and read them, and killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from orlog import Dataset
from orlog.base.files import sole_access, unfinished_folder
from orlog.errors import StorageError
from orlog.loaders.packs import (
    HeldPack,
    cached_packs,
    collect_packs,
    delete_pack,
    hold_pack,
    is_packed,
    open_pack,
    pack_folder,
    packs_folder,
    packs_of,
)
from orlog.manifests.names import DatasetName
from tests.datasets.cached_homes import age, place, record_template
from tests.kills import killed_at

ARM, LEG = "lab/arm-v1", "lab/leg-v1"
FIRST = DatasetName(ARM, "1.0.0")
NOBODY = 65534
LONGEST_S = 600  # whatever hangs is not waited for
TIMES = 4  # two readers seldom leave a pack at once


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Return a tiny recorded version; do not write to it."""
    return record_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def arm(template):
    """Return a version in this test's home."""
    return Dataset(place(template, ARM, "1.0.0"))


def make_pack(dataset, days=0.0):
    """Make a pack that was opened so many days ago, and let go of it."""
    open_pack(dataset)
    age(pack_folder(dataset), days)
    return pack_folder(dataset)


def leave(destination, kind):
    """Put what a killed process leaves."""
    folder = destination.with_name(f".{destination.name}.{kind}")
    folder.mkdir(parents=True)
    (folder / "rows.f32").write_bytes(b"x" * 500)
    return folder


HOLDER = """
import sys, time
from pathlib import Path
from orlog.loaders.packs import hold_pack

held = hold_pack(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def start_holder(folder):
    """Run a process that has a pack open."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.fixture
def holder(arm):
    """Start a process that has the pack of `arm` open."""
    with start_holder(make_pack(arm, 40)) as process:
        yield process


def test_packs_are_listed_with_what_they_are_of(arm):
    assert cached_packs() == []
    folders = {make_pack(arm, 3), make_pack(arm[:1], 2)}
    (pack,) = [one for one in packs_of([FIRST]) if not one.is_view]
    assert (pack.folder, pack.kind, pack.name) == (pack_folder(arm), "pack", ARM)
    assert pack.versions == (FIRST,)
    assert not pack.is_view
    assert pack.size_bytes == sum(path.stat().st_size for path in pack.folder.iterdir())
    assert 2.9 < (time.time() - pack.last_used.timestamp()) / 86_400 < 3.1
    left = leave(pack_folder(arm), "unfinished")
    assert {(one.folder, one.kind) for one in cached_packs()} == {
        (left, "leftover"),
        *((folder, "pack") for folder in folders),
    }
    assert [one.is_view for one in cached_packs() if one.folder == pack_folder(arm[:1])] == [True]


def test_records_that_cannot_be_read_are_packs_of_nothing(arm):
    folder = make_pack(arm, 40)
    for text in ("", "{", "[]", '{"name": 1}', '{"name": "x", "digest": "y", "sources": 3}'):
        (folder / "pack.json").write_text(text)
        age(folder, 40)
        (pack,) = cached_packs()
        assert (pack.kind, pack.name, pack.versions) == ("pack", "", ())
    (folder / "notes").mkdir()
    age(folder, 40)
    (packs_folder() / "mine").mkdir()
    assert [one.path for one in collect_packs(unused_days=30).removed] == [folder]
    assert (packs_folder() / "mine").exists()


def test_opening_is_noted(arm):
    folder = make_pack(arm, 40)
    held = hold_pack(folder)
    assert held is not None
    assert time.time() - folder.stat().st_mtime < 60
    assert hold_pack(folder.with_name("0" * 32 + "-1")) is None
    (folder / "pack.json").rename(folder / "record")
    assert hold_pack(folder / "record") is None
    (folder / "pack.json").mkdir()
    assert isinstance(hold_pack(folder), HeldPack)  # reading it will say what is wrong


def test_what_goes_by_age_and_by_size(template):
    days = {"1.0.0": 50, "1.1.0": 20, "1.2.0": 2, "1.3.0": 0}
    packs = [make_pack(Dataset(place(template, ARM, one)), days[one]) for one in days]
    size = sum(path.stat().st_size for path in packs[0].iterdir())
    report = collect_packs()
    assert (report.removed, report.kept) == ([], [])
    assert abs(report.left_bytes - 4 * size) < 20
    left = leave(packs[0], "deleted")
    report = collect_packs(unused_days=30, max_bytes=2 * size + 20, dry_run=True)
    assert [one.path for one in report.removed] == [left, packs[0], packs[1]]
    assert all(path.exists() for path in (left, *packs))
    report = collect_packs(unused_days=30)
    assert {one.path: one.why for one in report.removed} == {
        left: "left by a process that ended early",
        packs[0]: "not opened for 50 days",
    }
    report = collect_packs(max_bytes=2 * size + 20)
    assert [one.path for one in report.removed] == [packs[1]]
    report = collect_packs(max_bytes=0)
    assert [one.path for one in report.removed] == [packs[2]]
    assert report.left_bytes > 0  # opened within the last day
    assert collect_packs(unused_days=0).left_bytes == 0
    assert not [path for path in packs_folder().iterdir() if not path.name.endswith(".lock")]
    with pytest.raises(ValueError, match="0 or more"):
        collect_packs(max_bytes=-1)


def test_what_another_process_has_open_stays_until_it_ends(arm, holder):
    folder = pack_folder(arm)
    for dry_run in (True, False):
        report = collect_packs(unused_days=0, dry_run=dry_run)
        assert [(one.path, one.why) for one in report.kept] == [(folder, "is in use by a process")]
        assert report.removed == []
    (pack,) = packs_of([FIRST])
    with pytest.raises(StorageError, match=r"in use .*; when that process has ended, remove the folder.$"):
        delete_pack(pack)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    delete_pack(pack)
    delete_pack(pack)
    assert not folder.exists()


def test_a_forked_process_holds_on(arm):
    folder = make_pack(arm)
    held = hold_pack(folder)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)  # until the parent closes its end
        os._exit(0)
    os.close(read_end)
    del held
    assert [one.path for one in collect_packs(unused_days=0).kept] == [folder]
    os.close(write_end)
    os.waitpid(child, 0)
    assert [one.path for one in collect_packs(unused_days=0).removed] == [folder]


def test_what_is_being_written_stays(arm):
    folder = make_pack(arm, 40)
    with unfinished_folder(folder) as unfinished:
        report = collect_packs(unused_days=0)
        assert {one.path for one in report.kept} == {folder, unfinished}
        assert {one.why for one in report.kept} == {"is being written by another process"}
    with sole_access(folder), pytest.raises(StorageError, match="being written"):
        delete_pack(packs_of([FIRST])[0])
    assert len(collect_packs(unused_days=0).removed) == 1


def test_a_kill_at_any_instant_leaves_it_whole_or_gone(arm):
    def collect(_):
        collect_packs(unused_days=7)

    folder = make_pack(arm, 40)
    leave(folder, "deleted")
    is_killed, accesses = killed_at(collect, 0, packs_folder())
    assert not is_killed
    assert accesses > 3
    outcomes = set()
    for instant in range(1, accesses + 1):
        make_pack(arm, 40)
        leave(folder, "unfinished")
        assert killed_at(collect, instant, packs_folder())[0]
        outcomes.add(is_packed(arm))
        if is_packed(arm):
            assert open_pack(arm).folder == folder
        collect_packs(unused_days=0)
        assert {path.name for path in packs_folder().iterdir()} == {f".{folder.name}.lock"}
    assert outcomes == {True, False}
