"""Fixtures for the datasets room: manifests and stores changed as by one who can make digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Reseal: TypeAlias = Callable[[Path, Callable[[dict[str, Any]], object]], Path]
Replace: TypeAlias = Callable[[Path, str, bytes], None]


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
