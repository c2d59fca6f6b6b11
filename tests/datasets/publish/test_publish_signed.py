"""What stands in an index: versions after an audit, files of others, and only what a known key signed."""

import functools

import numpy as np
import pytest
from gymnasium.spaces import Box

import orlog
from orlog import publish_dataset
from orlog.datasets.download.sources import find_source
from orlog.datasets.home.registries import add_registry
from orlog.datasets.publish.publish import foreign_file_entry, link_foreign_file
from orlog.datasets.store import chunk_hashes
from orlog.errors import AuditError, SchemaError, SignatureError, VersionExistsError
from orlog.manifests import signatures
from orlog.manifests.index import IndexEntry
from orlog.manifests.names import parse_name
from orlog.manifests.signatures import check_signature, new_key, public_key
from tests.command_line import orlog as run
from tests.episodes import whole_episode
from tests.publishing import MINI, PLACE, assert_signed, index_of, tree

pytest_plugins = ["tests.publishing_fixtures"]


@pytest.fixture
def next_one(variant):
    """Return a second version."""
    return variant("next", version="1.1.0")


@pytest.fixture
def other_key(tmp_path):
    new_key(tmp_path / "other.key")
    return tmp_path / "other.key"


def signer(key_file):
    return functools.partial(signatures.sign, key_file=key_file)


def test_signatures_lie_beside_what_they_sign(built_mini, next_one, registry, sign):
    publish_dataset(built_mini, str(registry), sign=sign)
    files = tree(registry)
    assert_signed(files, sign)
    assert {path for path in files if path.endswith(".sig")} == {"index.json.sig", f"{PLACE}/manifest.json.sig"}
    with pytest.raises(SignatureError, match="publish with sign="):
        publish_dataset(next_one, str(registry))
    assert tree(registry) == files
    publish_dataset(built_mini, str(registry), sign=sign)
    assert tree(registry) == files
    publish_dataset(next_one, str(registry), sign=sign)
    assert_signed(tree(registry), sign)


@pytest.mark.parametrize("signature", ["old", "other key", "none", "malformed"])
def test_an_entry_that_somebody_slipped_in_is_not_signed(signature, built_mini, next_one, registry, sign, other_key):
    publish_dataset(built_mini, str(registry), sign=sign)
    index = index_of(registry)
    entry = IndexEntry(digest=f"sha256:{'ab' * 32}", size_bytes=1, episodes=1, steps=1)
    forged = type(index)(serial=2, datasets={**index.datasets, "lab/forged-v1": {"1.0.0": entry}})
    (registry / "index.json").write_bytes(forged.to_json())
    if signature == "other key":
        by_other = signer(other_key)(forged.to_json(), "index")
        (registry / "index.json.sig").write_bytes(by_other)
    elif signature == "none":
        (registry / "index.json.sig").unlink()
    elif signature == "malformed":
        (registry / "index.json.sig").write_bytes(b"{}")
    before = tree(registry)
    for folder in (built_mini, next_one):
        with pytest.raises(SignatureError, match=r"vouch for everything it lists.*trusted=.*sign_existing=True"):
            publish_dataset(folder, str(registry), sign=sign)
    assert tree(registry) == before
    if signature == "other key":
        publish_dataset(next_one, str(registry), sign=sign, trusted=[public_key(other_key)])
    else:
        publish_dataset(next_one, str(registry), sign=sign, sign_existing=True)
    assert_signed(tree(registry), sign)
    assert index_of(registry).serial == 3


def test_two_who_trust_each_other_sign_one_registry(built_mini, next_one, registry, sign, key_file, other_key):
    publish_dataset(built_mini, str(registry), sign=sign)
    with pytest.raises(SignatureError, match="trusted="):
        publish_dataset(next_one, str(registry), sign=signer(other_key))
    ours, theirs = public_key(key_file), public_key(other_key)
    publish_dataset(next_one, str(registry), sign=signer(other_key), trusted=[ours])
    add_registry("lab", str(registry), keys=[ours, theirs])
    for version, key in (("1.0.0", ours), ("1.1.0", theirs)):
        assert find_source(parse_name(f"{MINI}@{version}")).signed_by == key
    # What is published is signed again by who cannot read the signature that is there.
    publish_dataset(built_mini, str(registry), sign=signer(other_key))
    files = tree(registry)
    for key in (ours, theirs):
        path = f"{PLACE}/manifest.json"
        assert check_signature(files[path], "manifest", files[f"{path}.sig"], [key], path) == key


NAME = "lab/hopper-v2"
ENTRY = foreign_file_entry(url="https://data.example/a.hdf5", format="d4rl-hdf5")


@pytest.fixture
def bad():
    """Return a version with a reward that is not a number."""
    with orlog.DatasetWriter("lab/bad-v1", observation_space=Box(-1, 1, (2,)), action_space=Box(-1, 1, (1,))) as writer:
        writer.add_episode(
            whole_episode(np.eye(3, 2, dtype=np.float32), np.zeros((2, 1), np.float32), np.array([1.0, np.nan]))
        )
    return writer.folder


def test_wrong_data_are_not_published(bad, tmp_path):
    registry = tmp_path / "registry"
    with pytest.raises(AuditError, match=r"rewards \(episode 0, step 1\): 1 number is infinite"):
        orlog.publish_dataset(bad, registry)
    assert not (registry / "lab").exists()
    ended = run("publish", "lab/bad-v1", str(registry))
    assert (ended.returncode, "--no-audit" in ended.stderr) == (3, True)


def test_the_index_says_what_was_published_without_an_audit(bad, mini_folder, tmp_path):
    registry = tmp_path / "registry"
    assert run("publish", str(bad), str(registry), "--no-audit").returncode == 0
    orlog.publish_dataset(mini_folder, registry)
    index = index_of(registry)
    entry = index.entry("lab/bad-v1", "1.0.0")
    assert entry is not None
    assert entry.audit == "skipped"
    text = (registry / "index.json").read_text("utf-8")
    assert text.count('"audit": "skipped"') == text.count('"audit"') == 1
    # What is there already needs no audit.
    orlog.publish_dataset(bad, registry)


def test_what_has_no_hashes_of_its_chunks_is_published_when_asked_for_only(mini_folder, tmp_path, monkeypatch):
    registry, hashed = tmp_path / "registry", tmp_path / "hashed"
    monkeypatch.setattr(chunk_hashes, "LARGE_BYTES", 2**19)  # one of its files has more
    with pytest.raises(SchemaError) as refused:
        orlog.publish_dataset(mini_folder, registry)
    assert not (registry / "pointmaze").exists()
    text = str(refused.value)
    assert f"orlog save {mini_folder} FOLDER --chunk-hashes" in text
    command = ("save", str(mini_folder), str(hashed), "--chunk-hashes")
    assert run(*command).returncode == 0
    url = orlog.publish_dataset(hashed, registry)
    assert url.endswith("/1.0.1")
    assert run("publish", str(mini_folder), str(registry), "--no-hashes").returncode == 0
    orlog.publish_dataset(mini_folder, registry)  # it is there already
    assert index_of(registry).entry("pointmaze/umaze-mini-v1", "1.0.0") is not None
    assert "as it is, for downloads: hashes=False." in text


def test_files_and_versions_stand_beside_each_other(tmp_path, built_mini):
    folder = tmp_path / "registry"
    publish_dataset(built_mini, str(folder))
    assert link_foreign_file(str(folder), f"{NAME}@1.0.0", ENTRY) == f"file://{folder}"
    link_foreign_file(str(folder), f"{NAME}@1.0.0", ENTRY)
    link_foreign_file(str(folder), f"{NAME}@1.1.0", ENTRY)
    publish_dataset(built_mini, str(folder))
    index = index_of(folder)
    assert index.serial == 3
    assert list(index.datasets) == ["pointmaze/umaze-mini-v1"]
    assert index.foreign == {NAME: {"1.0.0": ENTRY, "1.1.0": ENTRY}}
    other = foreign_file_entry(url="https://data.example/b.hdf5", format="d4rl-hdf5")
    for name in (f"{NAME}@1.0.0", "pointmaze/umaze-mini-v1@1.0.0"):
        with pytest.raises(VersionExistsError):
            link_foreign_file(str(folder), name, other)
    assert index_of(folder) == index
