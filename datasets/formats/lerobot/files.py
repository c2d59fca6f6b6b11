"""Files of LeRobotDatasets that are written: tables of Parquet, images in them as PNG, and videos of H.264.

data/chunk-000/file-000.parquet                a file for many episodes, or one for each
videos/CAMERA/chunk-000/file-000.mp4           the same
"""

from __future__ import annotations

import fractions
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from orlog.datasets.formats._shared.pictures import pillow
from orlog.datasets.formats.lerobot.exports import image_shape
from orlog.datasets.formats.lerobot.metadata import VIDEO_COLUMNS
from orlog.datasets.formats.lerobot.videos import import_av
from orlog.manifests.columns import ColumnSpec

FILES_OF_CHUNK = 1000
GROUP_BYTES = 2**24
MOST_HELD = 100
VIDEO_BYTES = 2 * 10**8
BETWEEN_KEY_FRAMES = "2"  # as LeRobot has it: any frame is found by decoding one more
QUALITY = "18"  # of H.264's scale from 0 to 51, which the eye takes for equal


def numbered(template: str, number: int, camera: str = "") -> str:
    """Return the path of a file by its number, which is that of an episode where each has a file of its own."""
    chunk, file = divmod(number, FILES_OF_CHUNK)
    return template.format(
        chunk_index=chunk,
        file_index=file,
        video_key=camera,
        episode_chunk=chunk,
        episode_index=number,
    )


class TableFiles:
    """Writes rows into Parquet files of bounded size, all rows that come together into one of them."""

    def __init__(
        self, root: Path, template: str, largest: int, where: str, kinds: str = ""
    ) -> None:
        """Take the path of the files, and from how many bytes on one is full: with 0 each call of `write` fills one.

        `kinds` is what Hugging Face's datasets are told of the columns, as JSON.
        """
        self._root, self._template, self._largest, self._where = root, template, largest, where
        self._kinds = kinds
        self._number, self._held_bytes = -1, 0
        self._held: list[Mapping[str, Any]] = []
        self._file: BinaryIO | None = None
        self._writer: Any = None

    def next_place(self) -> tuple[int, int]:
        """Return chunk and file of the rows that are written next."""
        if self._file is None or self._file.tell() >= self._largest:
            self.close()
            self._number += 1
            path = self._root / numbered(self._template, self._number)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
        return divmod(self._number, FILES_OF_CHUNK)

    def write(self, rows: Mapping[str, Any]) -> None:
        """Write rows of all columns; all calls have the same."""
        self._held.append(rows)
        self._held_bytes += sum(v.nbytes for v in rows.values() if isinstance(v, np.ndarray))
        if self._held_bytes >= GROUP_BYTES or len(self._held) == MOST_HELD:
            self._flush()

    def close(self) -> None:
        """Finish the file."""
        self._flush()
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()
        self._writer = self._file = None

    def _flush(self) -> None:
        """Write what is held, in groups of bounded size."""
        import pyarrow as pa
        import pyarrow.parquet

        if not self._held:
            return
        rows = {name: _joined([part[name] for part in self._held]) for name in self._held[0]}
        count = len(next(iter(rows.values())))
        step = max(1, GROUP_BYTES * count // max(1, self._held_bytes))
        for start in range(0, count, step):
            columns = {
                name: _column(values[start : start + step], f"{self._where}, {name}")
                for name, values in rows.items()
            }
            table = pa.table(columns)
            if self._kinds:
                table = table.replace_schema_metadata({"huggingface": self._kinds})
            if self._writer is None:
                self._writer = pyarrow.parquet.ParquetWriter(
                    self._file, table.schema, write_page_checksum=True
                )
            self._writer.write_table(table)
        self._held, self._held_bytes = [], 0


def _joined(parts: list[Any]) -> Any:
    """Return rows that follow each other as one array, or one list."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [row for part in parts for row in part]


def are_images(values: np.ndarray) -> bool:
    """Return whether rows are written as images."""
    return image_shape(ColumnSpec("", values.dtype, values.shape[1:])) is not None


def _column(values: Any, where: str) -> Any:
    """Return rows as an array of Arrow: images, texts or lists of texts, numbers, nested lists of them."""
    import pyarrow as pa

    if not isinstance(values, np.ndarray):
        is_list = isinstance(values[0], list)
        return pa.array(values, pa.list_(pa.string()) if is_list else pa.string())
    if are_images(values):
        return _encoded_images(values, where)
    shape = values.shape[1:]
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    if math.prod(shape) == 1 and len(shape) < 2:
        return column
    if len(shape) == 1:
        return pa.FixedSizeListArray.from_arrays(column, shape[0])
    for size in reversed(shape):
        offsets = np.arange(0, len(column) + 1, size, dtype=np.int32)
        column = pa.ListArray.from_arrays(offsets, column)
    return column


def _encoded_images(frames: np.ndarray, where: str) -> Any:
    """Return frames (rows, height, width, channels) uint8 as a column of PNG files."""
    import pyarrow as pa

    image_library, files = pillow(where), []
    for frame in frames:
        file = io.BytesIO()
        pixels = frame[..., 0] if frame.shape[-1] == 1 else frame
        image_library.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG", compress_level=1)
        files.append(file.getvalue())
    names = [f"frame-{number:06d}.png" for number in range(len(files))]
    return pa.StructArray.from_arrays(
        [pa.array(files, pa.binary()), pa.array(names, pa.string())], names=["bytes", "path"]
    )


class VideoFiles:
    """The videos of one camera, which grow episode by episode."""

    def __init__(
        self, root: Path, camera: str, frames_per_second: int, template: str, *, alone: bool
    ) -> None:
        """Begin in the folder of a dataset, with paths of a template; each episode may be alone in a file.

        Raises MissingExtraError if PyAV is not installed.
        """
        import_av()
        self._root, self._camera, self._rate = root, camera, frames_per_second
        self._template, self._is_alone = template, alone
        self._number, self._frames = -1, 0
        self._path = root
        self._container: Any = None
        self._stream: Any = None

    def add(self, frames: np.ndarray) -> dict[str, float]:
        """Add the frames (rows, height, width, 1 or 3) of an episode; return where they are."""
        import av

        # H.264 looks ahead, so after a few frames there may be no file yet.
        is_full = self._path.is_file() and self._path.stat().st_size >= VIDEO_BYTES
        if self._container is None or self._is_alone or is_full:
            self._begin(frames.shape[1:3])
        first = self._frames
        for pixels in frames:
            frame = av.VideoFrame.from_ndarray(np.repeat(pixels, 3 // pixels.shape[2], 2), "rgb24")
            frame.pts, frame.time_base = self._frames, fractions.Fraction(1, self._rate)
            self._container.mux(self._stream.encode(frame))
            self._frames += 1
        place = divmod(self._number, FILES_OF_CHUNK)
        values = (*place, first / self._rate, self._frames / self._rate)
        names = [f"videos/{self._camera}/{name}" for name in VIDEO_COLUMNS]
        return dict(zip(names, values, strict=True))

    def close(self) -> None:
        """Finish the file."""
        if self._container is not None:
            self._container.mux(self._stream.encode(None))
            self._container.close()
        self._container = self._stream = None

    def _begin(self, size: tuple[int, int]) -> None:
        """Begin the next file."""
        import av

        self.close()
        self._number, self._frames = self._number + 1, 0
        self._path = self._root / numbered(self._template, self._number, self._camera)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(self._path), "w")
        options = {"g": BETWEEN_KEY_FRAMES, "crf": QUALITY}
        self._stream = self._container.add_stream("libx264", self._rate, options=options)
        self._stream.height, self._stream.width = size
        # Colors at half the size need sides that are even.
        self._stream.pix_fmt = "yuv444p" if size[0] % 2 or size[1] % 2 else "yuv420p"
