from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orlog.base.files import hash_file
from orlog.datasets.home import records as remembered
from orlog.datasets.home.records import is_settled, remember_files, remembered_files, stamp_of
from orlog.datasets.store import objects
from orlog.datasets.store.verify import verify_folder
from orlog.manifests.manifest import read_manifest
from tests.stored_objects import change_unseen

SHARD = "observations/observation/c.0.0"
DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files that were just written count as older than the clock's granularity."""
    monkeypatch.setattr(remembered, "SETTLED_NS", -(10**10))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the name of each file that is hashed."""
    names: list[str] = []

    def note(path: Path, progress: Callable[[int], None]) -> str:
        names.append(path.name)
        return hash_file(path, progress)

    monkeypatch.setattr(objects, "hash_file", note)
    return names


def records(home: Path) -> list[Path]:
    return sorted((home / "verified").glob("*.json"))


@pytest.mark.usefixtures("settled")
def test_a_quick_verification_reads_nothing_that_was_right_and_is_unchanged(
    mini_folder: Path, hashed: list[str]
) -> None:
    manifest, _ = verify_folder(mini_folder)
    assert len(hashed) == len(manifest.objects)
    hashed.clear()
    seen: list[int] = []
    assert verify_folder(mini_folder, quick=True, progress=seen.append) == (manifest, [])
    assert hashed == []
    assert sum(seen) == manifest.size_bytes


@pytest.mark.usefixtures("settled")
def test_a_full_verification_reads_all_whatever_is_remembered(
    mini_folder: Path, hashed: list[str]
) -> None:
    for _ in range(2):
        hashed.clear()
        manifest, _ = verify_folder(mini_folder)
        assert len(hashed) == len(manifest.objects)


def test_a_quick_verification_reads_all_where_nothing_is_remembered(mini_folder: Path) -> None:
    change_unseen(mini_folder / SHARD)
    (problem,) = verify_folder(mini_folder, quick=True)[1]
    assert (problem.file, problem.kind) == (SHARD, "damaged")


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("quick_first", [False, True])
def test_a_change_that_keeps_size_and_mtime_shows_in_the_ctime(
    mini_folder: Path, quick_first: bool, hashed: list[str]
) -> None:
    verify_folder(mini_folder, quick=quick_first)
    time.sleep(0.05)  # more than the clock's granularity
    change_unseen(mini_folder / SHARD)
    hashed.clear()
    (problem,) = verify_folder(mini_folder, quick=True)[1]
    assert (problem.file, problem.kind) == (SHARD, "damaged")
    assert hashed == ["c.0.0"]
    # What is wrong is not remembered, and found again.
    assert [one.file for one in verify_folder(mini_folder, quick=True)[1]] == [SHARD]


@pytest.mark.usefixtures("settled")
def test_another_file_of_the_same_size_and_times_shows_in_the_inode(mini_folder: Path) -> None:
    verify_folder(mini_folder)
    stamps = remembered_files(mini_folder, read_manifest(mini_folder / "manifest.json").digest)
    size, modified, _, inode = stamps[SHARD]
    found = (mini_folder / SHARD).stat()
    assert stamps[SHARD] == stamp_of(found)
    copy = mini_folder.parent / "copy"
    copy.write_bytes((mini_folder / SHARD).read_bytes())
    os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert stamp_of(copy.stat())[:2] == (size, modified)
    assert stamp_of(copy.stat())[3] != inode


@pytest.mark.usefixtures("settled")
def test_cut_missing_and_extra_files_are_found_quickly_too(
    mini_folder: Path, tmp_path: Path
) -> None:
    verify_folder(mini_folder)
    (mini_folder / "rewards/c.0").unlink()
    with (mini_folder / "actions/c.0.0").open("r+b") as file:
        file.truncate(5)
    (mini_folder / "extra").write_text("x")
    (mini_folder / "terminations").rename(tmp_path / "good")
    (mini_folder / "terminations").symlink_to(tmp_path / "good")
    assert [(one.file, one.kind) for one in verify_folder(mini_folder, quick=True)[1]] == [
        ("actions/c.0.0", "wrong size"),
        ("rewards/c.0", "missing"),
        ("terminations/c.0", "a link"),
        ("terminations/zarr.json", "a link"),
        ("extra", "not in the manifest"),
        ("terminations", "not in the manifest"),
    ]


def test_what_was_written_a_moment_ago_is_not_trusted(
    mini_folder: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_stamp_is_settled_two_seconds_after_its_newest_time() -> None:
    second = 10**9
    assert is_settled((1, 5 * second, 3 * second, 7), 7 * second)
    assert not is_settled((1, 5 * second, 3 * second, 7), 7 * second - 1)
    assert not is_settled((1, 3 * second, 5 * second, 7), 7 * second - 1)
    assert not is_settled((1, 9 * second, 5 * second, 7), 7 * second)  # a clock that runs ahead


@pytest.mark.usefixtures("settled")
def test_another_manifest_or_folder_is_not_remembered(
    mini_folder: Path,
    hashed: list[str],
    reseal: Callable[[Path, Callable[[dict[str, Any]], object]], Path],
) -> None:
    manifest, _ = verify_folder(mini_folder)
    moved = mini_folder.rename(mini_folder.with_name("2.0.0"))
    hashed.clear()
    assert verify_folder(moved, quick=True)[1] == []
    assert len(hashed) == len(manifest.objects)
    hashed.clear()
    reseal(moved, lambda body: body.update(description="other"))
    assert verify_folder(moved, quick=True)[1] == []
    assert len(hashed) == len(manifest.objects)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"verified_version": 9}', '{"verified_version": 1, "files": {"a": "b"}}'],
)
def test_a_damaged_record_is_as_none_and_is_replaced(
    mini_folder: Path, home: Path, hashed: list[str], text: str
) -> None:
    manifest, _ = verify_folder(mini_folder)
    (record,) = records(home)
    record.write_text(text)
    hashed.clear()
    assert verify_folder(mini_folder, quick=True)[1] == []
    assert len(hashed) == len(manifest.objects)
    hashed.clear()
    assert verify_folder(mini_folder, quick=True)[1] == []
    assert hashed == []


@pytest.mark.usefixtures("settled")
def test_a_record_with_another_sum_of_a_file_is_not_believed(mini_folder: Path, home: Path) -> None:
    """A record names the manifest, and so the SHA-256 of each file, that it was made of."""
    verify_folder(mini_folder)
    (record,) = records(home)
    body = json.loads(record.read_text())
    assert body["folder"] == str(mini_folder.resolve())
    assert remembered_files(mini_folder, body["digest"]) != {}
    assert remembered_files(mini_folder, DIGEST) == {}
    record.write_text(json.dumps({**body, "folder": "/elsewhere"}))
    assert remembered_files(mini_folder, body["digest"]) == {}


@pytest.mark.usefixtures("settled")
def test_nothing_is_written_where_nothing_is_new(mini_folder: Path, home: Path) -> None:
    verify_folder(mini_folder)
    (record,) = records(home)
    before = record.stat()
    verify_folder(mini_folder)
    verify_folder(mini_folder, quick=True)
    assert (record.stat().st_ino, record.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.usefixtures("settled")
def test_a_home_that_cannot_be_written_is_no_error(
    built_mini: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", Path("/proc/orlog"), Path("~nobody-of-this-name")):
        monkeypatch.setenv("ORLOG_HOME", str(home))
        for quick in (False, True):
            assert verify_folder(built_mini, quick=quick)[1] == []


def test_more_files_than_a_small_file_holds_are_not_remembered(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "MOST_FILES", 1)
    remember_files(tmp_path, DIGEST, {"a": (1, 2, 3, 4), "b": (1, 2, 3, 4)})
    assert records(home) == []
    remember_files(tmp_path, DIGEST, {"a": (1, 2, 3, 4)})
    assert remembered_files(tmp_path, DIGEST) == {"a": (1, 2, 3, 4)}


def test_a_folder_whose_name_is_no_utf8_is_remembered(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("a file system that takes UTF-8 only")
    remember_files(folder, DIGEST, {"a": (1, 2, 3, 4)})
    assert remembered_files(folder, DIGEST) == {"a": (1, 2, 3, 4)}


@pytest.mark.usefixtures("settled")
def test_ten_thousand_objects_are_verified_quickly(
    mini_folder: Path, reseal: Callable[[Path, Callable[[dict[str, Any]], object]], Path]
) -> None:
    names = [f"infos/many/{number // 100}/c.{number}" for number in range(10_000)]
    for number, name in enumerate(names):
        if number % 100 == 0:
            (mini_folder / name).parent.mkdir(parents=True)
        file = os.open(f"{mini_folder}/{name}", os.O_CREAT | os.O_WRONLY)
        os.write(file, name.encode())
        os.close(file)

    def add(body: dict[str, Any]) -> None:
        body["objects"] += [
            {
                "path": name,
                "size_bytes": len(name),
                "sha256": hashlib.sha256(name.encode()).hexdigest(),
            }
            for name in names
        ]
        body["objects"].sort(key=lambda item: item["path"])

    reseal(mini_folder, add)
    assert verify_folder(mini_folder)[1] == []
    times = []
    for _ in range(3):
        started = time.process_time()
        assert verify_folder(mini_folder, quick=True)[1] == []
        times.append(time.process_time() - started)
    assert min(times) < 2  # 0.15 s on an idle core
