"""Where the parts of a LeRobotDataset disagree about the same frames, named by episode and step.

The rows are what is read; what else is said of them is compared, and told where it is of other rows:

    timestamp                               frame_index / fps   (lerobot#933, lerobot#1875, unitree_lerobot#41)
    index                                   counts all rows on
    dataset_from_index, data/file_index     where an episode's rows lie   (lerobot#1919, lerobot#2401)
    meta/stats.json                         the least and the largest numbers   (lerobot#3508), quantiles that more
                                            steps leave than they say (lerobot#4156), means and deviations of images
                                            (lerobot#3682)

LeRobot joined the quantiles of episodes by their mean, and by the outermost one since its #3804, which is a bound that no
more steps leave: so only how many lie outside is counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats.arrow_files import array_of
from orlog.datasets.formats.lerobot.metadata import COUNTERS, Episodes, Info, episode_rows, inside, places
from orlog.datasets.formats.notes import Note
from orlog.errors import OrlogError

TOLERANCE = 1e-4  # seconds, LeRobot's own
ROUNDING = 1e-6  # of numbers that were float32 on their way
STATISTICS = Path("meta") / "stats.json"
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
NEAR = 0.01  # of the claimed range: LeRobot's quantiles come of histograms
FEW = 0.01  # of all steps: so many more may lie outside
PIXELS = 2**12  # of a frame that are looked at
OTHER = 0.05  # of the range of pixels, by which means and deviations may differ: LeRobot looks at some frames alone
CHUNK_AND_FILE = re.compile(r"chunk-(\d{1,9})/file-(\d{1,9})\.parquet")
UNREADABLE = (OrlogError, OSError, ValueError, TypeError, AttributeError, RecursionError)
COUNTED = ("bool", "int", "uint", "float")


class Agreement:
    """Takes all rows in their order, and says afterwards what is said of other rows."""

    def __init__(self, root: Path, info: Info, episodes: Episodes, where: str) -> None:
        self._root, self._where, self._episodes, self._fps = root, where, episodes, float(info.fps)
        self._last = {"timestamp": 0.0, "index": 0.0}  # by how much the last row deviated
        self._off: dict[str, list[np.ndarray]] = {"timestamp": [], "index": []}
        self._jumped: set[int] = set()  # episodes whose timestamps leave the clock at once
        self._tables: dict[int, tuple[int, int]] = {}  # chunk and file of an episode's first row
        self._limits = {  # least and largest numbers of all rows
            name: np.full((2, feature.size), np.nan)
            for name, feature in info.features.items()
            if feature.dtype.rstrip("0123456789") in COUNTED and name not in COUNTERS
        }

        self._pixels: dict[str, np.ndarray] = {}  # of each camera: count, sum and sum of squares by channel
        self._outside: dict[str, np.ndarray] = {}  # steps outside of each claimed quantile, by number
        try:
            path = inside(root, STATISTICS, where)
            self._claims: Mapping[str, Any] | None = json.loads(path.read_bytes()) if path.is_file() else {}
            claims = {name: _marks((self._claims or {}).get(name), of[0].size) for name, of in self._limits.items()}
            self._marks = {name: claim for name, claim in claims.items() if claim is not None}
        except UNREADABLE:
            self._claims, self._marks = None, {}

    @property
    def columns(self) -> list[str]:
        """Columns of the tables that are compared."""
        return ["timestamp", "index", *self._limits]

    def add(self, batch: Any, file: Path, episodes: np.ndarray, steps: np.ndarray, first: int) -> None:
        """Take the next rows of a table, with the episode of each and its place in it; `first` came before."""
        if not len(steps):
            return
        place = CHUNK_AND_FILE.fullmatch(f"{file.parent.name}/{file.name}")
        if place:
            begun = episodes[steps == 0].tolist()
            self._tables |= dict.fromkeys(begun, (int(place[1]), int(place[2])))
        for name in batch.schema.names:
            rows = array_of(batch.column(name), name, self._where, first).reshape(len(steps), -1)
            width = self._limits[name].shape[1] if name in self._limits else 1
            if rows.dtype.kind not in "biuf" or rows.shape[1] != width:
                continue
            if name == "timestamp":
                self._add_counts(name, rows[:, 0] - steps / self._fps, episodes, steps)
            elif name == "index":
                counted = first + np.arange(len(steps))
                self._add_counts(name, rows[:, 0].astype(float) - counted, episodes, steps)
            if name in self._limits:
                values = rows.astype(np.float64)
                for limit, reduce in zip(self._limits[name], (np.fmin, np.fmax), strict=True):
                    reduce(limit, reduce.reduce(values), out=limit)
                if name in self._marks:
                    marks, near = self._marks[name]
                    self._outside[name] = self._outside.get(name, 0) + np.array(
                        [
                            (values < mark - near if level <= 0.5 else values > mark + near).sum(0)
                            for mark, level in zip(marks, QUANTILES.values(), strict=True)
                        ]
                    )

    def add_images(self, camera: str, frames: np.ndarray) -> None:
        """Take the next frames of a camera, (frames, height, width, channels) uint8."""
        step = max(1, int(np.sqrt(frames.shape[1] * frames.shape[2] / PIXELS)))
        pixels = frames[:, ::step, ::step].reshape(-1, frames.shape[3]) / 255
        sums = [np.full(pixels.shape[1], len(pixels)), pixels.sum(0), (pixels**2).sum(0)]
        self._pixels[camera] = self._pixels.get(camera, 0) + np.array(sums)

    def _add_counts(self, name: str, deviation: np.ndarray, episodes: np.ndarray, steps: np.ndarray) -> None:
        """Note at which rows an index jumps, or a timestamp is off; clocks that drift by less a row are right."""
        before = np.concatenate([[self._last[name]], deviation[:-1]])
        self._last[name] = deviation[-1]
        if name == "index":
            off = deviation != before
        else:
            before[steps == 0] = 0
            allowed = TOLERANCE + ROUNDING * steps / self._fps
            jumps = ~(np.abs(deviation - before) <= allowed)
            self._jumped |= {*episodes[jumps].tolist()}
            off = ~(np.abs(deviation) <= allowed)
        if off.any():
            self._off[name].append(np.stack([episodes[off], steps[off], np.abs(deviation[off])]))

    def notes(self) -> list[Note]:
        """Return what was said of other rows; after the last row."""
        notes = []
        episodes, steps, off = np.concatenate([np.zeros((3, 0)), *self._off["timestamp"]], axis=1)
        here = np.isin(episodes, [*self._jumped])
        if here.any():
            of = places(episodes[here].astype(int), steps[here].astype(int))
            largest = float(np.nanmax(off[here], initial=0.0))
            notes.append(Note("clock", fps=self._fps, off=largest, places=of))
        if self._off["index"]:
            episodes, steps, _ = np.concatenate(self._off["index"], axis=1).astype(int)
            notes.append(Note("jumps", ["index"], places=places(episodes, steps)))
        return [*notes, *self._misplaced(), *self._other_statistics()]

    def _misplaced(self) -> list[Note]:
        names = ("dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index")
        rows, tables, end = [], [], self._episodes.begin
        stored = episode_rows(self._root, names, self._where)
        for number, (length, row) in enumerate(zip(self._episodes.lengths, stored, strict=False)):
            stated = [row.get(name) for name in names]
            true = [end, end + length, *self._tables.get(number, stated[2:])]
            end += length
            odd = [claim not in (None, fact) for claim, fact in zip(stated, true, strict=True)]
            rows += [number] * any(odd[:2])
            tables += [number] * any(odd[2:])
        notes = [Note("rows_elsewhere", places=places(rows))] if rows else []
        return notes + ([Note("tables_elsewhere", places=places(tables))] if tables else [])

    def _other_statistics(self) -> list[Note]:
        """Return of which features `meta/stats.json` says other least and largest numbers, but for rounding, and more."""
        odd, notes = [], list[Note]()
        try:
            if self._claims is None:
                raise ValueError("meta/stats.json is no JSON")
            for name, limits in self._limits.items():
                claim: Mapping[str, Any] = self._claims.get(name) or {}
                allowed = 10 * ROUNDING * (np.abs(limits).max(0) + 1e-3)
                for kind, true in zip(("min", "max"), limits, strict=True):
                    claimed = np.asarray(claim.get(kind, true), np.float64).reshape(-1)
                    is_right = claimed.shape == true.shape and not (np.abs(claimed - true) > allowed).any()
                    odd += [] if is_right or name in odd else [name]
            quantiles = "; ".join(filter(None, map(self._other_quantiles, self._outside)))
            images = "; ".join(filter(None, map(self._other_image, self._pixels)))
        except UNREADABLE:
            return [Note("statistics_unreadable")]
        notes += [Note("statistics_of_others", odd)] if odd else []
        notes += [Note("quantiles_of_others", quantiles=quantiles)] if quantiles else []
        return notes + ([Note("images_of_others", images=images)] if images else [])

    def _other_quantiles(self, name: str) -> str:
        """Return the quantile of a feature that most steps leave, in words; nothing where all are right."""
        total, (marks, _) = int(self._episodes.ends[-1] - self._episodes.begin), self._marks[name]
        shares = self._outside[name] / total
        expected = np.array([min(level, 1 - level) for level in QUANTILES.values()])[:, None]
        wrong = shares - expected - FEW - 1 / total
        level, number = np.unravel_index(int(wrong.argmax()), wrong.shape)
        if wrong[level, number] <= 0:
            return ""
        key = [*QUANTILES][level]
        side = "below" if QUANTILES[key] <= 0.5 else "above"
        return f"{name}[{number}] {key} is {marks[level, number]:.4g}, and {shares[level, number]:.1%} lie {side}"

    def _other_image(self, camera: str) -> str:
        """Return a claimed mean or deviation of images of other frames, or in other units than [0, 1]."""
        count, total, squares = self._pixels[camera]
        mean = total / count
        claim: Mapping[str, Any] = (self._claims or {}).get(camera) or {}
        for key, true in (("mean", mean), ("std", np.sqrt(np.maximum(0, squares / count - mean**2)))):
            claimed = np.asarray(claim.get(key, true), np.float64).reshape(-1)
            if claimed.shape != true.shape or not (np.abs(claimed - true) <= OTHER).all():
                shown = [", ".join(f"{number:.3g}" for number in several.tolist()[:4]) for several in (claimed, true)]
                return f"{camera} {key} is {shown[0]}, and that of its frames {shown[1]}"
        return ""


def _marks(claim: Any, size: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return claimed quantiles, (5, numbers), and by how much each number may be off; None where they are not whole."""
    if not isinstance(claim, Mapping) or not {*QUANTILES, "min", "max"} <= {*claim}:
        return None
    several = [np.asarray(claim[key], np.float64).reshape(-1) for key in (*QUANTILES, "min", "max")]
    if any(values.shape != (size,) or not np.isfinite(values).all() for values in several):
        return None
    marks, limits = np.array(several[:5]), np.array(several[5:])
    return marks, NEAR * np.abs(limits[1] - limits[0]) + 10 * ROUNDING * np.abs(limits).max(0)
