"""Checks that a name and version mean one digest only, when a version enters a home or registry.

What a name and version mean is known from the homes of this machine, which hold whole versions or
parts, from what ships with orlog, and from `orlog.lock`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from orlog.datasets.home.folders import dataset_folders, partial_folder, stored_versions
from orlog.errors import FormatVersionError, IntegrityError, VersionExistsError
from orlog.manifests.index import ForeignEntry
from orlog.manifests.lock import find_lock, read_lock
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, read_manifest
from orlog.manifests.names import newest_first, version_parts
from orlog.manifests.shipped import listed_versions, recorded_manifest


def known_manifests(name: str, version: str, *, shipped: bool = True) -> Iterator[tuple[str, Manifest]]:
    """Yield (where a version is known from, its manifest); unreadable manifests are skipped."""
    for root in dataset_folders():
        folder = root / name / version
        for place in (folder, partial_folder(folder)):
            with contextlib.suppress(IntegrityError, FormatVersionError):
                yield str(place), read_manifest(place / MANIFEST_FILE)
    recorded = recorded_manifest(name, version) if shipped else None
    if recorded is not None:
        yield "what ships with orlog", recorded


def check_unused(name: str, version: str, *, is_listed: bool = False) -> None:
    """Refuse a name and version that are already in use, before new data are written for them.

    `is_listed` says that the data are those of the files that orlog lists under them.
    """
    for where, known in known_manifests(name, version):
        raise VersionExistsError(
            f"{name}@{version} is already {known.digest} ({where}), and a version never changes",
            free=free_version(name),
        )
    entry = None if is_listed else _shipped_file(name, version)
    if entry is not None:
        raise VersionExistsError(
            f"{name}@{version} is already the file {entry.place}, which orlog lists, and a version "
            "never changes; give another name or version."
        )


def free_version(name: str) -> str:
    """Return the next version of a name after those that are here or that orlog knows, as NAME@VERSION."""
    major, minor, _ = max(
        version_parts(version)[0] for version in (*stored_versions(name), *listed_versions(name), "1.0.0")
    )
    return f"{name}@{major}.{minor + 1}.0"


def check_unchanged(manifest: Manifest, *, shipped: bool = True) -> None:
    """Refuse a version whose name and version mean other bytes on this machine, or, if asked, as `shipped`."""
    for where, digest in _others(manifest, shipped=shipped):
        raise VersionExistsError(
            f"{manifest.name}@{manifest.version}: this is {manifest.digest}, but {where} has "
            f"it as {digest}, and a version never changes; delete the other one first, or store this one "
            f"under another version: orlog save {manifest.name}@{manifest.version} {free_version(manifest.name)}"
        )


def check_offered(manifest: Manifest) -> None:
    """Refuse a version from elsewhere whose name and version mean other bytes on this machine.

    Raises IntegrityError if they do.
    """
    for where, digest in _others(manifest, shipped=True):
        raise IntegrityError(
            f"{manifest.name}@{manifest.version}: {manifest.digest} is offered, but {where} "
            f"has it as {digest}, and a version never changes; ask who published it, or move "
            "the other one away.",
            expected=digest,
            found=manifest.digest,
        )


def check_linked(name: str, version: str, entry: ForeignEntry) -> None:
    """Refuse to list a file under a name and version that mean something else on this machine.

    Raises VersionExistsError if they do.
    """
    file = _shipped_file(name, version)
    if file is not None and _bytes_of(file) != _bytes_of(entry):
        raise VersionExistsError(
            f"{name}@{version} is already the file {file.place}, which orlog lists, and a version "
            "never changes; link the file under another name or version."
        )
    for where, known in known_manifests(name, version):
        origin = known.lineage[0] if known.lineage else None
        if origin is None or not (
            origin.digest == f"sha256:{entry.sha256}"
            or origin.operation.startswith(f"read {entry.format} from {entry.place}")
        ):
            raise VersionExistsError(
                f"{name}@{version} is already {known.digest} ({where}), which was not read from "
                f"{entry.place}, and a version never changes; link the file under another version."
            )


def _bytes_of(entry: ForeignEntry) -> list[tuple[str, str | None]]:
    """Return what says which files are meant."""
    return [(file.url, file.sha256) for file in entry.each]


def _others(manifest: Manifest, *, shipped: bool) -> Iterator[tuple[str, str]]:
    """Yield what else a manifest's name and version mean: where, and the digest or file."""
    name, version = manifest.name, manifest.version
    for where, known in known_manifests(name, version, shipped=shipped):
        if known.digest != manifest.digest:
            yield where, known.digest
    entry = _shipped_file(name, version)
    operation = manifest.lineage[0].operation if manifest.lineage else ""
    if entry is not None and not operation.startswith(f"read {entry.format} from {entry.place}"):
        yield "what ships with orlog", f"the file {entry.place}"
    path = find_lock()
    pin = read_lock(path).get(name) if path is not None and path.exists() else None
    if pin is not None and pin.version == version and pin.digest != manifest.digest:
        yield str(path), pin.digest


def _shipped_file(name: str, version: str) -> ForeignEntry | None:
    """Return the foreign file that orlog itself lists under a name and version, or None.

    A file with a checksum was listed under earlier versions too, by earlier releases.
    """
    listed = listed_versions(name)
    if version in listed:
        return listed[version]
    newest = newest_first([*listed, version])[0]
    return listed[newest] if newest != version and listed[newest].sha256 else None
