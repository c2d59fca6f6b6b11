"""Hands a dataset over to Ray Data, whose tasks read it where it is: on a shared disk, or in place."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from orlog.base.jobs import check_seen
from orlog.datasets.download.http import bringing_queries
from orlog.datasets.reading.conversions import to_rows
from orlog.datasets.reading.dataset import Dataset, episode_ranges
from orlog.errors import SchemaError, needing

BLOCK_BYTES = 2**26


def to_ray(dataset: Dataset) -> Any:
    """Return a Ray Dataset with a row for each step; see `Dataset.to_ray`."""
    with needing(f"{dataset.name}: to hand it over needs Ray Data", "ray[data]"):
        import ray.data
    if not dataset.total_episodes:
        raise SchemaError(f"{dataset.name}: there is no episode to hand over.")
    ranges = episode_ranges(dataset, BLOCK_BYTES)
    items = [{"first": segment.start, "stop": segment.stop} for segment in ranges]
    blocks = ray.data.from_items(items, override_num_blocks=len(items))
    read = bringing_queries(functools.partial(_read, dataset))
    return blocks.map_batches(read, batch_size=1, batch_format="numpy", zero_copy_batch=True)


def _read(dataset: Dataset, batch: dict[str, np.ndarray]) -> dict[str, Any]:
    """Read a range of episodes on a node."""
    check_seen(*(version.folder for version in dataset.selection().versions))
    return to_rows(dataset, range(int(batch["first"][0]), int(batch["stop"][0])))
