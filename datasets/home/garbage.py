"""Removes versions from the user's home: unused ones, or those that the user deletes.

    $ORLOG_HOME/datasets/NAME/.VERSION.deleted/    being removed; any later collection completes it

`collect_garbage` removes only versions that can be downloaded again. Each is removed in one step,
under its lock: a process that opens it finds all of it or nothing. Shared homes (ORLOG_SHARED) are
listed and never changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from orlog.base.files import BusyError, list_files, sole_access, storage_errors, sync
from orlog.datasets.home.folders import dataset_folders, datasets_folder
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
    is_orphan,
    parse_entry,
    pin_file,
    seconds_unused,
)
from orlog.datasets.home.origin import origin_file
from orlog.datasets.home.presence import PARTIAL_FILE, partial_folder
from orlog.datasets.home.removal import (
    DAY,
    GONE,
    LEFT_BEHIND,
    OPENED_LEAST_RECENTLY,
    OPENED_NOW,
    Collection,
    GarbageReport,
    Removed,
    check_limits,
    erase,
    remove_in_one_step,
    remove_unless_busy,
)
from orlog.errors import FormatVersionError, IntegrityError, NotFoundError, StorageError
from orlog.manifests.documents import convert_json, parse_json, read_small_file
from orlog.manifests.lock import LockedDataset, find_lock, read_lock
from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
from orlog.manifests.names import DatasetName, newest_first, parse_name
from orlog.manifests.rebuilds import version_of
from orlog.manifests.signatures import SIGNATURE_FILE

_UNUSED = {"download": "a download without progress", "strange": "moved aside"}
_TO_PUT_BACK = "is put back: a process was killed while it was replacing it"


def total_bytes() -> int:
    """Return the bytes of all versions in the user's own home, each file counted once."""
    return Room(list(all_holdings(datasets_folder()))).size_bytes


def own_versions(name: str, kinds: Sequence[Kind] = ("version", "partial")) -> list[DatasetName]:
    """Return the versions in the user's own home that a name means: all, or the one it pins.

    There must be one of these `kinds` (`CachedVersion.kind`); the error says what exists instead.
    """
    wanted = parse_name(name)
    folder = datasets_folder() / wanted.name
    found = {item.version for item in holdings_of(datasets_folder(), folder) if item.kind in kinds}
    chosen = [one for one in newest_first(found) if _is_meant(wanted, folder / one)]
    if not chosen:
        raise NotFoundError(_why_none(wanted))
    return [DatasetName(wanted.name, version) for version in chosen]


def pin_version(name: str, version: str, *, on_wait: Callable[[], None] = lambda: None) -> None:
    """Keep `collect_garbage` from removing a version, or a part of one, in the user's own home.

    Waits while another process writes the version, after one call of `on_wait`.

    Raises NotFoundError if it does not exist; StorageError if the home cannot be written.
    """
    folder = _own_folder(name, version)
    if not _is_here(folder):
        raise NotFoundError(_why_none(DatasetName(name, version)))
    with sole_access(folder, on_wait=on_wait), storage_errors(pin_file(folder)):
        if not _is_here(folder):
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
    locks. What could be removed was, also where an error says what could not.
    """
    check_limits(unused_days, max_bytes)
    items = list(all_holdings(datasets_folder()))
    room = Room(items)
    shelter = _make_shelter(items)
    done = Collection()

    def remove(item: Holding, why: str, seconds: float) -> None:
        def attempt() -> str:
            if dry_run:
                return _refusal(item, seconds, shelter)
            return remove_unless_busy(item.folder, lambda: _remove(item, seconds, shelter))

        done.attempt(item.path, why, attempt, lambda: room.remove(item))

    for item in items:
        if item.kind == "leftover":
            remove(item, LEFT_BEHIND, 0.0)
    ages = {item.path: seconds_unused(item.path, item.kind) for item in items}
    items.sort(key=lambda item: -ages[item.path])
    may_go: set[Path] = set()
    if unused_days is not None or max_bytes is not None:
        may_go = {item.path for item in items if is_downloaded(item)}
    if unused_days is not None:
        for item in items:
            age = ages[item.path]
            if age >= unused_days * DAY and (item.path in may_go or item.kind in _UNUSED):
                why = f"{_UNUSED.get(item.kind, 'not opened')} for {age / DAY:.0f} days"
                remove(item, why, unused_days * DAY)
    if max_bytes is not None:
        may_go -= {one.path for one in done.removed} | {one.path for one in done.kept}
        for item in items:
            is_due = item.path in may_go and ages[item.path] >= DAY
            if is_due and room.size_bytes > max_bytes:
                remove(item, OPENED_LEAST_RECENTLY, DAY)
    removed = [*done.removed, *_forget_records(dry_run=dry_run)]
    if done.failures:
        raise done.failures[0]
    return GarbageReport(removed, done.kept, room.size_bytes)


def plan_deletion(versions: Iterable[DatasetName]) -> tuple[list[CachedVersion], int]:
    """Return what `delete_version` would remove for these versions, and the bytes it would free."""
    wanted = {(one.name, one.version) for one in versions}
    items = list(all_holdings(datasets_folder()))
    chosen = [
        item for item in items if (item.name, item.version) in wanted and item.kind != "recording"
    ]
    room = Room(items)
    return described(chosen, items), sum(room.remove(item) for item in chosen)


def check_deletable(name: str, version: str) -> None:
    """Raise the errors of `delete_version` that can be known beforehand; nothing is changed."""
    folder = _own_folder(name, version)
    if not _deletable(folder):
        raise NotFoundError(_why_none(DatasetName(name, version)))
    if pin_file(folder).exists():
        raise StorageError(
            f"{name}@{version} is pinned; to delete it, first run: "
            f"orlog cache keep --off {name}@{version}"
        )
    lock_file = _locking_file(name, version)
    if lock_file is not None:
        raise StorageError(
            f"{name}@{version} is pinned by {lock_file}; remove it from that file or pin another "
            "version with orlog lock --update, then delete it. To delete it all the same, set "
            "ORLOG_LOCK=0."
        )
    if folder.is_symlink():
        raise StorageError(f"{folder} is a link to {folder.resolve()}; remove it yourself.")


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
            check_deletable(name, version)
            for item in _deletable(folder):
                freed += room.remove(item)
                _discard(item)
    except BusyError:
        raise StorageError(
            f"{folder}: another process is writing this version; wait for it, then delete it."
        ) from None
    return freed


def _own_folder(name: str, version: str) -> Path:
    """Return a version's folder in the user's own home; InvalidNameError if the name is invalid."""
    wanted = parse_name(f"{name}@{version}")
    return datasets_folder() / wanted.name / wanted.version


def _locking_file(name: str, version: str) -> Path | None:
    """Return the lock file of the working folder if it pins a version, or None."""
    path = find_lock()
    pin = read_lock(path).get(name) if path is not None and path.exists() else None
    if pin is None:
        return None
    is_pinned = pin.version == version or _is_meant(
        DatasetName(name, digest=pin.digest), _own_folder(name, version)
    )
    return path if is_pinned else None


def _is_here(folder: Path) -> bool:
    return folder.is_dir() or partial_folder(folder).is_dir()


def _is_meant(wanted: DatasetName, folder: Path) -> bool:
    for place in (folder, partial_folder(folder)):
        with contextlib.suppress(IntegrityError, FormatVersionError):
            manifest = read_manifest(place / MANIFEST_FILE)
            if wanted.digest:
                return manifest.digest.startswith(wanted.digest)
            return wanted.version in ("", version_of(manifest))
    return not wanted.digest and wanted.version in ("", folder.name)


def _why_none(wanted: DatasetName) -> str:
    """Return why the user's own home holds nothing that a name could mean."""
    others = [
        item
        for root in dataset_folders()
        for item in holdings_of(root, root / wanted.name)
        if wanted.version in ("", item.version)
    ]
    for item in others:
        if item.root != datasets_folder() and item.kind == "version":
            return f"{wanted} is in a shared home, {item.path}; ask who maintains it to delete it."
    for item in others:
        if item.kind == "recording":
            return (
                f"{wanted}: there is an interrupted recording in {item.path}, which is left alone; "
                "DatasetWriter continues it (resume=True) or drops it (discard=True)."
            )
    return f"{wanted} is not on this machine; to see what is, run: orlog cache list"


# --- deciding what to remove, and removing it


@dataclasses.dataclass(frozen=True, slots=True)
class _Shelter:
    """What keeps versions, apart from their own pins."""

    lock_file: Path | None
    locked: Mapping[str, LockedDataset]
    recorded: frozenset[str]


def _make_shelter(items: Iterable[Holding]) -> _Shelter:
    path = find_lock()
    return _Shelter(
        path,
        read_lock(path) if path is not None and path.exists() else {},
        frozenset(item.name for item in items if item.kind == "recording"),
    )


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
    locked = shelter.locked.get(item.name)
    if locked is not None and locked.version == item.version:
        return f"is pinned by {shelter.lock_file}"
    if item.name in shelter.recorded:
        return "an interrupted recording may continue from it"
    if not is_downloaded(item):
        return "is not what was downloaded"
    strangers = _strangers(item.path)
    if strangers:
        return f"holds files that are not part of it ({strangers[0]}): orlog verify"
    return ""


def _strangers(folder: Path) -> list[str]:
    """Return the files in a version's folder that its manifest does not list."""
    known = {MANIFEST_FILE, SIGNATURE_FILE, PARTIAL_FILE}
    with contextlib.suppress(IntegrityError, FormatVersionError):
        known |= {item.path for item in read_manifest(folder / MANIFEST_FILE).objects}
    return [path for path, _ in list_files(folder) if path not in known]


def _remove(item: Holding, seconds: float, shelter: _Shelter) -> str:
    """Remove an item, whose lock is held, unless it must stay; return why it stays."""
    refusal = _refusal(item, seconds, shelter)
    if refusal == _TO_PUT_BACK:
        item.path.rename(item.folder)
        sync(item.path.parent)
    if refusal:
        return refusal
    return "" if _discard(item, seconds) else OPENED_NOW


def _discard(item: Holding, seconds: float = 0.0) -> bool:
    """Remove an item, whose lock is held, in one step; return whether it is gone.

    It stays if it was opened or changed less than `seconds` ago.
    """
    if item.kind == "leftover":
        erase(item.path)
        return True
    trash = item.folder.with_name(f".{item.version}.deleted")
    if not remove_in_one_step(
        item.path, trash, is_due=lambda path: seconds_unused(path, item.kind) >= seconds
    ):
        return False
    if item.kind in ("version", "partial"):
        origin_file(item.path).unlink(missing_ok=True)
    return True


def _deletable(folder: Path) -> list[Holding]:
    """Return all items to delete with a version, leftovers first: one of them could be put back."""
    items = holdings_of(datasets_folder(), folder.parent)
    found = [one for one in items if one.version == folder.name and one.kind != "recording"]
    return sorted(found, key=lambda item: item.kind != "leftover")


class _Record(msgspec.Struct):
    folder: str


def _forget_records(*, dry_run: bool) -> list[Removed]:
    """Remove the verification records of folders that are gone."""
    forgotten = []
    for path in sorted((datasets_folder().parent / "verified").glob("[0-9a-f]*.json")):
        with contextlib.suppress(OSError, ValueError):
            folder = convert_json(parse_json(read_small_file(path)), _Record).folder
            # A path that is not valid text cannot be recovered from its record.
            is_name = hashlib.sha256(os.fsencode(folder)).hexdigest().startswith(path.stem)
            if is_name and not os.path.lexists(folder):
                size = path.stat().st_size
                if not dry_run:
                    path.unlink()
                forgotten.append(Removed(path, "about a folder that is gone", size))
    return forgotten
