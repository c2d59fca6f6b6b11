"""What a LeRobotDataset says of itself, versions 2.0, 2.1 and 3.0, and where its videos lie.

meta/info.json                            features, fps, templates of paths
meta/episodes/chunk-*/file-*.parquet      episode_index, length, tasks, places of videos     (3.0)
meta/episodes.jsonl                       episode_index, length, tasks                  (2.0, 2.1)
videos/KEY/chunk-000/file-000.mp4         many episodes each                                 (3.0)
videos/chunk-000/KEY/episode_000000.mp4   one episode each                              (2.0, 2.1)
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats._containers.arrow_files import reading_arrow
from orlog.datasets.formats._containers.json_documents import LARGEST_DOCUMENT, read_json_object
from orlog.datasets.formats.lerobot.video_frames import Video, check_order, frame_times, open_video
from orlog.errors import IntegrityError, OrlogError, SchemaError
from orlog.manifests.names import counted

INFO = Path("meta") / "info.json"
V3 = "v3.0"
VIDEO_PATHS = {
    True: "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    False: "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
}
VIDEO_COLUMNS = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
SAFE_KEY = re.compile(r"\w[\w.-]*")
MOST_EPISODES, LONGEST_EPISODE = 2**22, 2**40
TOLERANCE = 0.1  # of the time between two frames
MANY_FRAMES = 1000
EPISODES_AT_ONCE = 1000
LONGEST_NAME = 100
MOST_PLACES = 40  # that a sentence names


@dataclasses.dataclass(frozen=True)
class Episodes:
    """All episodes, in their order.

    Attributes:
        lengths: Frames of each.
        tasks: What was done in each, in words; None where no metadata tell it.
        videos: Of each camera, the file of each episode, relative to the dataset, and the time in
            seconds at which the episode begins there.
    """

    lengths: list[int]
    tasks: list[str] | None
    videos: dict[str, list[tuple[str, float]]]

    def first(self, count: int) -> Episodes:
        """Return the first ones."""
        return self.some(0, count)

    def some(self, first: int, last: int) -> Episodes:
        """Return those from one on and before another one."""
        return Episodes(
            self.lengths[first:last],
            None if self.tasks is None else self.tasks[first:last],
            {camera: places[first:last] for camera, places in self.videos.items()},
        )

    def frames(self) -> dict[str, dict[str, int]]:
        """Return how many frames each file should hold, by camera and file."""
        found: dict[str, dict[str, int]] = {camera: {} for camera in self.videos}
        for camera, places in self.videos.items():
            for (file, _), length in zip(places, self.lengths, strict=True):
                found[camera][file] = found[camera].get(file, 0) + length
        return found


def read_document(root: Path, path: Path, where: str) -> dict[str, Any]:
    """Return an object of JSON.

    Raises SchemaError if there is no such file, or it holds something else; IntegrityError if it is damaged.
    """
    file = inside(root, path, where)
    name = path.as_posix()
    missing = f"has no {name}, so it is no LeRobotDataset."
    return read_json_object(file, where, missing=missing, name=name)


def tables_in(root: Path, folder: str, where: str) -> list[Path]:
    """Return the Parquet files in the chunks of a folder, sorted.

    Raises SchemaError if one is a link.
    """
    files = sorted((root / folder).glob("chunk-*/*.parquet"))
    return [inside(root, file.relative_to(root), where) for file in files]


def read_names(features: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, list[str]]:
    """Return what the numbers of features are, such as joints, by the column of each feature.

    LeRobot writes a list, lists by group, or places by name; whatever else is there names nothing.
    """
    found = {}
    for feature, column in columns.items():
        one: Any = features.get(feature)
        if not row_size(one):
            continue
        names: Any = one.get("names")
        if isinstance(names, dict) and all(isinstance(part, list) for part in names.values()):
            names = [name for part in names.values() for name in part]
        elif isinstance(names, dict) and all(isinstance(at, int) for at in names.values()):
            names = sorted(names, key=names.__getitem__)
        is_named = isinstance(names, list) and len(names) == row_size(one)
        is_plain = one.get("dtype") not in ("image", "video", "string")
        if is_plain and is_named and all(map(_is_name, names)):
            found[column] = names
    return found


def row_size(feature: Any) -> int:
    """Return how many numbers a row of a feature has, as `info.json` says; 0 where it says no shape."""
    shape = feature.get("shape") if isinstance(feature, dict) else None
    is_shape = isinstance(shape, list) and all(isinstance(one, int) and one > 0 for one in shape)
    return math.prod(shape) if is_shape and shape is not None else 0


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME


def read_episodes(
    root: Path, info: Mapping[str, Any], cameras: Iterable[str], where: str
) -> Episodes:
    """Return all episodes, which must agree with `meta/info.json`; `cameras` are the videos that will be read."""
    is_v3 = info["codebase_version"] == V3
    cameras = list(cameras)
    if cameras:
        _check_video_paths(info, cameras, is_v3, where)
    rows = _rows_of_tables(root, cameras, where) if is_v3 else _rows_of_lines(root, where)
    lengths, tasks = [], []
    videos: dict[str, list[tuple[str, float]]] = {camera: [] for camera in cameras}
    for number, row in enumerate(rows):
        length: Any = row.get("length") if isinstance(row, dict) else None
        if number == MOST_EPISODES:
            raise SchemaError(f"{where}: more than {MOST_EPISODES:,} episodes are not read.")
        is_length = isinstance(length, int) and 0 < length < LONGEST_EPISODE
        if not is_length or row.get("episode_index") != number:
            raise SchemaError(f"{where}: the metadata of episode {number} is {row!r:.100}.")
        lengths.append(length)
        said = row.get("tasks")
        tasks.append("; ".join(map(str, said)) if isinstance(said, list) else "")
        for camera in cameras:
            place = _place(row, camera, info, f"{where}, episode {number}") if is_v3 else None
            videos[camera].append(place or (_path_of_episode(number, camera, info), 0.0))
    if not lengths:
        raise SchemaError(f"{where}: the metadata names no episode.")
    for name, found in (("total_episodes", len(lengths)), ("total_frames", sum(lengths))):
        if info.get(name) != found:
            raise IntegrityError(
                f"{where}: info.json says {name} {info.get(name)!r:.20}, and the episodes are {found}.",
                file=where,
            )
    return Episodes(lengths, tasks, videos)


class Videos:
    """The frames of all cameras; of each camera one file is open at a time."""

    def __init__(
        self,
        root: Path,
        episodes: Episodes,
        shapes: Mapping[str, tuple[int, ...]],
        fps: float,
        where: str,
        begins: tuple[int, dict[str, dict[str, int]]] | None = None,
    ) -> None:
        """Take what is known of them: all episodes, the shape of each camera's frames, and frames per second.

        `episodes` may be some, which begin at an episode; then `begins` says which, and how many frames their
        files hold for all of them.
        """
        self._root, self._episodes, self._shapes, self._where = root, episodes, shapes, where
        self._fps, self._tolerance = fps, TOLERANCE / fps
        self._open: dict[str, tuple[str, Video, contextlib.ExitStack]] = {}
        self._is_part, self._first = begins is not None, 0
        if begins is None:
            self._frames = episodes.frames()
        else:
            self._first, self._frames = begins
        self.shown: list[Shown] = []

    def frames(self, camera: str, episodes: np.ndarray, timestamps: np.ndarray) -> np.ndarray:
        """Return the next frames of a camera, (rows, height, width, channels) uint8, for the episode of each row.

        Timestamps are seconds since the episode began; without a frame at one of them the file is damaged.
        """
        found = np.empty((len(episodes), *self._shapes[camera]), np.uint8)
        for row, (episode, time) in enumerate(
            zip(episodes.tolist(), timestamps.tolist(), strict=True)
        ):
            file, start = self._episodes.videos[camera][episode - self._first]
            try:
                video = self._video(camera, file, start + time)
                found[row] = video.frame_at(start + time, self._tolerance)
            except (IntegrityError, SchemaError) as error:
                text = f"{error} In episode {episode}, {time:.4f} s after its begin.{self._all_missing()}"
                raise type(error)(text) from error
        return found

    def _all_missing(self) -> str:
        """Return which steps of all episodes have no frame, by the clock of the dataset."""
        said = []
        for camera, each in self._episodes.videos.items():
            episodes: list[int] = []
            steps: list[int] = []
            lost: list[int] = []
            files: dict[str, list[int]] = {}
            for number, (file, _) in enumerate(each):
                files.setdefault(file, []).append(number)
            for file, numbers in files.items():
                rows = sum(self._episodes.lengths[one] for one in numbers)
                try:
                    path = inside(self._root, Path(file), self._where)
                    times = frame_times(path, file, most_frames=2 * rows + MANY_FRAMES)
                except (OrlogError, OSError):
                    lost += numbers
                    continue
                taken = -1
                for number in numbers:
                    wanted = each[number][1] + np.arange(self._episodes.lengths[number]) / self._fps
                    found = np.searchsorted(times, wanted - self._tolerance)
                    near = times[np.minimum(found, len(times) - 1)]
                    bad = (np.abs(near - wanted) > self._tolerance) | (found <= taken)
                    taken = max(taken, int(found[-1]))
                    steps += np.flatnonzero(bad).tolist()
                    episodes += [number] * int(bad.sum())
            if steps:
                said.append(f"{camera} has no frame of its own for {places(episodes, steps)}")
            if lost:
                said.append(f"the videos of {camera} cannot be read for {places(lost)}")
        return f" In all: {'. '.join(said)}. no_video=True leaves videos out." if said else ""

    def close(self) -> None:
        """Close all files."""
        for camera in list(self._open):
            self._close(camera)

    def _video(self, camera: str, file: str, time: float) -> Video:
        if camera in self._open and self._open[camera][0] == file:
            return self._open[camera][1]
        self._close(camera)
        where = f"{self._where}, {file}"
        wanted = self._frames[camera].pop(file, 0)
        if not wanted:
            raise _do_not_follow(where)
        path = inside(self._root, Path(file), self._where)
        if not path.is_file():
            raise SchemaError(
                f"{where}: is missing; the dataset was downloaded without its videos, or in part. no_video=True leaves "
                "videos out."
            )
        with contextlib.ExitStack() as stack:
            opened = open_video(
                path, where, shape=self._shapes[camera], most_frames=2 * wanted + MANY_FRAMES
            )
            video = stack.enter_context(opened)
            self._open[camera] = file, video, stack.pop_all()
        if self._is_part:
            video.begin_near(time)
        return video

    def _close(self, camera: str) -> None:
        if camera in self._open:
            file, video, stack = self._open.pop(camera)
            self.shown.append(Shown(camera, file, video.first, video.last, video.used, video.count))
            stack.close()


class Shown(NamedTuple):
    """Frames of a file that were asked for: the times of the first and the last one, how many, and of how many."""

    camera: str
    file: str
    first: float
    last: float
    used: int
    held: int


class ShownFrames:
    """Puts together which frames were asked for, in their order, wherever they were decoded."""

    def __init__(self, where: str) -> None:
        self._where, self._unused = where, 0
        self._open: dict[str, Shown] = {}
        self._closed: set[tuple[str, str]] = set()

    def add(self, shown: Shown) -> None:
        """Take the next frames of a camera.

        Raises SchemaError if they come before those that were asked for.
        """
        before = self._open.get(shown.camera)
        if before is not None and before.file == shown.file:
            check_order(f"{self._where}, {shown.file}", before.last, shown.first)
            shown = shown._replace(first=before.first, used=before.used + shown.used)
        elif before is not None:
            self._close(before)
        if (shown.camera, shown.file) in self._closed:
            raise _do_not_follow(f"{self._where}, {shown.file}")
        self._open[shown.camera] = shown

    def doubts(self) -> list[str]:
        """Return what was not read, a sentence each; after the last frame."""
        for one in self._open.values():
            self._close(one)
        self._open.clear()
        if not self._unused:
            return []
        return [f"Left out: {counted(self._unused, 'frame')} of videos that belong to no row."]

    def _close(self, shown: Shown) -> None:
        self._closed.add((shown.camera, shown.file))
        self._unused += max(0, shown.held - shown.used)


def _do_not_follow(where: str) -> SchemaError:
    return SchemaError(f"{where}: the episodes in it do not follow each other.")


def _check_video_paths(
    info: Mapping[str, Any], cameras: list[str], is_v3: bool, where: str
) -> None:
    if info.get("video_path") != VIDEO_PATHS[is_v3]:
        raise SchemaError(
            f"{where}: expected the video_path {VIDEO_PATHS[is_v3]}, found {info.get('video_path')!r:.100}."
        )
    for camera in cameras:
        if not SAFE_KEY.fullmatch(camera):
            raise SchemaError(f"{where}: {camera!r:.50} cannot name a folder of videos.")


def _path_of_episode(number: int, camera: str, info: Mapping[str, Any]) -> str:
    size = info.get("chunks_size")
    chunk = number // size if isinstance(size, int) and size > 0 else 0
    return VIDEO_PATHS[False].format(episode_chunk=chunk, video_key=camera, episode_index=number)


def _place(
    row: Mapping[str, Any], camera: str, info: Mapping[str, Any], where: str
) -> tuple[str, float]:
    """Return the file of a camera, and when the episode begins there."""
    said = {name: row.get(f"videos/{camera}/{name}") for name in VIDEO_COLUMNS}
    chunk, file, start, end = said.values()
    if not (
        isinstance(chunk, int)
        and isinstance(file, int)
        and isinstance(start, float)
        and isinstance(end, float)
        and min(chunk, file) >= 0
        and 0 <= start < math.inf
    ):
        raise SchemaError(f"{where}: the place of its video {camera} is {said}.")
    lasts, wanted = end - start, row["length"] / info["fps"]
    if not abs(lasts - wanted) <= 1 / info["fps"]:
        raise IntegrityError(
            f"{where}: its video {camera} lasts {lasts:.3f} s, and its {row['length']} frames take "
            f"{wanted:.3f} s.",
            file=where,
        )
    return VIDEO_PATHS[True].format(video_key=camera, chunk_index=chunk, file_index=file), start


def _rows_of_tables(root: Path, cameras: list[str], where: str) -> Iterator[Any]:
    import pyarrow.parquet

    wanted = ["episode_index", "length", "tasks"]
    wanted += [f"videos/{camera}/{name}" for camera in cameras for name in VIDEO_COLUMNS]
    for file in tables_in(root, "meta/episodes", where):
        with (
            reading_arrow(f"{where}, {file.name}"),
            pyarrow.parquet.ParquetFile(file, page_checksum_verification=True) as table,
        ):
            known = [one for one in wanted if one in table.schema_arrow.names]
            for batch in table.iter_batches(EPISODES_AT_ONCE, columns=known):
                yield from batch.to_pylist()


def _rows_of_lines(root: Path, where: str) -> list[Any]:
    file = inside(root, Path("meta") / "episodes.jsonl", where)
    if not file.is_file() or file.stat().st_size > LARGEST_DOCUMENT:
        raise SchemaError(f"{where}: has no meta/episodes.jsonl.")
    try:
        return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise IntegrityError(
            f"{where}: meta/episodes.jsonl is damaged: {error}.", file=where
        ) from error


def inside(root: Path, path: Path, where: str) -> Path:
    """Return the path of a file of the dataset.

    Raises SchemaError if it, or a folder on the way, is a link.
    """
    place = root
    for part in path.parts:
        place /= part
        if part == ".." or place.is_symlink():
            raise SchemaError(f"{where}: {path.as_posix()} is a link, which is not followed.")
    return place


def places(episodes: Sequence[int] | np.ndarray, steps: Sequence[int] | np.ndarray = ()) -> str:
    """Return episodes, or steps of episodes, in words: those that follow each other as one range."""
    numbers = np.asarray(steps if len(steps) else episodes)
    owners = np.asarray(episodes) if len(steps) else np.zeros(len(numbers), np.int64)
    firsts = np.flatnonzero(
        (np.diff(numbers, prepend=-2) != 1) | (np.diff(owners, prepend=-2) != 0)
    )
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
