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

    Of a version that was downloaded in part, the objects that are here are checked. Objects are hashed side by side, by a thread for each core, in constant memory. What was right
    is remembered under `$ORLOG_HOME/verified/`, where that can be written.

    Args:
        folder: Where the store lies, or a dataset or its name.
        quick: Do not read again what an earlier call found right and whose size, times and inode
            are as they were then. Bytes that a disk changed by itself are not found that way.
        progress: Called with the number of bytes checked since its last call, by the calling
            thread only, about ten times a second.

    Returns:
        The manifest, and the problems: those of objects in the manifest's order, then what does not
        belong.

    Raises:
        ManifestError: the manifest itself cannot be read as right.
        NotFoundError: the version was deleted while it was checked.
        FormatVersionError: the store was written by a newer orlog.
        StorageError: this process has too many files open.
    """
    stored = as_stored_folder(folder, folders_to_verify)
    return verify_folder(stored, quick=quick, progress=progress)
