"""Reads the rows of a LeRobotDataset's tables and the frames that belong to them, whoever decodes which of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats._containers.arrow_files import (
    array_of,
    count_rows,
    reading_arrow,
    table_batches,
)
from orlog.datasets.formats._shared.episode_cutter import Rows
from orlog.datasets.formats._shared.episodes import Asked, Steps
from orlog.datasets.formats._shared.pieces import Span, jobs_of, read_pieces
from orlog.datasets.formats.lerobot.agreement import Agreement
from orlog.datasets.formats.lerobot.camera_frames import Shown, ShownFrames, Videos
from orlog.datasets.formats.lerobot.exports import KeptRows
from orlog.datasets.formats.lerobot.features import TableFeatures
from orlog.datasets.formats.lerobot.metadata import Episodes, column_of
from orlog.errors import IntegrityError

BLOCK_BYTES = 2**24
MOST_ROWS = 2**62
OVER = 4  # times that `row_bytes` of features says too much, since a number may take one byte


class _Part(NamedTuple):
    """Rows that are read together, each span with its first row among all, and the episodes that they are of."""

    spans: Sequence[Span]
    episodes: Episodes


class _Block(NamedTuple):
    """Rows of a table: their columns here, those of the table that hold numbers, and which rows they are."""

    rows: Rows
    batch: Any
    file: Path
    episode: np.ndarray
    step: np.ndarray
    first: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tables:
    """The tables of a dataset."""

    root: Path
    where: str
    files: Sequence[Path]
    features: TableFeatures | KeptRows
    fps: float
    total: int  # rows of all episodes
    is_partial: bool  # whether tables may end before the metadata do
    wanted: Sequence[str]  # columns that are compared with what else is said of them

    def steps(
        self, asked: Asked, episodes: Episodes, agreement: Agreement, doubts: list[str]
    ) -> Iterator[Steps]:
        """Yield all steps.

        Raises IntegrityError if rows are missing or in another order.
        """
        cutter, shown, done = self.features.cutter(episodes), ShownFrames(self.where), 0
        here = dataclasses.replace(self, files=())
        for found in read_pieces(asked, here.read, self._parts(asked, episodes)):
            if isinstance(found, Shown):
                shown.add(found)
            elif isinstance(found, set):
                self.features.rounded.update(found)
            else:
                rows, batch, file, episode, step, first = found
                agreement.add(batch, file, episode, step, first)
                for camera, role in self.features.cameras.items():
                    agreement.images.add(camera, rows[role])
                rows = self.features.completed(rows, batch, self.where, first)
                for piece in cutter.add(rows):
                    yield self.features.finished(piece)
                done += len(step)
        if done != self.total:
            raise IntegrityError(
                f"{self.where}: the tables hold {done:,} frames, and the metadata says {self.total:,}; it was "
                "downloaded in part, or frames were lost. partial=True reads the episodes that are whole.",
                file=self.where,
            )
        doubts += [*cutter.doubts(), *shown.doubts(), *agreement.doubts()]
        doubts += self.features.later_doubts()

    def _parts(self, asked: Asked, episodes: Episodes) -> Iterator[_Part]:
        """Yield what is read together: everything, or what jobs read."""
        if asked.sharing is None:
            yield _Part([Span((file, 0), 0, MOST_ROWS) for file in self.files], episodes)
            return
        size, ends = max(1, self.features.row_bytes // OVER), episodes.ends
        for spans in jobs_of(asked, self._counts(), size):
            several = list(spans)
            first = several[0].of[1] + several[0].start
            last = several[-1].of[1] + several[-1].stop
            start, stop = np.searchsorted(ends, (first, max(first, last - 1)), "right").tolist()
            yield _Part(several, episodes.some(start, stop + 1))

    def _counts(self) -> Iterator[tuple[tuple[Path, int], int]]:
        """Yield each table with its first row among all, and how many rows it has."""
        first = 0
        for file in self.files:
            with reading_arrow(self._name(file)):
                count = count_rows(file)
            if count:
                yield (file, first), count
            first += count

    def _name(self, file: Path) -> str:
        return f"{self.where}, {file.parent.name}/{file.name}"

    def read(self, part: _Part) -> Iterator[_Block | Shown | set[str]]:
        """Yield blocks of rows, the frames that were asked for, and which columns were rounded."""
        features, done = self.features, 0
        with contextlib.closing(
            Videos(self.root, part.episodes, features.videos, self.fps, self.where)
        ) as videos:
            for span in part.spans:
                file, first = span.of
                name, done = self._name(file), max(done, first + span.start)
                block_rows = max(1, BLOCK_BYTES // features.row_bytes)
                with reading_arrow(name):
                    for read in table_batches(file, block_rows, span.start, span.stop):
                        left = max(0, self.total - done)
                        batch = read.slice(0, left) if self.is_partial else read
                        if self.is_partial and not batch.num_rows:
                            break
                        episode, step = self._places(batch, part.episodes, name, done)
                        columns = features.rows(batch, videos, name, done)
                        kept = [one for one in self.wanted if one in batch.schema.names]
                        yield _Block(columns, batch.select(kept), file, episode, step, done)
                        done += batch.num_rows
        yield from videos.shown
        yield features.rounded

    def _places(
        self, batch: Any, episodes: Episodes, name: str, done: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the episode of each row, and which of its steps it is, as the metadata say.

        Raises IntegrityError if the table says otherwise.
        """
        count = batch.num_rows
        known = np.arange(done, min(self.total, done + count))
        place = np.searchsorted(episodes.ends, known, "right")
        begins = np.concatenate([[episodes.begin], episodes.ends[:-1]])
        episode, step = place + episodes.number, known - begins[place]
        for column, rows in {"episode_index": episode, "frame_index": step}.items():
            found = array_of(column_of(batch, column, name), column, name, done)
            odd = np.flatnonzero(found[: len(rows)] != rows)
            if len(odd) or len(rows) < count:
                row = int(odd[0]) if len(odd) else len(rows)
                raise IntegrityError(
                    f"{name}: {column} of row {done + row} is {found[row]}, and the lengths in "
                    "the metadata say otherwise; frames are missing or in another order.",
                    file=self.where,
                )
        return episode, step
