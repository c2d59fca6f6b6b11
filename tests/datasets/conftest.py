"""Fixtures for the datasets room: stores changed as by one who can make digests, and a registry."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from orlog import publish_dataset
from orlog.datasets.home.registries import add_registry
from tests.clocks import Clock
from tests.servers import FileServer

MINI = "pointmaze/umaze-mini-v1"


@pytest.fixture
def clock(monkeypatch):
    """Let downloads wait by a clock that goes on only by what they wait."""
    clock = Clock()
    for module in ("http", "transfer"):
        monkeypatch.setattr(f"orlog.datasets.download.{module}.time", clock)
    return clock


@pytest.fixture
def reseal():
    """Return a function that changes the manifest in a folder and makes its digest fit."""

    def change_manifest(folder, change):
        path = folder / "manifest.json"
        body = json.loads(path.read_text("utf-8"))
        change(body)
        body.pop("digest")
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        path.write_text(json.dumps({"digest": digest, **body}), "utf-8")
        return path

    return change_manifest


@pytest.fixture
def replace_object(reseal):
    """Return a function that puts other bytes in an object's place, listed as if they belonged."""

    def replace(folder, path, data):
        (folder / path).write_bytes(data)

        def change(body):
            (item,) = (item for item in body["objects"] if item["path"] == path)
            item.update(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

        reseal(folder, change)

    return replace


class Served(NamedTuple):
    """A registry on a server of this test, and the URL of the small dataset's folder in it."""

    server: FileServer
    registry: Path
    url: str


@pytest.fixture(scope="session")
def registry_folder(built_mini, tmp_path_factory):
    """Return a registry that holds the small dataset; do not write to it."""
    folder = tmp_path_factory.mktemp("registry")
    publish_dataset(built_mini, str(folder))
    return folder


@pytest.fixture
def served(registry_folder, tmp_path, home):
    """Serve a copy of the registry, known on this machine as `lab`."""
    folder = tmp_path / "registry"
    shutil.copytree(registry_folder, folder)
    home.mkdir()
    with FileServer(folder) as server:
        add_registry("lab", server.url)
        yield Served(server, folder, f"{server.url}/{MINI}/1.0.0")
