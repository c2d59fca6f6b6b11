"""Ranges of rows: which columns say where they lie, which of them touch, and which are read at once."""

from __future__ import annotations

import numpy as np

from orlog.manifests.columns import offsets_of


def depth_of(name: str) -> int:
    """Return how many columns of offsets say where the rows of a column are."""
    offsets = offsets_of(name)
    return 0 if offsets is None else 1 + depth_of(offsets)


def joined(starts: np.ndarray, stops: np.ndarray) -> list[tuple[int, int]]:
    """Return ranges of rows, those that touch as one."""
    found: list[tuple[int, int]] = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found


def windows(starts: np.ndarray, stops: np.ndarray, gap: int, longest: int) -> list[np.ndarray]:
    """Group ranges that lie near each other; return groups of their indexes, ordered by start."""
    order = np.argsort(starts, kind="stable")
    found: list[np.ndarray] = []
    first = 0
    begin, end = int(starts[order[0]]), int(stops[order[0]])
    for position in range(1, len(order)):
        start, stop = int(starts[order[position]]), int(stops[order[position]])
        if start - end > gap or stop - begin > longest:
            found.append(order[first:position])
            first, begin, end = position, start, stop
        end = max(end, stop)
    return [*found, order[first:]]
