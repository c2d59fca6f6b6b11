"""Fixtures for the datasets room: stores changed as by one who can make digests, and a registry."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

from orlog.datasets.home.registries import add_registry
from orlog.datasets.publish.publish import publish_dataset
from tests.clocks import Clock
from tests.servers import FileServer

MINI = "pointmaze/umaze-mini-v1"

Reseal: TypeAlias = Callable[[Path, Callable[[dict[str, Any]], object]], Path]
Replace: TypeAlias = Callable[[Path, str, bytes], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let downloads wait by a clock that goes on only by what they wait."""
    clock = Clock()
    for module in ("http", "transfer"):
        monkeypatch.setattr(f"orlog.datasets.download.{module}.time", clock)
    return clock


@pytest.fixture
def reseal() -> Reseal:
    """Return a function that changes the manifest in a folder and makes its digest fit."""

    def change_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
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
def replace_object(reseal: Reseal) -> Replace:
    """Return a function that puts other bytes in an object's place, listed as if they belonged."""

    def replace(folder: Path, path: str, data: bytes) -> None:
        (folder / path).write_bytes(data)

        def change(body: dict[str, Any]) -> None:
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
def registry_folder(built_mini: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a registry that holds the small dataset; do not write to it."""
    folder = tmp_path_factory.mktemp("registry")
    publish_dataset(built_mini, str(folder))
    return folder


@pytest.fixture
def served(registry_folder: Path, tmp_path: Path, home: Path) -> Iterator[Served]:
    """Serve a copy of the registry, known on this machine as `lab`."""
    folder = tmp_path / "registry"
    shutil.copytree(registry_folder, folder)
    home.mkdir()
    with FileServer(folder) as server:
        add_registry("lab", server.url)
        yield Served(server, folder, f"{server.url}/{MINI}/1.0.0")
