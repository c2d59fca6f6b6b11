"""Fixtures for tests of publishing, taken in with `pytest_plugins`: variants of a version, keys."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orlog.datasets.publish.publish import Sign
from orlog.manifests import signatures
from orlog.manifests.manifest import read_manifest
from orlog.manifests.signatures import new_key
from tests.publishing import OWN_PLACE, SOME


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def variant(built_mini: Path, tmp_path: Path, reseal: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that copies the small dataset with another manifest."""

    def make(folder: str, **changes: Any) -> Path:
        copy = shutil.copytree(built_mini, tmp_path / folder)
        reseal(copy, lambda body: body.update(changes))
        return copy

    return make


@pytest.fixture
def own(variant: Callable[..., Path]) -> Path:
    """Return a version that lies at OWN_PLACE: what ships with orlog has one meaning only."""
    folder = variant("own", version=OWN_PLACE.rpartition("/")[2])
    (folder / "manifest.json").write_text(read_manifest(folder / "manifest.json").to_json())
    return folder


@pytest.fixture
def other(variant: Callable[..., Path], replace_object: Callable[..., None]) -> Path:
    """Return the same version with other bytes, and the digest that fits them."""
    folder = variant("other", version=OWN_PLACE.rpartition("/")[2])
    replace_object(folder, SOME, b"other bytes")
    return folder


@pytest.fixture(scope="session")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a private key."""
    path = tmp_path_factory.mktemp("keys") / "lab.key"
    new_key(path)
    return path


@pytest.fixture(scope="session")
def sign(key_file: Path) -> Sign:
    """Return what signs with the key."""
    return functools.partial(signatures.sign, key_file=key_file)
