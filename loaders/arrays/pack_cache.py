"""The disk that packs take: what is there, what is in use, and what may go.

    $ORLOG_HOME/packs/PACK/pack.json     a pack; its folder's time of change says when it was opened
                      .PACK.deleted/     on its way out; whoever finds it ends the work

Who has a pack open holds a shared lock on its `pack.json` (`hold_pack`), which the system drops with
the process, and what is held is not removed. All else may go: a pack can always be made again. Packs
of shared homes (ORLOG_SHARED) are shown and never changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import os
import re
import shutil
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, NoReturn

import msgspec

from orlog.datasets.home.folders import (
    dataset_folders,
    datasets_folder,
    installed_names,
    installed_versions,
    version_folder,
)
from orlog.datasets.home.garbage import GarbageReport, Kept, Removed
from orlog.errors import FormatVersionError, IntegrityError, StorageError
from orlog.files import sole_access, storage_errors, sync
from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
from orlog.manifests.names import DatasetName

_fcntl: Any
try:
    import fcntl as _fcntl
except ImportError:  # Windows, where the files of a map cannot be removed anyway
    _fcntl = None

__all__ = [
    "RECORD_FILE",
    "CachedPack",
    "HeldPack",
    "PacksReport",
    "cached_packs",
    "collect_packs",
    "delete_pack",
    "discard_pack",
    "hold_pack",
    "packs_folder",
    "packs_of",
]

RECORD_FILE = "pack.json"
DAY = 86_400.0
LARGEST_RECORD = 2**24

_PACK = re.compile(r"[0-9a-f]{32}-[0-9]+")
_LEFTOVER = re.compile(r"\.([0-9a-f]{32}-[0-9]+)\.(?:unfinished|replaced|deleted)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CachedPack:
    """A pack, or what is left of one.

    Attributes:
        folder: Where it lies.
        kind: `pack`, or `leftover`: left by a process that was killed, or being written now.
        name: Name of its dataset; empty where its record cannot be read.
        versions: Versions on this machine that it was made from: the one that it is of, or those of
            a view; empty where that is not known, or they are not here.
        is_view: Whether it is of a view, as far as is known.
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


@dataclasses.dataclass(frozen=True, slots=True)
class PacksReport(GarbageReport):
    """What `collect_packs` did, what could not be removed, and the bytes of the packs left."""

    failures: list[StorageError]


class HeldPack:
    """Keeps a pack from being removed for as long as it lives, here and in forked processes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._closing = weakref.finalize(self, os.close, descriptor)

    def is_in(self, folder: Path) -> bool:
        """Return whether the pack that is held is the one that a folder holds now."""
        try:
            return os.path.samestat((folder / RECORD_FILE).stat(), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False


class _Record(msgspec.Struct):
    name: str
    digest: str
    sources: tuple[str, ...] = ()


def packs_folder() -> Path:
    """Return `$ORLOG_HOME/packs`, which is not made here."""
    return datasets_folder().parent / "packs"


def hold_pack(folder: Path) -> HeldPack | None:
    """Keep a pack from being removed, and note in one's own home that it is used.

    Where a disk cannot lock files nothing is kept; what is mapped then stays readable all the same.

    Returns:
        What keeps it; None where there is no pack, or it was removed right now.

    Raises:
        StorageError: its record cannot be opened.
    """
    path = folder / RECORD_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be opened: {error.strerror}", errno=error.errno
        ) from error
    held = HeldPack(descriptor)
    if _fcntl is not None:
        with contextlib.suppress(OSError):
            _fcntl.flock(descriptor, _fcntl.LOCK_SH)
    is_there = held.is_in(folder)
    if is_there and folder.parent == packs_folder():
        with contextlib.suppress(OSError):
            os.utime(folder)
    return held if is_there else None


def cached_packs() -> list[CachedPack]:
    """Return all packs and what is left of them, of one's own home first, then of shared ones."""
    versions = _installed()
    homes = dict.fromkeys([packs_folder(), *(one.parent / "packs" for one in dataset_folders())])
    return [pack for home in homes for pack in _packs_in(home, versions)]


def packs_of(versions: Iterable[DatasetName]) -> list[CachedPack]:
    """Return the packs in one's own home that some stored versions, or views of them, have."""
    wanted = set(versions)
    return [pack for pack in _packs_in(packs_folder(), _installed()) if wanted & {*pack.versions}]


def collect_packs(
    *, unused_days: int | None = None, max_bytes: int | None = None, dry_run: bool = False
) -> PacksReport:
    """Remove what killed processes left of packs in one's own home, and packs if asked; say what.

    Never removed: what a process has open or is writing. Packs opened within the last day stay too,
    unless `unused_days` is 0.

    Args:
        unused_days: Also remove packs that were not opened for so many days.
        max_bytes: Then remove packs, the least recently opened first, until all packs take no more
            than this.
        dry_run: Only say what would go. Nothing is written.

    Returns:
        What went and what stayed though it was due, what the disk refused to remove, and the bytes
        of the packs that are left.

    Raises:
        ValueError: a negative number.
    """
    if min(unused_days or 0, max_bytes or 0) < 0:
        raise ValueError("days and bytes are 0 or more")
    packs = sorted(
        _packs_in(packs_folder(), {}), key=lambda one: (one.kind == "pack", one.last_used)
    )
    report = PacksReport([], [], 0, [])
    left = sum(pack.size_bytes for pack in packs)
    for pack in packs:
        age = _seconds_unused(pack.folder)
        if pack.kind == "leftover":
            why, seconds = "left by a process that ended early", 0.0
        elif unused_days is not None and age >= unused_days * DAY:
            why, seconds = f"not opened for {age / DAY:.0f} days", unused_days * DAY
        elif max_bytes is not None and age >= DAY and left > max_bytes:
            why, seconds = "opened least recently, and room was asked for", DAY
        else:
            continue
        try:
            refusal = (_refusal if dry_run else _remove)(pack.folder, seconds)
        except StorageError as error:
            report.failures.append(error)
            continue
        if refusal:
            report.kept.append(Kept(pack.folder, refusal))
            continue
        left -= pack.size_bytes
        report.removed.append(Removed(pack.folder, why, pack.size_bytes))
    return dataclasses.replace(report, left_bytes=left)


def delete_pack(pack: CachedPack) -> None:
    """Remove a pack from one's own home; one that is gone already is no error.

    Raises:
        StorageError: a process has it open or is writing it, or the disk cannot be written.
        ValueError: it is in a shared home.
    """
    if pack.folder.parent != packs_folder():
        raise ValueError(f"{pack.folder} is in a shared home; whoever keeps that can remove it")
    if refusal := _remove(pack.folder, 0.0):
        raise StorageError(f"{pack.folder} {refusal}; once that has ended, remove that folder")


def discard_pack(folder: Path, held: HeldPack) -> None:
    """Remove a damaged pack from one's own home, unless another one took its place.

    Processes that have it open keep what they mapped.

    Raises:
        StorageError: the disk cannot be written.
    """
    with sole_access(folder), storage_errors(folder):
        if held.is_in(folder):
            _throw_away(folder)


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
    except OSError:  # none was made, or one of ORLOG_SHARED that may not be looked into
        return
    for folder in folders:
        if not (_PACK.fullmatch(folder.name) or _LEFTOVER.fullmatch(folder.name)):
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or it may not be looked into
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
    """Return what a pack's record says of where it is from; nothing where it is damaged."""
    path = folder / RECORD_FILE
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeError):
        if path.stat().st_size <= LARGEST_RECORD:
            return msgspec.json.decode(path.read_bytes(), type=_Record)
    return _Record("", "")


def _size_of(folder: Path) -> int:
    size = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            size += path.lstat().st_size
    return size


def _seconds_unused(folder: Path) -> float:
    """Return the seconds since a pack was opened; a time to come is just now."""
    try:
        return max(0.0, time.time() - folder.stat().st_mtime)
    except FileNotFoundError:
        return 0.0


class _BusyError(Exception):
    """Another process holds the lock of a pack's writer."""


def _refuse_to_wait() -> NoReturn:
    raise _BusyError


def _remove(folder: Path, seconds: float) -> str:
    """Remove a pack or a leftover in one step; return why it was not, or nothing."""
    leftover = _LEFTOVER.fullmatch(folder.name)
    destination = folder.with_name(leftover[1]) if leftover else folder
    try:
        with (
            sole_access(destination, on_wait=_refuse_to_wait),
            storage_errors(folder),
            _sole_use(folder) as refusal,
        ):
            if refusal:
                return refusal
            if not leftover:
                if _seconds_unused(folder) < seconds:
                    return "was opened just now"
                _throw_away(folder)
            else:
                _erase(folder)
    except _BusyError:
        return "is being written by another process"
    return ""


def _throw_away(folder: Path) -> None:
    """Remove a pack in one step; the caller has sole access."""
    trash = folder.with_name(f".{folder.name}.deleted")
    _erase(trash)
    with contextlib.suppress(FileNotFoundError):  # gone already
        folder.rename(trash)
    sync(folder.parent)
    _erase(trash)


def _refusal(folder: Path, seconds: float) -> str:
    """Return why `_remove` would not remove a folder, as far as can be told without writing."""
    with _sole_use(folder) as refusal:
        if refusal:
            return refusal
    is_fresh = _seconds_unused(folder) < seconds
    return "was opened just now" if is_fresh else ""


@contextlib.contextmanager
def _sole_use(folder: Path) -> Iterator[str]:
    """Keep others from opening a pack; give why that may be open already, or nothing."""
    try:
        file = _open_to_lock(folder / RECORD_FILE)
    except (FileNotFoundError, NotADirectoryError):  # no record, so no pack that could be open
        yield ""
        return
    except OSError as error:
        yield f"may be in use: {RECORD_FILE} cannot be opened ({error.strerror})"
        return
    with file:
        try:
            if _fcntl is not None:
                _fcntl.flock(file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        except BlockingIOError:
            yield "is in use by a process"
            return
        except OSError:  # a disk that cannot lock
            pass
        yield ""


def _open_to_lock(path: Path) -> BinaryIO:
    """Open a file for writing, which locks of network file systems ask for, or else for reading."""
    try:
        return path.open("r+b")
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return path.open("rb")


def _erase(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
