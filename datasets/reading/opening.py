"""Opens what is on this machine: a stored version, a part of one, or a saved view."""

from __future__ import annotations

from pathlib import Path

from orlog.datasets.home.presence import is_partial
from orlog.datasets.reading.choice import Choice, choose, open_part
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.finding import (
    as_folder,
    find_part,
    find_stored,
    holds_manifest,
    is_file,
    pinned,
)
from orlog.datasets.reading.views import open_view
from orlog.errors import NotFoundError
from orlog.manifests.names import DatasetName, parse_name

__all__ = [
    "open_chosen",
    "open_dataset",
    "open_path",
]


def open_path(path: Path) -> Dataset:
    """Return the dataset in a folder, or the view in a file."""
    if is_file(path):
        return open_view(path, lambda name: Dataset(*find_stored(name, opens=True)))
    return Dataset(*find_stored(path, opens=True))


def open_chosen(wanted: DatasetName, choice: Choice) -> Dataset:
    """Return what is wanted of a version that is here, whole or in part."""
    try:
        return choice.of(Dataset(*find_stored(str(wanted), opens=True)))
    except NotFoundError:
        part = find_part(wanted) if choice else None
        if part is None:
            raise
        return open_part(part, choice)


def open_dataset(name: str | Path) -> Dataset:
    """Return a dataset that is on this machine, by name, by version or digest, or by path.

    An `orlog.lock` in the current folder or above it pins names to digests.

    Raises:
        InvalidNameError: the name does not follow the grammar.
        NotFoundError: it is not here; the message says what to run.
        IntegrityError: an object is missing, cut or altered.
        LockError: `orlog.lock` pins the name to something else than asked for.
    """
    path = as_folder(name)
    if path is None:
        return open_chosen(pinned(parse_name(str(name))), choose(None, None))
    if is_partial(path) and holds_manifest(path):
        return open_part(path, choose(None, None))
    return open_path(path)
