"""Splits a dataset into disjoint views, and combines several into one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from orlog.datasets.reading.combination import TASKS
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
    parents = [as_dataset(one, "datasets") for one in datasets]
    if not parents:
        raise ValueError("combine_datasets needs at least one dataset.")
    scaled: list[float] | str | None = None
    if weights is None and any(one.mixture is not None and one.total_steps for one in parents):
        # A saved view without weights ignores those of its parents, and has to keep that meaning
        # and its digest. So the shares are written into the operation.
        weights = [one.total_steps for one in parents]
    if isinstance(weights, str) and weights != TASKS:
        raise wrong_type("weights", f"a number for each dataset, or {TASKS!r}", weights)
    if isinstance(weights, str):
        scaled = TASKS
    elif weights is not None:
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
    # Without `pad` the operation is what it always was, and so are digests.
    return apply_operation(
        {"combine": {"weights": scaled, **({"pad": True} if pad else {})}}, parents
    )
