"""Finds datasets by name, digest, folder or saved view, and opens them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from orlog.datasets.home.holdings import mark_used
from orlog.datasets.home.presence import (
    is_partial,
)
from orlog.datasets.reading.choice import Choice, choose, open_part
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.finding import (
    as_folder,
    holds_manifest,
    pinned,
)
from orlog.datasets.reading.given import Given
from orlog.datasets.reading.opening import open_chosen, open_path
from orlog.errors import NotFoundError, wrong_type
from orlog.manifests.names import is_url, parse_name

__all__ = [
    "load_dataset",
]


def load_dataset(
    name: Given,
    *,
    build: bool = False,
    download: bool = False,
    episodes: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Dataset:
    """Return a dataset of this machine by name, by name and version or digest, or by path.

    An `orlog.lock` in the current folder or above it pins names to digests.

    Args:
        name: `pointmaze/umaze-v1`, `pointmaze/umaze-v1@1.0.0`, `pointmaze/umaze-v1@sha256:ab12..`,
            or a path, as a `Path` or as text that starts with `/`, `.` or `~`, ends in `.json`, or is
            no name and is there: a folder, or a file that `Dataset.save` wrote; or the URL of a version in a registry,
            which is fetched and checked if it is not here. Without a version it is the newest that
            is here and not yanked. A `Dataset` is returned as it is.
        build: Build it from its recipe first if it is not here yet (a minute or two in one process;
            `orlog build NAME` uses all cores).
        download: Download it first if it is not here (`orlog registry add` says from where).
        episodes: Positions of episodes that are wanted, such as `range(100)`; a view of them is
            returned. With `download`, only what holds them is brought.
        columns: Columns that are wanted of those that may go (`Dataset.select_columns`); likewise.
        progress: Called with steps done and in all while it builds, with bytes while it downloads.

    Raises:
        InvalidNameError: the name does not follow the grammar.
        NotFoundError: it is not here; the message says what to run.
        IntegrityError: an object is missing, cut or altered.
        TransferError: it could not be downloaded; what came is kept.
        LockError: `orlog.lock` pins the name to something else than asked for.
    """
    choice = choose(episodes, columns)
    if isinstance(name, Dataset):
        return choice.of(name)
    if not isinstance(name, str | Path):
        raise wrong_type("name", "a dataset's name, a path, a URL or a Dataset", name)
    path = None if is_url(name) else as_folder(name)
    if path is not None:
        is_part = is_partial(path) and holds_manifest(path)
        return open_part(path, choice) if is_part else choice.of(open_path(path))
    if not is_url(name):
        wanted = pinned(parse_name(str(name)))
        try:
            return open_chosen(wanted, choice)
        except NotFoundError:
            if build:
                # Imported here, as downloads are below: most datasets that are opened are stored,
                # and then the imports would take longer than opening.
                from orlog.datasets.recipes.build import build_dataset
                from orlog.datasets.recipes.catalogue import CATALOGUE

                if wanted.name in CATALOGUE:
                    return choice.of(Dataset(build_dataset(str(wanted), progress=progress)))
            if not download:
                raise
    from orlog.datasets.download.download import download_dataset

    get = functools.partial(download_dataset, episodes=episodes, columns=columns, progress=progress)
    try:
        return _open_downloaded(get(str(name)), choice)
    except NotFoundError:  # another process has just made a part whole, or deleted the version
        return _open_downloaded(get(str(name)), choice)


def _open_downloaded(folder: Path, choice: Choice) -> Dataset:
    mark_used(folder)
    return open_part(folder, choice) if is_partial(folder) else choice.of(Dataset(folder))
