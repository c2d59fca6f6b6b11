"""Quantiles and statistics of images that a LeRobotDataset claims, held against rows and frames as they are read.

A quantile of all steps cannot be computed from parts, but it can be counted how many steps lie below one that is
claimed: LeRobot joined the quantiles of episodes by their mean (lerobot#4156), and later by the largest one. A few pixels
of each frame tell whether means and deviations are those of other images, or of other units than [0, 1].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from orlog.datasets.formats.lerobot.episode_statistics import MOST_NUMBERS, QUANTILES

NEAR = 0.01  # of the claimed range: a quantile may be off by that much
FEW = 0.005  # of the steps: likewise
PIXELS = 2**12  # of a frame that are looked at
OTHER = 0.05  # of the range of pixels: means and deviations that differ by more are told


class ClaimedQuantiles:
    """Counts the steps below claimed quantiles, of features whose rows come one after the other."""

    def __init__(self, claims: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """Take what `meta/stats.json` claims of each feature, and how many numbers a row of each has."""
        self._claims: dict[
            str, tuple[np.ndarray, np.ndarray]
        ] = {}  # and by how much they may be off
        # How many steps lie below, at most at, and at most at the claimed one itself, and how many there are.
        self._counts: dict[str, np.ndarray] = {}
        for name, size in sizes.items():
            claim = claims.get(name)
            if not isinstance(claim, Mapping) or not {*QUANTILES, "min", "max"} <= {*claim}:
                continue
            marks, limits = (
                np.array([np.ravel(np.asarray(claim[key], np.float64)) for key in keys])
                for keys in (QUANTILES, ("min", "max"))
            )
            is_whole = marks.shape[1:] == limits.shape[1:] == (size,) and size <= MOST_NUMBERS
            if is_whole and np.isfinite(marks).all() and np.isfinite(limits).all():
                self._claims[name] = marks, NEAR * np.abs(limits[1] - limits[0])
                self._counts[name] = np.zeros((4, *marks.shape), np.int64)

    def add(self, name: str, rows: np.ndarray) -> None:
        """Take the next rows of a feature, (rows, numbers) of floats."""
        if name not in self._claims:
            return
        (marks, near), counts = self._claims[name], self._counts[name]
        for number, mark in enumerate(marks):
            counts[0, number] += (rows < mark - near).sum(0)
            counts[1, number] += (rows <= mark + near).sum(0)
            counts[2, number] += (rows <= mark).sum(0)
        counts[3] += len(rows)

    def doubts(self) -> list[str]:
        """Return a sentence about those that are wrong, of each feature those of the number that is worst; after the last row."""
        said = []
        levels = np.array(list(QUANTILES.values()))[:, None]
        for name, (marks, _) in self._claims.items():
            count = int(self._counts[name][3].max())
            if not count:
                continue
            below, upto, share = self._counts[name][:3] / count
            wrong = np.maximum(below - levels, levels - upto) - FEW - 1 / count
            if wrong.max() > 0:
                number = int(wrong.max(0).argmax())
                each = [
                    f"{key} {marks[place, number]:.4g} ({share[place, number]:.1%})"
                    for place, key in enumerate(QUANTILES)
                    if wrong[place, number] > 0
                ]
                said.append(f"{name}[{number}] {', '.join(each)}")
        if not said:
            return []
        about = "in brackets is how many steps do not exceed them"
        return [
            f"meta/stats.json has quantiles that are not those of all steps; {about}: {'; '.join(said)}."
        ]


class ClaimedImages:
    """Sums over a few pixels of each frame of some cameras."""

    def __init__(self) -> None:
        """Begin without frames."""
        self._sums: dict[str, np.ndarray] = {}

    @property
    def names(self) -> set[str]:
        """Cameras whose frames came."""
        return {*self._sums}

    def add(self, name: str, frames: np.ndarray) -> None:
        """Take the next frames of a camera, (frames, height, width, channels) uint8."""
        step = max(1, int(np.sqrt(frames.shape[1] * frames.shape[2] / PIXELS)))
        pixels = frames[:, ::step, ::step].reshape(-1, frames.shape[3]) / 255
        found = np.array([np.full(pixels.shape[1], len(pixels)), pixels.sum(0), (pixels**2).sum(0)])
        self._sums[name] = self._sums.get(name, 0) + found

    def doubts(self, claims: Mapping[str, Any]) -> list[str]:
        """Return a sentence about claimed means and deviations that are those of other images; after the last frame."""
        said = []
        for name, (count, total, squares) in self._sums.items():
            claim = claims.get(name)
            if not isinstance(claim, Mapping):
                continue
            mean = total / count
            true = {"mean": mean, "std": np.sqrt(np.maximum(0, squares / count - mean**2))}
            for key, numbers in true.items():
                if claim.get(key) is None:
                    continue
                claimed = np.ravel(np.asarray(claim[key], np.float64))
                is_alike = claimed.shape == numbers.shape
                if not is_alike or not (np.abs(claimed - numbers) <= OTHER).all():
                    said.append(f"{name} {key} {_listed(claimed)}, here {_listed(numbers)}")
                    break
        return [f"Statistics of images do not fit their frames: {'; '.join(said)}."] if said else []


def _listed(numbers: np.ndarray) -> str:
    return ", ".join(f"{one:.3g}" for one in numbers[:4].tolist())
