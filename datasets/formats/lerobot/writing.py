"""Writes datasets as LeRobotDatasets of version 3.0 or 2.1: Parquet tables, images in them as PNG.

    data/chunk-000/file-000.parquet            a row for each step, a column for each feature
    meta/info.json  stats.json  tasks.parquet  features, statistics, tasks in words
    meta/episodes/chunk-000/file-000.parquet   a row for each episode
    meta/orlog.json                            what LeRobot has no place for: spaces, dtypes, which feature is which column

With `--codebase v2.1`, which many tools still read, each episode has files of its own:

    data/chunk-000/episode_000000.parquet
    meta/episodes.jsonl  episodes_stats.jsonl  tasks.jsonl  stats.json
    meta/orlog/chunk-000/file-000.parquet      what `orlog.json` needs of each episode

Beside each episode lie `orlog/final/COLUMN`, its final observation, `orlog/seed`, of the reset, -1 if it is not known, and
`orlog/episodes/NAME`; LeRobot passes over these. Flags are `next.terminated` and `next.truncated`; `next.done` is either.

A column of steps is one feature: `observations/NAME` is `observation.NAME`, or `observation.state` and
`observation.image` where there is only one, `actions` is `action`, `rewards` is `next.reward`, and `infos/NAME` is
`NAME`. `episodes/task` says the task, or instructions by step, as RLDS has them; without, that is the environment's id. LeRobot
counts in seconds: `infos/timestamp` tells how many frames a second has, as in imported LeRobotDatasets, or `--rate` does;
without, a step takes one. Maps of depth with parameters are LeRobot 0.6's, with all bits (`depth.py`). Language columns are written as LeRobot 0.6 has them (`language.py`). With `--video` frames are
MP4 files, and the dataset is any LeRobotDataset, without `orlog.json`.

Statistics are those of all steps, quantiles too: those of single episodes cannot be joined (lerobot#4156), so the tables
that were written are read once more, a feature at a time. Images have one number a channel, in [0, 1].
"""

from __future__ import annotations

import contextlib
import dataclasses
import fractions
import functools
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

import msgspec
import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.columns.schema import Schema
from orlog.datasets.columns.values import flatten, metres_of
from orlog.datasets.formats.array_files import pillow
from orlog.datasets.formats.arrow_files import array_of, parquet_batches
from orlog.datasets.formats.lerobot.copying import FILES_OF_CHUNK, CopiedVideos
from orlog.datasets.formats.lerobot.depth import LARGEST, PARAMETERS, PIXELS, depth_features, luma_frame
from orlog.datasets.formats.lerobot.language import EVENTS, PERSISTENT, language_array, language_fields
from orlog.datasets.formats.lerobot.metadata import COUNTERS, INFO, V2, V3, VIDEO_COLUMNS, VIDEO_PATHS
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.videos import import_av
from orlog.errors import SchemaError
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.manifest import EnvironmentRecord
from orlog.manifests.spaces import space_to_json

KEPT = Path("meta") / "orlog.json"
DETAILS = "meta/orlog"  # in version 2.1, whose episodes are no table
FINAL, SEED, EPISODE = "orlog/final/", "orlog/seed", "orlog/episodes/"
PART = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATHS = {V3: f"data/{PART}", V2: "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"}
FILE_BYTES, VIDEO_BYTES = 10**8, 2 * 10**8
GROUP_BYTES, MOST_HELD = 2**24, 100  # of rows that are written together
MOST_AXES = 5
MOST_FRAMES = 10**6  # a second
BETWEEN_KEY_FRAMES = "2"  # as LeRobot has it: any frame is found by decoding one more
QUALITY = "18"  # of H.264's scale from 0 to 51, which the eye takes for equal
RESERVED = (
    "observation",
    "action",
    "task",
    *(f"next.{name}" for name in ("reward", "done", "terminated", "truncated", "success")),
)
FLAGS = {"rewards": "next.reward", "terminations": "next.terminated", "truncations": "next.truncated"}
TIME, SUCCESS = "infos/timestamp", "infos/success"
ROBOT = re.compile(r"LeRobotDataset v[\d.]+, \S+ frames per second, robot (.+?)\.(?: |$)")
INSTRUCTIONS = ("language_instruction", "natural_language_instruction", "instruction", "task")
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
SHARES = list(QUANTILES.values())
MOST_NUMBERS = 1024  # of a row that has quantiles
LEVELS = np.arange(256) / 255
ROWS = 2**14
COLUMN_BYTES = 2**28  # of a feature's numbers that are in memory at once
Statistics = dict[str, np.ndarray]
"""`min`, `max`, `mean`, `variance`, `count` and quantiles, of the shape of a row, and of images (channels, 1, 1); of these
`levels` too, (channels, 256): how often each occurs."""


Languages = Mapping[str, Sequence[str]]
"""The fields of the rows of each language column."""


class KeptExtra(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column of the author's: what `Schema.extras` and `Schema.variable` say of it."""

    dtype: str
    shape: list[int]
    kind: Literal["", "text"] = ""


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `meta/orlog.json` holds; `features` says which column each feature holds."""

    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    reward_dtype: str
    features: dict[str, str]
    extras: dict[str, KeptExtra]
    environment: EnvironmentRecord | None
    description: str
    license: str


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

    Frames become images, or with `video` videos, which changes them; kept videos are copied without it. `rate` is steps a second, a whole
    number; without, what `infos/timestamp` tells, or 1. `codebase` is the version of LeRobot's layout.
    """
    if codebase not in (V3, V2):
        raise SchemaError(f"{dataset.name}: codebase={codebase!r:.50}: orlog writes {V3} and {V2}.")
    if rate is not None and not (1 <= rate <= MOST_FRAMES and rate == int(rate)):
        raise SchemaError(
            f"{dataset.name}: LeRobot counts whole frames a second, 1 to {MOST_FRAMES:,}, found the rate {rate:g}."
        )
    schema, manifest, is_v3 = _kept_schema(dataset.schema), dataset.manifest, codebase == V3
    languages = _languages(dataset) if is_v3 else {}
    columns, features = schema.columns(), _features(schema)
    if is_v3 and EVENTS in features and EVENTS not in languages:  # a name for such rows alone
        features[f"infos.{EVENTS}"] = features.pop(EVENTS)
    cameras = [
        feature
        for feature, column in features.items()
        if column in columns and image_shape(columns[column]) and (video or column in dataset.videos)
    ]
    described = _described(schema, features, dataset.dimension_names, cameras)
    described |= {name: {"dtype": "language", "shape": [1], "names": None} for name in languages}
    depths = depth_features(dataset, columns) if is_v3 else {}
    deep = {feature: depths[column] for feature, column in features.items() if column in depths}
    described |= deep
    # An episode of one step does not tell how long a step takes.
    rates = (_frames_per_second(episode) for episode in dataset if len(episode) > 1)
    fps, total = next(rates, 1) if rate is None else int(rate), 0
    environment = "" if manifest.environment is None else manifest.environment.id
    tasks: dict[str, int] = {}
    statistics: dict[str, Statistics] = {}
    (folder / "meta").mkdir()
    with contextlib.ExitStack() as stack:
        kinds, largest = "" if is_v3 else _kinds_of(described), FILE_BYTES if is_v3 else 0
        data = TableFiles(folder, DATA_PATHS[codebase], largest, dataset.name, kinds, languages)
        data.deep = deep
        stack.callback(data.close)
        metadata = _Metadata(folder, dataset.name, is_v3=is_v3)
        stack.callback(metadata.close)
        films: dict[str, VideoFiles | CopiedVideos] = {}
        for camera in cameras:
            template = VIDEO_PATHS[codebase]
            films[camera] = VideoFiles(folder, camera, fps, template, alone=not is_v3)
            if not video:
                path = functools.partial(_video_path, folder, template, camera)
                films[camera] = CopiedVideos(dataset, features[camera], camera, fps, path, not is_v3)
        for feature in (feature for feature, description in deep.items() if description["dtype"] == "video"):
            films[feature] = VideoFiles(folder, feature, fps, VIDEO_PATHS[codebase], alone=False, deep=True)
        for film in films.values():
            stack.callback(film.close)
        for number, episode in enumerate(dataset):
            words, count = _tasks(episode, environment or dataset.name), len(episode)
            rows = _rows(episode, schema, features, fps)
            if PERSISTENT in languages:
                rows[PERSISTENT] = [str(episode.metadata[PERSISTENT])] * count
            rows["episode_index"] = np.full(count, number)
            rows["index"] = np.arange(total, total + count)
            rows["task_index"] = np.array([tasks.setdefault(text, len(tasks)) for text in words])
            of_episode = {
                name: _statistics_of_depth(values, deep[name]["info"]) if name in deep else statistics_of(values)
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
        "video_path": VIDEO_PATHS[codebase] if films else None,
        "features": described,
    }
    if not is_v3:
        info |= {"total_chunks": -(-episodes // FILES_OF_CHUNK)}
        info |= {"total_videos": episodes * len(cameras)}
    numbers = {name: summary for name, summary in statistics.items() if name not in deep}
    stats = statistics | with_quantiles(numbers, sorted((folder / "data").rglob("*.parquet")), dataset.name)
    (folder / INFO).write_text(json.dumps(info, indent=4), "utf-8")
    (folder / "meta" / "stats.json").write_text(json.dumps(_listed(stats), indent=4), "utf-8")
    _write_tasks(folder / "meta", list(tasks), is_v3=is_v3)
    if not cameras:  # what a video shows is not what was recorded
        kept = Kept(
            observation_space=space_to_json(schema.observation_space),
            action_space=space_to_json(schema.action_space),
            reward_dtype=str(schema.reward_dtype),
            features=features,
            extras={
                name: KeptExtra(str(spec.dtype), list(spec.shape), "text" if name in schema.variable else "")
                for name, spec in schema.extras.items()
            },
            environment=manifest.environment,
            description=manifest.description,
            license=manifest.license,
        )
        (folder / KEPT).write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1))


def _video_path(folder: Path, template: str, camera: str, number: int) -> Path:
    return folder / _numbered(template, number, camera)


class _Metadata:
    """Writes what is known of each episode: rows of a table in version 3.0, lines of JSON before."""

    def __init__(self, folder: Path, where: str, *, is_v3: bool) -> None:
        template = f"{'meta/episodes' if is_v3 else DETAILS}/{PART}"
        self._table = TableFiles(folder, template, FILE_BYTES, where)
        self._lines: list[TextIO] = []
        for name in () if is_v3 else ("episodes", "episodes_stats"):
            self._lines.append((folder / "meta" / f"{name}.jsonl").open("w", encoding="utf-8"))

    def add(
        self,
        known: Mapping[str, Any],
        statistics: Mapping[str, Statistics],
        places: Mapping[str, Any],
        details: Mapping[str, Any],
    ) -> None:
        """Add an episode: number, tasks and length, its statistics, where it lies, and what orlog keeps of it."""
        if self._lines:
            stats = {"episode_index": known["episode_index"], "stats": _listed(statistics)}
            for file, line in zip(self._lines, (known, stats), strict=True):
                file.write(json.dumps(line) + "\n")
            if details:
                self._table.next_place()
                self._table.write(details)
            return
        chunk, number = self._table.next_place()
        single = {"episode_index": known["episode_index"], "length": known["length"]}
        own = {"meta/episodes/chunk_index": chunk, "meta/episodes/file_index": number}
        self._table.write(
            {
                **_single_rows(single),
                "tasks": [known["tasks"]],
                **_single_rows(own),
                **{
                    f"stats/{name}/{key}": value[None]
                    for name, values in statistics.items()
                    for key, value in _stored_statistics(values).items()
                },
                **_single_rows(places),
                **details,
            }
        )

    def close(self) -> None:
        self._table.close()
        for file in self._lines:
            file.close()


def _single_rows(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array([value]) for name, value in values.items()}


def _tasks(episode: Episode, default: str) -> list[str]:
    """Return the task of each step in words: the episode's, that of its instructions, or the default."""
    whole = episode.metadata.get("task")
    if whole:
        return [str(whole)] * len(episode)
    for name, texts in episode.infos.items():
        if name.rpartition("/")[2] in INSTRUCTIONS and isinstance(texts, list):
            return [str(text) or default for text in texts]
    return [default] * len(episode)


def _languages(dataset: Dataset) -> dict[str, tuple[str, ...]]:
    """Return the language columns that LeRobot's tables can give back as they are, and the fields of their rows."""
    columns, fields = {PERSISTENT: f"episodes/{PERSISTENT}", EVENTS: f"infos/{EVENTS}"}, {}
    for name, column in columns.items():
        if dataset.schema.variable.get(column) == "text":
            view = dataset.select_columns([column])
            texts = ([str(episode.metadata[name])] if name == PERSISTENT else episode.infos[name] for episode in view)
            fields[name] = language_fields(itertools.chain.from_iterable(texts), name)
    return {name: several for name, several in fields.items() if several}


def _kept_schema(schema: Schema) -> Schema:
    extras = {
        name: spec
        for name, spec in schema.extras.items()
        if schema.variable.get(name) != "array" and 0 not in spec.shape and len(spec.shape) <= MOST_AXES
    }
    variable = {name: kind for name, kind in schema.variable.items() if name in extras}
    return dataclasses.replace(schema, extras=extras, variable=variable)


def _features(schema: Schema) -> dict[str, str]:
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


def image_shape(spec: ColumnSpec) -> tuple[int, ...] | None:
    """Return height, width and channels of a column that is written as images; None of any other."""
    fits = spec.dtype == np.uint8 and len(spec.shape) == 3 and spec.shape[2] in (1, 3)
    return spec.shape if fits and 0 not in spec.shape else None


def _are_images(rows: np.ndarray) -> bool:
    return image_shape(ColumnSpec("", rows.dtype, rows.shape[1:])) is not None


def _frames_per_second(episode: Episode) -> int:
    times = episode.infos.get(TIME.removeprefix("infos/"))
    if isinstance(times, np.ndarray) and times.ndim == 1 and len(times) > 1:
        step = float(np.median(np.diff(times.astype(np.float64))))
        if step > 0:
            return max(1, round(min(1 / step, MOST_FRAMES)))
    return 1


def _rows(episode: Episode, schema: Schema, features: Mapping[str, str], fps: int) -> dict[str, Any]:
    """Return the rows of each feature, but for what depends on other episodes."""
    count = len(episode)
    block: dict[str, Any] = {name: values[:-1] for name, values in _flat_observations(episode, schema).items()}
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
    schema: Schema, features: Mapping[str, str], names: Mapping[str, list[str]], cameras: Sequence[str]
) -> dict[str, Any]:
    """Return what `meta/info.json` says of each feature; `names` are those of numbers, `cameras` are videos."""
    columns = schema.columns()

    def feature(dtype: str, shape: tuple[int, ...], names: list[str] | None = None) -> Any:
        return {"dtype": dtype, "shape": list(shape) or [1], "names": names}

    described = {"next.done": feature("bool", ())}
    for name, column in features.items():
        if column in schema.variable:
            described[name] = feature("string", ())
        elif image_shape(columns[column]):
            axes = ["height", "width", "channels"]
            kind = "video" if name in cameras else "image"
            described[name] = feature(kind, columns[column].shape, axes)
        else:
            spec = columns[column]
            described[name] = feature(str(spec.dtype), spec.shape, names.get(column))
    for counter in COUNTERS:
        described[counter] = feature("float32" if counter == "timestamp" else "int64", ())
    return described


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
    kinds = (("task_index", "task_index", "int64", "int64", None), ("task", "task", "unicode", "object", None))
    meaning = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [dict(zip(keys, values, strict=True)) for values in kinds],
        "pandas_version": "2.0.0",
    }
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": tasks})
    table = table.replace_schema_metadata({"pandas": json.dumps(meaning)})
    pyarrow.parquet.write_table(table, folder / "tasks.parquet", write_page_checksum=True)


def _numbered(template: str, number: int, camera: str = "") -> str:
    """Return the path of a file by its number, which is that of an episode where each has a file of its own."""
    chunk, file = divmod(number, FILES_OF_CHUNK)
    fields = {"chunk_index": chunk, "file_index": file, "video_key": camera}
    return template.format(**fields, episode_chunk=chunk, episode_index=number)


class TableFiles:
    """Writes rows into Parquet files of bounded size, all rows that come together into one of them."""

    def __init__(
        self, root: Path, template: str, largest: int, where: str, kinds: str = "", languages: Languages | None = None
    ) -> None:
        """Take the path of the files, and from how many bytes on one is full: with 0 each call of `write` fills one.

        `kinds` is what Hugging Face's datasets are told of the columns, as JSON; `languages` are the language columns.
        """
        self._root, self._template, self._largest, self._where = root, template, largest, where
        self._kinds, self._languages = kinds, languages or {}
        self.deep: Collection[str] = ()  # features that are maps of depth
        self._number, self._held_bytes = -1, 0
        self._held: list[Mapping[str, Any]] = []
        self._file: BinaryIO | None = None
        self._writer: Any = None

    def next_place(self) -> tuple[int, int]:
        """Return chunk and file of the rows that are written next."""
        if self._file is None or self._file.tell() >= self._largest:
            self.close()
            self._number += 1
            path = self._root / _numbered(self._template, self._number)
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
        import pyarrow as pa
        import pyarrow.parquet

        if not self._held:
            return
        rows = {}
        for name, first in self._held[0].items():
            parts = [part[name] for part in self._held]
            is_array = isinstance(first, np.ndarray)
            rows[name] = np.concatenate(parts) if is_array else [row for p in parts for row in p]
        count = len(next(iter(rows.values())))
        step = max(1, GROUP_BYTES * count // max(1, self._held_bytes))
        for start in range(0, count, step):
            columns = {
                name: language_array([*values[start : start + step]], self._languages[name])
                if name in self._languages
                else _column(values[start : start + step], f"{self._where}, {name}", is_deep=name in self.deep)
                for name, values in rows.items()
            }
            table = pa.table(columns)
            if self._kinds:
                table = table.replace_schema_metadata({"huggingface": self._kinds})
            if self._writer is None:
                self._writer = pyarrow.parquet.ParquetWriter(self._file, table.schema, write_page_checksum=True)
            self._writer.write_table(table)
        self._held, self._held_bytes = [], 0


def _column(values: Any, where: str, *, is_deep: bool = False) -> Any:
    """Return rows as an array of Arrow: images as PNG or TIFF, texts or lists of texts, numbers, nested lists of them."""
    import pyarrow as pa

    if not isinstance(values, np.ndarray):
        is_list = isinstance(values[0], list)
        return pa.array(values, pa.list_(pa.string()) if is_list else pa.string())
    if is_deep or _are_images(values):
        kind = "TIFF" if values.dtype == np.float32 else "PNG"
        how = {"compression": "raw"} if kind == "TIFF" else {"compress_level": 1}
        library, files = pillow(where), list[bytes]()
        for frame in values:
            file = io.BytesIO()
            pixels = frame[..., 0] if frame.shape[-1] == 1 else frame
            library.fromarray(np.ascontiguousarray(pixels)).save(file, kind, **how)
            files.append(file.getvalue())
        names = [f"frame-{number:06d}.{kind.lower()}" for number in range(len(files))]
        parts = [pa.array(files, pa.binary()), pa.array(names, pa.string())]
        return pa.StructArray.from_arrays(parts, names=["bytes", "path"])
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


class VideoFiles:
    """The videos of one camera, which grow episode by episode."""

    def __init__(
        self, root: Path, camera: str, frames_per_second: int, template: str, *, alone: bool, deep: bool = False
    ) -> None:
        """Begin in the folder of a dataset, with paths of a template; each episode may be alone in a file; `deep` is without loss."""
        import_av()
        self._is_deep = deep
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
            if self._is_deep:
                frame = luma_frame(pixels[..., 0], self._camera)
            else:
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
        import av

        self.close()
        self._number, self._frames = self._number + 1, 0
        self._path = self._root / _numbered(self._template, self._number, self._camera)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(self._path), "w")
        options = {} if self._is_deep else {"g": BETWEEN_KEY_FRAMES, "crf": QUALITY}
        self._stream = self._container.add_stream("ffv1" if self._is_deep else "libx264", self._rate, options=options)
        self._stream.height, self._stream.width = size
        # Colors at half the size need sides that are even.
        pixels = "yuv444p" if size[0] % 2 or size[1] % 2 else "yuv420p"
        self._stream.pix_fmt = PIXELS if self._is_deep else pixels


def statistics_of(rows: np.ndarray, *, has_quantiles: bool = True) -> Statistics:
    """Return the statistics of the rows of an episode."""
    if _are_images(rows):
        channels = [rows[..., number].reshape(-1) for number in range(rows.shape[-1])]
        return _of_images(np.array([np.bincount(c, minlength=256) for c in channels]), len(rows))
    rows = rows.reshape(len(rows), *(rows.shape[1:] or (1,)))
    with np.errstate(invalid="ignore", over="ignore"):
        statistics = {
            "min": rows.min(0).astype(np.float64),
            "max": rows.max(0).astype(np.float64),
            "mean": rows.mean(0, dtype=np.float64),
            "variance": rows.var(0, dtype=np.float64),
            "count": np.array([len(rows)]),
        }
        if has_quantiles and rows[0].size <= MOST_NUMBERS:
            marks = np.quantile(rows.astype(np.float64), SHARES, axis=0)
            statistics |= dict(zip(QUANTILES, marks, strict=True))
    return statistics


def _statistics_of_depth(frames: np.ndarray, info: Mapping[str, Any]) -> Statistics:
    """Return the statistics of maps of depth, (1, 1, 1) in the unit that is said, without quantiles; a frame in memory at a time."""
    if "video.pix_fmt" in info:
        parameters = [np.array(float(info[f"video.{name}"])) for name in PARAMETERS]
        frames = metres_of(np.arange(LARGEST + 1), [*parameters, np.array(LARGEST)], np)[np.minimum(frames, LARGEST)]
    each = [statistics_of(frame.reshape(-1, 1, 1, 1), has_quantiles=False) for frame in frames]
    return functools.reduce(joined_statistics, each) | {"count": np.array([len(frames)])}


def joined_statistics(ours: Statistics, theirs: Statistics) -> Statistics:
    """Return the statistics of some rows and others, of numbers without quantiles: `with_quantiles` adds them."""
    count = int(ours["count"][0] + theirs["count"][0])
    if "levels" in ours:
        return _of_images(ours["levels"] + theirs["levels"], count)
    our_share, their_share = ours["count"][0] / count, theirs["count"][0] / count
    with np.errstate(invalid="ignore", over="ignore"):
        return {
            "min": np.minimum(ours["min"], theirs["min"]),
            "max": np.maximum(ours["max"], theirs["max"]),
            "mean": our_share * ours["mean"] + their_share * theirs["mean"],
            "variance": our_share * ours["variance"]
            + their_share * theirs["variance"]
            + our_share * their_share * (ours["mean"] - theirs["mean"]) ** 2,
            "count": np.array([count]),
        }


def _of_images(levels: np.ndarray, count: int) -> Statistics:
    """Return the statistics of images as numbers in [0, 1], from how often each level occurs in each channel."""
    channels = []
    for counts in levels:
        seen, total = np.flatnonzero(counts), int(counts.sum())
        # Whole numbers are exact; a product of floats has other last bits on another processor.
        sums = [sum(int(count) * level**power for level, count in enumerate(counts)) for power in (1, 2)]
        mean = sums[0] / (255 * total)
        variance = (sums[1] * total - sums[0] ** 2) / (255 * total) ** 2
        upto, ranks = counts.cumsum(), np.array(SHARES) * (total - 1)
        low, high = (LEVELS[np.searchsorted(upto, r, "right")] for r in (np.floor(ranks), np.ceil(ranks)))
        marks = low + (high - low) * (ranks - np.floor(ranks))
        channels.append([LEVELS[seen[0]], LEVELS[seen[-1]], mean, variance, *marks.tolist()])
    names = ("min", "max", "mean", "variance", *QUANTILES)
    columns = np.moveaxis(np.array(channels)[..., None, None], 1, 0)
    statistics = dict(zip(names, columns, strict=True))
    return statistics | {"count": np.array([count]), "levels": levels}


def with_quantiles(statistics: Mapping[str, Statistics], files: Sequence[Path], where: str) -> dict[str, Statistics]:
    """Return statistics with the quantiles of all rows, which tables hold; `COLUMN_BYTES` of a feature are in memory at a time."""
    return {
        name: values | _quantiles(files, name, values, where)
        if "levels" not in values and values["min"].size <= MOST_NUMBERS
        else values
        for name, values in statistics.items()
    }


def _quantiles(files: Sequence[Path], name: str, statistics: Statistics, where: str) -> Statistics:
    shape, size, count = statistics["min"].shape, statistics["min"].size, statistics["count"][0]
    marks = np.empty((len(QUANTILES), size))
    at_once = max(1, COLUMN_BYTES // (8 * int(count)))
    for start in range(0, size, at_once):
        rows, done = np.empty((count, min(at_once, size - start))), 0
        for file in files:
            for batch in parquet_batches(file, where, [name], ROWS):
                values = array_of(batch.column(0), name, where, done).reshape(-1, size)
                rows[done : done + len(values)] = values[:, start : start + at_once]
                done += len(values)
        with np.errstate(invalid="ignore", over="ignore"):
            for number in range(rows.shape[1]):
                marks[:, start + number] = np.quantile(rows[:, number], SHARES)
    return {key: mark.reshape(shape) for key, mark in zip(QUANTILES, marks, strict=True)}


def _stored_statistics(statistics: Statistics) -> dict[str, np.ndarray]:
    names = ("min", "max", "mean", "std", "count", *QUANTILES)
    known = statistics | {"std": np.sqrt(statistics["variance"])}
    return {name: known[name] for name in names if name in known}


def _listed(statistics: Mapping[str, Statistics]) -> dict[str, Any]:
    return {
        name: {key: value.tolist() for key, value in _stored_statistics(values).items()}
        for name, values in statistics.items()
    }
