"""What a LeRobotDataset says of itself, versions 2.0, 2.1 and 3.0, and where its tables and videos lie.

meta/info.json                            features, fps, templates of paths
meta/episodes/chunk-*/file-*.parquet      episode_index, length, tasks, places of videos     (3.0)
meta/episodes.jsonl                       episode_index, length, tasks                  (2.0, 2.1)
videos/KEY/chunk-000/file-000.mp4         many episodes each                                 (3.0)
videos/chunk-000/KEY/episode_000000.mp4   one episode each                              (2.0, 2.1)
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import glob
import json
import math
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats._shared.arrow_files import parquet_batches, reading_arrow
from orlog.datasets.formats._shared.json_documents import read_json_object
from orlog.datasets.formats._shared.roles import by_numbers
from orlog.errors import IntegrityError, SchemaError

INFO = Path("meta") / "info.json"
V3, V2 = "v3.0", "v2.1"
VIDEO_PATHS = {
    V3: "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    V2: "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
}
FIRST_VIDEO = "videos/{camera}_episode_{episode:06d}.mp4"  # of version 1
FIELDS = ("video_key", "chunk_index", "file_index", "episode_chunk", "episode_index")
COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
VIDEO_COLUMNS = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
LONGEST_EPISODE = 2**40
EPISODES_AT_ONCE = 1000
LONGEST_NAME = 100
MOST_PLACES = 40  # that a sentence names


class Film(NamedTuple):
    """Where the frames of an episode are: the file, the second at which it begins, and rows before it and in all."""

    file: str
    start: float
    first: int
    total: int


@dataclasses.dataclass(frozen=True)
class Episodes:
    """All episodes, or some that follow each other.

    Attributes:
        lengths: Frames of each.
        tasks: What was done in each, in words; None where nothing says it.
        videos: Of each camera, where the frames of each episode are; files are relative to the dataset.
        number: The number of the first one.
        begin: Its first row.
    """

    lengths: list[int]
    tasks: list[str] | None
    videos: dict[str, list[Film]]
    number: int = 0
    begin: int = 0

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """The row after the last one of each."""
        ends: np.ndarray = self.begin + np.cumsum(np.array(self.lengths, np.int64))
        return ends

    def part(self, first: int, last: int) -> Episodes:
        """Return those from the one in the place `first` on and before `last`."""
        return Episodes(
            self.lengths[first:last],
            self.tasks and self.tasks[first:last],
            {camera: films[first:last] for camera, films in self.videos.items()},
            self.number + first,
            int(self.ends[first - 1]) if first else self.begin,
        )


def read_document(root: Path, path: Path, where: str) -> dict[str, Any]:
    """Return an object of JSON.

    Raises SchemaError if there is no such file, or it holds something else; IntegrityError if it is damaged.
    """
    name = path.as_posix()
    missing = f"has no {name}, so it is no LeRobotDataset."
    return read_json_object(inside(root, path, where), where, missing=missing, name=name)


def episode_batches(
    root: Path, columns: Sequence[str], where: str, folder: str = "meta/episodes"
) -> Iterator[Any]:
    """Yield some columns of the tables of all episodes, those that are there, in batches of Arrow.

    Raises SchemaError if a table is a link; IntegrityError if one is damaged.
    """
    for path in _sorted(root, f"{folder}/chunk-*/*.parquet"):
        name, file = f"{where}, {path.parent.name}/{path.name}", inside(root, path, where)
        with reading_arrow(name):
            import pyarrow.parquet

            names = pyarrow.parquet.read_schema(file).names
        known = [column for column in columns if column in names]
        yield from parquet_batches(file, name, known, EPISODES_AT_ONCE)


def episode_rows(root: Path, columns: Sequence[str], where: str) -> Iterator[Any]:
    """Yield what `episode_batches` yields, a dict for each episode."""
    for batch in episode_batches(root, columns, where):
        yield from batch.to_pylist()


def data_tables(root: Path, info: Mapping[str, Any], where: str) -> list[Path]:
    """Return the tables of rows in the order of their numbers, where `data_path` of info.json says they are.

    Raises SchemaError if that is none of LeRobot's paths, or a table is a link.
    """
    usual = "data/chunk-*/*.parquet"
    template, pattern = info.get("data_path"), ""
    if template is not None:
        parts = string.Formatter().parse(check_template(template, "data_path", where))
        pattern = "".join(
            glob.escape(text) + "*" * (field is not None) for text, field, *_ in parts
        )
    paths = (pattern and _sorted(root, re.sub(r"\*+", "*", pattern))) or _sorted(root, usual)
    return [inside(root, path, where) for path in paths]


def _sorted(root: Path, pattern: str) -> list[Path]:
    """Return the files of a pattern in the order of the numbers in their paths."""
    names = [file.relative_to(root).as_posix() for file in root.glob(pattern)]
    return [Path(name) for name in sorted(names, key=by_numbers)]


def read_names(features: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, list[str]]:
    """Return what the numbers of features are, such as joints, by the column of each feature.

    LeRobot writes a list, lists by group, or places by name; whatever else is there names nothing.
    """
    named = {}
    for feature, column in columns.items():
        described: Any = features.get(feature)
        size = row_size(described)
        names: Any = described.get("names") if size else None
        if isinstance(names, dict) and all(isinstance(part, list) for part in names.values()):
            names = [name for part in names.values() for name in part]
        elif isinstance(names, dict) and all(isinstance(at, int) for at in names.values()):
            names = sorted(names, key=names.__getitem__)
        is_named = isinstance(names, list) and len(names) == size and all(map(_is_name, names))
        if is_named and described.get("dtype") not in ("image", "video", "string"):
            named[column] = names
    return named


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME


def row_size(feature: Any) -> int:
    """Return how many numbers a row of a feature has, as `info.json` says; 0 where it says no shape."""
    shape = feature.get("shape") if isinstance(feature, dict) else None
    if isinstance(shape, list) and all(isinstance(size, int) and size > 0 for size in shape):
        return math.prod(shape)
    return 0


def read_episodes(
    root: Path, info: Mapping[str, Any], cameras: Iterable[str], where: str
) -> Episodes:
    """Return all episodes; `cameras` are the videos that will be read.

    Raises SchemaError if the metadata are not LeRobot's; IntegrityError if they contradict `meta/info.json`.
    """
    cameras = list(cameras)
    template = check_template(info.get("video_path"), "video_path", where) if cameras else ""
    if len(cameras) > 1 and "{video_key" not in template:
        raise SchemaError(f"{where}: video_path in info.json is the same for all cameras.")
    lengths: list[int] = []
    tasks: list[str] = []
    films: dict[str, list[Film]] = {camera: [] for camera in cameras}
    rows_of: collections.Counter[str] = collections.Counter()
    begun: dict[str, float] = {}
    for number, row in enumerate(_episode_rows(root, info, cameras, where)):
        length: Any = row.get("length") if isinstance(row, dict) else None
        is_length = isinstance(length, int) and 0 < length < LONGEST_EPISODE
        if not is_length or row.get("episode_index") != number:
            raise SchemaError(f"{where}: the metadata of episode {number} is {row!r:.100}.")
        lengths.append(length)
        words = row.get("tasks")
        tasks.append("; ".join(map(str, words)) if isinstance(words, list) else "")
        for camera in cameras:
            file, start = _place(row, camera, info, template, f"{where}, episode {number}")
            if start <= begun.get(file, -1.0):
                text = f"{where}, {file}: episode {number} lies before the one that it follows."
                raise IntegrityError(text)
            begun[file] = start
            films[camera].append(Film(file, start, rows_of[file], 0))
            rows_of[file] += length
    if not lengths:
        raise SchemaError(f"{where}: the metadata names no episode.")
    for name, count in (("total_episodes", len(lengths)), ("total_frames", sum(lengths))):
        if info.get(name) != count:
            text = (
                f"{where}: info.json says {name} {info.get(name)!r:.20}, and the episodes {count}."
            )
            raise IntegrityError(text)
    videos = {
        camera: [film._replace(total=rows_of[film.file]) for film in several]
        for camera, several in films.items()
    }
    return Episodes(lengths, tasks, videos)


def _episode_rows(
    root: Path, info: Mapping[str, Any], cameras: Sequence[str], where: str
) -> Iterable[Any]:
    if info["codebase_version"] == V3:
        places = [f"videos/{camera}/{name}" for camera in cameras for name in VIDEO_COLUMNS]
        return episode_rows(root, ["episode_index", "length", "tasks", *places], where)
    file = inside(root, Path("meta") / "episodes.jsonl", where)
    try:
        return [json.loads(line) for line in file.read_text("utf-8").split("\n") if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        text = f"{where}: meta/episodes.jsonl cannot be read: {error}."
        raise IntegrityError(text) from error


def _place(
    row: Mapping[str, Any], camera: str, info: Mapping[str, Any], template: str, where: str
) -> tuple[str, float]:
    """Return the file of a camera, and when the episode begins there: in a file of its own at 0."""
    number, size = row["episode_index"], info.get("chunks_size")
    own_chunk = number // size if isinstance(size, int) and size > 0 else 0
    wanted = row["length"] / info["fps"]
    stated: list[Any] = [row.get(f"videos/{camera}/{name}") for name in VIDEO_COLUMNS]
    if None in stated and (info["codebase_version"] != V3 or "{episode_index" in template):
        stated = [own_chunk, number, 0.0, wanted]
    chunk, file, start, end = stated
    if not (
        all(isinstance(value, int) and value >= 0 for value in (chunk, file))
        and all(isinstance(value, int | float) for value in (start, end))
        and 0 <= start < math.inf
        and abs(end - start - wanted) <= 1 / info["fps"]
    ):
        text = f"{where}: its video {camera} lies at {stated}, and its frames take {wanted:.3f} s."
        raise IntegrityError(text)
    fields = {"video_key": camera, "chunk_index": chunk, "file_index": file}
    return template.format(**fields, episode_chunk=own_chunk, episode_index=number), start


def check_template(template: object, name: str, where: str) -> str:
    """Return a path of info.json in which fields stand for a camera and for numbers.

    Raises SchemaError if it has other fields than `FIELDS`, or leads out of the dataset.
    """
    try:
        path = PurePosixPath(str(template))
        is_known = bool(template) and not path.is_absolute() and ".." not in path.parts
        for _, field, spec, conversion in string.Formatter().parse(str(template)):
            width = "" if field == "video_key" else r"0?\d{0,2}d?"
            is_plain = field in FIELDS and not conversion and re.fullmatch(width, spec or "")
            is_known &= field is None or bool(is_plain)
    except ValueError:
        is_known = False
    if not isinstance(template, str) or not is_known:
        raise SchemaError(
            f"{where}: {name} in info.json is {template!r:.100}, expected a path in the dataset with the fields "
            f"{', '.join(f'{{{field}}}' for field in FIELDS)}, numbers with or without a width such as :03d."
        )
    return template


def inside(root: Path, path: Path, where: str) -> Path:
    """Return the path of a file of the dataset.

    Raises SchemaError if it, or a folder on the way, is a link, or it leads out of the dataset.
    """
    place = root
    for part in path.parts:
        place /= part
        if part in ("..", "/") or place.is_symlink():
            raise SchemaError(f"{where}: {path.as_posix()} is a link, which is not followed.")
    return place


def places(episodes: Sequence[int] | np.ndarray, steps: Sequence[int] | np.ndarray = ()) -> str:
    """Return episodes, or steps of episodes, in words: those that follow each other as one range."""
    numbers = np.asarray(steps if len(steps) else episodes)
    owners = np.asarray(episodes) if len(steps) else np.zeros(len(numbers), np.int64)
    begins = (np.diff(numbers, prepend=-2) != 1) | (np.diff(owners, prepend=-2) != 0)
    firsts = np.flatnonzero(begins)
    lasts = np.append(firsts[1:], len(numbers)) - 1
    said = []
    for first, last in zip(firsts[:MOST_PLACES], lasts, strict=False):
        start, end = int(numbers[first]), int(numbers[last])
        span = f"{start}" if start == end else f"{start} to {end}"
        plural = "" if start == end else "s"
        of = f"episode {owners[first]}, step{plural}" if len(steps) else f"episode{plural}"
        said.append(f"{of} {span}")
    more = len(firsts) - len(said)
    return "; ".join(said) + (f"; and {more:,} more such places" if more else "")
