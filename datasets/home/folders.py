"""Where datasets live on this machine: one folder per name and version.

    $ORLOG_HOME/datasets/pointmaze/umaze-v1/1.0.0/manifest.json
                                                  zarr.json, observations/, actions/, ...

A folder appears whole or not at all: it is written beside its place, made durable, and renamed.
Who writes a version holds its lock, so a second process waits, and what it then finds under the
unfinished name was left by one that died.

ORLOG_SHARED names further homes, such as one that an administrator keeps for a group. What is not
in one's own is looked for there; nothing is ever written to them. Equal files of all versions and
names are kept once, as links to each other.
"""

from __future__ import annotations

import contextlib
import ctypes
import filecmp
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from orlog.errors import FormatVersionError, IntegrityError
from orlog.files import storage_errors, sync
from orlog.manifests.manifest import MANIFEST_FILE, StoredObject, read_manifest
from orlog.manifests.names import is_version, newest_first

__all__ = [
    "dataset_folders",
    "datasets_folder",
    "installed_names",
    "installed_versions",
    "publish",
    "publish_new",
    "share_objects",
    "sole_access",
    "stored_objects",
    "stored_versions",
    "unfinished_folder",
    "version_folder",
]


def datasets_folder() -> Path:
    """Return `$ORLOG_HOME/datasets`; ORLOG_HOME is `~/.cache/orlog` unless it is set.

    The folder is not made here.
    """
    home = os.environ.get("ORLOG_HOME")
    if home:
        return Path(home).expanduser().absolute() / "datasets"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "orlog" / "datasets"


def dataset_folders() -> list[Path]:
    """Return the folders that datasets are looked for in: one's own first, then shared ones.

    ORLOG_SHARED lists homes, separated as in PATH; those that cannot be read are passed over.
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
    """Return the versions whose folders are here, newest first, though a manifest may be missing."""
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
    """Return the folder that a version is in, or would be put in if it is not on this machine."""
    folders = [root / name / version for root in dataset_folders()]
    return next(filter(_holds_manifest, folders), folders[0])


def _holds_manifest(folder: Path) -> bool:
    try:
        return (folder / MANIFEST_FILE).is_file()
    except OSError:  # a folder that may not be looked into
        return False


@contextlib.contextmanager
def sole_access(destination: Path, *, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the only right to write `destination`; wait for it after one call of `on_wait`.

    Raises:
        StorageError: the folder around it cannot be written.
    """
    with storage_errors(destination.parent):
        destination.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(destination.with_name(f".{destination.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            on_wait()
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def unfinished_folder(
    destination: Path, *, on_wait: Callable[[], None] = lambda: None
) -> Iterator[Path]:
    """Hold the only right to write `destination`, and give an empty folder beside it.

    Waits while another process writes the same destination, after one call of `on_wait`. The
    folder is removed in the end, whatever happens, unless `publish` has renamed it.

    Raises:
        StorageError: the folder cannot be made.
    """
    with sole_access(destination, on_wait=on_wait):
        folder = destination.with_name(f".{destination.name}.unfinished")
        old = _replaced(destination)
        try:
            with storage_errors(folder):
                if old.exists() and not destination.exists():
                    old.rename(destination)
                shutil.rmtree(old, ignore_errors=True)
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, destination: Path) -> None:
    """Put a finished folder in its place, in one step; what was there before is removed.

    Call it inside `unfinished_folder` only. Where the system cannot swap two folders in one step
    (all but Linux), what was there is first moved aside, and a process that is killed right then
    leaves it there for the next writer to put back.

    Raises:
        StorageError: the folder cannot be renamed.
    """
    with storage_errors(destination):
        if destination.exists() and not _exchange(folder, destination):
            destination.rename(_replaced(destination))
            folder.rename(destination)
        elif not destination.exists():
            folder.rename(destination)
        sync(destination.parent)
    shutil.rmtree(_replaced(destination), ignore_errors=True)


def publish_new(folder: Path, destination: Path) -> None:
    """Put a finished folder in a place where nothing is, in one step.

    Raises:
        StorageError: something is there, or the folder cannot be renamed.
    """
    with storage_errors(destination):
        folder.rename(destination)
        sync(destination.parent)


def share_objects(folder: Path, objects: Iterable[StoredObject]) -> int:
    """Replace files of a new version by links to equal ones of any other; return the bytes.

    Files are compared byte by byte first, so damage elsewhere cannot come in.
    """
    saved = 0
    ours: dict[str, list[Path]] = {}
    for item in objects:
        ours.setdefault(item.sha256, []).append(folder / item.path)
    for other, item in stored_objects():
        for path in ours.get(item.sha256, ()):
            with contextlib.suppress(OSError):
                saved += _share(path, other / item.path)
    return saved


def stored_objects() -> Iterator[tuple[Path, StoredObject]]:
    """Yield the objects of all versions on this machine, each with the folder of its version.

    Where two layers have a version, both count. Manifests that cannot be read are passed over.
    """
    for name in installed_names():
        for version in stored_versions(name):
            for root in dataset_folders():
                folder = root / name / version
                with contextlib.suppress(IntegrityError, FormatVersionError):
                    yield from (
                        (folder, item) for item in read_manifest(folder / MANIFEST_FILE).objects
                    )


def _share(path: Path, candidate: Path) -> int:
    """Let a file be another name of an equal one; return the bytes that this saved."""
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


def _replaced(destination: Path) -> Path:
    return destination.with_name(f".{destination.name}.replaced")


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step (renameat2); return whether the system could."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
    code = library.renameat2(here, os.fsencode(first), here, os.fsencode(second), exchange)
    return bool(code == 0)
