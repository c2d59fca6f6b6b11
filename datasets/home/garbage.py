"""What homes hold, and freeing their space: unused versions, leftovers of killed processes, deleted versions.

$ORLOG_HOME/datasets/NAME/VERSION/            its modification time: when it was last opened
                          .VERSION.KIND       what else belongs to a version
                          .VERSION.pin        `orlog cache gc` keeps the version
                          .VERSION.deleted/   being removed; any later collection completes it

`collect_garbage` removes only versions that can be downloaded again; `collect` is what it shares with the
collectors of packs and of versions that are read in place. Whatever goes is renamed first, under its lock: a
process that opens it finds all of it or nothing. Shared homes (ORLOG_SHARED) are listed and never changed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
import functools
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from orlog.base.files import BusyError, list_files, sole_access, storage_errors, sync
from orlog.datasets.home.folders import PARTIAL_FILE, dataset_folders, datasets_folder, name_folders, partial_folder
from orlog.datasets.home.records import Origin, origin_file, read_origin
from orlog.errors import FormatVersionError, IntegrityError, NotFoundError, OrlogError, StorageError
from orlog.manifests.lock import LockedDataset, find_lock, read_lock
from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
from orlog.manifests.names import DatasetName, is_name, is_version, newest_first, parse_name
from orlog.manifests.rebuilds import is_rebuild, rebuild_text
from orlog.manifests.shipped import recorded_manifest
from orlog.manifests.signatures import SIGNATURE_FILE

DAY = 86_400.0
GONE = "is gone already"
LEFT_BEHIND = "left by a process that ended early"
OPENED_NOW = "was opened or changed just now"
Kind: TypeAlias = Literal["version", "partial", "download", "recording", "strange", "leftover"]

# What follows the version in the name of a file or folder, and its kind.
_KINDS: Mapping[str, Kind] = {
    "": "version",
    "partial": "partial",
    "download": "download",
    "recording": "recording",
    "strange": "strange",
    "partial.strange": "strange",
    **dict.fromkeys(("unfinished", "replaced", "deleted"), "leftover"),
    **dict.fromkeys(("manifest", "partial.manifest", "partial.record"), "leftover"),
    **dict.fromkeys(("origin.json.unfinished", "partial.origin.json.unfinished"), "leftover"),
}
_UNUSED = {"download": "a download without progress", "strange": "moved aside"}
_TO_PUT_BACK = "is put back: a process was killed while it was replacing it"
_QUERY = re.compile(r"(://[^\s?]*)\?[^\s,]*")


# --- what homes hold


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CachedVersion:
    """A stored version, or what there is of one.

    Attributes:
        name: Dataset's name.
        version: Content version.
        kind: `version`: all of it. `partial`: some episodes or columns. `download`: an interrupted
            download. `recording`: an interrupted recording; nothing here ever removes it.
            `strange`: files that a repair moved aside. `leftover`: left by a process that
            was killed, or being written now.
        folder: Where it lies.
        home: The home's folder of datasets: the user's own, or a shared one.
        size_bytes: Bytes of its files, links to one file counted once.
        shared_bytes: Bytes of the files that other entries link to, which removing this one does
            not free.
        came_from: Where it is from, in words.
        again: Command that restores it; empty if none is known.
        last_used: When it was last opened (version, partial) or changed, in UTC.
        is_pinned: Whether `orlog cache gc` keeps it.
    """

    name: str
    version: str
    kind: Kind
    folder: Path
    home: Path
    size_bytes: int
    shared_bytes: int
    came_from: str
    again: str
    last_used: dt.datetime
    is_pinned: bool


def cached_versions() -> list[CachedVersion]:
    """Return all that homes hold of versions: the user's own home first, each by name, newest version first."""
    items = [item for root in dataset_folders() for item in _all_holdings(root)]
    return _described(items, items)


def total_bytes() -> int:
    """Return the bytes of all versions in the user's own home, each file counted once."""
    return _Room(list(_all_holdings(datasets_folder()))).size_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """A file or folder that belongs to one version. `files`: bytes by device and inode."""

    name: str
    version: str
    kind: Kind
    path: Path
    root: Path
    files: Mapping[tuple[int, int], int]

    @property
    def folder(self) -> Path:
        """The version's own folder, whether it exists or not."""
        return self.root / self.name / self.version


class _Room:
    """Counts the bytes of items; files that several of them link to count once."""

    def __init__(self, items: Sequence[Holding]) -> None:
        self.links = collections.Counter(file for item in items for file in item.files)
        self.size_bytes = sum({file: size for item in items for file, size in item.files.items()}.values())

    def remove(self, item: Holding) -> int:
        """Take the item out, and return the bytes that this frees."""
        self.links.subtract(item.files.keys())
        freed = sum(size for file, size in item.files.items() if self.links[file] <= 0)
        self.size_bytes -= freed
        return freed


def _all_holdings(root: Path) -> Iterator[Holding]:
    for name in sorted(name for name, _ in name_folders(root) if is_name(name)):
        yield from _holdings_of(root, name)


def _holdings_of(root: Path, name: str) -> Iterator[Holding]:
    """Yield the items of one name's versions, newest version first."""
    folder = root / name
    entries: dict[str, list[tuple[str, Path]]] = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in folder.iterdir():
            version, rest = _parse_entry(path.name)
            entries.setdefault(version, []).append((rest, path))
    entries.pop("", None)
    for version in newest_first(entries):
        for rest, path in sorted(entries[version]):
            kind = "leftover" if _is_orphan(folder / version, rest) else _KINDS.get(rest)
            if kind is not None and (kind == "leftover" or path.is_dir()):
                yield Holding(name, version, kind, path, root, _measure(path))


def _parse_entry(entry: str) -> tuple[str, str]:
    if is_version(entry):
        return entry, ""
    *numbers, rest = entry.lstrip(".").split(".", 3)
    version = ".".join(numbers)
    return (version, rest) if entry.startswith(".") and is_version(version) else ("", "")


def _is_orphan(folder: Path, rest: str) -> bool:
    """Return whether a file is about a version that is not here."""
    places = {"origin.json": [folder], "partial.origin.json": [partial_folder(folder)]}
    places["pin"] = [folder, partial_folder(folder)]
    return rest in places and not any(place.is_dir() for place in places[rest])


def _measure(path: Path) -> dict[tuple[int, int], int]:
    sizes = {}
    files = [Path(folder, file) for folder, _, names in os.walk(path) for file in names]
    for file in files if path.is_dir() else [path]:
        with contextlib.suppress(FileNotFoundError):
            status = file.lstat()
            sizes[status.st_dev, status.st_ino] = status.st_size
    return sizes


def last_used(path: Path, kind: Kind = "version") -> dt.datetime:
    """Return when a version, or a part of one, was last opened, or another kind changed, in UTC."""
    paths = [path]
    if kind not in ("version", "partial"):
        paths += path.rglob("*")
    times = [0.0]
    for each in paths:
        with contextlib.suppress(FileNotFoundError):
            times.append(each.lstat().st_mtime)
    return dt.datetime.fromtimestamp(max(times), dt.UTC)


def _seconds_unused(path: Path, kind: Kind) -> float:
    return max(0.0, time.time() - last_used(path, kind).timestamp())


def _is_downloaded(item: Holding) -> bool:
    """Return whether an item is unchanged since its download, and so can be downloaded again."""
    if item.kind == "partial":
        return True
    if item.kind != "version" or item.path.is_symlink():
        return False
    origin = _find_origin(item.path)
    with contextlib.suppress(IntegrityError, FormatVersionError):
        return origin is not None and origin.digest == read_manifest(item.path / MANIFEST_FILE).digest
    return False


def _find_origin(folder: Path) -> Origin | None:
    with contextlib.suppress(OrlogError):
        return read_origin(folder)
    return None


def _described(items: Iterable[Holding], among: Sequence[Holding]) -> list[CachedVersion]:
    """Return items as `CachedVersion`; files that they share with `among` count as shared."""
    links = _Room(among).links
    versions = []
    for item in items:
        # Queries of URLs may be secrets.
        came_from, again = (_QUERY.sub(r"\1", text) for text in _history_of(item))
        versions.append(
            CachedVersion(
                name=item.name,
                version=item.version,
                kind=item.kind,
                folder=item.path,
                home=item.root,
                size_bytes=sum(item.files.values()),
                shared_bytes=sum(size for file, size in item.files.items() if links[file] > 1),
                came_from=came_from,
                again=again,
                last_used=last_used(item.path, item.kind),
                is_pinned=_pin_file(item.folder).exists(),
            )
        )
    return versions


def _history_of(item: Holding) -> tuple[str, str]:
    """Return where an item is from, and the command that restores it, or nothing."""
    if item.kind not in ("version", "partial"):
        return "", ""
    if _is_downloaded(item):
        origin = _find_origin(item.path)
        by_name = f"orlog download {item.name}@{item.version}"
        if origin is None or not (origin.registry or origin.mirrors):
            return "downloaded", by_name
        place = origin.registry or origin.mirrors[0]
        return f"downloaded from {place}", by_name if origin.registry else f"orlog download {place}"
    try:
        manifest = read_manifest(item.path / MANIFEST_FILE)
    except (IntegrityError, FormatVersionError):
        return "unknown: its manifest cannot be read", ""
    if is_rebuild(manifest):
        return rebuild_text(manifest), ""
    if manifest.recipe is not None:
        is_known = recorded_manifest(item.name, item.version) is not None
        return "built", f"orlog build {item.name}" if is_known else ""
    if manifest.lineage:
        return f"made from another: {manifest.lineage[-1].operation}", ""
    return "recorded", ""


# --- what all collectors share


class Collected(NamedTuple):
    """A path that was removed (or would be) or kept, why, and how many bytes this freed."""

    path: Path
    why: str
    freed_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class GarbageReport:
    """What a collector removed and kept, the bytes that are left, and what the disk refused to remove."""

    removed: list[Collected]
    kept: list[Collected]
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
    """
    if min(unused_days or 0, max_bytes or 0) < 0:
        raise ValueError("days and bytes must be 0 or more.")
    report = GarbageReport([], [], size_bytes)
    left = size_bytes
    for item in sorted(candidates, key=lambda item: (not item.why, -item.age)):
        if item.why:
            why, seconds = item.why, 0.0
        elif unused_days is not None and item.age >= unused_days * DAY:
            why, seconds = f"{item.unused} for {item.age / DAY:.0f} days", unused_days * DAY
        elif max_bytes is not None and item.for_room and item.age >= DAY and left > max_bytes:
            why, seconds = "opened least recently, and room was asked for", DAY
        else:
            continue
        try:
            refusal = item.remove(seconds)
        except StorageError as error:
            report.failures.append(error)
            continue
        if refusal not in ("", GONE):
            report.kept.append(Collected(item.path, refusal))
            continue
        freed = item.free()
        left -= freed
        if not refusal:
            report.removed.append(Collected(item.path, why, freed))
    return dataclasses.replace(report, left_bytes=left)


def remove_unless_busy(folder: Path, remove: Callable[[], str]) -> str:
    """Call `remove` while holding the folder's lock; return why it was not removed, or nothing."""
    try:
        with sole_access(folder, longest_wait=0), storage_errors(folder):
            return remove()
    except BusyError:
        return "is being written by another process"


def remove_in_one_step(path: Path, trash: Path, *, is_due: Callable[[Path], bool] = lambda _: True) -> bool:
    """Remove a folder, whose lock is held, by renaming it to `trash` and erasing that; return whether it is gone.

    `is_due` checks the renamed folder, which is put back if it is not due: a process that marked it as used before
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


def own_versions(name: str, kinds: Sequence[Kind] = ("version", "partial")) -> list[DatasetName]:
    """Return the versions in the user's own home that a name means: all of these kinds, or the one it pins."""
    wanted = parse_name(name)
    items = _holdings_of(datasets_folder(), wanted.name)
    versions = newest_first({item.version for item in items if item.kind in kinds})
    folder = datasets_folder() / wanted.name
    chosen = [version for version in versions if _is_meant(wanted, folder / version)]
    if not chosen:
        raise NotFoundError(_why_none(wanted))
    return [DatasetName(wanted.name, version) for version in chosen]


def pin_version(name: str, version: str, *, on_wait: Callable[[], None] = lambda: None) -> None:
    """Keep `collect_garbage` from removing a version, or a part of one, in the user's own home."""
    folder = _own_folder(name, version)
    if folder.parent.is_dir():
        with sole_access(folder, on_wait=on_wait), storage_errors(_pin_file(folder)):
            if not _is_orphan(folder, "pin"):
                _pin_file(folder).touch()
                return
    raise NotFoundError(_why_none(DatasetName(name, version)))


def unpin_version(name: str, version: str) -> bool:
    """Let `collect_garbage` remove a version again; return whether it was pinned."""
    pin = _pin_file(_own_folder(name, version))
    was_pinned = pin.exists()
    with storage_errors(pin):
        pin.unlink(missing_ok=True)
    return was_pinned


def _pin_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.pin")


def collect_garbage(
    *, unused_days: int | None = None, max_bytes: int | None = None, dry_run: bool = False
) -> GarbageReport:
    """Remove leftovers of killed processes in the user's own home, and unused versions on request.

    Never removed: what cannot be downloaded again, what a pin or the `orlog.lock` of the working folder keeps, names
    with an interrupted recording, and what another process is writing. With `unused_days`, what was not opened, or
    has not changed, for so long goes too; then, with `max_bytes`, downloaded versions, the least recently opened
    first, until all take at most this. A `dry_run` writes nothing and checks no locks.
    """
    items = list(_all_holdings(datasets_folder()))
    room, shelter = _Room(items), _Shelter(items)
    candidates = []
    for item in items:
        # Reading manifests takes time, and nothing needs it without a limit.
        has_limit = unused_days is not None or max_bytes is not None
        for_room = has_limit and item.kind in ("version", "partial") and _is_downloaded(item)
        if for_room or item.kind in ("leftover", *_UNUSED):
            candidates.append(
                Candidate(
                    path=item.path,
                    age=_seconds_unused(item.path, item.kind),
                    remove=functools.partial(_refusal if dry_run else _remove, item, shelter),
                    free=functools.partial(room.remove, item),
                    why=LEFT_BEHIND if item.kind == "leftover" else "",
                    unused=_UNUSED.get(item.kind, "not opened"),
                    for_room=for_room,
                )
            )
    return collect(candidates, room.size_bytes, unused_days, max_bytes)


def plan_deletion(versions: Iterable[DatasetName]) -> tuple[list[CachedVersion], int]:
    """Return what `delete_version` would remove for these versions, and the bytes it would free."""
    wanted = {(version.name, version.version) for version in versions}
    items = list(_all_holdings(datasets_folder()))
    chosen = [item for item in items if (item.name, item.version) in wanted and item.kind != "recording"]
    room = _Room(items)
    return _described(chosen, items), sum(room.remove(item) for item in chosen)


def check_deletable(name: str, version: str) -> list[Holding]:
    """Return what is deleted with a version, leftovers first: of two, the other could be put back.

    Raises the errors of `delete_version` that can be known beforehand; nothing is changed.
    """
    folder = _own_folder(name, version)
    items = [
        item for item in _holdings_of(datasets_folder(), name) if item.version == version and item.kind != "recording"
    ]
    if not items:
        raise NotFoundError(_why_none(DatasetName(name, version)))
    if _pin_file(folder).exists():
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
    """
    check_deletable(name, version)
    folder = _own_folder(name, version)
    room = _Room(list(_all_holdings(datasets_folder())))
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
            return wanted.version in ("", manifest.version)
    return not wanted.digest and wanted.version in ("", folder.name)


def _why_none(wanted: DatasetName) -> str:
    """Return why the user's own home holds nothing that a name could mean."""
    for root in reversed(dataset_folders()):
        for item in _holdings_of(root, wanted.name):
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


def _remove(item: Holding, shelter: _Shelter, seconds: float) -> str:
    """Remove an item unless it was used within so many seconds; return why it stays, or nothing."""

    def attempt() -> str:
        refusal = _refusal(item, shelter, seconds)
        if refusal == _TO_PUT_BACK:
            item.path.rename(item.folder)
            sync(item.path.parent)
        return refusal or ("" if _discard(item, seconds) else OPENED_NOW)

    return remove_unless_busy(item.folder, attempt)


def _refusal(item: Holding, shelter: _Shelter, seconds: float) -> str:
    """Return why an item must stay, or nothing; it must not have been opened or changed for some seconds."""
    if not os.path.lexists(item.path):
        return GONE
    if item.kind == "leftover":
        _, rest = _parse_entry(item.path.name)
        if rest == "replaced" and not item.folder.exists():
            return _TO_PUT_BACK
        return "" if rest in _KINDS or _is_orphan(item.folder, rest) else "belongs to a version"
    if _seconds_unused(item.path, item.kind) < seconds:
        return OPENED_NOW
    if item.kind not in ("version", "partial"):
        return ""
    if _pin_file(item.folder).exists():
        return "is kept: orlog cache keep --off"
    if shelter.is_locked(item.name, item.version):
        return f"is pinned by {shelter.lock_file}"
    if item.name in shelter.recorded:
        return "an interrupted recording may continue from it"
    if not _is_downloaded(item):
        return "is not what was downloaded"
    known = {MANIFEST_FILE, SIGNATURE_FILE, PARTIAL_FILE}
    with contextlib.suppress(IntegrityError, FormatVersionError):
        known |= {stored.path for stored in read_manifest(item.path / MANIFEST_FILE).objects}
    strangers = [path for path, _ in list_files(item.path) if path not in known]
    return f"holds files that are not part of it ({strangers[0]}): orlog verify" if strangers else ""


def _discard(item: Holding, seconds: float = 0.0) -> bool:
    """Remove an item, whose lock is held, in one step; return False if it was used within so many seconds."""
    if item.kind == "leftover":
        erase(item.path)
        return True
    trash = item.folder.with_name(f".{item.version}.deleted")
    if not remove_in_one_step(item.path, trash, is_due=lambda path: _seconds_unused(path, item.kind) >= seconds):
        return False
    if item.kind in ("version", "partial"):
        origin_file(item.path).unlink(missing_ok=True)
    return True
