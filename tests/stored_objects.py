"""What a folder of columns holds, as manifests list it."""

from __future__ import annotations

from pathlib import Path

from orlog.base.files import hash_file, list_files
from orlog.manifests.manifest import StoredObject


def make_objects(folder: Path) -> list[StoredObject]:
    """Return the objects of a folder that was just written, sorted by path."""
    return [
        StoredObject(path=path, size_bytes=file.stat().st_size, sha256=hash_file(file))
        for path, file in list_files(folder)
    ]
