"""Reads LeRobotDataset folders, versions 1, 2.0, 2.1 and 3.0, and writes 3.0 and 2.1: a row for each frame.

    meta/        features, frames per second, episodes: see `lerobot/metadata.py`,
                 and `lerobot/version1.py` for version 1, which has less of them
    data/chunk-*/file-*.parquet, episode_*.parquet      one column a feature; `lerobot/unlisted.py`
    videos/      frames of the features that are videos

`observation.state` becomes the part `state` of a Dict of observations, and so on; `action` the action;
`next.reward` the reward, which is 0 where there is none. `next.done` says which episodes ended the task;
without it all were cut off. Episodes of LeRobot have no final observation: the last frame of one that was
cut off gives it, and its action is left out. Where the last two rows are both done, as in LeRobot's PushT, the last
one is the final observation of an episode that ended. Images (PNG in the tables) are decoded without
loss, and frames of videos as they were encoded: `lerobot/camera_frames.py`. `episodes/task` holds the
task in words; other words: `lerobot/language.py`. Other features become infos. Order, counts and lengths are compared with the metadata.
What orlog wrote comes back whole: `lerobot/exports.py`. https://github.com/huggingface/lerobot
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from orlog.datasets.formats._containers.arrow_files import check_pyarrow, count_rows, reading_arrow
from orlog.datasets.formats._shared.episodes import Asked, Opened
from orlog.datasets.formats._shared.inventory import NUMBER
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.lerobot import version1
from orlog.datasets.formats.lerobot.agreement import Agreement
from orlog.datasets.formats.lerobot.camera_frames import Videos
from orlog.datasets.formats.lerobot.exports import KeptRows, read_kept
from orlog.datasets.formats.lerobot.features import TableFeatures
from orlog.datasets.formats.lerobot.language import read_subtasks
from orlog.datasets.formats.lerobot.metadata import (
    INFO,
    PLACE,
    Episodes,
    data_tables,
    read_document,
    read_episodes,
    read_names,
)
from orlog.datasets.formats.lerobot.rows import Tables
from orlog.datasets.formats.lerobot.unlisted import add_unlisted
from orlog.datasets.formats.lerobot.writing import lerobot_losses, write_lerobot
from orlog.errors import SchemaError

VERSIONS = ("v2.0", "v2.1", "v3.0")
INFO_KEYS = (
    *("codebase_version", "fps", "features", "robot_type", "video_path", "data_path", "splits"),
    *("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb", "total_episodes"),
    *("total_frames", "total_tasks", "total_chunks", "total_videos"),
)
EPISODE_KEYS = (
    *("episode_index", "length", "tasks", "dataset_from_index", "dataset_to_index"),
    *("videos/**", "data/**", "meta/**", "stats/**", "orlog/**"),
)
TABLES = ("data/*.parquet", "train/*.arrow")


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    root, where = asked.files[0], asked.sources[0]
    is_first = not (root / INFO).exists() and (root / version1.INFO).exists()
    info = read_document(root, version1.INFO if is_first else INFO, where)
    says_version, fps = "codebase_version" in info, info.get("fps")
    version = str(info.setdefault("codebase_version", _guessed(root, is_first)))
    if version not in VERSIONS and not (is_first and version.startswith("v1.")):
        raise SchemaError(
            f"{where}: LeRobotDataset {version:.20} is not read, only v1.x, {', '.join(VERSIONS)}."
        )
    if not isinstance(fps, int | float) or not 0 < fps < math.inf:
        raise SchemaError(f"{where}: expected fps, frames per second, found {fps!r:.20}.")
    files = version1.tables_of(root, where) if is_first else data_tables(root, info, where)
    if is_first:
        info["features"] = version1.find_features(root, files, asked.options.no_video, where)
    kept = read_kept(root, where) if version in ("v3.0", "v2.1") else None
    unlisted: list[str] = []
    features: TableFeatures | KeptRows
    if kept is None:
        unlisted = add_unlisted(info, files, where)
        features = TableFeatures(info, asked.options, where, read_subtasks(root, where))
    else:
        features = KeptRows(*kept, root, where, asked.options)
    if is_first:
        episodes = version1.read_episodes(root, list(features.videos), where)
    else:
        episodes = read_episodes(root, info, features.videos, where)
    lacks: list[str] = []
    if asked.options.partial:
        episodes = _whole_episodes(files, episodes, where, lacks)
    robot = f", robot {info['robot_type']}" if info.get("robot_type") else ""
    about = f"LeRobotDataset {version}, {fps} frames per second{robot}."
    opened = Opened(
        schema=features.schema,
        steps=iter(()),
        total_steps=sum(episodes.lengths),
        description=about,
        always_said=about if robot else "",
        notes=[*lacks, *unlisted, *features.doubts],
        reads=[
            *(f"{table}:{name}" for name in info["features"] for table in TABLES),
            *(f"./*{NUMBER.sub('#', name)}*.mp4" for name in info["features"]),
        ],
        dimension_names=read_names(info["features"], features.columns),
    )
    if not says_version:
        opened.doubts.append(
            f"info.json has no codebase_version: taken to be {version} by its files."
        )
    if kept is not None:
        opened.environment, opened.license = kept[0].environment, kept[0].license
        opened.description = kept[0].description
    if features.videos:
        Videos(root, episodes, features.videos, fps, where).check_first()
    agreement = Agreement(root, info, episodes, where)
    tables = Tables(
        root=root,
        where=where,
        files=files,
        features=features,
        fps=fps,
        total=sum(episodes.lengths),
        is_partial=bool(lacks),
        wanted=[*dict.fromkeys((*PLACE, *agreement.columns))],
    )
    opened.steps = tables.steps(asked, episodes, agreement, opened.doubts)
    yield opened


def _whole_episodes(
    files: Sequence[Path], episodes: Episodes, where: str, doubts: list[str]
) -> Episodes:
    """Return the first episodes, all rows of which are here; that there are no others is told.

    Raises SchemaError if there is none.
    """
    with reading_arrow(where):
        rows = sum(count_rows(file) for file in files)
    whole = int(np.searchsorted(episodes.ends, rows, "right"))
    if whole == 0:
        raise SchemaError(f"{where}: the tables hold {rows:,} frames, less than the first episode.")
    if whole < len(episodes.lengths):
        doubts.append(
            f"Read in part, as asked for: the tables hold {rows:,} frames, and the metadata says "
            f"{episodes.ends[-1]:,}; the first {whole:,} of {len(episodes.lengths):,} episodes are whole."
        )
    return episodes.some(0, whole)


def _guessed(root: Path, is_first: bool) -> str:
    """Return the version of a dataset that does not say it, by the files that only it has."""
    if is_first:
        return "v1.0"
    if (root / "meta" / "episodes").is_dir():
        return "v3.0"
    return "v2.1" if (root / "meta" / "episodes_stats.jsonl").is_file() else "v2.0"


def _recognizes(files: Sequence[Path]) -> bool:
    return any((files[0] / info).is_file() for info in (INFO, version1.INFO))


FORMAT = Format(
    name="lerobot",
    open=_open,
    recognizes=_recognizes,
    extensions=("",),
    options=("columns", "no_video", "horizon", "ends", "partial"),
    shares=True,
    write=write_lerobot,
    write_options=("video", "rate", "codebase"),
    losses=lerobot_losses,
    check=check_pyarrow,
    reads=(
        *(f"{table}:{name}" for name in ("*index", "timestamp") for table in TABLES),
        *(f"meta/episodes/*.parquet:{name}" for name in EPISODE_KEYS),
        *(f"meta/tasks.parquet:{name}" for name in ("task", "task_index", "__index_level_#__")),
        *(
            f"meta/subtasks.parquet:{name}"
            for name in ("subtask", "subtask_index", "__index_level_#__")
        ),
        "meta/stats.json:**",
        *(f"meta/*.jsonl:{name}" for name in (*EPISODE_KEYS, "task", "task_index", "stats")),
        *(f"meta/info.json:{key}" for key in INFO_KEYS),
        "meta/orlog.json:**",
        "meta/orlog/*.parquet:orlog/**",
        *version1.READS,
    ),
)
