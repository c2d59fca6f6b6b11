"""What homes hold: versions, parts of them, interrupted downloads, leftovers of killed processes.

$ORLOG_HOME/datasets/NAME/VERSION/            its modification time: when it was last opened
                          .VERSION.KIND       what else belongs to a version
                          .VERSION.pin        `orlog cache gc` keeps the version
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from orlog.datasets.home.folders import dataset_folders, datasets_folder
from orlog.datasets.home.origin import Origin, read_origin
from orlog.datasets.home.presence import partial_folder
from orlog.errors import FormatVersionError, IntegrityError, InvalidNameError, OrlogError
from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
from orlog.manifests.names import is_version, newest_first, parse_name
from orlog.manifests.rebuilds import is_rebuild, rebuild_text, version_of
from orlog.manifests.shipped import recorded_manifest

Kind: TypeAlias = Literal["version", "partial", "download", "recording", "strange", "leftover"]

# What follows the version in the name of a file or folder, and its kind.
KINDS: Mapping[str, Kind] = {
    "": "version",
    "partial": "partial",
    "download": "download",
    "recording": "recording",
    "strange": "strange",
    "partial.strange": "strange",
    "unfinished": "leftover",
    "replaced": "leftover",
    "deleted": "leftover",
    "manifest": "leftover",
    "partial.manifest": "leftover",
    "partial.record": "leftover",
    "origin.json.unfinished": "leftover",
    "partial.origin.json.unfinished": "leftover",
}


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
    """Return all that homes hold of versions: the user's own home first, then shared ones.

    Sorted by name, newest version first.
    """
    items = [item for root in dataset_folders() for item in all_holdings(root)]
    return described(items, items)


def mark_used(folder: Path) -> None:
    """Mark a version, or a part of one, as used; call it before its files are read.

    Only folders in the user's own home are marked, and only if that can be written.
    """
    if str(folder).startswith(f"{datasets_folder()}{os.sep}"):
        with contextlib.suppress(OSError):
            os.utime(folder)


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


class Room:
    """Counts the bytes of items; files that several of them link to count once."""

    def __init__(self, items: Sequence[Holding]) -> None:
        self._links = collections.Counter(file for item in items for file in item.files)
        self.size_bytes = sum(
            {key: size for one in items for key, size in one.files.items()}.values()
        )

    def remove(self, item: Holding) -> int:
        """Take the item out, and return the bytes that this frees."""
        freed = 0
        for file, size in item.files.items():
            self._links[file] -= 1
            freed += 0 if self._links[file] > 0 else size
        self.size_bytes -= freed
        return freed

    def shared_bytes(self, item: Holding) -> int:
        """Return the bytes of files that other items link to."""
        return sum(size for file, size in item.files.items() if self._links[file] > 1)


def all_holdings(root: Path) -> Iterator[Holding]:
    """Yield all items in a home's folder of datasets, sorted by name."""
    names = []
    for folder, below, _ in os.walk(root):
        below[:] = [one for one in below if not (one.startswith(".") or is_version(one))]
        names.append(Path(folder))
    for path in sorted(names):
        if _is_name(path.relative_to(root).as_posix()):
            yield from holdings_of(root, path)


def holdings_of(root: Path, folder: Path) -> Iterator[Holding]:
    """Yield the items of one name's versions, newest version first."""
    found: dict[str, list[tuple[str, Path]]] = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(folder.iterdir()):
            version, rest = parse_entry(path.name)
            found.setdefault(version, []).append((rest, path))
    found.pop("", None)
    name = folder.relative_to(root).as_posix()
    for version in newest_first(found):
        for rest, path in sorted(found[version]):
            kind = "leftover" if is_orphan(folder / version, rest) else KINDS.get(rest)
            if kind is not None and (kind == "leftover" or path.is_dir()):
                yield Holding(name, version, kind, path, root, _measure(path))


def _is_name(text: str) -> bool:
    try:
        return parse_name(text).name == text
    except InvalidNameError:
        return False


def parse_entry(entry: str) -> tuple[str, str]:
    """Return the version that an entry of a name's folder belongs to, and the rest of its name."""
    if is_version(entry):
        return entry, ""
    *numbers, rest = entry.lstrip(".").split(".", 3)
    version = ".".join(numbers)
    return (version, rest) if entry.startswith(".") and is_version(version) else ("", "")


def is_orphan(folder: Path, rest: str) -> bool:
    """Return whether a file is about a version that is not here."""
    if rest == "origin.json":
        return not folder.is_dir()
    if rest == "partial.origin.json":
        return not partial_folder(folder).is_dir()
    return rest == "pin" and not (folder.is_dir() or partial_folder(folder).is_dir())


def _measure(path: Path) -> dict[tuple[int, int], int]:
    """Return the bytes of the files at or below a path, by device and inode."""
    sizes = {}
    for file in _files_below(path) if path.is_dir() else [str(path)]:
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(file)
            sizes[found.st_dev, found.st_ino] = found.st_size
    return sizes


def _files_below(path: Path) -> Iterator[str]:
    for folder, _, files in os.walk(path):
        yield from (f"{folder}{os.sep}{file}" for file in files)


def _was_last_used(path: Path, kind: Kind) -> float:
    """Return when a version was opened, or another kind changed, in seconds since the epoch."""
    paths = [str(path)]
    if kind not in ("version", "partial"):
        paths += [*(folder for folder, _, _ in os.walk(path)), *_files_below(path)]
    times = [0.0]
    for one in paths:
        with contextlib.suppress(FileNotFoundError):
            times.append(os.lstat(one).st_mtime)
    return max(times)


def last_used(folder: Path) -> dt.datetime:
    """Return when a version, or a part of one, was last opened, in UTC."""
    return dt.datetime.fromtimestamp(_was_last_used(folder, "version"), dt.UTC)


def seconds_unused(path: Path, kind: Kind) -> float:
    """Return the seconds since the last use; 0 if that is in the future (a changed clock)."""
    return max(0.0, time.time() - _was_last_used(path, kind))


def is_downloaded(item: Holding) -> bool:
    """Return whether an item is unchanged since its download, and so can be downloaded again."""
    if item.kind == "partial":
        return True
    if item.kind != "version" or item.path.is_symlink():
        return False
    origin = _find_origin(item.path)
    with contextlib.suppress(IntegrityError, FormatVersionError):
        return (
            origin is not None and origin.digest == read_manifest(item.path / MANIFEST_FILE).digest
        )
    return False


def described(items: Iterable[Holding], among: Sequence[Holding]) -> list[CachedVersion]:
    """Return items as `CachedVersion`; files that they share with `among` count as shared."""
    room = Room(among)
    return [
        CachedVersion(
            name=item.name,
            version=item.version,
            kind=item.kind,
            folder=item.path,
            home=item.root,
            size_bytes=sum(item.files.values()),
            shared_bytes=room.shared_bytes(item),
            came_from=came_from,
            again=again,
            last_used=dt.datetime.fromtimestamp(_was_last_used(item.path, item.kind), dt.UTC),
            is_pinned=pin_file(item.folder).exists(),
        )
        for item in items
        for came_from, again in (_history_of(item),)
    ]


_QUERY = re.compile(r"(://[^\s?]*)\?[^\s,]*")


def _history_of(item: Holding) -> tuple[str, str]:
    """Return where an item is from, and the command that restores it, or nothing; queries may be secrets."""
    came_from, again = _whole_history_of(item)
    return _QUERY.sub(r"\1", came_from), _QUERY.sub(r"\1", again)


def _whole_history_of(item: Holding) -> tuple[str, str]:
    if item.kind not in ("version", "partial"):
        return "", ""
    if is_downloaded(item):
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
        version = version_of(manifest)
        name = "" if version == item.version else f"{version}, "
        return f"{name}{rebuild_text(manifest)}", ""
    if manifest.recipe is not None:
        is_known = recorded_manifest(item.name, item.version) is not None
        return "built", f"orlog build {item.name}" if is_known else ""
    if manifest.lineage:
        return f"made from another: {manifest.lineage[-1].operation}", ""
    return "recorded", ""


def _find_origin(folder: Path) -> Origin | None:
    """Return where a version was downloaded from, if that is known."""
    with contextlib.suppress(OrlogError):
        return read_origin(folder)
    return None


def pin_file(folder: Path) -> Path:
    """Return the file whose presence pins the version with this folder."""
    return folder.with_name(f".{folder.name}.pin")
