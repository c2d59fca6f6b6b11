"""Videos as they were recorded, and the frames that the rows of a column are.

    observations/image/..             the index, int64 (3,) a row: file, time stamp, that of the key frame before it
    videos/observations/image/1.mp4   the files of the column, byte for byte; 0 stands for a frame of zeros, of no file
    videos/ranges                     a hash of each 64 KiB of all files, in the order of their paths

Time stamps are in the unit of the file's stream, as FFmpeg gives them (edit lists are applied). A range is compared with its
hash before a decoder sees it, and a frame is given only if its time stamp is the wanted one. FFmpeg gets an open file and no
name, so that it opens no other one, and stops at the first error instead of guessing what a damaged frame showed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import hashlib
import io
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from orlog.base.files import make_folder, refuse_too_many_files, storage_errors, sync, write_durably
from orlog.datasets.store.chunk_hashes import HASH_BYTES, hash_of
from orlog.datasets.store.objects import VIDEO, check_data, mismatch
from orlog.errors import IntegrityError, OrlogError, SchemaError, clause, needing
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.manifest import VIDEO_RANGES, Manifest, StoredObject, Video, combined_blake3, video_path

if TYPE_CHECKING:
    from orlog.datasets.download.in_place import Elsewhere

PIXELS = {1: "gray", 3: "rgb24"}
RANGE_BYTES = 2**16
COPY_BYTES = 2**20
AHEAD_BYTES = 2**20  # at most fetched at once of a file that is read in place
FIRST_BYTES = 2**17  # fetched where reading begins; each later part of what is read in order is twice as large
MOST_OPEN = 16
MOST_OPEN_BYTES = 2**28
FRAMES_OF_DECODER = 24  # that a decoder may hold, as a bound of its memory
THREADS = min(8, os.cpu_count() or 1)
WAITING_THREADS = 16  # of files that are read in place
MOST_BITS = 8
REORDERED = 16  # frames that may be decoded before one that is shown before them
INDEX = ("file", "time", "key")


def import_av() -> Any:
    """Return PyAV.

    Raises MissingExtraError if it is not installed.
    """
    with needing("videos need PyAV", "orlog[video]"):
        import av
        import av.video.reformatter
    return av


def decoder_version() -> str:
    """Return which decoder gives the pixels, with its version."""
    av = import_av()
    return f"PyAV {av.__version__}, libavcodec {'.'.join(map(str, av.library_versions['libavcodec']))}"


def index_spec(name: str) -> ColumnSpec:
    """Return how the index of a column of videos is stored."""
    return ColumnSpec(name, np.dtype(np.int64), (len(INDEX),))


@contextlib.contextmanager
def decoding(where: str) -> Iterator[None]:
    """Turn errors of FFmpeg into one that names the file."""
    av = import_av()
    try:
        yield
    except OrlogError:
        raise
    except (av.FFmpegError, OSError, ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise IntegrityError(f"{where}: cannot be decoded: {text:.200}.") from error


@contextlib.contextmanager
def opened_video(file: BinaryIO | CheckedFile, where: str) -> Iterator[Any]:
    """Open an MP4 file and yield its one stream of video, whose decoder stops at the first error.

    Raises SchemaError if it holds another number of them; IntegrityError if it is damaged.
    """
    with decoding(where):
        container = import_av().open(file, format="mp4", metadata_errors="replace")
    with container:
        streams = container.streams.video
        if len(streams) != 1 or streams[0].codec_context is None:
            raise SchemaError(f"{where}: expected one video, found {len(streams)}.")
        streams[0].codec_context.options = {"err_detect": "explode"}
        yield streams[0]


def frame_index(stream: Any, where: str) -> np.ndarray:
    """Return the time stamps of all frames, in the order in which they are shown, and of the key frames before, (F, 2) int64.

    None is decoded. Raises IntegrityError if there is no frame, or none from which others can be decoded.
    """
    with decoding(where):
        packets = [
            (packet.pts, packet.is_keyframe, packet.is_discard)
            for packet in stream.container.demux(stream)
            if packet.pts is not None
        ]
    times = np.sort(np.array([time for time, _, is_discarded in packets if not is_discarded], np.int64))
    keys = np.sort(np.array([time for time, is_key, _ in packets if is_key], np.int64))
    if not len(times):
        raise IntegrityError(f"{where}: holds no frame.")
    if not len(keys) or keys[0] > times[0] or (np.diff(times) == 0).any():
        raise IntegrityError(f"{where}: its first frame is no key frame, or two frames are shown at one time.")
    return np.stack([times, keys[np.searchsorted(keys, times, "right") - 1]], 1)


def video_facts(stream: Any, index: np.ndarray, shape: tuple[int, ...], where: str) -> Video:
    """Return what a manifest says of a video, after decoding its first frame.

    Raises SchemaError if its frames would not be given as they are: of more than 8 bits, turned, or of another shape.
    """
    with decoding(where):
        check_frame(next(stream.container.decode(stream)), shape, where)
        codec = stream.codec_context.codec
        return Video(
            codec=getattr(codec, "canonical_name", codec.name),  # older PyAV has none
            pixel_format=str(stream.codec_context.pix_fmt),
            rate=float(stream.average_rate or 0),
            frames=len(index),
            key_frames=len(np.unique(index[:, 1])),
            files=1,
        )


def facts_of(path: Path, shape: tuple[int, ...], where: str) -> Video:
    """Return what a manifest says of a file; raises as `frame_index` and `video_facts`."""
    with path.open("rb") as file, opened_video(file, where) as stream:
        index = frame_index(stream, where)
    with path.open("rb") as file, opened_video(file, where) as stream:
        return video_facts(stream, index, shape, where)


def check_frame(frame: Any, shape: tuple[int, ...], where: str) -> None:
    """Raise SchemaError if a frame has more than 8 bits a color, is of another shape, or is to be turned when it is shown."""
    bits = max((part.bits for part in frame.format.components), default=MOST_BITS)
    if bits > MOST_BITS:
        raise SchemaError(
            f"{where}: its pixels have {bits} bits a color ({frame.format.name}), and would be cut to "
            "8; a map of depth has one channel and is_depth_map in the info of its feature. To leave out this "
            "video alone, take its feature out of meta/info.json."
        )
    if (frame.height, frame.width) != shape[:2] or frame.rotation:
        size = f"{frame.height} x {frame.width}, turned by {frame.rotation} degrees"
        raise SchemaError(f"{where}: expected upright frames of {shape}, found one of {size}.")


def joined_facts(several: Sequence[Video]) -> Video:
    """Return what a manifest says of several files of one column; codecs and formats that differ are joined."""
    return Video(
        codec=", ".join(dict.fromkeys(video.codec for video in several)),
        pixel_format=", ".join(dict.fromkeys(video.pixel_format for video in several)),
        rate=several[0].rate,
        frames=sum(video.frames for video in several),
        key_frames=sum(video.key_frames for video in several),
        files=len(several),
    )


def add_videos(folder: Path, files: Mapping[str, Sequence[Path]]) -> list[StoredObject]:
    """Copy the files of each column into a store with the hashes of their ranges; return all as objects."""
    sources = {video_path(name, number): file for name, each in files.items() for number, file in enumerate(each, 1)}
    paths = sorted(sources)
    with storage_errors(folder), concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        copied = list(pool.map(_copy, map(sources.__getitem__, paths), [folder / path for path in paths]))
        ranges = b"".join(hashes for *_, hashes in copied)
        write_durably(folder / VIDEO_RANGES, ranges)
    copied.append((len(ranges), hashlib.sha256(ranges).hexdigest(), b""))
    return [
        StoredObject(path=path, size_bytes=size, sha256=sha256)
        for path, (size, sha256, _) in zip([*paths, VIDEO_RANGES], copied, strict=True)
    ]


def _copy(source: Path, target: Path) -> tuple[int, str, bytes]:
    """Copy a file durably; return its size, its SHA-256 and the hashes of its ranges."""
    digest, size, hashes = hashlib.sha256(), 0, list[bytes]()
    make_folder(target.parent)
    with source.open("rb", buffering=0) as data, target.open("xb") as copy:
        while block := data.read(COPY_BYTES):
            copy.write(block)
            digest.update(block)
            hashes += range_hashes(block)
            size += len(block)
    sync(target)
    return size, digest.hexdigest(), b"".join(hashes)


def video_blake3(objects: Iterable[StoredObject], name: str, index: str) -> str:
    """Return what stands for the values of a column of videos, given the BLAKE3 of its index: it and all its files."""
    sums = {
        int(match["number"]): item.sha256
        for item in objects
        if (match := VIDEO.fullmatch(item.path)) and match["column"] == name
    }
    return combined_blake3([index, *(sums[number] for number in sorted(sums))])


def range_hashes(data: bytes) -> list[bytes]:
    """Return the hash of each range of some bytes, which begin with one."""
    view = memoryview(data)
    return [hash_of(view[start : start + RANGE_BYTES]) for start in range(0, len(data), RANGE_BYTES)]


def check_ranges(path: str, hashes: bytes, start: int, data: bytes) -> None:
    """Raise IntegrityError if bytes from `start` on are not those of ranges of a file with these hashes."""
    first = start // RANGE_BYTES * HASH_BYTES
    for number, actual in enumerate(range_hashes(data)):
        expected = hashes[first + number * HASH_BYTES :][:HASH_BYTES]
        if actual != expected:
            where = f"{path}, bytes from {start + number * RANGE_BYTES} on"
            raise mismatch(where, path, f"blake3 {expected.hex()}", f"blake3 {actual.hex()}")


class CheckedFile(io.RawIOBase):
    """A file that gets its bytes by whole ranges, which were compared with their hashes.

    FFmpeg drops errors of reading, so a wrong range ends the file for it, and `checked` raises the error.
    """

    def __init__(self, size: int, get: Callable[[int, int], bytes]) -> None:
        """Take its size, and what returns the bytes `start` to `stop - 1`."""
        super().__init__()
        self._size, self._get, self._place = size, get, 0
        self._known: dict[int, bytes] = {}
        self._error: OrlogError | None = None

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        """Raise what went wrong with a range that was read inside, in place of what FFmpeg made of it."""
        try:
            yield
        finally:
            if self._error is not None:
                raise self._error

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that it can be read from anywhere."""
        return True

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place, and return it."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes; none where a range is not the one of the manifest."""
        stop = self._size if size is None or size < 0 else min(self._size, self._place + size)
        pieces = []
        try:
            while self._place < stop and self._error is None:
                number, first = divmod(self._place, RANGE_BYTES)
                pieces.append(self._range(number)[first : first + stop - self._place])
                self._place += len(pieces[-1])
        except OrlogError as error:
            self._error = error
        return b"" if self._error else b"".join(pieces)

    def _range(self, number: int) -> bytes:
        if number not in self._known:
            while len(self._known) > 1:  # the table of frames and the frames are read by turns
                del self._known[next(iter(self._known))]
            start = number * RANGE_BYTES
            self._known[number] = self._get(start, min(self._size, start + RANGE_BYTES))
        return self._known[number]


class Decoder:
    """An open video that gives any frame by its time stamp."""

    def __init__(self, file: CheckedFile, shape: tuple[int, ...], where: str, *, threads: int = 1) -> None:
        """Open it; raises SchemaError if frames are not of this shape."""
        self._shape, self._where, self._file = shape, where, file
        with file.checked(), contextlib.ExitStack() as stack:
            self._stream = stack.enter_context(opened_video(file, where))
            context = self._stream.codec_context
            if (context.height, context.width) != shape[:2]:
                size = f"{context.height} x {context.width}"
                raise SchemaError(f"{where}: expected frames of {shape}, found pixels of {size}.")
            context.thread_count = threads
            self._stack = stack.pop_all()
        self.size_bytes = math.prod(shape) * FRAMES_OF_DECODER
        self.unit = self._stream.time_base
        self._convert = import_av().video.reformatter.VideoReformatter().reformat
        self._frames: Iterator[Any] = iter(())
        self._shown: tuple[int, Any] | None = None  # the frame that was decoded last
        self._is_from_start = False  # whether all frames before it were decoded too
        rate = self._stream.average_rate or 1
        self._step = max(1, int(1 / (rate * self._stream.time_base)))  # from one frame to the next, about

    def close(self) -> None:
        """Close the file."""
        self._stack.close()

    def at(self, time: int, key: int) -> np.ndarray:
        """Return the pixels of the frame at a time stamp, (height, width, channels) uint8, given that of its key frame.

        Raises IntegrityError if there is no such frame, or it is damaged.
        """
        with self._file.checked(), decoding(self._where):
            shown = self._shown[0] if self._shown else None
            if shown is None or not shown <= time or key > shown + self._step * 3 // 2:
                self._seek(key)
            frame = self._find(time)
            # FFmpeg seeks by the order of decoding, and may come out behind a key frame that others are shown before;
            # and tables of key frames may be wrong.
            for begin in (key - REORDERED * self._step, self._first) if frame is None else ():
                self._seek(begin)
                frame = frame or self._find(time)
            if frame is None:
                seconds = float(time * self._stream.time_base)
                raise IntegrityError(f"{self._where}: has no undamaged frame at {seconds:.4f} s (time stamp {time}).")
            return self._pixels(frame)

    def times(self) -> np.ndarray:
        """Return the time stamps of all frames, in their order, after decoding them."""
        with self._file.checked(), decoding(self._where):
            self._seek(self._first)
            times = list[int]()
            for frame in self._frames:
                check_frame(frame, self._shape, self._where)
                if frame.is_corrupt:
                    raise IntegrityError(f"{self._where}: frame {len(times)} is damaged.")
                times.append(frame.pts)
        return np.array(times)

    @property
    def _first(self) -> int:
        return min(0, self._stream.start_time or 0) - 2**31

    def _seek(self, time: int) -> None:
        self._stream.container.seek(time, stream=self._stream, backward=True, any_frame=False)
        self._frames = self._stream.container.decode(self._stream)
        self._shown, self._is_from_start = None, time == self._first

    def _find(self, time: int) -> Any:
        if self._shown and self._shown[0] == time:
            return self._shown[1]
        try:
            for frame in self._frames:
                begins_right = self._is_from_start or self._shown is not None or frame.key_frame
                if frame.pts is None or frame.is_corrupt or not begins_right:
                    return None
                self._shown = frame.pts, frame
                if frame.pts >= time:
                    return frame if frame.pts == time else None
        except import_av().InvalidDataError:
            if self._is_from_start:
                raise
        self._shown = None
        return None

    def _pixels(self, frame: Any) -> np.ndarray:
        check_frame(frame, self._shape, self._where)
        pixels: np.ndarray = self._convert(frame, format=PIXELS[self._shape[2]]).to_ndarray()
        return pixels.reshape(self._shape)


_idle: list[tuple[tuple[str, str], Decoder]] = []  # decoders that no thread uses, the latest last
_lending = threading.Lock()


def _before_fork() -> None:
    """Close idle decoders: a child that closed them would wait for threads of FFmpeg that it has not."""
    _lending.acquire()  # a copy of a held lock would never be released
    while _idle:
        _idle.pop()[1].close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_lending.release, after_in_child=_lending.release)


class VideoReader:
    """Reads the frames of a version's columns of videos; used in threads and after a fork."""

    def __init__(self, folder: Path, manifest: Manifest, elsewhere: Elsewhere | None = None) -> None:
        """Remember the files; nothing is opened yet."""
        self._folder, self._elsewhere, self._digest = folder, elsewhere, manifest.digest
        self._shapes = {name: tuple(manifest.column(name).shape) for name in manifest.videos}
        self._objects = {item.path: item for item in manifest.objects if item.path.startswith("videos/")}
        paths = [path for path in self._objects if path != VIDEO_RANGES]
        counts = [-(-self._objects[path].size_bytes // RANGE_BYTES) for path in paths]
        ends = itertools.accumulate(counts)
        self._ranges = {
            path: slice((end - count) * HASH_BYTES, end * HASH_BYTES)
            for path, count, end in zip(paths, counts, ends, strict=True)
        }

    @functools.cached_property
    def _hashes(self) -> bytes:
        item = self._objects[VIDEO_RANGES]
        expected = sum(place.stop - place.start for place in self._ranges.values())
        try:
            data = (self._folder / VIDEO_RANGES).read_bytes()
        except OSError as error:
            actual = f"no file that can be read: {error.strerror or error}"
            raise mismatch(VIDEO_RANGES, VIDEO_RANGES, f"{item.size_bytes} bytes", actual) from error
        check_data(item, data)
        if len(data) != expected:
            raise mismatch(VIDEO_RANGES, VIDEO_RANGES, f"{expected} bytes", f"{len(data)} bytes")
        return data

    def open(self, path: str) -> CheckedFile:
        """Return a video, each range of which is checked when it is read."""
        hashes, size = self._hashes[self._ranges[path]], self._objects[path].size_bytes
        ahead: tuple[int, bytes] = 0, b""

        def fetched(start: int, stop: int) -> bytes:
            nonlocal ahead
            known = ahead[0] + len(ahead[1])
            if not ahead[0] <= start < stop <= known:
                assert self._elsewhere is not None
                count = 2 * len(ahead[1]) if start == known else FIRST_BYTES
                end = min(size, start + min(max(count, FIRST_BYTES), AHEAD_BYTES))
                check = functools.partial(check_ranges, path, hashes, start)
                ahead = start, self._elsewhere.get(path, start, end, check)
            return ahead[1][start - ahead[0] : stop - ahead[0]]

        def local(start: int, stop: int) -> bytes:
            place = self._folder / path
            try:
                with place.open("rb", buffering=0) as file:
                    data = os.pread(file.fileno(), stop - start, start)
            except OSError as error:
                refuse_too_many_files(place, error)
                actual = f"no file that can be read: {error.strerror or error}"
                raise mismatch(path, path, f"{size} bytes", actual) from error
            check_ranges(path, hashes, start, data)
            return data

        return CheckedFile(size, local if self._elsewhere is None else fetched)

    def read(self, name: str, index: np.ndarray, out: np.ndarray | None, where: Callable[[int], str]) -> np.ndarray:
        """Return the frames of some rows of the index, (rows, height, width, channels) uint8, in their order.

        Each key frame is sought once, and threads share them. `where` says for errors what a row is.
        """
        if out is None:
            out = np.empty((len(index), *self._shapes[name]), np.uint8)
        out[index[:, 0] == 0] = 0
        order = np.lexsort((index[:, 1], index[:, 0]))
        order = order[index[order, 0] > 0]
        if not len(order):
            return out
        # Only where the file or the key frame changes is there work for another thread.
        changes = np.flatnonzero((np.diff(index[order][:, [0, 2]], axis=0) != 0).any(1)) + 1
        threads = THREADS if self._elsewhere is None else WAITING_THREADS
        wanted = np.linspace(0, len(changes), min(threads, len(changes) + 1) + 1).astype(int)[1:-1]
        tasks = np.split(order, changes[wanted])
        fill = functools.partial(self._fill, name, index, out, where)
        if len(tasks) == 1:
            fill(order)
        else:
            with concurrent.futures.ThreadPoolExecutor(len(tasks)) as pool:
                list(pool.map(fill, tasks))
        return out

    def blocks(self) -> dict[str, int]:
        """Return how many MiB each file has, rounded up, by path: what `check` fetches at once."""
        return {path: -(-self._objects[path].size_bytes // AHEAD_BYTES) for path in self._ranges}

    def check(self, path: str, blocks: Iterable[int]) -> None:
        """Fetch some MiB of a file that is read in place, and compare their ranges; raises IntegrityError if one differs."""
        file, size = self.open(path), self._objects[path].size_bytes
        for block in blocks:
            with file.checked():
                file.seek(block * AHEAD_BYTES)
                file.read(min(AHEAD_BYTES, size - block * AHEAD_BYTES))

    def unit(self, name: str, number: int) -> float:
        """Return the seconds that a time stamp of 1 is in a file."""
        with self._decoder(name, number) as decoder:
            return float(decoder.unit)

    def times(self, name: str, number: int) -> np.ndarray:
        """Return the time stamps of all frames of a file, after decoding them; errors are those of `read`."""
        path = video_path(name, number)
        with contextlib.closing(Decoder(self.open(path), self._shapes[name], path, threads=THREADS)) as decoder:
            return decoder.times()

    def _fill(
        self, name: str, index: np.ndarray, out: np.ndarray, where: Callable[[int], str], rows: np.ndarray
    ) -> None:
        before, decoder = -1, None
        with contextlib.ExitStack() as stack:
            for row in rows.tolist():
                file, time, key = index[row].tolist()
                if before >= 0 and (file, time) == tuple(index[before, :2].tolist()):
                    out[row] = out[before]
                    continue
                try:
                    if decoder is None or file != index[before, 0]:
                        stack.close()
                        decoder = stack.enter_context(self._decoder(name, file))
                    out[row] = decoder.at(time, key)
                except (IntegrityError, SchemaError) as error:
                    path = video_path(name, file)
                    raise IntegrityError(f"{clause(error)}; this is {where(row)}", file=path) from error
                before = row

    @contextlib.contextmanager
    def _decoder(self, name: str, number: int) -> Iterator[Decoder]:
        """Lend a decoder of a file: an idle one, or a new one. The oldest idle ones are closed."""
        path = video_path(name, number)
        if path not in self._objects:
            raise IntegrityError(f"{path}: not in the manifest.", file=path)
        key = self._digest, f"{self._folder}/{path}"
        with _lending:
            place = next((place for place, (other, _) in enumerate(_idle) if other == key), None)
            decoder = None if place is None else _idle.pop(place)[1]
        decoder = decoder or Decoder(self.open(path), self._shapes[name], path)
        try:
            yield decoder
        except BaseException:
            decoder.close()
            raise
        with _lending:
            _idle.append((key, decoder))
            while len(_idle) > MOST_OPEN or sum(decoder.size_bytes for _, decoder in _idle) > MOST_OPEN_BYTES:
                _idle.pop(0)[1].close()
