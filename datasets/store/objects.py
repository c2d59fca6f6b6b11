"""The files of a stored version: what each of them holds, and whether its bytes are those of the manifest."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from orlog.base.files import hash_file, refuse_too_many_files
from orlog.errors import IntegrityError
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.manifest import StoredObject

PATH = re.compile(r"(?:parts/(?P<part>[1-9][0-9]{0,8})/)?(?P<inside>.+)", re.DOTALL)
SHARD = re.compile(r"(?P<column>.+)/c\.(?P<number>[0-9]{1,15})(?:\.0)*")
VIDEO = re.compile(r"videos/(?P<column>.+)/(?P<number>[1-9][0-9]{0,8})\.mp4")
"""An object of a version, which may be in a part; a shard in a part; and a video."""


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One object, or the values of one column, that differ from the manifest.

    Attributes:
        file: Path inside the store.
        kind: What is wrong with it: `missing`, `wrong size`, `damaged`, `unreadable` (by the system), `a link`,
            `not in the manifest`, `other values`, `other hashes`, `not of the format` or `of no column`.
        expected: Size, SHA-256 or BLAKE3 in the manifest.
        found: What was found instead.
        column: Column whose rows or metadata it holds; None if it holds none or several.
        episodes: First and last episode whose values it holds; None if that is not known.
    """

    file: str
    kind: str
    expected: str
    found: str
    column: str | None = None
    episodes: tuple[int, int] | None = None

    def __str__(self) -> str:
        """Return one line that names the object, the difference, and what it holds."""
        held = [] if self.column is None else [f"column {self.column}"]
        if self.episodes is not None:
            first, last = self.episodes
            held.append(f"episode {first}" if first == last else f"episodes {first} to {last}")
        text = f"{self.file}: {self.kind}: expected {self.expected}, found {self.found}"
        return f"{text}; it holds {', '.join(held)}" if held else text


def mismatch(where: str, file: str, expected: object, actual: object, advice: str = "") -> IntegrityError:
    """Return the error for an object, `file`, that is not what is expected; `advice` says what to do."""
    return IntegrityError(
        f"{where}: expected {expected}, found {actual}{f'; {advice}' if advice else '.'}",
        file=file,
        expected=str(expected),
        found=str(actual),
    )


def holds(path: Path, item: StoredObject) -> bool:
    """Return whether a file has the bytes of an object."""
    return path.is_file() and path.stat().st_size == item.size_bytes and hash_file(path) == item.sha256


def check_data(item: StoredObject, data: bytes) -> None:
    """Raise IntegrityError if these are not the bytes of an object."""
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != item.sha256:
        raise mismatch(f"{item.path}: sha256", item.path, item.sha256, sha256)


def shard_path(spec: ColumnSpec, shard: int) -> str:
    """Return the path of a shard inside the container's folder."""
    return f"{spec.name}/c.{shard}{'.0' * len(spec.shape)}"


def column_of(path: str) -> str | None:
    """Return the column that an object holds rows or videos of; None for metadata and whole files."""
    match = PATH.fullmatch(path)
    shard = VIDEO.fullmatch(path) or (SHARD.fullmatch(match["inside"]) if match else None)
    return shard["column"] if shard else None


def group_folders(columns: Iterable[str]) -> list[str]:
    """Return the folders that hold arrays or other groups; first "", the container itself."""
    parents = {parent.as_posix() for name in columns for parent in PurePosixPath(name).parents}
    return sorted({"", *(f"{parent}/" for parent in parents if parent != ".")})


def find_link(folder: Path, path: str) -> Path | None:
    """Return the first link in an object's path: it could lead outside the folder."""
    here = folder
    for part in path.split("/"):
        here /= part
        if here.is_symlink():
            return here
    return None


def check_places(folder: Path, items: Iterable[StoredObject]) -> Problem | None:
    """Return the first problem found without reading objects; quick for thousands of them."""
    folders = {""}
    root = str(folder)
    for item in items:
        below = item.path.rpartition("/")[0]
        try:
            while below not in folders:
                if not stat.S_ISDIR(os.lstat(f"{root}/{below}").st_mode):
                    return check_object(folder, item)
                folders.add(below)
                below = below.rpartition("/")[0]
            status = os.lstat(f"{root}/{item.path}")
        except OSError:
            return check_object(folder, item)
        if not stat.S_ISREG(status.st_mode) or status.st_size != item.size_bytes:
            return check_object(folder, item)
    return None


def check_object(folder: Path, item: StoredObject, progress: Callable[[int], None] = lambda _: None) -> Problem | None:
    """Return what is wrong with an object, after reading every byte."""
    path, expected = folder / item.path, f"{item.size_bytes} bytes"
    try:
        link = find_link(folder, item.path)
        if link is not None:
            return Problem(item.path, "a link", expected, f"a link to {link.readlink()}")
        if not path.is_file():
            return Problem(item.path, "missing", expected, "no file")
        size = path.stat().st_size
    except OSError as error:
        return _unreadable(item, error)
    if size != item.size_bytes:
        return Problem(item.path, "wrong size", expected, f"{size} bytes")
    return check_sha256(folder, item, progress)


def check_sha256(folder: Path, item: StoredObject, progress: Callable[[int], None] = lambda _: None) -> Problem | None:
    """Return what is wrong with the bytes of an object that passed `check_places`."""
    try:
        actual = hash_file(folder / item.path, progress)
    except OSError as error:
        return _unreadable(item, error)
    if actual != item.sha256:
        return Problem(item.path, "damaged", f"sha256 {item.sha256}", f"sha256 {actual}")
    return None


def _unreadable(item: StoredObject, error: OSError) -> Problem:
    refuse_too_many_files(item.path, error)
    problem = f"an error: {error.strerror or error}"
    return Problem(item.path, "unreadable", f"sha256 {item.sha256}", problem)
