"""Publishing into folders and memory: whole, once, or an error, also killed at any instant."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from filelock import FileLock

import orlog
from orlog.datasets.publish.publish import Sign, publish_dataset
from orlog.errors import (
    FormatVersionError,
    IntegrityError,
    ManifestError,
    MissingExtraError,
    NotFoundError,
    OrlogError,
    StorageError,
    VersionExistsError,
)
from orlog.manifests.manifest import read_manifest
from tests.levels import THOROUGH
from tests.publishing import (
    MINI,
    OWN_PLACE,
    PLACE,
    SOME,
    assert_signed,
    ending,
    in_child,
    index_of,
    tree,
)

pytest_plugins = ["tests.publishing_fixtures"]

KILLS = 45
EACH = 1 if THOROUGH else 3  # of the instants, so many are one kill


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


# --- folders ----------------------------------------------------------------------------------


def test_a_folder_becomes_a_registry(built_mini: Path, registry: Path) -> None:
    told: list[tuple[int, int]] = []
    url = publish_dataset(
        built_mini, str(registry), progress=lambda done, total: told.append((done, total))
    )
    manifest = read_manifest(built_mini / "manifest.json")
    assert url == f"file://{registry}/{PLACE}"
    assert tree(registry / PLACE) == tree(built_mini)
    assert set(tree(registry)) == {"index.json", *(f"{PLACE}/{path}" for path in tree(built_mini))}
    assert told[-1] == (manifest.size_bytes, manifest.size_bytes)
    assert len(told) == len(manifest.objects) + 1
    entry = index_of(registry).entry(MINI, "1.0.0")
    assert entry is not None
    assert (entry.digest, entry.size_bytes) == (manifest.digest, manifest.size_bytes)
    assert orlog.load_dataset(url).digest == manifest.digest


def test_again_does_nothing_and_completes_the_index(built_mini: Path, registry: Path) -> None:
    url = publish_dataset(built_mini, registry.as_uri())
    before = {path: path.stat().st_mtime_ns for path in registry.rglob("*") if path.is_file()}
    assert publish_dataset(built_mini, registry.as_uri() + "/") == url
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (registry / "index.json").unlink()
    publish_dataset(built_mini, str(registry))
    assert index_of(registry).serial == 1
    assert (registry / PLACE / "manifest.json").stat().st_mtime_ns == before[
        registry / PLACE / "manifest.json"
    ]


def test_versions_and_datasets_add_up(variant: Callable[..., Path], registry: Path) -> None:
    for number, (name, version) in enumerate(
        [("lab/b-v1", "1.0.0"), ("lab/a-v1", "1.0.0"), ("lab/a-v1", "1.10.0")]
    ):
        publish_dataset(variant(str(number), name=name, version=version), str(registry))
        assert index_of(registry).serial == number + 1
    assert {name: list(one) for name, one in index_of(registry).datasets.items()} == {
        "lab/a-v1": ["1.0.0", "1.10.0"],
        "lab/b-v1": ["1.0.0"],
    }


def test_a_version_never_changes(own: Path, other: Path, registry: Path) -> None:
    publish_dataset(own, str(registry))
    before = tree(registry)
    digests = [read_manifest(one / "manifest.json").digest for one in (own, other)]
    with pytest.raises(VersionExistsError, match=f"{digests[0]}.*{digests[1]}.*new version"):
        publish_dataset(other, str(registry))
    shutil.rmtree(registry / OWN_PLACE)
    with pytest.raises(VersionExistsError, match=f"{digests[0]}.*{digests[1]}"):
        publish_dataset(other, str(registry))
    assert list(tree(registry)) == ["index.json"]
    assert before["index.json"] == (registry / "index.json").read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
    ],
    ids=["short", "long", "altered", "empty", "missing"],
)
def test_damaged_bytes_are_never_published(
    mini_folder: Path, registry: Path, memory: Any, damage: Callable[[Path], object]
) -> None:
    good = (mini_folder / SOME).read_bytes()
    damage(mini_folder / SOME)
    for target in (str(registry), "memory://registry"):
        with pytest.raises(IntegrityError, match=rf"{SOME}: expected.*run orlog verify") as caught:
            publish_dataset(mini_folder, target)
        assert caught.value.file == SOME
    for path in (*tree(registry), *memory.find("/registry")):
        assert not path.endswith((SOME, "manifest.json", "index.json", "unfinished"))
    (mini_folder / SOME).write_bytes(good)
    publish_dataset(mini_folder, str(registry))
    publish_dataset(mini_folder, "memory://registry")
    assert tree(registry / PLACE) == tree(mini_folder)
    assert memory.cat(f"/registry/{PLACE}/{SOME}") == good


def test_what_is_there_is_believed_only_by_its_content(built_mini: Path, registry: Path) -> None:
    publish_dataset(built_mini, str(registry))
    whole = tree(registry)
    (registry / PLACE / "manifest.json").unlink()
    size = len(whole[f"{PLACE}/{SOME}"])
    (registry / PLACE / SOME).write_bytes(bytes(size))
    kept = registry / PLACE / "actions" / "zarr.json"
    before = kept.stat().st_mtime_ns
    publish_dataset(built_mini, str(registry))
    assert tree(registry) == whole
    assert kept.stat().st_mtime_ns == before


def test_a_signature_of_what_never_came_goes_away(built_mini: Path, registry: Path) -> None:
    (registry / PLACE).mkdir(parents=True)
    (registry / PLACE / "manifest.json.sig").write_bytes(b"of other bytes")
    publish_dataset(built_mini, str(registry))
    assert not (registry / PLACE / "manifest.json.sig").exists()


def test_an_index_that_cannot_be_read_is_left_alone(built_mini: Path, registry: Path) -> None:
    registry.mkdir()
    for text, error in (
        ('{"index_version": 2}', FormatVersionError),
        ("{}", ManifestError),
        ("", ManifestError),
    ):
        (registry / "index.json").write_text(text)
        with pytest.raises(error, match="index"):
            publish_dataset(built_mini, str(registry))
        assert tree(registry) == {"index.json": text.encode()}


def test_a_manifest_that_cannot_be_read_is_left_alone(built_mini: Path, registry: Path) -> None:
    path = registry / PLACE / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(ManifestError, match=r"file://.*manifest\.json: not the JSON"):
        publish_dataset(built_mini, str(registry))
    assert tree(registry) == {f"{PLACE}/manifest.json": b"{"}


def test_errors_of_the_disk_are_said(
    built_mini: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"No space left.*the disk is full") as caught:
            publish_dataset(built_mini, str(registry))
    assert caught.value.errno == errno.ENOSPC
    assert not any("unfinished" in path for path in tree(registry))
    publish_dataset(built_mini, str(registry))
    registry.rename(registry.with_name("kept"))
    registry.write_bytes(b"a file")
    with pytest.raises(StorageError, match="Not a directory"):
        publish_dataset(built_mini, str(registry))
    with pytest.raises(NotFoundError, match="is not there"):
        publish_dataset(registry.with_name("nothing"), str(registry))


def test_targets_that_nothing_writes(built_mini: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match="nothing://here"):
        publish_dataset(built_mini, "nothing://here")
    with pytest.raises(NotFoundError, match="names no folder or bucket"):
        publish_dataset(built_mini, "s3://")
    with pytest.raises(StorageError, match="cannot publish to a web server"):
        publish_dataset(built_mini, "https://example.org/data")
    for scheme, package in (("s3", "s3fs"), ("hf", "huggingface_hub")):
        monkeypatch.setitem(sys.modules, package, None)
        known = sys.modules["fsspec.registry"]._registry
        monkeypatch.delitem(known, scheme, raising=False)
        with pytest.raises(MissingExtraError, match=rf'pip install "orlog\[{scheme}\]"') as caught:
            publish_dataset(built_mini, f"{scheme}://datasets/user/data")
        assert caught.value.install == f"orlog[{scheme}]"


def test_it_says_once_that_it_waits(built_mini: Path, registry: Path) -> None:
    paths = [registry / MINI / ".1.0.0.lock", registry / ".index.json.lock"]
    paths[0].parent.mkdir(parents=True)
    is_held, is_told = threading.Event(), threading.Event()
    told = []

    def hold() -> None:
        with contextlib.ExitStack() as held:
            for path in paths:
                held.enter_context(FileLock(path))
            is_held.set()
            is_told.wait(120)

    def tell() -> None:
        told.append("waits")
        is_told.set()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        assert is_held.wait(120)
        publish_dataset(built_mini, str(registry), on_wait=tell)
    publish_dataset(built_mini, str(registry), on_wait=tell)
    assert told == ["waits"]
    assert index_of(registry).serial == 1


# --- killed, and two at once ------------------------------------------------------------------


@pytest.mark.scaled
def test_killed_at_any_instant_it_goes_on_and_nobody_sees_a_half(
    built_mini: Path, tmp_path: Path, registry: Path, sign: Sign, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> str:
        return publish_dataset(built_mini, str(registry), sign=sign, jobs=1)

    read_end, write_end = os.pipe()
    assert ending(in_child(work, -write_end)) == 0
    instants = int(os.read(read_end, 100))
    os.close(read_end)
    os.close(write_end)
    whole = tree(registry)
    shutil.rmtree(registry)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    rng = np.random.default_rng(7)
    last = range(instants - 24, instants + 1)
    chosen = sorted({*rng.choice(instants - 25, KILLS - 20, replace=False) + 1, *last})
    assert len(chosen) >= KILLS
    seen = {"nothing": 0, "version": 0, "listed": 0, "half": 0}
    for instant in chosen[::-EACH]:
        assert ending(in_child(work, int(instant))) == -signal.SIGKILL
        there = tree(registry)
        if f"{PLACE}/manifest.json" in there:
            seen["version"] += 1
            assert {path: there[path] for path in whole if path.startswith(PLACE)} == {
                path: data for path, data in whole.items() if path.startswith(PLACE)
            }
        else:
            seen["nothing"] += 1
            monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "reader"))
            with pytest.raises(OrlogError):
                orlog.load_dataset(f"file://{registry}/{PLACE}")
        seen["half"] += any(path.endswith(".unfinished") and there[path] for path in there)
        if "index.json" in there:
            seen["listed"] += 1
            assert there["index.json"] == whole["index.json"]
            assert f"{PLACE}/manifest.json" in there
        work()
        assert tree(registry) == whole
        shutil.rmtree(registry)
    assert min(seen.values()) > 0, seen


def test_of_two_with_other_bytes_one_wins(own: Path, other: Path, registry: Path) -> None:
    wholes = {}
    for folder in (own, other):
        publish_dataset(folder, str(registry))
        wholes[folder] = tree(registry)
        shutil.rmtree(registry)
    for turn in range(6):
        folders = (own, other) if turn % 2 else (other, own)
        children = [
            in_child(lambda folder=folder: publish_dataset(folder, str(registry)))  # type: ignore[misc]
            for folder in folders
        ]
        endings = [ending(child) for child in children]
        assert sorted(endings) == [0, 17]
        assert tree(registry) == wholes[folders[endings.index(0)]]
        shutil.rmtree(registry)


def test_all_that_publish_at_once_are_listed(variant: Callable[..., Path], registry: Path) -> None:
    folders = [variant(f"copy{number}", name=f"lab/d{number}-v1") for number in range(4)]
    children = [
        in_child(lambda folder=folder: publish_dataset(folder, str(registry)))  # type: ignore[misc]
        for folder in [*folders, *folders]
    ]
    assert {ending(child) for child in children} == {0}
    assert index_of(registry).serial == 4
    assert sorted(index_of(registry).datasets) == [f"lab/d{number}-v1" for number in range(4)]


# --- memory ---------------------------------------------------------------------------------------


def test_memory_holds_a_registry(own: Path, other: Path, memory: Any, sign: Sign) -> None:
    url = publish_dataset(own, "memory://registry", sign=sign)
    assert url == f"memory://registry/{OWN_PLACE}"
    held = {path.removeprefix("/registry/"): memory.cat(path) for path in memory.find("/registry")}
    assert {
        path.removeprefix(OWN_PLACE + "/"): data
        for path, data in held.items()
        if path.startswith(OWN_PLACE) and not path.endswith(".sig")
    } == tree(own)
    assert_signed(held, sign)
    assert orlog.load_dataset(url).name == MINI
    with pytest.raises(VersionExistsError):
        publish_dataset(other, "memory://registry", sign=sign)
