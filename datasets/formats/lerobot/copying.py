"""Writes videos that a version keeps into a LeRobotDataset: whole files, or episodes cut out of them, never encoded again."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from orlog.base.files import make_folder
from orlog.datasets.formats.lerobot.metadata import VIDEO_COLUMNS
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.videos import decoding, import_av, opened_video
from orlog.errors import SchemaError
from orlog.manifests.manifest import video_path

FILES_OF_CHUNK = 1000
OFF = 1e-4  # seconds by which LeRobot lets a frame lie off its timestamp


class CopiedVideos:
    """The videos of one camera, which are copied as its episodes come, in their order."""

    def __init__(
        self, dataset: Dataset, column: str, camera: str, fps: int, path: Callable[[int], Path], alone: bool
    ) -> None:
        """Take the column that the frames are of, the path of a new file by its number, and whether episodes have files of their own."""
        self._dataset, self._column, self._camera, self._fps = dataset, column, camera, fps
        self._path, self._is_alone = path, alone
        self._episode = 0
        self._last: tuple[Path, float] | None = None  # the file that was copied last, and where its last episode begins
        self._files = 0

    def add(self, frames: np.ndarray) -> dict[str, float]:
        """Copy what holds the frames of the next episode; return where they are.

        Raises SchemaError if its frames are not so many neighbors in one file, or no key frame begins an episode that is cut out.
        """
        ((stored, (inside,)),) = self._dataset.selection().runs(np.array([self._episode]))
        where = f"{self._dataset.name}, episode {self._episode}, {self._camera}"
        whole = stored.read_frame_index(self._column, np.array([inside]))
        index, number = whole[: len(frames)], int(whole[0, 0])
        source = stored.folder / video_path(self._column, number)
        unit, end = _clock(source, where) if number else (0.0, 0)
        seconds = index[:, 1] * unit
        off = np.abs(seconds - seconds[0] - np.arange(len(index)) / self._fps)
        if not number or (index[:, 0] != number).any() or off.max() > OFF:
            raise SchemaError(
                f"{where}: its frames are not those of one video at {self._fps} frames per second; video=True encodes them."
            )
        first, last = int(index[0, 1]), int(whole[whole[:, 0] == number, 1].max())
        start, self._episode = float(seconds[0]), self._episode + 1
        if self._is_alone:
            if first > 0 or last < end:
                if index[0, 2] != first:
                    raise SchemaError(f"{where}: no key frame begins it, so it is not cut out; video=True encodes it.")
                _cut(source, self._path(self._episode - 1), first, last, where)
                start = 0.0
            else:
                _copy(source, self._path(self._episode - 1))
            file = self._episode - 1
        else:
            if self._last is None or self._last[0] != source:
                _copy(source, self._path(self._files))
                self._files += 1
            elif start <= self._last[1]:
                raise SchemaError(
                    f"{where}: lies before the one that it follows; video=True encodes frames in their order."
                )
            self._last, file = (source, start), self._files - 1
        values = (*divmod(file, FILES_OF_CHUNK), start, start + len(index) / self._fps)
        return {f"videos/{self._camera}/{name}": value for name, value in zip(VIDEO_COLUMNS, values, strict=True)}

    def close(self) -> None:
        """Do nothing: each file is whole."""


@functools.lru_cache(8)
def _clock(source: Path, where: str) -> tuple[float, int]:
    """Return the seconds of the unit of a file's time stamps, and its last one."""
    with source.open("rb") as file, opened_video(file, where) as stream, decoding(where):
        times = [packet.pts for packet in stream.container.demux(stream) if packet.pts is not None]
        return float(stream.time_base), max(times)


def _copy(source: Path, target: Path) -> None:
    make_folder(target.parent)
    with source.open("rb") as file, target.open("xb") as copy:
        shutil.copyfileobj(file, copy)


def _cut(source: Path, target: Path, first: int, last: int, where: str) -> None:
    """Write the frames from a key frame to the one at `last` as a file, without encoding them again."""
    make_folder(target.parent)
    with (
        source.open("rb") as file,
        opened_video(file, where) as stream,
        decoding(where),
        import_av().open(str(target), "w", format="mp4") as container,
    ):
        copy = container.add_stream_from_template(stream, opaque=True)
        stream.container.seek(first, stream=stream)
        for packet in stream.container.demux(stream):
            if packet.pts is None or packet.pts < first:
                continue  # what is shown before the key frame, and the end
            if packet.is_keyframe and packet.pts > last:
                break
            packet.pts, packet.dts, packet.stream = packet.pts - first, packet.dts - first, copy
            container.mux(packet)
