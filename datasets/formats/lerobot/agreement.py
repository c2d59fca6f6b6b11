"""Where the parts of a LeRobotDataset disagree about the same frames, named by episode and step.

The rows are what is read; what else is said of them is compared, and told where it is of other rows:

    timestamp                               frame_index / fps   (lerobot#933, lerobot#1875, unitree_lerobot#41)
    index                                   counts all rows on
    dataset_from_index, data/file_index     where an episode's rows lie   (lerobot#1919, lerobot#2401)
    meta/stats.json, episodes_stats.jsonl   the least and the largest numbers   (lerobot#3508), quantiles
                                            (lerobot#4156), and means of images
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats._shared.arrow_files import array_of
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats.lerobot.episode_statistics import MOST_NUMBERS as MOST_OF_A_ROW
from orlog.datasets.formats.lerobot.episode_statistics import QUANTILES, SHARES
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
LEVELS = np.array(SHARES)[:, None]


@dataclasses.dataclass
class _Counter:
    """A column that counts, and where it leaves its count: episodes and steps, in blocks."""

    before: float = 0.0  # by how much the last row deviated
    is_off: bool = False  # whether the last timestamp is off
    largest: float = 0.0  # by how much a timestamp is off at most
    off: list[tuple[np.ndarray, np.ndarray]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Claim:
    """Quantiles that `meta/stats.json` claims of a feature.

    A quantile of all steps cannot be computed from parts, but it can be counted how many steps lie below one that is
    claimed: LeRobot joined the quantiles of episodes by their mean (lerobot#4156), and later by the largest one.
    """

    marks: np.ndarray  # quantiles, numbers of a row
    near: np.ndarray  # by how much they may be off
    counts: np.ndarray  # of steps below, up to it and what it may be off, up to it itself; all

    def add(self, rows: np.ndarray) -> None:
        """Count the next rows."""
        for number, mark in enumerate(self.marks):
            self.counts[0, number] += (rows < mark - self.near).sum(0)
            self.counts[1, number] += (rows <= mark + self.near).sum(0)
            self.counts[2, number] += (rows <= mark).sum(0)
        self.counts[3] += len(rows)

    def worst(self) -> str:
        """Return the number of a row whose quantiles are most wrong, in words; nothing where all are right."""
        count = max(1, int(self.counts[3].max()))
        below, upto, share = self.counts[:3] / count
        wrong = np.maximum(below - LEVELS, LEVELS - upto) - FEW - 1 / count
        number = int(wrong.max(0).argmax())
        each = [
            f"{key} {self.marks[place, number]:.4g} ({share[place, number]:.1%})"
            for place, key in enumerate(QUANTILES)
            if wrong[place, number] > 0
        ]
        return f"[{number}] {', '.join(each)}" if each else ""


class Agreement:
    """Takes all rows in their order, and says afterwards what is said of other rows."""

    def __init__(self, root: Path, info: Mapping[str, Any], episodes: Episodes, where: str) -> None:
        self._root, self._where, self._episodes = root, where, episodes
        self._fps = float(info["fps"])
        self._counters = {"timestamp": _Counter(), "index": _Counter()}
        self._tables: dict[int, tuple[int, int]] = {}  # chunk and file of an episode's first row
        self._limits: dict[str, np.ndarray] = {}  # least and largest numbers of each episode
        self._images: dict[str, np.ndarray] = {}  # of a few pixels: count, sum and sum of squares
        left, count = MOST_NUMBERS, len(episodes.lengths)
        for name, feature in info["features"].items():
            size = row_size(feature)
            is_counted = str(feature.get("dtype")).rstrip("0123456789") in COUNTED and size
            if is_counted and name not in COUNTERS and size * count <= left:
                left -= size * count
                self._limits[name] = np.full((2, count, size), np.nan)
        try:
            self._whole: Mapping[str, Any] | None = self._read_whole()
            self._claims = {
                name: claim
                for name, limits in self._limits.items()
                if (claim := _claim(self._whole.get(name), limits.shape[2])) is not None
            }
        except UNREADABLE:  # `notes` has it
            self._whole, self._claims = None, {}

    @property
    def columns(self) -> list[str]:
        """Columns of the tables that are compared, and what tells places."""
        return ["timestamp", "index", *self._limits]

    def add(
        self, batch: Any, file: Path, episodes: np.ndarray, steps: np.ndarray, first: int
    ) -> None:
        """Take the next rows of a table, with the episode of each and its place in it; `first` came before."""
        if not len(steps):
            return
        place = CHUNK_AND_FILE.fullmatch(f"{file.parent.name}/{file.name}")
        if place:
            begun = episodes[steps == 0].tolist()
            self._tables |= dict.fromkeys(begun, (int(place[1]), int(place[2])))
        rows = {
            name: array_of(batch.column(name), name, self._where, first).reshape(len(steps), -1)
            for name in batch.schema.names
        }
        rows = {name: values for name, values in rows.items() if values.dtype.kind in "biuf"}
        for name, expected in (
            ("timestamp", steps / self._fps),
            ("index", first + np.arange(len(steps))),
        ):
            if name in rows and rows[name].shape[1] == 1:
                off = self._off(name, rows[name][:, 0].astype(float) - expected, expected, steps)
                if off.any():
                    self._counters[name].off.append((episodes[off], steps[off]))
        starts = np.flatnonzero(np.diff(episodes, prepend=-1))
        for name, limits in self._limits.items():
            if name in rows and rows[name].shape[1] == limits.shape[2]:
                values, here = rows[name].astype(np.float64), episodes[starts]
                if name in self._claims:
                    self._claims[name].add(values)
                for kind, reduce in enumerate((np.fmin, np.fmax)):
                    of_block = reduce.reduceat(values, starts, axis=0)
                    limits[kind, here] = reduce(limits[kind, here], of_block)

    def add_images(self, name: str, frames: np.ndarray) -> None:
        """Take the next frames of a camera, (frames, height, width, channels) uint8."""
        step = max(1, int(np.sqrt(frames.shape[1] * frames.shape[2] / PIXELS)))
        pixels = frames[:, ::step, ::step].reshape(-1, frames.shape[3]) / 255
        sums = [np.full(pixels.shape[1], len(pixels)), pixels.sum(0), (pixels**2).sum(0)]
        self._images[name] = self._images.get(name, 0) + np.array(sums)

    def notes(self) -> list[Note]:
        """Return what was said of other rows; after the last row."""
        notes = []
        for name, counter in self._counters.items():
            if counter.off:
                of = places(*map(np.concatenate, zip(*counter.off, strict=True)))
                if name == "timestamp":
                    notes.append(Note("clock", fps=self._fps, off=counter.largest, places=of))
                else:
                    notes.append(Note("jumps", [name], places=of))
        notes += self._misplaced()
        try:
            notes += self._other_statistics()
        except UNREADABLE:
            notes.append(Note("statistics_unreadable"))
        return notes

    def _off(
        self, name: str, deviation: np.ndarray, expected: np.ndarray, steps: np.ndarray
    ) -> np.ndarray:
        """Return the rows at which an index jumps, or timestamps are off from a jump on until they are back."""
        counter = self._counters[name]
        before = np.concatenate([[counter.before], deviation[:-1]])
        counter.before = float(deviation[-1])
        if name == "index":
            jumps: np.ndarray = deviation != before
            return jumps
        before[steps == 0] = 0.0
        allowed = TOLERANCE + ROUNDING * expected
        is_right = np.abs(deviation) <= allowed
        begins = ~(np.abs(deviation - before) <= allowed) & ~is_right
        ends = is_right | (steps == 0) & ~begins
        rows = np.arange(len(deviation))
        last_begin = np.maximum.accumulate(np.where(begins, rows, -1 if counter.is_off else -3))
        off: np.ndarray = last_begin > np.maximum.accumulate(np.where(ends, rows, -2))
        counter.is_off = bool(off[-1])
        counter.largest = float(np.abs(deviation[off]).max(initial=counter.largest))
        return off

    def _misplaced(self) -> list[Note]:
        """Return which episodes are said to lie in other rows or files than they do."""
        names = ("dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index")
        rows, tables, end = [], [], self._episodes.begin
        stored = episode_rows(self._root, names, self._where)
        for number, (length, row) in enumerate(zip(self._episodes.lengths, stored, strict=False)):
            stated = [row.get(name) for name in names]
            true = [end, end + length, *self._tables.get(number, stated[2:])]
            end += length
            odd = [
                claim is not None and claim != fact
                for claim, fact in zip(stated, true, strict=True)
            ]
            rows += [number] * any(odd[:2])
            tables += [number] * any(odd[2:])
        notes = [Note("rows_elsewhere", places=places(rows))] if rows else []
        return notes + ([Note("tables_elsewhere", places=places(tables))] if tables else [])

    def _other_statistics(self) -> list[Note]:
        """Return which statistics are not those of the rows."""
        if self._whole is None:
            raise ValueError("meta/stats.json cannot be read")
        whole, notes = self._whole, list[Note]()
        odd = [
            name
            for name, limits in self._limits.items()
            if _differ(whole.get(name), np.fmin.reduce(limits[0]), np.fmax.reduce(limits[1]))
        ]
        if odd:
            notes.append(Note("statistics_of_others", odd))
        wrong = [
            f"{name}{words}" for name, claim in self._claims.items() if (words := claim.worst())
        ]
        if wrong:
            notes.append(Note("quantiles_of_others", quantiles="; ".join(wrong)))
        of_episodes: dict[str, list[int]] = {}
        means: dict[str, list[tuple[Any, int]]] = {}
        lengths = self._episodes.lengths
        for number, (length, row) in enumerate(zip(lengths, self._of_episodes(), strict=False)):
            for name, limits in self._limits.items():
                if _differ(row.get(name), limits[0, number], limits[1, number]):
                    of_episodes.setdefault(name, []).append(number)
            for name in {*self._images} & {*row} - {*whole}:
                means.setdefault(name, []).append((row[name], length))
        claims = {**{name: _joined(parts) for name, parts in means.items()}, **whole}
        images = [text for name in self._images if (text := self._other_image(name, claims))]
        if images:
            notes.append(Note("images_of_others", images="; ".join(images)))
        return notes + [
            Note("episode_statistics_of_others", [name], places=places(numbers))
            for name, numbers in of_episodes.items()
        ]

    def _other_image(self, name: str, claims: Mapping[str, Any]) -> str:
        """Return claimed means or deviations of images of another set, or in other units than [0, 1]."""
        count, total, squares = self._images[name]
        claim, mean = claims.get(name), total / count
        true = {"mean": mean, "std": np.sqrt(np.maximum(0, squares / count - mean**2))}
        for key, numbers in true.items():
            if isinstance(claim, Mapping) and claim.get(key) is not None:
                claimed = np.ravel(np.asarray(claim[key], np.float64))
                is_alike = claimed.shape == numbers.shape
                if not is_alike or not (np.abs(claimed - numbers) <= OTHER).all():
                    return f"{name} {key} {_listed(claimed)}, here {_listed(numbers)}"
        return ""

    def _read_whole(self) -> Mapping[str, Any]:
        """Return what `meta/stats.json` says of each feature; nothing where there is no such file."""
        path = inside(self._root, STATISTICS, self._where)
        whole = json.loads(path.read_bytes()) if path.is_file() else {}
        if not isinstance(whole, Mapping):
            raise TypeError("meta/stats.json is no object")
        return whole

    def _of_episodes(self) -> Iterator[Mapping[str, Any]]:
        """Yield, of each episode in order, its features' statistics."""
        path = inside(self._root, EPISODE_STATISTICS, self._where)
        if path.is_file():
            with path.open(encoding="utf-8", newline="\n") as lines:
                yield from (json.loads(line)["stats"] for line in lines if line.strip())
            return
        kinds = ("min", "max")
        columns = [f"stats/{name}/{kind}" for name in self._limits for kind in kinds]
        for row in episode_rows(self._root, columns, self._where):
            yield {
                name: {kind: row.get(f"stats/{name}/{kind}") for kind in kinds}
                for name in self._limits
            }


def _claim(claim: Any, size: int) -> _Claim | None:
    """Return the quantiles that statistics claim of a feature; None if they are not whole."""
    if not isinstance(claim, Mapping) or not {*QUANTILES, "min", "max"} <= {*claim}:
        return None
    marks, limits = (
        np.array([np.ravel(np.asarray(claim[key], np.float64)) for key in keys])
        for keys in (QUANTILES, ("min", "max"))
    )
    is_whole = marks.shape[1:] == limits.shape[1:] == (size,) and size <= MOST_OF_A_ROW
    if not (is_whole and np.isfinite(marks).all() and np.isfinite(limits).all()):
        return None
    return _Claim(
        marks, NEAR * np.abs(limits[1] - limits[0]), np.zeros((4, *marks.shape), np.int64)
    )


def _differ(said: Any, low: np.ndarray, high: np.ndarray) -> bool:
    """Return whether statistics say other least and largest numbers than there are, but for rounding."""
    if np.isnan(low).any() or not isinstance(said, Mapping):
        return False
    for kind, true in (("min", low), ("max", high)):
        if said.get(kind) is None:
            continue
        claimed = np.asarray(said[kind], np.float64).reshape(-1)
        allowed = 10 * ROUNDING * (np.maximum(np.abs(low), np.abs(high)) + 1e-3)
        if claimed.shape != true.shape or (np.abs(claimed - true) > allowed).any():
            return True
    return False


def _joined(parts: Sequence[tuple[Any, int]]) -> dict[str, np.ndarray]:
    """Return mean and deviation of all episodes, from what is said of each, and its length."""
    weights = np.array([length for _, length in parts], float)
    means, deviations = (
        np.array([np.ravel(said[key]) for said, _ in parts], np.float64) for key in ("mean", "std")
    )
    mean = np.average(means, 0, weights)
    return {
        "mean": mean,
        "std": np.sqrt(np.average(deviations**2 + (means - mean) ** 2, 0, weights)),
    }


def _listed(numbers: np.ndarray) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers[:4].tolist())
