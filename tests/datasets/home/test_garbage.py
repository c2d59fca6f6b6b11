"""What homes hold is listed right, and what goes is what may go: nothing else, ever."""

import os
import shutil
import time
from pathlib import Path

import pytest

import orlog
from orlog.base.files import sole_access
from orlog.datasets.home.folders import datasets_folder, mark_used
from orlog.datasets.home.garbage import (
    cached_versions,
    collect_garbage,
    delete_version,
    own_versions,
    pin_version,
    plan_deletion,
    total_bytes,
    unpin_version,
)
from orlog.datasets.home.records import origin_file
from orlog.errors import InvalidNameError, ManifestError, NotFoundError, StorageError
from orlog.manifests.lock import LockedDataset, write_lock
from orlog.manifests.manifest import read_manifest
from orlog.manifests.names import DatasetName
from tests.datasets.cached_homes import DAY, age, beside, place, put, snapshot, write_origin_of
from tests.datasets.conftest import MINI

pytestmark = pytest.mark.usefixtures("no_lock")

ARM, LEG = "lab/arm-v1", "lab/leg-v1"


# --- list


@pytest.mark.usefixtures("served")
def test_versions_are_listed_with_where_they_came_from(template):
    downloaded = orlog.load_dataset(MINI, download=True)
    place(template, ARM, "1.0.0", downloaded=False, days=3)
    part = place(template, LEG, "2.0.0", partial=True, days=400)
    put(beside(part.with_name("1.0.0"), "download"))
    put(beside(part.with_name("0.9.0"), "recording"))
    saved = orlog.save_dataset(downloaded[:2], "lab/few-v1", version="1.0.0")
    found = {(one.name, one.version): one for one in cached_versions()}
    assert [(one.kind, one.came_from) for one in found.values()] == [
        ("version", "recorded"),
        ("version", f"made from another: {read_manifest(saved / 'manifest.json').lineage[-1].operation}"),
        ("partial", "downloaded from lab"),
        ("download", ""),
        ("recording", ""),
        ("version", "downloaded from lab"),
    ]
    assert found[MINI, "1.0.0"].again == f"orlog download {MINI}@1.0.0"
    assert found[ARM, "1.0.0"].again == ""
    assert found[MINI, "1.0.0"].size_bytes > downloaded.manifest.size_bytes / 2
    for key, days in (((ARM, "1.0.0"), 3), ((LEG, "2.0.0"), 400)):
        assert (time.time() - found[key].last_used.timestamp()) // DAY == days
    assert 0 < total_bytes() <= sum(one.size_bytes for one in found.values())


def test_shared_homes_are_listed_and_left_alone(template, tmp_path, monkeypatch):
    own = place(template, ARM, "1.0.0", days=100)
    shared = tmp_path / "group" / "datasets"
    shutil.copytree(datasets_folder(), shared)
    put(shared / ARM / ".1.0.0.unfinished")
    monkeypatch.setenv("ORLOG_SHARED", str(shared.parent))
    before = snapshot(shared)
    assert [(one.home, one.kind) for one in cached_versions()] == [
        (datasets_folder(), "version"),
        (shared, "version"),
        (shared, "leftover"),
    ]
    mark_used(shared / ARM / "1.0.0")
    collect_garbage(unused_days=0, max_bytes=0)
    assert not own.exists()
    for act in (delete_version, pin_version):
        with pytest.raises((StorageError, NotFoundError), match=str(shared / ARM / "1.0.0")):
            act(ARM, "1.0.0")
    assert snapshot(shared) == before


def test_what_is_no_version_is_not_looked_at(template, home):
    place(template, ARM, "1.0.0")
    strange = [
        put(home / "datasets" / "notes" / "1.0.0"),
        put(home / "datasets" / "lab" / ".1.0.0.unfinished"),
        put(home / "datasets" / ARM / "unfinished"),
        put(home / "datasets" / ARM / ".mine.unfinished"),
        put(home / "datasets" / ARM / ".1.0.unfinished"),
        put(home / "datasets" / ARM / ".1.0.0.mine"),
    ]
    before = snapshot(*strange)
    assert len(cached_versions()) == 1
    collect_garbage(unused_days=0, max_bytes=0)
    assert snapshot(*strange) == before


# --- garbage


def test_without_options_only_what_processes_left_goes(template):
    folder = place(template, ARM, "1.0.0", days=1000)
    kept = [
        folder,
        place(template, LEG, "1.0.0", partial=True, days=1000),
        *(put(beside(folder, kind), 1000) for kind in ("download", "strange", "recording")),
    ]
    before = snapshot(*kept)
    left = [put(beside(folder, kind)) for kind in ("unfinished", "replaced", "deleted")]
    gone = folder.with_name("2.0.0")
    for name in (".1.0.0.manifest", "..1.0.0.origin.json.unfinished", ".2.0.0.pin"):
        (folder.parent / name).write_text("x", "utf-8")
        left.append(folder.parent / name)
    shutil.copy(origin_file(folder), origin_file(gone))
    left.append(origin_file(gone))
    (folder.parent / ".1.0.0.lock").touch()
    planned = collect_garbage(dry_run=True)
    assert all(path.exists() for path in left)
    report = collect_garbage()
    assert report == planned
    assert {one.path for one in report.removed} == set(left)
    size = origin_file(folder).stat().st_size
    assert sum(one.freed_bytes for one in report.removed) == 3000 + 3 + size
    assert not any(path.exists() for path in left)
    assert snapshot(*kept) == before
    assert (folder.parent / ".1.0.0.lock").exists()
    assert origin_file(folder).exists()
    assert collect_garbage().removed == []


def test_only_what_was_downloaded_and_is_as_it_was_goes(template):
    kept = {
        "recorded": place(template, ARM, "1.0.0", downloaded=False, days=99),
        "other bytes": place(template, ARM, "2.0.0", days=99),
        "a stranger in it": place(template, ARM, "3.0.0", days=99),
        "no manifest": place(template, ARM, "4.0.0", days=99),
        "malformed origin": place(template, ARM, "5.0.0", days=99),
    }
    shutil.copy(origin_file(kept["a stranger in it"]), origin_file(kept["other bytes"]))
    (kept["a stranger in it"] / "notes.txt").write_text("mine", "utf-8")
    (kept["no manifest"] / "manifest.json").unlink()
    origin_file(kept["malformed origin"]).write_text("{", "utf-8")
    goes = [place(template, LEG, "1.0.0", days=99), place(template, LEG, "2.0.0", days=99, partial=True)]
    for folder in kept.values():
        age(folder, 99)
    before = snapshot(*kept.values())
    report = collect_garbage(unused_days=0, max_bytes=0)
    assert {one.path for one in report.removed} == set(goes)
    assert [one.why for one in report.kept] == ["holds files that are not part of it (notes.txt): orlog verify"]
    assert snapshot(*kept.values()) == before
    assert not any(origin_file(folder).exists() for folder in goes)


def test_pinned_versions_stay_whatever_is_asked_for(template, tmp_path, monkeypatch):
    first = place(template, ARM, "1.0.0", days=99)
    second = place(template, ARM, "2.0.0", days=99)
    pin_version(ARM, "1.0.0")
    digest = read_manifest(second / "manifest.json").digest
    write_lock(tmp_path / "orlog.lock", {ARM: LockedDataset(version="2.0.0", digest=digest)})
    monkeypatch.setenv("ORLOG_LOCK", str(tmp_path / "orlog.lock"))
    report = collect_garbage(unused_days=0, max_bytes=0)
    assert {one.path: one.why for one in report.kept} == {
        first: "is kept: orlog cache keep --off",
        second: f"is pinned by {tmp_path / 'orlog.lock'}",
    }
    (tmp_path / "orlog.lock").write_text("{", "utf-8")
    with pytest.raises(ManifestError, match=r"orlog\.lock"):
        collect_garbage(unused_days=0)
    assert first.exists()
    assert second.exists()
    monkeypatch.setenv("ORLOG_LOCK", "0")
    assert unpin_version(ARM, "1.0.0")
    assert not unpin_version(ARM, "1.0.0")
    collect_garbage(unused_days=0)
    assert cached_versions() == []


def test_what_another_process_writes_is_passed_over(template):
    folder = place(template, ARM, "1.0.0", days=99)
    left = put(beside(folder, "unfinished"))
    with sole_access(folder):
        report = collect_garbage(unused_days=0)
        assert {one.path: one.why for one in report.kept} == {
            left: "is being written by another process",
            folder: "is being written by another process",
        }
        with pytest.raises(StorageError, match="another process is writing this version"):
            delete_version(ARM, "1.0.0")
    assert len(collect_garbage(unused_days=0).removed) == 2


def test_a_version_opened_between_choosing_and_removing_stays(template, monkeypatch):
    folder = place(template, ARM, "1.0.0", days=99)
    rename = os.rename

    def open_first(source, target):
        if Path(source) == folder:
            mark_used(folder)
        rename(source, target)

    monkeypatch.setattr(os, "rename", open_first)
    report = collect_garbage(unused_days=7)
    assert [one.why for one in report.kept] == ["was opened or changed just now"]
    assert orlog.verify_store(folder)[1] == []
    assert not beside(folder, "deleted").exists()


def test_a_home_that_cannot_be_written_is_a_typed_error_and_the_rest_is_done(template, monkeypatch):
    folder, other = place(template, ARM, "1.0.0", days=99), place(template, LEG, "1.0.0", days=99)
    rename = os.rename

    def refuse(source, target):
        if Path(source) == folder:
            raise OSError(30, "Read-only file system")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    (failure,) = collect_garbage(unused_days=7).failures
    assert "Read-only file system" in str(failure)
    assert (folder.exists(), other.exists()) == (True, False)
    with pytest.raises(StorageError, match="Read-only file system"):
        delete_version(ARM, "1.0.0")


# --- delete


def test_a_deleted_version_takes_along_what_lies_beside_it_but_a_recording(template):
    folder = place(template, ARM, "1.0.0", downloaded=False)
    place(template, ARM, "1.0.0", partial=True)
    for kind in ("download", "strange", "unfinished", "deleted"):
        put(beside(folder, kind))
    recording = put(beside(folder, "recording"))
    other = place(template, ARM, "1.1.0")
    before = snapshot(recording, other)
    (found, *rest), freed = plan_deletion([DatasetName(ARM, "1.0.0")])
    assert (found.came_from, found.again, len(rest)) == ("recorded", "", 5)
    assert delete_version(ARM, "1.0.0") == freed
    assert sorted(path.name for path in folder.parent.iterdir() if path.suffix != ".lock") == [
        ".1.0.0.recording",
        ".1.1.0.origin.json",
        "1.1.0",
    ]
    assert snapshot(recording, other) == before
    with pytest.raises(NotFoundError, match="interrupted recording"):
        delete_version(ARM, "1.0.0")


def test_pinned_versions_links_and_bad_names_are_not_deleted(template, tmp_path):
    folder = place(template, ARM, "1.0.0")
    pin_version(ARM, "1.0.0")
    with pytest.raises(StorageError, match=f"orlog cache keep --off {ARM}@1.0.0"):
        delete_version(ARM, "1.0.0")
    elsewhere = shutil.copytree(template, tmp_path / "elsewhere")
    (folder.parent / "2.0.0").symlink_to(elsewhere)
    write_origin_of(folder.parent / "2.0.0")
    with pytest.raises(StorageError, match="is a link to"):
        delete_version(ARM, "2.0.0")
    collect_garbage(unused_days=0)
    assert (folder.parent / "2.0.0" / "manifest.json").samefile(elsewhere / "manifest.json")
    for name, version in (("../../x", "1.0.0"), (ARM, "../1.0.0"), (ARM, "")):
        for act in (delete_version, pin_version, unpin_version):
            with pytest.raises(InvalidNameError):
                act(name, version)
    with pytest.raises(NotFoundError, match="orlog cache list"):
        delete_version(ARM, "9.0.0")


def test_a_version_that_the_lock_file_pins_is_not_deleted(template, tmp_path, monkeypatch):
    folder = place(template, ARM, "1.0.0")
    digest = read_manifest(folder / "manifest.json").digest
    write_lock(tmp_path / "orlog.lock", {ARM: LockedDataset(version="1.0.0", digest=digest)})
    monkeypatch.delenv("ORLOG_LOCK")
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")  # a lock file above counts too
    with pytest.raises(StorageError, match=f"{ARM}@1.0.0 is pinned by {tmp_path / 'orlog.lock'}.*ORLOG_LOCK=0"):
        delete_version(ARM, "1.0.0")
    monkeypatch.setenv("ORLOG_LOCK", "0")
    delete_version(ARM, "1.0.0")
    assert not folder.exists()


def test_names_mean_all_versions_or_the_one_that_they_pin(template):
    folder = place(template, ARM, "1.0.0")
    place(template, ARM, "1.1.0", partial=True)
    put(beside(folder.with_name("1.2.0"), "download"))
    first, second = DatasetName(ARM, "1.0.0"), DatasetName(ARM, "1.1.0")
    assert own_versions(ARM) == [second, first]
    assert own_versions(f"{ARM}@1.0.0") == [first]
    digest = read_manifest(folder / "manifest.json").digest
    assert own_versions(f"{ARM}@{digest[:20]}") == [first]
    assert own_versions(ARM, ("download",)) == [DatasetName(ARM, "1.2.0")]
    for name in (LEG, f"{ARM}@1.2.0", f"{ARM}@sha256:abcdef"):
        with pytest.raises(NotFoundError):
            own_versions(name)
