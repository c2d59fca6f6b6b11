"""Checks every decoded value of a version against its manifest, here or by the jobs of an executor."""

from __future__ import annotations

import functools
from collections.abc import Callable

from orlog.base.jobs import Execute, check_seen, do_jobs
from orlog.datasets.store.verify import Problem
from orlog.datasets.store.version import StoredVersion
from orlog.errors import IntegrityError, clause
from orlog.manifests.manifest import part_folder, parts_of


def check_values(
    version: StoredVersion,
    progress: Callable[[int], None] = lambda _: None,
    *,
    execute: Execute | None = None,
) -> list[Problem]:
    """Decode every value and compare each column with its BLAKE3 in the manifest.

    This finds what files' checksums cannot: values that a codec or faulty memory changed before
    they were stored. It takes constant memory. `progress` is called with the bytes of values
    checked since its last call. With `execute`, an executor, each column of a part is one job.

    Returns:
        The problems, by column of each part; empty if there are none.
    """
    columns = [
        (number, name)
        for number, part in enumerate(parts_of(version.manifest))
        for name in part.columns
    ]
    if execute is None:
        found = [_check_column(version, *one, progress) for one in columns]
        return [one for one in found if one is not None]
    problems: dict[int, Problem] = {}
    check = functools.partial(_check_there, version)
    for index, (problem, size) in do_jobs(check, columns, execute=execute):
        progress(size)
        if problem is not None:
            problems[index] = problem
    return [problems[index] for index in sorted(problems)]


def _check_there(version: StoredVersion, column: tuple[int, str]) -> tuple[Problem | None, int]:
    """Return what is wrong with a column, and how many bytes of values it has."""
    check_seen(version.folder)
    sizes: list[int] = []
    return _check_column(version, *column, sizes.append), sum(sizes)


def _check_column(
    version: StoredVersion, number: int, name: str, progress: Callable[[int], None]
) -> Problem | None:
    """Return what is wrong with the values of a column of one part."""
    expected = parts_of(version.manifest)[number].columns[name].blake3
    where = f"{part_folder(number)}{name}"
    try:
        found = version.hash_column(number, name, progress)
    except IntegrityError as error:
        return Problem(where, "damaged", f"blake3 {expected}", clause(error))
    if found != expected:
        return Problem(where, "other values", f"blake3 {expected}", f"blake3 {found}")
    return None
