"""Publishing to and downloading from a server on loopback that speaks the Hugging Face Hub's API."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import orlog
from orlog.datasets.download.download import download_dataset
from orlog.datasets.download.sources import find_source
from orlog.datasets.home.origin import Source
from orlog.datasets.home.registries import add_registry
from orlog.datasets.publish import hub
from orlog.datasets.publish.publish import Sign, publish_dataset
from orlog.errors import (
    IntegrityError,
    NotFoundError,
    StorageError,
    TransferError,
    VersionExistsError,
)
from orlog.manifests.manifest import read_manifest
from orlog.manifests.names import parse_name
from orlog.manifests.signatures import public_key
from tests.hub_server import READ_TOKEN, WRITE_TOKEN, HubServer
from tests.publishing import MINI, OWN_PLACE, PLACE, SOME, assert_signed, tree

pytest_plugins = ["tests.publishing_fixtures"]
# huggingface_hub 2.4.0 says it to its own client for HTTP.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

TARGET = "hf://datasets/lab/data"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
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


def objects_of(folder: Path) -> set[str]:
    manifest = read_manifest(folder / "manifest.json")
    return {f"{manifest.name}/{manifest.version}/{item.path}" for item in manifest.objects}


def newest_version() -> str:
    """Return the newest version that a registry offers."""
    source = find_source(parse_name(MINI))
    assert isinstance(source, Source)
    return source.manifest.version


def test_the_hub_holds_a_registry_in_few_commits(built_mini: Path, server: HubServer) -> None:
    told: list[tuple[int, int]] = []
    url = publish_dataset(
        built_mini, TARGET, progress=lambda done, total: told.append((done, total))
    )
    assert url == f"{TARGET}/{PLACE}"
    files = {path: data for path, data in server.files.items() if path.startswith(PLACE)}
    assert files == {f"{PLACE}/{path}": data for path, data in tree(built_mini).items()}
    assert server.large  # some go in the commit and some before it
    assert len(server.large) < len(files)
    assert len(server.messages) == 5, server.messages  # claim, objects, manifest, index, card
    manifest = read_manifest(built_mini / "manifest.json")
    assert told[0] == (0, manifest.size_bytes)
    assert told[-1] == (manifest.size_bytes, manifest.size_bytes)
    before = server.newest
    assert publish_dataset(built_mini, TARGET) == url
    assert server.newest == before


@pytest.mark.parametrize("folder", ["", "/some/folder"])
def test_it_is_downloaded_by_url_by_name_and_over_http(
    folder: str, built_mini: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    url = publish_dataset(built_mini, TARGET + folder)
    web = f"{server.url}/datasets/lab/data/resolve/main{folder}"
    add_registry("hub", TARGET + folder)
    digest = read_manifest(built_mini / "manifest.json").digest
    for number, name in enumerate((url, MINI, f"{web}/{PLACE}")):
        monkeypatch.setenv("ORLOG_HOME", str(home.with_name(f"home{number}")))
        if name == MINI:
            add_registry("hub", TARGET + folder)
        stored = download_dataset(name)
        assert tree(stored) == tree(built_mini)
        assert orlog.load_dataset(stored).digest == digest
    monkeypatch.setenv("ORLOG_HOME", str(home.with_name("web")))
    add_registry("hub", web)
    assert tree(download_dataset(MINI)) == tree(built_mini)


def test_it_is_read_in_place_by_url_and_by_name(
    built_mini: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    url = publish_dataset(built_mini, TARGET)
    whole = orlog.load_dataset(built_mini)
    monkeypatch.setenv("ORLOG_HOME", str(home.with_name("reader")))
    add_registry("hub", TARGET, in_place=True)
    for ds in (orlog.load_dataset(url, in_place=True), orlog.load_dataset(MINI)):
        assert ds.in_place
        assert ds.digest == whole.digest
        np.testing.assert_array_equal(ds[1].actions, whole[1].actions)
    assert not list((home.with_name("reader") / "datasets").rglob("manifest.json"))
    before = len(server.requests)
    ds = orlog.load_dataset(MINI)
    np.testing.assert_array_equal(ds[1].actions, whole[1].actions)
    assert not any("c.0" in one for one in server.requests[before:])  # they are kept


def test_what_is_published_later_is_seen(
    built_mini: Path, variant: Callable[..., Path], server: HubServer, sign: Sign, key_file: Path
) -> None:
    """Also by a process that has read the registry before, whatever it keeps of listings."""
    add_registry("hub", TARGET, keys=[public_key(key_file)])
    publish_dataset(built_mini, TARGET, sign=sign)
    assert newest_version() == "1.0.0"
    for number in range(1, 4):
        version = f"1.{number}.0"
        publish_dataset(variant(version, version=version, objects=[]), TARGET, sign=sign)
        assert newest_version() == version
    assert_signed(server.files, sign)


def test_a_version_never_changes(own: Path, other: Path, server: HubServer) -> None:
    publish_dataset(own, TARGET)
    files = server.files
    with pytest.raises(VersionExistsError, match="never changes"):
        publish_dataset(other, TARGET)
    assert server.files == files


def test_a_second_publisher_is_refused_while_the_first_one_sends(
    own: Path, other: Path, server: HubServer
) -> None:
    refused: list[object] = []

    def meanwhile(done: int, total: int) -> None:
        if done == total:
            publish_dataset(own, TARGET)  # the same bytes may
        else:
            with pytest.raises(VersionExistsError, match="another publisher has begun") as caught:
                publish_dataset(other, TARGET)
            refused.append(caught)

    publish_dataset(own, TARGET, progress=meanwhile)
    assert len(refused) == 1
    assert json.loads(server.files["index.json"])["serial"] == 1
    assert not any(path.endswith(".publishing") for path in server.files)
    assert {path: server.files[path] for path in objects_of(own)} == {
        f"{OWN_PLACE}/{path}": data for path, data in tree(own).items() if path != "manifest.json"
    }


def test_of_two_that_commit_the_same_only_one_does(
    variant: Callable[..., Path], server: HubServer
) -> None:
    """Whenever the first one wants to commit, another comes before it."""
    folders = [variant(f"copy{n}", name=f"lab/d{n}-v1", objects=[]) for n in range(5)]

    def overtake(_: int) -> None:
        if folders and not is_nested:
            is_nested.append(True)
            publish_dataset(folders.pop(), TARGET)
            is_nested.clear()

    is_nested: list[bool] = []
    first = folders.pop()
    server.before_commit = overtake
    publish_dataset(first, TARGET)
    index = json.loads(server.files["index.json"])
    assert index["serial"] == len(index["datasets"]) == 5


def test_interrupted_at_each_commit_it_goes_on(
    built_mini: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "BATCH_FILES", 4)

    sent = []
    for allowed in range(40):

        def fail_later(count: int, allowed: int = allowed) -> None:
            if count > allowed:
                raise OSError("the network is down")

        server.before_commit = fail_later
        try:
            publish_dataset(built_mini, TARGET)
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


def test_a_token_that_may_not_is_said(
    built_mini: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token, status in ((READ_TOKEN, 403), ("hf_unknown", 401)):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(
            StorageError, match=rf"refuses the token \(HTTP {status}\); no permission"
        ):
            publish_dataset(built_mini, TARGET)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # what cannot be read is tried again
    with pytest.raises((TransferError, NotFoundError), match="lab/data"):
        download_dataset(f"{TARGET}/{PLACE}")
    assert server.messages == []


def test_a_repository_that_is_not_there_is_said(built_mini: Path, server: HubServer) -> None:
    with pytest.raises(NotFoundError, match=r"lab/nothing.*make it first"):
        publish_dataset(built_mini, "hf://datasets/lab/nothing")
    assert server.messages == []


def test_damaged_and_ignored_objects_are_never_published(
    mini_folder: Path, server: HubServer
) -> None:
    data = (mini_folder / SOME).read_bytes()
    (mini_folder / SOME).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(IntegrityError, match=SOME):
        publish_dataset(mini_folder, TARGET)
    (mini_folder / SOME).write_bytes(data)
    server.add_commit({**server.files, ".gitignore": b"zarr.json"})
    with pytest.raises(StorageError, match=r"zarr\.json was sent.*\.gitignore"):
        publish_dataset(mini_folder, TARGET)
    assert f"{PLACE}/manifest.json" not in server.files
    assert "index.json" not in server.files
    server.add_commit({**server.files, ".gitignore": b""})
    publish_dataset(mini_folder, TARGET)
    assert f"{PLACE}/manifest.json" in server.files


@pytest.mark.parametrize("kind", ["small", "large"])
def test_what_others_left_there_is_replaced(kind: str, built_mini: Path, server: HubServer) -> None:
    """It is known by its sum, however the Hub keeps it."""
    objects = read_manifest(built_mini / "manifest.json").objects
    item = (min if kind == "small" else max)(objects, key=lambda one: one.size_bytes)
    wrong = b"x" * item.size_bytes
    if kind == "large":
        server.large[hashlib.sha256(wrong).hexdigest()] = wrong
    server.add_commit({**server.files, f"{PLACE}/{item.path}": wrong})
    publish_dataset(built_mini, TARGET)
    assert server.files[f"{PLACE}/{item.path}"] == (built_mini / item.path).read_bytes()


def test_the_repository_shows_a_card_of_what_was_published_last(
    variant: Callable[..., Path], built_mini: Path, server: HubServer
) -> None:
    publish_dataset(built_mini, TARGET)
    card = server.files["README.md"].decode()
    assert f"]({MINI}/card.svg)" in card
    assert f'orlog.load_dataset("{TARGET}/{PLACE}")' in card
    assert server.files[f"{MINI}/card.svg"].startswith(b"<svg")
    publish_dataset(variant("newer", version="1.1.0"), TARGET)
    assert "| version | 1.1.0" in server.files["README.md"].decode()
    publish_dataset(variant("older", version="1.0.5"), TARGET)
    publish_dataset(variant("other", name="lab/other-v1"), TARGET)
    root, own = (server.files[path].decode() for path in ("README.md", f"{MINI}/README.md"))
    assert "# lab/other-v1" in root
    assert f"- [{MINI}]({MINI}/README.md)" in root
    assert "| version | 1.1.0" in own
    before = server.newest
    publish_dataset(built_mini, TARGET)
    assert server.newest == before


def test_a_card_that_a_person_wrote_stays(built_mini: Path, server: HubServer) -> None:
    written = b"---\nlicense: mit\n---\n# Our arm\n"
    server.add_commit({**server.files, "README.md": written})
    publish_dataset(built_mini, TARGET)
    assert server.files["README.md"] == written
    assert b"Written by orlog" in server.files[f"{MINI}/README.md"]
