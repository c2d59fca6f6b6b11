"""Signed registries: at each instant a reader with the key reads, and only known entries are signed."""

import functools

import pytest

from orlog import publish_dataset
from orlog.datasets.download.sources import find_source
from orlog.datasets.home.registries import add_registry
from orlog.errors import SignatureError
from orlog.manifests import signatures
from orlog.manifests.index import IndexEntry
from orlog.manifests.names import parse_name
from orlog.manifests.signatures import check_signature, new_key, public_key
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
