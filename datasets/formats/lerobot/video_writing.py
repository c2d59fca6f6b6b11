"""Frames of LeRobotDatasets as MP4 files: H.264, a file for many episodes of a camera, or for each one.

videos/CAMERA/chunk-000/file-000.mp4      videos/chunk-000/CAMERA/episode_000000.mp4
meta/episodes ..  videos/CAMERA/{chunk_index, file_index, from_timestamp, to_timestamp}
"""

from __future__ import annotations

import fractions
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats.lerobot.table_writing import FILES_OF_CHUNK, numbered
from orlog.datasets.formats.lerobot.video_frames import import_av

FILE_BYTES = 2 * 10**8
BETWEEN_KEY_FRAMES = "2"  # as LeRobot has it: any frame is found by decoding one more
QUALITY = "18"  # of H.264's scale from 0 to 51, which the eye takes for equal


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
        is_full = self._path.is_file() and self._path.stat().st_size >= FILE_BYTES
        if self._container is None or self._is_alone or is_full:
            self._begin(frames.shape[1:3])
        first = self._frames
        for pixels in frames:
            frame = av.VideoFrame.from_ndarray(np.repeat(pixels, 3 // pixels.shape[2], 2), "rgb24")
            frame.pts, frame.time_base = self._frames, fractions.Fraction(1, self._rate)
            self._container.mux(self._stream.encode(frame))
            self._frames += 1
        chunk, file = divmod(self._number, FILES_OF_CHUNK)
        lies = {
            "chunk_index": chunk,
            "file_index": file,
            "from_timestamp": first / self._rate,
            "to_timestamp": self._frames / self._rate,
        }
        return {f"videos/{self._camera}/{name}": value for name, value in lies.items()}

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
