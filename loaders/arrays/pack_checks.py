"""Whether a pack is what its dataset holds: found out once, then remembered in one's own home.

A pack's checksums lie beside it, so they find accidents and prove nothing against a forger.

    in one's own home   every file is hashed, and the record compared with the dataset's columns
    in a shared home    the version's objects are hashed against its manifest, and every value of
                        the pack is compared with the one that the version holds

What was found right is remembered by size, times and inode of each file (`datasets/remembered.py`),
in one's own home in both cases. So a pack is read once, and again only when a file of it changed.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np

from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.verified import Stamp, is_settled, remember_files, remembered_files
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.verify import Problem, verify_folder
from orlog.errors import FormatVersionError, IntegrityError
from orlog.loaders.arrays.arrays import mixture_of
from orlog.loaders.arrays.filling import Layout, fill_matrix, fill_other, layout_of
from orlog.loaders.arrays.pack_cache import RECORD_FILE, cached_packs
from orlog.loaders.arrays.pack_record import (
    PackRecord,
    describe_pack,
    file_forms,
    find_problems,
    read_record,
)
from orlog.loaders.arrays.step_table import count_since

__all__ = ["VerifiedPack", "find_damage", "is_trusted", "trust", "verify_packs"]

_logger = logging.getLogger("orlog")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPack:
    """What `verify_packs` found.

    Attributes:
        folder: The pack.
        name: Name of its dataset; empty where its record cannot be read, as are those below.
        digest: Digest of its dataset.
        files: Number of its files but the record.
        size_bytes: Their bytes.
        problems: What is wrong.
    """

    folder: Path
    name: str
    digest: str
    files: int
    size_bytes: int
    problems: list[Problem]


def verify_packs(
    dataset: Dataset | None = None,
    progress: Callable[[str, int, int], None] = lambda _pack, _done, _total: None,
) -> Iterator[VerifiedPack]:
    """Hash every byte of packs in all homes, and compare with what their records say.

    One in which something is wrong is made anew when it is next asked for.

    Args:
        dataset: Only its pack, and those of views of it; by default all.
        progress: Called with a pack's folder, its bytes that were read, and all its bytes.
    """
    for pack in cached_packs():
        if pack.kind != "pack":
            continue
        try:
            record = read_record(pack.folder)
        except (IntegrityError, FormatVersionError) as error:
            # It cannot say whose it is; its folder's name can.
            if dataset is None or pack.folder.name.partition("-")[0] in dataset.digest:
                problem = Problem(RECORD_FILE, "damaged", "the record of a pack", str(error))
                yield VerifiedPack(
                    folder=pack.folder,
                    name="",
                    digest="",
                    files=0,
                    size_bytes=0,
                    problems=[problem],
                )
            continue
        if dataset is not None and dataset.digest not in (record.digest, *record.sources):
            continue
        size, done = sum(one.size for one in record.files), 0

        def count(more: int, folder: str = str(pack.folder), size: int = size) -> None:
            nonlocal done
            done += more
            progress(folder, done, size)

        problems = find_problems(pack.folder, record, count)
        if problems:  # also where a disk changed bytes by itself, which no stamp shows
            remember_files(pack.folder, record.digest, {})
        yield VerifiedPack(
            folder=pack.folder,
            name=record.name,
            digest=record.digest,
            files=len(record.files),
            size_bytes=size,
            problems=problems,
        )


def is_trusted(folder: Path, digest: str, stamps: Mapping[str, Stamp]) -> bool:
    """Return whether a pack's files are those that were found right before."""
    return remembered_files(folder, digest) == stamps


def trust(folder: Path, digest: str, stamps: Mapping[str, Stamp], before_ns: int) -> None:
    """Remember that a pack was found right, if any change since a time shows in its stamps."""
    if all(is_settled(stamp, before_ns) for stamp in stamps.values()):
        remember_files(folder, digest, stamps)


def find_damage(
    dataset: Dataset,
    folder: Path,
    record: PackRecord,
    maps: Mapping[str, np.ndarray],
    *,
    is_own: bool,
    limit: int,
) -> Problem | None:
    """Return how a pack differs from its dataset; None where it does not.

    Args:
        dataset: What it should hold.
        folder: The pack.
        record: Its record.
        maps: Its files, by name.
        is_own: Whether it lies in one's own home, where nobody forges.
        limit: Bytes to compare at a time.

    Raises:
        IntegrityError: the dataset itself is damaged.
        SchemaError: the dataset cannot be sampled.
    """
    layout = layout_of(dataset)
    problem = _compare_record(dataset, layout, record)
    if problem is not None:
        return problem
    if is_own:
        _logger.info("%s: hashing its pack in %s, once", dataset.name, folder)
        found: Iterator[Problem | None] = iter(find_problems(folder, record, lambda _: None))
        problem = next(found, None)
        # Texts stand in the record, which nothing has hashed.
        return problem or _compare_others(dataset, layout, record, maps, [*layout.tables], limit)
    _logger.info("%s: comparing the pack in %s with the dataset, once", dataset.name, folder)
    _verify_shared(dataset)
    tables = [*layout.tables]
    rest = [name for name in layout.others if name not in tables]
    return (
        _compare_lengths(dataset, maps)
        or _compare_others(dataset, layout, record, maps, tables, limit)
        or _compare_rows(dataset, layout, record, maps["rows.f32"], limit)
        or _compare_others(dataset, layout, record, maps, rest, limit)
    )


def _compare_record(dataset: Dataset, layout: Layout, record: PackRecord) -> Problem | None:
    """Compare all of a record that shows without reading columns."""
    mixture = mixture_of(dataset)
    expected = msgspec.structs.replace(
        describe_pack(dataset, layout, mixture),
        name=record.name,  # no part of what is sampled
        non_finite=record.non_finite,
        texts={name: record.texts.get(name, ()) for name in layout.tables},
        files=record.files,
    )
    forms = [(one.name, one.column, np.dtype(one.dtype), one.shape) for one in record.files]
    if expected == record and forms == file_forms(layout, mixture):
        return None
    return Problem(RECORD_FILE, "damaged", "what the dataset's columns say", "something else")


def _compare_lengths(dataset: Dataset, maps: Mapping[str, np.ndarray]) -> Problem | None:
    lengths = dataset.episode_lengths
    if not np.array_equal(maps["lengths.i64"], lengths):
        return _other_values("lengths.i64")
    first = 0
    for since in count_since(lengths):
        if not np.array_equal(maps["since.u8"][first : first + len(since)], since):
            return _other_values("since.u8")
        first += len(since)
    mixture = mixture_of(dataset)
    if mixture is not None and not np.array_equal(maps["mixture.i64"], mixture.steps):
        return _other_values("mixture.i64")
    return None


def _compare_rows(
    dataset: Dataset, layout: Layout, record: PackRecord, rows: np.ndarray, limit: int
) -> Problem | None:
    non_finite = ""
    for first, last in layout.ranges("", limit):
        matrix = np.zeros((last - first, layout.width), np.float32)
        place = fill_matrix(dataset, layout, first, last, matrix)
        non_finite = non_finite or place
        if not _are_same(rows[first:last], matrix):
            return _other_values("rows.f32")
    if non_finite != record.non_finite:
        return Problem(RECORD_FILE, "damaged", f"not finite: {non_finite}", record.non_finite)
    return None


def _compare_others(
    dataset: Dataset,
    layout: Layout,
    record: PackRecord,
    maps: Mapping[str, np.ndarray],
    names: list[str],
    limit: int,
) -> Problem | None:
    """Compare columns that are not packed, and of texts their table."""
    files = {one.column: one.name for one in record.files if one.column}
    for name in names:
        spec = layout.others[name]
        for first, last in layout.ranges(name, limit):
            values = np.zeros((last - first, *spec.shape), spec.dtype)
            fill_other(dataset, layout, name, first, last, values)
            if not _are_same(maps[files[name]][first:last], values):
                return _other_values(files[name], name)
        if name in layout.tables and layout.tables[name].texts != record.texts[name]:
            return Problem(RECORD_FILE, "damaged", "the dataset's texts", "others", column=name)
    return None


def _verify_shared(dataset: Dataset) -> None:
    """Refuse objects of shared homes that are not what their manifest says."""
    for stored in dataset.selection().versions:
        if stored.folder.is_relative_to(datasets_folder()):
            continue
        _, problems = verify_folder(stored.folder, quick=True)
        for problem in problems:
            if problem.kind != "not in the manifest":
                raise IntegrityError(
                    f"{dataset.name}: {stored.folder}: {problem}; run: orlog verify "
                    f"{stored.folder}",
                    file=problem.file,
                    expected=problem.expected,
                    found=problem.found,
                )


def _are_same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether two are the same bit for bit, not-a-numbers too."""
    return bool(np.array_equal(_bits(found), _bits(expected)))


def _bits(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind != "f":
        return values
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _other_values(file: str, column: str | None = None) -> Problem:
    return Problem(file, "other values", "those of the dataset", "others", column=column)
