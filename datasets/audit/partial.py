"""Opens what is here of a version that was downloaded in part: its whole episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

import numpy as np

from orlog.datasets.audit.findings import Finding
from orlog.datasets.audit.pieces import optional_columns
from orlog.datasets.home.presence import is_partial, is_whole, present_objects
from orlog.datasets.reading import opening
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.finding import as_folder, find_stored, holds_manifest, pinned
from orlog.datasets.reading.finding import find_part as find_part_folder
from orlog.datasets.reading.opening import Choice, Given
from orlog.datasets.store.verify import DamageFinder
from orlog.datasets.store.version import schema_of_manifest
from orlog.datasets.store.zarr_metadata import column_of
from orlog.errors import NotFoundError
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, read_manifest
from orlog.manifests.names import counted, parse_name


@dataclasses.dataclass(frozen=True)
class Part:
    """The whole episodes that are here of a version, and the finding that says so."""

    dataset: Dataset
    finding: Finding


def open_part(given: Given) -> Part | None:
    """Return what is here of a version that was downloaded in part; None if it is no such part.

    Raises NotFoundError if no episode of it is here whole; IntegrityError if what should be here is missing,
    cut or altered.
    """
    folder = None if isinstance(given, Dataset) else _folder(given)
    if folder is None:
        return None
    manifest = read_manifest(folder / MANIFEST_FILE)
    if is_whole(folder, manifest):
        return None
    here = {item.path for item in present_objects(folder, manifest)}
    absent = {item.path for item in manifest.objects} - here
    schema = schema_of_manifest(manifest, folder)
    left_out = {name for name in optional_columns(schema) if _is_absent(name, manifest, absent)}
    finder = DamageFinder(folder, manifest, absent)
    is_here = np.ones(manifest.total_episodes, np.bool_)
    for path in absent:
        column = column_of(path)
        if column is None or any(_belongs(column, name) for name in left_out):
            continue
        _, held = finder.find(path)
        first, last = held or (0, manifest.total_episodes - 1)
        is_here[first : last + 1] = False
    if not is_here.any():
        raise NotFoundError(
            f"{manifest.name}@{manifest.version}: no episode is on this machine whole; run: orlog "
            f"download {manifest.name}"
        )
    columns = sorted(optional_columns(schema) - left_out) if left_out else None
    episodes = np.flatnonzero(is_here)
    dataset = opening.open_part(folder, Choice(episodes=episodes.tolist(), columns=columns))
    without = f", without {', '.join(sorted(left_out))}" if left_out else ""
    return Part(
        dataset,
        Finding(
            check="partial",
            severity="note",
            column="",
            text=f"a part of the version, as it was downloaded: {len(episodes):,} of "
            f"{counted(manifest.total_episodes, 'episode')}{without}; nothing is damaged, and the rest was "
            "not looked at",
            count=len(absent),
        ),
    )


def _folder(given: str | Path) -> Path | None:
    """Return the folder of a part, if there is one and no whole version."""
    path = as_folder(given)
    if path is not None:
        return path if is_partial(path) and holds_manifest(path) else None
    wanted = pinned(parse_name(str(given)))
    try:
        find_stored(str(wanted))
    except NotFoundError:
        return find_part_folder(wanted)
    return None


def _belongs(column: str, name: str) -> bool:
    """Return whether a column stores values at a path, or below it."""
    return column == name or column.startswith((f"{name}/", f"{name}@"))


def _is_absent(name: str, manifest: Manifest, absent: Collection[str]) -> bool:
    paths = [
        item.path
        for item in manifest.objects
        if (column := column_of(item.path)) is not None and _belongs(column, name)
    ]
    return bool(paths) and all(path in absent for path in paths)
