"""What is kept here of versions that are read in place: a folder for each, and a limit for all.

    $ORLOG_HOME/in-place/DIGEST/manifest.json, zarr.json, ..    metadata, whole and checked
                                observations/c.0.0               a sparse file with the chunks that were read

Nothing here is needed: what is removed is read again. ORLOG_CACHE limits how much is kept (`20G` by default, `0`
for as little as can be); the shards that were opened longest ago go first. Processes share it without locks,
since whoever reads a chunk asks its bytes whether they are right (`datasets/store/in_place.py`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from orlog.datasets.home.folders import datasets_folder
from orlog.errors import OrlogError
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, read_manifest
from orlog.manifests.names import bytes_of

LIMIT = "ORLOG_CACHE"
DEFAULT_LIMIT = "20G"
_BLOCK = 512  # bytes, in which the system counts what a file takes
_SHARE_BETWEEN_LOOKS = (
    0.02  # of the limit, which may be written before the folder is looked at again
)
_LEFT = 0.9  # of the limit, once something is removed
_lock = threading.Lock()
_written: dict[int, int] = {}  # since the folder was last looked at, by process


class Kept(NamedTuple):
    """What is kept of one version.

    Attributes:
        folder: Its folder.
        manifest: Its manifest.
        size_bytes: What it takes on the disk.
        used: When a shard of it was last opened, in seconds since 1970.
    """

    folder: Path
    manifest: Manifest
    size_bytes: int
    used: float


def in_place_folder() -> Path:
    """Return the folder of all versions that are read in place; it need not exist."""
    return datasets_folder().parent / "in-place"


def place_of(manifest: Manifest) -> Path:
    """Return the folder of a version that is read in place; it need not exist."""
    return in_place_folder() / manifest.digest.partition(":")[2]


def limit_bytes() -> int:
    """Return how much is kept at most.

    Raises ValueError if ORLOG_CACHE is no size.
    """
    text = os.environ.get(LIMIT, "") or DEFAULT_LIMIT
    try:
        return bytes_of(text)
    except ValueError:
        raise ValueError(
            f"{LIMIT} must be a size such as 500M or 20G, found {text!r:.40}."
        ) from None


def kept_versions() -> list[Kept]:
    """Return what is kept of each version, the one used last first."""
    found = []
    root = in_place_folder()
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        with contextlib.suppress(OrlogError, OSError):
            manifest = read_manifest(folder / MANIFEST_FILE)
            files = list(_files(folder))
            used = max((one.st_mtime for _, one in files), default=0.0)
            size = sum(one.st_blocks * _BLOCK for _, one in files)
            found.append(Kept(folder, manifest, size, used))
    return sorted(found, key=lambda one: -one.used)


def make_room(size_bytes: int, *, at_once: bool = False) -> int:
    """Note that so many bytes more are kept, remove what is above the limit, and return how much that was.

    The folder is looked at now and then; `at_once` looks now, and removes all shards, as on a full disk.
    """
    limit = 0 if at_once else limit_bytes()
    process = os.getpid()
    with _lock:
        known = _written.get(process)
        _written[process] = (known or 0) + size_bytes
        if not at_once and known is not None and known + size_bytes < limit * _SHARE_BETWEEN_LOOKS:
            return 0
        _written[process] = 0
        return _remove_above(limit)


def _remove_above(limit: int) -> int:
    shards = []
    total = 0
    for path, one in _files(in_place_folder()):
        size = one.st_blocks * _BLOCK
        total += size
        if path.name.startswith("c."):  # a shard; metadata stay
            shards.append((one.st_mtime, path, size))
    freed = 0
    if total <= limit:
        return 0
    for _, path, size in sorted(shards):
        if total - freed <= limit * _LEFT:
            break
        with contextlib.suppress(OSError):  # another process removes too
            path.unlink()
            freed += size
    return freed


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with contextlib.suppress(OSError):
                yield path, path.lstat()
