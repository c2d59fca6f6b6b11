"""Statistics of features, as LeRobot's normalization takes them from `meta/stats.json`.

All are those of all steps, quantiles too: those of single episodes cannot be joined (lerobot#4156), so the
tables that were written are read once more, a feature at a time. Images have one number a channel, in [0, 1], and of
them it is counted how often each level occurs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from orlog.datasets.formats._shared.arrow_files import array_of, parquet_batches

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
SHARES = list(QUANTILES.values())
MOST_NUMBERS = 1024  # of a row that has quantiles
LEVELS = np.arange(256) / 255
ROWS = 2**14
COLUMN_BYTES = 2**28  # of a feature's numbers that are in memory at once
Statistics = dict[str, np.ndarray]
"""`min`, `max`, `mean`, `variance`, `count` and quantiles, of the shape of a row, and of images (channels, 1, 1); of these
`levels` too, (channels, 256)."""


def statistics_of(rows: np.ndarray, *, are_images: bool) -> Statistics:
    """Return the statistics of the rows of an episode."""
    if are_images:
        channels = [rows[..., number].reshape(-1) for number in range(rows.shape[-1])]
        levels = [np.bincount(values, minlength=256) for values in channels]
        return _of_images(np.array(levels), len(rows))
    rows = rows.reshape(len(rows), *(rows.shape[1:] or (1,)))
    with np.errstate(invalid="ignore", over="ignore"):
        statistics = {
            "min": rows.min(0).astype(np.float64),
            "max": rows.max(0).astype(np.float64),
            "mean": rows.mean(0, dtype=np.float64),
            "variance": rows.var(0, dtype=np.float64),
            "count": np.array([len(rows)]),
        }
        if rows[0].size <= MOST_NUMBERS:
            marks = np.quantile(rows.astype(np.float64), SHARES, axis=0)
            statistics |= dict(zip(QUANTILES, marks, strict=True))
    return statistics


def joined_statistics(ours: Statistics, theirs: Statistics) -> Statistics:
    """Return the statistics of some rows and others, of numbers without quantiles: `with_quantiles` adds them."""
    count = int(ours["count"][0] + theirs["count"][0])
    if "levels" in ours:
        return _of_images(ours["levels"] + theirs["levels"], count)
    our_share, their_share = ours["count"][0] / count, theirs["count"][0] / count
    with np.errstate(invalid="ignore", over="ignore"):
        return {
            "min": np.minimum(ours["min"], theirs["min"]),
            "max": np.maximum(ours["max"], theirs["max"]),
            "mean": our_share * ours["mean"] + their_share * theirs["mean"],
            "variance": our_share * ours["variance"]
            + their_share * theirs["variance"]
            + our_share * their_share * (ours["mean"] - theirs["mean"]) ** 2,
            "count": np.array([count]),
        }


def stored_statistics(statistics: Statistics) -> dict[str, np.ndarray]:
    """Return each statistic by LeRobot's name of it."""
    names = ("min", "max", "mean", "std", "count", *QUANTILES)
    known = statistics | {"std": np.sqrt(statistics["variance"])}
    return {name: known[name] for name in names if name in known}


def with_quantiles(
    statistics: Mapping[str, Statistics], files: Sequence[Path], where: str
) -> dict[str, Statistics]:
    """Return statistics with the quantiles of all rows, which tables hold; `COLUMN_BYTES` of a feature are in memory at a time."""
    return {
        name: one | _quantiles(files, name, one, where)
        if "levels" not in one and one["min"].size <= MOST_NUMBERS
        else one
        for name, one in statistics.items()
    }


def _quantiles(files: Sequence[Path], name: str, statistics: Statistics, where: str) -> Statistics:
    """Return the quantiles of a column."""
    shape, size, count = statistics["min"].shape, statistics["min"].size, statistics["count"][0]
    marks = np.empty((len(QUANTILES), size))
    at_once = max(1, COLUMN_BYTES // (8 * int(count)))
    for start in range(0, size, at_once):
        rows, done = np.empty((count, min(at_once, size - start))), 0
        for file in files:
            for batch in parquet_batches(file, where, [name], ROWS):
                values = array_of(batch.column(0), name, where, done).reshape(-1, size)
                rows[done : done + len(values)] = values[:, start : start + at_once]
                done += len(values)
        with np.errstate(invalid="ignore", over="ignore"):
            for number in range(rows.shape[1]):
                marks[:, start + number] = np.quantile(rows[:, number], SHARES)
    return {key: mark.reshape(shape) for key, mark in zip(QUANTILES, marks, strict=True)}


def _of_images(levels: np.ndarray, count: int) -> Statistics:
    """Return the statistics of images as numbers in [0, 1], from how often each level occurs in each channel."""
    stacked = np.array([_of_levels(counts) for counts in levels])[..., None, None]
    names = ("min", "max", "mean", "variance", *QUANTILES)
    statistics = dict(zip(names, np.moveaxis(stacked, 1, 0), strict=True))
    return statistics | {"count": np.array([count]), "levels": levels}


def _of_levels(counts: np.ndarray) -> list[float]:
    seen, total = np.flatnonzero(counts), int(counts.sum())
    mean = float(counts @ LEVELS / total)
    variance = float(counts @ (LEVELS - mean) ** 2 / total)
    upto, ranks = counts.cumsum(), np.array(SHARES) * (total - 1)
    low, high = (
        LEVELS[np.searchsorted(upto, rank, "right")] for rank in (np.floor(ranks), np.ceil(ranks))
    )
    marks = low + (high - low) * (ranks - np.floor(ranks))
    return [LEVELS[seen[0]], LEVELS[seen[-1]], mean, variance, *marks.tolist()]
