"""Numbers as one line of characters for the terminal: their course, or how they are spread."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

LEVELS = "▁▂▃▄▅▆▇█"
MISSING = "·"


def course(values: np.ndarray, width: int) -> str:
    """Return (n,) numbers or flags in their order as one line; what is infinite or NaN is drawn as a dot.

    It has at most `width` characters; each stands for the mean of as many values as needed.
    """
    numbers = np.asarray(values, np.float64)
    # Sums of the largest numbers, and distances between them, leave float64.
    numbers = numbers / (np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0) or 1.0)
    if len(numbers) > width:
        starts = np.arange(width) * len(numbers) // width
        counts = np.diff([*starts, len(numbers)])
        with np.errstate(invalid="ignore"):  # infinities of both signs have no mean
            numbers = np.add.reduceat(numbers, starts) / counts
    return _drawn(numbers)


class Histogram(NamedTuple):
    """How numbers are spread: how many lie in each of equal bins.

    Attributes:
        counts: Numbers in each bin.
        low: Where the first bin begins.
        high: Where the last one ends.
        whole: How many whole numbers each bin holds; 0 if the numbers are not whole.
        least: The smallest number.
        most: The largest one.
    """

    counts: np.ndarray
    low: float
    high: float
    whole: int
    least: float
    most: float


def histogram(values: np.ndarray, most: int) -> Histogram:
    """Return finite numbers, of which there is one at least, in so many bins at most.

    Whole numbers have bins of their own, or bins that hold equally many of them, so that none looks
    rarer than it is.
    """
    numbers = values.astype(np.float64)
    low, high = ends = float(numbers.min()), float(numbers.max())
    whole = 0
    if max(abs(low), abs(high)) < 2.0**51 and bool((numbers == np.floor(numbers)).all()):
        whole = math.ceil((high - low + 1) / most)
        most = math.ceil((high - low + 1) / whole)
        low, high = low - 0.5, low - 0.5 + most * whole
    elif low == high:
        low, high, most = low - 0.5, high + 0.5, 1
    return Histogram(counts_between(numbers, low, high, most), low, high, whole, *ends)


def counts_between(values: np.ndarray, low: float, high: float, bins: int) -> np.ndarray:
    """Return how many of finite numbers lie in each of equal bins, as `np.histogram` does.

    It refuses bins that float64 cannot tell apart, as those of returns that differ in their last
    digit, and ranges that leave float64. There numbers are counted by their part of the way, and
    equal ones in the middle.
    """
    least = max(abs(low) * 2.0**-52, abs(high) * 2.0**-52, float(np.finfo(np.float64).tiny))
    if least * bins < high / 2 - low / 2 < np.finfo(np.float64).max / 8:
        return np.histogram(values, bins, (low, high))[0]
    return np.histogram(parts_between(values, low, high), bins, (0.0, 1.0))[0]


def parts_between(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return which part of the way from low to high finite numbers lie at; half of it if these are equal."""
    if low == high:
        return np.full(values.shape, 0.5)
    largest = max(abs(low), abs(high))
    return (values / largest - low / largest) / (high / largest - low / largest)


def _drawn(numbers: np.ndarray) -> str:
    finite = numbers[np.isfinite(numbers)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    parts = (numbers - low) / (high - low) if high > low else np.zeros(len(numbers))
    return "".join(
        LEVELS[min(int(part * len(LEVELS)), len(LEVELS) - 1)] if np.isfinite(number) else MISSING
        for part, number in zip(parts, numbers, strict=True)
    )
