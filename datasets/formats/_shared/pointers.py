"""Finds files that Git LFS left as pointers: a few lines of text in place of the data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from orlog.errors import SchemaError
from orlog.manifests.names import counted

START = b"version https://git-lfs.github.com/spec/"
LARGEST = 1024  # bytes; the specification of Git LFS allows no more
MOST_LOOKED_AT = 20_000


def refuse_pointers(files: Sequence[Path], dataset: str) -> None:
    """Refuse files, or a folder, with data that git did not fetch.

    Raises SchemaError if one of the first 20,000 files is a pointer; it names the first and says how many there are.
    """
    found = [path for path in itertools.islice(_each(files), MOST_LOOKED_AT) if _is_pointer(path)]
    if found:
        more = f" and {counted(len(found) - 1, 'more file')}" if len(found) > 1 else ""
        are = "are pointers" if more else "is a pointer"
        raise SchemaError(
            f"{dataset}: {found[0]}{more} {are} of Git LFS, not the data; where they were cloned, run: git lfs pull"
        )


def _each(files: Sequence[Path]) -> Iterator[Path]:
    for file in files:
        yield from file.rglob("*") if file.is_dir() else [file]


def _is_pointer(path: Path) -> bool:
    try:
        if (
            path.is_symlink()
            or not path.is_file()
            or not len(START) < path.stat().st_size <= LARGEST
        ):
            return False
        with path.open("rb") as file:
            return file.read(len(START)) == START
    except OSError:
        return False
