"""Checks every byte of a version that is on this machine."""

from __future__ import annotations

from collections.abc import Callable

from orlog.datasets.reading.finding import folders_to_verify
from orlog.datasets.reading.given import Given, as_stored_folder
from orlog.datasets.store.verify import Problem, verify_folder
from orlog.datasets.store.verify_values import check_opening
from orlog.manifests.manifest import Manifest


def verify_store(
    folder: Given, *, quick: bool = False, progress: Callable[[int], None] = lambda _: None
) -> tuple[Manifest, list[Problem]]:
    """Return the manifest and every problem of a store; no problems mean that every byte is right, and can be read.

    If a version was downloaded in part, only the objects that are here are checked. Objects are
    hashed in parallel, with a thread per core, in constant memory. Intact files are recorded under
    `$ORLOG_HOME/verified/`, if that can be written.

    Args:
        folder: The store's folder, or a dataset or its name.
        quick: Skip files that an earlier call found intact and whose size, times and inode are
            unchanged. This does not find bytes that the disk itself changed.
        progress: Called with the number of bytes checked since its last call, by the calling
            thread only, about ten times a second.

    Returns:
        The manifest, and the problems: those of objects in the manifest's order, then files that do
        not belong in the store.

    Raises:
        ManifestError: the manifest itself is damaged.
        NotFoundError: the version was deleted while it was checked.
        FormatVersionError: the store was written by a newer orlog.
        StorageError: this process has too many files open.
    """
    stored = as_stored_folder(folder, folders_to_verify)
    manifest, problems = verify_folder(stored, quick=quick, progress=progress)
    return manifest, problems or check_opening(stored, manifest)
