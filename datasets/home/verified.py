"""Files that earlier verifications found intact, which a quick verification need not read again.

    $ORLOG_HOME/verified/KEY.json       KEY: the start of the SHA-256 of the store's path

    {"verified_version": 1, "folder": "/..", "digest": "sha256:..",
     "files": {"rewards/c.0": [size, mtime_ns, ctime_ns, inode], ..}}

Each file listed was read and had the SHA-256 that the manifest with this digest states. A changed
file gets other times or another inode, except right after an earlier change, since file systems'
clocks are coarse. So files younger than two seconds are not recorded.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from orlog.datasets.home.folders import datasets_folder
from orlog.errors import OrlogError
from orlog.manifests.documents import read_json_file, replace_json_file, sole_writer

SETTLED_NS = 2 * 10**9
MOST_FILES = 100_000  # as many as a small JSON file holds

# Size, mtime_ns, ctime_ns, inode.
Stamp: TypeAlias = tuple[int, int, int, int]


class _Verified(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    verified_version: Literal[1]
    folder: str
    digest: str
    files: dict[str, Stamp]


def stamp_of(found: os.stat_result) -> Stamp:
    """Return the properties that change when a file does."""
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def is_settled(stamp: Stamp, now_ns: int) -> bool:
    """Return whether a file was old enough at `now_ns` for any later change to alter its stamp."""
    _, modified, changed, _ = stamp
    return max(modified, changed) <= now_ns - SETTLED_NS


def remembered_files(folder: Path, digest: str) -> dict[str, Stamp]:
    """Return the stamps of files that were found intact, by path inside the store.

    There are none if the record is damaged or belongs to a manifest with another digest.
    """
    with contextlib.suppress(OrlogError, RuntimeError):
        path = _record(folder)
        if path.exists():
            found = read_json_file(
                path, _Verified, version=("verified_version", 1), repair="remove it"
            )
            if (found.folder, found.digest) == (_text(folder), digest):
                return found.files
    return {}


def remember_files(folder: Path, digest: str, files: Mapping[str, Stamp]) -> None:
    """Replace the record of verified files; a read-only home is not an error.

    The stamps must be from before the files were read, and settled (`is_settled`) at that time.
    """
    if len(files) > MOST_FILES:
        return
    body = {"verified_version": 1, "folder": _text(folder), "digest": digest, "files": files}
    with contextlib.suppress(OrlogError, RuntimeError):
        path = _record(folder)
        with sole_writer(path):
            replace_json_file(path, body)


def _record(folder: Path) -> Path:
    """Return the record of a store; RuntimeError if the system knows no home folder."""
    key = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    return datasets_folder().parent / "verified" / f"{key[:32]}.json"


def _text(folder: Path) -> str:
    """Return the store's path as text, with bytes that are not UTF-8 escaped."""
    return os.fsencode(folder.resolve()).decode("utf-8", "backslashreplace")
