"""Checks every decoded value of a version against its manifest, and chunks of one that is read in place."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from orlog.datasets.store.chunk_hashes import (
    CHUNKS_FILE,
    SHARDS_FILE,
    Layout,
    check_sizes,
    has_chunk_hashes,
    layouts,
    shards_of_other_hashes,
)
from orlog.datasets.store.verify import Problem
from orlog.datasets.store.version import StoredVersion
from orlog.datasets.store.zarr_metadata import column_of, group_metadata
from orlog.datasets.store.zarr_writer import count_non_finite
from orlog.errors import IntegrityError, MissingExtraError, clause
from orlog.manifests.manifest import Manifest, part_folder, parts_of

SHARDS_AT_ONCE = 16  # of a version that is read in place


def check_opening(folder: Path, manifest: Manifest) -> list[Problem]:
    """Return why a version whose bytes are right cannot be read; no problem if it can, or h5py is not installed."""
    try:
        StoredVersion(folder, manifest)
    except MissingExtraError:
        return []
    except IntegrityError as error:
        found = clause(error).removeprefix(f"{folder}: ")
        return [Problem(error.file, "not of the format", "store format 1", found)]
    return []


def check_values(
    version: StoredVersion, progress: Callable[[int], None] = lambda _: None
) -> list[Problem]:
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
    for number, part in enumerate(parts_of(version.manifest)):
        for name in part.columns:
            wrong, count = _check_column(version, number, name, progress)
            problems += wrong
            non_finite[name] += count
            if any(problem.kind != "other hashes" for problem in wrong):
                wrong_columns.add(name)
    stated = Counter(version.manifest.non_finite)
    for name in sorted({*stated, *non_finite} - wrong_columns):
        expected, found = f"non_finite {stated[name]}", f"non_finite {non_finite[name]}"
        if expected != found:
            problems.append(Problem(name, "other values", expected, found))
    try:
        if places := _layouts(version):
            check_sizes(version.manifest, places)
    except IntegrityError as error:
        problems.append(Problem(error.file, "other hashes", error.expected, error.found))
    return [*problems, *_strangers(version)]


def _check_column(
    version: StoredVersion, number: int, name: str, progress: Callable[[int], None]
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
        found = version.hash_column(number, name, see)
    except IntegrityError as error:
        return [Problem(where, "damaged", f"blake3 {expected}", clause(error))], 0
    # What is read in place was compared with its hashes when it came, and may be gone from here by now.
    stated = {} if version.elsewhere else _layouts(version)
    problems = [
        Problem(path, "other hashes", f"those in {CHUNKS_FILE} and {SHARDS_FILE}", "others")
        for path in shards_of_other_hashes(version.folder, stated, where)
    ]
    if found != expected:
        problems.append(Problem(where, "other values", f"blake3 {expected}", f"blake3 {found}"))
    if no_bool:
        others = f"{no_bool} other bytes"
        problems.append(Problem(where, "other values", "bool: bytes 0 and 1", others))
    return problems, non_finite


def _layouts(version: StoredVersion) -> dict[str, Layout]:
    """Return where the hashes of shards are; nothing if the version has none."""
    return layouts(version.chunks_of_shards()) if has_chunk_hashes(version.manifest) else {}


def _strangers(version: StoredVersion) -> Iterator[Problem]:
    """Yield a problem for each object that belongs to no column, and for each group that is not there."""
    manifest = version.manifest
    names = [column.name for column in manifest.columns]
    allowed = {CHUNKS_FILE, SHARDS_FILE} if _layouts(version) else set()
    needed: set[str] = set()
    for number in range(len(parts_of(manifest))):
        folder = part_folder(number)
        if manifest.container == "hdf5":
            allowed.add(f"{folder}data.h5")
        else:
            needed |= {f"{folder}{group}zarr.json" for group in group_metadata(names)}
            allowed |= {f"{folder}{name}/zarr.json" for name in names}
    allowed |= {*needed, *version.chunks_of_shards()}
    for item in manifest.objects:
        if item.path not in allowed:
            yield Problem(item.path, "of no column", "no such file", f"{item.size_bytes} bytes")
    for path in sorted(needed - {item.path for item in manifest.objects}):
        yield Problem(path, "missing", "the file of a group", "no file")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """What was looked at, and what was found.

    Attributes:
        chunks: Chunks that were fetched and checked.
        of_chunks: Chunks of the version.
        problems: Objects that give wrong bytes, with the first chunk of each.
    """

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
    """Fetch a share of the chunks of a version that is read in place, and check each of them.

    Of each shard the index is checked and at least one chunk, whatever was kept of it before; shards that are
    fetched whole are checked whole.

    Args:
        version: The version.
        share: Which share of the chunks, above 0 and at most 1.
        seed: Which chunks are drawn.
        progress: Called with shards done and shards in all.

    Raises TransferError if no place answers.
    """
    elsewhere = version.elsewhere
    assert elsewhere is not None
    shards = sorted(version.chunks_of_shards().items())
    rng = np.random.default_rng(seed)
    drawn = [
        np.sort(rng.choice(held, max(1, round(share * held)), replace=False)).tolist()
        for _, (held, _) in shards
    ]

    def check(path: str, room: int, chunks: list[int]) -> list[Problem]:
        try:
            elsewhere.check(path, room, chunks)
        except IntegrityError as error:
            found = error.found or clause(error)
            return [Problem(path, "damaged", error.expected, found, column_of(path))]
        return []

    problems: list[Problem] = []
    rooms = [room for _, (_, room) in shards]
    with concurrent.futures.ThreadPoolExecutor(SHARDS_AT_ONCE, "orlog-verify") as pool:
        results = pool.map(check, [path for path, _ in shards], rooms, drawn)
        for done, wrong in enumerate(results, 1):
            problems += wrong
            progress(done, len(shards))
    return Checked(
        chunks=sum(map(len, drawn)),
        of_chunks=sum(held for _, (held, _) in shards),
        problems=problems,
    )
