"""Downloads a set of objects into a folder: several at once, each checked against its SHA-256.

    FOLDER/SHA256           objects that are complete and durable on the disk
           SHA256.part      objects that are unfinished or perhaps not yet durable

A transfer that is interrupted at any instant resumes from these files, and all of them are hashed
again: an object may be a link to a version's file that was damaged since.
Syncing to the disk takes longer than downloading a small object, so small ones are synced together.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from orlog.base.files import hash_file, link_or_copy, make_folder, storage_errors, sync, sync_all
from orlog.datasets.download.http import Patience
from orlog.datasets.download.transfer import Expected, Limiter, Mirror, fetch_object
from orlog.datasets.home.folders import stored_objects
from orlog.datasets.home.records import Source
from orlog.datasets.store.verify import find_link
from orlog.errors import StorageError
from orlog.manifests.manifest import StoredObject

JOBS = 16  # at once: with slow responses, half as many take a fifth longer
ROOM_LEFT = 2**26
SMALL_BYTES = 2**16
BATCH_SIZE = 32

Progress = Callable[[int, int], None]
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """How objects are downloaded.

    Attributes:
        jobs: Objects that are transferred at once.
        limiter: Bounds the rate of all transfers together.
        progress: Called with bytes done and bytes in all, from one thread at a time.
        on_objects: Called with objects done and objects in all, from one thread at a time.
        patience: How long each mirror is tried.
    """

    jobs: int = JOBS
    limiter: Limiter | None = None
    progress: Progress = lambda _done, _total: None
    on_objects: Progress = lambda _done, _total: None
    patience: Patience = Patience()


def download_folder(destination: Path) -> Path:
    """Return the folder that holds a version's objects until all of them have arrived."""
    return destination.with_name(f".{destination.name}.download")


def fetch_objects(
    source: Source,
    objects: Iterable[StoredObject],
    folder: Path,
    options: TransferOptions,
    *,
    damaged: Path | None = None,
    also_here: Mapping[str, Path] | None = None,
) -> None:
    """Download the objects that a folder lacks, each to a file named by its SHA-256; what arrived stays on errors.

    Objects that another version on this machine has are linked or copied, if their bytes are right: of any
    but the folder `damaged`, and of the local files in `also_here`, by SHA-256.
    """
    items = {item.sha256: item for item in objects}
    with storage_errors(folder):
        make_folder(folder)
        for sha256, item in items.items():
            if (folder / sha256).is_file() and not _is_right(folder / sha256, item):
                (folder / sha256).unlink()
        wanted = items.keys() - _file_sizes(folder).keys()
        here: dict[str, Path] = {}
        for other, item in stored_objects() if wanted else ():
            is_candidate = item.sha256 in wanted and other != damaged
            if is_candidate and find_link(other, item.path) is None:
                here[item.sha256] = other / item.path
        here |= also_here or {}
        for sha256 in wanted & here.keys():
            with contextlib.suppress(FileNotFoundError):  # a version may be removed meanwhile
                if _is_right(here[sha256], items[sha256]):
                    link_or_copy(here[sha256], folder / sha256)
        held = _file_sizes(folder)
    missing = [item for item in items.values() if item.sha256 not in held]
    rest = sum(item.size_bytes - held.get(f"{item.sha256}.part", 0) for item in missing)
    check_room(folder, rest)
    total = sum(item.size_bytes for item in items.values())
    progress = TransferProgress(
        options,
        total=total,
        done=total - sum(item.size_bytes for item in missing),
        objects=len(items),
        objects_done=len(items) - len(missing),
    )
    mirrors = [Mirror(url) for url in source.mirrors]

    def fetch(batch: Sequence[StoredObject]) -> None:
        for item in batch:
            part = folder / f"{item.sha256}.part"
            is_small = item.size_bytes < SMALL_BYTES
            fetch_object(
                mirrors,
                Expected(path=item.path, size_bytes=item.size_bytes, sha256=item.sha256),
                part,
                progress=progress.add,
                limiter=options.limiter,
                patience=options.patience,
                durable=not is_small,
            )
            if not is_small:
                with storage_errors(part):
                    part.rename(folder / item.sha256)
            progress.finish_object()

    fetch_at_once(fetch, _batches(missing, options.jobs), options.jobs, progress)
    with storage_errors(folder):
        small = [item.sha256 for item in missing if item.size_bytes < SMALL_BYTES]
        sync_all([folder / f"{sha256}.part" for sha256 in small])
        for sha256 in small:
            (folder / f"{sha256}.part").rename(folder / sha256)
        sync(folder)


def fetch_at_once(
    fetch: Callable[[Item], Result], items: Sequence[Item], jobs: int, progress: TransferProgress
) -> list[Result]:
    """Return what `fetch` gives for each item, several at once; the first error ends the others."""
    with concurrent.futures.ThreadPoolExecutor(jobs, "orlog-download") as pool:
        waiting = [pool.submit(fetch, item) for item in items]
        try:
            for done in concurrent.futures.as_completed(waiting):
                done.result()
        except BaseException:
            progress.stop()
            pool.shutdown(cancel_futures=True)
            raise
        return [done.result() for done in waiting]


class TransferProgress:
    """Adds up what threads download; stops them when one has failed."""

    def __init__(
        self, options: TransferOptions, *, total: int, done: int, objects: int, objects_done: int
    ) -> None:
        self._lock = threading.Lock()
        self._options = options
        self._total, self._done = total, done
        self._objects, self._objects_done = objects, objects_done
        self._is_stopped = False
        options.on_objects(self._objects_done, self._objects)
        options.progress(self._done, self._total)

    def add(self, count: int) -> None:
        """Count bytes."""
        with self._lock:
            if self._is_stopped:
                raise _StoppedError
            self._done += count
            self._options.progress(self._done, max(self._done, self._total))

    def finish_object(self) -> None:
        """Count an object."""
        with self._lock:
            self._objects_done += 1
            self._options.on_objects(self._objects_done, self._objects)

    def stop(self) -> None:
        """Make the next call of `add` in each thread raise, which ends its transfer."""
        with self._lock:
            self._is_stopped = True


class _StoppedError(Exception):
    """Another transfer has failed; this one ends."""


def check_room(folder: Path, needed: int) -> None:
    """Refuse to download so many more bytes into a folder that is there, before it starts, if they cannot fit."""
    with storage_errors(folder):
        free = shutil.disk_usage(folder).free
    if needed and needed + min(needed, ROOM_LEFT) > free:
        raise StorageError(
            f"{folder.parent}: {needed:,} bytes must still be downloaded, but {free:,} are free; free some "
            "space or set ORLOG_HOME to another disk, then run the same command again."
        )


def _batches(missing: list[StoredObject], jobs: int) -> list[list[StoredObject]]:
    """Return the tasks of the threads: large objects first, one each, then groups of small ones."""
    ordered = sorted(missing, key=lambda item: -item.size_bytes)
    large = [[item] for item in ordered if item.size_bytes >= SMALL_BYTES]
    small = ordered[len(large) :]
    size = max(1, min(BATCH_SIZE, len(small) // (4 * jobs)))
    return large + [small[start : start + size] for start in range(0, len(small), size)]


def _file_sizes(folder: Path) -> dict[str, int]:
    """Return the size of each file in a folder, by name."""
    with os.scandir(folder) as entries:
        return {entry.name: entry.stat().st_size for entry in entries}


def _is_right(path: Path, item: StoredObject) -> bool:
    is_alike = path.is_file() and path.stat().st_size == item.size_bytes
    return is_alike and hash_file(path) == item.sha256
