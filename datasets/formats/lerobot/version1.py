"""What a LeRobotDataset of version 1 says of itself: less than later ones, so that its tables are looked at.

meta_data/info.json                           codebase_version v1.x, fps
meta_data/episode_data_index.safetensors      from, to: rows of each episode
train/state.json  train/data-..arrow          tables as `save_to_disk` of Hugging Face's datasets writes them,
data/train-..parquet                          or as the Hub has them; a column a feature
videos/KEY_episode_000000.mp4                 one episode and camera each; rows say path and timestamp
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats._containers.arrow_files import array_of, reading_arrow, table_batches
from orlog.datasets.formats.lerobot.metadata import LONGEST_EPISODE, Episodes, Film, inside
from orlog.datasets.formats.lerobot.unlisted import feature_of
from orlog.datasets.formats.lerobot.video_frames import video_shape
from orlog.errors import IntegrityError, SchemaError

INFO = Path("meta_data") / "info.json"
INDEX = Path("meta_data") / "episode_data_index.safetensors"
READS = (
    *(f"meta_data/info.json:{key}" for key in ("codebase_version", "fps", "video", "encoding")),
    "./meta_data/episode_data_index.safetensors",
    "./meta_data/stats.safetensors",
    "train/state.json:_**",
    "train/dataset_info.json:**",
)
"""Names that are read, or say what the tables say."""
VIDEO_PATH = "videos/{camera}_episode_{episode:06d}.mp4"


def tables_of(root: Path, where: str) -> list[Path]:
    """Return the files that hold the rows, in their order.

    Raises SchemaError if there is none, or one is a link.
    """
    files = [*(root / "train").glob("data-*.arrow"), *(root / "data").glob("train-*.parquet")]
    folders = {file.parent for file in files}
    if len(folders) != 1:
        raise SchemaError(
            f"{where}: expected tables train/data-..arrow or data/train-..parquet, found those of "
            f"{len(folders)} folders."
        )
    return [inside(root, file.relative_to(root), where) for file in sorted(files)]


def find_features(root: Path, files: list[Path], no_video: bool, where: str) -> dict[str, Any]:
    """Return features as `meta/info.json` of later versions has them.

    Raises SchemaError if a column is none that LeRobot writes; IntegrityError if a file is damaged.
    """
    with reading_arrow(where):
        batch = next(table_batches(files[0], 1), None)
        if batch is None or batch.num_rows == 0:
            raise SchemaError(f"{where}: {files[0].name} holds no rows.")
        columns = zip(batch.schema.names, batch.columns, strict=True)
        return {name: _feature(root, name, column, no_video, where) for name, column in columns}


def _feature(root: Path, name: str, column: Any, no_video: bool, where: str) -> dict[str, Any]:
    """Return what the first row of a column says of it."""
    from pyarrow import types

    fields = {field.name for field in column.type} if types.is_struct(column.type) else set()
    if fields != {"path", "timestamp"}:
        return feature_of(column, name, where, 0)
    path = Path(VIDEO_PATH.format(camera=name, episode=0))
    video = inside(root, path, where)
    if not (no_video or video.is_file()):
        raise SchemaError(f"{where}: {path} is missing; no_video=True leaves videos out.")
    shape = (1, 1, 3) if no_video else video_shape(video, f"{where}, {path}")
    return {"dtype": "video", "shape": list(shape)}


def read_episodes(root: Path, cameras: list[str], where: str) -> Episodes:
    """Return all episodes, whose tasks are not known.

    Raises SchemaError if there is no index of them, or it holds something else; IntegrityError if it is
    damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    file = inside(root, INDEX, where)
    if not file.is_file():
        raise SchemaError(f"{where}: has no {INDEX.as_posix()}.")
    try:
        index = load(file.read_bytes())
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{where}: {INDEX.name} is damaged: {error}.", file=where) from error
    starts, ends = index.get("from", np.zeros(0)), index.get("to", np.zeros(0))
    if not (
        starts.shape == ends.shape == (len(starts),)
        and len(starts)
        and starts.dtype.kind == ends.dtype.kind == "i"
        and starts[0] == 0
        and (starts[1:] == ends[:-1]).all()
        and (starts < ends).all()
        and ends[-1] < LONGEST_EPISODE
    ):
        raise SchemaError(
            f"{where}: {INDEX.name} does not give the rows of one episode after another."
        )
    lengths = (ends - starts).tolist()
    videos = {
        camera: [
            Film(VIDEO_PATH.format(camera=camera, episode=number), 0.0, 0)
            for number in range(len(lengths))
        ]
        for camera in cameras
    }
    frames = {
        camera: {film.file: length for film, length in zip(films, lengths, strict=True)}
        for camera, films in videos.items()
    }
    return Episodes(lengths, None, videos, frames)


def video_times(column: Any, camera: str, episodes: np.ndarray, where: str) -> np.ndarray:
    """Return the timestamps of the frames of some rows.

    Raises SchemaError if a row names another video than that of its episode.
    """
    from pyarrow import types

    fields = {field.name for field in column.type} if types.is_struct(column.type) else set()
    if not {"path", "timestamp"} <= fields:
        raise SchemaError(f"{where}: expected paths and timestamps of videos, found {column.type}.")
    for row, (path, episode) in enumerate(
        zip(column.field("path").to_pylist(), episodes.tolist(), strict=True)
    ):
        wanted = VIDEO_PATH.format(camera=camera, episode=episode)
        if path != wanted:
            raise SchemaError(f"{where}: expected {wanted}, found {path!r:.100} in row {row}.")
    return array_of(column.field("timestamp"), f"{camera}, timestamp", where, 0)
