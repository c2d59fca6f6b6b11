"""Reads LeRobotDataset folders, versions 1 to 3.0, and writes 3.0 and 2.1: a row for each frame.

    meta/        features, frames per second, episodes: `metadata.py`
    data/chunk-*/file-*.parquet, episode_*.parquet      one column a feature: `columns.py`
    videos/      frames of the features that are videos: `videos.py`

`observation.state` becomes the part `state` of a Dict of observations, and so on; `action` the action;
`next.reward` the reward, which is 0 where there is none. `next.done` says which episodes ended the task;
without it all were cut off. Episodes of LeRobot have no final observation: the last frame of one that was
cut off gives it, and its action is left out. Where the last two rows are both done, as in LeRobot's PushT, the last
one is the final observation of an episode that ended. Images (PNG in the tables) are decoded without
loss, and frames of videos as they were encoded. `episodes/task` holds the task in words. Other features become
infos. Order, counts and lengths are compared with the metadata (`agreement.py`).
What orlog wrote (`writing.py`) comes back whole. https://github.com/huggingface/lerobot
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from gymnasium.spaces import Dict

from orlog.datasets.columns.schema import Schema
from orlog.datasets.columns.values import space_columns, unflatten
from orlog.datasets.formats.arrow_files import check_pyarrow, count_rows, reading_arrow, table_batches
from orlog.datasets.formats.episode_cutter import FLAGS, EpisodeCutter, Rows, UnknownEnds, ends_of_lengths
from orlog.datasets.formats.episodes import Asked, Opened, Steps, read_pieces
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.inventory import NUMBER
from orlog.datasets.formats.lerobot.agreement import Agreement
from orlog.datasets.formats.lerobot.columns import (
    OF_EPISODE,
    Block,
    Column,
    Columns,
    add_first,
    add_unlisted,
    first_depths,
    listed_columns,
    read_column,
    read_subtasks,
)
from orlog.datasets.formats.lerobot.depth import TYPES, is_deep
from orlog.datasets.formats.lerobot.language import PERSISTENT
from orlog.datasets.formats.lerobot.metadata import (
    FIRST_INFO,
    INFO,
    V2,
    V3,
    Episodes,
    Info,
    data_tables,
    episode_batches,
    inside,
    read_document,
    read_episodes,
    read_info,
)
from orlog.datasets.formats.lerobot.videos import Usage, Videos, usage_notes
from orlog.datasets.formats.lerobot.writing import (
    DETAILS,
    EPISODE,
    FINAL,
    KEPT,
    SEED,
    Kept,
    image_shape,
    lerobot_losses,
    write_lerobot,
)
from orlog.datasets.formats.notes import Note
from orlog.datasets.store.videos import joined_facts
from orlog.errors import IntegrityError, SchemaError, clause
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.spaces import named_parts, space_from_json

TABLES = ("data/*.parquet", "train/*.arrow")
BLOCK_BYTES = 2**24
KEEP = "keep"
ROLES = {"rewards": "reward", "terminations": "terminated", "truncations": "truncated"}
INFO_KEYS = (
    *("codebase_version", "fps", "features", "robot_type", "video_path", "data_path", "splits"),
    *("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb", "total_episodes"),
    *("total_frames", "total_tasks", "total_chunks", "total_videos"),
)
EPISODE_KEYS = (
    *("episode_index", "length", "tasks", "dataset_from_index", "dataset_to_index"),
    *("videos/**", "data/**", "meta/**", "stats/**", "orlog/**"),
)


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    root, where, options = asked.files[0], asked.sources[0], asked.options
    info = read_info(root, where)
    version, notes = info.codebase_version, list[Note]()
    files = data_tables(root, info, where)
    kept = _read_kept(root, info, where) if version in (V3, V2) else None
    if kept is not None:
        columns = kept[1]
    else:
        if info.is_first:
            add_first(info, root, files, options.no_video, where)
        else:
            notes += add_unlisted(info, files, where)
        depths = first_depths(info, files, where)
        columns, more = listed_columns(info, options, where, read_subtasks(root, where), depths)
        notes += more
    shapes = {name: np.empty((0, *column.shape), column.dtype) for name, column in columns.of_kind("video").items()}
    stops = _stops(files, where)
    episodes = read_episodes(root, info, [*shapes], where)
    episodes, lacks = _whole_episodes(stops, episodes, where, options.partial)
    tables = _tables(asked, files, stops, episodes)
    if info.is_guessed:
        notes.append(Note("version_by_files", version=version))
    robot = f", robot {info.robot_type}" if info.robot_type else ""
    about = f"LeRobotDataset {version}, {info.fps} frames per second{robot}."
    opened = Opened(
        schema=columns.schema,
        steps=iter(()),
        total_steps=sum(episodes.lengths),
        description=about,
        always_said=about if robot else "",
        notes=[*lacks, *notes],
        reads=[
            *(f"{table}:{name}" for name in info.features for table in TABLES),
            *(f"./*{NUMBER.sub('#', name)}*.mp4" for name in info.features),
        ],
        dimension_names={
            column: names
            for feature, column in (columns.named() if kept is None else kept[0].features).items()
            if feature in info.features and (names := info.features[feature].axis_names())
        },
    )
    if kept is not None:
        opened.environment, opened.license = kept[0].environment, kept[0].license
        opened.description = kept[0].description
    numbers: dict[str, dict[str, int]] = {}
    if options.video == KEEP:
        opened.videos, numbers = _kept_videos(root, columns, episodes, where)
    agreement = Agreement(root, info, episodes, where)
    reader = _Reader(root, where, columns, info.fps, shapes, agreement.columns, numbers)
    details = None if kept is None else _Details(root, columns.schema, where)
    opened.steps = _steps(asked, reader, tables, episodes, agreement, details, opened)
    yield opened


def _kept_videos(
    root: Path, columns: Columns, episodes: Episodes, where: str
) -> tuple[dict[str, list[Path]], dict[str, dict[str, int]]]:
    """Return the files of each column of observations whose videos are kept, and the number of each file, by camera."""
    videos: dict[str, list[Path]] = {}
    numbers: dict[str, dict[str, int]] = {}
    names = (
        [*named_parts(columns.schema.observation_space)] if isinstance(columns.schema.observation_space, Dict) else []
    )
    names_of = {"observation": "observations"} | {
        f"observation/{key}": f"observations/{name}" for key, name, _ in names
    }
    for camera, films in episodes.videos.items():
        column = columns.columns[camera]
        if column.role in names_of and column.dtype == np.uint8:  # a map of depth has more bits than a decoder gives
            files = dict.fromkeys(film.file for film in films)
            numbers[camera] = {file: number for number, file in enumerate(files, 1)}
            videos[names_of[column.role]] = [inside(root, Path(file), where) for file in files]
            columns.row_bytes -= 8 * math.prod(column.shape)
    return videos, numbers


class _Table(NamedTuple):
    """A file of rows, the number of its first one among all rows, and the episodes that its reader needs."""

    file: Path
    start: int
    episodes: Episodes


def _stops(files: Sequence[Path], where: str) -> list[int]:
    counts = []
    for file in files:
        with reading_arrow(_name(where, file)):
            counts.append(count_rows(file))
    return list(itertools.accumulate(counts))


def _tables(asked: Asked, files: Sequence[Path], stops: Sequence[int], episodes: Episodes) -> list[_Table]:
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


def _whole_episodes(stops: Sequence[int], episodes: Episodes, where: str, partial: bool) -> tuple[Episodes, list[Note]]:
    """Return the episodes that are here, and what to tell where these are not all."""
    rows, total = stops[-1] if stops else 0, int(episodes.ends[-1])
    if rows == total:
        return episodes, []
    whole = int(np.searchsorted(episodes.ends, rows, "right"))
    lack = f"the tables hold {rows:,} frames, and the metadata says {total:,}"
    if not partial or rows > total or not whole:
        raise IntegrityError(f"{where}: {lack}. partial=True reads the episodes that are whole.")
    lack += f"; the first {whole:,} of {len(episodes.lengths):,} episodes are whole."
    return episodes.part(0, whole), [Note("partial", lack=lack)]


class _Piece(NamedTuple):
    """Rows of a table: their columns here, those of the table that are compared, and which rows they are."""

    rows: Rows
    batch: Any
    file: Path
    episodes: np.ndarray
    steps: np.ndarray
    first: int


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads tables and the frames that belong to their rows, in whatever process."""

    root: Path  # the dataset
    where: str  # what errors call it
    columns: Columns  # what the columns are
    fps: float  # frames per second
    shapes: Mapping[str, np.ndarray]  # no frames of each camera, of the shape and the dtype of its frames
    compared: Sequence[str]  # columns that are compared with what else is said of them
    numbers: Mapping[str, Mapping[str, int]]  # of files that are kept, by camera

    def read(self, tables: Iterable[_Table]) -> Iterator[_Piece | Usage | set[str]]:
        """Yield blocks of rows, which frames were asked for, and which columns were rounded."""
        tables = [*tables]
        episodes = tables[0].episodes  # those of all of them
        at_once = max(1, BLOCK_BYTES // self.columns.row_bytes)
        with contextlib.closing(Videos(self.root, episodes, self.shapes, self.fps, self.where, self.numbers)) as videos:
            for table in tables:
                where, first = _name(self.where, table.file), table.start
                with reading_arrow(where):
                    for read in table_batches(table.file, at_once):
                        # Rows after the last whole episode, where the dataset is read in part, are passed over.
                        batch = read.slice(0, max(0, int(episodes.ends[-1]) - first))
                        block = Block(batch, where, first)
                        numbers = _episodes_of(block, episodes)
                        rows = self.columns.rows(block, *numbers, videos)
                        kept = [name for name in self.compared if name in batch.schema.names]
                        yield _Piece(rows, batch.select(kept), table.file, *numbers, first)
                        first += batch.num_rows
        yield from videos.usages
        yield self.columns.rounded


def _episodes_of(block: Block, episodes: Episodes) -> tuple[np.ndarray, np.ndarray]:
    """Return the episode of each row, and which of its steps it is, as the metadata say."""
    rows = np.arange(block.first, block.first + block.batch.num_rows)
    at = np.searchsorted(episodes.ends, rows, "right")
    begins = np.concatenate([[episodes.begin], episodes.ends[:-1]])
    expected = {"episode_index": at + episodes.number, "frame_index": rows - begins[at]}
    for name, values in expected.items():
        stated = block.numbers(name)
        if (stated != values).any():
            row = int(np.argmax(stated != values))
            raise IntegrityError(
                f"{block.where}: {name} of row {block.first + row} is {stated[row]}, and the lengths in the metadata "
                f"say {values[row]}."
            )
    return expected["episode_index"], expected["frame_index"]


def _steps(
    asked: Asked,
    reader: _Reader,
    tables: Sequence[_Table],
    episodes: Episodes,
    agreement: Agreement,
    details: _Details | None,
    opened: Opened,
) -> Iterator[Steps]:
    columns, usages, notes = reader.columns, list[Usage](), opened.notes
    roles = {column.role for column in columns.columns.values()}
    persistent: dict[int, dict[str, None]] = {}  # language rows of open episodes
    differing: list[int] = []  # episodes whose steps have several

    def metadata(number: int) -> dict[str, Any]:
        words: dict[str, Any] = {} if episodes.tasks is None else {"task": episodes.tasks[number]}
        words |= columns.of_episodes
        if OF_EPISODE in roles:
            texts = [*persistent.pop(number)]
            if len(texts) > 1:
                differing.append(number)
                each = [json.dumps(entry, ensure_ascii=False) for t in texts for entry in json.loads(t)]
                texts = [f"[{', '.join(dict.fromkeys(each))}]"]
            words[PERSISTENT] = texts[0]
        return words

    says = {"truncated"} & roles | ({"terminated"} if columns.done else set())
    cutter = EpisodeCutter(
        ends_of_lengths(episodes.lengths),
        reader.where,
        unknown=UnknownEnds(asked.options, reader.where, says=says if details is None else FLAGS),
        metadata=metadata if details is None else details.metadata,
        seed=lambda number: None if details is None else details.seed(number),
        has_final_rows=details is None,
    )
    lengths = np.array(episodes.lengths)
    for part in read_pieces(asked, reader.read, tables):
        if isinstance(part, Usage):
            usages.append(part)
        elif isinstance(part, set):
            columns.rounded.update(part)
        else:
            rows = part.rows
            agreement.add(part.batch, part.file, part.episodes, part.steps, part.first)
            for camera, column in columns.of_kind("image", "video").items():
                frames = rows[column.role]
                # Videos that are kept are numbers of frames, none of which is decoded.
                if frames.dtype == np.uint8 and frames.ndim == 4 and len(frames) and not column.is_deep:
                    agreement.add_images(camera, frames)
            if OF_EPISODE in roles:
                texts = rows.pop(OF_EPISODE)
                for episode, text in zip(part.episodes.tolist(), texts, strict=True):
                    persistent.setdefault(episode, {})[text] = None
            if details is None:
                yield from cutter.add(rows)
                continue
            last = np.flatnonzero(part.steps == lengths[part.episodes] - 1)
            rows = details.add_finals(rows, part.episodes, last)
            yield from map(details.unflattened, cutter.add(rows))
    for name, camera in zip(opened.videos, reader.numbers, strict=True):
        each = {usage.file: usage.facts for usage in usages if usage.camera == camera and usage.facts is not None}
        opened.video_facts[name] = joined_facts([*each.values()])
    notes += [*cutter.notes(), *usage_notes(usages), *agreement.notes()]
    notes += [Note("rounded", sorted(columns.rounded))] if columns.rounded else []
    notes += [Note("words_differ", [PERSISTENT], count=len(differing))] if differing else []


def _read_kept(root: Path, info: Info, where: str) -> tuple[Kept, Columns] | None:
    """Return what an export of orlog keeps, and its columns; None where the dataset is none."""
    if not (root / KEPT).exists():
        return None
    where = f"{where}, {KEPT.as_posix()}"
    try:
        kept = msgspec.convert(read_document(root, KEPT, where), Kept)
        schema = Schema(
            observation_space=space_from_json(kept.observation_space),
            action_space=space_from_json(kept.action_space),
            reward_dtype=_numbers(kept.reward_dtype),
            extras={
                name: ColumnSpec(name, _numbers(extra.dtype), tuple(extra.shape)) for name, extra in kept.extras.items()
            },
            variable={name: "text" for name, extra in kept.extras.items() if extra.kind},
        )
    except (msgspec.ValidationError, UnicodeError, TypeError, SchemaError) as error:
        raise SchemaError(f"{where}: {clause(error):.300}.") from error
    schema.check(where)
    specs = schema.columns()
    wanted = [
        name
        for name in {*specs, *schema.variable}
        if not name.startswith("episodes/") and name.partition("@")[0] not in schema.variable
    ]
    wanted += [name for name in schema.variable if name.startswith("infos/")]
    if sorted(kept.features.values()) != sorted(wanted):
        raise SchemaError(f"{where}: expected a feature for each of {sorted(wanted)}, found {kept.features}.")
    columns = {}
    for feature, name in kept.features.items():
        base = name.partition("/")[0]
        role = name if base == "infos" else f"{base.rstrip('s')}/{name}"
        columns[feature] = _kept_column(ROLES.get(name, role), name, schema)
        described = info.features.get(feature)
        if described is not None and described.dtype == "language":
            columns[feature] = dataclasses.replace(columns[feature], kind="language")
        elif described is not None and is_deep(described) and columns[feature].dtype in TYPES:
            columns[feature] = dataclasses.replace(columns[feature], kind=described.dtype, is_deep=True)
    sizes = [spec.dtype.itemsize * math.prod(spec.shape) + 8 for spec in specs.values()]
    return kept, Columns(schema=schema, columns=columns, row_bytes=2 * sum(sizes))


def _numbers(dtype: str) -> np.dtype[Any]:
    numbers = np.dtype(dtype)
    if numbers.kind not in "biuf":
        raise TypeError(f"expected a dtype of numbers, found {dtype!r:.20}")
    return numbers


def _kept_column(role: str, name: str, schema: Schema) -> Column:
    if name in schema.variable:
        return Column(role, "text")
    spec = schema.columns()[name]
    return Column(role, "image" if image_shape(spec) else "number", spec.dtype, spec.shape)


class _Details:
    """What an export of orlog keeps of each episode, in their order."""

    def __init__(self, root: Path, schema: Schema, where: str) -> None:
        self._root, self._schema, self._where = root, schema, where
        observations = space_columns(schema.observation_space, "observations")
        self._finals = {FINAL + spec.name: spec.name for spec in observations}
        self._extras = {
            EPISODE + name.removeprefix("episodes/"): name for name in schema.extras if name.startswith("episodes/")
        }
        self._known: dict[int, dict[str, Any]] = {}  # of episodes whose last rows were read
        self._episodes = self._read()

    def add_finals(self, rows: Rows, episodes: np.ndarray, last: np.ndarray) -> Rows:
        """Return rows with the observation after each; `last` are those that end an episode."""
        # Each row's next observation would do; only that of an episode's last row is asked for.
        nexts = {name: rows[f"observation/{name}"].copy() for name in self._finals.values()}
        for row in last.tolist():
            details = self._known[int(episodes[row])] = next(self._episodes)
            for column, name in self._finals.items():
                nexts[name][row] = details[column]
        return rows | {f"next_observation/{name}": values for name, values in nexts.items()}

    def metadata(self, episode: int) -> dict[str, Any]:
        return {name.removeprefix(EPISODE): self._known[episode][name] for name in self._extras}

    def seed(self, episode: int) -> int | None:
        """Return the seed of an episode, which is asked for last."""
        seed = int(self._known.pop(episode)[SEED])
        return None if seed < 0 else seed

    def unflattened(self, piece: Steps) -> Steps:
        space, action_space = self._schema.observation_space, self._schema.action_space
        return dataclasses.replace(
            piece,
            observations=unflatten(space, "observations", piece.observations),
            actions=unflatten(action_space, "actions", piece.actions),
        )

    def _read(self) -> Iterator[dict[str, Any]]:
        columns = {
            stored: _kept_column(name, name, self._schema) for stored, name in (self._finals | self._extras).items()
        }
        columns[SEED] = Column(SEED, "number", np.dtype(np.int64))
        folder, done = DETAILS if (self._root / DETAILS).is_dir() else "meta/episodes", 0
        for batch in episode_batches(self._root, [*columns], self._where, folder):
            block = Block(batch, f"{self._where}, {folder}", done)
            values = {name: read_column(block, name, of, set()) for name, of in columns.items()}
            for row in range(batch.num_rows):
                yield {name: several[row] for name, several in values.items()}
            done += batch.num_rows
        raise IntegrityError(f"{self._where}: {folder} holds {done} episodes, and the tables more.")


def _recognizes(files: Sequence[Path]) -> bool:
    return any((files[0] / info).is_file() for info in (INFO, FIRST_INFO))


FORMAT = Format(
    name="lerobot",
    open=_open,
    recognizes=_recognizes,
    extensions=("",),
    options=("columns", "no_video", "video", "horizon", "ends", "partial"),
    shares=True,
    write=write_lerobot,
    write_options=("video", "rate", "codebase"),
    losses=lerobot_losses,
    check=check_pyarrow,
    reads=(
        *(f"{table}:{name}" for name in ("*index", "timestamp") for table in TABLES),
        *(f"meta_data/info.json:{key}" for key in ("codebase_version", "fps", "video", "encoding")),
        *("./meta_data/episode_data_index.safetensors", "./meta_data/stats.safetensors"),
        *("train/state.json:_**", "train/dataset_info.json:**"),
        *(f"meta/episodes/*.parquet:{name}" for name in EPISODE_KEYS),
        *(
            f"meta/{words}s.parquet:{name}"
            for words in ("task", "subtask")
            for name in (words, f"{words}_index", "__index_level_#__")
        ),
        *("meta/stats.json:**", "meta/orlog.json:**", "meta/orlog/*.parquet:orlog/**"),
        *(f"meta/*.jsonl:{name}" for name in (*EPISODE_KEYS, "task", "task_index", "stats")),
        *(f"meta/info.json:{key}" for key in INFO_KEYS),
    ),
)
