"""Checks every byte of a store, and every decoded value, against its manifest."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, Protocol

import blake3
import numpy as np

from orlog.base.files import hash_file, refuse_too_many_files
from orlog.datasets.home.deletion import FolderSeen, unless_deleted
from orlog.datasets.home.presence import PARTIAL_FILE, is_partial, present_objects
from orlog.datasets.home.verified import is_settled, remember_files, remembered_files, stamp_of
from orlog.datasets.store.contents import DamageFinder
from orlog.datasets.store.places import Place
from orlog.manifests.columns import ColumnSpec, little_endian_bytes
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, StoredObject, read_manifest
from orlog.manifests.signatures import SIGNATURE_FILE

THREADS = min(16, os.cpu_count() or 1)
SECONDS_BETWEEN_REPORTS = 0.1
VALUES_AT_ONCE = 2**25  # bytes


class _Stopped(Exception):  # noqa: N818 (no error: it ends a thread whose result nobody waits for)
    pass


class Reader(Protocol):
    """Reads a container's columns, checking rows as they are read."""

    def read(
        self, name: str, start: int, stop: int, *, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return rows `start` to `stop - 1` of a column, in `out` if it is given."""
        ...

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return any rows of a column, in the order asked for."""
        ...

    def place(self, name: str, row: int) -> Place:
        """Return where a row of a column lies."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One object, or the values of one column, that differ from the manifest.

    Attributes:
        file: Path inside the store.
        kind: What is wrong with it. `unreadable`: the system cannot read it.
        expected: Size, SHA-256 or BLAKE3 in the manifest.
        found: What was found instead.
        column: Column whose rows or metadata it holds; None if it holds none or several.
        episodes: First and last episode whose values it holds; None if that is not known.
    """

    file: str
    kind: Literal[
        "missing",
        "wrong size",
        "damaged",
        "unreadable",
        "a link",
        "not in the manifest",
        "other values",
        "other hashes",
        "not of the format",
        "of no column",
    ]
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


def verify_folder(
    folder: Path, *, quick: bool = False, progress: Callable[[int], None] = lambda _: None
) -> tuple[Manifest, list[Problem]]:
    """Return the manifest and every problem of the store in a folder; see `verify_store`."""
    seen = FolderSeen(folder)
    with unless_deleted(folder):
        manifest = read_manifest(folder / MANIFEST_FILE)
        objects = present_objects(folder, manifest)
    before = time.time_ns()
    present = _list(folder)
    stamps = {path: stamp_of(found) for path, found in present.items() if found is not None}
    remembered = remembered_files(folder, manifest.digest)
    trusted = remembered if quick else {}
    unread = [
        item
        for item in objects
        if item.path not in trusted or trusted[item.path] != stamps.get(item.path)
    ]
    progress(sum(item.size_bytes for item in objects) - sum(item.size_bytes for item in unread))
    found = _check_all(folder, unread, present, progress)
    strangers = _find_strangers(manifest, present)
    if strangers or any(found.values()):
        seen.check()
    hashed = {item.path for item in unread}
    right = {
        item.path: stamps[item.path]
        for item in objects
        if item.path in stamps
        and found.get(item.path) is None
        and (item.path not in hashed or is_settled(stamps[item.path], before))
    }
    if right != remembered:
        remember_files(folder, manifest.digest, right)
    problems = [problem for item in unread if (problem := found[item.path]) is not None]
    problems += [one for one in strangers if not (is_partial(folder) and one.file == PARTIAL_FILE)]
    return manifest, locate(folder, manifest, problems)


def locate(folder: Path, manifest: Manifest, problems: list[Problem]) -> list[Problem]:
    """Return a store's problems with the columns and episodes that they affect, where known."""
    finder = DamageFinder(folder, manifest, {problem.file for problem in problems})
    located = []
    for problem in problems:
        column, episodes = finder.find(problem.file)
        located.append(dataclasses.replace(problem, column=column, episodes=episodes))
    return located


def find_link(folder: Path, path: str) -> Path | None:
    """Return the first link in an object's path: it could lead outside the folder."""
    here = folder
    for part in path.split("/"):
        here /= part
        if here.is_symlink():
            return here
    return None


def check_place(folder: Path, item: StoredObject) -> Problem | None:
    """Return what is wrong with an object, without reading its bytes."""
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
    """Return the first problem found without reading objects; quick for thousands of them."""
    folders: set[str] = set()
    root = str(folder)
    for item in items:
        below = item.path.rpartition("/")[0]
        try:
            if below not in folders:
                parts = below.split("/") if below else []
                for count in range(1, len(parts) + 1):
                    if not stat.S_ISDIR(os.lstat(f"{root}/{'/'.join(parts[:count])}").st_mode):
                        return check_object(folder, item)
                folders.add(below)
            found = os.lstat(f"{root}/{item.path}")
        except OSError:
            return check_object(folder, item)
        if not stat.S_ISREG(found.st_mode) or found.st_size != item.size_bytes:
            return check_object(folder, item)
    return None


def check_bytes(folder: Path, item: StoredObject) -> Problem | None:
    """Return what is wrong with the bytes of a small object that passed `check_places`."""
    try:
        with open(f"{folder}/{item.path}", "rb") as file:  # noqa: PTH123 (a path object costs more)
            found = hashlib.sha256(file.read(item.size_bytes + 1)).hexdigest()
    except OSError as error:
        return _unreadable(item, error)
    if found != item.sha256:
        return Problem(item.path, "damaged", f"sha256 {item.sha256}", f"sha256 {found}")
    return None


def check_object(
    folder: Path, item: StoredObject, progress: Callable[[int], None] = lambda _: None
) -> Problem | None:
    """Return what is wrong with an object, after reading every byte."""
    try:
        problem = check_place(folder, item)
    except OSError as error:
        return _unreadable(item, error)
    return problem or _check_content(folder, item, progress)


def _check_content(
    folder: Path, item: StoredObject, progress: Callable[[int], None]
) -> Problem | None:
    try:
        found = hash_file(folder / item.path, progress)
    except OSError as error:
        return _unreadable(item, error)
    if found != item.sha256:
        return Problem(item.path, "damaged", f"sha256 {item.sha256}", f"sha256 {found}")
    return None


def _unreadable(item: StoredObject, error: OSError) -> Problem:
    refuse_too_many_files(item.path, error)
    return Problem(
        item.path, "unreadable", f"sha256 {item.sha256}", f"an error: {error.strerror or error}"
    )


def _is_in_place(item: StoredObject, present: Mapping[str, os.stat_result | None]) -> bool:
    found = present.get(item.path)
    return found is not None and stat.S_ISREG(found.st_mode) and found.st_size == item.size_bytes


def _check_all(
    folder: Path,
    items: list[StoredObject],
    present: Mapping[str, os.stat_result | None],
    progress: Callable[[int], None],
) -> dict[str, Problem | None]:
    """Return what is wrong with each object, by path; a thread for each core reads them."""
    # The largest are read first, so that no thread is left alone with a large one at the end.
    waiting = collections.deque(sorted(items, key=lambda item: item.size_bytes, reverse=True))
    threads = max(1, min(THREADS, len(items)))
    counts = [0] * threads
    results: dict[str, Problem | None] = {}
    stopped = threading.Event()

    def work(thread: int) -> None:
        def count(size: int) -> None:
            if stopped.is_set():
                raise _Stopped
            counts[thread] += size

        while True:
            try:
                item = waiting.popleft()
            except IndexError:
                return
            check = _check_content if _is_in_place(item, present) else check_object
            results[item.path] = check(folder, item, count)

    reported = 0
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        try:
            running = {pool.submit(work, thread) for thread in range(threads)}
            while running:
                done, running = concurrent.futures.wait(
                    running, timeout=SECONDS_BETWEEN_REPORTS, return_when="FIRST_EXCEPTION"
                )
                for one in done:
                    one.result()
                counted = sum(counts)
                progress(counted - reported)
                reported = counted
        finally:
            stopped.set()
            waiting.clear()
    return results


def hash_values(
    reader: Reader, spec: ColumnSpec, rows: int, see: Callable[[np.ndarray], None] = lambda _: None
) -> str:
    """Return the hex BLAKE3 of all values of a column of one part, decoded a block at a time, which `see` gets.

    Raises IntegrityError if they cannot be read.
    """
    digest = blake3.blake3()
    row_bytes = max(1, spec.dtype.itemsize * math.prod(spec.shape))
    # A power of two, like the rows of a chunk, so that few chunks are decoded for two blocks.
    step = 1 << max(0, (VALUES_AT_ONCE // row_bytes).bit_length() - 1)
    for start in range(0, rows, step):
        values = reader.read(spec.name, start, min(rows, start + step))
        digest.update(little_endian_bytes(values))
        see(values)
    return str(digest.hexdigest())


def _list(folder: Path) -> dict[str, os.stat_result | None]:
    """Return everything in a folder except folders, by path inside it; links are not followed.

    A folder that cannot be listed is included, as None.
    """
    found: dict[str, os.stat_result | None] = {}
    unlisted = [""]
    while unlisted:
        prefix = unlisted.pop()
        try:
            with os.scandir(f"{folder}/{prefix}") as entries:
                for entry in entries:
                    path = f"{prefix}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        unlisted.append(f"{path}/")
                    else:
                        with contextlib.suppress(FileNotFoundError):
                            found[path] = entry.stat(follow_symlinks=False)
        except OSError:
            found[prefix.rstrip("/")] = None
    return found


def _find_strangers(
    manifest: Manifest, present: Mapping[str, os.stat_result | None]
) -> list[Problem]:
    """Return a problem for each file in a folder that is not in the manifest, sorted by path."""
    known = {item.path for item in manifest.objects} | {MANIFEST_FILE, SIGNATURE_FILE}
    problems = []
    for path, found in sorted(present.items(), key=lambda pair: pair[0]):
        if found is None:
            problems.append(Problem(path, "unreadable", "a folder", "a folder that cannot be read"))
        elif path not in known:
            is_link = stat.S_ISLNK(found.st_mode)
            what = "a link" if is_link else f"{found.st_size} bytes"
            problems.append(Problem(path, "not in the manifest", "no such file", what))
    return problems
