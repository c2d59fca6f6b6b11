"""Which objects of a version are here, if only some were downloaded.

    $ORLOG_HOME/datasets/NAME/.VERSION.partial/     manifest.json and the objects
                                                partial.json, which lists them

The folder's name is hidden, so code that does not look for parts of versions never sees one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Literal

import msgspec

from orlog.base.files import storage_errors, sync, write_durably
from orlog.datasets.home.folders import dataset_folders
from orlog.errors import ManifestError
from orlog.manifests.documents import read_json_file
from orlog.manifests.manifest import Manifest, StoredObject
from orlog.manifests.names import is_version, newest_first

PARTIAL_FILE = "partial.json"


class PartialRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is here of a version.

    Attributes:
        digest: Digest of the version's manifest.
        objects: Paths of the objects that are here.
    """

    partial_version: Literal[1] = 1
    digest: str
    objects: list[str]


def partial_folder(folder: Path) -> Path:
    """Return where a part of a version lies, next to the version's own folder."""
    return folder.with_name(f".{folder.name}.partial")


def version_folder_of(folder: Path) -> Path:
    """Return the version's own folder, given that folder or the one of its part."""
    if is_partial(folder):
        return folder.with_name(folder.name.removeprefix(".").removesuffix(".partial"))
    return folder


def is_partial(folder: Path) -> bool:
    """Return whether a folder's name is that of a part of a version."""
    return folder.name.startswith(".") and folder.name.endswith(".partial")


def partial_names() -> list[str]:
    """Return the names of all datasets of which a part of a version is here, sorted."""
    names = set()
    for root in dataset_folders():
        for folder, below, _ in os.walk(root):
            places = [Path(folder, one) for one in below]
            if any(is_partial(one) and (one / PARTIAL_FILE).is_file() for one in places):
                names.add(Path(folder).relative_to(root).as_posix())
            below[:] = [one for one in below if not (one.startswith(".") or is_version(one))]
    return sorted(names)


def partial_versions(name: str) -> dict[str, Path]:
    """Return the folders of the versions of which a part is here, newest first."""
    found: dict[str, Path] = {}
    for root in reversed(dataset_folders()):
        for record in (root / name).glob(f".*.partial/{PARTIAL_FILE}"):
            version = version_folder_of(record.parent).name
            if is_version(version):
                found[version] = record.parent
    return {version: found[version] for version in newest_first(found)}


def read_partial(folder: Path, manifest: Manifest) -> PartialRecord | None:
    """Return what is here of the version in a folder; None if it is whole.

    Raises ManifestError if the record is malformed, or of another version; FormatVersionError if it was
    written by a newer orlog.
    """
    path = folder / PARTIAL_FILE
    if not (is_partial(folder) and path.is_file()):
        return None
    repair = "remove the folder and download again"
    record = read_json_file(path, PartialRecord, version=("partial_version", 1), repair=repair)
    unknown = set(record.objects) - {item.path for item in manifest.objects}
    if record.digest != manifest.digest or unknown:
        raise ManifestError(
            f"{path}: not a record of this manifest; {repair}.",
            file=str(path),
            expected=manifest.digest,
            found=record.digest,
        )
    return record


def write_partial(folder: Path, record: PartialRecord) -> None:
    """Record what is here, in one step.

    Raises StorageError if the disk cannot be written.
    """
    # Written next to the folder, so that a process that is killed leaves nothing in it.
    unfinished = folder.with_name(f"{folder.name}.record")
    with storage_errors(unfinished):
        write_durably(unfinished, msgspec.json.encode(record))
        unfinished.replace(folder / PARTIAL_FILE)
        sync(folder)


def present_objects(folder: Path, manifest: Manifest) -> list[StoredObject]:
    """Return the objects that the folder should have: all, unless it holds a part of a version.

    Raises as `read_partial` does.
    """
    record = read_partial(folder, manifest)
    if record is None:
        return manifest.objects
    here = set(record.objects)
    return [item for item in manifest.objects if item.path in here]


def is_whole(folder: Path, manifest: Manifest) -> bool:
    """Return whether every object of the version is here, according to the record.

    Raises as `read_partial` does.
    """
    return len(present_objects(folder, manifest)) == len(manifest.objects)


def how_much(folder: Path, manifest: Manifest) -> str:
    """Return a text that says whether the whole version is here, or how much of it.

    Raises as `read_partial` does.
    """
    if is_whole(folder, manifest):
        return "here"
    present, total = len(present_objects(folder, manifest)), len(manifest.objects)
    return f"a part is here, {present} of {total} files"


def files_of_part(folder: Path, manifest: Manifest) -> dict[str, Path]:
    """Return the files of a part that may be objects of the version, by SHA-256, unchecked."""
    if not is_partial(folder) or not folder.is_dir():
        return {}
    return {
        item.sha256: folder / item.path
        for item in manifest.objects
        if (folder / item.path).is_file()
    }


def discard_part(folder: Path) -> None:
    """Remove a version's part once the version is whole; files that stay are leftovers."""
    with contextlib.suppress(OSError):
        # The record is removed first: without it, nothing takes the rest for a part.
        (folder / PARTIAL_FILE).unlink()
        sync(folder)
    shutil.rmtree(folder, ignore_errors=True)
