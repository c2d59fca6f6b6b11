"""Writes datasets as LeRobotDatasets of version 3.0 or 2.1: Parquet tables, images in them as PNG.

    data/chunk-000/file-000.parquet            a row for each step, a column for each feature
    meta/info.json  stats.json  tasks.parquet  features, statistics, tasks in words
    meta/episodes/chunk-000/file-000.parquet   a row for each episode
    meta/orlog.json                            what LeRobot has no place for: `exports.py`

With `--codebase v2.1`, which many tools still read, each episode has files of its own:

    data/chunk-000/episode_000000.parquet
    meta/episodes.jsonl  episodes_stats.jsonl  tasks.jsonl  stats.json
    meta/orlog/chunk-000/file-000.parquet      what `orlog.json` needs of each episode

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
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.columns.schema import Schema
from orlog.datasets.columns.values import flatten
from orlog.datasets.formats.lerobot.episode_statistics import (
    Statistics,
    joined_statistics,
    statistics_of,
    stored_statistics,
    with_quantiles,
)
from orlog.datasets.formats.lerobot.exports import (
    DETAILS,
    EPISODE,
    FINAL,
    SEED,
    image_shape,
    write_kept,
)
from orlog.datasets.formats.lerobot.files import FILES_OF_CHUNK, TableFiles, VideoFiles, are_images
from orlog.datasets.formats.lerobot.metadata import COUNTERS, INFO, V2, V3, VIDEO_PATHS
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError
from orlog.manifests.columns import ColumnSpec

PART = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATHS = {
    V3: f"data/{PART}",
    V2: "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
}
FILE_BYTES = 10**8
MOST_AXES = 5
MOST_FRAMES = 10**6  # a second
RESERVED = (
    "observation",
    "action",
    "task",
    *(f"next.{name}" for name in ("reward", "done", "terminated", "truncated", "success")),
)
FLAGS = {
    "rewards": "next.reward",
    "terminations": "next.terminated",
    "truncations": "next.truncated",
}
TIME, SUCCESS = "infos/timestamp", "infos/success"
ROBOT = re.compile(r"LeRobotDataset v[\d.]+, \S+ frames per second, robot (.+?)\.(?: |$)")
INSTRUCTIONS = ("language_instruction", "natural_language_instruction", "instruction", "task")


def lerobot_losses(dataset: Dataset) -> list[str]:
    """Say what LeRobotDatasets cannot hold.

    Raises SchemaError if values of a space that they have no place for.
    """
    schema = dataset.schema
    kept = _kept_schema(schema)
    for name, spec in kept.columns().items():
        fits = "@" not in name and len(spec.shape) <= MOST_AXES and 0 not in spec.shape
        if name.startswith(("observations", "actions")) and not fits:
            raise SchemaError(
                f"{dataset.name}: LeRobot's tables hold arrays of numbers of one shape, with at most "
                f"{MOST_AXES} axes; {name.partition('@')[0]} is none."
            )
    lost = sorted(set(schema.extras) - set(kept.extras))
    return [f"These columns are lost: {', '.join(lost)}."] if lost else []


def write_lerobot(
    dataset: Dataset,
    folder: Path,
    progress: Callable[[int, int], None],
    *,
    video: bool = False,
    rate: float | None = None,
    codebase: str = V3,
) -> None:
    """Write a dataset into a new folder.

    Frames become images, or with `video` videos, which changes them. `rate` is steps a second, a whole
    number; without, what `infos/timestamp` tells, or 1. `codebase` is the version of LeRobot's layout.
    """
    if codebase not in (V3, V2):
        raise SchemaError(f"{dataset.name}: codebase={codebase!r:.50}: orlog writes {V3} and {V2}.")
    if rate is not None and not (1 <= rate <= MOST_FRAMES and rate == int(rate)):
        raise SchemaError(
            f"{dataset.name}: LeRobot counts whole frames a second, 1 to {MOST_FRAMES:,}, found the rate {rate:g}."
        )
    schema, manifest = _kept_schema(dataset.schema), dataset.manifest
    columns, is_v3 = schema.columns(), codebase == V3
    features = _features(schema)
    cameras = [
        feature
        for feature, column in features.items()
        if video and column in columns and image_shape(columns[column])
    ]
    described = _described(schema, features, dataset.dimension_names, cameras)
    # An episode of one step does not tell how long a step takes.
    rates = (_frames_per_second(episode) for episode in dataset if len(episode) > 1)
    fps, total = next(rates, 1) if rate is None else int(rate), 0
    environment = "" if manifest.environment is None else manifest.environment.id
    tasks: dict[str, int] = {}
    statistics: dict[str, Statistics] = {}
    (folder / "meta").mkdir()
    with contextlib.ExitStack() as stack:
        kinds, largest = "" if is_v3 else _kinds_of(described), FILE_BYTES if is_v3 else 0
        data = TableFiles(folder, DATA_PATHS[codebase], largest, dataset.name, kinds)
        stack.enter_context(contextlib.closing(data))
        metadata = stack.enter_context(_Metadata(folder, dataset.name, is_v3=is_v3))
        films = {
            camera: VideoFiles(folder, camera, fps, VIDEO_PATHS[codebase], alone=not is_v3)
            for camera in cameras
        }
        for film in films.values():
            stack.callback(film.close)
        for number, episode in enumerate(dataset):
            words = _tasks(episode, environment or dataset.name)
            rows = _rows(episode, schema, features, fps)
            count = len(episode)
            rows["episode_index"] = np.full(count, number)
            rows["index"] = np.arange(total, total + count)
            rows["task_index"] = np.array([tasks.setdefault(text, len(tasks)) for text in words])
            of_episode = {
                name: statistics_of(values, are_images=are_images(values))
                for name, values in rows.items()
                if isinstance(values, np.ndarray)
            }
            for name, new in of_episode.items():
                known = statistics.get(name)
                statistics[name] = new if known is None else joined_statistics(known, new)
            chunk, file = data.next_place()
            lies: dict[str, Any] = {"dataset_from_index": total, "dataset_to_index": total + count}
            lies |= {"data/chunk_index": chunk, "data/file_index": file}
            for camera, film in films.items():
                lies |= film.add(rows.pop(camera))
            data.write(rows)
            metadata.add(
                {"episode_index": number, "tasks": list(dict.fromkeys(words)), "length": count},
                of_episode,
                lies,
                {} if cameras else _details(episode, schema),
            )
            total += count
            progress(total, dataset.total_steps)
    robot = ROBOT.search(manifest.description)
    episodes = dataset.total_episodes
    info = {
        "codebase_version": codebase,
        "robot_type": robot[1] if robot else environment,
        "total_episodes": episodes,
        "total_frames": total,
        "total_tasks": len(tasks),
        "chunks_size": FILES_OF_CHUNK,
        **({"data_files_size_in_mb": FILE_BYTES // 10**6} if is_v3 else {}),
        **({"video_files_size_in_mb": 200} if is_v3 else {}),
        "fps": fps,
        "splits": {"train": f"0:{episodes}"},
        "data_path": DATA_PATHS[codebase],
        "video_path": VIDEO_PATHS[codebase] if cameras else None,
        "features": described,
    }
    if not is_v3:
        info |= {"total_chunks": -(-episodes // FILES_OF_CHUNK)}
        info |= {"total_videos": episodes * len(cameras)}
    stats = with_quantiles(statistics, sorted((folder / "data").rglob("*.parquet")), dataset.name)
    (folder / INFO).write_text(json.dumps(info, indent=4), "utf-8")
    (folder / "meta" / "stats.json").write_text(json.dumps(_listed(stats), indent=4), "utf-8")
    _write_tasks(folder / "meta", list(tasks), is_v3=is_v3)
    if not cameras:  # what a video shows is not what was recorded
        write_kept(folder, schema, features, manifest)


class _Metadata(contextlib.ExitStack):
    """Writes what is known of each episode: rows of a table in version 3.0, lines of JSON before."""

    def __init__(self, folder: Path, where: str, *, is_v3: bool) -> None:
        """Begin; `where` is what errors call the dataset."""
        super().__init__()
        self._is_v3, template = is_v3, f"{'meta/episodes' if is_v3 else DETAILS}/{PART}"
        self._table = TableFiles(folder, template, FILE_BYTES, where)
        self.enter_context(contextlib.closing(self._table))
        self._lines: list[TextIO] = []
        for name in () if is_v3 else ("episodes", "episodes_stats"):
            file = (folder / "meta" / f"{name}.jsonl").open("w", encoding="utf-8")
            self._lines.append(self.enter_context(file))

    def add(
        self,
        known: Mapping[str, Any],
        statistics: Mapping[str, Statistics],
        places: Mapping[str, Any],
        details: Mapping[str, Any],
    ) -> None:
        """Add an episode: number, tasks and length, its statistics, where it lies, and what orlog keeps of it."""
        if not self._is_v3:
            stats = {"episode_index": known["episode_index"], "stats": _listed(statistics)}
            for file, line in zip(self._lines, (known, stats), strict=True):
                file.write(json.dumps(line) + "\n")
            if details:
                self._table.next_place()
                self._table.write(details)
            return
        chunk, number = self._table.next_place()
        numbers = {name: value for name, value in known.items() if name != "tasks"}
        own = {"meta/episodes/chunk_index": chunk, "meta/episodes/file_index": number}
        self._table.write(
            {
                **_single_rows(numbers),
                "tasks": [known["tasks"]],
                **_single_rows(own),
                **{
                    f"stats/{name}/{key}": value[None]
                    for name, one in statistics.items()
                    for key, value in stored_statistics(one).items()
                },
                **_single_rows(places),
                **details,
            }
        )


def _single_rows(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array([value]) for name, value in values.items()}


def _listed(statistics: Mapping[str, Statistics]) -> dict[str, Any]:
    """Return the statistics of features as JSON has them."""
    return {
        name: {key: value.tolist() for key, value in stored_statistics(one).items()}
        for name, one in statistics.items()
    }


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
        elif column == TIME and columns.get(column) == ColumnSpec(TIME, np.dtype(np.float32), ()):
            name = "timestamp"
        elif column == SUCCESS and column in columns and columns[column].shape == ():
            name = "next.success"
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
            return max(1, round(min(1 / step, MOST_FRAMES)))
    return 1


def _rows(
    episode: Episode, schema: Schema, features: Mapping[str, str], fps: int
) -> dict[str, Any]:
    """Return the rows of each feature, but for what depends on other episodes."""
    count = len(episode)
    block: dict[str, Any] = {
        name: values[:-1] for name, values in _flat_observations(episode, schema).items()
    }
    block |= flatten(schema.action_space, "actions", episode.actions, count)
    block |= {name: getattr(episode, name) for name in FLAGS}
    block |= {f"infos/{name}": values for name, values in episode.infos.items()}
    frames = np.arange(count)
    return {
        "timestamp": (frames / fps).astype(np.float32),
        **{feature: block[column] for feature, column in features.items()},
        "next.done": episode.terminations | episode.truncations,
        "frame_index": frames,
    }


def _flat_observations(episode: Episode, schema: Schema) -> Mapping[str, np.ndarray]:
    return flatten(schema.observation_space, "observations", episode.observations, len(episode) + 1)


def _details(episode: Episode, schema: Schema) -> dict[str, Any]:
    """Return what is known of an episode and has no place in LeRobot's layout, a row of each."""
    finals = _flat_observations(episode, schema)
    details: dict[str, Any] = {FINAL + name: values[-1:] for name, values in finals.items()}
    details[SEED] = np.array([-1 if episode.seed is None else episode.seed])
    for column, spec in schema.extras.items():
        root, _, name = column.partition("/")
        if root == "episodes":
            value = episode.metadata[name]
            is_text = isinstance(value, str)
            details[EPISODE + name] = [value] if is_text else np.asarray(value, spec.dtype)[None]
    return details


def _described(
    schema: Schema,
    features: Mapping[str, str],
    names: Mapping[str, list[str]],
    cameras: Sequence[str],
) -> dict[str, Any]:
    """Return what `meta/info.json` says of each feature; `names` are those of numbers, `cameras` are videos."""
    columns = schema.columns()
    described: dict[str, Any] = {"next.done": _feature("bool", ())}
    for feature, column in features.items():
        if column in schema.variable:
            described[feature] = _feature("string", ())
        elif image_shape(columns[column]):
            kind = "video" if feature in cameras else "image"
            described[feature] = _feature(kind, columns[column].shape)
            described[feature]["names"] = ["height", "width", "channels"]
        else:
            described[feature] = _feature(str(columns[column].dtype), columns[column].shape)
            described[feature]["names"] = names.get(column)
    for counter in COUNTERS:
        described[counter] = _feature("float32" if counter == "timestamp" else "int64", ())
    return described


def _feature(dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) or [1], "names": None}


def _kinds_of(features: Mapping[str, Any]) -> str:
    """Return what Hugging Face's datasets are told of columns, by what `info.json` says of them."""
    kinds: dict[str, Any] = {}
    for name, feature in features.items():
        shape, value = feature["shape"], {"dtype": feature["dtype"], "_type": "Value"}
        if feature["dtype"] == "image":
            kinds[name] = {"_type": "Image"}
        elif feature["dtype"] == "video":
            continue
        elif shape == [1]:
            kinds[name] = value
        elif len(shape) == 1:
            kinds[name] = {"feature": value, "length": shape[0], "_type": "Sequence"}
        else:
            kinds[name] = {**value, "shape": shape, "_type": f"Array{len(shape)}D"}
    return json.dumps({"info": {"features": kinds}})


def _write_tasks(folder: Path, tasks: list[str], *, is_v3: bool) -> None:
    """Write the tasks by their numbers: lines of JSON, or as pandas writes a table whose index is the task."""
    import pyarrow as pa
    import pyarrow.parquet

    if not is_v3:
        lines = [{"task_index": number, "task": task} for number, task in enumerate(tasks)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "tasks.jsonl").write_text(text, "utf-8")
        return
    keys = ("name", "field_name", "pandas_type", "numpy_type", "metadata")
    columns = [
        dict(zip(keys, (*values, None), strict=True))
        for values in (
            ("task_index", "task_index", "int64", "int64"),
            ("task", "task", "unicode", "object"),
        )
    ]
    meaning = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": columns,
        "pandas_version": "2.0.0",
    }
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": tasks})
    table = table.replace_schema_metadata({"pandas": json.dumps(meaning)})
    pyarrow.parquet.write_table(table, folder / "tasks.parquet", write_page_checksum=True)
