"""Fixtures for tests of publishing, taken in with `pytest_plugins`: variants of a version, keys."""

import functools
import shutil

import pytest

from orlog.manifests import signatures
from orlog.manifests.manifest import read_manifest
from orlog.manifests.signatures import new_key
from tests.publishing import OWN_PLACE, SOME


@pytest.fixture
def registry(tmp_path):
    return tmp_path / "registry"


@pytest.fixture
def variant(built_mini, tmp_path, reseal):
    """Return a function that copies the small dataset with another manifest."""

    def make(folder, **changes):
        copy = shutil.copytree(built_mini, tmp_path / folder)
        reseal(copy, lambda body: body.update(changes))
        return copy

    return make


@pytest.fixture
def own(variant):
    """Return a version that lies at OWN_PLACE: what ships with orlog has one meaning only."""
    folder = variant("own", version=OWN_PLACE.rpartition("/")[2])
    (folder / "manifest.json").write_text(read_manifest(folder / "manifest.json").to_json())
    return folder


@pytest.fixture
def other(variant, replace_object):
    """Return the same version with other bytes, and the digest that fits them."""
    folder = variant("other", version=OWN_PLACE.rpartition("/")[2])
    replace_object(folder, SOME, b"other bytes")
    return folder


@pytest.fixture(scope="session")
def key_file(tmp_path_factory):
    """Return a private key."""
    path = tmp_path_factory.mktemp("keys") / "lab.key"
    new_key(path)
    return path


@pytest.fixture(scope="session")
def sign(key_file):
    """Return what signs with the key."""
    return functools.partial(signatures.sign, key_file=key_file)
