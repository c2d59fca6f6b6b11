"""Versions from real servers with faults: right bytes, or a typed error that says who did what."""

import hashlib
import json
import multiprocessing
import os
import shutil

import msgspec
import numpy as np
import pytest

import orlog
from orlog import download_dataset, publish_dataset, repair_dataset
from orlog.base.files import put_new
from orlog.datasets.download.download import download_version
from orlog.datasets.download.http import Patience
from orlog.datasets.download.sources import BRIEF, confirm_version, find_source, source_of_url
from orlog.datasets.download.transfer import SMALL_BYTES, Limiter, TransferOptions, download_folder, read_small
from orlog.datasets.home.folders import datasets_folder, installed_versions
from orlog.datasets.home.records import Source
from orlog.datasets.home.registries import add_registry, remove_registry
from orlog.datasets.reading.finding import folders_to_repair
from orlog.errors import IntegrityError, LockError, ManifestError, NotFoundError, SignatureError, TransferError
from orlog.manifests.lock import LockedDataset, write_lock
from orlog.manifests.manifest import MANIFEST_FILE, StoredObject, read_manifest
from orlog.manifests.names import parse_name
from orlog.manifests.signatures import new_key, sign
from tests.datasets.conftest import MINI
from tests.kills import killed_at
from tests.levels import scaled
from tests.servers import COMES, Fault, FileServer

QUICK = Patience(idle=0, timeout=COMES, attempts=2, first_wait=0.01, longest_wait=0.1)
KILLS = scaled(100, 12)
RETURNS = "episodes/returns/c.0"
MANY = 300


def quickly(url, **options):
    return download_version(source_of_url(url), TransferOptions(patience=QUICK, **options))


def leftovers():
    """Return what lies beside versions, but for locks."""
    return sorted(
        path.name
        for path in (datasets_folder() / MINI).iterdir()
        if path.name.startswith(".") and path.suffix != ".lock"
    )


@pytest.mark.parametrize("end", ["", "/", "/manifest.json"])
def test_a_version_is_downloaded_by_url_and_then_opened_by_name(served, built_mini, end):
    seen = []
    ds = orlog.load_dataset(served.url + end, progress=lambda done, total: seen.append((done, total)))
    assert ds.digest == orlog.load_dataset(built_mini).digest
    assert ds.folder == datasets_folder() / MINI / "1.0.0"
    unique = {item.sha256: item.size_bytes for item in ds.manifest.objects}
    assert seen[0] == (0, sum(unique.values()))
    assert seen[-1] == (sum(unique.values()), sum(unique.values()))
    assert orlog.load_dataset(MINI).digest == ds.digest
    assert orlog.verify_store(ds.folder)[1] == []
    assert leftovers() == [".1.0.0.origin.json"]


def test_a_name_is_downloaded_from_a_registry(served):
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


def test_a_manifest_from_outside_is_checked(served):
    def escape(data):
        body = json.loads(data)
        body["objects"][0]["path"] = "../../../escape"
        return json.dumps(body).encode()

    for change in (escape, lambda _: b"[" * 10_000, lambda _: b"\xff", lambda data: data[:-20]):
        served.server.faults[:] = [Fault(path="manifest.json", change=change)]
        with pytest.raises(ManifestError, match=r"http://.*manifest\.json"):
            quickly(served.url)
    assert installed_versions(MINI) == []


def test_other_bytes_under_the_same_version_are_refused(served, reseal, mini_folder_there):
    reseal(mini_folder_there, lambda body: body.update(description="another"))
    here = orlog.load_dataset(mini_folder_there).digest
    with pytest.raises(IntegrityError, match="a version never changes"):
        orlog.load_dataset(served.url)
    assert orlog.load_dataset(mini_folder_there).digest == here


@pytest.fixture
def mini_folder_there(built_mini):
    """Return a copy of the small dataset in this test's home, beside a served one."""
    folder = datasets_folder() / MINI / "1.0.0"
    shutil.copytree(built_mini, folder)
    return folder


def test_the_lock_holds_for_names_and_urls(served, tmp_path, monkeypatch):
    pin = LockedDataset(version="1.0.0", digest="sha256:" + "0" * 64)
    write_lock(tmp_path / "orlog.lock", {MINI: pin})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LockError, match="orlog lock --update"):
        orlog.load_dataset(served.url)
    with pytest.raises(NotFoundError, match=r"lab has 1\.0\.0 of it"):
        download_dataset(MINI)
    assert installed_versions(MINI) == []


def download_in_child(url):
    """Download in a process of its own, slowly."""
    download_version(source_of_url(url), TransferOptions(limiter=Limiter(4_000_000)))


def test_eight_processes_fetch_every_byte_once(served):
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
def test_a_download_that_is_killed_at_any_instant_goes_on(served):
    """Killed for real, again and again, until one comes to its end; then once more from the start."""
    places = datasets_folder()

    def work(step):
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


def test_what_a_killed_download_left_is_read_again_before_it_is_used(served):
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


def damage(folder):
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


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_repair_brings_what_is_damaged_and_nothing_else(served):
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
def test_a_damaged_or_missing_manifest_is_brought_again():
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


def test_another_manifest_is_not_taken_for_a_damaged_one(served, reseal):
    folder = download_dataset(MINI)
    reseal(served.registry / MINI / "1.0.0", lambda body: body.update(description="another"))
    (folder / "manifest.json").write_text("{", "utf-8")
    with pytest.raises(IntegrityError, match="was downloaded; nothing was changed"):
        repair_dataset(folder)
    assert (folder / "manifest.json").read_text("utf-8") == "{"


@pytest.mark.scaled
@pytest.mark.slow
@pytest.mark.usefixtures("served")
def test_a_repair_that_is_killed_at_any_instant_goes_on():
    folder, places = download_dataset(MINI), datasets_folder()

    def work(step):
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
def test_a_registry_that_does_not_answer_ends_the_search_unless_the_digest_is_known(built_mini, monkeypatch):
    monkeypatch.setattr("orlog.datasets.download.sources.read_small", quick_read_small)
    add_registry("first", "http://127.0.0.1:9", first=True)
    with pytest.raises(TransferError, match="registry first does not answer"):
        download_dataset(MINI)
    digest = orlog.load_dataset(built_mini).digest
    assert download_dataset(f"{MINI}@{digest}").is_dir()


def quick_read_small(url, limit, **_):
    return read_small(url, limit, patience=QUICK)


def test_a_registry_with_a_key_refuses_what_is_unsigned_altered_or_older(served, built_mini, tmp_path, monkeypatch):
    monkeypatch.setattr("orlog.datasets.download.sources.PAUSE", 0.0)
    public = new_key(tmp_path / "lab.key")
    new_key(tmp_path / "other.key")
    remove_registry("lab")
    add_registry("lab", served.server.url, keys=(public,))
    with pytest.raises(SignatureError):
        download_dataset(MINI)

    def signer(key):
        return lambda data, kind: sign(data, kind, tmp_path / key)

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


# --- what the origin says of it


def downloaded(name=MINI):
    folder = download_dataset(name)
    return folder, read_manifest(folder / "manifest.json")


@pytest.mark.parametrize("by_name", [True, False])
def test_an_origin_that_offers_other_data_is_told(served, reseal, by_name):
    folder, manifest = downloaded(MINI if by_name else served.url)
    path = reseal(served.registry / MINI / "1.0.0", lambda body: body.update(description="other"))
    other = read_manifest(path)
    index_path = served.registry / "index.json"
    index = json.loads(index_path.read_text())
    index["serial"] += 1
    index["datasets"][MINI]["1.0.0"]["digest"] = other.digest
    index_path.write_text(json.dumps(index))
    found = confirm_version(folder, manifest)
    assert found.state == "other"
    assert f"offers {other.digest}" in found.text
    del index["datasets"][MINI]
    index["serial"] += 1
    index_path.write_text(json.dumps(index))
    if by_name:
        assert "does not list it any more" in confirm_version(folder, manifest).text


def test_an_origin_that_does_not_answer_is_no_fault_and_no_long_wait(served):
    assert BRIEF.attempts == 1
    folder, manifest = downloaded()
    served.server.faults.append(Fault(path="index.json", status=503))
    found = confirm_version(folder, manifest)
    assert found.state == "unknown"
    assert "does not answer" in found.text
    remove_registry("lab")
    assert "not known any more" in confirm_version(folder, manifest).text


# --- many small objects


def here():
    return datasets_folder() / "pointmaze/umaze-mini-v1" / "2.0.0"


@pytest.fixture
def url(tmp_path, built_mini):
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
                path=path.relative_to(folder).as_posix(), size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
            )
        )
    objects.sort(key=lambda item: item.path)
    assert {item.size_bytes < SMALL_BYTES for item in objects} == {False, True}
    changed = msgspec.structs.replace(manifest, objects=objects, version="2.0.0")
    (folder / MANIFEST_FILE).write_text(changed.to_json(), "utf-8")
    with FileServer(folder) as server:
        yield server.url


def check(folder):
    """Compare every byte of a version with its manifest, and look at what lies beside it."""
    check_bytes(folder)
    assert not download_folder(folder).exists()


def check_bytes(folder):
    objects = read_manifest(folder / MANIFEST_FILE).objects
    assert len(objects) > MANY
    for item in objects:
        assert hashlib.sha256((folder / item.path).read_bytes()).hexdigest() == item.sha256


def test_everything_is_synced_before_a_version_appears(url, monkeypatch):
    synced = set()

    def sync(descriptor):
        synced.add(os.fstat(descriptor).st_ino)

    def put(folder, destination):
        unsynced = [path for path in folder.rglob("*") if path.stat().st_ino not in synced]
        assert unsynced == []
        put_new(folder, destination)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr("orlog.datasets.recording.finishing.put_new", put)
    check(download_version(source_of_url(url)))


def test_parts_that_never_reached_the_disk_are_downloaded_again(url):
    """After a loss of power a file may have its length, and zeros for bytes."""
    source = source_of_url(url)
    folder = download_folder(here())
    folder.mkdir(parents=True)
    small = [item for item in source.manifest.objects if item.size_bytes == 200]
    for item in small[:50]:
        (folder / f"{item.sha256}.part").write_bytes(bytes(item.size_bytes))
    check(download_version(source))
