"""What the columns of a LeRobotDataset's tables are here, by their names or as the user says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._containers.arrow_files import array_of
from orlog.datasets.formats._shared.episode_cutter import EpisodeCutter, Rows, ends_of_lengths
from orlog.datasets.formats._shared.episodes import Options, Steps
from orlog.datasets.formats._shared.flags import UnknownEnds, flags_of, unknown_ends
from orlog.datasets.formats._shared.flat_rows import as_dtype, kept_dtype, unbounded_space
from orlog.datasets.formats._shared.roles import base_role, said_roles
from orlog.datasets.formats._shared.trees import which_is_which
from orlog.datasets.formats.lerobot import version1
from orlog.datasets.formats.lerobot.camera_frames import Videos
from orlog.datasets.formats.lerobot.image_tables import decoded_images
from orlog.datasets.formats.lerobot.language import (
    OF_EPISODE,
    PERSISTENT,
    ROW_BYTES,
    SUBTASK,
    joined_texts,
    language_texts,
    subtasks_in_force,
)
from orlog.datasets.formats.lerobot.metadata import COUNTERS, PLACE, Episodes, column_of, row_size
from orlog.errors import SchemaError
from orlog.manifests.names import counted

LARGEST_IMAGE = 2**26
OBSERVATION = "observation."
DONE, TERMINATED = "next.done", "next.terminated"
ROLES = {
    "action": "action",
    "next.reward": "reward",
    "next.truncated": "truncated",
    "next.success": "infos/success",
    PERSISTENT: OF_EPISODE,
}
NUMBERS = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
FLOATS = ("float16", "float32", "float64")


class TableFeatures:
    """What the columns of the tables are.

    Attributes:
        roles: What each column is here, by its name.
        images: Columns that hold images, and the shape of one.
        videos: Features that are videos, and the shape of a frame.
        schema: Spaces.
        row_bytes: About how many bytes a row takes, or more.
        rounded: Columns whose numbers were rounded so far.
    """

    def __init__(
        self, info: dict[str, Any], options: Options, where: str, subtasks: Mapping[int, str]
    ) -> None:
        """Read the features, and take the subtasks that numbers in the tables mean.

        Raises SchemaError if they are not those of LeRobot, or have no action or observation.
        """
        features = info.get("features")
        if not isinstance(features, dict) or not all(
            isinstance(one, dict) for one in features.values()
        ):
            raise SchemaError(f"{where}: info.json has no features.")
        self.where, self._options, self._subtasks = where, options, subtasks
        self._names = {*features}
        self.roles: dict[str, str] = {}
        self.images: dict[str, tuple[int, ...]] = {}
        self.videos: dict[str, tuple[int, ...]] = {}
        self._left_out: list[str] = []
        self.rounded: set[str] = set()
        self._language: set[str] = set()
        self._persistent: dict[int, dict[str, None]] = {}  # texts of open episodes
        self._differing = 0  # episodes whose steps have several
        self.row_bytes = 0
        self._said = said_roles(options.columns, list(features), where)
        parts: dict[str, Any] = {}
        for name, feature in features.items():
            kind, shape = feature.get("dtype"), _shape(feature, f"{where}, {name}")
            self.row_bytes += 8 * math.prod(shape) + 8
            if name in COUNTERS and name != "timestamp":
                continue
            if kind == "video" and options.no_video:
                self._left_out.append(name)
                continue
            if kind in ("image", "video"):
                of_kind = self.images if kind == "image" else self.videos
                of_kind[name] = shape = _image_shape(feature, shape)
                kind = "uint8"
            elif kind == "language":
                self._language.add(name)
                self.row_bytes += ROW_BYTES
            elif kind not in (*NUMBERS, *FLOATS, "string"):
                raise SchemaError(
                    f"{where}, {name}: expected numbers, images or texts, found {kind!r:.20}."
                )
            role = self.roles[name] = self._role(name)
            if base_role(role) == "observation":
                if kind in ("string", "language"):
                    raise SchemaError(f"{where}, {name}: observations that are texts are not read.")
                parts[role.partition("/")[2]] = unbounded_space(kept_dtype(np.dtype(kind)), shape)
        named = {role: name for name, role in self.roles.items()}
        self._done = named.get("terminated", DONE)
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
        if name == TERMINATED and DONE not in self._names:
            role = "terminated"
        if name == "next.success" and {"success", *self._said.values()} & {*self._names, role}:
            role = f"infos/{name}"
        if name.startswith(OBSERVATION) or name == "observation":
            role = f"observation/{name.removeprefix(OBSERVATION)}"
        taken = {base_role(one) for one in self._said.values()}
        return f"infos/{name}" if base_role(role) in taken - {"infos"} else role

    @property
    def columns(self) -> dict[str, str]:
        """The column here of each feature whose numbers may have names."""
        found = {}
        for name, role in self.roles.items():
            root, _, part = role.partition("/")
            root = {"observation": "observations", "action": "actions"}.get(root, root)
            if root in ("observations", "actions", "infos"):
                found[name] = f"{root}/{part}" if part else root
        return found

    @property
    def doubts(self) -> list[str]:
        """What is left out or not known."""
        said = []
        if self._left_out:
            said.append(f"Left out, as asked for: the videos {', '.join(self._left_out)}.")
        if self.videos:
            said.append(
                f"Frames are what their videos show, not what was recorded: {', '.join(self.videos)}."
            )
        if "reward" not in self.roles.values() and not self._options.reward:
            said.append("The dataset has no next.reward: rewards are zeros.")
        if self._done not in self.roles:
            told = unknown_ends(self._options, self.where, {*self.roles.values()})
            if not self._options.ends and self._options.horizon is None:
                said.append("The dataset has no next.done: all episodes were taken to be cut off.")
            else:
                said += [f"The dataset has no next.done. {one}" for one in told]
        return said

    def later_doubts(self) -> list[str]:
        """Return which numbers were not what info.json says, and texts of episodes that differ; after the last row."""
        said = []
        if self.rounded:
            names = ", ".join(sorted(self.rounded))
            said.append(
                f"Numbers of the tables were rounded to the dtype that info.json says: {names}."
            )
        if self._differing:
            said.append(
                f"{PERSISTENT} differs among the steps of {counted(self._differing, 'episode')}; "
                f"{OF_EPISODE} holds all of its rows."
            )
        return said

    def cutter(self, episodes: Episodes) -> EpisodeCutter:
        """Return what cuts the rows of all files, which come next, into episodes."""
        self._tasks = episodes.tasks
        says = {"truncated"} & {*self.roles.values()}
        says |= {"terminated"} if self._done in self.roles else set()
        return EpisodeCutter(
            ends_of_lengths(episodes.lengths),
            self.where,
            metadata=self._metadata,
            has_final_rows=True,
            unknown=UnknownEnds(self._options, self.where, says=says),
        )

    def _metadata(self, episode: int) -> dict[str, str]:
        said = {} if self._tasks is None else {"task": self._tasks[episode]}
        if self.roles.get(PERSISTENT) == OF_EPISODE:
            texts = [*self._persistent.pop(episode)]
            self._differing += len(texts) > 1
            said[PERSISTENT] = joined_texts(texts)
        return said

    @property
    def cameras(self) -> dict[str, str]:
        """What the frames of each camera are here."""
        return {name: self.roles[name] for name in (*self.images, *self.videos)}

    def completed(self, rows: Rows, batch: Any, where: str, first: int) -> Rows:
        """Return the columns of a block but for what is one value in an episode, which is kept until it ends."""
        texts = rows.pop(OF_EPISODE, None)
        if texts is not None:
            episodes = array_of(batch.column(PLACE[0]), PLACE[0], where, first).astype(np.int64)
            for episode, text in zip(episodes.tolist(), texts, strict=True):
                self._persistent.setdefault(episode, {})[text] = None
        return rows

    def finished(self, piece: Steps) -> Steps:
        """Return a piece as it is."""
        return piece

    def rows(self, batch: Any, videos: Videos, where: str, first: int) -> Rows:
        """Return the columns of a block by what they are."""
        rows: Rows = {}
        cut = np.zeros(batch.num_rows, bool)
        space: Any = self.schema.observation_space
        for name, role in self.roles.items():
            place = f"{where}, {name}"
            if name in self.videos:
                episodes, steps, times = (
                    array_of(column_of(batch, column, where), column, where, first)
                    for column in PLACE
                )
                if name in batch.schema.names:  # as in version 1
                    times = version1.video_times(batch.column(name), name, episodes, place)
                values = videos.frames(name, episodes, steps, times)
            elif name in self.images:
                column = column_of(batch, name, where)
                values = decoded_images(column, self.images[name], place, first)
            elif name in self._language:
                values = language_texts(column_of(batch, name, where), name, where, first)
            else:
                values = array_of(column_of(batch, name, where), name, where, first)
            if base_role(role) in ("observation", "action"):
                part = self.schema.action_space if role == "action" else space
                if isinstance(part, spaces.Dict):
                    part = part[role.partition("/")[2]]
                values = self._typed(_shaped(values, part, place), part.dtype, place, first)
            elif role == "reward":
                values = _single(values, name, where, first)
                values = self._typed(values, self.schema.reward_dtype, place, first)
            elif role == "truncated":
                values = _single(values, name, where, first)
                cut = flags_of(values, name, where, first=first)
            elif name == "next.success" and values.size == len(values):
                values = values.reshape(-1)
            rows[role] = values
        subtasks = self._subtasks_of(rows, batch, where, first)
        if subtasks is not None:
            rows[f"infos/{SUBTASK}"] = subtasks
        rows.setdefault("reward", np.zeros(batch.num_rows, self.schema.reward_dtype))
        done = self.roles.get(self._done)
        if done is not None:
            flags = _single(rows[done], self._done, where, first)
            rows["terminated"] = flags_of(flags, self._done, where, first=first)
            if self._done != TERMINATED:  # an episode that was cut off may be done too
                rows["terminated"] &= ~cut
        return rows

    def _subtasks_of(self, rows: Rows, batch: Any, where: str, first: int) -> np.ndarray | None:
        """Return the subtask of each row in words; None where no column tells it, or one has it already."""
        if f"infos/{SUBTASK}" in rows:
            return None
        if PERSISTENT in self._language:
            times = array_of(column_of(batch, PLACE[2], where), PLACE[2], where, first)
            return subtasks_in_force(rows[self.roles[PERSISTENT]], times)
        numbers = rows.get("infos/subtask_index")
        if not self._subtasks or numbers is None:
            return None
        unknown = {*numbers.reshape(-1).tolist()} - {*self._subtasks}
        if unknown or numbers.size != len(numbers):
            raise SchemaError(
                f"{where}: subtask_index holds {min(unknown, default='lists')}, and meta/subtasks.parquet numbers "
                f"{min(self._subtasks)} to {max(self._subtasks)}."
            )
        return np.array([self._subtasks[one] for one in numbers.reshape(-1).tolist()], object)

    def _typed(self, values: np.ndarray, dtype: Any, where: str, first: int) -> np.ndarray:
        """Return numbers in the dtype that info.json says; rounding them is told."""
        if values.dtype == dtype:
            return values
        if values.dtype.kind in "iu":
            return as_dtype(values, dtype, where, first)
        with np.errstate(over="ignore", invalid="ignore"):
            found = values.astype(dtype)
        differ = (found != values) & ~(np.isnan(found) & np.isnan(values))
        if differ.any():
            is_rounded = found.dtype.kind == values.dtype.kind == "f"
            if not is_rounded or np.isinf(found[differ]).any():
                raise SchemaError(
                    f"{where}: holds {values[differ][0]} as {values.dtype}, which {dtype} cannot; correct "
                    "the dtype of the feature in info.json."
                )
            self.rounded.add(where.rpartition(", ")[2])
        return found


def _shape(feature: dict[str, Any], where: str) -> tuple[int, ...]:
    if not 0 < row_size(feature) <= LARGEST_IMAGE:
        shape = feature.get("shape")
        raise SchemaError(
            f"{where}: expected a shape of at most {LARGEST_IMAGE:,} numbers, found {shape!r:.50}."
        )
    return tuple(feature["shape"])


def _image_shape(feature: dict[str, Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return height, width and channels; some datasets say the channels first."""
    names = feature.get("names")
    first = (isinstance(names, list) and names[:1] == ["channels"]) or (
        len(shape) == 3 and shape[0] in (1, 3)
    )
    return (*shape[1:], shape[0]) if first and len(shape) == 3 else shape


def _float(kind: str) -> np.dtype[Any]:
    """Return the dtype of actions: numbers that are no floats become float64, but for bytes."""
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
