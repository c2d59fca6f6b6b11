"""Versions from real servers with faults: right bytes, or a typed error that says who did what."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orlog
from orlog.datasets.download.download import (
    download_dataset,
    download_version,
    repair_dataset,
    repair_version,
)
from orlog.datasets.download.http import Patience
from orlog.datasets.download.objects import TransferOptions
from orlog.datasets.download.sources import find_source, source_of_url
from orlog.datasets.download.transfer import Limiter, read_small
from orlog.datasets.home.folders import datasets_folder, installed_versions
from orlog.datasets.home.origin import Source
from orlog.datasets.home.registries import add_registry, remove_registry
from orlog.datasets.publish.publish import publish_dataset
from orlog.datasets.reading.finding import folders_to_repair
from orlog.errors import (
    IntegrityError,
    LockError,
    ManifestError,
    NotFoundError,
    SignatureError,
    StorageError,
    TransferError,
)
from orlog.manifests.lock import LockedDataset, write_lock
from orlog.manifests.manifest import read_manifest
from orlog.manifests.names import parse_name
from orlog.manifests.signatures import new_key, sign
from tests.datasets.conftest import Served
from tests.kills import killed_at
from tests.levels import scaled
from tests.servers import COMES, Fault, FileServer

MINI = "pointmaze/umaze-mini-v1"
QUICK = Patience(idle=0, timeout=COMES, attempts=2, first_wait=0.01, longest_wait=0.1)
KILLS = scaled(100, 12)
RETURNS = "episodes/returns/c.0"


def quickly(url: str, **options: Any) -> Path:
    return download_version(source_of_url(url), TransferOptions(patience=QUICK, **options))


def leftovers() -> list[str]:
    """Return what lies beside versions, but for locks."""
    return sorted(
        path.name
        for path in (datasets_folder() / MINI).iterdir()
        if path.name.startswith(".") and path.suffix != ".lock"
    )


@pytest.mark.parametrize("end", ["", "/", "/manifest.json"])
def test_a_version_is_downloaded_by_url_and_then_opened_by_name(
    served: Served, built_mini: Path, end: str
) -> None:
    seen: list[tuple[int, int]] = []
    ds = orlog.load_dataset(
        served.url + end, progress=lambda done, total: seen.append((done, total))
    )
    assert ds.digest == orlog.load_dataset(built_mini).digest
    assert ds.folder == datasets_folder() / MINI / "1.0.0"
    unique = {item.sha256: item.size_bytes for item in ds.manifest.objects}
    assert seen[0] == (0, sum(unique.values()))
    assert seen[-1] == (sum(unique.values()), sum(unique.values()))
    assert orlog.load_dataset(MINI).digest == ds.digest
    assert orlog.verify_store(ds.folder)[1] == []
    assert leftovers() == [".1.0.0.origin.json"]


def test_a_name_is_downloaded_from_a_registry(served: Served) -> None:
    with pytest.raises(NotFoundError):
        orlog.load_dataset(MINI)
    ds = orlog.load_dataset(MINI, download=True)
    assert orlog.verify_store(ds.folder)[1] == []
    asked = len(served.server.requests)
    assert download_dataset(f"{MINI}@1.0.0") == ds.folder
    assert download_dataset(f"{MINI}@{ds.digest}") == ds.folder
    assert len(served.server.requests) == asked
    assert download_dataset(MINI) == ds.folder  # asks whether there is a newer one
    assert len(served.server.requests) == asked + 2  # index and manifest


def test_the_url_of_a_dataset_in_a_registry_is_that_of_its_newest_version(served: Served) -> None:
    folder = download_dataset(served.url.removesuffix("/1.0.0"))
    assert folder.name == "1.0.0"
    assert orlog.load_dataset(MINI).folder == folder
    with pytest.raises(NotFoundError, match="or of a dataset in a registry"):
        download_dataset(served.url.removesuffix("/1.0.0") + "x")


@pytest.mark.usefixtures("served")
def test_names_that_no_registry_has_are_said_with_what_was_asked() -> None:
    for name, words in (
        ("pointmaze/umaze-mimi-v1", f"lab does not have it; did you mean {MINI}"),
        (f"{MINI}@3.0.0", r"lab has 1\.0\.0 of it"),
    ):
        with pytest.raises(NotFoundError, match=words):
            download_dataset(name)
    remove_registry("lab")
    with pytest.raises(NotFoundError, match="orlog registry add"):
        download_dataset(MINI)


def test_a_file_url_is_a_mirror_too(built_mini: Path, home: Path) -> None:
    assert orlog.load_dataset(f"file://{built_mini}").folder.is_relative_to(home)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda _: b"",
    ],
    ids=["altered", "short", "long", "empty"],
)
def test_other_bytes_are_refused_and_the_rest_goes_on_later(
    served: Served, change: Callable[[bytes], bytes]
) -> None:
    served.server.faults.append(Fault(path="rewards/c.0", change=change))
    with pytest.raises(TransferError, match=r"rewards/c\.0 .*\n +http://") as caught:
        quickly(served.url)
    assert len(caught.value.attempts) == 1
    assert installed_versions(MINI) == []
    served.server.faults.clear()
    kept = sum(
        one.stat().st_size for one in (datasets_folder() / MINI / ".1.0.0.download").iterdir()
    )
    before = served.server.sent_bytes
    folder = quickly(served.url)
    assert orlog.verify_store(folder)[1] == []
    whole = sum(
        {
            one.sha256: one.size_bytes for one in read_manifest(folder / "manifest.json").objects
        }.values()
    )
    assert (
        served.server.sent_bytes - before <= whole - kept + 20_000
    )  # the manifest, and what was cut off


def test_the_next_mirror_is_taken_and_each_that_failed_is_named(
    served: Served, registry_folder: Path
) -> None:
    with FileServer(registry_folder) as good:
        served.server.faults.append(Fault(path="c.0.0", status=403))
        source = source_of_url(served.url)
        both = (*source.mirrors, f"{good.url}/{MINI}/1.0.0")
        mended = Source(manifest=source.manifest, mirrors=both)
        folder = download_version(mended, TransferOptions(patience=QUICK))
    assert orlog.verify_store(folder)[1] == []
    shutil.rmtree(folder)
    good_is_gone = Source(manifest=source.manifest, mirrors=both)
    with pytest.raises(TransferError) as caught:
        download_version(good_is_gone, TransferOptions(patience=QUICK))
    assert len(caught.value.attempts) == 2
    assert "403" in caught.value.attempts[0]


def test_a_manifest_from_outside_is_checked(served: Served) -> None:
    def escape(data: bytes) -> bytes:
        body = json.loads(data)
        body["objects"][0]["path"] = "../../../escape"
        return json.dumps(body).encode()

    for change in (escape, lambda _: b"[" * 10_000, lambda _: b"\xff", lambda data: data[:-20]):
        served.server.faults[:] = [Fault(path="manifest.json", change=change)]
        with pytest.raises(ManifestError, match=r"http://.*manifest\.json"):
            quickly(served.url)
    assert installed_versions(MINI) == []


def test_other_bytes_under_the_same_version_are_refused(
    served: Served, reseal: Callable[..., Path], mini_folder_there: Path
) -> None:
    reseal(mini_folder_there, lambda body: body.update(description="another"))
    here = orlog.load_dataset(mini_folder_there).digest
    with pytest.raises(IntegrityError, match="a version never changes"):
        orlog.load_dataset(served.url)
    assert orlog.load_dataset(mini_folder_there).digest == here


@pytest.fixture
def mini_folder_there(built_mini: Path) -> Path:
    """Return a copy of the small dataset in this test's home, beside a served one."""
    folder = datasets_folder() / MINI / "1.0.0"
    shutil.copytree(built_mini, folder)
    return folder


def test_the_lock_holds_for_names_and_urls(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = LockedDataset(version="1.0.0", digest="sha256:" + "0" * 64)
    write_lock(tmp_path / "orlog.lock", {MINI: pin})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LockError, match="orlog lock --update"):
        orlog.load_dataset(served.url)
    with pytest.raises(NotFoundError, match=r"lab has 1\.0\.0 of it"):
        download_dataset(MINI)
    assert installed_versions(MINI) == []


def test_what_another_version_has_is_not_transferred(served: Served) -> None:
    first = orlog.load_dataset(MINI, download=True)
    with orlog.DatasetWriter.append(first) as writer:
        writer.add_episode(first[0])
    newer = orlog.load_dataset(MINI)
    publish_dataset(newer.folder, str(served.registry))
    shutil.rmtree(newer.folder)
    sent = served.server.sent_bytes
    ds = orlog.load_dataset(f"{MINI}@{newer.version}", download=True)
    assert ds.digest == newer.digest
    assert served.server.sent_bytes - sent < first.manifest.size_bytes / 4
    assert (ds.folder / "actions/c.0.0").samefile(first.folder / "actions/c.0.0")


def test_too_little_room_is_said_before_anything_is_transferred(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of_url(served.url)
    usage = shutil.disk_usage(served.registry)._replace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    asked = len(served.server.requests)
    with pytest.raises(StorageError, match=r"bytes must still be downloaded, but 100,000 are free"):
        download_version(source)
    assert len(served.server.requests) == asked


def download_in_child(url: str) -> None:
    """Download in a process of its own, slowly."""
    download_version(source_of_url(url), TransferOptions(limiter=Limiter(4_000_000)))


def test_eight_processes_fetch_every_byte_once(served: Served) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=download_in_child, args=(served.url,)) for _ in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    ds = orlog.load_dataset(MINI)
    assert orlog.verify_store(ds.folder)[1] == []
    manifests = 8 * len((ds.folder / "manifest.json").read_bytes())
    assert served.server.sent_bytes <= ds.manifest.size_bytes + manifests


@pytest.mark.scaled
@pytest.mark.slow
def test_a_download_that_is_killed_at_any_instant_goes_on(served: Served) -> None:
    """Killed for real, again and again, until one comes to its end; then once more from the start."""
    places = datasets_folder()

    def work(step: Callable[[], None]) -> None:
        options = TransferOptions(progress=lambda *_: step())
        download_version(source_of_url(served.url), options)

    _, total = killed_at(work, 0, places)
    rng = np.random.default_rng(0)
    kills = 0
    while kills < KILLS:
        shutil.rmtree(places)
        while kills < KILLS and killed_at(work, int(rng.integers(1, total + 1)), places)[0]:
            kills += 1
            for version in installed_versions(MINI):
                assert orlog.verify_store(places / MINI / version)[1] == []
        was_in_place = bool(installed_versions(MINI))
        folder = quickly(served.url)
        assert orlog.verify_store(folder)[1] == []
        # Only a kill after the version was put in place leaves the folder of its download, which
        # `orlog cache gc` removes.
        assert was_in_place or leftovers() == [".1.0.0.origin.json"]


def test_what_a_killed_download_left_is_read_again_before_it_is_used(served: Served) -> None:
    folder = quickly(served.url)
    item = next(one for one in orlog.load_dataset(folder).manifest.objects if one.path == RETURNS)
    kept = folder.with_name(f".{folder.name}.download") / item.sha256
    kept.parent.mkdir()
    kept.hardlink_to(folder / item.path)  # as a process that was killed once the version was there
    flip(folder / item.path)
    shutil.rmtree(folder)
    assert quickly(served.url) == folder
    assert orlog.verify_store(folder)[1] == []


# --- repair


def damage(folder: Path) -> dict[str, str]:
    """Do every kind of damage to a version; return the paths and what was done."""
    flip(folder / "rewards/c.0")
    (folder / "actions/c.0.0").unlink()
    shutil.rmtree(folder / "infos")
    with (folder / "terminations/c.0").open("r+b") as file:
        file.truncate(10)
    (folder / "truncations/c.0").unlink()
    (folder / "truncations/c.0").symlink_to(folder / "terminations/c.0")
    (folder / "notes.txt").write_text("mine", "utf-8")
    return {
        "rewards/c.0": "damaged",
        "actions/c.0.0": "missing",
        "terminations/c.0": "wrong size",
        "truncations/c.0": "a link",
        "notes.txt": "not in the manifest",
    }


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_repair_brings_what_is_damaged_and_nothing_else(served: Served) -> None:
    folder = download_dataset(MINI)
    done = damage(folder)
    broken = {problem.file: problem.kind for problem in orlog.verify_store(folder)[1]}
    assert done.items() <= broken.items()
    served.server.requests.clear()
    problems = repair_dataset(folder)
    assert {problem.file: problem.kind for problem in problems} == broken
    assert orlog.verify_store(folder)[1] == []
    asked = {request.path.removeprefix(f"/{MINI}/1.0.0/") for request in served.server.requests}
    assert asked == set(broken) - {"notes.txt"}
    strange = folder.with_name(".1.0.0.strange") / "notes.txt"
    assert strange.read_text("utf-8") == "mine"
    assert repair_dataset(folder) == []


@pytest.mark.usefixtures("served")
def test_a_damaged_or_missing_manifest_is_brought_again() -> None:
    folder = download_dataset(MINI)
    good = (folder / "manifest.json").read_bytes()
    for damaged in (good[:-9], b"", None):
        (folder / "manifest.json").unlink()
        if damaged is not None:
            (folder / "manifest.json").write_bytes(damaged)
        assert folders_to_repair(MINI) == [folder]
        (problem,) = repair_dataset(folder)
        assert problem.file == "manifest.json"
        assert orlog.verify_store(folder)[1] == []


def test_another_manifest_is_not_taken_for_a_damaged_one(
    served: Served, reseal: Callable[..., Path]
) -> None:
    folder = download_dataset(MINI)
    reseal(served.registry / MINI / "1.0.0", lambda body: body.update(description="another"))
    (folder / "manifest.json").write_text("{", "utf-8")
    with pytest.raises(IntegrityError, match="was downloaded; nothing was changed"):
        repair_dataset(folder)
    assert (folder / "manifest.json").read_text("utf-8") == "{"


def test_a_folder_without_a_manifest_is_completed_by_a_download(served: Served) -> None:
    folder = quickly(served.url)
    (folder / "manifest.json").unlink()
    (folder / "rewards/c.0").unlink()
    assert quickly(served.url) == folder
    assert orlog.verify_store(folder)[1] == []


@pytest.mark.usefixtures("served")
def test_versions_that_share_a_damaged_file_are_mended_together() -> None:
    first = orlog.load_dataset(MINI, download=True)
    with orlog.DatasetWriter.append(first) as writer:
        writer.add_episode(first[0])
    newer = orlog.load_dataset(MINI)
    with (first.folder / "rewards/c.0").open("r+b") as file:
        file.write(b"damage")
    assert len(orlog.verify_store(newer.folder)[1]) == 1
    repair_dataset(first.folder)
    assert orlog.verify_store(first.folder)[1] == []
    assert orlog.verify_store(newer.folder)[1] == []


@pytest.mark.usefixtures("served")
def test_a_version_that_was_never_downloaded_is_mended_from_a_mirror_or_registry(
    mini_folder_there: Path, built_mini: Path
) -> None:
    for mirrors in ((), (f"file://{built_mini}",)):
        flip(mini_folder_there / "rewards/c.0")
        assert len(repair_dataset(mini_folder_there, mirrors=mirrors)) == 1
        assert orlog.verify_store(mini_folder_there)[1] == []


def test_repair_changes_nothing_where_no_mirror_helps(served: Served) -> None:
    folder = download_dataset(MINI)
    flip(folder / "rewards/c.0")
    damaged = (folder / "rewards/c.0").read_bytes()
    served.server.faults.append(Fault(path="c.0", status=404))
    with pytest.raises(TransferError, match="404"):
        repair_version(folder, source_of_url(served.url), TransferOptions(patience=QUICK))
    assert (folder / "rewards/c.0").read_bytes() == damaged
    assert orlog.load_dataset(folder).total_episodes == 67


@pytest.mark.usefixtures("served")
def test_what_a_killed_repair_left_is_read_again_before_it_is_used() -> None:
    folder = download_dataset(MINI)
    objects = orlog.load_dataset(folder).manifest.objects
    item = next(item for item in objects if item.path == "rewards/c.0")
    kept = folder.with_name(f".{folder.name}.download") / item.sha256
    kept.parent.mkdir()
    kept.hardlink_to(folder / item.path)  # as a repair that was killed after its last rename
    flip(folder / item.path)
    assert len(repair_dataset(folder)) == 1
    assert orlog.verify_store(folder)[1] == []
    assert not kept.parent.exists()


@pytest.mark.usefixtures("served")
def test_a_strange_file_that_was_moved_aside_before_is_moved_again() -> None:
    folder = download_dataset(MINI)
    (folder / "notes.txt").write_text("mine", "utf-8")
    aside = folder.with_name(".1.0.0.strange") / "notes.txt"
    aside.parent.mkdir()
    aside.hardlink_to(folder / "notes.txt")
    assert len(repair_dataset(folder)) == 1
    assert orlog.verify_store(folder)[1] == []
    assert aside.read_text("utf-8") == "mine"


@pytest.mark.scaled
@pytest.mark.slow
@pytest.mark.usefixtures("served")
def test_a_repair_that_is_killed_at_any_instant_goes_on() -> None:
    folder, places = download_dataset(MINI), datasets_folder()

    def work(step: Callable[[], None]) -> None:
        repair_dataset(folder, progress=lambda *_: step())

    damage(folder)
    _, total = killed_at(work, 0, places)
    rng = np.random.default_rng(1)
    kills = 0
    while kills < KILLS:
        damage(folder)
        while kills < KILLS and killed_at(work, int(rng.integers(1, total + 1)), places)[0]:
            kills += 1
        repair_dataset(folder)
        assert orlog.verify_store(folder)[1] == []
        shutil.rmtree(folder.with_name(".1.0.0.strange"), ignore_errors=True)


# --- registries


@pytest.mark.usefixtures("served")
def test_a_registry_that_does_not_answer_ends_the_search_unless_the_digest_is_known(
    built_mini: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orlog.datasets.download.sources.read_small", quick_read_small)
    add_registry("first", "http://127.0.0.1:9", first=True)
    with pytest.raises(TransferError, match="registry first does not answer"):
        download_dataset(MINI)
    digest = orlog.load_dataset(built_mini).digest
    assert download_dataset(f"{MINI}@{digest}").is_dir()


def quick_read_small(url: str, limit: int, **_: Any) -> bytes:
    return read_small(url, limit, patience=QUICK)


def test_a_registry_with_a_key_refuses_what_is_unsigned_altered_or_older(
    served: Served, built_mini: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orlog.datasets.download.sources.PAUSE", 0.0)
    public = new_key(tmp_path / "lab.key")
    new_key(tmp_path / "other.key")
    remove_registry("lab")
    add_registry("lab", served.server.url, keys=(public,))
    with pytest.raises(SignatureError):
        download_dataset(MINI)

    def signer(key: str) -> Callable[[bytes, str], bytes]:
        return lambda data, kind: sign(data, kind, tmp_path / key)  # type: ignore[arg-type]

    shutil.rmtree(served.registry)
    publish_dataset(built_mini, str(served.registry), sign=signer("lab.key"))
    first = orlog.load_dataset(MINI, download=True)
    assert find_source(parse_name(MINI)).signed_by == public
    older = {path.name: path.read_bytes() for path in served.registry.glob("index.json*")}
    with orlog.DatasetWriter.append(first) as writer:
        writer.add_episode(first[0])
    newer = orlog.load_dataset(MINI).folder
    publish_dataset(newer, str(served.registry), sign=signer("lab.key"))
    found = find_source(parse_name(MINI))
    assert isinstance(found, Source)
    assert found.manifest.version == "1.1.0"
    for name, data in older.items():
        (served.registry / name).write_bytes(data)
    with pytest.raises(SignatureError, match="expected serial 2 or more, found 1"):
        find_source(parse_name(MINI))
    manifest = served.registry / MINI / "1.1.0" / "manifest.json.sig"
    publish_dataset(newer, str(served.registry), sign=signer("lab.key"))
    manifest.write_bytes(sign(b"another", "manifest", tmp_path / "lab.key"))
    with pytest.raises(SignatureError, match=r"manifest\.json"):
        find_source(parse_name(MINI))
    for path in served.registry.glob("index.json*"):
        path.unlink()
    publish_dataset(newer, str(served.registry), sign=signer("other.key"))
    with pytest.raises(SignatureError, match="ed25519"):
        find_source(parse_name(MINI))
