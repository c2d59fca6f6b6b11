"""Checks every byte and every value of a version against its manifest, and finds which episodes damage touches."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from orlog.datasets.home.folders import PARTIAL_FILE, FolderSeen, is_partial, present_objects, unless_deleted
from orlog.datasets.home.records import is_settled, remember_files, remembered_files, stamp_of
from orlog.datasets.store.chunk_hashes import (
    CHUNKS_FILE,
    SHARDS_FILE,
    Layout,
    check_sizes,
    has_chunk_hashes,
    layouts,
    shards_of_other_hashes,
)
from orlog.datasets.store.hdf5 import DATA_FILE
from orlog.datasets.store.objects import (
    PATH,
    SHARD,
    VIDEO,
    Problem,
    check_object,
    check_sha256,
    column_of,
    group_folders,
)
from orlog.datasets.store.version import StoredVersion, open_reader, spec_of
from orlog.datasets.store.zarr_reader import ZarrReader
from orlog.datasets.store.zarr_writer import count_non_finite
from orlog.errors import IntegrityError, MissingExtraError, OrlogError, SchemaError, clause
from orlog.manifests.columns import ColumnSpec, axis_of, offsets_of
from orlog.manifests.manifest import (
    MANIFEST_FILE,
    Manifest,
    StoredObject,
    part_folder,
    parts_of,
    read_manifest,
    video_path,
)
from orlog.manifests.signatures import SIGNATURE_FILE

THREADS = min(16, os.cpu_count() or 1)
SHARDS_AT_ONCE = 16  # of a version that is read in place


class _Stopped(Exception):  # noqa: N818 (no error: it ends a thread whose result nobody waits for)
    pass


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
    unread = [item for item in objects if item.path not in trusted or trusted[item.path] != stamps.get(item.path)]
    progress(sum(item.size_bytes for item in objects) - sum(item.size_bytes for item in unread))
    results = _check_all(folder, unread, present, progress)
    strangers = _find_strangers(folder, manifest, present)
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
    return manifest, locate(folder, manifest, problems + strangers)


def locate(folder: Path, manifest: Manifest, problems: list[Problem]) -> list[Problem]:
    """Return a store's problems with the columns and episodes that they affect, where known."""
    finder = DamageFinder(folder, manifest, {problem.file for problem in problems})
    places = [finder.find(problem.file) for problem in problems]
    return [
        dataclasses.replace(problem, column=column, episodes=episodes)
        for problem, (column, episodes) in zip(problems, places, strict=True)
    ]


def _check_all(
    folder: Path,
    items: list[StoredObject],
    present: Mapping[str, os.stat_result | None],
    progress: Callable[[int], None],
) -> dict[str, Problem | None]:
    """Return what is wrong with each object, by path; a thread for each core reads them."""
    counting, stopped = threading.Lock(), threading.Event()

    def count(size: int) -> None:
        with counting:
            if stopped.is_set():
                raise _Stopped
            progress(size)

    def check(item: StoredObject) -> Problem | None:
        status = present.get(item.path)
        is_whole = status is not None and stat.S_ISREG(status.st_mode) and status.st_size == item.size_bytes
        return (check_sha256 if is_whole else check_object)(folder, item, count)

    # The largest are read first, so that no thread is left alone with a large file at the end.
    largest_first = sorted(items, key=lambda item: item.size_bytes, reverse=True)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        checks = {item.path: pool.submit(check, item) for item in largest_first}
        try:
            return {path: future.result() for path, future in checks.items()}
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


def _list(folder: Path) -> dict[str, os.stat_result | None]:
    """Return everything in a folder except folders, by path inside it; links are not followed."""
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


def _find_strangers(folder: Path, manifest: Manifest, present: Mapping[str, os.stat_result | None]) -> list[Problem]:
    """Return a problem for each file in a folder that is not in the manifest, sorted by path."""
    known = {item.path for item in manifest.objects} | {MANIFEST_FILE, SIGNATURE_FILE}
    known |= {PARTIAL_FILE} if is_partial(folder) else set()
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
        self._manifest = manifest
        self._parts = parts_of(manifest)
        self._specs = {column.name: spec_of(column) for column in manifest.columns}
        self._paths = {item.path for item in manifest.objects}
        self._damaged = frozenset(damaged)
        self._damaged_folders = {path.rpartition("/")[0] for path in damaged}
        self._reader = functools.cache(functools.partial(self._open_reader, folder))
        self._ends = functools.lru_cache(4)(self._read_ends)

    def _open_reader(self, folder: Path, part: int) -> ZarrReader:
        reader = open_reader(folder, self._manifest, part)
        if not isinstance(reader, ZarrReader):
            raise IntegrityError(f"{folder}: its columns have no files of their own.")
        return reader

    def find(self, path: str) -> tuple[str | None, tuple[int, int] | None]:
        """Return the column, and the first and last episode, whose values a path such as `parts/1/rewards` holds."""
        match = PATH.fullmatch(path)
        part = int(match["part"] or 0) if match else 0
        if match is None or part >= len(self._parts):
            return None, None
        inside = match["inside"]
        if (video := VIDEO.fullmatch(path)) and path in self._paths:
            return video["column"], self._episodes_of_video(video["column"], int(video["number"]))
        before = sum(other.episodes for other in self._parts[:part])
        count = self._parts[part].episodes
        everything = (before, before + count - 1) if count else None
        is_file = path in self._paths
        if self._manifest.container == "hdf5" and inside == DATA_FILE and is_file:
            return None, everything
        column = inside.removesuffix("/zarr.json")
        if column in self._specs and (column == inside or is_file):
            return column, everything
        shard = SHARD.fullmatch(inside)
        if shard is None or shard["column"] not in self._specs or not is_file:
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

    def _episodes_of_video(self, name: str, number: int) -> tuple[int, int] | None:
        """Return the first and last episode with frames of a video; None if that is not known."""
        with contextlib.suppress(OrlogError, OSError):
            if name in self._damaged_folders:
                return None
            rows = np.flatnonzero(self._reader(0).read(name, 0, self._parts[0].columns[name].rows)[:, 0] == number)
            ends = (self._ends(0, "episodes/lengths") + 1).cumsum()
            first, last = ends.searchsorted(rows[[0, -1]], "right").tolist() if len(rows) else (0, 0)
            return first, last
        return None

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


def check_opening(folder: Path, manifest: Manifest) -> list[Problem]:
    """Return why a version whose bytes are right cannot be read; no problem if it can, or h5py is not installed."""
    try:
        StoredVersion(folder, manifest)
    except MissingExtraError:
        return []
    except IntegrityError as error:
        problem = clause(error).removeprefix(f"{folder}: ")
        return [Problem(error.file, "not of the format", "store format 1", problem)]
    return []


def check_values(version: StoredVersion, progress: Callable[[int], None] = lambda _: None) -> list[Problem]:
    """Decode every value and compare each column with its BLAKE3 and its count of numbers that are not finite.

    This finds what files' checksums cannot: values that a codec or faulty memory changed before
    they were stored, and what a writer stated wrongly: hashes of chunks, and files of no column. It takes
    constant memory. `progress` is called with the bytes of values checked since its last call.

    Returns:
        The problems, by column of each part, then those of files; empty if there are none.
    """
    non_finite: Counter[str] = Counter()
    problems: list[Problem] = []
    wrong_columns = set()
    places = layouts(version.chunks_of_shards()) if has_chunk_hashes(version.manifest) else {}
    for number, part in enumerate(parts_of(version.manifest)):
        for name in part.columns:
            wrong, count = _check_column(version, number, name, places, progress)
            problems += wrong
            non_finite[name] += count
            if any(problem.kind != "other hashes" for problem in wrong):
                wrong_columns.add(name)
    stated = Counter(version.manifest.non_finite)
    for name in sorted({*stated, *non_finite} - wrong_columns):
        expected, actual = f"non_finite {stated[name]}", f"non_finite {non_finite[name]}"
        if expected != actual:
            problems.append(Problem(name, "other values", expected, actual))
    try:
        if places:
            check_sizes(version.manifest, places)
    except IntegrityError as error:
        problems.append(Problem(error.file, "other hashes", error.expected, error.found))
    return [*problems, *_objects_of_no_column(version, bool(places))]


def check_videos(version: StoredVersion) -> list[Problem]:
    """Decode all videos, and compare the hashes of their ranges, the frames of each column and what the index says."""
    problems = []
    for name, video in version.manifest.videos.items():
        index = version.frame_index(name, np.arange(version.rows(name)))
        frames, lacking = 0, index[(index[:, 0] < 0) | (index[:, 0] > video.files)]
        if len(lacking):
            problems.append(Problem(name, "other values", f"files 1 to {video.files}", f"file {lacking[0, 0]}"))
        for number in range(1, video.files + 1):
            path = video_path(name, number)
            try:
                times = version.videos.times(name, number)
                frames += len(times)
                wanted = np.unique(index[index[:, 0] == number, 1])
                strange = np.setdiff1d(wanted, times)
                if len(strange):
                    problems.append(Problem(path, "other values", f"a frame at time stamp {strange[0]}", "none"))
            except (IntegrityError, SchemaError) as error:
                problems.append(Problem(path, "damaged", "frames that can be decoded", clause(error)))
        if frames != video.frames and not problems:
            problems.append(Problem(name, "other values", f"{video.frames} frames", f"{frames} frames"))
    return problems


def _check_column(
    version: StoredVersion, number: int, name: str, places: Mapping[str, Layout], progress: Callable[[int], None]
) -> tuple[list[Problem], int]:
    """Return what is wrong with the values of a column of one part, and how many are not finite."""
    expected = parts_of(version.manifest)[number].columns[name].blake3
    where = f"{part_folder(number)}{name}"
    non_finite = no_bool = 0

    def see(values: np.ndarray) -> None:
        nonlocal non_finite, no_bool
        progress(values.nbytes)
        non_finite += count_non_finite(values)
        if values.dtype == np.bool_:
            no_bool += int(np.count_nonzero(values.view(np.uint8) > 1))

    try:
        actual = version.hash_column(number, name, see)
    except IntegrityError as error:
        return [Problem(where, "damaged", f"blake3 {expected}", clause(error))], 0
    # What is read in place was compared with its hashes when it came, and may be gone from here by now.
    stated = {} if version.elsewhere else places
    problems = [
        Problem(path, "other hashes", f"those in {CHUNKS_FILE} and {SHARDS_FILE}", "others")
        for path in shards_of_other_hashes(version.folder, stated, where)
    ]
    if actual != expected:
        problems.append(Problem(where, "other values", f"blake3 {expected}", f"blake3 {actual}"))
    if no_bool:
        others = f"{no_bool} other bytes"
        problems.append(Problem(where, "other values", "bool: bytes 0 and 1", others))
    return problems, non_finite


def _objects_of_no_column(version: StoredVersion, has_hashes: bool) -> Iterator[Problem]:
    """Yield a problem for each object that belongs to no column, and for each group that is not there."""
    manifest = version.manifest
    names = [column.name for column in manifest.columns]
    allowed = {CHUNKS_FILE, SHARDS_FILE} if has_hashes else set()
    allowed |= {
        item.path for item in manifest.objects if item.path.startswith("videos/")
    }  # which the manifest compared
    needed: set[str] = set()
    for number in range(len(parts_of(manifest))):
        folder = part_folder(number)
        if manifest.container == "hdf5":
            allowed.add(f"{folder}{DATA_FILE}")
        else:
            needed |= {f"{folder}{group}zarr.json" for group in group_folders(names)}
            allowed |= {f"{folder}{name}/zarr.json" for name in names}
    allowed |= {*needed, *version.chunks_of_shards()}
    for item in manifest.objects:
        if item.path not in allowed:
            yield Problem(item.path, "of no column", "no such file", f"{item.size_bytes} bytes")
    for path in sorted(needed - {item.path for item in manifest.objects}):
        yield Problem(path, "missing", "the file of a group", "no file")


class Checked(NamedTuple):
    """How many chunks were fetched and checked, of how many, and the objects that give wrong bytes."""

    chunks: int
    of_chunks: int
    problems: list[Problem]


def check_where_it_is(
    version: StoredVersion,
    share: float = 1.0,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Checked:
    """Fetch a share of the chunks of a version that is read in place, and of each MiB of its videos, and check all of it."""
    elsewhere = version.elsewhere
    assert elsewhere is not None
    videos = version.videos.blocks() if version.manifest.videos else {}
    shards = sorted([*version.chunks_of_shards().items(), *((path, (held, 0)) for path, held in videos.items())])
    rng = np.random.default_rng(seed)
    drawn = [np.sort(rng.choice(held, max(1, round(share * held)), replace=False)).tolist() for _, (held, _) in shards]

    def check(path: str, room: int, chunks: list[int]) -> list[Problem]:
        try:
            if path in videos:
                version.videos.check(path, chunks)
            else:
                elsewhere.check(path, room, chunks)
        except IntegrityError as error:
            problem = error.found or clause(error)
            return [Problem(path, "damaged", error.expected, problem, column_of(path))]
        return []

    problems: list[Problem] = []
    with concurrent.futures.ThreadPoolExecutor(SHARDS_AT_ONCE, "orlog-verify") as pool:
        results = pool.map(check, [path for path, _ in shards], [room for _, (_, room) in shards], drawn)
        for done, wrong in enumerate(results, 1):
            problems += wrong
            progress(done, len(shards))
    return Checked(sum(map(len, drawn)), sum(held for _, (held, _) in shards), problems)
