"""Splits a dataset into disjoint views, and combines several into one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.given import Given, as_dataset
from orlog.datasets.reading.operations import apply_operation, split_counts
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
        apply_operation({"split": {**split, "part": part}}, [dataset])
        for part in range(len(counts))
    ]


def combine_datasets(
    datasets: Iterable[Given], *, weights: Sequence[float] | None = None
) -> Dataset:
    """Return a view of all episodes of several datasets, one dataset after the other.

    Datasets that are weighted combinations themselves keep their weights, multiplied by those given
    here.

    Args:
        datasets: What to combine; spaces and columns must be the same.
        weights: For each dataset, the probability that a sampled step comes from it (scaled to sum
            to 1). By default, each counts by its number of steps, so all steps are equally likely
            unless a dataset is weighted itself.

    Raises:
        SchemaError: spaces or columns differ; the message says where.
        ValueError: weights that are negative, all zero, or not one for each dataset.
    """
    if isinstance(datasets, str | Path | Dataset) or not isinstance(datasets, Iterable):
        raise wrong_type("datasets", "a sequence of datasets", datasets)
    parents = [as_dataset(one, "datasets") for one in datasets]
    if not parents:
        raise ValueError("combine_datasets needs at least one dataset.")
    scaled = None
    if weights is None and any(one.mixture is not None and one.total_steps for one in parents):
        # A saved view without weights ignores those of its parents, and has to keep that meaning
        # and its digest. So the shares are written into the operation.
        weights = [one.total_steps for one in parents]
    if weights is not None:
        weights = [float(weight) for weight in weights]
        total = math.fsum(weights)
        if len(weights) != len(parents) or not all(
            math.isfinite(weight) and weight >= 0 for weight in weights
        ):
            raise ValueError(
                f"expected {len(parents)} weights that are not negative, found {list(weights)}."
            )
        if total <= 0:
            raise ValueError("weights are all zero.")
        scaled = [weight / total for weight in weights]
    return apply_operation({"combine": {"weights": scaled}}, parents)
