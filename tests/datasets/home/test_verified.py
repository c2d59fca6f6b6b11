import os
import time
from pathlib import Path

import pytest

from orlog.base.files import hash_file
from orlog.datasets.home import records as remembered
from orlog.datasets.store import objects
from orlog.datasets.store.verify import verify_folder
from tests.stored_objects import change_unseen

SHARD = "observations/observation/c.0.0"


@pytest.fixture
def settled(monkeypatch):
    """Let files that were just written count as older than the clock's granularity."""
    monkeypatch.setattr(remembered, "SETTLED_NS", -(10**10))


@pytest.fixture
def hashed(monkeypatch):
    """Return a list that grows by the name of each file that is hashed."""
    names = []

    def note(path, progress):
        names.append(path.name)
        return hash_file(path, progress)

    monkeypatch.setattr(objects, "hash_file", note)
    return names


@pytest.mark.usefixtures("settled")
def test_a_quick_verification_reads_nothing_that_was_right_and_is_unchanged(mini_folder, hashed):
    manifest, _ = verify_folder(mini_folder)
    assert len(hashed) == len(manifest.objects)
    hashed.clear()
    seen = []
    assert verify_folder(mini_folder, quick=True, progress=seen.append) == (manifest, [])
    assert hashed == []
    assert sum(seen) == manifest.size_bytes


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("quick_first", [False, True])
def test_a_change_that_keeps_size_and_mtime_shows_in_the_ctime(mini_folder, quick_first, hashed):
    verify_folder(mini_folder, quick=quick_first)
    time.sleep(0.05)  # more than the clock's granularity
    change_unseen(mini_folder / SHARD)
    hashed.clear()
    (problem,) = verify_folder(mini_folder, quick=True)[1]
    assert (problem.file, problem.kind) == (SHARD, "damaged")
    assert hashed == ["c.0.0"]
    # What is wrong is not remembered, and found again.
    assert [one.file for one in verify_folder(mini_folder, quick=True)[1]] == [SHARD]


def test_what_was_written_a_moment_ago_is_not_trusted(mini_folder, hashed, monkeypatch):
    manifest, _ = verify_folder(mini_folder)
    for path in (mini_folder / item.path for item in manifest.objects):
        os.utime(path, ns=(0, 0))  # the mtime is old, the ctime is not
    hashed.clear()
    verify_folder(mini_folder, quick=True)
    assert len(hashed) == len(manifest.objects)
    # Two seconds later it was hashed while old enough.
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 3 * 10**9)
    verify_folder(mini_folder, quick=True)
    hashed.clear()
    verify_folder(mini_folder, quick=True)
    assert hashed == []


@pytest.mark.usefixtures("settled")
def test_another_manifest_or_folder_or_a_damaged_record_is_not_remembered(mini_folder, home, hashed, reseal):
    manifest, _ = verify_folder(mini_folder)

    def reads(folder):
        hashed.clear()
        assert verify_folder(folder, quick=True)[1] == []
        return len(hashed)

    (record,) = (home / "verified").glob("*.json")
    for text in ("{", "[]", '{"verified_version": 9}', '{"verified_version": 1, "files": {"a": "b"}}'):
        record.write_text(text)
        assert [reads(mini_folder) for _ in range(2)] == [len(manifest.objects), 0]
    moved = mini_folder.rename(mini_folder.with_name("2.0.0"))
    assert reads(moved) == len(manifest.objects)
    reseal(moved, lambda body: body.update(description="other"))
    assert reads(moved) == len(manifest.objects)


@pytest.mark.usefixtures("settled")
def test_a_home_that_cannot_be_written_is_no_error(built_mini, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", Path("/proc/orlog"), Path("~nobody-of-this-name")):
        monkeypatch.setenv("ORLOG_HOME", str(home))
        for quick in (False, True):
            assert verify_folder(built_mini, quick=quick)[1] == []
