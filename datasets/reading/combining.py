"""Splits a dataset into disjoint views, and combines several into one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from orlog.datasets.reading.combination import TASKS
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given, as_dataset
from orlog.datasets.reading.views import split_counts
from orlog.errors import wrong_type


def split_dataset(
    dataset: Given, sizes: Sequence[float], *, seed: int | None = None
) -> list[Dataset]:
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
    return [
        Dataset.view([dataset], {"split": {**split, "part": part}}) for part in range(len(counts))
    ]


def combine_datasets(
    datasets: Iterable[Given],
    *,
    weights: Sequence[float] | Literal["tasks"] | None = None,
    pad: bool = False,
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
    if weights is None and any(one.mixture is not None and one.total_steps for one in parents):
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
    if len(numbers) != count or not all(math.isfinite(one) and one >= 0 for one in numbers):
        raise ValueError(f"expected {count} weights that are not negative, found {numbers}.")
    total = math.fsum(numbers)
    if total <= 0:
        raise ValueError("weights are all zero.")
    return [number / total for number in numbers]
