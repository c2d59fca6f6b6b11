"""Writes datasets as LeRobotDatasets of version 3.0: Parquet tables, images in them as PNG.

    data/chunk-000/file-000.parquet            a row for each step, a column for each feature
    meta/info.json  stats.json  tasks.parquet  features, statistics, tasks in words
    meta/episodes/chunk-000/file-000.parquet   a row for each episode
    meta/orlog.json                            what LeRobot has no place for: `lerobot_exports.py`

A column of steps is one feature: `observations/NAME` is `observation.NAME`, or `observation.state` and
`observation.image` where there is only one, `actions` is `action`, `rewards` is `next.reward`, and `infos/NAME` is
`NAME`. `episodes/task` says the task, or instructions by step, as RLDS has them; without, that is the environment's id. LeRobot
counts in seconds: `infos/timestamp` tells how many frames a second has, as in imported LeRobotDatasets, or `--rate` does;
without, a step takes one. With `--video` frames are MP4 files, and the dataset is any LeRobotDataset, without `orlog.json`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.columns.schema import Schema
from orlog.datasets.columns.values import flatten
from orlog.datasets.formats.lerobot.episode_statistics import FeatureStatistics
from orlog.datasets.formats.lerobot.exports import EPISODE, FINAL, KEPT, SEED, Kept, image_shape
from orlog.datasets.formats.lerobot.image_tables import encoded_images
from orlog.datasets.formats.lerobot.metadata import INFO, VIDEO_PATHS
from orlog.datasets.formats.lerobot.video_writing import VideoFiles
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError
from orlog.manifests.columns import ColumnSpec

PART = "chunk-{:03d}/file-{:03d}.parquet"
FILE_BYTES = 10**8
FILES_OF_CHUNK = 1000
GROUP_BYTES = 2**24
MOST_HELD = 100
MOST_AXES = 5
COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
RESERVED = (
    "observation",
    "action",
    "task",
    *(f"next.{one}" for one in ("reward", "done", "terminated", "truncated")),
)
FLAGS = {
    "rewards": "next.reward",
    "terminations": "next.terminated",
    "truncations": "next.truncated",
}
TIME = "infos/timestamp"
ROBOT = re.compile(r"LeRobotDataset v[\d.]+, \S+ frames per second, robot (.+?)\.(?: |$)")
INSTRUCTIONS = ("language_instruction", "natural_language_instruction", "instruction", "task")


def lerobot_losses(dataset: Dataset) -> list[str]:
    """Say what LeRobotDatasets cannot hold.

    Raises SchemaError if values of a space that they have no place for.
    """
    schema = dataset.schema
    for name, spec in _kept_schema(schema).columns().items():
        fits = "@" not in name and len(spec.shape) <= MOST_AXES and 0 not in spec.shape
        if name.startswith(("observations", "actions")) and not fits:
            raise SchemaError(
                f"{dataset.name}: LeRobot's tables hold arrays of numbers of one shape, with at most "
                f"{MOST_AXES} axes; {name.partition('@')[0]} is none."
            )
    lost = sorted(set(schema.extras) - set(_kept_schema(schema).extras))
    return [f"These columns are lost: {', '.join(lost)}."] if lost else []


def write_lerobot(
    dataset: Dataset,
    folder: Path,
    progress: Callable[[int, int], None],
    *,
    video: bool = False,
    rate: float | None = None,
) -> None:
    """Write a dataset into a new folder.

    Frames become images, or with `video` videos, which changes them. `rate` is steps a second, a whole
    number; without, what `infos/timestamp` tells, or 1.
    """
    if rate is not None and (rate != int(rate) or rate < 1):
        raise SchemaError(
            f"{dataset.name}: LeRobot counts whole frames a second, found the rate {rate:g}."
        )
    schema, manifest = _kept_schema(dataset.schema), dataset.manifest
    kept = Kept(
        schema=schema,
        features=_features(schema),
        environment=manifest.environment,
        description=manifest.description,
        license=manifest.license,
        dimension_names=dataset.dimension_names,
    )
    columns = schema.columns()
    cameras = [
        feature
        for feature, column in kept.features.items()
        if video and column in columns and image_shape(columns[column])
    ]
    films: dict[str, VideoFiles] = {}
    default_task = dataset.name if manifest.environment is None else manifest.environment.id
    tasks: dict[str, int] = {}
    statistics: dict[str, FeatureStatistics] = {}
    fps, total = 0, 0
    with (
        contextlib.ExitStack() as stack,
        contextlib.closing(_Tables(folder / "data", dataset.name)) as data,
        contextlib.closing(_Tables(folder / "meta" / "episodes", dataset.name)) as details,
    ):
        for number, episode in enumerate(dataset):
            fps = fps or (_frames_per_second(episode) if rate is None else int(rate))
            said = _tasks(episode, default_task)
            rows = _rows(episode, kept, fps)
            count = len(episode)
            rows["episode_index"] = np.full(count, number)
            rows["index"] = np.arange(total, total + count)
            rows["task_index"] = np.array([tasks.setdefault(one, len(tasks)) for one in said])
            found = {
                name: FeatureStatistics.of(values, are_images=_are_images(values))
                for name, values in rows.items()
                if isinstance(values, np.ndarray)
            }
            for name, one in found.items():
                statistics[name] = statistics[name].with_more(one) if name in statistics else one
            files = {"data": data.next_place(), "meta/episodes": details.next_place()}
            shown: dict[str, Any] = {}
            for camera in cameras:
                if camera not in films:
                    films[camera] = VideoFiles(folder, camera, fps)
                    stack.callback(films[camera].close)
                shown |= films[camera].add(rows.pop(camera))
            data.write(rows)
            details.write(
                {
                    "episode_index": np.array([number]),
                    "tasks": [list(dict.fromkeys(said))],
                    "length": np.array([count]),
                    "dataset_from_index": np.array([total]),
                    "dataset_to_index": np.array([total + count]),
                    **{
                        f"{folder}/{name}": np.array([place])
                        for folder, places in files.items()
                        for name, place in zip(("chunk_index", "file_index"), places, strict=True)
                    },
                    **{
                        f"stats/{name}/{key}": value[None]
                        for name, one in found.items()
                        for key, value in one.values().items()
                    },
                    **shown,
                    **({} if cameras else _details(episode, schema)),
                }
            )
            total += count
            progress(total, dataset.total_steps)
    stats = {
        name: {key: value.tolist() for key, value in one.values().items()}
        for name, one in statistics.items()
    }
    info = _info(kept, fps, dataset.total_episodes, total, len(tasks))
    for camera in cameras:
        info["features"][camera]["dtype"] = "video"
        info["video_path"] = VIDEO_PATHS[True]
    (folder / INFO).write_text(json.dumps(info, indent=4), "utf-8")
    (folder / "meta" / "stats.json").write_text(json.dumps(stats, indent=4), "utf-8")
    _write_tasks(folder / "meta" / "tasks.parquet", list(tasks))
    if not cameras:  # what a video shows is not what was recorded
        (folder / KEPT).write_bytes(kept.to_json())


def _tasks(episode: Episode, default: str) -> list[str]:
    """Return the task of each step in words: the episode's, that of its instructions, or the default."""
    whole = episode.metadata.get("task")
    if whole:
        return [str(whole)] * len(episode)
    for name, texts in episode.infos.items():
        if name.rpartition("/")[2] in INSTRUCTIONS and isinstance(texts, list):
            return [str(text) or default for text in texts]
    return [default] * len(episode)


def _kept_schema(schema: Schema) -> Schema:
    """Return the columns of a dataset without those that LeRobot's tables cannot hold."""
    extras = {
        name: spec
        for name, spec in schema.extras.items()
        if schema.variable.get(name) != "array"
        and 0 not in spec.shape
        and len(spec.shape) <= MOST_AXES
    }
    variable = {name: kind for name, kind in schema.variable.items() if name in extras}
    return dataclasses.replace(schema, extras=extras, variable=variable)


def _features(schema: Schema) -> dict[str, str]:
    """Return the column of steps that each feature holds."""
    features: dict[str, str] = {}
    columns = schema.columns()
    for column in [*columns, *schema.variable]:
        root, _, rest = column.partition("/")
        part = rest.replace("/", ".")
        if root == "episodes" or "@" in column:
            continue
        if root == "observations":
            whole = "state" if image_shape(columns[column]) is None else "image"
            name = f"observation.{part or whole}"
        elif root == "actions":
            name = f"action.{part}" if part else "action"
        elif column == TIME and columns[column] == ColumnSpec(TIME, np.dtype(np.float32), ()):
            name = "timestamp"
        elif root == "infos":
            name = f"infos.{part}" if part.startswith(RESERVED) or part in COUNTERS else part
        else:
            name = FLAGS[column]
        while name in features:
            name += "_"
        features[name] = column
    return features


def _frames_per_second(episode: Episode) -> int:
    """Return how many steps a second has."""
    times = episode.infos.get(TIME.removeprefix("infos/"))
    if isinstance(times, np.ndarray) and times.ndim == 1 and len(times) > 1:
        step = float(np.median(np.diff(times.astype(np.float64))))
        if step > 0:
            return max(1, round(1 / step))
    return 1


def _rows(episode: Episode, kept: Kept, fps: int) -> dict[str, Any]:
    """Return the rows of each feature, but for what depends on other episodes."""
    schema, count = kept.schema, len(episode)
    block: dict[str, Any] = {
        name: values[:-1]
        for name, values in flatten(
            schema.observation_space, "observations", episode.observations, count + 1
        ).items()
    }
    block |= flatten(schema.action_space, "actions", episode.actions, count)
    block |= {name: getattr(episode, name) for name in FLAGS}
    block |= {f"infos/{name}": values for name, values in episode.infos.items()}
    frames = np.arange(count)
    return {
        "timestamp": (frames / fps).astype(np.float32),
        **{feature: block[column] for feature, column in kept.features.items()},
        "next.done": episode.terminations | episode.truncations,
        "frame_index": frames,
    }


def _details(episode: Episode, schema: Schema) -> dict[str, Any]:
    """Return what is known of an episode and has no place in LeRobot's layout, a row of each."""
    finals = flatten(
        schema.observation_space, "observations", episode.observations, len(episode) + 1
    )
    found: dict[str, Any] = {FINAL + name: values[-1:] for name, values in finals.items()}
    found[SEED] = np.array([-1 if episode.seed is None else episode.seed])
    for name in schema.extras:
        if name.startswith("episodes/"):
            value = episode.metadata[name.removeprefix("episodes/")]
            kind = schema.extras[name].dtype
            one = [value] if isinstance(value, str) else np.asarray(value, kind)[None]
            found[EPISODE + name.removeprefix("episodes/")] = one
    return found


def _robot(kept: Kept) -> str:
    """Return the robot that an import of a LeRobotDataset tells, or the id of the environment."""
    told = ROBOT.search(kept.description)
    if told:
        return told[1]
    return "" if kept.environment is None else kept.environment.id


def _info(kept: Kept, fps: int, episodes: int, steps: int, tasks: int) -> dict[str, Any]:
    """Return what `meta/info.json` holds."""
    schema = kept.schema
    columns = schema.columns()
    features: dict[str, Any] = {"next.done": _feature("bool", ())}
    for feature, column in kept.features.items():
        if column in schema.variable:
            features[feature] = _feature("string", ())
        elif image_shape(columns[column]):
            names = ["height", "width", "channels"]
            features[feature] = _feature("image", columns[column].shape) | {"names": names}
        else:
            features[feature] = _feature(str(columns[column].dtype), columns[column].shape)
            features[feature]["names"] = kept.dimension_names.get(column)
    for counter in COUNTERS:
        features[counter] = _feature("float32" if counter == "timestamp" else "int64", ())
    return {
        "codebase_version": "v3.0",
        "robot_type": _robot(kept),
        "total_episodes": episodes,
        "total_frames": steps,
        "total_tasks": tasks,
        "chunks_size": FILES_OF_CHUNK,
        "data_files_size_in_mb": FILE_BYTES // 10**6,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{episodes}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": features,
    }


def _feature(dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) or [1], "names": None}


def _write_tasks(path: Path, tasks: list[str]) -> None:
    """Write the tasks by their numbers, as pandas writes a table whose index is the task."""
    import pyarrow as pa
    import pyarrow.parquet

    def described(name: str, pandas_type: str, numpy_type: str) -> dict[str, Any]:
        types = {"pandas_type": pandas_type, "numpy_type": numpy_type, "metadata": None}
        return {"name": name, "field_name": name, **types}

    columns = [described("task_index", "int64", "int64"), described("task", "unicode", "object")]
    meaning = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": columns,
        "pandas_version": "2.0.0",
    }
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": tasks})
    table = table.replace_schema_metadata({"pandas": json.dumps(meaning)})
    pyarrow.parquet.write_table(table, path, write_page_checksum=True)


class _Tables:
    """Writes rows into Parquet files of bounded size, all rows that come together into one of them."""

    def __init__(self, folder: Path, where: str) -> None:
        """Begin in an empty folder; `where` is what errors call the dataset."""
        self._folder, self._where = folder, where
        self._number, self._held_bytes = -1, 0
        self._held: list[Mapping[str, Any]] = []
        self._file: BinaryIO | None = None
        self._writer: Any = None

    def next_place(self) -> tuple[int, int]:
        """Return chunk and file of the rows that are written next."""
        if self._file is None or self._file.tell() >= FILE_BYTES:
            self.close()
            self._number += 1
            path = self._folder / PART.format(*divmod(self._number, FILES_OF_CHUNK))
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
        return divmod(self._number, FILES_OF_CHUNK)

    def write(self, rows: Mapping[str, Any]) -> None:
        """Write rows of all columns; all calls have the same."""
        self._held.append(rows)
        self._held_bytes += _size(rows)
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
        rows = {name: _joined([one[name] for one in self._held]) for name in self._held[0]}
        count = len(next(iter(rows.values())))
        step = max(1, GROUP_BYTES * count // max(1, self._held_bytes))
        for start in range(0, count, step):
            columns = {
                name: _column(values[start : start + step], f"{self._where}, {name}")
                for name, values in rows.items()
            }
            table = pa.table(columns)
            if self._writer is None:
                self._writer = pyarrow.parquet.ParquetWriter(
                    self._file, table.schema, write_page_checksum=True
                )
            self._writer.write_table(table)
        self._held, self._held_bytes = [], 0


def _size(rows: Mapping[str, Any]) -> int:
    return sum(one.nbytes for one in rows.values() if isinstance(one, np.ndarray))


def _joined(parts: list[Any]) -> Any:
    """Return rows that follow each other as one array, or one list."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [one for part in parts for one in part]


def _are_images(values: np.ndarray) -> bool:
    return image_shape(ColumnSpec("", values.dtype, values.shape[1:])) is not None


def _column(values: Any, where: str) -> Any:
    """Return rows as an array of Arrow: images, texts or lists of texts, numbers, nested lists of them."""
    import pyarrow as pa

    if not isinstance(values, np.ndarray):
        return pa.array(
            values, pa.list_(pa.string()) if isinstance(values[0], list) else pa.string()
        )
    if _are_images(values):
        return encoded_images(values, where)
    shape = values.shape[1:]
    found = pa.array(np.ascontiguousarray(values).reshape(-1))
    if math.prod(shape) == 1 and len(shape) < 2:
        return found
    if len(shape) == 1:
        return pa.FixedSizeListArray.from_arrays(found, shape[0])
    for size in reversed(shape):
        offsets = np.arange(0, len(found) + 1, size, dtype=np.int32)
        found = pa.ListArray.from_arrays(offsets, found)
    return found
