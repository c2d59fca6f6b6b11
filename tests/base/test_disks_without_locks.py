"""Disks that cannot lock files, and versions that are deleted while they are used."""

import errno
import fcntl
import os
import shutil
import warnings

import pytest

import orlog
from orlog.base.files import hold_folder, is_held, sole_access
from orlog.datasets.download import download
from orlog.datasets.home.folders import unless_deleted
from orlog.errors import NotFoundError, StorageError


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_a_disk_cannot_lock_work_goes_on_and_it_is_said_once(number, tmp_path, monkeypatch):
    def flock(_file, _operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            with sole_access(tmp_path / "version"), hold_folder(tmp_path, busy="held"):
                assert not is_held(tmp_path)
    texts = [str(one.message) for one in caught]
    assert len(texts) == len({*texts})
    assert any("cannot lock files" in text for text in texts)


def test_a_repair_beside_a_deletion_says_that_the_version_was_deleted(mini_folder, monkeypatch):
    def gone(folder, _mirrors):
        shutil.rmtree(folder)
        raise StorageError(f"{folder}: cannot write; free some space.", errno=errno.ENOENT)

    monkeypatch.setattr(download, "_source_of_folder", gone)
    with pytest.raises(NotFoundError, match="was deleted while"):
        orlog.repair_dataset(mini_folder)


def test_a_full_disk_is_no_deletion(tmp_path):
    with pytest.raises(StorageError, match="free some space"), unless_deleted(tmp_path):
        raise StorageError("free some space.", errno=errno.ENOSPC)
