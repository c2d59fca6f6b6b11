"""What orlog's own LeRobotDatasets hold beyond LeRobot's layout, so that importing one gives equal data.

    meta/orlog.json              spaces, dtypes, and which feature is which column
    meta/episodes/..parquet      orlog/final/COLUMN       the final observation (version 2.1: meta/orlog/..parquet)
                                 orlog/seed               of the reset, -1 if it is not known
                                 orlog/episodes/NAME      columns of episodes

LeRobot passes over both. Flags are the features `next.terminated` and `next.truncated`; `next.done` is
true where one of them is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.columns.values import space_columns, unflatten
from orlog.datasets.formats._containers.arrow_files import array_of
from orlog.datasets.formats._shared.episode_cutter import EpisodeCutter, Rows, ends_of_lengths
from orlog.datasets.formats._shared.episodes import Options, Steps
from orlog.datasets.formats._shared.flags import FLAGS, UnknownEnds
from orlog.datasets.formats.lerobot.image_tables import decoded_images
from orlog.datasets.formats.lerobot.metadata import Episodes, episode_batches, read_document
from orlog.errors import IntegrityError, SchemaError, clause
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.manifest import EnvironmentRecord, Manifest
from orlog.manifests.spaces import space_from_json, space_to_json

KEPT = Path("meta") / "orlog.json"
DETAILS = "meta/orlog"  # in version 2.1, whose episodes are no table
FINAL, SEED, EPISODE = "orlog/final/", "orlog/seed", "orlog/episodes/"
LARGEST_ROW = 2**26
ROLES = {"rewards": "reward", "terminations": "terminated", "truncations": "truncated"}


class _Extra(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    extras: dict[str, _Extra]
    environment: EnvironmentRecord | None
    description: str
    license: str


def write_kept(root: Path, schema: Schema, features: dict[str, str], manifest: Manifest) -> None:
    """Write what `read_kept` reads."""
    kept = Kept(
        observation_space=space_to_json(schema.observation_space),
        action_space=space_to_json(schema.action_space),
        reward_dtype=str(schema.reward_dtype),
        features=features,
        extras={
            name: _Extra(
                str(spec.dtype), list(spec.shape), "text" if name in schema.variable else ""
            )
            for name, spec in schema.extras.items()
        },
        environment=manifest.environment,
        description=manifest.description,
        license=manifest.license,
    )
    (root / KEPT).write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1))


def read_kept(root: Path, where: str) -> tuple[Kept, Schema] | None:
    """Return what an export keeps, and its columns; None where the dataset is not one of orlog's.

    Raises SchemaError if it is not of this form; IntegrityError if it is damaged.
    """
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
                name: ColumnSpec(name, _numbers(extra.dtype), tuple(extra.shape))
                for name, extra in kept.extras.items()
            },
            variable={name: "text" for name, extra in kept.extras.items() if extra.kind},
        )
    except (msgspec.ValidationError, TypeError, SchemaError) as error:
        raise SchemaError(f"{where}: {clause(error):.300}.") from error
    schema.check(where)
    wanted = [
        name
        for name in {*schema.columns(), *schema.variable}
        if not name.startswith("episodes/") and name.partition("@")[0] not in schema.variable
    ]
    wanted += [name for name in schema.variable if name.startswith("infos/")]
    if sorted(kept.features.values()) != sorted(wanted):
        raise SchemaError(
            f"{where}: expected a feature for each of {sorted(wanted)}, found {kept.features}."
        )
    return kept, schema


def image_shape(spec: ColumnSpec) -> tuple[int, ...] | None:
    """Return height, width and channels of a column that is written as images; None of any other."""
    fits = spec.dtype == np.uint8 and len(spec.shape) == 3 and spec.shape[2] in (1, 3)
    return spec.shape if fits and 0 not in spec.shape else None


class KeptRows:
    """Reads the rows of an export; what `lerobot/rows.py` asks of the features of any dataset.

    Attributes:
        schema: The columns.
        columns: The column that each feature holds.
        row_bytes: About how many bytes a row takes.
        videos, cameras, rounded, doubts: Nothing, since all is known.
    """

    def __init__(
        self, kept: Kept, schema: Schema, root: Path, where: str, options: Options
    ) -> None:
        """Take what an export keeps, its columns, and what the user says."""
        self.schema, self.columns = schema, kept.features
        self.videos: dict[str, tuple[int, ...]] = {}
        self.cameras: dict[str, str] = {}
        self.rounded: set[str] = set()
        self.doubts: list[str] = []
        self._root, self._where, self._options = root, where, options
        self._specs = schema.columns()
        self.row_bytes = sum(
            2 * (spec.dtype.itemsize * math.prod(spec.shape) + 8) for spec in self._specs.values()
        )
        self._observations = [
            spec.name for spec in space_columns(schema.observation_space, "observations")
        ]
        self._extras = [
            name.removeprefix("episodes/") for name in schema.extras if name.startswith("episodes/")
        ]
        self._lengths: np.ndarray = np.zeros(0, np.int64)
        self._details: Iterator[dict[str, Any]] = iter(())
        self._ends: list[dict[str, Any]] = []  # of episodes whose last rows were read, in order

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what goes on from block to block, for a process that reads one."""
        return {**self.__dict__, "_details": iter(())}

    def cutter(self, episodes: Episodes) -> EpisodeCutter:
        """Return what cuts the rows of all files, which come next, into episodes."""
        self._lengths, self._details = np.array(episodes.lengths), self._read_details()
        unknown = UnknownEnds(self._options, self._where, says=FLAGS)
        return EpisodeCutter(ends_of_lengths(episodes.lengths), self._where, unknown=unknown)

    def rows(self, batch: Any, _videos: object, where: str, first: int) -> Rows:
        """Return the columns of a block by what they are."""
        rows: Rows = {}
        for feature, column in self.columns.items():
            if feature not in batch.schema.names:
                raise SchemaError(f"{where}: has no column {feature}, which orlog.json says.")
            role = ROLES.get(column, "")
            if not role:
                root, _, name = column.partition("/")
                role = f"infos/{name}" if root == "infos" else f"{root.rstrip('s')}/{column}"
            rows[role] = self._values(batch.column(feature), column, f"{where}, {feature}", first)
        return rows

    def completed(self, rows: Rows, batch: Any, where: str, first: int) -> Rows:
        """Return the columns of the next block with the observation after each step."""
        numbers = array_of(batch.column("episode_index"), "episode_index", where, first)
        episodes = numbers.astype(np.int64)  # which they equal, whatever type the table gives them
        frames = array_of(batch.column("frame_index"), "frame_index", where, first)
        # Each row's next observation would do; only that of an episode's last row is asked for.
        nexts = {name: rows[f"observation/{name}"].copy() for name in self._observations}
        for row in np.flatnonzero(frames == self._lengths[episodes] - 1):
            details = next(self._details)
            for name, values in nexts.items():
                values[row] = details[FINAL + name]
            self._ends.append(details)
        return rows | {f"next_observation/{name}": values for name, values in nexts.items()}

    def later_doubts(self) -> list[str]:
        """Return nothing: all is known."""
        return []

    def finished(self, piece: Steps) -> Steps:
        """Return a piece with values of the spaces, and with what is known of its episode."""
        schema = self.schema
        piece = dataclasses.replace(
            piece,
            observations=unflatten(schema.observation_space, "observations", piece.observations),
            actions=unflatten(schema.action_space, "actions", piece.actions),
        )
        if not piece.ends:
            return piece
        details = self._ends.pop(0)
        seed = int(details[SEED])
        return dataclasses.replace(
            piece,
            seed=None if seed < 0 else seed,
            metadata={name: details[EPISODE + name] for name in self._extras},
        )

    def _values(self, column: Any, name: str, where: str, first: int) -> np.ndarray:
        """Return the rows of a column, as the schema says."""
        if name in self.schema.variable:
            texts = array_of(column, name, where, first)
            if texts.dtype.kind != "O":
                raise SchemaError(f"{where}: expected texts, found {texts.dtype}.")
            return texts
        spec = self._specs[name]
        shape = image_shape(spec)
        if shape is not None:
            return decoded_images(column, shape, where, first)
        values = array_of(column, name, where, first)
        if values.dtype != spec.dtype or values.size != len(values) * math.prod(spec.shape):
            raise SchemaError(
                f"{where}: expected rows of {spec.dtype} {spec.shape}, found {values.dtype} "
                f"{values.shape[1:]} from row {first} on."
            )
        return values.reshape(len(values), *spec.shape)

    def _read_details(self) -> Iterator[dict[str, Any]]:
        """Yield what is known of each episode, a few at a time."""
        columns = {FINAL + name: name for name in self._observations}
        columns |= {EPISODE + name: f"episodes/{name}" for name in self._extras}
        folder, done = DETAILS if (self._root / DETAILS).is_dir() else "meta/episodes", 0
        for batch in episode_batches(self._root, [*columns, SEED], self._where, folder):
            missing = {*columns, SEED} - {*batch.schema.names}
            if missing:
                raise SchemaError(f"{self._where}, {folder}: has no column {min(missing)}.")
            values = {
                kept: self._values(batch.column(kept), name, f"{self._where}, {kept}", done)
                for kept, name in columns.items()
            }
            values[SEED] = array_of(batch.column(SEED), SEED, self._where, done)
            for row in range(batch.num_rows):
                yield {name: several[row] for name, several in values.items()}
            done += batch.num_rows
        raise IntegrityError(
            f"{self._where}: meta/episodes holds {done} episodes, and the tables more.",
            file=self._where,
        )


def _numbers(dtype: str) -> np.dtype[Any]:
    found = np.dtype(dtype)
    if found.kind not in "biuf":
        raise TypeError(f"expected a dtype of numbers, found {dtype!r:.20}")
    return found
