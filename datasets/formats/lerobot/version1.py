"""LeRobotDatasets of version 1, which say less of themselves than later ones, so that their tables are looked at.

meta_data/info.json                           codebase_version v1.x, fps
meta_data/episode_data_index.safetensors      from, to: rows of each episode
train/state.json  train/data-..arrow          tables as `save_to_disk` of Hugging Face's datasets writes them,
data/train-..parquet                          or as the Hub has them; a column a feature
videos/KEY_episode_000000.mp4                 one episode and camera each; rows say path and timestamp
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats._shared.arrow_files import reading_arrow, table_batches
from orlog.datasets.formats.lerobot.columns import feature_of, is_film
from orlog.datasets.formats.lerobot.metadata import FIRST_VIDEO, Episodes, Film, inside
from orlog.datasets.formats.lerobot.videos import video_shape
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


def tables_of(root: Path, where: str) -> list[Path]:
    """Return the files that hold the rows, in their order.

    Raises SchemaError if there is none, or one is a link.
    """
    files = [*(root / "train").glob("data-*.arrow"), *(root / "data").glob("train-*.parquet")]
    if len({file.parent for file in files}) != 1:
        raise SchemaError(f"{where}: expected tables train/data-..arrow or data/train-..parquet.")
    return [inside(root, file.relative_to(root), where) for file in sorted(files)]


def find_features(
    root: Path, files: Sequence[Path], no_video: bool, where: str
) -> dict[str, dict[str, Any]]:
    """Return features as `meta/info.json` of later versions has them, by the first row.

    Raises SchemaError if a column is none that LeRobot writes; IntegrityError if a file is damaged.
    """
    with reading_arrow(where):
        batch = next(table_batches(files[0], 1), None)
        if batch is None or batch.num_rows == 0:
            raise SchemaError(f"{where}: {files[0].name} holds no rows.")
        features = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if is_film(column):
                video = inside(root, Path(FIRST_VIDEO.format(camera=name, episode=0)), where)
                shape = (1, 1, 3) if no_video else video_shape(video, f"{where}, {video.name}")
                features[name] = {"dtype": "video", "shape": list(shape)}
            else:
                features[name] = feature_of(column, name, where, 0)
        return features


def read_episodes(root: Path, cameras: Iterable[str], where: str) -> Episodes:
    """Return all episodes, whose tasks are not known.

    Raises SchemaError if there is no index of them, or it holds something else; IntegrityError if it is damaged.
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
    ):
        raise SchemaError(
            f"{where}: {INDEX.name} does not give the rows of one episode after another."
        )
    lengths = (ends - starts).tolist()
    videos = {
        camera: [
            Film(FIRST_VIDEO.format(camera=camera, episode=number), 0.0, 0, length)
            for number, length in enumerate(lengths)
        ]
        for camera in cameras
    }
    return Episodes(lengths, None, videos)
