"""Frames of MP4 files, decoded in order by PyAV and found by their timestamps.

FFmpeg gets an open file and no name, so that it opens no other one, and stops at the first error instead of
guessing what a damaged frame showed. One frame is in memory at a time.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from orlog.errors import IntegrityError, OrlogError, SchemaError, needing

CODECS = ("av1", "h264", "hevc", "mpeg4", "vp9")
PIXELS = {1: "gray", 3: "rgb24"}
LONGEST_DELAY = 1.0  # seconds between what a key frame's place says and when it is shown


class Video:
    """A video whose frames are asked for in order.

    Attributes:
        where: What errors call it.
        used: How many frames were asked for so far.
    """

    def __init__(self, container: Any, shape: tuple[int, ...], where: str) -> None:
        """Take an open container.

        Raises SchemaError if it holds no video of that shape, or of another codec than are read.
        """
        stream = _only_stream(container, where)
        context = stream.codec_context
        codec = context.codec.canonical_name
        if codec not in CODECS:
            raise SchemaError(
                f"{where}: videos of the codec {codec!r:.20} are not read, only {', '.join(CODECS)}."
            )
        if (context.height, context.width) != shape[:2]:
            raise SchemaError(
                f"{where}: expected frames of {shape[1]} x {shape[0]} pixels, found {context.width} x "
                f"{context.height}."
            )
        _refuse_depth(context.format, where)
        context.options = {"err_detect": "explode"}
        context.thread_type = "AUTO"
        self.where, self.used = where, 0
        self._shape, self._is_late = shape, False
        self._container, self._stream = container, stream
        self._frames: Iterator[Any] = container.decode(stream)
        self._convert = import_av().video.reformatter.VideoReformatter().reformat

    def begin_near(self, time: float) -> None:
        """Go to a key frame before a time, where there is one that decoding can begin at."""
        tick = self._stream.time_base
        for margin in (0.0, LONGEST_DELAY):
            if time <= margin or tick is None:
                break
            with contextlib.suppress(IntegrityError), _reading(self.where):
                frames = self._decoded_from(int((time - margin) / tick))
                first = next(frames, None)
                if first is None or first.pts is None:
                    break
                if first.pts * first.time_base <= time:
                    self._frames, self._is_late = itertools.chain([first], frames), True
                    return
        self._begin_again()

    def _begin_again(self) -> None:
        with _reading(self.where):
            self._frames, self._is_late = self._decoded_from(0), False

    def _decoded_from(self, place: int) -> Iterator[Any]:
        self._container.seek(place, stream=self._stream)
        frames: Iterator[Any] = self._container.decode(self._stream)
        return frames

    def frame_at(self, time: float, tolerance: float) -> np.ndarray:
        """Return the frame that is shown from a time on, (height, width, channels) uint8.

        Times only grow; a frame's own timestamp may differ by `tolerance` seconds.
        """
        try:
            found = self._next_at(time, tolerance)
        except IntegrityError:
            if not self._is_late:
                raise
            self._begin_again()  # some key frames do not begin all that follows them
            found = self._next_at(time, tolerance)
        self.used += 1
        return found

    def _next_at(self, time: float, tolerance: float) -> np.ndarray:
        with _reading(self.where):
            for frame in self._frames:
                if frame.pts is None or frame.is_corrupt:
                    raise IntegrityError(f"{self.where}: a frame is damaged.", file=self.where)
                found = float(frame.pts * frame.time_base)
                if found > time + tolerance:
                    raise IntegrityError(
                        f"{self.where}: expected a frame at {time:.4f} s, the next one is at {found:.4f} s; "
                        "frames are missing, or the timestamps are of another recording.",
                        file=self.where,
                    )
                if found >= time - tolerance:
                    return self._pixels(frame)
        raise IntegrityError(
            f"{self.where}: expected a frame at {time:.4f} s, and the video ends before.",
            file=self.where,
        )

    def _pixels(self, frame: Any) -> np.ndarray:
        if (frame.height, frame.width) != self._shape[:2]:
            raise IntegrityError(
                f"{self.where}: the size of frames changes to {frame.width} x {frame.height}.",
                file=self.where,
            )
        _refuse_depth(frame.format, self.where)
        channels = self._shape[2]
        pixels: np.ndarray = self._convert(frame, format=PIXELS[channels]).to_ndarray()
        return pixels.reshape(self._shape)


def _refuse_depth(pixels: Any, where: str) -> None:
    """Refuse pixels that would be cut to 8 bits.

    Raises SchemaError if they have more.
    """
    bits = 8 if pixels is None else max((one.bits for one in pixels.components), default=8)
    if bits > 8:
        raise SchemaError(
            f"{where}: its pixels have {bits} bits a color ({pixels.name}), as maps of depth have, and would be cut "
            "to 8. no_video=True leaves all videos out; to leave out this one alone, take its feature out of "
            "meta/info.json."
        )


@contextlib.contextmanager
def open_video(path: Path, where: str, shape: tuple[int, ...]) -> Iterator[Video]:
    """Open an MP4 file to read its frames in order, of that height, width and channels."""
    if len(shape) != 3 or shape[2] not in PIXELS:
        raise SchemaError(
            f"{where}: expected a shape of height, width and 1 or 3 channels, found {shape}."
        )
    with _opened(path, where) as container:
        yield Video(container, shape, where)


def video_shape(path: Path, where: str) -> tuple[int, int, int]:
    """Return height, width and channels of the frames of an MP4 file.

    Raises SchemaError if it holds no video; IntegrityError if it is damaged; MissingExtraError if PyAV is not
    installed.
    """
    with _opened(path, where) as container:
        context = _only_stream(container, where).codec_context
        return context.height, context.width, 3


def frame_times(path: Path, where: str) -> np.ndarray:
    """Return when each frame of an MP4 file is shown, in seconds, sorted; none is decoded.

    Raises as `video_shape`.
    """
    with _opened(path, where) as container, _reading(where):
        found = [
            float(one.pts * one.time_base)
            for one in container.demux(*container.streams.video[:1])
            if one.pts is not None and one.time_base and not one.is_discard
        ]
    if not found:
        raise IntegrityError(f"{where}: holds no frame.", file=where)
    return np.sort(np.array(found))


def _only_stream(container: Any, where: str) -> Any:
    streams = container.streams.video
    if len(streams) != 1 or streams[0].codec_context is None:
        raise SchemaError(f"{where}: expected one video, found {len(streams)}.")
    return streams[0]


@contextlib.contextmanager
def _opened(path: Path, where: str) -> Iterator[Any]:
    av = import_av()
    with path.open("rb") as file:
        with _reading(where):
            container = av.open(file, format="mp4", metadata_errors="replace")
        with container:
            yield container


@contextlib.contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turn errors of FFmpeg into one that names the file."""
    av = import_av()
    try:
        yield
    except OrlogError:
        raise
    except (av.FFmpegError, OSError, ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise IntegrityError(f"{where}: cannot be decoded: {text:.200}.", file=where) from error


def import_av() -> Any:
    """Return PyAV.

    Raises MissingExtraError if it is not installed.
    """
    with needing("videos need PyAV", "orlog[formats]"):
        import av
        import av.video.reformatter
    return av
