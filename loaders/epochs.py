"""The order of an epoch of a stream: blocks in a seeded order, and as many in a group as memory holds."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Int64

from orlog.datasets.reading.selection import seeded_order


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """How far a stream is from a full shuffle.

    Attributes:
        blocks: Blocks of the dataset.
        blocks_in_group: Blocks that are mixed at a time, on average.
        steps_in_group: Their steps, on average.
        blocks_in_batch: Different blocks that the steps of a batch come from, expected.
        neighbors_together: Probability that a step and the next one of its episode share a batch.
        neighbors_together_shuffled: The same for a full shuffle.
    """

    blocks: int
    blocks_in_group: float
    steps_in_group: float
    blocks_in_batch: float
    neighbors_together: float
    neighbors_together_shuffled: float


@dataclasses.dataclass(frozen=True, slots=True)
class Epoch:
    """The order of one epoch.

    Attributes:
        groups: Blocks of each group, in order.
        ends: Cumulative number of steps up to the end of each group.
    """

    groups: list[np.ndarray]
    ends: Int64[np.ndarray, " groups"]


def plan_epoch(key: int, rows: np.ndarray, episodes: np.ndarray, group_rows: int) -> Epoch:
    """Return the order of blocks with so many rows and episodes each, drawn by a key."""
    order = seeded_order(key, len(rows))
    firsts = []
    held = group_rows
    for position, count in enumerate(rows[order].tolist()):
        if held + count > group_rows:
            firsts.append(position)
            held = 0
        held += count
    groups = np.split(order, firsts[1:])
    return Epoch(groups, np.cumsum([(rows[some] - episodes[some]).sum() for some in groups]))
