"""The cache of packs on disk: lists them, tracks which are in use, and removes them.

    $ORLOG_HOME/packs/PACK/pack.json     a pack; its folder's modification time is its last use
                      .PACK.deleted/     being removed; the next collection finishes that

A process that has a pack open holds a shared lock on its `pack.json` (`hold_pack`), which the
system releases when the process ends; such packs are not removed. All others can be, since a pack
can always be made again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import functools
import os
import re
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from orlog.base.files import lock_open_file, sole_access, storage_errors
from orlog.datasets.home.folders import datasets_folder, installed_names, installed_versions, version_folder
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
from orlog.errors import FormatVersionError, IntegrityError, StorageError
from orlog.manifests.documents import convert_json, parse_json, read_small_file
from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
from orlog.manifests.names import DatasetName

RECORD_FILE = "pack.json"

_PACK = re.compile(r"[0-9a-f]{32}-[0-9]+")
_LEFTOVER = re.compile(r"\.([0-9a-f]{32}-[0-9]+)\.(?:unfinished|replaced|deleted)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CachedPack:
    """A pack, or what is left of one.

    Attributes:
        folder: Its folder.
        kind: `pack`, or `leftover`: left by a process that was killed, or being written now.
        name: Name of its dataset; empty where its record cannot be read.
        versions: Versions on this machine that it was made from: one, or several for a view; empty
            if they are unknown or not on this machine.
        is_view: Whether it was made from a view, as far as is known.
        size_bytes: Bytes of its files.
        last_used: When it was last opened, in UTC.
    """

    folder: Path
    kind: Literal["pack", "leftover"]
    name: str
    versions: tuple[DatasetName, ...]
    is_view: bool
    size_bytes: int
    last_used: dt.datetime


class HeldPack:
    """Keeps a pack from being removed for as long as it lives, here and in forked processes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._closing = weakref.finalize(self, os.close, descriptor)

    def is_in(self, folder: Path) -> bool:
        """Return whether the held pack is still the one in a folder."""
        try:
            return os.path.samestat((folder / RECORD_FILE).stat(), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False


class _Record(msgspec.Struct):
    name: str
    digest: str
    sources: tuple[str, ...] = ()


def packs_folder() -> Path:
    """Return `$ORLOG_HOME/packs`, without making it."""
    return datasets_folder().parent / "packs"


def hold_pack(folder: Path) -> HeldPack | None:
    """Keep a pack from being removed, and record its use.

    Returns None if there is no pack, or it was just removed. On a disk that cannot lock files the pack is not
    kept, but mapped files stay readable even then.

    Raises StorageError if its record cannot be opened.
    """
    path = folder / RECORD_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"{path}: cannot be opened: {error.strerror}.", errno=error.errno) from error
    held = HeldPack(descriptor)
    lock_open_file(descriptor, shared=True)
    is_there = held.is_in(folder)
    if is_there:
        with contextlib.suppress(OSError):
            os.utime(folder)
    return held if is_there else None


def cached_packs() -> list[CachedPack]:
    """Return all packs and their leftovers."""
    return [*_packs_in(packs_folder(), _installed())]


def packs_of(versions: Iterable[DatasetName]) -> list[CachedPack]:
    """Return the packs of some stored versions, and of views of them."""
    wanted = set(versions)
    return [pack for pack in cached_packs() if wanted & {*pack.versions}]


def collect_packs(
    *, unused_days: int | None = None, max_bytes: int | None = None, dry_run: bool = False
) -> GarbageReport:
    """Remove leftovers of killed processes, and packs if asked.

    Packs that a process has open or is writing are never removed. Packs opened within the last day stay too,
    unless `unused_days` is 0.

    With `unused_days`, packs not opened for so long go; then, with `max_bytes`, the least recently opened
    ones, until all take no more than this. Returned are what was removed, what was due but kept, what the
    disk refused to remove, and the bytes of the packs that are left. A `dry_run` writes nothing.
    """
    packs = list(_packs_in(packs_folder(), {}))
    candidates = [
        Candidate(
            path=pack.folder,
            age=_seconds_unused(pack.folder),
            remove=functools.partial(_refusal if dry_run else _remove, pack.folder),
            free=functools.partial(int, pack.size_bytes),
            why=LEFT_BEHIND if pack.kind == "leftover" else "",
        )
        for pack in packs
    ]
    return collect(candidates, sum(pack.size_bytes for pack in packs), unused_days, max_bytes)


def delete_pack(pack: CachedPack) -> None:
    """Remove a pack; one that is already gone is not an error.

    Raises StorageError if a process has it open or is writing it, or the disk cannot be written.
    """
    if refusal := _remove(pack.folder, 0.0):
        raise StorageError(f"{pack.folder} {refusal}; when that process has ended, remove the folder.")


def discard_pack(folder: Path, held: HeldPack) -> None:
    """Remove a damaged pack, unless it has been replaced.

    Processes that have it open can still read their mapped files.

    Raises StorageError if the disk cannot be written.
    """
    with sole_access(folder), storage_errors(folder):
        if held.is_in(folder):
            remove_in_one_step(folder, _trash_of(folder))


def _installed() -> dict[str, DatasetName]:
    """Return the versions that are on this machine, by digest."""
    found = {}
    for name in installed_names():
        for version in installed_versions(name):
            with contextlib.suppress(IntegrityError, FormatVersionError):
                manifest = read_manifest(version_folder(name, version) / MANIFEST_FILE)
                found[manifest.digest] = DatasetName(name, version)
    return found


def _packs_in(home: Path, versions: dict[str, DatasetName]) -> Iterator[CachedPack]:
    """Yield what a folder of packs holds, sorted by path."""
    try:
        folders = sorted(home.iterdir())
    except OSError:  # there is none
        return
    for folder in folders:
        if not (_PACK.fullmatch(folder.name) or _LEFTOVER.fullmatch(folder.name)):
            continue
        with contextlib.suppress(OSError):  # removed since, or unreadable
            used = dt.datetime.fromtimestamp(folder.stat().st_mtime, dt.UTC)
            is_whole = not folder.name.startswith(".") and (folder / RECORD_FILE).exists()
            record = _read_record(folder) if is_whole else _Record("", "")
            sources = {record.digest, *record.sources}
            yield CachedPack(
                folder=folder,
                kind="pack" if is_whole else "leftover",
                name=record.name,
                versions=tuple(versions[one] for one in sorted(sources) if one in versions),
                is_view=record.digest not in (record.sources or versions),
                size_bytes=_size_of(folder),
                last_used=used,
            )


def _read_record(folder: Path) -> _Record:
    """Return the origin that a pack's record states; nothing if the record is damaged."""
    path = folder / RECORD_FILE
    with contextlib.suppress(OSError, ValueError):
        return convert_json(parse_json(read_small_file(path)), _Record)
    return _Record("", "")


def _size_of(folder: Path) -> int:
    size = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            size += path.lstat().st_size
    return size


def _seconds_unused(folder: Path) -> float:
    """Return the seconds since a pack was opened; 0 if that time is in the future."""
    try:
        return max(0.0, time.time() - folder.stat().st_mtime)
    except FileNotFoundError:
        return 0.0


def _remove(folder: Path, seconds: float) -> str:
    """Remove a pack or a leftover in one step; return why that failed, or nothing."""
    leftover = _LEFTOVER.fullmatch(folder.name)
    destination = folder.with_name(leftover[1]) if leftover else folder

    def remove() -> str:
        with _sole_use(folder) as refusal:
            if refusal:
                return refusal
            if leftover:
                erase(folder)
            elif _seconds_unused(folder) < seconds:
                return OPENED_NOW
            else:
                remove_in_one_step(folder, _trash_of(folder))
        return ""

    return remove_unless_busy(destination, remove)


def _trash_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.deleted")


def _refusal(folder: Path, seconds: float) -> str:
    """Return why `_remove` would not remove a folder, as far as can be seen without writing."""
    with _sole_use(folder) as refusal:
        if refusal:
            return refusal
    return OPENED_NOW if _seconds_unused(folder) < seconds else ""


@contextlib.contextmanager
def _sole_use(folder: Path) -> Iterator[str]:
    """Keep others from opening a pack; yield why it may already be open, or nothing."""
    try:
        file = _open_to_lock(folder / RECORD_FILE)
    except (FileNotFoundError, NotADirectoryError):  # no record, so no pack that could be open
        yield ""
        return
    except OSError as error:
        yield f"may be in use: {RECORD_FILE} cannot be opened ({error.strerror})"
        return
    with file:
        yield "" if lock_open_file(file, shared=False) else "is in use by a process"


def _open_to_lock(path: Path) -> BinaryIO:
    """Open a file for writing, as locks on network file systems require, or else for reading."""
    try:
        return path.open("r+b")
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return path.open("rb")
