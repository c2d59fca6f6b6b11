"""What a LeRobotDataset says of itself, versions 1 to 3.0, and where its tables and videos lie.

    meta/info.json                            features, fps, templates of paths
    meta/episodes/chunk-*/file-*.parquet      episode_index, length, tasks, places of videos     (3.0)
    meta/episodes.jsonl                       episode_index, length, tasks                  (2.0, 2.1)
    videos/KEY/chunk-000/file-000.mp4         many episodes each                                 (3.0)
    videos/chunk-000/KEY/episode_000000.mp4   one episode each                              (2.0, 2.1)

Version 1 says less, so that its tables are looked at (`columns.py`):

    meta_data/info.json                           codebase_version v1.x, fps
    meta_data/episode_data_index.safetensors      from, to: rows of each episode
    train/data-..arrow  data/train-..parquet      as Hugging Face's datasets save them, or as the Hub has them
    videos/KEY_episode_000000.mp4                 one episode and camera each; rows say path and timestamp
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from orlog.datasets.formats.arrow_files import parquet_batches, reading_arrow
from orlog.datasets.formats.roles import by_numbers
from orlog.datasets.formats.safe_reading import read_json_object
from orlog.errors import IntegrityError, SchemaError

INFO, FIRST_INFO = Path("meta") / "info.json", Path("meta_data") / "info.json"
FIRST_INDEX = Path("meta_data") / "episode_data_index.safetensors"
FIRST, V2, V3 = "v1.", "v2.1", "v3.0"
VERSIONS = ("v2.0", V2, V3)
VIDEO_PATHS = {
    V3: "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    V2: "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
}
FIRST_VIDEO = "videos/{video_key}_episode_{episode_index:06d}.mp4"
FIELDS = ("video_key", "chunk_index", "file_index", "episode_chunk", "episode_index")
TEMPLATE = re.compile(rf"(?!/)(?!.*\.\.)([^{{}}]|\{{{FIELDS[0]}\}}|\{{({'|'.join(FIELDS[1:])})(:0?\d{{0,2}}d?)?\}})+")
COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
VIDEO_COLUMNS = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
LARGEST_ROW = 2**26  # numbers
LONGEST_EPISODE = 2**40
EPISODES_AT_ONCE = 1000
LONGEST_NAME = 100
MOST_PLACES = 40  # that a sentence names


class Feature(msgspec.Struct):
    """What `info.json` says of a feature: the kind of its numbers, the shape of a row, and others in whatever form."""

    dtype: str
    shape: list[Annotated[int, msgspec.Meta(gt=0)]]
    names: Any = None
    info: Any = None
    video_info: Any = None

    @property
    def size(self) -> int:
        """How many numbers a row has."""
        return math.prod(self.shape)

    def axis_names(self) -> list[str]:
        """Return what the numbers of a row are, such as joints; nothing where that is not said.

        LeRobot writes a list, lists by group, or places by name; whatever else is there names nothing.
        """
        names = self.names
        if isinstance(names, dict) and all(isinstance(part, list) for part in names.values()):
            names = [name for part in names.values() for name in part]
        elif isinstance(names, dict) and all(isinstance(at, int) for at in names.values()):
            names = sorted(names, key=names.__getitem__)
        fits = isinstance(names, list) and len(names) == self.size and all(map(_is_name, names))
        return names if fits and self.dtype not in ("image", "video", "string") else []


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME


class Info(msgspec.Struct, kw_only=True):
    """What `info.json` says; `is_guessed` is whether the version is known by the files alone."""

    fps: Annotated[int, msgspec.Meta(gt=0, lt=10**9)] | Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
    features: dict[str, Any] = {}
    codebase_version: str = ""
    robot_type: Any = None
    total_episodes: int | None = None
    total_frames: int | None = None
    chunks_size: int = 1000
    video_path: Any = None
    is_guessed: bool = False

    @property
    def is_first(self) -> bool:
        """Whether the dataset is of version 1."""
        return self.codebase_version.startswith(FIRST)


class Film(NamedTuple):
    """Where the frames of an episode are: the file, the second at which it begins, and rows before it, its own and all.

    `stop` is the second at which the next episode of the file begins.
    """

    file: str
    start: float
    first: int
    length: int
    total: int = 0
    stop: float = math.inf


@dataclasses.dataclass(frozen=True)
class Episodes:
    """All episodes, or some that follow each other."""

    lengths: list[int]  # frames of each
    tasks: list[str] | None  # what was done in each, in words; None where nothing says it
    # of each camera, where the frames of each episode are; files are relative to the dataset
    videos: dict[str, list[Film]]
    number: int = 0  # the number of the first one
    begin: int = 0  # its first row

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


def read_info(root: Path, where: str) -> Info:
    """Return `info.json`, with the version by the files where it says none.

    Raises SchemaError if it is not of this form, or of another version; IntegrityError if it is damaged.
    """
    is_first = not (root / INFO).exists() and (root / FIRST_INFO).exists()
    body = read_document(root, FIRST_INFO if is_first else INFO, where)
    if is_first or "features" not in body:
        body["features"] = {} if is_first else None
    where_info = f"{where}, info.json"
    info: Info = _converted(body, Info, where_info)
    if not info.codebase_version:
        info.is_guessed, info.codebase_version = True, "v1.0" if is_first else "v2.0"
        if (root / "meta" / "episodes").is_dir():
            info.codebase_version = V3
        elif (root / "meta" / "episodes_stats.jsonl").is_file():
            info.codebase_version = V2
    if info.codebase_version not in VERSIONS and not (is_first and info.is_first):
        raise SchemaError(
            f"{where}: LeRobotDataset {info.codebase_version:.20} is not read, only v1.x, {', '.join(VERSIONS)}."
        )
    for name, described in info.features.items():
        info.features[name] = _converted(described, Feature, f"{where_info}, {name}")
        if info.features[name].size > LARGEST_ROW:
            raise SchemaError(f"{where_info}, {name}: rows of {described['shape']} are too large.")
    return info


def _converted(body: Any, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.convert(body, kind)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise SchemaError(f"{where}: {error!s:.300}.") from error


def data_tables(root: Path, info: Info, where: str) -> list[Path]:
    """Return the tables of rows in the order of the numbers in their paths.

    Raises SchemaError if a table is a link, or version 1 has none.
    """
    if info.is_first:
        files = _sorted(root, "train/data-*.arrow") + _sorted(root, "data/train-*.parquet")
        if len({file.parent for file in files}) != 1:
            raise SchemaError(f"{where}: expected tables train/data-..arrow or data/train-..parquet.")
        return [inside(root, path, where) for path in files]
    return [inside(root, path, where) for path in _sorted(root, "data/**/*.parquet")]


def _sorted(root: Path, pattern: str) -> list[Path]:
    names = [file.relative_to(root).as_posix() for file in root.glob(pattern)]
    return [Path(name) for name in sorted(names, key=by_numbers)]


def episode_batches(root: Path, columns: Sequence[str], where: str, folder: str = "meta/episodes") -> Iterator[Any]:
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


def read_episodes(root: Path, info: Info, cameras: Sequence[str], where: str) -> Episodes:
    """Return all episodes; `cameras` are the videos that will be read.

    Raises SchemaError if the metadata are not LeRobot's; IntegrityError if they contradict `info.json`.
    """
    template = FIRST_VIDEO if info.is_first else info.video_path
    if cameras and not (isinstance(template, str) and TEMPLATE.fullmatch(template)):
        raise SchemaError(
            f"{where}: video_path in info.json is {template!r:.100}, expected a path in the dataset with the fields "
            f"{', '.join(f'{{{field}}}' for field in FIELDS)}, numbers with or without a width such as :03d."
        )
    if len(cameras) > 1 and "{video_key" not in template:
        raise SchemaError(f"{where}: video_path in info.json is the same for all cameras.")
    lengths: list[int] = []
    tasks: list[str] = []
    films: dict[str, list[Film]] = {camera: [] for camera in cameras}
    rows_of: collections.Counter[str] = collections.Counter()
    last: dict[str, int] = {}  # episode of each file
    for number, row in enumerate(_episode_rows(root, info, cameras, where)):
        length: Any = row.get("length") if isinstance(row, dict) else None
        is_length = isinstance(length, int) and 0 < length < LONGEST_EPISODE
        if not is_length or row.get("episode_index") != number:
            raise SchemaError(f"{where}: the metadata of episode {number} is {row!r:.100}.")
        lengths.append(length)
        words = row.get("tasks")
        tasks.append("; ".join(map(str, words)) if isinstance(words, list) else "")
        for camera in cameras:
            file, start = _film(row, camera, info, template, f"{where}, episode {number}")
            if file in last:
                before = films[camera][last[file]]
                if start <= before.start:
                    text = f"{where}, {file}: episode {number} lies before the one that it follows."
                    raise IntegrityError(text)
                films[camera][last[file]] = before._replace(stop=start)
            last[file] = number
            films[camera].append(Film(file, start, rows_of[file], length))
            rows_of[file] += length
    if not lengths:
        raise SchemaError(f"{where}: the metadata names no episode.")
    counts = {"total_episodes": len(lengths), "total_frames": sum(lengths)}
    for name, count in counts.items() if not info.is_first else ():
        if getattr(info, name) != count:
            raise IntegrityError(f"{where}: info.json says {name} {getattr(info, name)}, and the episodes {count}.")
    videos = {
        camera: [film._replace(total=rows_of[film.file]) for film in several] for camera, several in films.items()
    }
    return Episodes(lengths, None if info.is_first else tasks, videos)


def _episode_rows(root: Path, info: Info, cameras: Sequence[str], where: str) -> Iterable[Mapping[str, Any]]:
    if info.codebase_version == V3:
        places = [f"videos/{camera}/{name}" for camera in cameras for name in VIDEO_COLUMNS]
        return episode_rows(root, ["episode_index", "length", "tasks", *places], where)
    if info.is_first:
        lengths = enumerate(_first_lengths(root, where))
        return ({"episode_index": number, "length": length} for number, length in lengths)
    file = inside(root, Path("meta") / "episodes.jsonl", where)
    try:
        return [json.loads(line) for line in file.read_text("utf-8").split("\n") if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        text = f"{where}: meta/episodes.jsonl cannot be read: {error}."
        raise IntegrityError(text) from error


def _first_lengths(root: Path, where: str) -> list[int]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    file = inside(root, FIRST_INDEX, where)
    if not file.is_file():
        raise SchemaError(f"{where}: has no {FIRST_INDEX.as_posix()}.")
    try:
        index = load(file.read_bytes())
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{where}: {file.name} is damaged: {error}.", file=where) from error
    starts, ends = index.get("from", np.zeros(0)), index.get("to", np.zeros(0))
    if starts.dtype.kind != "i" or not np.array_equal(starts, [0, *ends[:-1]]):
        raise SchemaError(f"{where}: {file.name} does not give the rows of one episode after another.")
    return (ends - starts).tolist()  # type: ignore[no-any-return]


def _film(row: Mapping[str, Any], camera: str, info: Info, template: str, where: str) -> tuple[str, float]:
    """Return the file of a camera, and when the episode begins there: in a file of its own at 0."""
    number, wanted = row["episode_index"], row["length"] / info.fps
    own_chunk = number // max(1, info.chunks_size)
    stated: list[Any] = [row.get(f"videos/{camera}/{name}") for name in VIDEO_COLUMNS]
    if None in stated and (info.codebase_version != V3 or "{episode_index" in template):
        stated = [own_chunk, number, 0.0, wanted]
    chunk, file, start, end = stated
    if not (
        all(isinstance(value, int) and value >= 0 for value in (chunk, file))
        and all(isinstance(value, int | float) for value in (start, end))
        and 0 <= start < math.inf
        and abs(end - start - wanted) <= 1 / info.fps
    ):
        text = f"{where}: its video {camera} lies at {stated}, and its frames take {wanted:.3f} s."
        raise IntegrityError(text)
    fields = {"video_key": camera, "chunk_index": chunk, "file_index": file}
    return template.format(**fields, episode_chunk=own_chunk, episode_index=number), start


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
    words = []
    for first, last in zip(firsts[:MOST_PLACES], lasts, strict=False):
        start, end = int(numbers[first]), int(numbers[last])
        span = f"{start}" if start == end else f"{start} to {end}"
        plural = "" if start == end else "s"
        of = f"episode {owners[first]}, step{plural}" if len(steps) else f"episode{plural}"
        words.append(f"{of} {span}")
    more = len(firsts) - len(words)
    return "; ".join(words) + (f"; and {more:,} more such places" if more else "")
