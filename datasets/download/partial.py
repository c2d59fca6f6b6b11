"""Downloads a part of a version: only some episodes or columns.

More may arrive than was asked for, since objects are downloaded and checked whole.
Later requests add to the part; `download_dataset` without a choice completes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from orlog.base.files import (
    link_or_copy,
    make_folder,
    sole_access,
    storage_errors,
    sync_folders,
    write_durably,
)
from orlog.datasets.download.objects import TransferOptions, download_folder, fetch_objects
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.meaning import check_offered
from orlog.datasets.home.origin import Source, write_origin
from orlog.datasets.home.presence import (
    PartialRecord,
    files_of_part,
    partial_folder,
    read_partial,
    write_partial,
)
from orlog.datasets.reading.choice import Choice, check_choice, plain_objects, wanted_objects
from orlog.errors import SchemaError
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, StoredObject


def download_part(
    source: Source,
    choice: Choice,
    options: TransferOptions,
    *,
    on_wait: Callable[[], None] = lambda: None,
) -> Path:
    """Download what is missing of a part of a version, and return the part's folder.

    If another process has completed the version, its own folder is returned. Columns of episodes,
    such as lengths and returns, are always downloaded whole.

    Raises SchemaError if the version has no such episodes, or its container has no parts; NotFoundError if
    the version has no such column; IntegrityError if a part of another version of the same name and number is
    here; TransferError or StorageError as `download_version`.
    """
    manifest = source.manifest
    destination = datasets_folder() / manifest.name / manifest.version
    if manifest.container != "zarr":
        raise SchemaError(
            f"{manifest.name}@{manifest.version}: its container is {manifest.container}, one file "
            "that is downloaded whole; leave out episodes and columns, and choose after loading."
        )
    columns = check_choice(manifest, choice, destination)
    folder = partial_folder(destination)
    with sole_access(destination, on_wait=on_wait):
        if (destination / MANIFEST_FILE).is_file():  # another process has completed it
            return destination
        check_offered(manifest)
        here = _read_record(folder, manifest)

        def fetch(objects: Sequence[StoredObject], options: TransferOptions) -> PartialRecord:
            held = set(here.objects)
            missing = [item for item in objects if item.path not in held]
            kept = download_folder(destination)
            fetch_objects(source, missing, kept, options, also_here=files_of_part(folder, manifest))
            with storage_errors(folder):
                for item in missing:
                    (folder / item.path).unlink(missing_ok=True)
                    link_or_copy(kept / item.sha256, folder / item.path)
                sync_folders(folder)
                record = PartialRecord(
                    digest=manifest.digest,
                    objects=sorted({*held, *(item.path for item in missing)}),
                )
                write_partial(folder, record)
                write_origin(folder, source)
                for item in missing:
                    (kept / item.sha256).unlink(missing_ok=True)
            return record

        quiet = TransferOptions(
            jobs=options.jobs, limiter=options.limiter, patience=options.patience
        )
        here = fetch(plain_objects(manifest, columns), quiet)
        fetch(wanted_objects(folder, manifest, columns, choice.episodes), options)
    return folder


def _read_record(folder: Path, manifest: Manifest) -> PartialRecord:
    """Return the record of a version's part; its folder and manifest are made if missing."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        with storage_errors(folder):
            make_folder(folder)
            unfinished = folder.with_name(f"{folder.name}.manifest")
            write_durably(unfinished, manifest.to_json().encode())
            unfinished.replace(path)
    return read_partial(folder, manifest) or PartialRecord(digest=manifest.digest, objects=[])
