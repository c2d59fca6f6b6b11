"""Where datasets live on this machine: one folder per name and version.

    $ORLOG_HOME/datasets/pointmaze/umaze-v1/1.0.0/manifest.json       all of a version
                                                  zarr.json, observations/, actions/, ...
                                            .1.0.0.partial/manifest.json    or a part of it
                                                           partial.json, which lists its objects

A folder appears whole or not at all: it is written next to its place, made durable, and renamed.
A process that writes a version holds its lock, so a second one waits; an unfinished folder that it
then finds was left by a process that died. The modification time of a version's folder says when it
was last opened.

ORLOG_SHARED names further homes, such as one that an administrator keeps for a group. Versions that
are not in the user's own home are looked for there; nothing is ever written to them. Equal files of
all versions and names are stored once, as hard links.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from orlog.base.files import home_folder, storage_errors, sync, write_durably
from orlog.errors import FormatVersionError, IntegrityError, ManifestError, NotFoundError, StorageError
from orlog.manifests.documents import read_json_file
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, StoredObject, read_manifest
from orlog.manifests.names import is_version, newest_first

PARTIAL_FILE = "partial.json"


def datasets_folder() -> Path:
    """Return `$ORLOG_HOME/datasets`; the folder is not created."""
    return home_folder() / "datasets"


def dataset_folders() -> list[Path]:
    """Return the folders in which datasets are looked for: the user's own first, then shared ones."""
    shared = os.environ.get("ORLOG_SHARED", "").split(os.pathsep)
    homes = [Path(home).expanduser().absolute() / "datasets" for home in shared if home.strip()]
    return list(dict.fromkeys([datasets_folder(), *filter(_can_be_listed, homes)]))


def _can_be_listed(folder: Path) -> bool:
    try:
        return folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)
    except OSError:
        return False


def name_folders(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the path in a home of each folder that may be a dataset's name, and the folders in it."""
    for folder, below, _ in os.walk(root):
        yield Path(folder).relative_to(root).as_posix(), [*below]
        below[:] = [name for name in below if not (name.startswith(".") or is_version(name))]


def installed_names() -> list[str]:
    """Return the names of all datasets that are on this machine, sorted."""
    names = {
        name
        for root in dataset_folders()
        for name, folders in name_folders(root)
        if any(is_version(folder) and _holds_manifest(root / name / folder) for folder in folders)
    }
    return sorted(names)


def stored_versions(name: str) -> list[str]:
    """Return the versions whose folders are here, newest first; a manifest may be missing."""
    versions: set[str] = set()
    for root in dataset_folders():
        with contextlib.suppress(OSError):
            versions.update(path.name for path in (root / name).iterdir() if is_version(path.name))
    return newest_first(versions)


def installed_versions(name: str) -> list[str]:
    """Return the versions of a dataset that are on this machine, newest first."""
    return [version for version in stored_versions(name) if _holds_manifest(version_folder(name, version))]


def version_folder(name: str, version: str) -> Path:
    """Return the folder of a version; if it is not on this machine, where it would be put."""
    folders = [root / name / version for root in dataset_folders()]
    return next(filter(_holds_manifest, folders), folders[0])


def _holds_manifest(folder: Path) -> bool:
    try:
        return (folder / MANIFEST_FILE).is_file()
    except OSError:  # no permission to look into the folder
        return False


def mark_used(folder: Path) -> None:
    """Mark a version, or a part of one, as used; call it before its files are read."""
    if str(folder).startswith(f"{datasets_folder()}{os.sep}"):
        with contextlib.suppress(OSError):
            os.utime(folder)


# --- equal files


def share_objects(folder: Path, objects: Iterable[StoredObject], names: Iterable[str] | None = None) -> int:
    """Replace files of a new version by links to equal files of others, or of some datasets; return the bytes saved."""
    saved = 0
    ours: dict[str, list[Path]] = {}
    for item in objects:
        ours.setdefault(item.sha256, []).append(folder / item.path)
    for other, item in stored_objects(names):
        candidate = other / item.path
        for path in ours.get(item.sha256, ()):
            with contextlib.suppress(OSError):
                if (
                    not path.samefile(candidate)
                    and not candidate.is_symlink()
                    and filecmp.cmp(path, candidate, shallow=False)
                ):
                    temporary = path.with_name(f".{path.name}.link")
                    os.link(candidate, temporary)
                    temporary.replace(path)
                    saved += item.size_bytes
    return saved


def stored_objects(names: Iterable[str] | None = None) -> Iterator[tuple[Path, StoredObject]]:
    """Yield the objects of all versions on this machine, or of some datasets, each with its version's folder."""
    for name in installed_names() if names is None else names:
        for version in stored_versions(name):
            for root in dataset_folders():
                folder = root / name / version
                with contextlib.suppress(IntegrityError, FormatVersionError):
                    yield from ((folder, item) for item in read_manifest(folder / MANIFEST_FILE).objects)


# --- parts of versions


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    partial_version: Literal[1] = 1
    digest: str
    objects: list[str]


def partial_folder(folder: Path) -> Path:
    """Return where a part of a version lies, next to the version's own folder."""
    return folder.with_name(f".{folder.name}.partial")


def is_partial(folder: Path) -> bool:
    """Return whether a folder's name is that of a part of a version."""
    return folder.name.startswith(".") and folder.name.endswith(".partial")


def version_folder_of(folder: Path) -> Path:
    """Return the version's own folder, given that folder or the one of its part."""
    if is_partial(folder):
        return folder.with_name(folder.name.removeprefix(".").removesuffix(".partial"))
    return folder


def partial_names() -> list[str]:
    """Return the names of all datasets of which a part of a version is here, sorted."""
    names = {
        name
        for root in dataset_folders()
        for name, folders in name_folders(root)
        for folder in folders
        if is_partial(Path(folder)) and (root / name / folder / PARTIAL_FILE).is_file()
    }
    return sorted(names)


def partial_versions(name: str) -> dict[str, Path]:
    """Return the folders of the versions of which a part is here, newest first."""
    folders: dict[str, Path] = {}
    for root in reversed(dataset_folders()):
        for record in (root / name).glob(f".*.partial/{PARTIAL_FILE}"):
            folders[version_folder_of(record.parent).name] = record.parent
    return {version: folders[version] for version in newest_first(filter(is_version, folders))}


def read_partial(folder: Path, manifest: Manifest) -> list[str] | None:
    """Return the paths of the objects that are here of the version in a folder; None if it is whole."""
    path = folder / PARTIAL_FILE
    if not (is_partial(folder) and path.is_file()):
        return None
    repair = "remove the folder and download again"
    record = read_json_file(path, _Part, version=("partial_version", 1), repair=repair)
    unknown = set(record.objects) - {item.path for item in manifest.objects}
    if record.digest != manifest.digest or unknown:
        raise ManifestError(
            f"{path}: not a record of this manifest; {repair}.",
            file=str(path),
            expected=manifest.digest,
            found=record.digest,
        )
    return record.objects


def write_partial(folder: Path, manifest: Manifest, objects: Iterable[str]) -> None:
    """Record in one step the paths of the objects that are here."""
    record = _Part(digest=manifest.digest, objects=sorted(objects))
    # Written next to the folder, so that a process that is killed leaves nothing in it.
    unfinished = folder.with_name(f"{folder.name}.record")
    with storage_errors(unfinished):
        write_durably(unfinished, msgspec.json.encode(record))
        unfinished.replace(folder / PARTIAL_FILE)
        sync(folder)


def present_objects(folder: Path, manifest: Manifest) -> list[StoredObject]:
    """Return the objects that the folder should have: all, unless it holds a part of a version."""
    here = read_partial(folder, manifest)
    if here is None:
        return manifest.objects
    paths = set(here)
    return [item for item in manifest.objects if item.path in paths]


def is_whole(folder: Path, manifest: Manifest) -> bool:
    """Return whether every object of the version is here, according to the record."""
    return len(present_objects(folder, manifest)) == len(manifest.objects)


def how_much(folder: Path, manifest: Manifest) -> str:
    """Return a text that says whether the whole version is here, or how much of it."""
    present, total = len(present_objects(folder, manifest)), len(manifest.objects)
    return "here" if present == total else f"a part is here, {present} of {total} files"


def discard_part(folder: Path) -> None:
    """Remove a version's part once the version is whole; files that stay are leftovers."""
    with contextlib.suppress(OSError):
        # The record is removed first: without it, nothing takes the rest for a part.
        (folder / PARTIAL_FILE).unlink()
        sync(folder)
    shutil.rmtree(folder, ignore_errors=True)


# --- versions that are deleted while they are read


class FolderSeen:
    """Remembers which folder was at a path, so that its deletion can be detected later.

    Versions are deleted, and put in their place, by renaming their folder. So if a file is missing,
    the folder may no longer be the one that was opened.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._identity = _identity(folder)

    def __reduce__(self) -> tuple[type[FolderSeen], tuple[Path]]:
        """Look again where it arrives: another machine numbers its disks as it likes."""
        return FolderSeen, (self.folder,)

    def check(self, cause: BaseException | None = None) -> None:
        """Raise NotFoundError, caused by `cause`, if the folder was deleted or replaced since."""
        if self._identity is None or _identity(self.folder) != self._identity:
            raise NotFoundError(
                f"{self.folder} is not there any more: the version was deleted while it was read; "
                "get it again (orlog download or orlog build), then open it again."
            ) from cause


@contextlib.contextmanager
def unless_deleted(folder: Path) -> Iterator[None]:
    """Turn an error of files inside into NotFoundError if the folder was deleted by then."""
    seen = FolderSeen(folder)
    try:
        yield
    except (IntegrityError, StorageError, FileNotFoundError) as error:
        seen.check(error)
        raise


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        # A part whose version is complete is removed file by file, its record first.
        if is_partial(folder):
            (folder / PARTIAL_FILE).stat()
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
