"""A choice of episodes and columns of a dataset, and which objects of a version hold them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.operations import fewer_columns
from orlog.datasets.store.verify import DamageFinder
from orlog.datasets.store.version import schema_of_manifest
from orlog.datasets.store.zarr_metadata import column_of
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.columns import is_offsets
from orlog.manifests.manifest import Manifest, StoredObject


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which episodes and columns of a dataset to read.

    Attributes:
        episodes: Positions of episodes, in the order wanted; None for all.
        columns: Optional columns to keep, as for `Dataset.select_columns`; None for all.
    """

    episodes: Sequence[int] | None = None
    columns: Sequence[str] | None = None

    def __bool__(self) -> bool:
        """Return whether anything is left out."""
        return self.episodes is not None or self.columns is not None

    def of(self, dataset: Dataset) -> Dataset:
        """Return the view of a dataset with the chosen episodes and columns."""
        chosen = dataset if self.columns is None else dataset.select_columns(self.columns)
        return chosen if self.episodes is None else chosen[np.asarray(self.episodes, np.int64)]


def choose(episodes: Sequence[int] | None, columns: Sequence[str] | None) -> Choice:
    """Return a choice, after checking its arguments.

    Raises TypeError if columns are a single text, or episodes are not integers; ValueError if no episode is
    chosen.
    """
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names, found the text {columns!r:.60}.")
    if episodes is not None:
        positions = np.asarray(episodes)
        if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iu"):
            raise TypeError(
                f"episodes must be positions, such as range(100), found {episodes!r:.60}."
            )
        if not positions.size:
            raise ValueError("episodes must be positions, such as range(100), found none.")
    return Choice(episodes=episodes, columns=columns)


def check_choice(manifest: Manifest, choice: Choice, folder: Path) -> set[str]:
    """Return the names of the columns that a choice keeps.

    Raises SchemaError if the version has no such episodes; NotFoundError if the version has no such column.
    """
    what = f"{manifest.name}@{manifest.version}"
    if choice.episodes is not None:
        positions = np.asarray(choice.episodes)
        if positions.min() < 0 or positions.max() >= manifest.total_episodes:
            raise SchemaError(
                f"{what}: it has {manifest.total_episodes} episodes (0 to "
                f"{manifest.total_episodes - 1}), found {positions.min()} to {positions.max()}."
            )
    schema = schema_of_manifest(manifest, folder)
    if choice.columns is not None:
        schema = fewer_columns(schema, sorted(set(choice.columns)), what)
    return {*schema.columns()}


def plain_objects(manifest: Manifest, columns: set[str]) -> list[StoredObject]:
    """Return the objects needed to locate rows: metadata, columns of episodes, offsets."""
    plain = []
    for item in manifest.objects:
        column = column_of(item.path)
        if column is None or (
            column in columns and (column.startswith("episodes/") or is_offsets(column))
        ):
            plain.append(item)
    return plain


def wanted_objects(
    folder: Path, manifest: Manifest, columns: set[str], episodes: Sequence[int] | None
) -> list[StoredObject]:
    """Return the objects with rows of some episodes; `plain_objects` must be in the folder."""
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
                f"{folder}: the columns that say which episodes {item.path} holds are damaged; run: "
                f"orlog verify {manifest.name} --repair",
                file=item.path,
            )
        if counted[held[1] + 1] > counted[held[0]]:
            wanted.append(item)
    return wanted
