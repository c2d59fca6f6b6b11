"""Publishing into folders, memory, S3 and the Hub: whole, once, or an error, also killed at any instant."""

import functools
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import fsspec
import numpy as np
import pytest

import orlog
from orlog import download_dataset, publish_dataset
from orlog.datasets.download import sources
from orlog.datasets.download.sources import find_source
from orlog.datasets.home.registries import add_registry
from orlog.datasets.publish import targets
from orlog.errors import (
    IntegrityError,
    MissingExtraError,
    NotFoundError,
    StorageError,
    TransferError,
    VersionExistsError,
)
from orlog.manifests.index import index_from_json
from orlog.manifests.manifest import read_manifest
from orlog.manifests.names import parse_name
from orlog.manifests.signatures import public_key
from tests.hub_server import READ_TOKEN, WRITE_TOKEN, HubServer
from tests.kills import killed_at
from tests.levels import THOROUGH
from tests.publishing import MINI, OWN_PLACE, PLACE, SOME, assert_signed, at_once, index_of, tree

pytest_plugins = ["tests.publishing_fixtures", "tests.s3_fixtures"]
# huggingface_hub 2.4.0 says it to its own client for HTTP.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

KILLS = 20
EACH = 1 if THOROUGH else 3  # of the instants, so many are one kill
HUB = "hf://datasets/lab/data"


class Place(NamedTuple):
    """A place to publish into: its address, what it holds by path, and what removes a file."""

    url: str
    held: Callable
    remove: Callable


@pytest.fixture(params=["folder", "memory", "s3", "hub"])
def place(request, registry):
    """Return an empty registry of each kind."""
    if request.param == "folder":
        return Place(str(registry), lambda: tree(registry), lambda path: (registry / path).unlink())
    if request.param == "hub":
        server = request.getfixturevalue("server")

        def remove(path):
            server.add_commit({name: data for name, data in server.files.items() if name != path})

        def held():
            beside = ("README.md", "card.svg", ".gitattributes", ".gitignore")
            return {path: data for path, data in server.files.items() if not path.endswith(beside)}

        return Place(HUB, held, remove)
    system, root = fsspec.filesystem("memory"), "/registry"
    if request.param == "s3":
        system, root = request.getfixturevalue("bucket"), "data/lab"
    else:
        system.store.clear()

    def held():
        system.invalidate_cache()
        return {path.removeprefix(f"{root}/"): system.cat(path) for path in system.find(root)}

    url = "s3://data/lab" if request.param == "s3" else "memory://registry"
    return Place(url, held, lambda path: system.rm_file(f"{root}/{path}"))


@pytest.fixture
def server(monkeypatch, tmp_path):
    """Return a Hub that huggingface_hub asks for the length of one test, with a token that writes."""
    import huggingface_hub
    from huggingface_hub import HfFileSystem, constants

    with HubServer() as started:
        template = f"{started.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", started.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
        HfFileSystem.clear_instance_cache()
        yield started
        HfFileSystem.clear_instance_cache()
        huggingface_hub.close_session()


@pytest.fixture
def sent(monkeypatch):
    """Return a list that the path of every object that is sent to a bucket is put in."""
    paths = []
    put = targets.Target.put

    def record(self, path, item, source, **options):
        paths.append(path)
        return put(self, path, item, source, **options)

    monkeypatch.setattr(targets.Target, "put", record)
    return paths


# --- what holds for every place -------------------------------------------------------------------


def version_in(files, folder):
    """Return the files of a version without its signature."""
    start = f"{folder}/"
    inside = {path.removeprefix(start): files[path] for path in files if path.startswith(start)}
    return {path: data for path, data in inside.items() if not path.endswith(".sig")}


def test_a_place_holds_a_registry_whose_versions_never_change(own, other, place, sign):
    told = []
    url = publish_dataset(own, f"{place.url}/", sign=sign, progress=lambda *one: told.append(one))
    assert url.endswith(OWN_PLACE)
    held = place.held()
    assert version_in(held, OWN_PLACE) == tree(own)
    assert_signed(held, sign)
    manifest = read_manifest(own / "manifest.json")
    assert told[-1] == (manifest.size_bytes, manifest.size_bytes)
    entry = index_from_json(held["index.json"], "test").entry(MINI, manifest.version)
    assert entry is not None
    assert (entry.digest, entry.size_bytes) == (manifest.digest, manifest.size_bytes)
    assert orlog.load_dataset(url).digest == manifest.digest
    assert publish_dataset(own, place.url, sign=sign) == url
    with pytest.raises(VersionExistsError, match=f"{manifest.digest}.*never changes"):
        publish_dataset(other, place.url, sign=sign)
    assert place.held() == held
    place.remove("index.json")
    place.remove("index.json.sig")
    publish_dataset(own, place.url, sign=sign)
    assert index_from_json(place.held()["index.json"], "test").serial == 1


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: data + b"x", lambda data: bytes([data[0] ^ 1]) + data[1:], None],
    ids=["short", "long", "altered", "missing"],
)
def test_damaged_bytes_are_never_published(mini_folder, place, damage):
    good = (mini_folder / SOME).read_bytes()
    (mini_folder / SOME).unlink()
    if damage is not None:
        (mini_folder / SOME).write_bytes(damage(good))
    with pytest.raises(IntegrityError, match=rf"{SOME}: expected.*run orlog verify") as caught:
        publish_dataset(mini_folder, place.url)
    assert caught.value.file == SOME
    for path in place.held():
        assert not path.endswith((SOME, "manifest.json", "index.json", "unfinished"))
    (mini_folder / SOME).write_bytes(good)
    publish_dataset(mini_folder, place.url)
    assert version_in(place.held(), PLACE) == tree(mini_folder)


@pytest.mark.parametrize("place", ["s3", "hub"], indirect=True)
def test_one_publisher_of_a_version_wins(own, other, place):
    """The second begins while the first sends; the same bytes may, other bytes may not."""
    refused = []

    def meanwhile(done, total):
        if done == total:
            publish_dataset(own, place.url)
        elif not refused:
            with pytest.raises(VersionExistsError, match="another publisher has begun") as caught:
                publish_dataset(other, place.url)
            refused.append(caught)

    publish_dataset(own, place.url, progress=meanwhile)
    assert refused
    held = place.held()
    assert index_from_json(held.pop("index.json"), "test").serial == 1
    assert held == {f"{OWN_PLACE}/{path}": data for path, data in tree(own).items()}


@pytest.mark.parametrize("place", ["s3", "hub"], indirect=True)
def test_an_index_that_changed_meanwhile_is_merged(variant, place, sign):
    first, *others = (variant(f"copy{number}", name=f"lab/d{number}-v1", objects=[]) for number in range(3))

    def overtaken(data, kind):
        if kind == "index" and others:
            publish_dataset(others.pop(), place.url, sign=sign)
        return sign(data, kind)

    publish_dataset(first, place.url, sign=overtaken)
    held = place.held()
    index = index_from_json(held["index.json"], "test")
    assert index.serial == len(index.datasets) == 3
    assert_signed(held, sign)


# --- folders ----------------------------------------------------------------------------------


def test_what_is_there_is_believed_only_by_its_content(built_mini, registry):
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


def test_errors_of_the_disk_are_said(built_mini, registry):
    registry.write_bytes(b"a file")
    with pytest.raises(StorageError, match="Not a directory"):
        publish_dataset(built_mini, str(registry))
    with pytest.raises(NotFoundError, match="is not there"):
        publish_dataset(registry.with_name("nothing"), str(registry))


def test_targets_that_nothing_writes(built_mini, monkeypatch):
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
        with pytest.raises(MissingExtraError, match=r'pip install "orlog\[remote\]"') as caught:
            publish_dataset(built_mini, f"{scheme}://datasets/user/data")
        assert caught.value.install == "orlog[remote]"


@pytest.mark.scaled
def test_killed_at_any_instant_it_goes_on_and_readers_see_all_of_each_version(
    built_mini, variant, registry, sign, key_file, monkeypatch
):
    """A second, signed version: all of it, or the first one alone, whose signatures stay valid."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(sources, "PAUSE", 0)
    publish_dataset(built_mini, str(registry), sign=sign)
    first = shutil.copytree(registry, registry.with_name("first"))
    second = variant("second", version="1.0.9")

    def work(_step=None):
        publish_dataset(second, str(registry), sign=sign, jobs=1)

    def again():
        shutil.rmtree(registry)
        shutil.copytree(first, registry)

    _, instants = killed_at(work, 0, registry)
    whole = tree(registry)
    new = {path: data for path, data in whole.items() if path.startswith(OWN_PLACE)}
    last = range(instants - 40, instants + 1)
    chosen = sorted({*np.random.default_rng(7).choice(instants - 41, KILLS, replace=False) + 1, *last})
    seen = {"first": 0, "second": 0}
    for instant in chosen[::-EACH]:
        again()
        assert killed_at(work, int(instant), registry)[0]
        there = tree(registry)
        if f"{OWN_PLACE}/manifest.json" in there:
            assert {path: there[path] for path in new} == new
        # A home that has seen the new index would rightly refuse the old one.
        monkeypatch.setenv("ORLOG_HOME", str(registry.with_name(f"home{instant}")))
        add_registry("lab", str(registry), keys=[public_key(key_file)])
        assert find_source(parse_name(f"{MINI}@1.0.0")).signed_by == public_key(key_file)
        try:
            assert find_source(parse_name(f"{MINI}@1.0.9")).signed_by == public_key(key_file)
            assert f"{OWN_PLACE}/manifest.json" in there
            seen["second"] += 1
        except NotFoundError:
            seen["first"] += 1
        work()
        assert tree(registry) == whole
    assert min(seen.values()) > 0, seen


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_of_two_with_other_bytes_one_wins(own, other, registry):
    wholes = {}
    for folder in (own, other):
        publish_dataset(folder, str(registry), audit=False)
        wholes[folder] = tree(registry)
        shutil.rmtree(registry)
    for folders in ((other, own), (own, other)):
        works = [functools.partial(publish_dataset, folder, str(registry), audit=False) for folder in folders]
        endings = at_once(*works)
        assert sorted(endings) == [0, 17]
        assert tree(registry) == wholes[folders[endings.index(0)]]
        shutil.rmtree(registry)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_all_that_publish_at_once_are_listed(variant, registry):
    folders = [variant(f"copy{number}", name=f"lab/d{number}-v1") for number in range(4)]
    works = [functools.partial(publish_dataset, folder, str(registry), audit=False) for folder in folders * 2]
    assert {*at_once(*works)} == {0}
    assert index_of(registry).serial == 4
    assert sorted(index_of(registry).datasets) == [f"lab/d{number}-v1" for number in range(4)]


# --- S3 -------------------------------------------------------------------------------------------


def bucket_tree(bucket):
    bucket.invalidate_cache()
    return {path.removeprefix("data/lab/"): bucket.cat(path) for path in bucket.find("data/lab")}


def test_s3_goes_on_from_what_it_can_vouch_for(built_mini, bucket, sent):
    def stop(done, total):
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish_dataset(built_mini, "s3://data/lab", jobs=2, progress=stop)
    held = bucket_tree(bucket)
    assert f"{PLACE}/.publishing" in held
    assert f"{PLACE}/manifest.json" not in held
    there = sorted(path for path in held if not path.endswith(".publishing"))
    altered, unchecked = there[:2]
    bucket.pipe_file(f"data/lab/{altered}", bytes(len(held[altered])))
    bucket.pipe_file(f"data/lab/{unchecked}", held[unchecked])
    sent.clear()
    publish_dataset(built_mini, "s3://data/lab")
    assert {*sent} & {*there} == {altered, unchecked}
    files = bucket_tree(bucket)
    assert files.pop("index.json")
    assert files == {f"{PLACE}/{path}": data for path, data in tree(built_mini).items()}


def test_s3_never_overwrites_a_manifest(own, other, bucket):
    """Even where somebody removed the claim of a publisher who had not given up."""

    def meanwhile(done, total):
        if done == total:
            bucket.rm_file(f"data/lab/{OWN_PLACE}/.publishing")
            publish_dataset(other, "s3://data/lab")

    with pytest.raises(VersionExistsError, match="never changes"):
        publish_dataset(own, "s3://data/lab", progress=meanwhile)
    held = bucket_tree(bucket)
    assert held[f"{OWN_PLACE}/manifest.json"] == read_manifest(other / "manifest.json").to_json().encode()
    assert index_from_json(held["index.json"], "test").serial == 1


def test_errors_of_s3_are_said(built_mini, bucket, monkeypatch):
    with pytest.raises(StorageError, match=r"s3://nowhere/lab/.*no such bucket or folder"):
        publish_dataset(built_mini, "s3://nowhere/lab")

    def denied(*_, **__):
        raise PermissionError("Access Denied")

    with monkeypatch.context() as patch:
        patch.setattr(targets.BucketTarget, "_call", denied)
        with pytest.raises(StorageError, match="Access Denied; no permission: check"):
            publish_dataset(built_mini, "s3://data/lab")
    assert bucket_tree(bucket) == {}


# --- the Hub --------------------------------------------------------------------------------------


def objects_of(folder):
    manifest = read_manifest(folder / "manifest.json")
    return {f"{manifest.name}/{manifest.version}/{item.path}" for item in manifest.objects}


@pytest.mark.parametrize("folder", ["/some/folder"])
def test_it_is_downloaded_by_url_by_name_and_over_http(folder, built_mini, server, monkeypatch, home):
    url = publish_dataset(built_mini, HUB + folder)
    web = f"{server.url}/datasets/lab/data/resolve/main{folder}"
    add_registry("hub", HUB + folder)
    digest = read_manifest(built_mini / "manifest.json").digest
    for number, name in enumerate((url, MINI, f"{web}/{PLACE}")):
        monkeypatch.setenv("ORLOG_HOME", str(home.with_name(f"home{number}")))
        if name == MINI:
            add_registry("hub", HUB + folder)
        stored = download_dataset(name)
        assert tree(stored) == tree(built_mini)
        assert orlog.load_dataset(stored).digest == digest
    monkeypatch.setenv("ORLOG_HOME", str(home.with_name("web")))
    add_registry("hub", web)
    assert tree(download_dataset(MINI)) == tree(built_mini)


def test_interrupted_at_each_commit_it_goes_on(built_mini, server, monkeypatch):
    monkeypatch.setattr(targets, "BATCH_FILES", 4)

    sent = []
    for allowed in range(40):

        def fail_later(count, allowed=allowed):
            if count > allowed:
                raise OSError("the network is down")

        server.before_commit = fail_later
        try:
            publish_dataset(built_mini, HUB)
            break
        except StorageError as error:
            assert "run the same command again" in str(error)  # noqa: PT017
        assert ("index.json" in server.files) <= (f"{PLACE}/manifest.json" in server.files)
        if f"{PLACE}/manifest.json" in server.files:
            assert objects_of(built_mini) <= server.files.keys()
        sent.append(sum(path in server.files for path in objects_of(built_mini)))
    objects = len(objects_of(built_mini))
    assert sent == sorted(sent)
    assert {0, 4, objects} <= set(sent)
    # Nothing is sent twice: a claim, batches, manifest, index, card.
    assert len(server.messages) == 4 + -(-objects // 4)
    assert not any(path.endswith(".publishing") for path in server.files)


def test_a_token_that_may_not_is_said(built_mini, server, monkeypatch):
    for token, status in ((READ_TOKEN, 403), ("hf_unknown", 401)):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(StorageError, match=rf"refuses the token \(HTTP {status}\); no permission"):
            publish_dataset(built_mini, HUB)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # what cannot be read is tried again
    with pytest.raises((TransferError, NotFoundError), match="lab/data"):
        download_dataset(f"{HUB}/{PLACE}")
    assert server.messages == []


def test_objects_that_the_hub_ignores_are_missed(mini_folder, server):
    server.add_commit({**server.files, ".gitignore": b"zarr.json"})
    with pytest.raises(StorageError, match=r"zarr\.json was sent.*\.gitignore"):
        publish_dataset(mini_folder, HUB)
    assert f"{PLACE}/manifest.json" not in server.files
    assert "index.json" not in server.files
    server.add_commit({**server.files, ".gitignore": b""})
    publish_dataset(mini_folder, HUB)
    assert f"{PLACE}/manifest.json" in server.files


def test_the_repository_shows_a_card_of_what_was_published_last(variant, built_mini, server):
    publish_dataset(built_mini, HUB)
    card = server.files["README.md"].decode()
    assert f"]({MINI}/card.svg)" in card
    assert f'orlog.load_dataset("{HUB}/{PLACE}")' in card
    assert server.files[f"{MINI}/card.svg"].startswith(b"<svg")
    publish_dataset(variant("newer", version="1.1.0"), HUB)
    assert "| version | 1.1.0" in server.files["README.md"].decode()
    publish_dataset(variant("older", version="1.0.5"), HUB)
    publish_dataset(variant("other", name="lab/other-v1"), HUB)
    root, own = (server.files[path].decode() for path in ("README.md", f"{MINI}/README.md"))
    assert "# lab/other-v1" in root
    assert f"- [{MINI}]({MINI}/README.md)" in root
    assert "| version | 1.1.0" in own
    before = server.newest
    publish_dataset(built_mini, HUB)
    assert server.newest == before


def test_a_card_that_a_person_wrote_stays(built_mini, server):
    written = b"---\nlicense: mit\n---\n# Our arm\n"
    server.add_commit({**server.files, "README.md": written})
    publish_dataset(built_mini, HUB)
    assert server.files["README.md"] == written
    assert b"Written by orlog" in server.files[f"{MINI}/README.md"]
