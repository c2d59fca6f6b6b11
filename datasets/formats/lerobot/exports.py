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
from orlog.datasets.formats._shared.episode_cutter import Rows
from orlog.datasets.formats._shared.episodes import Steps
from orlog.datasets.formats.lerobot.columns import Column, Columns, Place, read_column
from orlog.datasets.formats.lerobot.metadata import episode_batches, read_document
from orlog.errors import IntegrityError, SchemaError, clause
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.manifest import EnvironmentRecord, Manifest
from orlog.manifests.spaces import space_from_json, space_to_json

KEPT = Path("meta") / "orlog.json"
DETAILS = "meta/orlog"  # in version 2.1, whose episodes are no table
FINAL, SEED, EPISODE = "orlog/final/", "orlog/seed", "orlog/episodes/"
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


def read_kept(root: Path, where: str) -> tuple[Kept, Columns] | None:
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
    specs = schema.columns()
    wanted = [
        name
        for name in {*specs, *schema.variable}
        if not name.startswith("episodes/") and name.partition("@")[0] not in schema.variable
    ]
    wanted += [name for name in schema.variable if name.startswith("infos/")]
    if sorted(kept.features.values()) != sorted(wanted):
        raise SchemaError(
            f"{where}: expected a feature for each of {sorted(wanted)}, found {kept.features}."
        )
    columns = {}
    for feature, name in kept.features.items():
        root_name = name.partition("/")[0]
        role = name if root_name == "infos" else f"{root_name.rstrip('s')}/{name}"
        columns[feature] = _column(ROLES.get(name, role), name, schema)
    row_bytes = sum(
        2 * (spec.dtype.itemsize * math.prod(spec.shape) + 8) for spec in specs.values()
    )
    return kept, Columns(schema=schema, columns=columns, row_bytes=row_bytes)


def _numbers(dtype: str) -> np.dtype[Any]:
    numbers = np.dtype(dtype)
    if numbers.kind not in "biuf":
        raise TypeError(f"expected a dtype of numbers, found {dtype!r:.20}")
    return numbers


def _column(role: str, name: str, schema: Schema) -> Column:
    """Return how a column of a dataset is stored."""
    if name in schema.variable:
        return Column(role, "text")
    spec = schema.columns()[name]
    return Column(role, "image" if image_shape(spec) else "number", spec.dtype, spec.shape)


def image_shape(spec: ColumnSpec) -> tuple[int, ...] | None:
    """Return height, width and channels of a column that is written as images; None of any other."""
    fits = spec.dtype == np.uint8 and len(spec.shape) == 3 and spec.shape[2] in (1, 3)
    return spec.shape if fits and 0 not in spec.shape else None


class Details:
    """What an export keeps of each episode: taken in their order, beside the rows."""

    def __init__(self, root: Path, schema: Schema, where: str) -> None:
        """Take the columns of the dataset."""
        self._root, self._schema, self._where = root, schema, where
        observations = space_columns(schema.observation_space, "observations")
        self._finals = {FINAL + spec.name: spec.name for spec in observations}
        self._extras = {
            EPISODE + name.removeprefix("episodes/"): name
            for name in schema.extras
            if name.startswith("episodes/")
        }
        self._waiting: list[dict[str, Any]] = []  # of episodes whose last rows were read, in order
        self._episodes = self._read()

    def add_finals(self, rows: Rows, is_last: np.ndarray) -> Rows:
        """Return the columns of the next rows with the observation after each; `is_last` is where an episode ends."""
        # Each row's next observation would do; only that of an episode's last row is asked for.
        nexts = {name: rows[f"observation/{name}"].copy() for name in self._finals.values()}
        for row in np.flatnonzero(is_last):
            details = next(self._episodes)
            for column, name in self._finals.items():
                nexts[name][row] = details[column]
            self._waiting.append(details)
        return rows | {f"next_observation/{name}": values for name, values in nexts.items()}

    def complete(self, piece: Steps) -> Steps:
        """Return a piece with values of the spaces, and with what is known of its episode."""
        schema = self._schema
        piece = dataclasses.replace(
            piece,
            observations=unflatten(schema.observation_space, "observations", piece.observations),
            actions=unflatten(schema.action_space, "actions", piece.actions),
        )
        if not piece.ends:
            return piece
        details = self._waiting.pop(0)
        seed = int(details[SEED])
        metadata = {name.removeprefix(EPISODE): details[name] for name in self._extras}
        return dataclasses.replace(piece, seed=None if seed < 0 else seed, metadata=metadata)

    def _read(self) -> Iterator[dict[str, Any]]:
        """Yield what is known of each episode, a few at a time."""
        columns = {
            stored: _column(name, name, self._schema)
            for stored, name in (self._finals | self._extras).items()
        }
        columns[SEED] = Column(SEED, "number", np.dtype(np.int64))
        folder, done = DETAILS if (self._root / DETAILS).is_dir() else "meta/episodes", 0
        for batch in episode_batches(self._root, [*columns], self._where, folder):
            place = Place(f"{self._where}, {folder}", done)
            values = {
                name: read_column(batch, name, column, place, set())
                for name, column in columns.items()
            }
            for row in range(batch.num_rows):
                yield {name: several[row] for name, several in values.items()}
            done += batch.num_rows
        raise IntegrityError(f"{self._where}: {folder} holds {done} episodes, and the tables more.")
