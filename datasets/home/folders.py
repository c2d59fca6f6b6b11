"""Where datasets live on this machine: one folder per name and version.

    $ORLOG_HOME/datasets/pointmaze/umaze-v1/1.0.0/manifest.json
                                                  zarr.json, observations/, actions/, ...

A folder appears whole or not at all: it is written next to its place, made durable, and renamed.
A process that writes a version holds its lock, so a second one waits; an unfinished folder that it
then finds was left by a process that died.

ORLOG_SHARED names further homes, such as one that an administrator keeps for a group. Versions that
are not in the user's own home are looked for there; nothing is ever written to them. Equal files of
all versions and names are stored once, as hard links.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from orlog.base.files import home_folder
from orlog.errors import FormatVersionError, IntegrityError
from orlog.manifests.manifest import MANIFEST_FILE, StoredObject, read_manifest
from orlog.manifests.names import is_version, newest_first


def datasets_folder() -> Path:
    """Return `$ORLOG_HOME/datasets`; the folder is not created."""
    return home_folder() / "datasets"


def dataset_folders() -> list[Path]:
    """Return the folders in which datasets are looked for: the user's own first, then shared ones.

    ORLOG_SHARED lists homes, separated as in PATH; those that cannot be read are skipped.
    """
    shared = os.environ.get("ORLOG_SHARED", "").split(os.pathsep)
    homes = [Path(home).expanduser().absolute() / "datasets" for home in shared if home.strip()]
    return list(dict.fromkeys([datasets_folder(), *filter(_can_be_listed, homes)]))


def _can_be_listed(folder: Path) -> bool:
    try:
        return folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)
    except OSError:
        return False


def installed_names() -> list[str]:
    """Return the names of all datasets that are on this machine, sorted."""
    names = set()
    for root in dataset_folders():
        for folder, below, files in os.walk(root):
            below[:] = [name for name in below if not name.startswith(".")]
            if MANIFEST_FILE in files and is_version(Path(folder).name):
                below.clear()
                names.add(Path(folder).parent.relative_to(root).as_posix())
    return sorted(names)


def stored_versions(name: str) -> list[str]:
    """Return the versions whose folders are here, newest first; a manifest may be missing."""
    found: set[str] = set()
    for root in dataset_folders():
        with contextlib.suppress(OSError):
            found.update(path.name for path in (root / name).iterdir() if is_version(path.name))
    return newest_first(found)


def installed_versions(name: str) -> list[str]:
    """Return the versions of a dataset that are on this machine, newest first."""
    return [
        version
        for version in stored_versions(name)
        if _holds_manifest(version_folder(name, version))
    ]


def version_folder(name: str, version: str) -> Path:
    """Return the folder of a version; if it is not on this machine, where it would be put."""
    folders = [root / name / version for root in dataset_folders()]
    return next(filter(_holds_manifest, folders), folders[0])


def _holds_manifest(folder: Path) -> bool:
    try:
        return (folder / MANIFEST_FILE).is_file()
    except OSError:  # no permission to look into the folder
        return False


def share_objects(
    folder: Path, objects: Iterable[StoredObject], names: Iterable[str] | None = None
) -> int:
    """Replace files of a new version by links to equal files of others, or of some datasets; return the bytes saved.

    Files are compared byte by byte first, so damage to the others does not spread.
    """
    saved = 0
    ours: dict[str, list[Path]] = {}
    for item in objects:
        ours.setdefault(item.sha256, []).append(folder / item.path)
    for other, item in stored_objects(names):
        for path in ours.get(item.sha256, ()):
            with contextlib.suppress(OSError):
                saved += _share(path, other / item.path)
    return saved


def stored_objects(names: Iterable[str] | None = None) -> Iterator[tuple[Path, StoredObject]]:
    """Yield the objects of all versions on this machine, or of some datasets, each with its version's folder.

    If several homes hold a version, each counts. Manifests that cannot be read are skipped.
    """
    for name in installed_names() if names is None else names:
        for version in stored_versions(name):
            for root in dataset_folders():
                folder = root / name / version
                with contextlib.suppress(IntegrityError, FormatVersionError):
                    yield from (
                        (folder, item) for item in read_manifest(folder / MANIFEST_FILE).objects
                    )


def _share(path: Path, candidate: Path) -> int:
    """Replace a file by a link to `candidate` if they are equal; return the bytes saved."""
    if (
        path.samefile(candidate)
        or candidate.is_symlink()
        or not filecmp.cmp(path, candidate, shallow=False)
    ):
        return 0
    temporary = path.with_name(f".{path.name}.link")
    os.link(candidate, temporary)
    temporary.replace(path)
    return candidate.stat().st_size
