"""Work on a dataset in ranges of neighboring episodes, which depend on nothing but the data."""

from __future__ import annotations

import itertools
import math

from orlog.datasets.columns.blocks import episode_blocks
from orlog.datasets.reading.dataset import Dataset
from orlog.manifests.columns import axis_of


def row_bytes_of(dataset: Dataset) -> int:
    """Return about how many bytes a step has in memory; values of any length count as one number a step."""
    specs = dataset.schema.columns()
    names = [name for name in dataset.columns if axis_of(name) != "episode"]
    return sum(specs[name].dtype.itemsize * math.prod(specs[name].shape) for name in names)


def episode_ranges(dataset: Dataset, size_bytes: int) -> list[range]:
    """Return ranges of all episodes in their order, each of about so many bytes in memory."""
    ends = dataset.episode_lengths.cumsum() * max(1, row_bytes_of(dataset))
    edges = episode_blocks(ends, size_bytes).tolist()
    return [range(*one) for one in itertools.pairwise(edges)]
