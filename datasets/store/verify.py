"""Checks every byte of a store against its manifest, and finds which episodes a damaged file holds."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from orlog.base.files import hash_file, refuse_too_many_files
from orlog.datasets.home.folders import (
    PARTIAL_FILE,
    FolderSeen,
    is_partial,
    present_objects,
    unless_deleted,
)
from orlog.datasets.home.records import is_settled, remember_files, remembered_files, stamp_of
from orlog.datasets.store.zarr_metadata import PATH, SHARD
from orlog.datasets.store.zarr_reader import ZarrReader
from orlog.errors import IntegrityError, OrlogError
from orlog.manifests.columns import ColumnSpec, axis_of, offsets_of
from orlog.manifests.manifest import (
    MANIFEST_FILE,
    Manifest,
    StoredObject,
    part_folder,
    parts_of,
    read_manifest,
)
from orlog.manifests.signatures import SIGNATURE_FILE

THREADS = min(16, os.cpu_count() or 1)
SECONDS_BETWEEN_REPORTS = 0.1


class _Stopped(Exception):  # noqa: N818 (no error: it ends a thread whose result nobody waits for)
    pass


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
    stamps = {path: stamp_of(status) for path, status in present.items() if status is not None}
    remembered = remembered_files(folder, manifest.digest)
    trusted = remembered if quick else {}
    unread = [
        item
        for item in objects
        if item.path not in trusted or trusted[item.path] != stamps.get(item.path)
    ]
    progress(sum(item.size_bytes for item in objects) - sum(item.size_bytes for item in unread))
    results = _check_all(folder, unread, present, progress)
    strangers = _find_strangers(manifest, present)
    if strangers or any(results.values()):
        seen.check()
    right = {
        item.path: stamps[item.path]
        for item in objects
        if item.path in stamps
        and results.get(item.path) is None
        and (item.path not in results or is_settled(stamps[item.path], before))
    }
    if right != remembered:
        remember_files(folder, manifest.digest, right)
    problems = [problem for item in unread if (problem := results[item.path]) is not None]
    allowed = PARTIAL_FILE if is_partial(folder) else None
    problems += [problem for problem in strangers if problem.file != allowed]
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


def check_object(
    folder: Path, item: StoredObject, progress: Callable[[int], None] = lambda _: None
) -> Problem | None:
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
    return check_bytes(folder, item, progress)


def check_bytes(
    folder: Path, item: StoredObject, progress: Callable[[int], None] = lambda _: None
) -> Problem | None:
    """Return what is wrong with the bytes of an object that passed `check_places`."""
    try:
        found = hash_file(folder / item.path, progress)
    except OSError as error:
        return _unreadable(item, error)
    if found != item.sha256:
        return Problem(item.path, "damaged", f"sha256 {item.sha256}", f"sha256 {found}")
    return None


def _unreadable(item: StoredObject, error: OSError) -> Problem:
    refuse_too_many_files(item.path, error)
    found = f"an error: {error.strerror or error}"
    return Problem(item.path, "unreadable", f"sha256 {item.sha256}", found)


def _check_all(
    folder: Path,
    items: list[StoredObject],
    present: Mapping[str, os.stat_result | None],
    progress: Callable[[int], None],
) -> dict[str, Problem | None]:
    """Return what is wrong with each object, by path; a thread for each core reads them."""
    sizes: collections.deque[int] = collections.deque()
    stopped = threading.Event()

    def count(size: int) -> None:
        if stopped.is_set():
            raise _Stopped
        sizes.append(size)

    def check(item: StoredObject) -> Problem | None:
        status = present.get(item.path)
        if status is None or not stat.S_ISREG(status.st_mode):
            return check_object(folder, item, count)
        is_whole = status.st_size == item.size_bytes
        return (check_bytes if is_whole else check_object)(folder, item, count)

    def report() -> None:
        progress(sum(sizes.popleft() for _ in range(len(sizes))))

    # The largest are read first, so that no thread is left alone with a large one at the end.
    largest_first = sorted(items, key=lambda item: item.size_bytes, reverse=True)
    results: dict[str, Problem | None] = {}
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        try:
            checks = [(item.path, pool.submit(check, item)) for item in largest_first]
            reported = time.monotonic()
            while checks:
                path, result = checks[len(results)]
                with contextlib.suppress(TimeoutError):
                    results[path] = result.result(SECONDS_BETWEEN_REPORTS)
                is_last = len(results) == len(checks)
                if is_last or time.monotonic() - reported >= SECONDS_BETWEEN_REPORTS:
                    report()
                    reported = time.monotonic()
                if is_last:
                    break
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
    return results


def _list(folder: Path) -> dict[str, os.stat_result | None]:
    """Return everything in a folder except folders, by path inside it; links are not followed.

    A folder that cannot be listed is included, as None.
    """
    present: dict[str, os.stat_result | None] = {}
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
                            present[path] = entry.stat(follow_symlinks=False)
        except OSError:
            present[prefix.rstrip("/")] = None
    return present


def _find_strangers(
    manifest: Manifest, present: Mapping[str, os.stat_result | None]
) -> list[Problem]:
    """Return a problem for each file in a folder that is not in the manifest, sorted by path."""
    known = {item.path for item in manifest.objects} | {MANIFEST_FILE, SIGNATURE_FILE}
    problems = []
    for path, status in sorted(present.items(), key=lambda pair: pair[0]):
        if status is None:
            problems.append(Problem(path, "unreadable", "a folder", "a folder that cannot be read"))
        elif path not in known:
            what = "a link" if stat.S_ISLNK(status.st_mode) else f"{status.st_size} bytes"
            problems.append(Problem(path, "not in the manifest", "no such file", what))
    return problems


class DamageFinder:
    """Finds what the objects of one store hold, as far as undamaged objects show it.

        parts/1/rewards/c.3     shard 3 of rewards in part 1: rows 3 x shard_rows, .. of that part
                                -> steps -> by the part's episodes/lengths -> episodes

    Only undamaged objects are read for this, so an answer is either right or "not known".
    """

    def __init__(self, folder: Path, manifest: Manifest, damaged: Collection[str]) -> None:
        """Prepare for a store; `damaged` are the paths of all that differs from its manifest."""
        self._folder = folder
        self._container = manifest.container
        self._parts = parts_of(manifest)
        self._specs = {
            column.name: ColumnSpec(column.name, np.dtype(column.dtype), tuple(column.shape))
            for column in manifest.columns
        }
        self._sizes = {item.path: item.size_bytes for item in manifest.objects}
        self._damaged = frozenset(damaged)
        self._damaged_folders = {path.rpartition("/")[0] for path in damaged}
        self._reader = functools.cache(self._open)
        self._ends = functools.lru_cache(4)(self._read_ends)

    def find(self, path: str) -> tuple[str | None, tuple[int, int] | None]:
        """Return the column, and the first and last episode, whose values a path such as `parts/1/rewards` holds.

        The column is None if it holds none or several; the episodes are None if it holds no values or they
        are not known. Metadata of a column count as all its values.
        """
        match = PATH.fullmatch(path)
        part = int(match["part"] or 0) if match else 0
        if match is None or part >= len(self._parts):
            return None, None
        inside = match["inside"]
        before = sum(other.episodes for other in self._parts[:part])
        count = self._parts[part].episodes
        everything = (before, before + count - 1) if count else None
        if self._container == "hdf5" and inside == "data.h5" and path in self._sizes:
            return None, everything
        column = inside.removesuffix("/zarr.json")
        if column in self._specs and (column == inside or path in self._sizes):
            return column, everything
        shard = SHARD.fullmatch(inside)
        if shard is None or shard["column"] not in self._specs or path not in self._sizes:
            return None, None
        column = shard["column"]
        try:
            first, last = self._rows_of(part, column, int(shard["number"]))
            counter = offsets_of(column)
            while counter is not None:
                ends = self._ends(part, counter)
                first, last = ends.searchsorted([first, last], "right").tolist()
                counter = offsets_of(counter)
            if axis_of(column) != "episode":
                more = int(axis_of(column) == "observation")
                ends = (self._ends(part, "episodes/lengths") + more).cumsum()
                first, last = ends.searchsorted([first, last], "right").tolist()
        except (OrlogError, OSError):
            return column, None
        return column, (before + first, before + last) if last < count else None

    def _rows_of(self, part: int, name: str, number: int) -> tuple[int, int]:
        """Return the first and last row in a shard of a column."""
        if f"{part_folder(part)}{name}/zarr.json" in self._damaged:
            raise IntegrityError(f"{name}: its metadata are damaged.")
        shard_rows = self._reader(part).encoding(name).shard_rows
        first = number * shard_rows
        last = min(self._parts[part].columns[name].rows, first + shard_rows) - 1
        if first > last:
            raise IntegrityError(f"{name}: no rows in shard {number}.")
        return first, last

    def _read_ends(self, part: int, name: str) -> np.ndarray:
        """Return all rows of a column of integers in a part, all files of which are undamaged."""
        if self._specs.get(name) != ColumnSpec(name, np.dtype(np.int64), ()):
            raise IntegrityError(f"{name}: no column of integers.")
        if f"{part_folder(part)}{name}" in self._damaged_folders:
            raise IntegrityError(f"{name}: damaged itself.")
        reader = self._reader(part)
        reader.check_shards(name)
        return reader.read(name, 0, self._parts[part].columns[name].rows)

    def _open(self, part: int) -> ZarrReader:
        prefix = part_folder(part)
        rows = {spec: self._parts[part].columns[name].rows for name, spec in self._specs.items()}
        sizes = {
            path.removeprefix(prefix): size
            for path, size in self._sizes.items()
            if path.startswith(prefix)
        }
        return ZarrReader(self._folder / prefix, rows, sizes)
