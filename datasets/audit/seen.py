"""What a check has seen of the data, in a form that joins what several machines saw of different episodes.

A check makes its `Seen` before it sees any data, and keeps nothing of a piece elsewhere:

    seen = Seen(facts.dataset)
    counts, firsts = seen.counts(), seen.firsts()
    while (piece := (yield seen)) is not None:
        counts["steps"] += piece.steps
    return [..]

What was seen of a range of episodes, by whomever, is joined in the order of the data. So a check finds the same
however the work was shared out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from orlog.datasets.reading.dataset import Dataset


class Joined(Protocol):
    """What was seen of some episodes, to which that of later ones can be added."""

    def join(self, other: Self, /) -> None:
        """Add what was seen of the episodes after these."""


Part = TypeVar("Part", bound=Joined)


class Packed(NamedTuple):
    """What a check saw of a range of episodes, to be sent to where it is joined."""

    arrays: list[np.ndarray]
    counts: list[dict[Hashable, Any]]
    firsts: list[dict[Hashable, Any]]
    parts: list[Any]


class Seen:
    """Arrays with a number for each episode, sums, first places, and parts that know how to join."""

    def __init__(self, dataset: Dataset) -> None:
        self._total = dataset.total_episodes
        self._packed = Packed([], [], [], [])

    def of_episodes(self, dtype: DTypeLike, *shape: int, fill: float = 0) -> np.ndarray:
        """Return an array (*shape, E) to be filled at the positions of episodes."""
        made = np.zeros((*shape, self._total), dtype)  # which takes memory where it is written only
        if fill:
            made += fill
        self._packed.arrays.append(made)
        return made

    def counts(self) -> dict[Any, Any]:
        """Return sums by any key: of numbers, or of arrays."""
        made: dict[Any, Any] = defaultdict(int)
        self._packed.counts.append(made)
        return made

    def firsts(self) -> dict[Any, Any]:
        """Return what came first, by any key: filled by `setdefault`, in the order of the data."""
        made: dict[Any, Any] = {}
        self._packed.firsts.append(made)
        return made

    def part(self, one: Part) -> Part:
        """Return an object whose `join` adds what another of its kind saw."""
        self._packed.parts.append(one)
        return one

    def pack(self, episodes: range) -> Packed:
        """Return what was seen of these episodes, if no others were shown."""
        arrays = [one[..., episodes.start : episodes.stop].copy() for one in self._packed.arrays]
        counts = [dict(one) for one in self._packed.counts]
        return self._packed._replace(arrays=arrays, counts=counts)

    def join(self, packed: Packed, episodes: range) -> None:
        """Add what was seen of the next episodes."""
        for mine, theirs in zip(self._packed.arrays, packed.arrays, strict=True):
            mine[..., episodes.start : episodes.stop] = theirs
        for sums, more in zip(self._packed.counts, packed.counts, strict=True):
            for key, value in more.items():
                sums[key] = sums[key] + value
        for firsts, later in zip(self._packed.firsts, packed.firsts, strict=True):
            for key, value in later.items():
                firsts.setdefault(key, value)
        for part, other in zip(self._packed.parts, packed.parts, strict=True):
            part.join(other)
