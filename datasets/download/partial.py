"""Downloads and opens a part of a version: some episodes, or fewer columns.

What is here can be more than was asked for, since whole objects are brought, each checked as ever.
What is asked for later is added; `download_dataset` without a choice completes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from orlog.datasets.download.objects import JOBS, Progress, download_folder, fetch_objects
from orlog.datasets.download.transfer import Limiter, Patience
from orlog.datasets.home.deletion import unless_deleted
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.holdings import mark_used
from orlog.datasets.home.meaning import check_offered
from orlog.datasets.home.origin import Source, write_origin
from orlog.datasets.home.presence import (
    PartialRecord,
    files_of_part,
    partial_folder,
    read_partial,
    write_partial,
)
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.operations import fewer_columns
from orlog.datasets.store.contents import DamageFinder, column_of
from orlog.datasets.store.version import schema_of_manifest
from orlog.errors import IntegrityError, NotFoundError, SchemaError
from orlog.files import link_or_copy, sole_access, storage_errors, sync_folders, write_durably
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, StoredObject, read_manifest

__all__ = ["Choice", "check_choice", "choose", "download_part", "open_part"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What of a dataset is wanted.

    Attributes:
        episodes: Positions of episodes, in the order wanted; None for all.
        columns: Columns to keep of those that may go, as `Dataset.select_columns` takes them; None
            for all.
    """

    episodes: Sequence[int] | None = None
    columns: Sequence[str] | None = None

    def __bool__(self) -> bool:
        """Return whether anything is left out."""
        return self.episodes is not None or self.columns is not None

    def of(self, dataset: Dataset) -> Dataset:
        """Return the view of a dataset that has what is wanted."""
        chosen = dataset if self.columns is None else dataset.select_columns(self.columns)
        return chosen if self.episodes is None else chosen[np.asarray(self.episodes, np.int64)]


def download_part(
    source: Source,
    choice: Choice,
    *,
    jobs: int = JOBS,
    limiter: Limiter | None = None,
    progress: Progress = lambda _done, _total: None,
    on_wait: Callable[[], None] = lambda: None,
    patience: Patience = Patience(),
) -> Path:
    """Return the folder of what is here of a version, what is wanted of it brought first.

    That is the version's own folder where all of it is here by now. Columns of episodes, such as lengths and returns, always come whole. Other arguments are those
    of `download_version`.

    Raises:
        SchemaError: episodes that the version has not, or a container that has no parts.
        NotFoundError: a column that the version has not.
        IntegrityError: a part of another version of the same name and number is here.
        TransferError, StorageError: as `download_version`.
    """
    manifest = source.manifest
    destination = datasets_folder() / manifest.name / manifest.version
    if manifest.container != "zarr":
        raise SchemaError(
            f"{manifest.name}@{manifest.version}: its container is {manifest.container}, one file "
            "that is brought whole; leave out --episodes and --columns, and choose after loading"
        )
    columns = check_choice(manifest, choice, destination)
    folder = partial_folder(destination)
    with sole_access(destination, on_wait=on_wait):
        if (destination / MANIFEST_FILE).is_file():  # another process has completed it
            return destination
        check_offered(manifest)
        here = _read_record(folder, manifest)

        def bring(objects: Sequence[StoredObject], progress: Progress) -> PartialRecord:
            missing = [item for item in objects if item.path not in here.objects]
            kept = download_folder(destination)
            fetch_objects(
                source,
                missing,
                kept,
                jobs,
                limiter,
                progress,
                patience,
                also_here=files_of_part(folder, manifest),
            )
            with storage_errors(folder):
                for item in missing:
                    (folder / item.path).unlink(missing_ok=True)
                    link_or_copy(kept / item.sha256, folder / item.path)
                sync_folders(folder)
                record = PartialRecord(
                    digest=manifest.digest,
                    objects=sorted({*here.objects, *(item.path for item in missing)}),
                )
                write_partial(folder, record)
                write_origin(folder, source)
                for item in missing:
                    (kept / item.sha256).unlink(missing_ok=True)
            return record

        here = bring(_plain_objects(manifest, columns), lambda _done, _total: None)
        bring(_wanted_objects(folder, manifest, columns, choice.episodes), progress)
    return folder


def open_part(folder: Path, choice: Choice) -> Dataset:
    """Return the view that is wanted of a version of which a part is here.

    Raises:
        NotFoundError: not all that is wanted is here, or the version has no such column.
        SchemaError: episodes that the version has not.
        IntegrityError: an object is missing, cut or altered.
    """
    mark_used(folder)
    with unless_deleted(folder):
        manifest = read_manifest(folder / MANIFEST_FILE)
        columns = check_choice(manifest, choice, folder)
        record = read_partial(folder, manifest)
    here = set(record.objects if record is not None else ())
    plain = [item.path for item in _plain_objects(manifest, columns)]
    absent = [path for path in plain if path not in here]
    if not absent:
        with unless_deleted(folder):
            wanted = _wanted_objects(folder, manifest, columns, choice.episodes)
        absent = [item.path for item in wanted if item.path not in here]
    if absent:
        raise NotFoundError(
            f"{manifest.name}@{manifest.version}: {len(here)} of {len(manifest.objects)} objects "
            f"are on this machine, and {len(absent)} more are wanted ({absent[0]}, ..); run: orlog "
            f"download {manifest.name}   (with --episodes or --columns for a part)"
        )
    return choice.of(Dataset(folder, manifest))


def choose(episodes: Sequence[int] | None, columns: Sequence[str] | None) -> Choice:
    """Return a choice, its arguments checked.

    Raises:
        TypeError: columns are given as one text, or episodes are no integers.
        ValueError: no episode is chosen.
    """
    if isinstance(columns, str):
        raise TypeError(f"columns is a list of names, found the text {columns!r:.60}")
    if episodes is not None:
        positions = np.asarray(episodes)
        if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iu"):
            raise TypeError(f"episodes are positions, such as range(100), found {episodes!r:.60}")
        if not positions.size:
            raise ValueError("episodes are positions, such as range(100), found none")
    return Choice(episodes=episodes, columns=columns)


def check_choice(manifest: Manifest, choice: Choice, folder: Path) -> set[str]:
    """Return the columns that a choice leaves.

    Raises:
        SchemaError: episodes that the version has not.
        NotFoundError: a column that the version has not.
    """
    what = f"{manifest.name}@{manifest.version}"
    if choice.episodes is not None:
        positions = np.asarray(choice.episodes)
        if positions.min() < 0 or positions.max() >= manifest.total_episodes:
            raise SchemaError(
                f"{what}: episodes {positions.min()} to {positions.max()} are asked for, it has "
                f"{manifest.total_episodes} (0 to {manifest.total_episodes - 1})"
            )
    schema = schema_of_manifest(manifest, folder)
    if choice.columns is not None:
        schema = fewer_columns(schema, sorted(set(choice.columns)), what)
    return {*schema.columns()}


def _read_record(folder: Path, manifest: Manifest) -> PartialRecord:
    """Return what is here of a version; its folder and manifest are made if they are not there."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = folder.with_name(f"{folder.name}.manifest")
            write_durably(unfinished, manifest.to_json().encode())
            unfinished.replace(path)
    return read_partial(folder, manifest) or PartialRecord(digest=manifest.digest, objects=[])


def _plain_objects(manifest: Manifest, columns: set[str]) -> list[StoredObject]:
    """Return what is needed to find anything else: metadata, columns of episodes, offsets."""
    plain = []
    for item in manifest.objects:
        column = column_of(item.path)
        if column is None or (
            column in columns and (column.startswith("episodes/") or column.endswith("@offsets"))
        ):
            plain.append(item)
    return plain


def _wanted_objects(
    folder: Path, manifest: Manifest, columns: set[str], episodes: Sequence[int] | None
) -> list[StoredObject]:
    """Return the objects with rows of some episodes; the plain objects are in the folder."""
    chosen = [item for item in manifest.objects if column_of(item.path) in columns]
    if episodes is None:
        return chosen
    finder = DamageFinder(folder, manifest, ())
    is_chosen = np.zeros(manifest.total_episodes + 1, np.int64)
    is_chosen[np.asarray(episodes) + 1] = 1
    counted = is_chosen.cumsum()
    wanted = []
    for item in chosen:
        _, held = finder.find(item.path)
        if held is None:
            raise IntegrityError(
                f"{folder}: what tells which episodes {item.path} holds is damaged; run: orlog "
                f"repair {manifest.name}",
                file=item.path,
            )
        if counted[held[1] + 1] > counted[held[0]]:
            wanted.append(item)
    return wanted
