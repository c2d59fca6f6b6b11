"""Files that ship with orlog: recorded manifests, reference returns and baselines."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from orlog.manifests.index import (
    Index,
    index_from_json,
)
from orlog.manifests.manifest import (
    Manifest,
    read_manifest,
)
from orlog.manifests.names import is_version, newest_first

__all__ = [
    "SHIPPED",
    "recorded_folder",
    "recorded_manifest",
    "recorded_manifests",
    "records_folder",
    "shipped_index",
    "shipped_names",
]


def records_folder() -> Path:
    """Return the folder of all recorded files that ship: manifests, references, baselines."""
    return Path(__file__).with_name("recorded")


def recorded_folder(name: str) -> Path:
    """Return the folder of one dataset's recorded manifests and baselines."""
    return records_folder() / name


def recorded_manifest(name: str, version: str = "") -> Manifest | None:
    """Return a dataset's manifest that ships with orlog; None if there is none.

    Without a version, it is that of the newest version.
    """
    if not version:
        stems = [path.stem for path in recorded_folder(name).glob("*.json")]
        version = next(iter(newest_first(filter(is_version, stems))), "")
    path = recorded_folder(name) / f"{version}.json"
    return _read_shipped(path, path.stat().st_mtime_ns) if path.is_file() else None


def recorded_manifests() -> Iterator[Manifest]:
    """Yield every manifest that ships with orlog."""
    for path in sorted(records_folder().rglob("*.json")):
        if is_version(path.stem):
            yield _read_shipped(path, path.stat().st_mtime_ns)


@functools.cache
def _read_shipped(path: Path, _changed: int) -> Manifest:
    """Return a manifest, read again once its file has changed."""
    return read_manifest(path)


# D4RL's 183 datasets: 118 with a published checksum, and 65 whose first download is trusted.
# The others are made by `write_catalogue.py`.
SHIPPED = ("d4rl", "dsrl", "minari", "neorl2", "ogbench", "ogmarl", "rlds", "robomimic")


@functools.cache
def shipped_index(name: str) -> Index:
    """Return the index of one of the registries that ship with orlog."""
    path = records_folder() / "foreign" / f"{name}.json"
    return index_from_json(path.read_bytes(), str(path))


def shipped_names() -> set[str]:
    """Return the names of all third-party datasets that orlog lists."""
    return {name for one in SHIPPED for name in shipped_index(one).foreign}
