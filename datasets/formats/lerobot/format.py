"""Reads LeRobotDataset folders, versions 1 to 3.0, and writes 3.0 and 2.1: a row for each frame.

    meta/        features, frames per second, episodes: `lerobot/metadata.py`; of version 1 `lerobot/version1.py`
    data/chunk-*/file-*.parquet, episode_*.parquet      one column a feature: `lerobot/columns.py`
    videos/      frames of the features that are videos: `lerobot/videos.py`

`observation.state` becomes the part `state` of a Dict of observations, and so on; `action` the action;
`next.reward` the reward, which is 0 where there is none. `next.done` says which episodes ended the task;
without it all were cut off. Episodes of LeRobot have no final observation: the last frame of one that was
cut off gives it, and its action is left out. Where the last two rows are both done, as in LeRobot's PushT, the last
one is the final observation of an episode that ended. Images (PNG in the tables) are decoded without
loss, and frames of videos as they were encoded. `episodes/task` holds the task in words; other words:
`lerobot/language.py`. Other features become infos. Order, counts and lengths are compared with the metadata.
What orlog wrote comes back whole: `lerobot/exports.py`. https://github.com/huggingface/lerobot
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats._shared.arrow_files import (
    check_pyarrow,
    count_rows,
    reading_arrow,
    table_batches,
)
from orlog.datasets.formats._shared.episode_cutter import EpisodeCutter, Rows, ends_of_lengths
from orlog.datasets.formats._shared.episodes import Asked, Opened, Steps
from orlog.datasets.formats._shared.flags import FLAGS, UnknownEnds
from orlog.datasets.formats._shared.inventory import NUMBER
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.pieces import read_pieces
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.lerobot import version1
from orlog.datasets.formats.lerobot.agreement import Agreement
from orlog.datasets.formats.lerobot.columns import (
    Columns,
    Place,
    add_unlisted,
    column_of,
    listed_columns,
    single_numbers,
)
from orlog.datasets.formats.lerobot.exports import Details, read_kept
from orlog.datasets.formats.lerobot.language import OF_EPISODE, PersistentRows, read_subtasks
from orlog.datasets.formats.lerobot.metadata import (
    INFO,
    V2,
    V3,
    Episodes,
    data_tables,
    read_document,
    read_episodes,
    read_names,
)
from orlog.datasets.formats.lerobot.videos import Usage, Videos, usage_notes
from orlog.datasets.formats.lerobot.writing import lerobot_losses, write_lerobot
from orlog.errors import IntegrityError, SchemaError

VERSIONS = ("v2.0", V2, V3)
TABLES = ("data/*.parquet", "train/*.arrow")
BLOCK_BYTES = 2**24
INFO_KEYS = (
    *("codebase_version", "fps", "features", "robot_type", "video_path", "data_path", "splits"),
    *("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb", "total_episodes"),
    *("total_frames", "total_tasks", "total_chunks", "total_videos"),
)
EPISODE_KEYS = (
    *("episode_index", "length", "tasks", "dataset_from_index", "dataset_to_index"),
    *("videos/**", "data/**", "meta/**", "stats/**", "orlog/**"),
)


class _Table(NamedTuple):
    """A file of rows, the number of its first one among all rows, and their episodes."""

    file: Path
    start: int
    episodes: Episodes


class _Block(NamedTuple):
    """Rows of a table: their columns here, those of the table that are compared, and which rows they are."""

    rows: Rows
    batch: Any
    file: Path
    episodes: np.ndarray
    steps: np.ndarray
    first: int


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    root, where = asked.files[0], asked.sources[0]
    info = _read_info(root, where)
    version, fps = info["codebase_version"], info["fps"]
    is_first, notes = version.startswith("v1."), list[Note]()
    files = version1.tables_of(root, where) if is_first else data_tables(root, info, where)
    kept = read_kept(root, where) if version in (V3, V2) else None
    if is_first:
        info["features"] = version1.find_features(root, files, asked.options.no_video, where)
    elif kept is None:
        notes += add_unlisted(info, files, where)
    if kept is None:
        columns, more = listed_columns(info, asked.options, where, read_subtasks(root, where))
        notes += more
    else:
        columns = kept[1]
    shapes = {name: column.shape for name, column in columns.of_kind("video").items()}
    if is_first:
        episodes = version1.read_episodes(root, shapes, where)
    else:
        episodes = read_episodes(root, info, shapes, where)
    stops = _stops(files, where)
    episodes, lacks = _whole_episodes(stops, episodes, where, asked.options.partial)
    tables = _tables(asked, files, stops, episodes)
    if info["is_guessed"]:
        notes.append(Note("version_by_files", version=version))
    robot = f", robot {info['robot_type']}" if info.get("robot_type") else ""
    about = f"LeRobotDataset {version}, {fps} frames per second{robot}."
    opened = Opened(
        schema=columns.schema,
        steps=iter(()),
        total_steps=sum(episodes.lengths),
        description=about,
        always_said=about if robot else "",
        notes=[*lacks, *notes],
        reads=[
            *(f"{table}:{name}" for name in info["features"] for table in TABLES),
            *(f"./*{NUMBER.sub('#', name)}*.mp4" for name in info["features"]),
        ],
        dimension_names=read_names(
            info["features"], columns.named() if kept is None else kept[0].features
        ),
    )
    if kept is not None:
        opened.environment, opened.license = kept[0].environment, kept[0].license
        opened.description = kept[0].description
    agreement = Agreement(root, info, episodes, where)
    reader = _Reader(root, where, columns, fps, shapes, agreement.columns)
    details = None if kept is None else Details(root, columns.schema, where)
    opened.steps = _steps(asked, reader, tables, episodes, agreement, details, opened.notes)
    yield opened


def _read_info(root: Path, where: str) -> dict[str, Any]:
    """Return info.json, with the version by the files where it says none."""
    is_first = not (root / INFO).exists() and (root / version1.INFO).exists()
    info = read_document(root, version1.INFO if is_first else INFO, where)
    fps, is_guessed = info.get("fps"), "codebase_version" not in info
    guessed = "v1.0" if is_first else "v2.0"
    if (root / "meta" / "episodes").is_dir():
        guessed = V3
    elif (root / "meta" / "episodes_stats.jsonl").is_file():
        guessed = V2
    version = str(info.get("codebase_version", guessed))
    if version not in VERSIONS and not (is_first and version.startswith("v1.")):
        raise SchemaError(
            f"{where}: LeRobotDataset {version:.20} is not read, only v1.x, {', '.join(VERSIONS)}."
        )
    if not isinstance(fps, int | float) or not 0 < fps < math.inf:
        raise SchemaError(f"{where}: expected fps, frames per second, found {fps!r:.20}.")
    features = {} if is_first else info.get("features")
    if not isinstance(features, dict) or not all(isinstance(f, dict) for f in features.values()):
        raise SchemaError(f"{where}: info.json has no features.")
    return info | {"codebase_version": version, "is_guessed": is_guessed}


def _stops(files: Sequence[Path], where: str) -> list[int]:
    """Return the row after the last one of each file, among all rows."""
    counts = []
    for file in files:
        with reading_arrow(_name(where, file)):
            counts.append(count_rows(file))
    return list(itertools.accumulate(counts))


def _tables(
    asked: Asked, files: Sequence[Path], stops: Sequence[int], episodes: Episodes
) -> list[_Table]:
    tables = []
    for file, start, stop in zip(files, [0, *stops], stops, strict=False):
        part = episodes
        if asked.sharing is not None:  # another process needs no others
            first, last = np.searchsorted(episodes.ends, (start, max(start, stop - 1)), "right")
            part = episodes.part(int(first), int(last) + 1)
        tables.append(_Table(file, start, part))
    return tables


def _name(where: str, file: Path) -> str:
    return f"{where}, {file.parent.name}/{file.name}"


def _whole_episodes(
    stops: Sequence[int], episodes: Episodes, where: str, partial: bool
) -> tuple[Episodes, list[Note]]:
    """Return the episodes that are here, and what to tell where these are not all.

    Raises IntegrityError if rows are missing and may not be, or there are others.
    """
    rows, total = stops[-1] if stops else 0, int(episodes.ends[-1])
    if rows == total:
        return episodes, []
    whole = int(np.searchsorted(episodes.ends, rows, "right"))
    if not partial or rows > total or not whole:
        raise IntegrityError(
            f"{where}: the tables hold {rows:,} frames, and the metadata says {total:,}. partial=True reads the "
            "episodes that are whole."
        )
    lack = (
        f"the tables hold {rows:,} frames, and the metadata says {total:,}; the first {whole:,} of "
        f"{len(episodes.lengths):,} episodes are whole."
    )
    return episodes.part(0, whole), [Note("partial", lack=lack)]


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads tables and the frames that belong to their rows, in whatever process.

    Attributes:
        root: The dataset.
        where: What errors call it.
        columns: What the columns are.
        fps: Frames per second.
        shapes: The shape of each camera's frames.
        compared: Columns that are compared with what else is said of them.
    """

    root: Path
    where: str
    columns: Columns
    fps: float
    shapes: Mapping[str, tuple[int, ...]]
    compared: Sequence[str]

    def read(self, tables: Iterable[_Table]) -> Iterator[_Block | Usage | set[str]]:
        """Yield blocks of rows, which frames were asked for, and which columns were rounded."""
        for table in tables:
            with contextlib.closing(
                Videos(self.root, table.episodes, self.shapes, self.fps, self.where)
            ) as videos:
                yield from self._blocks(table, videos)
            yield from videos.usages
        yield self.columns.rounded

    def _blocks(self, table: _Table, videos: Videos) -> Iterator[_Block]:
        at_once = max(1, BLOCK_BYTES // self.columns.row_bytes)
        place = Place(_name(self.where, table.file), table.start)
        with reading_arrow(place.where):
            for read in table_batches(table.file, at_once):
                # Rows after the last whole episode, where the dataset is read in part, are passed over.
                batch = read.slice(0, max(0, int(table.episodes.ends[-1]) - place.first))
                episodes, steps = self._episodes_of(batch, table.episodes, place)
                rows = self.columns.rows(batch, episodes, steps, videos, place)
                kept = [name for name in self.compared if name in batch.schema.names]
                yield _Block(rows, batch.select(kept), table.file, episodes, steps, place.first)
                place = Place(place.where, place.first + batch.num_rows)

    def _episodes_of(
        self, batch: Any, episodes: Episodes, place: Place
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the episode of each row, and which of its steps it is, as the metadata say.

        Raises IntegrityError if the table says otherwise.
        """
        rows = np.arange(place.first, place.first + batch.num_rows)
        places = np.searchsorted(episodes.ends, rows, "right")
        begins = np.concatenate([[episodes.begin], episodes.ends[:-1]])
        expected = {"episode_index": places + episodes.number, "frame_index": rows - begins[places]}
        for name, values in expected.items():
            stated = single_numbers(column_of(batch, name, place), name, place)
            if (stated != values).any():
                row = int(np.argmax(stated != values))
                raise IntegrityError(
                    f"{place.where}: {name} of row {place.first + row} is {stated[row]}, and the lengths in the metadata "
                    f"say {values[row]}."
                )
        return expected["episode_index"], expected["frame_index"]


def _steps(
    asked: Asked,
    reader: _Reader,
    tables: Sequence[_Table],
    episodes: Episodes,
    agreement: Agreement,
    details: Details | None,
    notes: list[Any],
) -> Iterator[Steps]:
    """Yield all steps.

    Raises IntegrityError if rows are in another order than the metadata say.
    """
    columns, persistent, usages = reader.columns, PersistentRows(), list[Usage]()
    roles = {column.role for column in columns.columns.values()}

    def metadata(number: int) -> dict[str, str]:
        words = {} if episodes.tasks is None else {"task": episodes.tasks[number]}
        if OF_EPISODE in roles:
            words[OF_EPISODE.partition("/")[2]] = persistent.take(number)
        return words

    says = {"truncated"} & roles | ({"terminated"} if columns.done else set())
    cutter = EpisodeCutter(
        ends_of_lengths(episodes.lengths),
        reader.where,
        unknown=UnknownEnds(asked.options, reader.where, says=says if details is None else FLAGS),
        metadata=metadata if details is None else lambda _episode: {},
        has_final_rows=details is None,
    )
    lengths = np.array(episodes.lengths)
    for found in read_pieces(asked, reader.read, tables):
        if isinstance(found, Usage):
            usages.append(found)
        elif isinstance(found, set):
            columns.rounded.update(found)
        else:
            rows = found.rows
            cameras = columns.of_kind("image", "video") if details is None else {}
            agreement.add(found.batch, found.file, found.episodes, found.steps, found.first)
            for camera, column in cameras.items():
                agreement.add_images(camera, rows[column.role])
            if OF_EPISODE in roles:
                persistent.add(found.episodes, rows.pop(OF_EPISODE))
            if details is not None:
                is_last = found.steps == lengths[found.episodes] - 1
                rows = details.add_finals(rows, is_last)
            for piece in cutter.add(rows):
                yield piece if details is None else details.complete(piece)
    notes += [*cutter.notes(), *usage_notes(usages), *agreement.notes()]
    if columns.rounded:
        notes.append(Note("rounded", sorted(columns.rounded)))
    notes += persistent.notes()


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
        *version1.READS,
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
    ),
)
