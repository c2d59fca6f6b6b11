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

from orlog.datasets.home.folders import dataset_folders, name_folders, partial_folder
from orlog.datasets.home.records import Origin, read_origin
from orlog.errors import FormatVersionError, IntegrityError, OrlogError
from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
from orlog.manifests.names import is_name, is_version, newest_first
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
    **dict.fromkeys(("unfinished", "replaced", "deleted"), "leftover"),
    **dict.fromkeys(("manifest", "partial.manifest", "partial.record"), "leftover"),
    **dict.fromkeys(("origin.json.unfinished", "partial.origin.json.unfinished"), "leftover"),
}
_QUERY = re.compile(r"(://[^\s?]*)\?[^\s,]*")


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
        sizes = {file: size for item in items for file, size in item.files.items()}
        self.size_bytes = sum(sizes.values())

    def remove(self, item: Holding) -> int:
        """Take the item out, and return the bytes that this frees."""
        self._links.subtract(item.files.keys())
        freed = sum(size for file, size in item.files.items() if self._links[file] <= 0)
        self.size_bytes -= freed
        return freed

    def shared_bytes(self, item: Holding) -> int:
        """Return the bytes of files that other items link to."""
        return sum(size for file, size in item.files.items() if self._links[file] > 1)


def all_holdings(root: Path) -> Iterator[Holding]:
    """Yield all items in a home's folder of datasets, sorted by name."""
    for name in sorted(name for name, _ in name_folders(root) if is_name(name)):
        yield from holdings_of(root, name)


def holdings_of(root: Path, name: str) -> Iterator[Holding]:
    """Yield the items of one name's versions, newest version first."""
    folder = root / name
    entries: dict[str, list[tuple[str, Path]]] = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(folder.iterdir()):
            version, rest = parse_entry(path.name)
            entries.setdefault(version, []).append((rest, path))
    entries.pop("", None)
    for version in newest_first(entries):
        for rest, path in sorted(entries[version]):
            kind = "leftover" if is_orphan(folder / version, rest) else KINDS.get(rest)
            if kind is not None and (kind == "leftover" or path.is_dir()):
                yield Holding(name, version, kind, path, root, _measure(path))


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
    return rest == "pin" and not is_here(folder)


def is_here(folder: Path) -> bool:
    """Return whether a version, or a part of it, is here, given its own folder."""
    return folder.is_dir() or partial_folder(folder).is_dir()


def _measure(path: Path) -> dict[tuple[int, int], int]:
    """Return the bytes of the files at or below a path, by device and inode."""
    sizes = {}
    files = [Path(folder, file) for folder, _, names in os.walk(path) for file in names]
    for file in files if path.is_dir() else [path]:
        with contextlib.suppress(FileNotFoundError):
            status = file.lstat()
            sizes[status.st_dev, status.st_ino] = status.st_size
    return sizes


def seconds_unused(path: Path, kind: Kind = "version") -> float:
    """Return the seconds since a version was opened, or another kind changed; 0 if that is in the future."""
    return max(0.0, time.time() - _last_used(path, kind))


def last_used(path: Path, kind: Kind = "version") -> dt.datetime:
    """Return when a version, or a part of one, was last opened, or another kind changed, in UTC."""
    return dt.datetime.fromtimestamp(_last_used(path, kind), dt.UTC)


def _last_used(path: Path, kind: Kind) -> float:
    paths = [path]
    if kind not in ("version", "partial"):
        paths += path.rglob("*")
    times = [0.0]
    for one in paths:
        with contextlib.suppress(FileNotFoundError):
            times.append(one.lstat().st_mtime)
    return max(times)


def is_downloaded(item: Holding) -> bool:
    """Return whether an item is unchanged since its download, and so can be downloaded again."""
    if item.kind == "partial":
        return True
    if item.kind != "version" or item.path.is_symlink():
        return False
    origin = _find_origin(item.path)
    with contextlib.suppress(IntegrityError, FormatVersionError):
        return origin is not None and origin.digest == read_manifest(item.path / MANIFEST_FILE).digest
    return False


def described(items: Iterable[Holding], among: Sequence[Holding]) -> list[CachedVersion]:
    """Return items as `CachedVersion`; files that they share with `among` count as shared."""
    room = Room(among)
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
                shared_bytes=room.shared_bytes(item),
                came_from=came_from,
                again=again,
                last_used=last_used(item.path, item.kind),
                is_pinned=pin_file(item.folder).exists(),
            )
        )
    return versions


def _history_of(item: Holding) -> tuple[str, str]:
    """Return where an item is from, and the command that restores it, or nothing."""
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
    with contextlib.suppress(OrlogError):
        return read_origin(folder)
    return None


def pin_file(folder: Path) -> Path:
    """Return the file whose presence pins the version with this folder."""
    return folder.with_name(f".{folder.name}.pin")
