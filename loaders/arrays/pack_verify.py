"""Verifies every byte of the packs on this machine, for `orlog verify --packs`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from orlog.datasets.home.verified import remember_files
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.verify import Problem
from orlog.errors import FormatVersionError, IntegrityError
from orlog.loaders.arrays.pack_cache import RECORD_FILE, cached_packs
from orlog.loaders.arrays.pack_record import find_problems, read_record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPack:
    """What `verify_packs` found.

    Attributes:
        folder: The pack.
        name: Name of its dataset; empty, like the fields below, if its record cannot be read.
        digest: Digest of its dataset.
        files: Number of its files, without the record.
        size_bytes: Bytes of these files.
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
    """Hash every byte of the packs in all homes, or of one dataset and views of it; compare with their records.

    A damaged pack is made again the next time it is opened. `progress` gets the folder, bytes read and in
    all.
    """
    for pack in cached_packs():
        if pack.kind != "pack":
            continue
        try:
            record = read_record(pack.folder)
        except (IntegrityError, FormatVersionError) as error:
            # Its record does not name the dataset, but the folder's name has the digest.
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
        if problems:  # also after a disk error, which no stamp shows
            remember_files(pack.folder, record.digest, {})
        yield VerifiedPack(
            folder=pack.folder,
            name=record.name,
            digest=record.digest,
            files=len(record.files),
            size_bytes=size,
            problems=problems,
        )
