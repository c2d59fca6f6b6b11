"""Distinguishes a version that was deleted while it was being read from a damaged one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from orlog.datasets.home.presence import PARTIAL_FILE, is_partial
from orlog.errors import IntegrityError, NotFoundError, StorageError


class FolderSeen:
    """Remembers which folder was at a path, so that its deletion can be detected later.

    Versions are deleted, and put in their place, by renaming their folder. So if a file is missing,
    the folder may no longer be the one that was opened.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._identity = _identity(folder)

    def __reduce__(self) -> tuple[type[FolderSeen], tuple[Path]]:
        """Look again where it arrives: another machine numbers its disks as it likes."""
        return FolderSeen, (self.folder,)

    def check(self, cause: BaseException | None = None) -> None:
        """Raise NotFoundError, caused by `cause`, if the folder was deleted or replaced since."""
        if self._identity is None or _identity(self.folder) != self._identity:
            raise NotFoundError(
                f"{self.folder} is not there any more: the version was deleted while it was read; "
                "get it again (orlog download or orlog build), then open it again."
            ) from cause


@contextlib.contextmanager
def unless_deleted(folder: Path) -> Iterator[None]:
    """Turn an error of files inside into NotFoundError if the folder was deleted by then."""
    seen = FolderSeen(folder)
    try:
        yield
    except (IntegrityError, StorageError, FileNotFoundError) as error:
        seen.check(error)
        raise


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what identifies the folder at a path; None if there is none."""
    try:
        # A part whose version is complete is removed file by file, its record first.
        if is_partial(folder):
            (folder / PARTIAL_FILE).stat()
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
