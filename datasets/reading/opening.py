"""Opens, splits and combines datasets on this machine: stored versions, whole or in part, and saved views.

A function that takes a dataset takes `Given`: a name, a path or a `Dataset`, in all functions alike.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from orlog.datasets.home.folders import is_partial, mark_used, read_partial, unless_deleted
from orlog.datasets.reading.combination import TASKS
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.finding import (
    as_folder,
    find_part,
    find_stored,
    folders_to_verify,
    holds_manifest,
    is_file,
    pinned,
)
from orlog.datasets.reading.views import fewer_columns, open_view, split_counts
from orlog.datasets.store.objects import VIDEO, Problem, column_of
from orlog.datasets.store.verify import DamageFinder, check_opening, verify_folder
from orlog.datasets.store.version import schema_of_manifest
from orlog.errors import IntegrityError, NotFoundError, SchemaError, wrong_type
from orlog.manifests.benchmarks import as_listed
from orlog.manifests.columns import is_offsets
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, StoredObject, read_manifest
from orlog.manifests.names import DatasetName, parse_name

Given: TypeAlias = str | Path | Dataset
"""A dataset's name, perhaps with a version or digest; a path, as text or `Path`; or a `Dataset`."""

_NAME = "a dataset's name such as 'pointmaze/umaze-v1'"


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
        """Return the view of a dataset with the chosen episodes and columns; of a layer, over its base."""
        dataset = over_base(dataset)
        chosen = dataset if self.columns is None else dataset.select_columns(self.columns)
        return chosen if self.episodes is None else chosen[np.asarray(self.episodes, np.int64)]


def over_base(dataset: Dataset) -> Dataset:
    """Return a layer over its base, and any other dataset as it is.

    Raises NotFoundError if the base is not on this machine.
    """
    base = dataset.manifest.base if dataset.operation is None else None
    if base is None:
        return dataset
    try:
        under = _open_stored(f"{base.name}@{base.digest}")
    except NotFoundError as error:
        raise NotFoundError(
            f"{dataset.name} is a layer over {base} ({base.digest[:19]}), which is not on this machine; run: orlog "
            f"download {base}, or build or import these bytes again."
        ) from error
    # What it has of its base's columns, its author put in their place.
    replaces = not dataset.schema.extras.keys().isdisjoint({*under.schema.columns(), *under.schema.extras})
    layered = Dataset.view([under, dataset], {"layers": {"replaces": True} if replaces else {}})
    layered.view_file = dataset.folder
    return layered


def layers_of(given: Given) -> list[Dataset]:
    """Return the layers that a name, a path or a dataset stands for, without their bases."""
    dataset = as_dataset(given, "layers")
    if dataset.operation is not None and "layers" in dataset.operation:
        return [*dataset.parents[1:]]
    return [dataset]


def choose(episodes: Sequence[int] | None, columns: Sequence[str] | None) -> Choice:
    """Return a choice, after checking its arguments."""
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names, found the text {columns!r:.60}.")
    if episodes is not None:
        positions = np.asarray(episodes)
        expected = "episodes must be positions, such as range(100), found"
        if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iu"):
            raise TypeError(f"{expected} {episodes!r:.60}.")
        if not positions.size:
            raise ValueError(f"{expected} none.")
    return Choice(episodes=episodes, columns=columns)


def open_dataset(name: str | Path) -> Dataset:
    """Return a dataset that is on this machine, by name, by version or digest, or by path.

    An `orlog.lock` in the current folder or above it pins names to digests.
    """
    path = as_folder(name)
    if path is not None:
        return open_path(path, Choice())
    return open_named(pinned(parse_name(as_listed(str(name)))), Choice())


def open_path(path: Path, choice: Choice) -> Dataset:
    """Return the chosen episodes and columns of a version's folder or a view's file."""
    if is_file(path):
        return choice.of(open_view(path, _open_stored, Dataset.view))
    if is_partial(path) and holds_manifest(path):
        return open_part(path, choice)
    return choice.of(_open_stored(path))


def open_named(wanted: DatasetName, choice: Choice) -> Dataset:
    """Return the chosen episodes and columns of a version that is here, whole or in part."""
    try:
        return choice.of(_open_stored(str(wanted)))
    except NotFoundError:
        part = find_part(wanted) if choice else None
        if part is None:
            raise
        return open_part(part, choice)


def _open_stored(name: str | Path) -> Dataset:
    return Dataset(*find_stored(name, opens=True))


def open_part(folder: Path, choice: Choice) -> Dataset:
    """Return the chosen episodes and columns of a version that was downloaded in part."""
    mark_used(folder)
    with unless_deleted(folder):
        manifest = read_manifest(folder / MANIFEST_FILE)
        columns = check_choice(manifest, choice, folder)
        here = set(read_partial(folder, manifest) or ())
        absent = [item.path for item in plain_objects(manifest, columns) if item.path not in here]
        if not absent:
            wanted = wanted_objects(folder, manifest, columns, choice.episodes)
            absent = [item.path for item in wanted if item.path not in here]
    if absent:
        raise NotFoundError(
            f"{manifest.name}@{manifest.version}: {len(here)} of {len(manifest.objects)} files "
            f"are on this machine, and {len(absent)} more are wanted ({absent[0]}, ..); run: orlog "
            f"download {manifest.name} (with --episodes or --columns for a part)."
        )
    return choice.of(Dataset(folder, manifest))


def check_choice(manifest: Manifest, choice: Choice, folder: Path) -> set[str]:
    """Return the names of the columns that a choice keeps."""
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
    """Return the objects needed to locate rows: metadata, columns of episodes, offsets, indexes of videos."""
    plain = {name for name in columns if name.startswith("episodes/") or is_offsets(name) or name in manifest.videos}
    objects = [item for item in manifest.objects if column_of(item.path) in {None, *plain}]
    return [item for item in objects if not VIDEO.fullmatch(item.path)]


def wanted_objects(
    folder: Path, manifest: Manifest, columns: set[str], episodes: Sequence[int] | None
) -> list[StoredObject]:
    """Return the objects with rows of some episodes; `plain_objects` must be in the folder."""
    chosen = [item for item in manifest.objects if column_of(item.path) in columns]
    if episodes is None:
        return chosen
    finder = DamageFinder(folder, manifest, ())
    is_chosen = np.zeros(manifest.total_episodes, np.bool_)
    is_chosen[np.asarray(episodes)] = True
    wanted = []
    for item in chosen:
        _, held = finder.find(item.path)
        if held is None:
            raise IntegrityError(
                f"{folder}: the columns that say which episodes {item.path} holds are damaged; run: "
                f"orlog verify {manifest.name} --repair",
                file=item.path,
            )
        if is_chosen[held[0] : held[1] + 1].any():
            wanted.append(item)
    return wanted


def as_dataset(given: Given, parameter: str = "dataset") -> Dataset:
    """Return the dataset that a name or path stands for; a `Dataset` is returned as it is."""
    if isinstance(given, Dataset):
        return given
    if not isinstance(given, str | Path):
        raise wrong_type(parameter, f"{_NAME}, a path, or a Dataset", given)
    return open_dataset(given)


def with_all_files(dataset: Dataset) -> Dataset:
    """Return a dataset whose files are all here, and refuse others."""
    if dataset.in_place or is_partial(dataset.folder):
        where = "it is read in place" if dataset.in_place else "only a part of it was downloaded"
        raise NotFoundError(
            f"{dataset.name}@{dataset.version}: this takes all of its files, and {where}; first run: "
            f"orlog download {dataset.name}@{dataset.version}"
        )
    return dataset


def as_stored_folder(given: Given, find: Callable[[str], list[Path]], parameter: str = "folder") -> Path:
    """Return the folder of the one stored version that a name, path or `Dataset` stands for; a view is refused.

    A path is returned as it is, whatever it holds. `find` returns the folders of a name, as
    `finding.stored_folders` does; errors call the argument `parameter`.
    """
    if isinstance(given, Dataset):
        if given.operation is not None:
            raise SchemaError(f"{given.name}: a view has no folder of its own; save_dataset stores it as a version.")
        return (with_all_files(given) if given.in_place else given).folder
    if isinstance(given, Path):
        return given
    if not isinstance(given, str):
        raise wrong_type(parameter, f"{_NAME}, a path, or a Dataset", given)
    path = as_folder(given)
    return find(given)[0] if path is None else path


def as_name(given: Given, parameter: str = "name") -> str:
    """Return a name as given, or the name and version of a `Dataset`."""
    if isinstance(given, Dataset):
        return f"{given.name}@{given.version}"
    if not isinstance(given, str):
        raise wrong_type(parameter, f"{_NAME} or a Dataset", given)
    return given


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


def split_dataset(dataset: Given, sizes: Sequence[float], *, seed: int | None = None) -> list[Dataset]:
    """Return disjoint views of whole episodes, so that no episode leaks from one to another.

    Args:
        dataset: What to split.
        sizes: Numbers of episodes, or fractions of all of them, which sum to at most 1.
        seed: Decides at random which episodes go where; without one, the first episodes go to the
            first view. Episodes keep their order within a view.

    Raises:
        ValueError: sizes are negative, or exceed the dataset.
    """
    dataset = as_dataset(dataset)
    given: object = sizes
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise wrong_type("sizes", "a sequence such as [0.9, 0.1]", sizes)
    counts = split_counts(dataset, list(sizes))
    split = {"sizes": counts, "seed": None if seed is None else int(seed)}
    return [Dataset.view([dataset], {"split": {**split, "part": part}}) for part in range(len(counts))]


def combine_datasets(
    datasets: Iterable[Given], *, weights: Sequence[float] | Literal["tasks"] | None = None, pad: bool = False
) -> Dataset:
    """Return a view of all episodes of several datasets, one dataset after the other.

    Datasets that are weighted combinations themselves keep their weights, multiplied by those given
    here.

    Args:
        datasets: What to combine; spaces and columns must be the same, unless `pad` is true.
        weights: For each dataset, the probability that a sampled step comes from it (scaled to sum
            to 1); or `tasks`: each task is as likely as any other. By default, each counts by its number of
            steps, so all steps are equally likely unless a dataset is weighted itself. Tasks are told apart by
            the column of episodes that has the role `task_words` (docs/families.md), else by the names of
            datasets.
        pad: Whether spaces may differ: vectors are filled up with zeros to the length of the longest, and choices
            (Discrete) to the number of the most. The infos `valid/observations` and `valid/actions` of a step
            flag what its own dataset has, `legal_actions` the choices. Each episode has the number of its task,
            `episodes/task`, and the task in words, `episodes/instruction`. Of other columns those stay that
            all datasets have alike.

    Raises:
        SchemaError: spaces or columns differ, the message says where; with `pad`, spaces that cannot be filled
            up, or tasks of one name in unequal spaces.
        ValueError: weights that are negative, all zero, or not one for each dataset; `tasks` of datasets that
            are weighted themselves.
    """
    if isinstance(datasets, str | Path | Dataset) or not isinstance(datasets, Iterable):
        raise wrong_type("datasets", "a sequence of datasets", datasets)
    parents = [as_dataset(dataset, "datasets") for dataset in datasets]
    if not parents:
        raise ValueError("combine_datasets needs at least one dataset.")
    if isinstance(weights, str) and weights != TASKS:
        raise wrong_type("weights", f"a number for each dataset, or {TASKS!r}", weights)
    if weights is None and any(parent.mixture is not None and parent.total_steps for parent in parents):
        # A saved view without weights ignores those of its parents, and has to keep that meaning
        # and its digest. So the shares are written into the operation.
        weights = [dataset.total_steps for dataset in parents]
    value: dict[str, Any] = {"weights": weights}
    if weights is not None and not isinstance(weights, str):
        value["weights"] = _shares(weights, len(parents))
    if pad:  # without it the operation is what it always was, and so are digests
        value["pad"] = True
    return Dataset.view(parents, {"combine": value})


def _shares(weights: Sequence[float], count: int) -> list[float]:
    """Return weights scaled to sum to 1."""
    numbers = [float(weight) for weight in weights]
    if len(numbers) != count or not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError(f"expected {count} weights that are not negative, found {numbers}.")
    total = math.fsum(numbers)
    if total <= 0:
        raise ValueError("weights are all zero.")
    return [number / total for number in numbers]
