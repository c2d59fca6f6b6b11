"""Hands a dataset over to Ray Data, whose tasks read it where it is: on a shared disk, or in place."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from orlog.base.jobs import check_seen
from orlog.datasets.download.credentials import given_queries, take_queries
from orlog.datasets.reading.conversions import to_rows
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.episode_ranges import episode_ranges
from orlog.errors import MissingExtraError, SchemaError

BLOCK_BYTES = 2**26


def to_ray(dataset: Dataset) -> Any:
    """Return a Ray Dataset with a row for each step; see `Dataset.to_ray`."""
    try:
        import ray.data
    except ImportError as error:
        raise MissingExtraError(
            f"{dataset.name}: cannot be handed over, since {error.name or 'ray'} is not installed; run: "
            'pip install "orlog[ray]"',
            extra="ray",
        ) from error
    if not dataset.total_episodes:
        raise SchemaError(f"{dataset.name}: there is no episode to hand over.")
    ranges = episode_ranges(dataset, BLOCK_BYTES)
    items = [{"first": one.start, "stop": one.stop} for one in ranges]
    blocks = ray.data.from_items(items, override_num_blocks=len(items))
    read = _Read(dataset, given_queries())
    return blocks.map_batches(read, batch_size=1, batch_format="numpy", zero_copy_batch=True)


@dataclasses.dataclass(frozen=True)
class _Read:
    """Reads a range of episodes on a node, with the queries of signed URLs that the caller was given."""

    dataset: Dataset
    queries: dict[str, str]

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        take_queries(self.queries)
        check_seen(*(one.folder for one in self.dataset.selection().versions))
        return to_rows(self.dataset, range(int(batch["first"][0]), int(batch["stop"][0])))
