"""What is kept here of versions that are read in place: a folder for each, and a limit for all.

    $ORLOG_HOME/in-place/DIGEST/manifest.json, zarr.json, ..    metadata, whole and checked
                                observations/c.0.0               a sparse file with the chunks that were read
                                .registry                        name of the registry that it was last found in
                                .address                         its URL, if it was opened by that alone

Nothing here is needed: what is removed is read again. ORLOG_CACHE limits how much is kept (`20G` by default, `0`
for as little as can be); the shards that were opened longest ago go first. Processes share it without locks,
since whoever reads a chunk asks its bytes whether they are right (`datasets/store/in_place.py`), and keeps the files
open that it reads; what it misses after a collection it fetches again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from orlog.base.files import replace_file
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.garbage import (
    LEFT_BEHIND,
    OPENED_NOW,
    Candidate,
    GarbageReport,
    collect,
    erase,
    remove_in_one_step,
    remove_unless_busy,
)
from orlog.datasets.home.registries import read_registries
from orlog.errors import OrlogError, StorageError
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, read_manifest
from orlog.manifests.names import bytes_of

LIMIT = "ORLOG_CACHE"
DEFAULT_LIMIT = "20G"
_BLOCK = 512  # bytes, in which the system counts what a file takes
_SHARE_BETWEEN_LOOKS = (
    0.02  # of the limit, which may be written before the folder is looked at again
)
_LEFT = 0.9  # of the limit, once something is removed
_REGISTRY_FILE, _ADDRESS_FILE = ".registry", ".address"
_FOLDER = re.compile(r"[0-9a-f]{64}")
_LEFTOVER = re.compile(r"\.([0-9a-f]{64})\.(?:download|deleted)")
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


def clear_way(folder: Path, path: str) -> None:
    """Remove what is in the way of a file: links, folders for files, files for folders, files that cannot be opened.

    Nothing that is kept here is needed, so what does not belong here goes.
    """
    *above, name = path.split("/")
    with contextlib.suppress(FileNotFoundError):
        for part in above:
            folder /= part
            if not stat.S_ISDIR(folder.lstat().st_mode):
                erase(folder)
        file = folder / name
        if not stat.S_ISREG(file.lstat().st_mode) or not os.access(file, os.R_OK | os.W_OK):
            erase(file)


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


def note_use(folder: Path, registry: str, url: str) -> None:
    """Note that a version is opened, and in which registry it was found; an empty name if it was given by its URL."""
    said = {_REGISTRY_FILE: registry, _ADDRESS_FILE: "" if registry else url}
    with contextlib.suppress(
        OSError, StorageError
    ):  # it is only for `collect_in_place` and `address_of`
        os.utime(folder / MANIFEST_FILE)
        for name, text in said.items():
            clear_way(folder, name)
            if _read(folder / name) != text:
                replace_file(folder / name, text.encode())


def address_of(folder: Path) -> str:
    """Return the URL of a version that was opened by that alone; empty for one that a registry offers by its name."""
    return _read(folder / _ADDRESS_FILE)


def collect_in_place(
    *, unused_days: int | None = None, max_bytes: int | None = None, dry_run: bool = False
) -> GarbageReport:
    """Remove what is kept of versions that are read in place, and report it.

    What killed processes left goes, what is kept of registries that were removed, and what is above ORLOG_CACHE.
    With `unused_days`, versions not opened for so long go too; then, with `max_bytes`, those opened least recently,
    until all take no more than this. Versions opened within the last day stay, unless `unused_days` is 0, and so
    does what is being opened. Processes that read a version go on, and fetch what they miss. A `dry_run` writes nothing.

    Raises ValueError if a limit is negative, or ORLOG_CACHE no size.
    """
    known = {"", *(one.name for one in read_registries())}
    kept, candidates = kept_versions(), []
    for one in kept:
        registry = _read(one.folder / _REGISTRY_FILE)
        candidates.append(
            Candidate(
                path=one.folder,
                age=max(0.0, time.time() - one.used),
                remove=_removal(one.folder, dry_run),
                free=functools.partial(int, one.size_bytes),
                why="" if registry in known else f"its registry {registry} was removed",
            )
        )
    for path in _left_behind({one.folder for one in kept}):
        size = sum(status.st_blocks * _BLOCK for _, status in _files(path))
        candidates.append(
            Candidate(
                path=path,
                age=0.0,
                remove=_removal(path, dry_run),
                free=functools.partial(int, size),
                why=LEFT_BEHIND,
                taken=False,
            )
        )
    limit = limit_bytes() if max_bytes is None else min(limit_bytes(), max_bytes)
    return collect(candidates, sum(one.size_bytes for one in kept), unused_days, limit)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text("utf-8")
    return ""


def _left_behind(whole: set[Path]) -> list[Path]:
    """Return folders of versions that were never opened whole, or not removed whole."""
    root = in_place_folder()
    found = sorted(root.iterdir()) if root.is_dir() else []
    return [
        one
        for one in found
        if one not in whole and (_FOLDER.fullmatch(one.name) or _LEFTOVER.fullmatch(one.name))
    ]


def _removal(path: Path, dry_run: bool) -> Callable[[float], str]:
    """Return what removes a folder in one step, unless it was used within so many seconds; it returns why it stays."""
    leftover = _LEFTOVER.fullmatch(path.name)
    folder = path.with_name(leftover[1]) if leftover else path

    def remove(seconds: float) -> str:
        def is_due(place: Path) -> bool:
            used = max((status.st_mtime for _, status in _files(place)), default=0.0)
            return leftover is not None or seconds == 0 or time.time() - used >= seconds

        def attempt() -> str:
            if leftover:
                erase(path)
                return ""
            gone = remove_in_one_step(path, path.with_name(f".{path.name}.deleted"), is_due=is_due)
            return "" if gone else OPENED_NOW

        if dry_run:
            return "" if is_due(path) else OPENED_NOW
        clear_way(folder.parent, f".{folder.name}.lock")
        return remove_unless_busy(folder, attempt)

    return remove


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
