"""Removes a home's folders in one step and reports it: what all collectors of garbage share."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

from orlog.base.files import BusyError, sole_access, storage_errors, sync
from orlog.errors import StorageError

DAY = 86_400.0
GONE = "is gone already"
LEFT_BEHIND = "left by a process that ended early"
OPENED_LEAST_RECENTLY = "opened least recently, and room was asked for"
OPENED_NOW = "was opened or changed just now"


@dataclasses.dataclass(frozen=True, slots=True)
class Removed:
    """A path that was removed (or would be), why, and how many bytes this freed."""

    path: Path
    why: str
    freed_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """A path that was due for removal, and why it was kept."""

    path: Path
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class GarbageReport:
    """What a collector removed and kept, and the bytes that are left in the user's own home."""

    removed: list[Removed]
    kept: list[Kept]
    left_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Collection:
    """What a collector has removed and kept so far, and the errors of failed removals."""

    removed: list[Removed] = dataclasses.field(default_factory=list)
    kept: list[Kept] = dataclasses.field(default_factory=list)
    failures: list[StorageError] = dataclasses.field(default_factory=list)

    def attempt(
        self, path: Path, why: str, remove: Callable[[], str], free: Callable[[], int]
    ) -> int:
        """Remove a path and record the outcome; return the bytes that this freed.

        `remove` returns why it could not, or `GONE` if another process removed it; `free` tells the bytes
        then.
        """
        try:
            refusal = remove()
        except StorageError as error:
            self.failures.append(error)
            return 0
        if refusal and refusal != GONE:
            self.kept.append(Kept(path, refusal))
            return 0
        freed = free()
        if not refusal:
            self.removed.append(Removed(path, why, freed))
        return freed


def check_limits(unused_days: int | None, max_bytes: int | None) -> None:
    """Refuse negative limits.

    Raises ValueError for a negative number.
    """
    if min(unused_days or 0, max_bytes or 0) < 0:
        raise ValueError("days and bytes must be 0 or more.")


def remove_unless_busy(folder: Path, remove: Callable[[], str]) -> str:
    """Call `remove` while holding the folder's lock; return why it was not removed, or nothing.

    Raises StorageError if the disk cannot be written.
    """
    try:
        with sole_access(folder, longest_wait=0), storage_errors(folder):
            return remove()
    except BusyError:
        return "is being written by another process"


def remove_in_one_step(
    path: Path, trash: Path, *, is_due: Callable[[Path], bool] = lambda _: True
) -> bool:
    """Remove a folder by renaming it to `trash` and erasing that; return whether it is gone.

    Call it inside `sole_access`. Other processes find the whole folder or nothing. `is_due` checks
    the renamed folder, which is put back if it is not due: a process that marked it as used before
    the rename has opened it, and a later one does not find it.
    """
    erase(trash)
    try:
        path.rename(trash)
    except FileNotFoundError:  # another process removed it
        return True
    if not is_due(trash):
        trash.rename(path)
        return False
    sync(trash.parent)
    erase(trash)
    return True


def erase(path: Path) -> None:
    """Remove a file, a link, or a folder with all that it holds, if it is there."""
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
