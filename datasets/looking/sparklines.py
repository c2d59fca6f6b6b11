"""Numbers as one line of characters for the terminal: their course, or how they are spread."""

from __future__ import annotations

import numpy as np

LEVELS = "▁▂▃▄▅▆▇█"
MISSING = "·"


def course(values: np.ndarray, width: int) -> str:
    """Return numbers in their order as one line.

    Args:
        values: (n,) numbers or flags; what is infinite or NaN is drawn as a dot.
        width: Most characters; each stands for the mean of as many values as needed.
    """
    numbers = np.asarray(values, np.float64)
    if len(numbers) > width:
        starts = np.arange(width) * len(numbers) // width
        counts = np.diff([*starts, len(numbers)])
        numbers = np.add.reduceat(numbers, starts) / counts
    return _drawn(numbers)


def spread(values: np.ndarray, width: int) -> str:
    """Return a histogram of finite numbers as one line, from the least to the most.

    Bins without a number are blank, and any number in one shows.
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ""
    if finite.min() == finite.max():
        return LEVELS[-1]
    counts, _ = np.histogram(finite / np.abs(finite).max(), width)
    levels = np.ceil(counts * (len(LEVELS) / counts.max())).astype(int)
    return "".join(LEVELS[level - 1] if level else " " for level in levels)


def _drawn(numbers: np.ndarray) -> str:
    finite = numbers[np.isfinite(numbers)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        parts = (numbers - low) / (high - low) if high > low else np.zeros(len(numbers))
    return "".join(
        LEVELS[min(int(part * len(LEVELS)), len(LEVELS) - 1)] if np.isfinite(number) else MISSING
        for part, number in zip(parts, numbers, strict=True)
    )
