"""Frees disk space: unused versions, leftovers of killed processes, and versions that the user deletes.

    $ORLOG_HOME/datasets/NAME/.VERSION.deleted/    being removed; any later collection completes it

`collect_garbage` removes only versions that can be downloaded again; `collect` is what it shares with the
collectors of packs and of versions that are read in place. Whatever goes is renamed first, under its lock: a
process that opens it finds all of it or nothing. Shared homes (ORLOG_SHARED) are listed and never changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from orlog.base.files import BusyError, list_files, sole_access, storage_errors, sync
from orlog.datasets.home.folders import PARTIAL_FILE, dataset_folders, datasets_folder, partial_folder
from orlog.datasets.home.holdings import (
    KINDS,
    CachedVersion,
    Holding,
    Kind,
    Room,
    all_holdings,
    described,
    holdings_of,
    is_downloaded,
    is_here,
    is_orphan,
    parse_entry,
    pin_file,
    seconds_unused,
)
from orlog.datasets.home.records import origin_file
from orlog.errors import FormatVersionError, IntegrityError, NotFoundError, StorageError
from orlog.manifests.lock import LockedDataset, find_lock, read_lock
from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
from orlog.manifests.names import DatasetName, newest_first, parse_name
from orlog.manifests.rebuilds import version_of
from orlog.manifests.signatures import SIGNATURE_FILE

DAY = 86_400.0
GONE = "is gone already"
LEFT_BEHIND = "left by a process that ended early"
OPENED_NOW = "was opened or changed just now"
_UNUSED = {"download": "a download without progress", "strange": "moved aside"}
_TO_PUT_BACK = "is put back: a process was killed while it was replacing it"


# --- what all collectors share


@dataclasses.dataclass(frozen=True, slots=True)
class Removed:
    """A path that was removed (or would be), why, and how many bytes this freed."""

    path: Path
    why: str
    freed_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """A path that was due for removal, and why it was kept."""

    path: Path
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class GarbageReport:
    """What a collector removed and kept, the bytes that are left, and what the disk refused to remove."""

    removed: list[Removed]
    kept: list[Kept]
    left_bytes: int
    failures: list[StorageError] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Something that a collector may remove.

    Attributes:
        path: Where it is.
        age: Seconds since it was last used.
        remove: Removes it unless it was used within so many seconds; returns why it stays, or nothing.
        free: Returns the bytes that this frees; called when it is gone.
        why: Why it goes in any case; empty if it goes only when it is unused, or room is asked for.
        unused: What it is when it is unused: `not opened` for so many days.
        for_room: Whether it also goes to make room.
    """

    path: Path
    age: float
    remove: Callable[[float], str]
    free: Callable[[], int]
    why: str = ""
    unused: str = "not opened"
    for_room: bool = True


def collect(
    candidates: Iterable[Candidate], size_bytes: int, unused_days: int | None, max_bytes: int | None
) -> GarbageReport:
    """Remove what goes in any case; what is unused; and, least recently used first, what is above a size.

    `size_bytes` is what all takes now. What was used within the last day stays, unless `unused_days` is 0.

    Raises ValueError for a negative number.
    """
    if min(unused_days or 0, max_bytes or 0) < 0:
        raise ValueError("days and bytes must be 0 or more.")
    report = GarbageReport([], [], size_bytes)
    left = size_bytes
    for one in sorted(candidates, key=lambda one: (not one.why, -one.age)):
        if one.why:
            why, seconds = one.why, 0.0
        elif unused_days is not None and one.age >= unused_days * DAY:
            why, seconds = f"{one.unused} for {one.age / DAY:.0f} days", unused_days * DAY
        elif max_bytes is not None and one.for_room and one.age >= DAY and left > max_bytes:
            why, seconds = "opened least recently, and room was asked for", DAY
        else:
            continue
        try:
            refusal = one.remove(seconds)
        except StorageError as error:
            report.failures.append(error)
            continue
        if refusal not in ("", GONE):
            report.kept.append(Kept(one.path, refusal))
            continue
        freed = one.free()
        left -= freed
        if not refusal:
            report.removed.append(Removed(one.path, why, freed))
    return dataclasses.replace(report, left_bytes=left)


def remove_unless_busy(folder: Path, remove: Callable[[], str]) -> str:
    """Call `remove` while holding the folder's lock; return why it was not removed, or nothing.

    Raises StorageError if the disk cannot be written.
    """
    try:
        with sole_access(folder, longest_wait=0), storage_errors(folder):
            return remove()
    except BusyError:
        return "is being written by another process"


def remove_in_one_step(path: Path, trash: Path, *, is_due: Callable[[Path], bool] = lambda _: True) -> bool:
    """Remove a folder by renaming it to `trash` and erasing that; return whether it is gone.

    Call it inside `sole_access`. Other processes find the whole folder or nothing. `is_due` checks
    the renamed folder, which is put back if it is not due: a process that marked it as used before
    the rename has opened it, and a later one does not find it.
    """
    erase(trash)
    try:
        path.rename(trash)
    except FileNotFoundError:  # another process removed it
        return True
    if not is_due(trash):
        trash.rename(path)
        return False
    sync(trash.parent)
    erase(trash)
    return True


def erase(path: Path) -> None:
    """Remove a file, a link, or a folder with all that it holds, if it is there."""
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# --- versions of the user's own home


def total_bytes() -> int:
    """Return the bytes of all versions in the user's own home, each file counted once."""
    return Room(list(all_holdings(datasets_folder()))).size_bytes


def own_versions(name: str, kinds: Sequence[Kind] = ("version", "partial")) -> list[DatasetName]:
    """Return the versions in the user's own home that a name means: all, or the one it pins.

    There must be one of these `kinds` (`CachedVersion.kind`); the error says what exists instead.
    """
    wanted = parse_name(name)
    items = holdings_of(datasets_folder(), wanted.name)
    versions = newest_first({item.version for item in items if item.kind in kinds})
    folder = datasets_folder() / wanted.name
    chosen = [version for version in versions if _is_meant(wanted, folder / version)]
    if not chosen:
        raise NotFoundError(_why_none(wanted))
    return [DatasetName(wanted.name, version) for version in chosen]


def pin_version(name: str, version: str, *, on_wait: Callable[[], None] = lambda: None) -> None:
    """Keep `collect_garbage` from removing a version, or a part of one, in the user's own home.

    Waits while another process writes the version, after one call of `on_wait`.

    Raises NotFoundError if it does not exist; StorageError if the home cannot be written.
    """
    folder = _own_folder(name, version)
    if not is_here(folder):
        raise NotFoundError(_why_none(DatasetName(name, version)))
    with sole_access(folder, on_wait=on_wait), storage_errors(pin_file(folder)):
        if not is_here(folder):
            raise NotFoundError(_why_none(DatasetName(name, version)))
        pin_file(folder).touch()


def unpin_version(name: str, version: str) -> bool:
    """Let `collect_garbage` remove a version again; return whether it was pinned.

    Raises StorageError if the home cannot be written.
    """
    pin = pin_file(_own_folder(name, version))
    was_pinned = pin.exists()
    with storage_errors(pin):
        pin.unlink(missing_ok=True)
    return was_pinned


def collect_garbage(
    *, unused_days: int | None = None, max_bytes: int | None = None, dry_run: bool = False
) -> GarbageReport:
    """Remove leftovers of killed processes in the user's own home, and unused versions on request.

    Never removed: what cannot be downloaded again, pinned versions, those that the `orlog.lock` of the
    working folder pins, those of names with an interrupted recording, and what another process is writing.
    Versions opened within the last day stay too, unless `unused_days` is 0.

    With `unused_days`, downloaded versions not opened for so long go too, and interrupted downloads and files
    moved aside that have not changed for that long. Then, with `max_bytes`, downloaded versions, the least
    recently opened first, until all together take at most this. A `dry_run` writes nothing and checks no
    locks. What the disk refuses to remove is in `failures` of the report.
    """
    items = list(all_holdings(datasets_folder()))
    room, shelter = Room(items), _Shelter(items)
    candidates = []
    for item in items:
        # Reading manifests takes time, and nothing needs it without a limit.
        has_limit = unused_days is not None or max_bytes is not None
        for_room = has_limit and item.kind in ("version", "partial") and is_downloaded(item)
        if for_room or item.kind in ("leftover", *_UNUSED):
            candidates.append(
                Candidate(
                    path=item.path,
                    age=seconds_unused(item.path, item.kind),
                    remove=_removal(item, shelter, dry_run),
                    free=functools.partial(room.remove, item),
                    why=LEFT_BEHIND if item.kind == "leftover" else "",
                    unused=_UNUSED.get(item.kind, "not opened"),
                    for_room=for_room,
                )
            )
    return collect(candidates, room.size_bytes, unused_days, max_bytes)


def plan_deletion(versions: Iterable[DatasetName]) -> tuple[list[CachedVersion], int]:
    """Return what `delete_version` would remove for these versions, and the bytes it would free."""
    wanted = {(one.name, one.version) for one in versions}
    items = list(all_holdings(datasets_folder()))
    chosen = [item for item in items if (item.name, item.version) in wanted and item.kind != "recording"]
    room = Room(items)
    return described(chosen, items), sum(room.remove(item) for item in chosen)


def check_deletable(name: str, version: str) -> list[Holding]:
    """Return what is deleted with a version, leftovers first, since one of them could be put back.

    Raises the errors of `delete_version` that can be known beforehand; nothing is changed.
    """
    folder = _own_folder(name, version)
    items = [
        item for item in holdings_of(datasets_folder(), name) if item.version == version and item.kind != "recording"
    ]
    if not items:
        raise NotFoundError(_why_none(DatasetName(name, version)))
    if pin_file(folder).exists():
        raise StorageError(
            f"{name}@{version} is pinned; to delete it, first run: orlog cache keep --off {name}@{version}"
        )
    shelter = _Shelter(())
    if shelter.is_locked(name, version):
        raise StorageError(
            f"{name}@{version} is pinned by {shelter.lock_file}; remove it from that file or pin another "
            "version with orlog lock --update, then delete it. To delete it all the same, set "
            "ORLOG_LOCK=0."
        )
    if folder.is_symlink():
        raise StorageError(f"{folder} is a link to {folder.resolve()}; remove it yourself.")
    return sorted(items, key=lambda item: item.kind != "leftover")


def delete_version(name: str, version: str) -> int:
    """Remove a version, and all files about it, from the user's own home; return the bytes freed.

    A version in a shared home stays, and so does an interrupted recording.

    Raises NotFoundError if it does not exist; StorageError if it is pinned, on this machine or by the lock
    file; or it is only in a shared home; or another process is writing it; or the home cannot be written.
    """
    check_deletable(name, version)
    folder = _own_folder(name, version)
    room = Room(list(all_holdings(datasets_folder())))
    freed = 0
    try:
        with sole_access(folder, longest_wait=0), storage_errors(folder):
            for item in check_deletable(name, version):
                freed += room.remove(item)
                _discard(item)
    except BusyError:
        raise StorageError(f"{folder}: another process is writing this version; wait for it, then delete it.") from None
    return freed


def _own_folder(name: str, version: str) -> Path:
    """Return a version's folder in the user's own home; InvalidNameError if the name is invalid."""
    wanted = parse_name(f"{name}@{version}")
    return datasets_folder() / wanted.name / wanted.version


def _is_meant(wanted: DatasetName, folder: Path) -> bool:
    """Return whether a name means the version in a folder, whole or in part."""
    for place in (folder, partial_folder(folder)):
        with contextlib.suppress(IntegrityError, FormatVersionError):
            manifest = read_manifest(place / MANIFEST_FILE)
            if wanted.digest:
                return manifest.digest.startswith(wanted.digest)
            return wanted.version in ("", version_of(manifest))
    return not wanted.digest and wanted.version in ("", folder.name)


def _why_none(wanted: DatasetName) -> str:
    """Return why the user's own home holds nothing that a name could mean."""
    for root in reversed(dataset_folders()):
        for item in holdings_of(root, wanted.name):
            if wanted.version not in ("", item.version):
                continue
            if root != datasets_folder() and item.kind == "version":
                return f"{wanted} is in a shared home, {item.path}; ask who maintains it to delete it."
            if item.kind == "recording":
                return (
                    f"{wanted}: there is an interrupted recording in {item.path}, which is left alone; "
                    "DatasetWriter continues it (resume=True) or drops it (discard=True)."
                )
    return f"{wanted} is not on this machine; to see what is, run: orlog cache list"


class _Shelter:
    """What keeps versions, apart from their own pins: the lock file, and interrupted recordings."""

    def __init__(self, items: Iterable[Holding]) -> None:
        self.lock_file = find_lock()
        self._locked: Mapping[str, LockedDataset] = {}
        if self.lock_file is not None and self.lock_file.exists():
            self._locked = read_lock(self.lock_file)
        self.recorded = {item.name for item in items if item.kind == "recording"}

    def is_locked(self, name: str, version: str) -> bool:
        """Return whether the lock file pins a version."""
        pin = self._locked.get(name)
        return pin is not None and (
            pin.version == version or _is_meant(DatasetName(name, digest=pin.digest), _own_folder(name, version))
        )


def _removal(item: Holding, shelter: _Shelter, dry_run: bool) -> Callable[[float], str]:
    """Return what removes an item, if it was not used for some seconds, and returns why it stays."""

    def attempt(seconds: float) -> str:
        refusal = _refusal(item, seconds, shelter)
        if refusal == _TO_PUT_BACK:
            item.path.rename(item.folder)
            sync(item.path.parent)
        if refusal:
            return refusal
        return "" if _discard(item, seconds) else OPENED_NOW

    def remove(seconds: float) -> str:
        if dry_run:
            return _refusal(item, seconds, shelter)
        return remove_unless_busy(item.folder, lambda: attempt(seconds))

    return remove


def _refusal(item: Holding, seconds: float, shelter: _Shelter) -> str:
    """Return why an item must stay, or nothing; it must not have been opened or changed for some seconds."""
    if not os.path.lexists(item.path):
        return GONE
    if item.kind == "leftover":
        _, rest = parse_entry(item.path.name)
        if rest == "replaced" and not item.folder.exists():
            return _TO_PUT_BACK
        return "" if rest in KINDS or is_orphan(item.folder, rest) else "belongs to a version"
    if seconds_unused(item.path, item.kind) < seconds:
        return OPENED_NOW
    if item.kind not in ("version", "partial"):
        return ""
    if pin_file(item.folder).exists():
        return "is kept: orlog cache keep --off"
    if shelter.is_locked(item.name, item.version):
        return f"is pinned by {shelter.lock_file}"
    if item.name in shelter.recorded:
        return "an interrupted recording may continue from it"
    if not is_downloaded(item):
        return "is not what was downloaded"
    known = {MANIFEST_FILE, SIGNATURE_FILE, PARTIAL_FILE}
    with contextlib.suppress(IntegrityError, FormatVersionError):
        known |= {one.path for one in read_manifest(item.path / MANIFEST_FILE).objects}
    strangers = [path for path, _ in list_files(item.path) if path not in known]
    if strangers:
        return f"holds files that are not part of it ({strangers[0]}): orlog verify"
    return ""


def _discard(item: Holding, seconds: float = 0.0) -> bool:
    """Remove an item, whose lock is held, in one step; return False if it was used within so many seconds."""
    if item.kind == "leftover":
        erase(item.path)
        return True
    trash = item.folder.with_name(f".{item.version}.deleted")
    if not remove_in_one_step(item.path, trash, is_due=lambda path: seconds_unused(path, item.kind) >= seconds):
        return False
    if item.kind in ("version", "partial"):
        origin_file(item.path).unlink(missing_ok=True)
    return True
