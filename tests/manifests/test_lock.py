import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from orlog.errors import FormatVersionError, IntegrityError, InvalidNameError, LockError, ManifestError, StorageError
from orlog.manifests.lock import LockedDataset, check_lock, find_lock, read_lock, write_lock
from orlog.manifests.names import parse_name

NAME = "lab/arm-v1"
PIN = LockedDataset(version="1.0.0", digest=f"sha256:{'ab' * 32}")
OTHER = LockedDataset(version="2.1.0", digest=f"sha256:{'cd' * 32}")


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("ORLOG_LOCK", raising=False)
    folder = tmp_path / "project"
    (folder / "code" / "deep").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def lock(project):
    path = project / "orlog.lock"
    write_lock(path, {NAME: PIN})
    return path


def test_the_file_is_sorted_indented_and_ends_in_a_newline(lock):
    write_lock(lock, {"a/b-v0": OTHER})
    text = lock.read_text("utf-8")
    assert text == (
        '{\n  "datasets": {\n    "a/b-v0": {\n'
        f'      "digest": "{OTHER.digest}",\n      "version": "2.1.0"\n    }},\n'
        f'    "{NAME}": {{\n      "digest": "{PIN.digest}",\n      "version": "1.0.0"\n    }}\n'
        '  },\n  "lock_version": 1\n}\n'
    )
    assert read_lock(lock) == {"a/b-v0": OTHER, NAME: PIN}


def test_the_nearest_file_above_counts(lock, project):
    deep = project / "code" / "deep"
    assert find_lock() == lock
    assert find_lock(deep) == lock
    write_lock(project / "code" / "orlog.lock", {NAME: OTHER})
    assert find_lock(deep) == project / "code" / "orlog.lock"
    (deep / "orlog.lock").mkdir()
    assert find_lock(deep) == project / "code" / "orlog.lock"
    assert find_lock(project) == lock
    assert find_lock(Path("code/deep")) == project / "code" / "orlog.lock"


def test_no_file_means_no_pins(project):
    assert find_lock(project) is None
    assert check_lock(parse_name(NAME)) is None


def test_a_removed_working_folder_has_no_lock(project):
    gone = project / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    assert find_lock() is None
    os.chdir(project)


@pytest.mark.parametrize("value", ["", "0", " "])
def test_the_variable_can_switch_locks_off(lock, monkeypatch, value):
    monkeypatch.setenv("ORLOG_LOCK", value)
    assert find_lock(lock.parent) is None
    assert check_lock(parse_name(f"{NAME}@9.9.9")) is None


def test_the_variable_names_another_file(lock, project, monkeypatch):
    monkeypatch.setenv("ORLOG_LOCK", "code/other.lock")
    other = project / "code" / "other.lock"
    assert find_lock(lock.parent) == other
    with pytest.raises(ManifestError, match=r"other\.lock: cannot be read"):
        check_lock(parse_name(NAME))
    write_lock(other, {NAME: OTHER})
    assert check_lock(parse_name(NAME)) == OTHER


@pytest.mark.parametrize("pin", ["", "@1.0.0", f"@{PIN.digest}", f"@{PIN.digest[:13]}"])
def test_a_name_that_agrees_gets_its_pin(lock, pin):
    assert check_lock(parse_name(NAME + pin)) == PIN
    assert check_lock(parse_name(NAME + pin), lock) == PIN
    assert check_lock(parse_name("a/b-v0" + pin)) is None


@pytest.mark.parametrize("pin", ["1.0.1", "2.0.0", "sha256:abababac", OTHER.digest])
def test_a_name_that_contradicts_is_an_error_with_both_and_the_way_out(lock, pin):
    with pytest.raises(LockError) as caught:
        check_lock(parse_name(f"{NAME}@{pin}"))
    message = str(caught.value)
    for part in (f"{NAME}@{pin}", f"{NAME}@1.0.0", PIN.digest, str(lock), "orlog lock --update"):
        assert part in message
    assert caught.value.file == str(lock)
    assert caught.value.found == f"{NAME}@{pin}"
    assert isinstance(caught.value, IntegrityError)


def body(**changes):
    return {"lock_version": 1, "datasets": {NAME: msgspec.to_builtins(PIN)}, **changes}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read"),
        ("<<<<<<< HEAD\n", "cannot be read"),
        ("[]", "Expected `object`"),
        ("null", "Expected `object`"),
        ("{}", "missing required field"),
        (body(lock_version=0), "Invalid enum value 0"),
        (body(lock_version=True), "Expected `int`"),
        (body(lock_version="1"), "Expected `int`"),
        (body(extra=1), "unknown field"),
        (body(datasets=[]), "Expected `object`"),
        (body(datasets={NAME: {"version": "1.0.0"}}), "missing required field `digest`"),
        (body(datasets={NAME: {"version": "1", "digest": PIN.digest}}), "not a content version"),
        (body(datasets={NAME: {"version": "1.0.0", "digest": "sha256:abababab"}}), "regex"),
        (body(datasets={NAME: {"version": "1.0.0", "digest": PIN.digest, "url": ""}}), "unknown field"),
        (body(datasets={"Bad": {"version": "1.0.0", "digest": PIN.digest}}), "not a dataset name"),
        (body(datasets={f"{NAME}@1.0.0": {"version": "1.0.0", "digest": PIN.digest}}), "without a version"),
        ('{"lock_version": 1, "lock_version": 1, "datasets": {}}', "a key is repeated"),
        ('{"lock_version": NaN, "datasets": {}}', "not JSON"),
        ("[" * 100_000, "cannot be read"),
        (b"\xff", "cannot be read"),
        (b" " * (2**24 + 1), "more than 16777216 bytes"),
    ],
)
def test_a_wrong_file_is_refused_with_its_path_and_kept(project, content, message):
    path = project / "orlog.lock"
    if isinstance(content, dict):
        content = json.dumps(content)
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(data)
    for action in (lambda: read_lock(path), lambda: write_lock(path, {"a/b-v0": OTHER})):
        with pytest.raises(ManifestError, match=message) as caught:
            action()
        assert str(caught.value).startswith(f"{path}: ")
        assert "orlog lock" in str(caught.value)
    assert path.read_bytes() == data


def test_a_newer_file_is_refused_and_kept(lock):
    lock.write_text(json.dumps({"lock_version": 2, "pins": []}), "utf-8")
    with pytest.raises(FormatVersionError, match=r"lock_version 2 is newer.*pip install"):
        read_lock(lock)
    with pytest.raises(FormatVersionError):
        write_lock(lock, {NAME: PIN})
    assert "pins" in lock.read_text("utf-8")


@pytest.mark.parametrize("name", ["bad", f"{NAME}@1.0.0", "../up-v1", ""])
def test_a_wrong_name_is_never_written(project, name):
    with pytest.raises(InvalidNameError):
        write_lock(project / "orlog.lock", {NAME: PIN, name: PIN})
    assert not (project / "orlog.lock").exists()


def test_a_link_stays_a_link(project, lock):
    link = project / "code" / "orlog.lock"
    link.symlink_to(lock)
    write_lock(link, {NAME: OTHER})
    assert link.is_symlink()
    assert read_lock(lock) == {NAME: OTHER}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_a_storage_error(project):
    project.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(StorageError, match=r"orlog\.lock: cannot write"):
            write_lock(project / "orlog.lock", {NAME: PIN})
    finally:
        project.chmod(stat.S_IRWXU)


def test_a_full_disk_leaves_the_old_file(lock, monkeypatch):
    before = lock.read_bytes()

    def full(_path, _data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("orlog.base.files.write_durably", full)
    with pytest.raises(StorageError, match="No space left") as caught:
        write_lock(lock, {NAME: OTHER})
    assert caught.value.errno == 28
    assert lock.read_bytes() == before
    assert sorted(path.name for path in lock.parent.iterdir()) == [".orlog.lock.lock", "code", "orlog.lock"]


def test_two_processes_lose_no_pin(project):
    code = (
        "import sys, pathlib\n"
        "from orlog.manifests.lock import LockedDataset, write_lock\n"
        "for number in range(20):\n"
        "    pin = LockedDataset(version='1.0.0', digest='sha256:' + '0' * 64)\n"
        "    write_lock(pathlib.Path('orlog.lock'), {f'a/{sys.argv[1]}-v{number}': pin})\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, name], cwd=project) for name in ("x", "y")]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    assert len(read_lock(project / "orlog.lock")) == 40
