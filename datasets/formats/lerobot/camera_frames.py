"""The frames of a LeRobotDataset's cameras, paired with the rows of its tables.

A row says a second of its episode, and the metadata at which second of a file the episode begins. Where a file
has as many frames as rows, they are paired in order; else each row takes the frame next to its second, which is
less than half a frame away. Seconds must grow from row to row in both. What lies off by more than a tenth of a frame is
told: such clocks come of sums of rounded lengths (lerobot#3177) or of timestamps that follow another clock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from orlog.datasets.formats.lerobot.metadata import Episodes, inside, places
from orlog.datasets.formats.lerobot.video_frames import Video, frame_times, open_video
from orlog.errors import IntegrityError, OrlogError, SchemaError
from orlog.manifests.names import counted

TOLERANCE = 0.1  # of the time between two frames: more is told
HALF = 0.5  # likewise: more is refused
EXACT = 1e-6  # seconds by which equal times may differ


@dataclasses.dataclass
class Shown:
    """Frames of a file that were asked for."""

    camera: str
    file: str
    held: int  # frames of the file
    in_order: bool  # whether frames and rows are paired in order
    first: float = math.nan  # the second that the first row asked for
    last: float = -math.inf
    used: int = 0
    off: float = 0.0  # seconds that a frame lies off at most, where that is more than `TOLERANCE`


@dataclasses.dataclass
class _OpenFile:
    """A file whose frames are read, when each of them is shown, and the last one that a row took."""

    shown: Shown
    video: Video
    stack: contextlib.ExitStack
    times: np.ndarray
    taken: int = -1


class Videos:
    """The frames of all cameras; of each camera one file is open at a time.

    Attributes:
        shown: What was asked for in files that were closed.
    """

    def __init__(
        self,
        root: Path,
        episodes: Episodes,
        shapes: Mapping[str, tuple[int, ...]],
        fps: float,
        where: str,
    ) -> None:
        """Take the episodes, the shape of each camera's frames, and frames per second."""
        self._root, self._episodes, self._shapes, self._where = root, episodes, shapes, where
        self._fps = fps
        self._open: dict[str, _OpenFile] = {}
        self._begun: set[tuple[str, str]] = set()
        self.shown: list[Shown] = []

    def check_first(self) -> None:
        """Refuse videos of a kind that is not read, before rows are.

        Raises SchemaError if the first one of a camera is none that can be read.
        """
        for camera, films in self._episodes.videos.items():
            path = inside(self._root, Path(films[0].file), self._where)
            with (
                contextlib.suppress(IntegrityError, OSError),
                open_video(path, f"{self._where}, {films[0].file}", self._shapes[camera]),
            ):
                pass

    def frames(
        self, camera: str, episodes: np.ndarray, steps: np.ndarray, timestamps: np.ndarray
    ) -> np.ndarray:
        """Return the next frames of a camera, (rows, height, width, channels) uint8; timestamps begin with the episode.

        Raises IntegrityError if a row has no frame; SchemaError if seconds do not grow.
        """
        found = np.empty((len(episodes), *self._shapes[camera]), np.uint8)
        rows = zip(episodes.tolist(), steps.tolist(), timestamps.tolist(), strict=True)
        for row, (episode, step, time) in enumerate(rows):
            film = self._episodes.videos[camera][episode - self._episodes.number]
            try:
                opened = self._opened(camera, film.file)
                place = self._frame_of(opened, film.first + step, film.start + time)
                if place and not opened.video.used:
                    opened.video.begin_near(float(opened.times[place]))
                found[row] = opened.video.frame_at(float(opened.times[place]), EXACT)
            except (IntegrityError, SchemaError) as error:
                text = f"{error} In episode {episode}, {time:.4f} s after its begin.{self._all_missing()}"
                raise type(error)(text) from error
        return found

    def close(self) -> None:
        """Close all files."""
        for camera in list(self._open):
            self._close(camera)

    def _frame_of(self, opened: _OpenFile, row: int, time: float) -> int:
        """Return the number of the frame in its file that belongs to a row of that file, and a second."""
        where, times, shown = opened.video.where, opened.times, opened.shown
        if math.isnan(shown.first):
            shown.first = time
        _check_order(where, shown.last, time)
        place = row if shown.in_order else int(_nearest(times, np.array([time]))[0])
        off = abs(float(times[place]) - time)
        if (not shown.in_order and off >= HALF / self._fps) or time == shown.last:
            next_at = f"the next one is at {times[place]:.4f} s; frames are missing, or the timestamps are of another recording"
            if place == len(times) - 1 and time > times[place]:
                next_at = "and the video ends before"
            raise IntegrityError(
                f"{where}: expected a frame at {time:.4f} s, {next_at}.", file=where
            )
        if place <= opened.taken:
            raise IntegrityError(
                f"{where}: the frame at {times[place]:.4f} s is next to two rows; frames are missing.",
                file=where,
            )
        shown.last, opened.taken = time, place
        if off > TOLERANCE / self._fps:
            shown.off = max(shown.off, off)
        return place

    def _all_missing(self) -> str:
        """Return which steps of all episodes have no frame, by the clock of the dataset."""
        said = []
        for camera, films in self._episodes.videos.items():
            episodes: list[int] = []
            steps: list[int] = []
            lost: list[int] = []
            files: dict[str, list[int]] = {}
            for number, film in enumerate(films):
                files.setdefault(film.file, []).append(number)
            for file, numbers in files.items():
                try:
                    times = frame_times(inside(self._root, Path(file), self._where), file)
                except (OrlogError, OSError):
                    lost += [self._episodes.number + number for number in numbers]
                    continue
                lengths = [self._episodes.lengths[number] for number in numbers]
                of_steps = np.concatenate([np.arange(length) for length in lengths])
                starts = np.repeat([films[number].start for number in numbers], lengths)
                wanted = starts + of_steps / self._fps
                if (
                    len(times) == self._episodes.frames[camera][file]
                    and (np.diff(wanted) > 0).all()
                ):
                    continue
                near = _nearest(times, wanted)
                taken = np.maximum.accumulate(np.concatenate([[-1], near[:-1]]))
                bad = (np.abs(times[near] - wanted) >= HALF / self._fps) | (near <= taken)
                steps += of_steps[bad].tolist()
                episodes += (self._episodes.number + np.repeat(numbers, lengths)[bad]).tolist()
            if steps:
                said.append(f"{camera} has no frame of its own for {places(episodes, steps)}")
            if lost:
                said.append(f"the videos of {camera} cannot be read for {places(lost)}")
        return f" In all: {'. '.join(said)}. no_video=True leaves videos out." if said else ""

    def _opened(self, camera: str, file: str) -> _OpenFile:
        if camera in self._open and self._open[camera].shown.file == file:
            return self._open[camera]
        self._close(camera)
        where = f"{self._where}, {file}"
        if (camera, file) in self._begun:
            raise _do_not_follow(where)
        self._begun.add((camera, file))
        path = inside(self._root, Path(file), self._where)
        if not path.is_file():
            raise SchemaError(
                f"{where}: is missing; the dataset was downloaded without its videos, or in part. no_video=True leaves "
                "videos out."
            )
        with contextlib.ExitStack() as stack:
            video = stack.enter_context(open_video(path, where, self._shapes[camera]))
            times = frame_times(path, where)
            shown = Shown(
                camera, file, len(times), len(times) == self._episodes.frames[camera][file]
            )
            self._open[camera] = _OpenFile(shown, video, stack.pop_all(), times)
        return self._open[camera]

    def _close(self, camera: str) -> None:
        if camera in self._open:
            opened = self._open.pop(camera)
            opened.shown.used = opened.video.used
            self.shown.append(opened.shown)
            opened.stack.close()


class ShownFrames:
    """Puts together which frames were asked for, in their order, wherever they were decoded."""

    def __init__(self, where: str) -> None:
        self._where, self._unused = where, 0
        self._open: dict[str, Shown] = {}
        self._closed: set[tuple[str, str]] = set()
        self._off: dict[tuple[str, bool], list[float]] = {}

    def add(self, shown: Shown) -> None:
        """Take the next frames of a camera.

        Raises SchemaError if they come before those that were asked for.
        """
        before = self._open.get(shown.camera)
        if before is not None and before.file == shown.file:
            _check_order(f"{self._where}, {shown.file}", before.last, shown.first)
            shown.first, shown.used = before.first, before.used + shown.used
            shown.off = max(before.off, shown.off)
        elif before is not None:
            self._close(before)
        if (shown.camera, shown.file) in self._closed:
            raise _do_not_follow(f"{self._where}, {shown.file}")
        self._open[shown.camera] = shown

    def doubts(self) -> list[str]:
        """Return what was not read, and what lies off, a sentence each; after the last frame."""
        for one in self._open.values():
            self._close(one)
        self._open.clear()
        said = []
        for (camera, in_order), off in self._off.items():
            how = (
                "each has as many frames as rows, and they were paired in order"
                if in_order
                else "each row took the frame next to its time"
            )
            said.append(
                f"Frames of {camera} lie up to {max(off):.4g} s off the timestamps of their rows in "
                f"{counted(len(off), 'file')}: {how}."
            )
        if self._unused:
            unused = counted(self._unused, "frame")
            said.append(f"Left out: {unused} of videos that belong to no row.")
        return said

    def _close(self, shown: Shown) -> None:
        self._closed.add((shown.camera, shown.file))
        self._unused += max(0, shown.held - shown.used)
        if shown.off:
            self._off.setdefault((shown.camera, shown.in_order), []).append(shown.off)


def _nearest(times: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return which of some sorted times is next to each wanted one."""
    after = np.searchsorted(times, wanted).clip(1, max(1, len(times) - 1))
    after = np.minimum(after, len(times) - 1)
    before = np.maximum(after - 1, 0)
    nearest: np.ndarray = np.where(wanted - times[before] <= times[after] - wanted, before, after)
    return nearest


def _check_order(where: str, last: float, time: float) -> None:
    if time < last:
        raise SchemaError(
            f"{where}: the frame at {time:.4f} s is asked for after the one at {last:.4f} s; "
            "episodes lie in another order in the video than in the tables."
        )


def _do_not_follow(where: str) -> SchemaError:
    return SchemaError(f"{where}: the episodes in it do not follow each other.")
