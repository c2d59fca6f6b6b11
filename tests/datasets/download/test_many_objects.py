"""Versions of many small objects: nothing unsynced in a version, and every kill leaves right bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from orlog.base.files import put_new
from orlog.datasets.download.download import download_version
from orlog.datasets.download.objects import SMALL_BYTES, TransferOptions, download_folder
from orlog.datasets.download.sources import source_of_url
from orlog.datasets.home.folders import datasets_folder
from orlog.manifests.manifest import MANIFEST_FILE, StoredObject, read_manifest
from tests.kills import killed_at
from tests.levels import scaled
from tests.servers import FileServer

MANY = 300
KILLS = scaled(60, 6)


def here() -> Path:
    return datasets_folder() / "pointmaze/umaze-mini-v1" / "2.0.0"


@pytest.fixture
def url(tmp_path: Path, built_mini: Path) -> Iterator[str]:
    """Serve a version of many small objects and a few large ones; only its bytes are looked at."""
    folder = tmp_path / "many"
    shutil.copytree(built_mini, folder)
    manifest = read_manifest(folder / MANIFEST_FILE)
    objects = list(manifest.objects)
    for number in range(MANY):
        path = folder / f"x/{number % 7}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = f"{number // 2:05}".encode() * 40  # two objects each have the same bytes
        path.write_bytes(data)
        objects.append(
            StoredObject(
                path=path.relative_to(folder).as_posix(),
                size_bytes=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
            )
        )
    objects.sort(key=lambda item: item.path)
    assert {item.size_bytes < SMALL_BYTES for item in objects} == {False, True}
    changed = msgspec.structs.replace(manifest, objects=objects, version="2.0.0")
    (folder / MANIFEST_FILE).write_text(changed.to_json(), "utf-8")
    with FileServer(folder) as server:
        yield server.url


def check(folder: Path) -> None:
    """Compare every byte of a version with its manifest, and look at what lies beside it."""
    check_bytes(folder)
    assert not download_folder(folder).exists()


def check_bytes(folder: Path) -> None:
    objects = read_manifest(folder / MANIFEST_FILE).objects
    assert len(objects) > MANY
    for item in objects:
        assert hashlib.sha256((folder / item.path).read_bytes()).hexdigest() == item.sha256


def test_objects_are_counted_as_well_as_bytes(url: str) -> None:
    counts: list[tuple[int, int]] = []
    options = TransferOptions(on_objects=lambda done, total: counts.append((done, total)))
    manifest = read_manifest(download_version(source_of_url(url), options) / MANIFEST_FILE)
    total = len({item.sha256 for item in manifest.objects})
    assert counts == [(done, total) for done in range(total + 1)]


def test_everything_is_synced_before_a_version_appears(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()

    def sync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)

    def put(folder: Path, destination: Path) -> None:
        unsynced = [path for path in folder.rglob("*") if path.stat().st_ino not in synced]
        assert unsynced == []
        put_new(folder, destination)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr("orlog.datasets.recording.finishing.put_new", put)
    check(download_version(source_of_url(url)))


def test_parts_that_never_reached_the_disk_are_downloaded_again(url: str) -> None:
    """After a loss of power a file may have its length, and zeros for bytes."""
    source = source_of_url(url)
    folder = download_folder(here())
    folder.mkdir(parents=True)
    small = [item for item in source.manifest.objects if item.size_bytes == 200]
    for item in small[:50]:
        (folder / f"{item.sha256}.part").write_bytes(bytes(item.size_bytes))
    check(download_version(source))


@pytest.mark.scaled
@pytest.mark.slow
def test_a_kill_at_any_instant_leaves_right_bytes(url: str) -> None:
    def work(step: Callable[[], None]) -> None:
        download_version(source_of_url(url), TransferOptions(progress=lambda *_: step()))

    places = datasets_folder()
    _, total = killed_at(work, 0, places)
    rng = np.random.default_rng(0)
    kills = 0
    while kills < KILLS:
        shutil.rmtree(places)
        was_in_place = False
        while kills < KILLS and killed_at(work, int(rng.integers(1, total + 1)), places)[0]:
            kills += 1
            if (here() / MANIFEST_FILE).exists():
                was_in_place = True
                for item in read_manifest(here() / MANIFEST_FILE).objects:
                    assert (here() / item.path).stat().st_size == item.size_bytes
        download_version(source_of_url(url))
        check_bytes(here())
        # Only a kill after the version was put in place leaves the folder of its download, which
        # `orlog cache gc` removes.
        assert was_in_place or not download_folder(here()).exists()
