"""Statistics of features, as LeRobot's normalization takes them from `meta/stats.json`.

All are those of all steps, quantiles too: those of single episodes cannot be joined (lerobot#4156), so the
tables that were written are read once more, a feature at a time. Images have one number a channel, in [0, 1], and of
them it is counted how often each level occurs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from orlog.datasets.formats._containers.arrow_files import array_of, parquet_batches

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
MOST_NUMBERS = 1024  # of a row that has quantiles
LEVELS = np.arange(256) / 255
ROWS = 2**14
COLUMN_BYTES = 2**28  # of a feature's numbers that are in memory at once


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """Statistics of some rows; all arrays have the shape of a row, and of images (channels, 1, 1).

    Those of numbers that were joined have no quantiles; `with_quantiles` adds them.
    """

    lowest: np.ndarray
    highest: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    count: int
    quantiles: Mapping[str, np.ndarray]
    levels: np.ndarray | None = None  # of images, (channels, 256)

    @classmethod
    def of(cls, rows: np.ndarray, *, are_images: bool) -> FeatureStatistics:
        """Return the statistics of the rows of an episode."""
        if are_images:
            channels = [rows[..., one].reshape(-1) for one in range(rows.shape[-1])]
            levels = [np.bincount(one, minlength=256) for one in channels]
            return cls.of_levels(np.array(levels), len(rows))
        rows = rows.reshape(len(rows), *(rows.shape[1:] or (1,)))
        quantiles = {}
        with np.errstate(invalid="ignore", over="ignore"):
            if rows[0].size <= MOST_NUMBERS:
                found = np.quantile(rows.astype(np.float64), list(QUANTILES.values()), axis=0)
                quantiles = dict(zip(QUANTILES, found, strict=True))
            return cls(
                rows.min(0).astype(np.float64),
                rows.max(0).astype(np.float64),
                rows.mean(0, dtype=np.float64),
                rows.var(0, dtype=np.float64),
                len(rows),
                quantiles,
            )

    @classmethod
    def of_levels(cls, levels: np.ndarray, count: int) -> FeatureStatistics:
        """Return the statistics of images, from how often each level occurs in each channel."""
        stacked = np.array([_of_levels(one) for one in levels])[..., None, None]
        lowest, highest, mean, variance, *marks = np.moveaxis(stacked, 1, 0)
        quantiles = dict(zip(QUANTILES, marks, strict=True))
        return cls(lowest, highest, mean, variance, count, quantiles, levels)

    def with_more(self, other: FeatureStatistics) -> FeatureStatistics:
        """Return the statistics of these rows and others."""
        count = self.count + other.count
        if self.levels is not None and other.levels is not None:
            return self.of_levels(self.levels + other.levels, count)
        ours, theirs = self.count / count, other.count / count
        with np.errstate(invalid="ignore", over="ignore"):
            return FeatureStatistics(
                np.minimum(self.lowest, other.lowest),
                np.maximum(self.highest, other.highest),
                ours * self.mean + theirs * other.mean,
                ours * self.variance
                + theirs * other.variance
                + ours * theirs * (self.mean - other.mean) ** 2,
                count,
                {},
            )

    def values(self) -> dict[str, np.ndarray]:
        """Return each statistic by LeRobot's name of it."""
        return {
            "min": self.lowest,
            "max": self.highest,
            "mean": self.mean,
            "std": np.sqrt(self.variance),
            "count": np.array([self.count]),
            **self.quantiles,
        }


def with_quantiles(
    statistics: Mapping[str, FeatureStatistics], files: Sequence[Path], where: str
) -> dict[str, FeatureStatistics]:
    """Return statistics with the quantiles of all rows, which tables hold; `COLUMN_BYTES` of a feature are in memory at a time."""
    found = {}
    for name, one in statistics.items():
        if one.levels is None and one.lowest.size <= MOST_NUMBERS:
            marks = _quantiles(files, name, one.lowest.size, one.count, where)
            shaped = {key: mark.reshape(one.lowest.shape) for key, mark in marks.items()}
            one = dataclasses.replace(one, quantiles=shaped)
        found[name] = one
    return found


def _quantiles(
    files: Sequence[Path], name: str, size: int, count: int, where: str
) -> dict[str, np.ndarray]:
    """Return the quantiles of a column of `count` rows of `size` numbers, (size,) each."""
    marks = np.empty((len(QUANTILES), size))
    at_once = max(1, COLUMN_BYTES // (8 * count))
    for start in range(0, size, at_once):
        rows, done = np.empty((count, min(at_once, size - start))), 0
        for file in files:
            for batch in parquet_batches(file, where, [name], ROWS):
                values = array_of(batch.column(0), name, where, done).reshape(-1, size)
                rows[done : done + len(values)] = values[:, start : start + at_once]
                done += len(values)
        with np.errstate(invalid="ignore", over="ignore"):
            for number in range(rows.shape[1]):
                found = np.quantile(rows[:, number], list(QUANTILES.values()))
                marks[:, start + number] = found
    return dict(zip(QUANTILES, marks, strict=True))


def _of_levels(counts: np.ndarray) -> list[float]:
    """Return lowest, highest, mean, variance and quantiles of bytes as numbers in [0, 1], by their counts."""
    seen, total = np.flatnonzero(counts), int(counts.sum())
    mean = float(counts @ LEVELS / total)
    variance = float(counts @ (LEVELS - mean) ** 2 / total)
    upto, ranks = counts.cumsum(), np.array(list(QUANTILES.values())) * (total - 1)
    low, high = (
        LEVELS[np.searchsorted(upto, rank, "right")] for rank in (np.floor(ranks), np.ceil(ranks))
    )
    marks = low + (high - low) * (ranks - np.floor(ranks))
    return [LEVELS[seen[0]], LEVELS[seen[-1]], mean, variance, *marks.tolist()]
