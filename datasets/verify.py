"""Re-checks every byte of a store against its manifest, and every value that the bytes hold."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, Protocol

import blake3
import numpy as np

from orlog.datasets.layout import ColumnSpec
from orlog.datasets.manifest import MANIFEST_FILE, Manifest, StoredObject, read_manifest
from orlog.datasets.storage import hash_file, list_files, little_endian_bytes

__all__ = [
    "Problem",
    "Reader",
    "check_bytes",
    "check_object",
    "check_place",
    "check_places",
    "find_link",
    "hash_values",
    "make_objects",
    "verify_store",
]


VALUES_AT_ONCE = 2**25  # bytes


class Reader(Protocol):
    """What a container offers: rows of a column, checked as they are read."""

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return rows `start` to `stop - 1` of a column."""
        ...

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return any rows of a column, in the order asked for."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One object, or one column's values, that are not what the manifest says.

    Attributes:
        file: Path inside the store.
        kind: What is wrong with it.
        expected: Size, SHA-256 or BLAKE3 of the manifest.
        found: What is there instead.
    """

    file: str
    kind: Literal[
        "missing", "wrong size", "damaged", "a link", "not in the manifest", "other values"
    ]
    expected: str
    found: str

    def __str__(self) -> str:
        """Return one line that names the object and the difference."""
        return f"{self.file}: {self.kind}: expected {self.expected}, found {self.found}"


def verify_store(
    folder: Path, *, progress: Callable[[int], None] = lambda _: None
) -> tuple[Manifest, list[Problem]]:
    """Return the manifest and every problem of a store; no problem means that every byte is right.

    `progress` is called with the number of bytes checked since its last call. Memory is constant.

    Raises:
        ManifestError: the manifest itself cannot be read as right.
        FormatVersionError: the store was written by a newer orlog.
    """
    manifest = read_manifest(folder / MANIFEST_FILE)
    problems = [
        problem
        for item in manifest.objects
        if (problem := check_object(folder, item, progress)) is not None
    ]
    known = {item.path for item in manifest.objects} | {MANIFEST_FILE}
    problems += [
        Problem(path, "not in the manifest", "no such file", _describe(file))
        for path, file in list_files(folder)
        if path not in known
    ]
    return manifest, problems


def make_objects(folder: Path) -> list[StoredObject]:
    """Return the objects of a folder that was just written, sorted by path."""
    return [
        StoredObject(path=path, size_bytes=file.stat().st_size, sha256=hash_file(file))
        for path, file in list_files(folder)
    ]


def find_link(folder: Path, path: str) -> Path | None:
    """Return the first link on the way to an object: it could show bytes from outside the folder."""
    here = folder
    for part in path.split("/"):
        here /= part
        if here.is_symlink():
            return here
    return None


def check_place(folder: Path, item: StoredObject) -> Problem | None:
    """Return what is wrong with an object as far as it shows without reading it."""
    path = folder / item.path
    link = find_link(folder, item.path)
    if link is not None:
        return Problem(
            item.path, "a link", f"{item.size_bytes} bytes", f"a link to {link.readlink()}"
        )
    if not path.is_file():
        return Problem(item.path, "missing", f"{item.size_bytes} bytes", "no file")
    size = path.stat().st_size
    if size != item.size_bytes:
        return Problem(item.path, "wrong size", f"{item.size_bytes} bytes", f"{size} bytes")
    return None


def check_places(folder: Path, items: Iterable[StoredObject]) -> Problem | None:
    """Return the first problem that shows without reading objects: quick for thousands of them."""
    folders: set[str] = set()
    root = str(folder)
    for item in items:
        below = item.path.rpartition("/")[0]
        try:
            if below not in folders:
                parts = below.split("/") if below else []
                for count in range(1, len(parts) + 1):
                    if not stat.S_ISDIR(os.lstat(f"{root}/{'/'.join(parts[:count])}").st_mode):
                        return check_place(folder, item)
                folders.add(below)
            found = os.lstat(f"{root}/{item.path}")
        except OSError:
            return check_place(folder, item)
        if not stat.S_ISREG(found.st_mode) or found.st_size != item.size_bytes:
            return check_place(folder, item)
    return None


def check_bytes(folder: Path, item: StoredObject) -> Problem | None:
    """Return what is wrong with the bytes of a small object whose place was checked already."""
    with open(f"{folder}/{item.path}", "rb") as file:  # noqa: PTH123 (a path object costs more)
        found = hashlib.sha256(file.read(item.size_bytes + 1)).hexdigest()
    if found != item.sha256:
        return Problem(item.path, "damaged", f"sha256 {item.sha256}", f"sha256 {found}")
    return None


def check_object(
    folder: Path, item: StoredObject, progress: Callable[[int], None] = lambda _: None
) -> Problem | None:
    """Return what is wrong with an object, every byte of it read."""
    problem = check_place(folder, item)
    if problem is not None:
        return problem
    found = hash_file(folder / item.path, progress)
    if found != item.sha256:
        return Problem(item.path, "damaged", f"sha256 {item.sha256}", f"sha256 {found}")
    return None


def hash_values(
    reader: Reader,
    spec: ColumnSpec,
    rows: int,
    progress: Callable[[int], None] = lambda _: None,
) -> str:
    """Return the hex BLAKE3 of all values of a column of one part, decoded a block at a time.

    Raises:
        IntegrityError: they cannot be read.
    """
    digest = blake3.blake3()
    row_bytes = max(1, spec.dtype.itemsize * math.prod(spec.shape))
    # A power of two, as the rows of chunks are, so that blocks seldom share one.
    step = 1 << max(0, (VALUES_AT_ONCE // row_bytes).bit_length() - 1)
    for start in range(0, rows, step):
        values = reader.read(spec.name, start, min(rows, start + step))
        digest.update(little_endian_bytes(values))
        progress(values.nbytes)
    return str(digest.hexdigest())


def _describe(path: Path) -> str:
    return "a link" if path.is_symlink() else f"{path.stat().st_size} bytes"
