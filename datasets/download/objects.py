"""Brings a set of objects into a folder: several at once, each from the best mirror, all checked.

    FOLDER/SHA256           objects that are whole
           SHA256.part      what came of others so far

A transfer that ends early, however it ends, goes on from there.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from orlog.datasets.download.transfer import Limiter, Mirror, Patience, fetch_object
from orlog.datasets.home.folders import stored_objects
from orlog.datasets.home.origin import Source
from orlog.datasets.store.verify import find_link
from orlog.errors import StorageError
from orlog.files import hash_file, link_or_copy, storage_errors, sync
from orlog.manifests.manifest import StoredObject

__all__ = ["JOBS", "Progress", "download_folder", "fetch_objects"]

JOBS = 16  # at once: where each answer takes a while, half as many take a fifth longer
ROOM_LEFT = 2**26

Progress = Callable[[int, int], None]


def download_folder(destination: Path) -> Path:
    """Return where what came of a version is kept until all of it is here."""
    return destination.with_name(f".{destination.name}.download")


def fetch_objects(
    source: Source,
    objects: Iterable[StoredObject],
    folder: Path,
    jobs: int,
    limiter: Limiter | None,
    progress: Progress,
    patience: Patience,
    *,
    damaged: Path | None = None,
    also_here: Mapping[str, Path] | None = None,
) -> None:
    """Bring objects into a folder under the names of their sums, as far as they are not there.

    Those that another version on this machine has are taken from it, if their bytes are right.

    Args:
        source: Where they can be had.
        objects: What to bring.
        folder: Where to; made if it is not there.
        jobs: Objects that are transferred at once.
        limiter: Bounds the rate of all transfers together.
        progress: Called with bytes done and bytes in all, from one thread at a time.
        patience: How long each mirror is tried.
        damaged: Folder of a version that nothing is taken from.
        also_here: Further files that may be some of them, by SHA-256.

    Raises:
        TransferError: no mirror gave an object; what came is kept.
        StorageError: there is not enough room, or the disk cannot be written; what came is kept.
    """
    items = {item.sha256: item for item in objects}
    total = sum(item.size_bytes for item in items.values())
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        wanted = [sha256 for sha256 in items if not (folder / sha256).exists()]
        here = {**_objects_here(set(wanted), damaged), **(also_here or {})}
        for sha256 in wanted:
            if sha256 in here:
                _take(here[sha256], items[sha256], folder / sha256)
        missing = [item for item in items.values() if not (folder / item.sha256).exists()]
        _check_room(folder, missing)
    mirrors = [Mirror(url) for url in source.mirrors]
    progress_of = _Progress(progress, total, total - sum(item.size_bytes for item in missing))

    def bring(item: StoredObject) -> None:
        part = folder / f"{item.sha256}.part"
        fetch_object(
            mirrors,
            item,
            part,
            progress=progress_of.add,
            limiter=limiter,
            patience=patience,
        )
        with storage_errors(part):
            part.rename(folder / item.sha256)

    # Large ones first, so that the last one to end is a small one.
    missing.sort(key=lambda item: -item.size_bytes)
    with concurrent.futures.ThreadPoolExecutor(jobs, "orlog-download") as pool:
        waiting = [pool.submit(bring, item) for item in missing]
        try:
            for done in concurrent.futures.as_completed(waiting):
                done.result()
        except BaseException:
            progress_of.stop()
            pool.shutdown(cancel_futures=True)
            raise
    with storage_errors(folder):
        sync(folder)


class _Progress:
    """Adds up what threads bring; stops them when one has failed."""

    def __init__(self, progress: Progress, total: int, done: int) -> None:
        self._lock = threading.Lock()
        self._progress, self._total, self._done = progress, total, done
        self._is_stopped = False
        progress(done, total)

    def add(self, count: int) -> None:
        with self._lock:
            if self._is_stopped:
                raise _StoppedError
            self._done += count
            self._progress(self._done, self._total)

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True


class _StoppedError(Exception):
    """Another transfer has failed; this one ends."""


def _objects_here(wanted: Collection[str], damaged: Path | None) -> dict[str, Path]:
    """Return where other versions on this machine have objects, by the sum they should have."""
    found: dict[str, Path] = {}
    for other, item in stored_objects() if wanted else ():
        is_candidate = item.sha256 in wanted and other != damaged
        if is_candidate and find_link(other, item.path) is None:
            found[item.sha256] = other / item.path
    return found


def _take(path: Path, item: StoredObject, target: Path) -> None:
    """Link or copy an object from another version if its bytes are right."""
    with contextlib.suppress(FileNotFoundError):  # another process may remove that version now
        is_alike = path.is_file() and path.stat().st_size == item.size_bytes
        if is_alike and hash_file(path) == item.sha256:
            link_or_copy(path, target)


def _check_room(folder: Path, missing: Sequence[StoredObject]) -> None:
    """Refuse to start what cannot end, before a byte is transferred."""
    needed = 0
    for item in missing:
        part = folder / f"{item.sha256}.part"
        needed += item.size_bytes - (part.stat().st_size if part.exists() else 0)
    free = shutil.disk_usage(folder).free
    if missing and needed + min(needed, ROOM_LEFT) > free:
        raise StorageError(
            f"{folder.parent}: {needed:,} bytes are still to come and {free:,} are free; free some "
            "space or set ORLOG_HOME to another disk, then run the same command again"
        )
