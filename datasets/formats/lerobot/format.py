"""Reads LeRobotDataset folders, versions 1, 2.0, 2.1 and 3.0, and writes 3.0: a row for each frame.

    meta/        features, frames per second, episodes: see `lerobot/metadata.py`,
                 and `lerobot/version1.py` for version 1, which has less of them
    data/chunk-*/file-*.parquet, episode_*.parquet      one column a feature
    videos/      frames of the features that are videos

`observation.state` becomes the part `state` of a Dict of observations, and so on; `action` the action;
`next.reward` the reward, which is 0 where there is none. `next.done` says which episodes ended the task;
without it all were cut off. Episodes of LeRobot have no final observation: the last frame of one that was
cut off gives it, and its action is left out. Where the last two rows are both done, as in LeRobot's PushT, the last
one is the final observation of an episode that ended. Images (PNG in the tables) are decoded without
loss, and frames of videos as they were encoded, each found by its timestamp. `episodes/task` holds the
task in words. Other features become infos. Order, counts and lengths are compared with the metadata.
What orlog wrote comes back whole: `lerobot/exports.py`. https://github.com/huggingface/lerobot
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._containers.arrow_files import (
    array_of,
    check_pyarrow,
    count_rows,
    reading_arrow,
)
from orlog.datasets.formats._shared.episode_cutter import EpisodeCutter, Rows, ends_of_lengths
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options, Steps
from orlog.datasets.formats._shared.flags import UnknownEnds, flags_of, unknown_ends
from orlog.datasets.formats._shared.flat_rows import unbounded_space
from orlog.datasets.formats._shared.roles import base_role, said_roles
from orlog.datasets.formats._shared.trees import which_is_which
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.lerobot import version1
from orlog.datasets.formats.lerobot.agreement import Agreement
from orlog.datasets.formats.lerobot.exports import KeptRows, read_kept
from orlog.datasets.formats.lerobot.image_tables import decoded_images
from orlog.datasets.formats.lerobot.metadata import (
    INFO,
    Episodes,
    Videos,
    read_document,
    read_episodes,
    read_names,
    tables_in,
)
from orlog.datasets.formats.lerobot.rows import Tables, column_of
from orlog.datasets.formats.lerobot.writing import COUNTERS, lerobot_losses, write_lerobot
from orlog.errors import SchemaError

VERSIONS = ("v2.0", "v2.1", "v3.0")
LARGEST_IMAGE = 2**26
OBSERVATION = "observation."
INFO_KEYS = (
    *("codebase_version", "fps", "features", "robot_type", "video_path", "data_path", "splits"),
    *("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb", "total_episodes"),
    *("total_frames", "total_tasks", "total_chunks", "total_videos"),
)
EPISODE_KEYS = (
    *("episode_index", "length", "tasks", "dataset_from_index", "dataset_to_index"),
    *("videos/**", "data/**", "meta/**", "stats/**", "orlog/**"),
)
ROLES = {"action": "action", "next.reward": "reward", "next.truncated": "truncated"}
TABLES = ("data/*.parquet", "train/*.arrow")
PLACE = ("episode_index", "timestamp")
NUMBERS = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
FLOATS = ("float16", "float32", "float64")


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
    files = version1.tables_of(root, where) if is_first else tables_in(root, "data", where)
    if is_first:
        info["features"] = version1.find_features(root, files, asked.options.no_video, where)
    kept = read_kept(root, where) if version == "v3.0" else None
    features = (
        _Features(info, asked.options, where)
        if kept is None
        else KeptRows(kept, root, where, asked.options)
    )
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
        doubts=[*lacks, *features.doubts()],
        reads=[f"{table}:{name}" for name in info["features"] for table in TABLES],
        dimension_names=read_names(info["features"], features.columns()),
    )
    if not says_version:
        opened.doubts.append(
            f"info.json has no codebase_version: taken to be {version} by its files."
        )
    if kept is not None:
        opened.environment, opened.license = kept.environment, kept.license
        opened.description = kept.description
    agreement = Agreement(root, info, episodes, where)
    tables = Tables(
        root=root,
        where=where,
        files=files,
        features=features,
        fps=fps,
        total=sum(episodes.lengths),
        is_partial=bool(lacks),
        wanted=[*dict.fromkeys((*PLACE, "frame_index", *agreement.columns))],
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
    ends = np.cumsum(episodes.lengths)
    whole = int(np.searchsorted(ends, rows, "right"))
    if whole == 0:
        raise SchemaError(f"{where}: the tables hold {rows:,} frames, less than the first episode.")
    if whole < len(ends):
        doubts.append(
            f"Read in part, as asked for: the tables hold {rows:,} frames, and the metadata says "
            f"{ends[-1]:,}; the first {whole:,} of {len(ends):,} episodes are whole."
        )
    return episodes.first(whole)


def _guessed(root: Path, is_first: bool) -> str:
    """Return the version of a dataset that does not say it, by the files that only it has."""
    if is_first:
        return "v1.0"
    if (root / "meta" / "episodes").is_dir():
        return "v3.0"
    return "v2.1" if (root / "meta" / "episodes_stats.jsonl").is_file() else "v2.0"


class _Features:
    """What the columns of the tables are.

    Attributes:
        roles: What each column is here, by its name.
        images: Columns that hold images, and the shape of one.
        videos: Features that are videos, and the shape of a frame.
        schema: Spaces.
    """

    def __init__(self, info: dict[str, Any], options: Options, where: str) -> None:
        """Read the features.

        Raises SchemaError if they are not those of LeRobot, or have no action or observation.
        """
        features = info.get("features")
        if not isinstance(features, dict) or not all(
            isinstance(one, dict) for one in features.values()
        ):
            raise SchemaError(f"{where}: info.json has no features.")
        self.where, self._options = where, options
        self.roles: dict[str, str] = {}
        self.images: dict[str, tuple[int, ...]] = {}
        self.videos: dict[str, tuple[int, ...]] = {}
        self._left_out: list[str] = []
        self._rounded: set[str] = set()
        self._row_bytes = 0
        self._said = said_roles(options.columns, list(features), where)
        parts: dict[str, Any] = {}
        for name, feature in features.items():
            kind, shape = feature.get("dtype"), _shape(feature, f"{where}, {name}")
            self._row_bytes += 8 * math.prod(shape) + 8
            if name in COUNTERS and name != "timestamp":
                continue
            if kind == "video" and options.no_video:
                self._left_out.append(name)
                continue
            if kind in ("image", "video"):
                of_kind = self.images if kind == "image" else self.videos
                of_kind[name] = shape = _image_shape(feature, shape)
                kind = "uint8"
            elif kind not in (*NUMBERS, *FLOATS, "string"):
                raise SchemaError(
                    f"{where}, {name}: expected numbers, images or texts, found {kind!r:.20}."
                )
            role = self.roles[name] = self._role(name)
            if base_role(role) == "observation":
                if kind == "string":
                    raise SchemaError(f"{where}, {name}: observations that are texts are not read.")
                parts[role.partition("/")[2]] = unbounded_space(_float(kind), shape)
        named = {role: name for name, role in self.roles.items()}
        self._done = named.get("terminated", "next.done")
        if "action" not in named or not parts or ("" in parts and len(parts) > 1):
            kinds = {
                name: (_shape(one, where), str(one.get("dtype")))
                for name, one in features.items()
                if name not in COUNTERS
            }
            raise SchemaError(
                f"{where}: expected features action and observation.., found{which_is_which(kinds)}"
            )
        action = features[named["action"]]
        reward = features.get(named.get("reward", ""), {}).get("dtype")
        self.schema = Schema(
            observation_space=parts[""] if "" in parts else spaces.Dict(parts),
            action_space=unbounded_space(_float(action["dtype"]), _shape(action, where)),
            reward_dtype=np.dtype(np.float64 if reward == "float64" else np.float32),
        )

    def _role(self, name: str) -> str:
        """Return what a feature is: what the user says, else what LeRobot's names say."""
        if name in self._said:
            return self._said[name]
        role = ROLES.get(name, f"infos/{name}")
        if name.startswith(OBSERVATION) or name == "observation":
            role = f"observation/{name.removeprefix(OBSERVATION)}"
        taken = {base_role(one) for one in self._said.values()}
        return f"infos/{name}" if base_role(role) in taken - {"infos"} else role

    def columns(self) -> dict[str, str]:
        """Return the column here of each feature whose numbers may have names."""
        found = {}
        for name, role in self.roles.items():
            root, _, part = role.partition("/")
            root = {"observation": "observations", "action": "actions"}.get(root, root)
            if root in ("observations", "actions", "infos"):
                found[name] = f"{root}/{part}" if part else root
        return found

    def doubts(self) -> list[str]:
        """Return what is left out or not known."""
        said = []
        if self._left_out:
            said.append(f"Left out, as asked for: the videos {', '.join(self._left_out)}.")
        if self.videos:
            said.append(
                f"Frames are what their videos show, not what was recorded: {', '.join(self.videos)}."
            )
        if "reward" not in self.roles.values():
            said.append("The dataset has no next.reward: rewards are zeros.")
        if self._done not in self.roles:
            is_said = self._options.ends or self._options.limit is not None
            said.append(
                f"The dataset has no next.done. {unknown_ends(self._options)}"
                if is_said
                else "The dataset has no next.done: all episodes were taken to be cut off."
            )
        return said

    def roundings(self) -> list[str]:
        """Return which numbers were not what info.json says, and were rounded; after the last row."""
        if not self._rounded:
            return []
        names = ", ".join(sorted(self._rounded))
        return [f"Numbers of the tables were rounded to the dtype that info.json says: {names}."]

    def row_bytes(self) -> int:
        """Return about how many bytes a row takes."""
        return self._row_bytes

    def cutter(self, episodes: Episodes) -> EpisodeCutter:
        """Return what cuts the rows of all files, which come next, into episodes."""
        tasks = episodes.tasks
        says = {"truncated"} & {*self.roles.values()}
        says |= {"terminated"} if self._done in self.roles else set()
        return EpisodeCutter(
            ends_of_lengths(episodes.lengths),
            self.where,
            metadata=lambda episode: {} if tasks is None else {"task": tasks[episode]},
            has_final_rows=True,
            unknown=UnknownEnds(self._options, self.where, says=says),
        )

    def completed(self, rows: Rows, _batch: Any, _where: str, _first: int) -> Rows:
        """Return the columns of a block as they are."""
        return rows

    def finished(self, piece: Steps) -> Steps:
        """Return a piece as it is."""
        return piece

    def rounded(self) -> set[str]:
        """Return the columns whose numbers were rounded so far; more can be added."""
        return self._rounded

    def rows(self, batch: Any, videos: Videos, where: str, first: int) -> Rows:
        """Return the columns of a block by what they are."""
        rows: Rows = {}
        cut = np.zeros(batch.num_rows, bool)
        space = self.schema.observation_space
        for name, role in self.roles.items():
            if name in self.videos:
                numbers = [
                    array_of(column_of(batch, one, where), one, where, first) for one in PLACE
                ]
                rows_of, times = numbers
                if name in batch.schema.names:  # as in version 1
                    times = version1.video_times(
                        batch.column(name), name, rows_of, f"{where}, {name}"
                    )
                values = videos.frames(name, rows_of, times)
            elif name in self.images:
                column = column_of(batch, name, where)
                values = decoded_images(column, self.images[name], f"{where}, {name}", first)
            else:
                values = array_of(column_of(batch, name, where), name, where, first)
            if base_role(role) == "observation":
                part: Any = space
                if isinstance(space, spaces.Dict):
                    part = space[role.partition("/")[2]]
                values = _shaped(values, part, f"{where}, {name}")
                values = self._typed(values, part.dtype, name, where)
            elif role == "action":
                space_of = self.schema.action_space
                values = _shaped(values, space_of, f"{where}, {name}")
                values = self._typed(values, space_of.dtype, name, where)
            elif role == "reward":
                values = _single(values, name, where, first)
                values = self._typed(values, self.schema.reward_dtype, name, where)
            elif role == "truncated":
                values = _single(values, name, where, first)
                cut = flags_of(values, name, where, first=first)
            rows[role] = values
        rows.setdefault("reward", np.zeros(batch.num_rows, self.schema.reward_dtype))
        done = self.roles.get(self._done)
        if done is not None:
            flags = _single(rows[done], self._done, where, first)
            # An episode that was cut off may be done too.
            rows["terminated"] = flags_of(flags, self._done, where, first=first) & ~cut
        return rows

    def _typed(self, values: np.ndarray, dtype: Any, name: str, where: str) -> np.ndarray:
        """Return numbers in the dtype that info.json says; rounding them is told."""
        if values.dtype == dtype:
            return values
        with np.errstate(over="ignore", invalid="ignore"):
            found = values.astype(dtype)
        differ = (found != values) & ~(np.isnan(found) & np.isnan(values))
        if differ.any():
            is_rounded = found.dtype.kind == values.dtype.kind == "f"
            if not is_rounded or np.isinf(found[differ]).any():
                raise SchemaError(
                    f"{where}, {name}: holds {values[differ][0]} as {values.dtype}, which {dtype} cannot; correct "
                    "the dtype of the feature in info.json."
                )
            self._rounded.add(name)
        return found


def _shape(feature: dict[str, Any], where: str) -> tuple[int, ...]:
    shape = feature.get("shape")
    if not isinstance(shape, list) or not all(isinstance(one, int) and one > 0 for one in shape):
        raise SchemaError(f"{where}: expected a shape, found {shape!r:.50}.")
    if math.prod(shape) > LARGEST_IMAGE:
        raise SchemaError(f"{where}: the shape {shape} is too large.")
    return tuple(shape)


def _image_shape(feature: dict[str, Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return height, width and channels; some datasets say the channels first."""
    names = feature.get("names")
    first = (isinstance(names, list) and names[:1] == ["channels"]) or (
        len(shape) == 3 and shape[0] in (1, 3)
    )
    return (*shape[1:], shape[0]) if first and len(shape) == 3 else shape


def _float(kind: str) -> np.dtype[Any]:
    """Return the dtype of a space: numbers that are no floats become float64, but for bytes."""
    return np.dtype(kind) if kind in (*FLOATS, "uint8") else np.dtype(np.float64)


def _shaped(values: np.ndarray, space: Any, where: str) -> np.ndarray:
    size = math.prod(space.shape)
    if values.size != size * len(values) or values.dtype.kind not in "biuf":
        raise SchemaError(
            f"{where}: expected {space.shape} numbers a row, found {values.shape[1:]}."
        )
    return values.reshape(len(values), *space.shape)


def _single(values: np.ndarray, name: str, where: str, first: int) -> np.ndarray:
    """Return rows of one number each, which some datasets hold in lists."""
    if values.size != len(values) or values.dtype.kind not in "biuf":
        raise SchemaError(
            f"{where}, {name}: expected one number a row, found {values.dtype} {values.shape[1:]} from row "
            f"{first} on."
        )
    return values.reshape(-1)


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
    write_options=("video", "rate"),
    losses=lerobot_losses,
    check=check_pyarrow,
    reads=(
        *(f"{table}:{name}" for name in ("*index", "timestamp") for table in TABLES),
        *(f"meta/episodes/*.parquet:{name}" for name in EPISODE_KEYS),
        *(f"meta/tasks.parquet:{name}" for name in ("task", "task_index", "__index_level_#__")),
        "meta/stats.json:**",
        *(f"meta/*.jsonl:{name}" for name in (*EPISODE_KEYS, "task", "task_index", "stats")),
        *(f"meta/info.json:{key}" for key in INFO_KEYS),
        "meta/orlog.json:**",
        "./videos/*.mp4",
        *version1.READS,
    ),
)
