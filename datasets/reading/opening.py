"""Opens datasets on this machine: stored versions, whole or in part, and saved views."""

from __future__ import annotations

from pathlib import Path

from orlog.datasets.home.deletion import unless_deleted
from orlog.datasets.home.holdings import mark_used
from orlog.datasets.home.presence import is_partial, read_partial
from orlog.datasets.reading.choice import Choice, check_choice, plain_objects, wanted_objects
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
from orlog.manifests.benchmarks import as_listed
from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
from orlog.manifests.names import DatasetName, parse_name


def open_dataset(name: str | Path) -> Dataset:
    """Return a dataset that is on this machine, by name, by version or digest, or by path.

    An `orlog.lock` in the current folder or above it pins names to digests.

    Raises InvalidNameError if the name does not follow the grammar; NotFoundError if it is not here; the
    message says what to run; IntegrityError if a file is missing, cut or altered; LockError if `orlog.lock`
    pins the name to another digest.
    """
    path = as_folder(name)
    everything = Choice()
    if path is not None:
        return open_path(path, everything)
    return open_named(pinned(parse_name(as_listed(str(name)))), everything)


def open_path(path: Path, choice: Choice) -> Dataset:
    """Return the chosen episodes and columns of a version's folder or a view's file."""
    if is_file(path):
        return choice.of(open_view(path, lambda name: Dataset(*find_stored(name, opens=True))))
    if is_partial(path) and holds_manifest(path):
        return open_part(path, choice)
    return choice.of(Dataset(*find_stored(path, opens=True)))


def open_named(wanted: DatasetName, choice: Choice) -> Dataset:
    """Return the chosen episodes and columns of a version that is here, whole or in part."""
    try:
        return choice.of(Dataset(*find_stored(str(wanted), opens=True)))
    except NotFoundError:
        part = find_part(wanted) if choice else None
        if part is None:
            raise
        return open_part(part, choice)


def open_part(folder: Path, choice: Choice) -> Dataset:
    """Return the chosen episodes and columns of a version that was downloaded in part.

    Raises NotFoundError if some of them are not here, or the version has no such column; SchemaError if the
    version has no such episodes; IntegrityError if a file is missing, cut or altered.
    """
    mark_used(folder)
    with unless_deleted(folder):
        manifest = read_manifest(folder / MANIFEST_FILE)
        columns = check_choice(manifest, choice, folder)
        record = read_partial(folder, manifest)
    here = set(record.objects if record is not None else ())
    plain = [item.path for item in plain_objects(manifest, columns)]
    absent = [path for path in plain if path not in here]
    if not absent:
        with unless_deleted(folder):
            wanted = wanted_objects(folder, manifest, columns, choice.episodes)
        absent = [item.path for item in wanted if item.path not in here]
    if absent:
        raise NotFoundError(
            f"{manifest.name}@{manifest.version}: {len(here)} of {len(manifest.objects)} files "
            f"are on this machine, and {len(absent)} more are wanted ({absent[0]}, ..); run: orlog "
            f"download {manifest.name} (with --episodes or --columns for a part)."
        )
    return choice.of(Dataset(folder, manifest))
