"""Checks that a pack holds what its dataset holds, when it is opened, and remembers the result.

The checksums of a pack are stored with it, so they detect accidents, not forgery.

    in the user's own home   every file is hashed, and the record compared with the dataset's columns
    in a shared home         the version's objects are hashed against its manifest, and every value
                             of the pack is compared with the version's value

Undamaged packs are remembered by size, times and inode of each file (`datasets/home/verified.py`),
in the user's own home in both cases. So a pack is checked once, and again only after a file
changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np

from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.verified import Stamp, is_settled, remember_files, remembered_files
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.verify import Problem, verify_folder
from orlog.errors import IntegrityError
from orlog.loaders.arrays.arrays import Mixture
from orlog.loaders.arrays.filling import Layout, fill_matrix, fill_other
from orlog.loaders.arrays.pack_cache import RECORD_FILE
from orlog.loaders.arrays.pack_record import (
    PackRecord,
    PackSource,
    describe_pack,
    file_forms,
    find_problems,
)
from orlog.loaders.arrays.step_table import count_since

_logger = logging.getLogger("orlog")


def is_trusted(folder: Path, digest: str, stamps: Mapping[str, Stamp]) -> bool:
    """Return whether a pack's files are unchanged since a check that found no damage."""
    return remembered_files(folder, digest) == stamps


def trust(folder: Path, digest: str, stamps: Mapping[str, Stamp], before_ns: int) -> None:
    """Remember that a pack is undamaged, if its stamps would show any change since `before_ns`."""
    if all(is_settled(stamp, before_ns) for stamp in stamps.values()):
        remember_files(folder, digest, stamps)


def find_damage(
    source: PackSource,
    folder: Path,
    record: PackRecord,
    maps: Mapping[str, np.ndarray],
    *,
    is_own: bool,
    limit: int,
) -> Problem | None:
    """Return how a pack, with its record and its files by name, differs from its dataset; None where it does not.

    `is_own` says that it lies in the user's own home, where forgery is not expected; `limit` is the bytes to
    compare at a time.
    """
    dataset, layout, mixture = source.dataset, source.layout, source.mixture
    problem = _compare_record(source, layout, mixture, record)
    if problem is not None:
        return problem
    if is_own:
        _logger.info("%s: hashing its pack in %s, once", dataset.name, folder)
        found: Iterator[Problem | None] = iter(find_problems(folder, record, lambda _: None))
        problem = next(found, None)
        # Texts are in the record, which has not been hashed.
        return problem or _compare_others(dataset, layout, record, maps, [*layout.tables], limit)
    _logger.info("%s: comparing the pack in %s with the dataset, once", dataset.name, folder)
    _verify_shared(dataset)
    tables = [*layout.tables]
    rest = [name for name in layout.others if name not in tables]
    return (
        _compare_lengths(dataset, mixture, maps)
        or _compare_others(dataset, layout, record, maps, tables, limit)
        or _compare_rows(dataset, layout, record, maps["rows.f32"], limit)
        or _compare_others(dataset, layout, record, maps, rest, limit)
    )


def _compare_record(
    source: PackSource, layout: Layout, mixture: Mixture | None, record: PackRecord
) -> Problem | None:
    """Compare a record with the dataset, as far as that needs no column."""
    expected = msgspec.structs.replace(
        describe_pack(source, layout, mixture),
        name=record.name,  # it does not affect sampling
        non_finite=record.non_finite,
        texts={name: record.texts.get(name, ()) for name in layout.tables},
        files=record.files,
    )
    forms = [(one.name, one.column, np.dtype(one.dtype), one.shape) for one in record.files]
    if expected == record and forms == file_forms(layout, mixture):
        return None
    return Problem(RECORD_FILE, "damaged", "what the dataset's columns say", "something else")


def _compare_lengths(
    dataset: Dataset, mixture: Mixture | None, maps: Mapping[str, np.ndarray]
) -> Problem | None:
    lengths = dataset.episode_lengths
    if not np.array_equal(maps["lengths.i64"], lengths):
        return _other_values("lengths.i64")
    first = 0
    for since in count_since(lengths):
        if not np.array_equal(maps["since.u8"][first : first + len(since)], since):
            return _other_values("since.u8")
        first += len(since)
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
    """Compare columns that are not packed, and the tables of texts."""
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
    """Refuse objects in shared homes that do not match their manifest."""
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
    """Return whether two arrays are the same bit for bit, including NaN."""
    return bool(np.array_equal(_bits(found), _bits(expected)))


def _bits(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind != "f":
        return values
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _other_values(file: str, column: str | None = None) -> Problem:
    return Problem(file, "other values", "those of the dataset", "others", column=column)
