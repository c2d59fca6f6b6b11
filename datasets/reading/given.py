"""Arguments that name a dataset: a name, a path or a `Dataset`, in all functions alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from orlog.datasets.home.presence import is_partial
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.finding import as_folder
from orlog.datasets.reading.opening import open_dataset
from orlog.errors import NotFoundError, SchemaError, wrong_type

Given: TypeAlias = str | Path | Dataset
"""A dataset's name, perhaps with a version or digest; a path, as text or `Path`; or a `Dataset`."""

_EXPECTED = "a dataset's name such as 'pointmaze/umaze-v1', a path, or a Dataset"


def as_dataset(given: Given, parameter: str = "dataset") -> Dataset:
    """Return the dataset that a name or path stands for; a `Dataset` is returned as it is.

    Raises TypeError if it is neither a name, nor a path, nor a dataset; OrlogError as `open_dataset`.
    """
    if isinstance(given, Dataset):
        return given
    if not isinstance(given, str | Path):
        raise wrong_type(parameter, _EXPECTED, given)
    return open_dataset(given)


def with_all_files(dataset: Dataset) -> Dataset:
    """Return a dataset whose files are all here, and refuse others.

    Raises NotFoundError that says what to download.
    """
    if dataset.in_place or is_partial(dataset.folder):
        where = "it is read in place" if dataset.in_place else "only a part of it was downloaded"
        raise NotFoundError(
            f"{dataset.name}@{dataset.version}: this takes all of its files, and {where}; first run: "
            f"orlog download {dataset.name}@{dataset.version}"
        )
    return dataset


def as_stored_folder(
    given: Given, find: Callable[[str], list[Path]], parameter: str = "folder"
) -> Path:
    """Return the folder of the one stored version that a name, path or `Dataset` stands for; a view is refused.

    A path is returned as it is, whatever it holds. `find` returns the folders of a name, as
    `finding.stored_folders` does; errors call the argument `parameter`.
    """
    if isinstance(given, Dataset):
        if given.operation is not None:
            raise SchemaError(
                f"{given.name}: a view has no folder of its own; save_dataset stores it as a version."
            )
        return (with_all_files(given) if given.in_place else given).folder
    if isinstance(given, Path):
        return given
    if not isinstance(given, str):
        raise wrong_type(parameter, _EXPECTED, given)
    path = as_folder(given)
    return find(given)[0] if path is None else path


def as_name(given: Given, parameter: str = "name") -> str:
    """Return a name as given, or the name and version of a `Dataset`.

    Raises TypeError if it is neither a name nor a dataset.
    """
    if isinstance(given, Dataset):
        return f"{given.name}@{given.version}"
    if not isinstance(given, str):
        raise wrong_type(
            parameter, "a dataset's name such as 'pointmaze/umaze-v1' or a Dataset", given
        )
    return given
