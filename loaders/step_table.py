"""A table of the row of each step in `Arrays`, in one byte a step instead of eight.

    row of a step  =  step + episodes that end before it
                   =  step + episodes that end before the first step of its 256 + since (a byte)

At most 255 episodes end between the first and another of 256 steps, so a byte is enough. The table
of a million steps is 1 MB and stays in the processor's cache, where a random step costs little.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64, UInt8

_SHIFT = 8  # 256 steps
_TOGETHER = 1 << _SHIFT
_BLOCK = 2**22  # steps, a multiple of these


class StepTable:
    """Finds the rows of steps, and with them their episodes."""

    def __init__(
        self, lengths: Int64[np.ndarray, " episodes"], since: UInt8[np.ndarray, " steps"] | None = None
    ) -> None:
        """Make the table of one or more episodes of 1 or more steps.

        `since` are the values of `count_since` as one array, if already known.
        """
        self._before = _count_before(lengths)
        self._since = np.concatenate(list(count_since(lengths))) if since is None else since

    def take(self, steps: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " some"]:
        """Return the row of each of some steps. A row minus its step is the step's episode."""
        rows: np.ndarray = np.take(self._before, steps >> _SHIFT)
        rows += np.take(self._since, steps)
        rows += steps
        return rows

    @property
    def nbytes(self) -> int:
        """Bytes that the table takes."""
        return self._before.nbytes + self._since.nbytes


def count_since(lengths: Int64[np.ndarray, " episodes"]) -> Iterator[UInt8[np.ndarray, " steps"]]:
    """Yield for each step, in blocks, how many episodes end between it and the first of its 256."""
    ends, before = np.cumsum(lengths), _count_before(lengths).astype(np.uint8)
    for first in range(0, int(ends[-1]), _BLOCK):
        last = min(first + _BLOCK, int(ends[-1]))
        begin, end = np.searchsorted(ends, [first, last - 1], "right")
        steps = np.diff(np.clip(ends[begin : end + 1], first, last), prepend=first)
        # Episodes modulo 256, which is enough: the difference is less than that.
        since = np.repeat(np.arange(begin, end + 1).astype(np.uint8), steps)
        since -= np.repeat(before[first // _TOGETHER :][: -(-len(since) // _TOGETHER)], _TOGETHER)[: len(since)]
        yield since


def _count_before(lengths: Int64[np.ndarray, " episodes"]) -> Int64[np.ndarray, " blocks"]:
    """Return for each 256 steps how many episodes end before the first of them."""
    ends = np.cumsum(lengths)
    return np.searchsorted(ends, np.arange(0, ends[-1], _TOGETHER), "right")
