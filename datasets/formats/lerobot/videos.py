"""The frames of a LeRobotDataset's cameras, decoded by PyAV and paired with the rows of its tables.

A row says a second of its episode, and the metadata at which second of a file the episode begins. Where a file
has as many frames as rows, they are paired in order, if each episode has as many as it has rows before the next one
begins; else each row takes the frame next to its second, which is less than half a frame away. Seconds must grow from row to row. What lies off by more than a tenth of a frame is
told: such clocks come of sums of rounded lengths (lerobot#3177) or of timestamps that follow another clock.

Videos that are kept give rows of an index in place of pixels (`datasets/store/videos.py`). Of others, one frame is in
memory at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats.lerobot.depth import luma_of
from orlog.datasets.formats.lerobot.metadata import Episodes, Film, inside
from orlog.datasets.formats.notes import Note
from orlog.datasets.store.videos import PIXELS, check_frame, decoding, frame_index, import_av, opened_video, video_facts
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.manifest import Video

TOLERANCE = 0.1  # of the time between two frames: more is told
HALF = 0.5  # likewise: more is refused
EXACT = 1e-6  # seconds by which equal times may differ


@dataclasses.dataclass
class Usage:
    """What was asked for of the frames of a file."""

    camera: str  # the feature
    file: str  # its path in the dataset
    held: int  # frames of the file
    in_order: bool  # whether frames and rows are paired in order
    used: int = 0  # frames that rows took
    off: float = 0.0  # seconds that a frame lies off at most, where that is more than `TOLERANCE`
    facts: Video | None = None  # what is kept of it


class Videos:
    """The frames of all cameras; of each camera one file is open at a time.

    `numbers` has the number of each file, by camera, of those that are kept; their frames are told and not decoded.

    Attributes:
        usages: What was asked for in files that were closed.
    """

    def __init__(
        self,
        root: Path,
        episodes: Episodes,
        shapes: Mapping[str, np.ndarray],
        fps: float,
        where: str,
        numbers: Mapping[str, Mapping[str, int]],
    ) -> None:
        """Take the episodes, and an empty array of each camera that has the shape and the dtype of its frames."""
        self._root, self._episodes, self._shapes, self._where = root, episodes, shapes, where
        self._fps, self._numbers = fps, numbers
        self._open: dict[str, _File] = {}
        self.usages: list[Usage] = []

    def frames(self, camera: str, episodes: np.ndarray, steps: np.ndarray, timestamps: np.ndarray) -> np.ndarray:
        """Return the next frames of a camera, (rows, height, width, channels); timestamps begin with the episode.

        They are uint8, and of a map of depth uint16.

        Of kept files, return which frames they are: (rows, 3) int64.

        Raises IntegrityError if a row has no frame, or seconds do not grow; SchemaError if a video is not read.
        """
        files = self._numbers.get(camera)
        parts = [self._shapes[camera] if files is None else np.empty((0, 3), np.int64)]
        for episode in np.unique(episodes).tolist():
            rows = episodes == episode
            film = self._episodes.videos[camera][episode - self._episodes.number]
            try:
                file = self._file(camera, film)
                numbers = file.pair(film, steps[rows], film.start + timestamps[rows], self._fps)
                parts.append(file.decode(numbers) if files is None else file.index(numbers, files[film.file]))
            except (IntegrityError, SchemaError) as error:
                text = f"{error} This is in episode {episode}; no_video=True leaves all videos out."
                raise type(error)(text) from error
        return np.concatenate(parts)

    def close(self) -> None:
        """Close all files."""
        for camera in list(self._open):
            self._close(camera)

    def _file(self, camera: str, film: Film) -> _File:
        if camera not in self._open or self._open[camera].usage.file != film.file:
            self._close(camera)
            path = inside(self._root, Path(film.file), self._where)
            where = f"{self._where}, {film.file}"
            self._open[camera] = _File(path, camera, film, self._shapes[camera], where, kept=camera in self._numbers)
        return self._open[camera]

    def _close(self, camera: str) -> None:
        if camera in self._open:
            file = self._open.pop(camera)
            self.usages.append(file.usage)
            file.stack.close()


class _File:
    """An open video whose frames are taken in order."""

    def __init__(self, path: Path, camera: str, film: Film, empty: np.ndarray, where: str, *, kept: bool) -> None:
        """Open it."""
        shape = empty.shape[1:]
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(_opened(path, where))
            context = stream.codec_context
            if shape not in [(context.height, context.width, channels) for channels in PIXELS]:
                pixels = f"{context.height} x {context.width}"
                raise SchemaError(f"{where}: expected frames of {shape}, found pixels of {pixels}.")
            context.thread_type = "AUTO"
            self._index, unit = _indexed(path, where)
            self.stack = stack.pop_all()
        self._times = self._index[:, 0] * unit
        held = len(self._times)
        self.usage = Usage(camera, film.file, held, held == film.total)
        self._shape, self._dtype, self._where = shape, empty.dtype, where
        self._frames: Iterator[Any] = stream.container.decode(stream)
        self._convert = import_av().video.reformatter.VideoReformatter().reformat
        self._taken, self._second = -1, -np.inf  # of the row before
        if kept:
            self.usage.facts = video_facts(stream, self._index, shape, where)

    def index(self, numbers: np.ndarray, file: int) -> np.ndarray:
        """Return rows of the index of a kept file for frames of some numbers, (rows, 3) int64."""
        return np.concatenate([np.full((len(numbers), 1), file), self._index[numbers]], 1)

    def pair(self, film: Film, steps: np.ndarray, seconds: np.ndarray, fps: float) -> np.ndarray:
        """Return the number of the frame of each of the next steps of an episode, which the file would show at some seconds."""
        if self.usage.in_order:
            self._check_ends(film, fps)
            numbers = film.first + steps
        else:
            numbers = _nearest(self._times, seconds)
        off = np.abs(self._times[numbers] - seconds)
        fits = np.diff(seconds, prepend=self._second) > 0
        fits &= np.diff(numbers, prepend=self._taken) > 0
        if not self.usage.in_order:
            fits &= off < HALF / fps
            if film.stop < np.inf:  # whose frame the next episode may look for in another process
                fits &= numbers < np.searchsorted(self._times, film.stop - HALF / fps)
        if not fits.all():
            row = int(np.argmin(fits))
            raise IntegrityError(
                f"{self._where}: expected a frame of its own at {seconds[row]:.4f} s, the nearest one is at "
                f"{self._times[numbers[row]]:.4f} s; frames are missing, or timestamps do not grow."
            )
        self._taken, self._second = numbers[-1], seconds[-1]
        self.usage.used += len(numbers)
        self.usage.off = max(self.usage.off, off.max(initial=0.0, where=off > TOLERANCE / fps))
        return numbers

    def _check_ends(self, film: Film, fps: float) -> None:
        """Raise IntegrityError if the frames of an episode that are paired in order are not from its begin to the next one.

        Begins may drift, by little from one to the next. A file may begin late, but not before its first episode.
        """
        begin = self._times[film.first]
        early = film.start - begin if film.first == 0 else 0.0
        stop = begin + film.stop - film.start
        own = film.length if stop == np.inf else np.searchsorted(self._times, stop - HALF / fps) - film.first
        if own != film.length or early > 1 / fps - EXACT:
            raise IntegrityError(
                f"{self._where}: expected {film.length} frames from {film.start:.4f} s to {film.stop:.4f} s, found {own} "
                f"from {begin:.4f} s on; an episode lacks frames that another one has too many."
            )

    def decode(self, numbers: np.ndarray) -> np.ndarray:
        """Return frames of growing numbers, (rows, height, width, channels)."""
        pixels = np.empty((len(numbers), *self._shape), self._dtype)
        with decoding(self._where):
            for row, time in enumerate(self._times[numbers].tolist()):
                frame = self._next_at(time)
                if self._dtype == np.uint16:
                    pixels[row] = luma_of(frame, self._where).reshape(self._shape)
                    continue
                check_frame(frame, self._shape, self._where)
                shown: np.ndarray = self._convert(frame, format=PIXELS[self._shape[2]]).to_ndarray()
                pixels[row] = shown.reshape(self._shape)
        return pixels

    def _next_at(self, time: float) -> Any:
        for frame in self._frames:
            if frame.pts is None or frame.is_corrupt:
                break
            shown = float(frame.pts * frame.time_base)
            if abs(shown - time) <= EXACT:
                return frame
            if shown > time:
                break
        raise IntegrityError(f"{self._where}: the frame at {time:.4f} s is damaged.")


def usage_notes(usages: Iterable[Usage]) -> list[Note]:
    """Return what was not read, and what lies off."""
    files: dict[tuple[str, str], Usage] = {}
    for usage in usages:
        whole = files.setdefault((usage.camera, usage.file), dataclasses.replace(usage, used=0))
        whole.used, whole.off = whole.used + usage.used, max(whole.off, usage.off)
    off: dict[tuple[str, bool], list[float]] = {}
    for usage in files.values():
        if usage.off:
            off.setdefault((usage.camera, usage.in_order), []).append(usage.off)
    notes = []
    for (camera, in_order), several in off.items():
        code = "frames_in_order" if in_order else "frames_by_time"
        notes.append(Note(code, [camera], off=max(several), count=len(several)))
    unused = sum(max(0, usage.held - usage.used) for usage in files.values())
    return [*notes, Note("frames_of_no_row", count=unused)] if unused else notes


def video_shape(path: Path, where: str) -> tuple[int, int, int]:
    """Return height, width and channels of the frames of an MP4 file.

    Raises SchemaError if it is missing, or holds no video; IntegrityError if it is damaged.
    """
    with _opened(path, where) as stream:
        return stream.codec_context.height, stream.codec_context.width, 3


def _indexed(path: Path, where: str) -> tuple[np.ndarray, float]:
    """Return the time stamps of frames as `frame_index`, and the seconds of their unit."""
    with _opened(path, where) as stream:
        return frame_index(stream, where), float(stream.time_base)


def _nearest(times: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return which of some sorted times is next to each wanted one."""
    after = np.minimum(np.searchsorted(times, wanted), len(times) - 1)
    before = np.maximum(after - 1, 0)
    nearest: np.ndarray = np.where(wanted - times[before] <= times[after] - wanted, before, after)
    return nearest


@contextlib.contextmanager
def _opened(path: Path, where: str) -> Iterator[Any]:
    if not path.is_file():
        raise SchemaError(f"{where}: is missing.")
    with path.open("rb") as file, opened_video(file, where) as stream:
        yield stream
