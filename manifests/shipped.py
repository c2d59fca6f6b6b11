"""Files that ship with orlog: recorded manifests, reference returns and baselines."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import msgspec

from orlog.manifests.index import ForeignEntry, Index, index_from_json
from orlog.manifests.manifest import Manifest, read_manifest
from orlog.manifests.names import DatasetName, is_version, newest_first


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


# D4RL's 183 datasets: 118 with a published checksum, and 65 whose first download is trusted; and 24
# files that D4RL replaced under the same names, as version 0.9.0. The others are made by
# `tools/write_catalogue.py`.
SHIPPED = (
    *("d4rl", "dsrl", "lerobot", "libero", "mimicgen", "minari"),
    *("neorl2", "ogbench", "ogmarl", "rlds", "robomimic"),
)


@functools.cache
def shipped_index(name: str) -> Index:
    """Return the index of one of the registries that ship with orlog, with superseded files."""
    index = _read_foreign(name)
    older = _read_foreign(f"{name}-superseded").foreign
    merged = {dataset: {**index.foreign[dataset], **versions} for dataset, versions in older.items()}
    return msgspec.structs.replace(index, foreign={**index.foreign, **merged})


def _read_foreign(name: str) -> Index:
    path = records_folder() / "foreign" / f"{name}.json"
    return index_from_json(path.read_bytes(), str(path)) if path.exists() else Index()


def shipped_names() -> set[str]:
    """Return the names of all third-party datasets that orlog lists."""
    return {name for registry in SHIPPED for name in shipped_index(registry).foreign}


def listed_versions(name: str) -> dict[str, ForeignEntry]:
    """Return the third-party files that ship under a name, by version."""
    registry = name.partition("/")[0]
    return dict(shipped_index(registry).foreign.get(name, {})) if registry in SHIPPED else {}


def known_files(sha256: str) -> list[DatasetName]:
    """Return the names and versions that a third-party file of this SHA-256 is listed under."""
    return [
        DatasetName(name, version)
        for registry in SHIPPED
        for name, versions in shipped_index(registry).foreign.items()
        for version, entry in versions.items()
        if sha256 in [file.sha256 for file in entry.each]
    ]


def superseded(sha256: str) -> str:
    """Return a sentence if a third-party file was replaced under its name; empty if not."""
    for dataset in known_files(sha256):
        newest = newest_first(listed_versions(dataset.name))[0]
        if dataset.version != newest:
            return (
                f"This is the file of {dataset}, which was replaced under the same name; {newest} holds "
                "other data, so scores do not compare."
            )
    return ""
