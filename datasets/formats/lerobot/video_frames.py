"""Frames of MP4 files, decoded in order by PyAV and found by their timestamps.

A file of others may claim anything, so before FFmpeg sees it: it is an MP4 file whose tables count no more
frames than there can be, without fragments or compressed headers. FFmpeg then gets an open file and
no name, one of a few codecs, frames of the size that is known, and stops at the first error in
place of guessing what a damaged frame showed. One frame is in memory at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from orlog.errors import IntegrityError, OrlogError, SchemaError, needing

CODECS = ("av1", "h264", "hevc", "mpeg4", "vp9")
PIXELS = {1: "gray", 3: "rgb24"}
LARGEST_INDEX = 2**26  # bytes of the box that lists the frames
BOXES = (b"ftyp", b"free", b"mdat", b"moov", b"skip", b"wide")
MOST_EDITS = 16
MOST_FRAMES = 2**20  # where it is not known how many there should be
LARGEST_FRAME = 2**24  # pixels, likewise
LONGEST_DELAY = 1.0  # seconds between what a key frame's place says and when it is shown
ALIGNMENT = 128  # codecs round the size of a frame up to at most this


class Video:
    """A video whose frames are asked for in order.

    Attributes:
        where: What errors call it.
        count: How many frames it holds.
        used: How many frames were asked for so far.
        first: The time of the first one of these; NaN before.
        last: That of the last one.
    """

    def __init__(self, container: Any, shape: tuple[int, ...], where: str) -> None:
        """Take an open container.

        Raises SchemaError if it holds no video of that shape, or of another codec than are read.
        """
        streams = container.streams.video
        if len(streams) != 1:
            raise SchemaError(f"{where}: expected one video, found {len(streams)}.")
        context = streams[0].codec_context
        codec = "" if context is None else context.codec.canonical_name
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
        context.options = {"err_detect": "explode", "max_pixels": str(_most_pixels(shape))}
        context.thread_type = "AUTO"
        self.where = where
        self._shape, self.used, self.count = shape, 0, int(streams[0].frames)
        self.first, self.last, self._is_late = math.nan, 0.0, False
        self._container, self._stream = container, streams[0]
        self._frames: Iterator[Any] = container.decode(streams[0])
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
        check_order(self.where, self.last, time)
        self.last = time
        if not self.used:
            self.first = time
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


def check_order(where: str, last: float, time: float) -> None:
    """Refuse a frame that is asked for after a later one.

    Raises SchemaError if it is.
    """
    if time < last:
        raise SchemaError(
            f"{where}: the frame at {time:.4f} s is asked for after the one at {last:.4f} s; "
            "episodes lie in another order in the video than in the tables."
        )


@contextlib.contextmanager
def open_video(
    path: Path, where: str, *, shape: tuple[int, ...], most_frames: int
) -> Iterator[Video]:
    """Open an MP4 file, which is not trusted, to read its frames in order, of that height, width and channels.

    A file that claims to hold more than `most_frames` is refused.
    """
    if len(shape) != 3 or shape[2] not in PIXELS:
        raise SchemaError(
            f"{where}: expected a shape of height, width and 1 or 3 channels, found {shape}."
        )
    with _opened(path, where, most_frames, _most_pixels(shape)) as container:
        yield Video(container, shape, where)


def video_shape(path: Path, where: str) -> tuple[int, int, int]:
    """Return height, width and channels of the frames of an MP4 file, which may be of any size.

    Raises SchemaError if it holds no video; IntegrityError if it is damaged; MissingExtraError if PyAV is not
    installed.
    """
    with _opened(path, where, MOST_FRAMES, LARGEST_FRAME) as container:
        streams = container.streams.video
        if len(streams) != 1 or streams[0].codec_context is None:
            raise SchemaError(f"{where}: expected one video, found {len(streams)}.")
        return streams[0].codec_context.height, streams[0].codec_context.width, 3


def frame_times(path: Path, where: str, *, most_frames: int) -> np.ndarray:
    """Return when each frame of an MP4 file is shown, in seconds, sorted; none is decoded.

    Raises as `video_shape`.
    """
    with _opened(path, where, most_frames, LARGEST_FRAME) as container, _reading(where):
        found = [
            float(one.pts * one.time_base)
            for one in container.demux(*container.streams.video[:1])
            if one.pts is not None and one.time_base and not one.is_discard
        ]
    if not found:
        raise IntegrityError(f"{where}: holds no frame.", file=where)
    return np.sort(np.array(found))


@contextlib.contextmanager
def _opened(path: Path, where: str, most_frames: int, most_pixels: int) -> Iterator[Any]:
    av = import_av()
    with path.open("rb") as file:
        _check_boxes(file, where, most_frames)
        file.seek(0)
        with _reading(where):
            options = {"max_pixels": str(most_pixels)}
            container = av.open(file, format="mp4", metadata_errors="replace", options=options)
        with container:
            yield container


def _check_boxes(file: BinaryIO, where: str, most_frames: int) -> None:
    """Refuse what would make FFmpeg take memory or time without bound."""
    size, place = file.seek(0, 2), 0
    while place < size:
        file.seek(place)
        head = file.read(16)
        length, kind = int.from_bytes(head[:4]), head[4:8]
        if length == 1:
            length = int.from_bytes(head[8:16])
        length = size - place if length == 0 else length
        if kind not in BOXES or length < 8 or place + length > size:
            raise IntegrityError(
                f"{where}: is no MP4 file as LeRobot writes them, or was cut off: found {kind!r} at byte "
                f"{place}.",
                file=where,
            )
        if kind == b"moov":
            if length > LARGEST_INDEX:
                raise SchemaError(f"{where}: {length} bytes of the table of frames are too many.")
            file.seek(place)
            _check_index(file.read(length), where, most_frames)
        place += length


def _check_index(index: bytes, where: str, most_frames: int) -> None:
    # FFmpeg takes these boxes wherever they lie, so they are searched for, not walked to.
    for match in re.finditer(rb"stsz|stz2|stts|ctts|elst|cmov|mvex|moof", index):
        kind, body = match[0], index[match.end() : match.end() + 12]
        if kind in (b"stsz", b"stz2"):
            claimed, most = int.from_bytes(body[8:12]), most_frames
        elif kind in (b"stts", b"ctts"):
            entries = int.from_bytes(body[4:8])
            table = np.frombuffer(index[match.end() + 8 :][: 8 * entries], np.uint8)
            counts = table[: len(table) // 8 * 8].view(">u4").reshape(-1, 2)[:, 0]
            claimed, most = int(counts.sum(dtype=np.uint64)), most_frames
        elif kind == b"elst":
            claimed, most = int.from_bytes(body[4:8]), MOST_EDITS
        else:
            raise SchemaError(f"{where}: MP4 files with {kind.decode()} are not read.")
        if claimed > most:
            raise IntegrityError(
                f"{where}: {kind.decode()} claims {claimed:,} entries, expected at most {most:,}.",
                file=where,
            )


def _most_pixels(shape: tuple[int, ...]) -> int:
    height, width = (-(-one // ALIGNMENT) * ALIGNMENT + ALIGNMENT for one in shape[:2])
    return height * width


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
    with needing("videos need PyAV", "video"):
        import av
        import av.video.reformatter
    return av
