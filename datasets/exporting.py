"""Writes datasets in the formats of other tools."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from orlog.base.files import (
    absolute_path,
    make_folder,
    put_new,
    storage_errors,
    sync_folders,
    unfinished_folder,
)
from orlog.datasets.formats._shared.sums import write_sums
from orlog.datasets.formats.formats import formats, own_format
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.given import Given, as_dataset
from orlog.errors import FormatVersionError, SchemaError, VersionExistsError
from orlog.manifests.names import did_you_mean


def export_dataset(
    dataset: Given,
    folder: str | os.PathLike[str],
    *,
    to: str,
    lossy: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    on_losses: Callable[[Sequence[str]], None] = lambda _losses: None,
) -> Path:
    """Write a dataset or a view in the format of another tool into a new folder; return the folder.

    `SHA256SUMS` lists the SHA-256 of each file. An interruption leaves nothing under `folder`.

    Args:
        dataset: What to write.
        folder: The new folder, which must not exist.
        to: Name of the format, such as `minari` (`orlog formats` lists them), or the path of a file of
            your own that declares one.
        lossy: Whether to leave out what the format cannot hold, such as final observations in D4RL's.
        progress: Called with steps done and in all.
        on_losses: Called with what the format cannot hold, a sentence each, before anything is
            written; not called where nothing is lost.

    Raises:
        FormatVersionError: there is no such format, or orlog only reads it.
        SchemaError: the format cannot hold the dataset, or would lose some of it and `lossy` is false.
        VersionExistsError: `folder` exists.
        MissingExtraError: a package that writes the format is not installed.
        StorageError: the disk is full.
    """
    dataset = as_dataset(dataset)
    writable = {name: one for name, one in formats().items() if one.write is not None}
    found = writable.get(to) or own_format(to)
    if found is None or found.write is None:
        raise FormatVersionError(
            f"{dataset.name}: orlog writes no format {to!r}{did_you_mean(to, writable)}; it writes "
            f"{', '.join(sorted(writable)) or 'none'}."
        )
    found.check()
    losses = found.losses(_without_empty_columns(dataset))
    if losses:
        on_losses(losses)
        if not lossy:
            raise SchemaError(
                f"{dataset.name}: {to} cannot hold all of it: {' '.join(losses)} Give --lossy "
                "(lossy=True) to leave that out."
            )
    target = absolute_path(os.fspath(folder))
    _refuse_existing(target)
    with storage_errors(target):
        make_folder(target.parent)
    with unfinished_folder(target) as unfinished, storage_errors(target):
        _refuse_existing(target)
        written = unfinished / "export"
        written.mkdir()
        found.write(dataset, written, progress)
        write_sums(written)
        sync_folders(written)
        put_new(written, target)
    return target


def _without_empty_columns(dataset: Dataset) -> Dataset:
    """Return a view without columns of episodes that say nothing: no text, no value, or never true."""
    schema = dataset.schema
    telling = []
    for name, spec in schema.extras.items():
        if name.startswith("episodes/"):
            if name in schema.variable:
                said = dataset.column(f"{name}@offsets")
            else:
                said = dataset.column(name) if spec.dtype == bool else np.ones(1, bool)
            if not said.any():
                continue
        telling.append(name)
    return dataset.select_columns(["observations", *telling])


def _refuse_existing(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise VersionExistsError(
            f"{target}: exists already; nothing was written. Give a new folder."
        )
