"""What the columns of a LeRobotDataset's tables are here, by their names or as the user says, and their rows.

Columns that `info.json` does not list, as tools leave them that write it by hand, are features like others where their
rows hold numbers, texts or images of one shape in all tables; any other is named with the reason.

A row of a language column is a list of JSON with role, content, style, timestamp and more:

    language_persistent   what holds from a time on, the same rows      episodes/language_persistent, and
                          in all steps of an episode                    infos/subtask: the subtask of each step
    language_events       what happens in a step                        infos/language_events
    subtask_index         a number of meta/subtasks.parquet             infos/subtask

https://huggingface.co/docs/lerobot/language_and_recipes
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.array_files import opened_picture, picture_size, refuse_deep
from orlog.datasets.formats.arrow_files import array_of, parquet_batches, reading_arrow, table_batches
from orlog.datasets.formats.episode_cutter import Rows, flags_of, unknown_ends
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.lerobot.depth import depth_parameters, is_deep
from orlog.datasets.formats.lerobot.language import EVENTS, PERSISTENT, language_text
from orlog.datasets.formats.lerobot.metadata import COUNTERS, FIRST_VIDEO, LARGEST_ROW, Feature, Info, inside
from orlog.datasets.formats.lerobot.videos import Videos, video_shape
from orlog.datasets.formats.mapped_arrays import as_dtype, kept_dtype, unbounded_space
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.roles import base_role, said_roles, which_is_which
from orlog.errors import IntegrityError, SchemaError

OBSERVATION = "observation."
DONE, TERMINATED, SUCCESS = "next.done", "next.terminated", "next.success"
SUBTASK = "subtask"
OF_EPISODE = f"episodes/{PERSISTENT}"
ROLES = {
    "action": "action",
    "next.reward": "reward",
    "next.truncated": "truncated",
    SUCCESS: "infos/success",
    PERSISTENT: OF_EPISODE,
}
SUBTASKS = Path("meta") / "subtasks.parquet"
FLOATS = ("float16", "float32", "float64")
NUMBERS = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), *FLOATS)
LANGUAGE_BYTES = 2**14  # that the language rows of a step may take
ROWS = 1000
PASSED_OVER = "__index_level_"  # pandas' own numbers of rows


class Block(NamedTuple):
    """Rows of a table, as a batch of Arrow: what errors call the table, and the number of the first one."""

    batch: Any
    where: str
    first: int

    def stored(self, name: str) -> Any:
        """Return a column of Arrow.

        Raises SchemaError if it is not there.
        """
        if name not in self.batch.schema.names:
            raise SchemaError(f"{self.where}: has no column {name}, which the metadata say.")
        return self.batch.column(name)

    def values(self, name: str) -> np.ndarray:
        """Return the values of a column.

        Raises SchemaError if it is not there, or holds neither numbers nor texts.
        """
        return array_of(self.stored(name), name, self.where, self.first)

    def numbers(self, name: str, shape: tuple[int, ...] = ()) -> np.ndarray:
        """Return rows of numbers of a shape, by default one each, which some datasets hold in lists.

        Raises SchemaError if there are more, or these are no numbers.
        """
        values = self.values(name)
        if values.dtype.kind not in "biuf" or values.size != math.prod(shape) * len(values):
            expected = f"{shape} numbers a row" if shape else "one number a row"
            raise SchemaError(
                f"{self.where}, {name}: expected {expected}, found {values.dtype} {values.shape[1:]} from row "
                f"{self.first} on."
            )
        return values.reshape(len(values), *shape)

    def flags(self, name: str) -> np.ndarray:
        """Return a flag for each row."""
        return flags_of(self.numbers(name), name, self.where, first=self.first)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the tables, or a camera."""

    role: str  # what it is here, such as `observation/state`
    kind: str = "number"  # `number`, `flag`, `text`, `language`, `image` or `video`
    dtype: np.dtype[Any] | None = None  # what its numbers become; None if they stay as they are
    shape: tuple[int, ...] = ()  # the shape of a row, where `dtype` is given
    is_deep: bool = False  # whether it is a map of depth


@dataclasses.dataclass(kw_only=True)
class Columns:
    """What the columns of the tables are, and how to read them."""

    schema: Schema  # spaces and extra columns of the dataset
    columns: dict[str, Column]  # what each column is, by its name
    row_bytes: int  # about how many bytes a row takes, or more
    done: str = ""  # the column that says where the task ended an episode, or nothing
    # what the numbers of `subtask_index` mean
    subtasks: Mapping[int, str] = dataclasses.field(default_factory=dict)
    # what is known of each episode beside its task, the same of all
    of_episodes: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    # columns whose numbers were rounded so far
    rounded: set[str] = dataclasses.field(default_factory=set)

    def of_kind(self, *kinds: str) -> dict[str, Column]:
        """Return the columns of some kinds."""
        return {name: column for name, column in self.columns.items() if column.kind in kinds}

    def named(self) -> dict[str, str]:
        """Return the column of the dataset that each feature becomes, of those whose numbers may have names."""
        named = {}
        for name, column in self.columns.items():
            root, _, part = column.role.partition("/")
            root = {"observation": "observations", "action": "actions"}.get(root, root)
            if root in ("observations", "actions", "infos"):
                named[name] = f"{root}/{part}" if part else root
        return named

    def rows(self, block: Block, episodes: np.ndarray, steps: np.ndarray, videos: Videos) -> Rows:
        """Return the columns of some rows of a table by their roles."""
        rows: Rows = {}
        for name, column in self.columns.items():
            if column.kind != "video":
                rows[column.role] = read_column(block, name, column, self.rounded)
                continue
            is_first = name in block.batch.schema.names
            times = _film_times(block, name, episodes) if is_first else block.numbers("timestamp")
            rows[column.role] = videos.frames(name, episodes, steps, times)
        self._add_subtasks(rows, block)
        rows.setdefault("reward", np.zeros(len(steps), self.schema.reward_dtype))
        if self.done:
            rows["terminated"] = block.flags(self.done)
            if self.done != TERMINATED:  # an episode that was cut off may be done too
                rows["terminated"] &= ~rows.get("truncated", np.zeros(len(steps), bool))
        return rows

    def _add_subtasks(self, rows: Rows, block: Block) -> None:
        role, persistent = f"infos/{SUBTASK}", self.of_kind("language").get(PERSISTENT)
        if role in rows:
            return
        if persistent is not None:
            rows[role] = _subtasks_in_force(rows[persistent.role], block.values("timestamp"))
        elif self.subtasks and "infos/subtask_index" in rows:
            numbers = block.numbers("subtask_index").tolist()
            unknown = {*numbers} - {*self.subtasks}
            if unknown:
                raise SchemaError(f"{block.where}: no subtask has the subtask_index {min(unknown)}.")
            rows[role] = np.array([self.subtasks[number] for number in numbers], object)


def read_column(block: Block, name: str, column: Column, rounded: set[str]) -> np.ndarray:
    """Return the rows of a column that is no video; one whose numbers had to be rounded is added to `rounded`.

    Raises SchemaError if it holds something else than the metadata say; IntegrityError if an image is damaged.
    """
    if column.kind == "image":
        return _images(block, name, column)
    if column.kind == "language":
        return _language_texts(block, name)
    if column.kind == "flag":
        return block.flags(name)
    if column.dtype is not None:
        values = block.numbers(name, column.shape)
        return _typed(values, column.dtype, block, name, rounded)
    values = block.values(name)
    if column.kind == "text" and values.dtype.kind != "O":
        raise SchemaError(f"{block.where}, {name}: expected texts, found {values.dtype}.")
    return values.reshape(-1) if name == SUCCESS and values.size == len(values) else values


def _typed(values: np.ndarray, dtype: np.dtype[Any], block: Block, name: str, rounded: set[str]) -> np.ndarray:
    if values.dtype == dtype or values.dtype.kind in "iu":
        return as_dtype(values, dtype, f"{block.where}, {name}", block.first)
    with np.errstate(over="ignore", invalid="ignore"):
        typed = values.astype(dtype)
    differ = (typed != values) & ~(np.isnan(typed) & np.isnan(values))
    if differ.any():
        is_rounded = typed.dtype.kind == values.dtype.kind == "f"
        if not is_rounded or np.isinf(typed[differ]).any():
            raise SchemaError(
                f"{block.where}, {name}: holds {values[differ][0]} as {values.dtype}, which {dtype} cannot; correct "
                "the dtype of the feature in info.json."
            )
        rounded.add(name)
    return typed


def _images(block: Block, name: str, column: Column) -> np.ndarray:
    """Return images, files as Hugging Face's datasets have them, (rows, height, width, channels) of the column's dtype."""
    stored, shape, dtype = block.stored(name), column.shape, np.dtype(column.dtype)
    images = np.empty((len(stored), *shape), dtype)
    for row, item in enumerate(stored.to_pylist()):
        where = f"{block.where}, {name}, row {block.first + row}"
        with _opened_image(item, where, column.is_deep) as image:
            size, image_dtype = picture_size(image), _dtype_of(image)
            if size not in (shape, (*shape, 1)):
                raise SchemaError(f"{where}: expected an image of {shape}, found {size}.")
            if column.is_deep and image_dtype != dtype:
                raise SchemaError(f"{where}: expected depth that is {dtype} as in the first row, found {image_dtype}.")
            images[row] = np.asarray(image).reshape(shape)
    return images


@contextlib.contextmanager
def _opened_image(item: object, where: str, is_deep: bool) -> Iterator[Any]:
    if not is_deep:
        with opened_picture(_bytes_of(item, where), where) as image:
            yield image
        return
    with opened_picture(_stored_bytes(item, where), where, ("PNG", "TIFF")) as image:
        if image.format == "TIFF" and image.info.get("compression") != "raw":
            raise SchemaError(f"{where}: a TIFF that is compressed is not read; LeRobot stores depth without.")
        if len(image.getbands()) != 1:
            raise SchemaError(f"{where}: expected depth of one channel, found {image.mode}.")
        yield image


def _dtype_of(image: Any) -> np.dtype[Any]:
    """Return what Pillow's pixels are; it opens a PNG of 16 bits as 32, which hold no more."""
    return np.dtype({"L": np.uint8, "F": np.float32}.get(image.mode, np.uint16))


def _bytes_of(item: object, where: str) -> bytes:
    data = _stored_bytes(item, where)
    refuse_deep(data, where)
    return data


def _stored_bytes(item: object, where: str) -> bytes:
    data = item.get("bytes") if isinstance(item, dict) else None
    if not isinstance(data, bytes):
        raise SchemaError(f"{where} holds no image; images in files are not read.")
    return data


def first_depths(info: Info, files: Sequence[Path], where: str) -> dict[str, np.dtype[Any]]:
    """Return the dtype of each feature that is a map of depth: uint16 of a video, of an image that of the first one.

    Raises SchemaError if an image is none of depth; IntegrityError if it is damaged.
    """
    dtypes = {name: np.dtype(np.uint16) for name, feature in info.features.items() if is_deep(feature)}
    for name in dtypes:
        if info.features[name].dtype != "image":
            continue
        batch = next(parquet_batches(files[0], where, [name], 1), None)
        if batch is not None and batch.num_rows:
            with _opened_image(batch.column(0)[0].as_py(), f"{where}, {name}, row 0", is_deep=True) as image:
                dtypes[name] = _dtype_of(image)
    return dtypes


def _film_times(block: Block, camera: str, episodes: np.ndarray) -> np.ndarray:
    """Return the timestamps of frames that rows of version 1 name."""
    column, where = block.stored(camera), f"{block.where}, {camera}"
    if not _has_fields(column, "path", "timestamp"):
        raise SchemaError(f"{where}: expected paths and timestamps of videos, found {column.type}.")
    paths = zip(column.field("path").to_pylist(), episodes.tolist(), strict=True)
    for row, (path, episode) in enumerate(paths, block.first):
        expected = FIRST_VIDEO.format(video_key=camera, episode_index=episode)
        if path != expected:
            raise SchemaError(f"{where}: expected {expected}, found {path!r:.100} in row {row}.")
    return array_of(column.field("timestamp"), "timestamp", where, block.first)


def _has_fields(column: Any, *names: str) -> bool:
    from pyarrow import types

    return types.is_struct(column.type) and {field.name for field in column.type} == {*names}


def _language_texts(block: Block, name: str) -> np.ndarray:
    """Return each row of a language column as a text, (rows,) of objects; equal neighbors are one object."""
    from pyarrow import types

    column = block.stored(name)
    kind, where = (column.type, f"{block.where}: {name} holds {column.type} from row {block.first} on")
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_string(kind)):
        raise SchemaError(f"{where}, expected rows of texts.")
    texts = np.empty(len(column), object)
    before, text = None, "[]"
    for row, rows in enumerate(column):
        if before is None or not rows.equals(before):
            before = rows
            try:
                text = language_text(rows.as_py())
            except (TypeError, ValueError) as error:
                raise SchemaError(f"{where}, expected rows of texts, numbers and lists.") from error
        texts[row] = text
    return texts


def _subtasks_in_force(texts: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the subtask of each step, (rows,) of texts: of its persistent rows the last one that began, or nothing."""
    subtasks = np.full(len(texts), "", object)
    moments = times.reshape(-1).astype(np.float32)  # as LeRobot stores both
    for text in dict.fromkeys(texts.tolist()):
        began = sorted(
            (row["timestamp"], str(row.get("content") or ""))
            for row in json.loads(text)
            if isinstance(row, dict) and row.get("style") == SUBTASK and isinstance(row.get("timestamp"), int | float)
        )
        starts = np.array([start for start, _ in began], np.float32)
        contents = np.array(["", *(content for _, content in began)], object)
        here = texts == text
        subtasks[here] = contents[np.searchsorted(starts, moments[here], "right")]
    return subtasks


def read_subtasks(root: Path, where: str) -> dict[int, str]:
    """Return the texts of `meta/subtasks.parquet` by their numbers; nothing where there is no such file.

    Raises SchemaError if it holds something else; IntegrityError if it is damaged.
    """
    path = inside(root, SUBTASKS, where)
    if not path.is_file():
        return {}
    where = f"{where}, {SUBTASKS.as_posix()}"
    with reading_arrow(where):
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
    names = table.column_names
    words = next((name for name in (SUBTASK, f"{PASSED_OVER}0__") if name in names), "")
    if not words or "subtask_index" not in names:
        raise SchemaError(f"{where}: expected the columns {SUBTASK} and subtask_index, found {names}.")
    numbers, texts = (array_of(table[name], name, where, 0).tolist() for name in ("subtask_index", words))
    return dict(zip(numbers, map(str, texts), strict=True))


def listed_columns(
    info: Info, options: Options, where: str, subtasks: Mapping[int, str], depths: Mapping[str, np.dtype[Any]]
) -> tuple[Columns, list[Note]]:
    """Return what the features of `info.json` are, and notes about what is left out or not known.

    `depths` are the dtypes of those that are maps of depth.

    Raises SchemaError if they have no action or observation, or other things than numbers, images and texts.
    """
    mapped = said_roles(options.columns, list(info.features), where)
    columns: dict[str, Column] = {}
    left_out, row_bytes = [], 0
    for name, feature in info.features.items():
        row_bytes += 8 * feature.size + 8 + LANGUAGE_BYTES * (feature.dtype == "language")
        if feature.dtype == "video" and options.no_video:
            left_out.append(name)
        elif name not in COUNTERS or name == "timestamp":
            role = mapped.get(name) or _role(name, info.features, mapped)
            columns[name] = _column(feature, role, f"{where}, {name}", depths.get(name))
    by_role = {column.role: name for name, column in columns.items()}
    parts = {
        column.role.partition("/")[2]: unbounded_space(column.dtype, column.shape)
        for column in columns.values()
        if base_role(column.role) == "observation" and column.dtype is not None
    }
    if "action" not in by_role or not parts or ("" in parts and len(parts) > 1):
        kinds = {
            name: (tuple(feature.shape), feature.dtype)
            for name, feature in info.features.items()
            if name not in COUNTERS
        }
        raise SchemaError(f"{where}: expected features action and observation.., found{which_is_which(kinds)}")
    action, reward = columns[by_role["action"]], columns.get(by_role.get("reward", ""))
    done = by_role.get("terminated", DONE)
    notes = [Note("videos_left_out", left_out)] if left_out else []
    parameters = {name: depth_parameters(info.features[name], f"{where}, {name}") for name in depths if name in columns}
    unknown = [name for name, several in parameters.items() if several is None]
    notes += [Note("depth_of_no_unit", unknown)] if unknown else []
    videos = [name for name, column in columns.items() if column.kind == "video" and not column.is_deep]
    notes += [Note("videos", videos)] if videos else []
    if reward is None and not options.reward:
        notes.append(Note("no_reward", ["next.reward"]))
    if done not in columns:
        ends = unknown_ends(options, where, {*by_role})
        if not options.ends and options.horizon is None:
            notes.append(Note("no_done", [DONE]))
        else:
            notes += [Note("no_done_and_ends", [DONE], ends=str(note)) for note in ends]
    schema = Schema(
        observation_space=parts[""] if "" in parts else spaces.Dict(parts),
        action_space=unbounded_space(action.dtype or np.dtype(np.float64), action.shape),
        reward_dtype=(reward and reward.dtype) or np.dtype(np.float32),
    )
    done = done if done in columns else ""
    of_episodes = {
        f"depth/{columns[name].role.partition('/')[2] or 'observation'}": several
        for name, several in parameters.items()
        if several is not None
    }
    read = Columns(
        schema=schema, columns=columns, row_bytes=row_bytes, done=done, subtasks=subtasks, of_episodes=of_episodes
    )
    return read, notes


def _role(name: str, features: Mapping[str, Feature], mapped: Mapping[str, str]) -> str:
    role = ROLES.get(name, f"infos/{name}")
    if name == TERMINATED and DONE not in features:
        role = "terminated"
    if name == SUCCESS and {"success", *mapped.values()} & {*features, role}:
        role = f"infos/{name}"
    if name.startswith(OBSERVATION) or name == "observation":
        role = f"observation/{name.removeprefix(OBSERVATION)}"
    taken = {base_role(other) for other in mapped.values()} - {"infos"}
    return f"infos/{name}" if base_role(role) in taken else role


def _column(feature: Feature, role: str, where: str, depth: np.dtype[Any] | None = None) -> Column:
    kind, shape, base = feature.dtype, tuple(feature.shape), base_role(role)
    if kind in ("image", "video"):
        names = feature.names
        is_first = isinstance(names, list) and names[:1] == ["channels"]
        if len(shape) == 3 and (is_first or shape[0] in (1, 3)):  # some say the channels first
            shape = (*shape[1:], shape[0])
        return Column(role, kind, depth or np.dtype(np.uint8), shape, depth is not None)
    if kind not in (*NUMBERS, "string", "language"):
        raise SchemaError(f"{where}: expected numbers, images or texts, found {kind!r:.20}.")
    if kind in ("string", "language"):
        if base in ("observation", "action", "reward"):
            raise SchemaError(f"{where}: observations, actions and rewards are numbers, not texts.")
        return Column(role, "text" if kind == "string" else kind)
    if base == "observation":
        return Column(role, "number", kept_dtype(np.dtype(kind)), shape)
    if base == "action":  # numbers that are no floats become float64, but for bytes
        is_kept = kind in (*FLOATS, "uint8")
        return Column(role, "number", np.dtype(kind if is_kept else np.float64), shape)
    if base == "reward":
        return Column(role, "number", np.dtype(np.float64 if kind == "float64" else np.float32))
    return Column(role, "flag" if base in ("terminated", "truncated") else "number")


def add_first(info: Info, root: Path, files: Sequence[Path], no_video: bool, where: str) -> None:
    """Add the features of version 1, whose `info.json` has none, by the first row of its tables.

    Raises SchemaError if a column is none that LeRobot writes; IntegrityError if a file is damaged.
    """
    with reading_arrow(where):
        batch = next(table_batches(files[0], 1), None)
        if batch is None or batch.num_rows == 0:
            raise SchemaError(f"{where}: {files[0].name} holds no rows.")
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if _has_fields(column, "path", "timestamp"):
                path = FIRST_VIDEO.format(video_key=name, episode_index=0)
                video = inside(root, Path(path), where)
                shape = (1, 1, 3) if no_video else video_shape(video, f"{where}, {video.name}")
                info.features[name] = Feature("video", [*shape])
            else:
                info.features[name] = _feature_of(column, name, where, 0)


def add_unlisted(info: Info, files: Sequence[Path], where: str) -> list[Note]:
    """Add the columns that `info.json` does not list to its features; return notes about them.

    Raises SchemaError if some tables lack a column that others have, and that is listed; IntegrityError if one is
    damaged.
    """
    tables: dict[Path, list[str]] = {}
    for file in files:
        with reading_arrow(f"{where}, {_short(file)}"):
            import pyarrow.parquet

            tables[file] = pyarrow.parquet.read_schema(file).names
    read, left_out = [], []
    for name in dict.fromkeys(name for names in tables.values() for name in names):
        lacking = [file for file, names in tables.items() if name not in names]
        if name in info.features and lacking:
            raise SchemaError(
                f"{where}: {len(lacking):,} of {len(files):,} tables have no column {name}, such as {_short(lacking[0])}."
            )
        is_counter = name in COUNTERS and name != "timestamp"
        if name in info.features or is_counter or name.startswith(PASSED_OVER):
            continue
        if lacking:
            count = len(files) - len(lacking)
            left_out.append(f"{name} (only in {count:,} of {len(files):,} tables)")
            continue
        try:
            info.features[name] = _unlisted_feature(files, name, where)
            read.append(name)
        except SchemaError as error:
            left_out.append(f"{name} ({str(error).rstrip('.')})")
    notes = [Note("unlisted", read)] if read else []
    if left_out:
        notes.append(Note("unlisted_left_out", reasons="; ".join(left_out)))
    return notes


def _unlisted_feature(files: Sequence[Path], name: str, where: str) -> Feature:
    if name in (PERSISTENT, EVENTS):
        return Feature("language", [1])
    feature: Feature | None = None
    for file in files:
        place, done = _short(file), 0
        for batch in parquet_batches(file, f"{where}, {place}", [name], ROWS):
            here = _feature_of(batch.column(0), name, place, done)
            if here.dtype == "image":
                return here
            feature = feature or here
            if here != feature:
                raise SchemaError(
                    f"{place} holds {here.dtype} {here.shape} from row {done} on, and tables before "
                    f"{feature.dtype} {feature.shape}"
                )
            done += batch.num_rows
    if feature is None or not 0 < feature.size <= LARGEST_ROW:
        raise SchemaError("its rows hold nothing, or too much")
    return feature


def _feature_of(column: Any, name: str, where: str, first: int) -> Feature:
    """Return what info.json would say of some rows: numbers, texts, or images as the first one of these."""
    if _has_fields(column, "bytes", "path"):
        where = f"{where}, row {first}"
        try:
            with opened_picture(_bytes_of(column[0].as_py(), where), where) as image:
                return Feature("image", [*picture_size(image)])
        except IntegrityError as error:
            raise SchemaError(str(error)) from error
    values = array_of(column, name, where, first)
    dtype = "string" if values.dtype.kind == "O" else str(values.dtype)
    return Feature(dtype, [*values.shape[1:]] or [1])


def _short(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"
