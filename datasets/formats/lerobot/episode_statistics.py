"""Statistics of features, as LeRobot's normalization takes them from `meta/stats.json`.

Means, deviations and extremes are those of all steps. Quantiles are means of the quantiles of episodes, weighted
by their lengths, as LeRobot joins them. Images have one number a channel, in [0, 1].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
MOST_NUMBERS = 1024  # of a row that has quantiles
LEVELS = np.arange(256) / 255


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """Statistics of some rows; all arrays have the shape of a row, and of images (channels, 1, 1)."""

    lowest: np.ndarray
    highest: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    count: int
    quantiles: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, rows: np.ndarray, *, are_images: bool) -> FeatureStatistics:
        """Return the statistics of the rows of an episode."""
        if are_images:
            channels = [_of_levels(rows[..., one]) for one in range(rows.shape[-1])]
            stacked = np.array(channels)[..., None, None]
            lowest, highest, mean, variance, *marks = np.moveaxis(stacked, 1, 0)
            quantiles = dict(zip(QUANTILES, marks, strict=True))
            return cls(lowest, highest, mean, variance, len(rows), quantiles)
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

    def with_more(self, other: FeatureStatistics) -> FeatureStatistics:
        """Return the statistics of these rows and others."""
        count = self.count + other.count
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
                {
                    name: ours * one + theirs * other.quantiles[name]
                    for name, one in self.quantiles.items()
                },
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


def _of_levels(pixels: np.ndarray) -> list[float]:
    """Return lowest, highest, mean, variance and quantiles of bytes as numbers in [0, 1]."""
    counts = np.bincount(pixels.reshape(-1), minlength=256)
    seen, total = np.flatnonzero(counts), pixels.size
    mean = float(counts @ LEVELS / total)
    variance = float(counts @ (LEVELS - mean) ** 2 / total)
    places = np.searchsorted(counts.cumsum(), np.array(list(QUANTILES.values())) * total)
    marks = LEVELS[np.minimum(places, seen[-1])]
    return [LEVELS[seen[0]], LEVELS[seen[-1]], mean, variance, *marks.tolist()]
