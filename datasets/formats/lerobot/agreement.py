"""Where the parts of a LeRobotDataset disagree about the same frames, named by episode and step.

The rows are what is read; what else is said of them is compared, and told where it is of other rows:

    timestamp                               frame_index / fps   (lerobot#933, lerobot#1875, unitree_lerobot#41)
    index                                   counts all rows on
    dataset_from_index, data/file_index     where an episode's rows lie   (lerobot#1919, lerobot#2401)
    meta/stats.json, episodes_stats.jsonl   the least and the largest numbers   (lerobot#3508), quantiles
                                            (lerobot#4156), and means of images
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats._containers.arrow_files import array_of
from orlog.datasets.formats.lerobot.episode_statistics import MOST_NUMBERS as MOST_OF_A_ROW
from orlog.datasets.formats.lerobot.episode_statistics import QUANTILES
from orlog.datasets.formats.lerobot.metadata import (
    COUNTERS,
    Episodes,
    episode_rows,
    inside,
    places,
    row_size,
)
from orlog.errors import OrlogError

TOLERANCE = 1e-4  # seconds, LeRobot's own
ROUNDING = 1e-6  # of numbers that were float32 on their way
MOST_NUMBERS = 2**23  # of all episodes and features whose statistics are compared
STATISTICS = Path("meta") / "stats.json"
EPISODE_STATISTICS = Path("meta") / "episodes_stats.jsonl"
CHUNK_AND_FILE = re.compile(r"chunk-(\d{1,9})/file-(\d{1,9})\.parquet")
COUNTED = ("bool", "int", "uint", "float")
UNREADABLE = (OrlogError, OSError, ValueError, TypeError, KeyError, RecursionError)

NEAR = 0.01  # of the claimed range: a quantile may be off by that much
FEW = 0.005  # of the steps: likewise
PIXELS = 2**12  # of a frame that are looked at
OTHER = 0.05  # of the range of pixels: means and deviations that differ by more are told


class Agreement:
    """Takes all rows in their order, and says afterwards what is said of other rows.

    Attributes:
        images: Takes the frames.
    """

    def __init__(self, root: Path, info: Mapping[str, Any], episodes: Episodes, where: str) -> None:
        self._root, self._where, self._episodes = root, where, episodes
        self._fps = float(info["fps"])
        self._off: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"timestamp": [], "index": []}
        self._before = dict.fromkeys(self._off, 0.0)  # by how much the row before deviated
        self._largest = 0.0  # by how much a timestamp does
        self._is_off = False  # whether the timestamp of the row before is
        self._tables: dict[int, tuple[int, int]] = {}  # chunk and file of an episode's first row
        self._limits: dict[str, np.ndarray] = {}  # least and largest numbers of each episode
        left, features = MOST_NUMBERS, info["features"]
        for name, one in features.items():
            size = row_size(one) * len(episodes.lengths)
            is_counted = str(one.get("dtype")).rstrip("0123456789") in COUNTED if size else False
            if is_counted and name not in COUNTERS and size <= left:
                left -= size
                self._limits[name] = np.full((2, len(episodes.lengths), row_size(one)), np.nan)
        sizes = {name: limits.shape[2] for name, limits in self._limits.items()}
        self.images, self._quantiles = _ClaimedImages(), _ClaimedQuantiles({}, sizes)
        self._claims: Mapping[str, Any] | None = None  # of `meta/stats.json`, if it can be read
        with contextlib.suppress(*UNREADABLE):  # `doubts` tells it
            claims = self._whole_statistics()
            self._quantiles, self._claims = _ClaimedQuantiles(claims, sizes), claims

    @property
    def columns(self) -> list[str]:
        """Columns of the tables that are compared."""
        return ["timestamp", "index", *self._limits]

    def add(
        self, batch: Any, file: Path, episode: np.ndarray, step: np.ndarray, first: int
    ) -> None:
        """Take the next rows of a table, with the episode of each and its place in it; `first` came before."""
        names = batch.schema.names
        place = CHUNK_AND_FILE.fullmatch(f"{file.parent.name}/{file.name}")
        if place:
            for one in np.unique(episode[step == 0]).tolist():
                self._tables[one] = int(place[1]), int(place[2])
        rows: dict[str, np.ndarray] = {
            name: array_of(batch.column(name), name, self._where, first).reshape(len(episode), -1)
            for name in self.columns
            if name in names
        }
        counted = {"timestamp": step / self._fps, "index": first + np.arange(len(step))}
        for name, expected in counted.items():
            if name in rows and rows[name].shape[1] == 1 and rows[name].dtype.kind in "iuf":
                self._check_counter(name, rows[name][:, 0].astype(float), expected, episode, step)
        starts = np.flatnonzero(np.diff(episode, prepend=-1))
        for name, limits in self._limits.items():
            fits = name in rows and rows[name].shape[1] == limits.shape[2]
            if fits and rows[name].dtype.kind in "biuf":
                values = rows[name].astype(np.float64)
                self._quantiles.add(name, values)
                for kind, reduce in enumerate((np.fmin, np.fmax)):
                    found = reduce.reduceat(values, starts, axis=0)
                    held = limits[kind, episode[starts]]
                    limits[kind, episode[starts]] = reduce(held, found)

    def doubts(self) -> list[str]:
        """Return what was said of other rows, a sentence each; after the last row."""
        said = []
        for name, off in self._off.items():
            if not off:
                continue
            what = "index does not count the rows on"
            if name == "timestamp":
                what = f"Timestamps leave the clock of {self._fps:g} frames a second, by up to {self._largest:.4g} s"
            said.append(f"{what}: {places(*map(np.concatenate, zip(*off, strict=True)))}.")
        said += self._misplaced()
        try:
            said += self._other_statistics()
        except UNREADABLE:
            said.append("The statistics cannot be read; they were computed anew.")
        return said

    def _check_counter(
        self,
        name: str,
        values: np.ndarray,
        expected: np.ndarray,
        episode: np.ndarray,
        step: np.ndarray,
    ) -> None:
        """Note the rows at which an index jumps, or timestamps are off from a jump on until they are back."""
        deviation = values - expected
        before = np.concatenate([[self._before[name]], deviation[:-1]])
        self._before[name] = float(deviation[-1])
        off: np.ndarray = deviation != before
        if name == "timestamp":
            before[step == 0] = 0.0
            allowed = TOLERANCE + ROUNDING * expected
            is_right = np.abs(deviation) <= allowed
            begins = ~(np.abs(deviation - before) <= allowed) & ~is_right
            ends = is_right | (step == 0) & ~begins
            rows = np.arange(len(values))
            last_begin = np.maximum.accumulate(np.where(begins, rows, -1 if self._is_off else -3))
            off = last_begin > np.maximum.accumulate(np.where(ends, rows, -2))
            self._is_off = bool(off[-1])
            self._largest = float(np.abs(deviation[off]).max(initial=self._largest))
        if off.any():
            self._off[name].append((episode[off], step[off]))

    def _misplaced(self) -> list[str]:
        """Return which episodes are said to lie in other rows or files than they do."""
        names = ("dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index")
        lengths = self._episodes.lengths
        ends = self._episodes.ends.tolist()
        rows, tables = [], []
        stored = episode_rows(self._root, names, self._where)
        for number, row in zip(range(len(lengths)), stored, strict=False):
            said = [row.get(name) for name in names]
            true = [ends[number] - lengths[number], ends[number]]
            true += self._tables.get(number, said[2:])
            odd = [one is not None and one != two for one, two in zip(said, true, strict=True)]
            if any(odd[:2]):
                rows.append(number)
            if any(odd[2:]):
                tables.append(number)
        return [
            f"{what}: {places(numbers)}; the rows were read {how}."
            for what, numbers, how in (
                (f"{names[0]} and {names[1]} are those of other rows", rows, "in their order"),
                (f"{names[2]} and {names[3]} name another table", tables, "where they are"),
            )
            if numbers
        ]

    def _other_statistics(self) -> list[str]:
        """Return which statistics have another least or largest number than the rows."""
        said = []
        whole = self._claims
        if whole is None:
            raise ValueError("meta/stats.json cannot be read")
        odd = [
            name
            for name, limits in self._limits.items()
            if name in whole
            and _differ(whole[name], np.fmin.reduce(limits[0]), np.fmax.reduce(limits[1]))
        ]
        if odd:
            said.append(
                f"meta/stats.json is of other rows: {', '.join(odd)} reach other least and largest "
                "numbers; statistics were computed anew."
            )
        said += self._quantiles.doubts()
        of_episodes: dict[str, list[int]] = {}
        means: dict[str, list[tuple[Any, int]]] = {}
        for number, row in enumerate(self._statistics_of_episodes()):
            if number == len(self._episodes.lengths):
                break
            for name, limits in self._limits.items():
                if name in row and _differ(row[name], limits[0, number], limits[1, number]):
                    of_episodes.setdefault(name, []).append(number)
            for name in {*self.images.sums} & {*row} - {*whole}:
                means.setdefault(name, []).append((row[name], self._episodes.lengths[number]))
        joined = {name: _joined(parts) for name, parts in means.items()}
        said += self.images.doubts({**joined, **whole})
        said += [
            f"Statistics of single episodes are of other rows, {name}: {places(numbers)}."
            for name, numbers in of_episodes.items()
        ]
        return said

    def _whole_statistics(self) -> Mapping[str, Any]:
        """Return what `meta/stats.json` says of each feature; nothing where there is no such file."""
        path = inside(self._root, STATISTICS, self._where)
        if not path.is_file():
            return {}
        whole = json.loads(path.read_bytes())
        if not isinstance(whole, Mapping):
            raise TypeError("meta/stats.json is no object")
        return whole

    def _statistics_of_episodes(self) -> Iterator[Mapping[str, Any]]:
        """Yield, of each episode in order, its features' statistics."""
        path = inside(self._root, EPISODE_STATISTICS, self._where)
        if path.is_file():
            with path.open(encoding="utf-8", newline="\n") as lines:
                for line in filter(str.strip, lines):
                    yield json.loads(line)["stats"]
            return
        kinds = ("min", "max")
        columns = [f"stats/{name}/{kind}" for name in self._limits for kind in kinds]
        for row in episode_rows(self._root, columns, self._where):
            yield {
                name: {kind: row.get(f"stats/{name}/{kind}") for kind in kinds}
                for name in self._limits
            }


def _differ(said: Any, low: np.ndarray, high: np.ndarray) -> bool:
    """Return whether statistics say other least and largest numbers than there are, but for rounding."""
    if np.isnan(low).any() or not isinstance(said, Mapping):
        return False
    for kind, true in (("min", low), ("max", high)):
        if said.get(kind) is None:
            continue
        found = np.asarray(said[kind], np.float64).reshape(-1)
        if found.shape != true.shape:
            return True
        allowed = 10 * ROUNDING * (np.maximum(np.abs(low), np.abs(high)) + 1e-3)
        if (np.abs(found - true) > allowed).any():
            return True
    return False


def _joined(parts: Sequence[tuple[Any, int]]) -> dict[str, np.ndarray]:
    """Return mean and deviation of all episodes, from what is said of each, and its length."""
    weights = np.array([length for _, length in parts], float)
    means, deviations = (
        np.array([np.ravel(one[key]) for one, _ in parts], np.float64) for key in ("mean", "std")
    )
    mean = np.average(means, 0, weights)
    return {
        "mean": mean,
        "std": np.sqrt(np.average(deviations**2 + (means - mean) ** 2, 0, weights)),
    }


class _ClaimedQuantiles:
    """Counts the steps below claimed quantiles.

    A quantile of all steps cannot be computed from parts, but it can be counted how many steps lie below one that is
    claimed: LeRobot joined the quantiles of episodes by their mean (lerobot#4156), and later by the largest one.
    """

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
            is_whole = marks.shape[1:] == limits.shape[1:] == (size,) and size <= MOST_OF_A_ROW
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


class _ClaimedImages:
    """Sums over a few pixels of each frame, which tell images of other sets, or in other units than [0, 1]."""

    def __init__(self) -> None:
        self.sums: dict[str, np.ndarray] = {}

    def add(self, name: str, frames: np.ndarray) -> None:
        """Take the next frames of a camera, (frames, height, width, channels) uint8."""
        step = max(1, int(np.sqrt(frames.shape[1] * frames.shape[2] / PIXELS)))
        pixels = frames[:, ::step, ::step].reshape(-1, frames.shape[3]) / 255
        found = np.array([np.full(pixels.shape[1], len(pixels)), pixels.sum(0), (pixels**2).sum(0)])
        self.sums[name] = self.sums.get(name, 0) + found

    def doubts(self, claims: Mapping[str, Any]) -> list[str]:
        """Return a sentence about claimed means and deviations that are those of other images; after the last frame."""
        said = []
        for name, (count, total, squares) in self.sums.items():
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
