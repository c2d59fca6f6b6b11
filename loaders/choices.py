"""How steps are chosen and found: with equal chances, by component of a mixture, or by weights; and the row of each.

A mixture takes one random number for the component and one inside of it. Weights are an alias table (Walker 1977;
Vose 1991), which chooses in constant time:

    bucket i (of n equal ones):   | step i ....... threshold[i] | step alias[i] ............ |

One random number picks the bucket, another the side of its threshold. The table is made by sweeping over light and
heavy steps at once (Hübschle-Schneider and Sanders 2019, "Parallel weighted random sampling"), here as two prefix
sums of integers, which do not round: probabilities sum to 1 exactly, and are the same on every machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64, Int64, UInt8

_SUM_BITS = 62  # all weights together, as integers: a prefix sum of them fits int64
_MOST_BUCKET_BITS = 50  # a threshold is a multiple of 2^-50 or more: exact in float64
_FEW = 16  # components that are found faster by comparing with each than by a search
_SHIFT = 8  # 256 steps
_TOGETHER = 1 << _SHIFT
_BLOCK = 2**22  # steps, a multiple of these


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixture:
    """The components of a weighted mixture of datasets.

    Attributes:
        steps: Every step, component by component.
        first: Where each component starts in `steps`.
        sizes: Number of steps of each component.
        up_to: Cumulative sum of the weights; the last one is 1.
    """

    steps: Int64[np.ndarray, " steps"]
    first: Int64[np.ndarray, " components"]
    sizes: Int64[np.ndarray, " components"]
    up_to: Float64[np.ndarray, " components"]

    def choose(self, uniform: Float64[np.ndarray, "items 2"]) -> Int64[np.ndarray, " items"]:
        """Return a step for each pair of numbers that are uniform in [0, 1)."""
        share = np.ascontiguousarray(uniform[:, 0])
        if len(self.up_to) > _FEW:
            component = np.searchsorted(self.up_to, share, side="right")
        else:
            component = np.zeros(len(share), np.int64)
            for edge in self.up_to[:-1].tolist():
                component += share >= edge
        inside = (uniform[:, 1] * np.take(self.sizes, component)).astype(np.int64)
        steps: np.ndarray = np.take(self.steps, np.take(self.first, component) + inside)
        return steps


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AliasTable:
    """Steps with weights, ready for choice. `alias_table` makes it.

    Attributes:
        threshold: Share of each bucket that stands for its own step; the rest is the other step.
        alias: The other step of each bucket.
    """

    threshold: Float64[np.ndarray, " steps"]
    alias: Int64[np.ndarray, " steps"]

    def choose(self, uniform: Float64[np.ndarray, "items 2"]) -> Int64[np.ndarray, " items"]:
        """Return a step for each pair of numbers that are uniform in [0, 1)."""
        steps: np.ndarray = (uniform[:, 0] * len(self.alias)).astype(np.int64)
        # Look up the other step only where it is needed: memory access is the bottleneck.
        other = np.flatnonzero(uniform[:, 1] >= np.take(self.threshold, steps))
        steps[other] = np.take(self.alias, np.take(steps, other))
        return steps

    @property
    def probabilities(self) -> Float64[np.ndarray, " steps"]:
        """Probability of each step."""
        spilled = np.bincount(self.alias, 1 - self.threshold, minlength=len(self.alias))
        return (self.threshold + spilled) / len(self.alias)

    @property
    def digest(self) -> str:
        """SHA-256 of the table, in hexadecimal."""
        hashed = hashlib.sha256(self.threshold.astype("<f8").tobytes())
        hashed.update(self.alias.astype("<i8").tobytes())
        return hashed.hexdigest()


def choose_items(
    mixture: Mixture | AliasTable | None, count: int, uniform: Float64[np.ndarray, "items draws"]
) -> Int64[np.ndarray, " items"]:
    """Return an index below `count` for each row of uniform numbers (two if weighted, else one)."""
    if mixture is None:
        items: np.ndarray = (uniform[:, 0] * count).astype(np.int64)
        return items
    return mixture.choose(uniform)


def alias_table(weights: np.ndarray) -> AliasTable:
    """Return the table for choosing steps in proportion to weights, in O(steps).

    Weights are positive numbers and zeros, one a step, and need not sum to 1. A step is never chosen if its
    weight is 0, or less than 2^-63 of the sum.
    """
    parts, bucket = _integer_weights(check_weights(weights))
    count = len(parts)
    threshold, alias = np.ones(count), np.arange(count)
    light, heavy = np.flatnonzero(parts < bucket), np.flatnonzero(parts >= bucket)
    # Cumulative sums of the room left in light buckets, and of the excess of heavy steps.
    room = np.concatenate([[0], np.cumsum(bucket - parts[light])])
    excess = np.cumsum(parts[heavy] - bucket)
    threshold[light] = parts[light] / bucket
    alias[light] = heavy[np.searchsorted(excess, room[:-1], "right")]
    # A heavy step that has given away its excess keeps a bucket or less, which the next one fills.
    filled = room[np.searchsorted(room, excess[:-1], "left")]
    threshold[heavy[:-1]] = (bucket - (filled - excess[:-1])) / bucket
    alias[heavy[:-1]] = heavy[1:]
    return AliasTable(threshold=threshold, alias=alias)


def check_weights(weights: np.ndarray, what: str = "") -> Float64[np.ndarray, " some"]:
    """Return weights as float64; `what` is what has them, for messages."""
    values = np.asarray(weights)
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "fiub":
        raise ValueError(f"{what}weights must be one row of numbers, found {values.dtype} of shape {values.shape}.")
    values = values.astype(np.float64)
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"{what}weights must be finite and >= 0, found {values[first]} at {first} "
            f"({int(wrong.sum())} such in {len(values)})."
        )
    if not values.any():
        raise ValueError(f"{what}one of the {len(values)} weights must be positive, found only zeros.")
    return values


def _integer_weights(weights: np.ndarray) -> tuple[Int64[np.ndarray, " steps"], int]:
    """Return weights as integers, and the size of a bucket; the sum fills one bucket per step."""
    count = len(weights)
    bits = min(_MOST_BUCKET_BITS, _SUM_BITS - (count - 1).bit_length())
    # Scaling by a power of two is exact, and keeps the sum of huge weights finite.
    weights = np.ldexp(weights, -int(np.frexp(weights.max())[1]))
    scale = math.ldexp(count, bits) / math.fsum(weights.tolist())
    parts = np.rint(weights * scale).astype(np.int64)
    missing = (count << bits) - int(parts.sum())
    if missing:  # rounding errors go to the largest weights, one unit each
        largest = np.argsort(parts, kind="stable")[::-1][: np.count_nonzero(parts)]
        each, rest = divmod(abs(missing), len(largest))
        units = np.full(len(largest), each)
        units[:rest] += 1
        parts[largest] += units if missing > 0 else -units
    return parts, 1 << bits


class StepTable:
    """Finds the rows of steps, and with them their episodes, by one byte a step instead of eight.

        row of a step  =  step + episodes that end before it
                       =  step + episodes that end before the first step of its 256 + since (a byte)

    At most 255 episodes end between the first and another of 256 steps. The table of a million steps is 1 MB and
    stays in the processor's cache.
    """

    def __init__(
        self, lengths: Int64[np.ndarray, " episodes"], since: UInt8[np.ndarray, " steps"] | None = None
    ) -> None:
        """Make the table of one or more episodes of 1 or more steps; `since` if it is known already."""
        self._before = _count_before(lengths)
        self._since = np.concatenate(list(count_since(lengths))) if since is None else since

    def take(self, steps: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " some"]:
        """Return the row of each of some steps. A row minus its step is the step's episode."""
        rows: np.ndarray = np.take(self._before, steps >> _SHIFT)
        rows += np.take(self._since, steps)
        rows += steps
        return rows


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
