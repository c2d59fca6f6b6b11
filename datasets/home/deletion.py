"""Tells a version that was deleted while it was read from one that is damaged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from orlog.datasets.home.presence import PARTIAL_FILE, is_partial
from orlog.errors import IntegrityError, NotFoundError

__all__ = ["FolderSeen", "unless_deleted"]


class FolderSeen:
    """Remembers which folder lay at a path, so that its deletion is known later.

    Versions are deleted, and put in their place, by renaming their folder. So whoever finds a file
    missing asks whether the folder is still the one that was opened: another one may be there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._identity = _identity(folder)

    def check(self, cause: BaseException | None = None) -> None:
        """Raise NotFoundError if the folder was deleted or replaced since, with what came of it."""
        if self._identity is None or _identity(self.folder) != self._identity:
            raise NotFoundError(
                f"{self.folder} is not there any more: the version was deleted while it was read; "
                "bring it back (orlog download or orlog build), then open it again"
            ) from cause


@contextlib.contextmanager
def unless_deleted(folder: Path) -> Iterator[None]:
    """Raise NotFoundError in place of an integrity error if the folder was deleted meanwhile."""
    seen = FolderSeen(folder)
    try:
        yield
    except IntegrityError as error:
        seen.check(error)
        raise


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what tells a folder from another one at the same path; None if there is none."""
    try:
        # A part that is complete goes file by file, its record first.
        if is_partial(folder):
            (folder / PARTIAL_FILE).stat()
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
