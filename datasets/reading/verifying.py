"""Checks every byte of a version that is on this machine."""

from __future__ import annotations

from collections.abc import Callable

from orlog.datasets.reading.finding import folders_to_verify
from orlog.datasets.reading.given import Given, as_stored_folder
from orlog.datasets.store.verify import Problem, verify_folder
from orlog.manifests.manifest import Manifest

__all__ = ["verify_store"]


def verify_store(
    folder: Given, *, quick: bool = False, progress: Callable[[int], None] = lambda _: None
) -> tuple[Manifest, list[Problem]]:
    """Return the manifest and every problem of a store; no problem means that every byte is right.

    Of a version that was downloaded in part, the objects that are here are checked. Objects are
    hashed in parallel, by a thread for each core, in constant memory. Intact files are recorded
    under `$ORLOG_HOME/verified/`, where that can be written.

    Args:
        folder: Where the store lies, or a dataset or its name.
        quick: Skip files that an earlier call found intact and whose size, times and inode are
            unchanged. Bytes that the disk itself changed are not found that way.
        progress: Called with the number of bytes checked since its last call, by the calling
            thread only, about ten times a second.

    Returns:
        The manifest, and the problems: those of objects in the manifest's order, then files that do
        not belong.

    Raises:
        ManifestError: the manifest itself is damaged.
        NotFoundError: the version was deleted while it was checked.
        FormatVersionError: the store was written by a newer orlog.
        StorageError: this process has too many files open.
    """
    stored = as_stored_folder(folder, folders_to_verify)
    return verify_folder(stored, quick=quick, progress=progress)
