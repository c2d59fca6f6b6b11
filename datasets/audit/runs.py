"""Runs of steps in which something stays the same, each within its episode."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from orlog.datasets.audit.pieces import Piece


class Run(NamedTuple):
    """Steps of an episode in which something stays the same: row `step` and `steps` rows after it."""

    episode: int
    step: int
    steps: int


class Runs:
    """The long runs of one thing, found piece by piece.

    Attributes:
        shortest: Steps from which a run is kept.
        found: The runs that ended, in the order of the data.
    """

    def __init__(self, shortest: float) -> None:
        self.shortest = shortest
        self.found: list[Run] = []
        self._open: Run | None = None  # at the end of a piece that does not end its episode

    @property
    def steps(self) -> int:
        """Number of steps of all kept runs."""
        return sum(one.steps for one in self.found)

    def join(self, other: Runs) -> None:
        """Take in the runs of later episodes."""
        self.found += other.found

    def add(self, piece: Piece, still: np.ndarray) -> None:
        """Take in for each step of a piece whether it changes nothing, (steps,) bool."""
        runs = [] if self._open is None else [self._open]
        self._open = None
        if still.any():
            starts = still.copy()
            starts[1:] &= ~still[:-1]
            firsts = piece.ends - piece.lengths
            starts[firsts] |= still[firsts]
            lengths = np.bincount((starts.cumsum() - 1)[still])
            rows = np.flatnonzero(starts)
            # Short runs are many; only those at the two ends may belong to longer ones.
            kept = lengths >= self.shortest
            kept[[0, -1]] = True
            episodes, steps = piece.places(rows[kept])
            new = [Run(*one) for one in np.transpose([episodes, steps, lengths[kept]]).tolist()]
            if runs and still[0]:
                before = runs.pop()
                new[0] = before._replace(steps=before.steps + new[0].steps)
            runs += new
            if not piece.is_end and still[-1]:
                self._open = runs.pop()
        self.found += [one for one in runs if one.steps >= self.shortest]
