"""Which columns a dataset has, and the conversion of episodes to rows and back.

Every dataset has the columns of its two spaces, `rewards`, `terminations`, `truncations`, and
`episodes/lengths`, `episodes/seeds` (-1 where unknown), `episodes/returns`. Authors add columns of
steps (`infos/NAME`) and of episodes (`episodes/NAME`); the first episode decides their types.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np

from orlog.datasets.columns.episode import Columns, Episode, as_infos, as_numbers
from orlog.datasets.columns.values import INT, Block, describe, flatten, space_columns, unflatten
from orlog.errors import SchemaError, clause
from orlog.manifests.columns import (
    ALWAYS,
    FLAGS,
    ColumnSpec,
    can_be_named,
    is_part,
    offsets_column,
    offsets_of,
    path_of_offsets,
    values_column,
)
from orlog.manifests.roles import Values, values_of

Kind = Literal["text", "array"]

FLOAT = np.dtype(np.float64)
BOOL = np.dtype(np.bool_)
_LARGEST_ROW = 2**24


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of a dataset.

    Attributes:
        observation_space: Gymnasium space of observations.
        action_space: Gymnasium space of actions.
        reward_dtype: float32 or float64.
        extras: Columns under `infos/` and `episodes/` that the author adds, by name: dtype and row
            shape of their values.
        variable: Which of these hold a variable-length value in each row: `text`, or an `array` of
            rows of that dtype and shape.
        is_layer: Whether these are the columns of a layer: the lengths of the episodes of its base, and `extras`, which
            may be new rewards too.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    reward_dtype: np.dtype[Any] = FLOAT
    extras: Mapping[str, ColumnSpec] = dataclasses.field(default_factory=dict)
    variable: Mapping[str, Kind] = dataclasses.field(default_factory=dict)
    is_layer: bool = False

    def columns(self) -> dict[str, ColumnSpec]:
        """Return every stored column by name."""
        specs = [
            *space_columns(self.observation_space, "observations"),
            *space_columns(self.action_space, "actions"),
            ColumnSpec("rewards", self.reward_dtype, ()),
            *(ColumnSpec(name, BOOL, ()) for name in FLAGS),
            ColumnSpec("episodes/lengths", INT, ()),
            ColumnSpec("episodes/returns", FLOAT, ()),
            ColumnSpec("episodes/seeds", INT, ()),
        ]
        if self.is_layer:
            specs = [ColumnSpec("episodes/lengths", INT, ())]
        for name, spec in self.extras.items():
            if name in self.variable:
                specs.append(ColumnSpec(offsets_column(name), INT, ()))
                specs.append(ColumnSpec(values_column(name), spec.dtype, spec.shape))
            else:
                specs.append(spec)
        return {spec.name: spec for spec in specs}

    def held(self) -> dict[str, Values]:
        """Return what each column holds, by its path, as roles (`manifests/roles.py`) ask."""
        return values_of(self.columns().values(), self.variable)

    def with_extras(self, infos: Mapping[str, Any], metadata: Mapping[str, Any], where: str) -> Schema:
        """Return this schema with the extra columns of a dataset's first episode."""
        extras, variable = dict(self.extras), dict(self.variable)
        rows = {name: _one_row(value) for name, value in metadata.items()}
        given = [(f"infos/{name}", name, infos[name]) for name in infos]
        given += [(f"episodes/{name}", name, rows[name]) for name in rows]
        for column, name, values in given:
            if type(name) is not str or not can_be_named(column):
                raise SchemaError(
                    f"{where}: {column!r} cannot name a column: expected parts of letters, digits, "
                    f"'_', '-' and '.', and none of {', '.join(ALWAYS)}."
                )
            extras[column], kind = _spec_of(column, values, where)
            if kind is not None:
                variable[column] = kind
        made = dataclasses.replace(self, extras=dict(sorted(extras.items())), variable=variable)
        made.check(where)
        return made

    def check(self, where: str) -> None:
        """Refuse columns that cannot be stored together."""
        names = {*self.columns(), *self.extras}
        counters = {offsets_of(name) for name in names}
        folded: dict[str, str] = {}
        for name in sorted(names):
            for parent in itertools.accumulate(name.split("/")[:-1], "{}/{}".format):
                if parent in names:
                    raise SchemaError(f"{where}: column {name} would lie inside of column {parent}; rename one.")
            other = folded.setdefault(name.lower(), name)
            if other != name:
                raise SchemaError(
                    f"{where}: columns {other} and {name} would be one folder on disks that take "
                    "upper for lower case; rename one."
                )
            path = path_of_offsets(name)
            if path is not None and name not in counters:
                raise SchemaError(f"{where}: column {path}: values of an empty space cannot be counted.")

    def block_of(self, episode: Episode, where: str) -> Block:
        """Return the rows of all columns of a whole episode."""
        steps = count_rewards(episode.rewards, where)
        if steps == 0:
            raise SchemaError(f"{where}: has no steps.")
        block = self.step_rows(
            where,
            observations=(episode.observations, steps + 1),
            actions=episode.actions,
            rewards=episode.rewards,
            terminations=episode.terminations,
            truncations=episode.truncations,
            infos=episode.infos,
        )
        check_flags(block, where)
        total = return_of(block["rewards"])
        return block | self.episode_rows(where, steps, total, episode.seed, episode.metadata)

    def step_rows(
        self,
        where: str,
        *,
        observations: tuple[Columns, int],
        actions: Columns,
        rewards: np.ndarray | Sequence[float],
        terminations: np.ndarray | Sequence[bool],
        truncations: np.ndarray | Sequence[bool],
        infos: Mapping[str, Columns] | Sequence[Mapping[str, Any]],
    ) -> Block:
        """Return the rows of some steps; `observations` is (values, expected number of rows)."""
        steps = len(rewards)
        infos = as_infos(infos)
        try:
            block = flatten(self.observation_space, "observations", *observations)
            block |= flatten(self.action_space, "actions", actions, steps)
        except SchemaError as error:
            raise SchemaError(f"{where}: {clause(error)}.") from error
        numbers = _as_dtype(rewards, self.reward_dtype)
        block["rewards"] = _exactly("rewards", numbers, self.reward_dtype, (steps,), where)
        for name, flags in zip(FLAGS, (terminations, truncations), strict=True):
            block[name] = _exactly(name, as_numbers(flags), BOOL, (steps,), where)
        return block | self._extra_rows("infos/", infos, steps, where)

    def episode_rows(
        self, where: str, steps: int, total: float, seed: int | None, metadata: Mapping[str, Any]
    ) -> Block:
        """Return the row of an episode in each column of episodes; `total` is its return."""
        number: object = seed  # callers without type checks may pass anything
        is_number = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if seed is not None and not (is_number and 0 <= seed < 2**63):
            raise SchemaError(f"{where}: a seed lies in [0, 2^63), found {seed!r:.40}.")
        rows = {name: _one_row(value) for name, value in metadata.items()}
        return {
            "episodes/lengths": np.array([steps], INT),
            "episodes/returns": np.array([total], FLOAT),
            "episodes/seeds": np.array([-1 if seed is None else seed], INT),
            **self._extra_rows("episodes/", rows, 1, where),
        }

    def layer_rows(self, where: str, lengths: np.ndarray, given: Mapping[str, Any]) -> Block:
        """Return the rows of all columns of a layer for some episodes, of which `given` has those of the author."""
        steps, block = int(lengths.sum()), {"episodes/lengths": lengths}
        if "rewards" in given:
            rewards = _exactly("rewards", given["rewards"], self.extras["rewards"].dtype, (steps,), where)
            parts = np.split(rewards, lengths.cumsum()[:-1])
            block |= {"rewards": rewards, "episodes/returns": np.array([return_of(part) for part in parts])}
        for prefix, rows in (("infos/", steps), ("episodes/", len(lengths))):
            own = {name.removeprefix(prefix): values for name, values in given.items() if name.startswith(prefix)}
            block |= self._extra_rows(prefix, own, rows, where)
        return block

    def episode_of(self, block: Block, index: int) -> Episode:
        """Return the only episode of a block, with `index` as its position."""
        metadata: dict[str, Any] = {}
        infos: dict[str, Columns] = {}
        for name in self.extras:
            kind = self.variable.get(name)
            values = block[name] if kind is None else _variable_values(block, name, kind)
            if name.startswith("infos/"):
                infos[name.removeprefix("infos/")] = values
            else:
                value = values[0].item() if isinstance(values[0], np.generic) else values[0]
                metadata[name.removeprefix("episodes/")] = value
        seed = int(block["episodes/seeds"][0])
        return Episode(
            observations=unflatten(self.observation_space, "observations", block),
            actions=unflatten(self.action_space, "actions", block),
            rewards=block["rewards"],
            terminations=block["terminations"],
            truncations=block["truncations"],
            infos=infos,
            seed=None if seed < 0 else seed,
            metadata=metadata,
            index=index,
        )

    def _extra_rows(self, prefix: str, given: Mapping[str, Any], rows: int, where: str) -> Block:
        """Return the rows of the columns under `infos/` or `episodes/`, all of which must be given."""
        expected = {name for name in self.extras if name.startswith(prefix) and name not in ALWAYS}
        names = {f"{prefix}{name}" for name in given}
        if names != expected:
            raise SchemaError(
                f"{where}: expected the columns {sorted(expected)} under {prefix}, as in the first "
                f"episode, found {sorted(names)}."
            )
        block: Block = {}
        for key, values in given.items():
            name = f"{prefix}{key}"
            spec, kind = self.extras[name], self.variable.get(name)
            if kind is None:
                block[name] = _exactly(name, values, spec.dtype, (rows, *spec.shape), where)
                continue
            if kind == "array" and isinstance(values, np.ndarray) and values.ndim > 1:
                values = list(values)  # they happen to be of one length
            if not isinstance(values, list) or len(values) != rows:
                what = "texts" if kind == "text" else "arrays"
                raise _misfit(where, name, f"a list of {rows} {what}", values)
            pieces = [self._piece(name, value, kind, where) for value in values]
            ends = np.array([len(piece) for piece in pieces], INT).cumsum()
            empty = np.empty((0, *spec.shape), spec.dtype)
            block[offsets_column(name)] = ends
            block[values_column(name)] = np.concatenate(pieces) if pieces else empty
        return block

    def _piece(self, name: str, value: Any, kind: Kind, where: str) -> np.ndarray:
        """Return a value of any length as an array."""
        spec = self.extras[name]
        if kind == "text":
            if not isinstance(value, str):
                raise _misfit(where, name, "text", value)
            try:
                return np.frombuffer(value.encode(), np.uint8)
            except UnicodeEncodeError as error:
                why = f"not valid UTF-8: {clause(error)}"
                raise SchemaError(f"{where}, column {name}: {why}.") from error
        if not isinstance(value, np.ndarray) or value.ndim != len(spec.shape) + 1:
            raise _misfit(where, name, f"an array of rows of {spec.dtype} {spec.shape}", value)
        return _exactly(name, value, spec.dtype, (len(value), *spec.shape), where)


def count_rewards(rewards: Any, where: str) -> int:
    """Return the number of steps: that of the rewards, which must have a length."""
    try:
        return len(rewards)
    except TypeError:
        raise _misfit(where, "rewards", "an array (steps,)", rewards) from None


def return_of(rewards: np.ndarray) -> float:
    """Return the sum of rewards in float64, which may be infinite or NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(rewards.sum(dtype=FLOAT))


def check_flags(block: Block, where: str) -> None:
    """Refuse a termination or truncation before the episode's last step."""
    for name in FLAGS:
        if np.count_nonzero(block[name][:-1]):  # quicker than any()
            step = int(block[name].argmax())
            raise SchemaError(
                f"{where}, column {name}: true at step {step} of {len(block[name])}; only the last "
                "step of an episode may have it, so end the episode there."
            )


def schema_of(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    columns: Sequence[ColumnSpec],
    variable: Mapping[str, Kind],
    *,
    is_layer: bool = False,
) -> Schema:
    """Return the schema of stored columns, or of those of a layer; a SchemaError if they fit none."""
    stored = {spec.name: spec for spec in columns}
    rewards = stored.get("rewards", ColumnSpec("rewards", FLOAT, ()) if is_layer else None)
    if rewards is None or rewards.dtype not in (np.float32, np.float64):
        raise SchemaError("column rewards: expected float32 or float64 numbers.")
    extra = ("infos/", "episodes/")
    always = ("episodes/lengths",) if is_layer else ALWAYS
    extras = {
        name: spec
        for name, spec in stored.items()
        if (name.startswith(extra) or (is_layer and name == "rewards")) and not is_part(name) and name not in always
    }
    for name in variable:
        values = stored.get(values_column(name))
        if values is None or not name.startswith(extra):
            raise SchemaError(f"column {name}: listed as variable, but it has no values.")
        extras[name] = ColumnSpec(name, values.dtype, values.shape)
    schema = Schema(
        observation_space=observation_space,
        action_space=action_space,
        reward_dtype=rewards.dtype,
        extras=dict(sorted(extras.items())),
        variable=dict(variable),
        is_layer=is_layer,
    )
    expected = schema.columns()
    for name in sorted({*expected, *stored}):
        if expected.get(name) != stored.get(name):
            raise SchemaError(
                f"column {name}: the spaces need {expected.get(name, 'no such column')}, found "
                f"{stored.get(name, 'no such column')}."
            )
    return schema


def _one_row(value: Any) -> Any:
    """Return a value of a whole episode as a column of one row."""
    if isinstance(value, str):
        return [value]
    try:
        return np.asarray(value)[None]
    except ValueError:  # lists of different lengths
        return value


def _spec_of(name: str, values: Any, where: str) -> tuple[ColumnSpec, Kind | None]:
    """Return dtype and row shape of an extra column, and whether its values are of any length."""
    is_list = isinstance(values, list) and bool(values)
    if is_list and all(isinstance(value, str) for value in values):
        return ColumnSpec(name, np.dtype(np.uint8), ()), "text"
    first = values[0] if is_list else values
    is_numbers = isinstance(first, np.ndarray) and first.dtype.kind in "biuf" and first.ndim > 0
    if not is_numbers or first.dtype.itemsize > 8:
        expected = "an array of numbers, a list of texts or a list of arrays"
        raise _misfit(where, name, expected, values)
    if math.prod(first.shape[1:]) > _LARGEST_ROW:
        raise SchemaError(f"{where}, column {name}: rows of shape {first.shape[1:]} are too large.")
    spec = ColumnSpec(name, first.dtype.newbyteorder("="), first.shape[1:])
    return spec, "array" if is_list else None


def _as_dtype(values: Any, dtype: np.dtype[Any]) -> Any:
    """Return numbers in another dtype if that keeps each value exactly, else as they are."""
    values = as_numbers(values)
    is_other = isinstance(values, np.ndarray) and values.dtype != dtype
    if not is_other or values.dtype.kind not in "iuf":
        return values
    is_float = values.dtype.kind == "f"
    with np.errstate(over="ignore", invalid="ignore"):
        converted = values.astype(dtype)
        again = converted.astype(values.dtype)
    # 2**63 as float64 would come back as int64's largest number, so anything past 2**53 is refused.
    is_exact = np.array_equal(again, values, equal_nan=is_float) and (
        is_float or not (np.abs(converted) > 2 ** (np.finfo(dtype).nmant + 1)).any()
    )
    return converted if is_exact else values


def _exactly(name: str, values: Any, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> np.ndarray:
    """Return values of exactly this dtype and shape."""
    is_array = isinstance(values, np.ndarray)
    if is_array and values.dtype == dtype and values.shape == shape:
        return np.asarray(values)
    hint = ""
    if name == "rewards" and is_array and values.shape == shape:
        hint = f", which {dtype} cannot hold exactly; round them, or record with another reward_dtype"
    if name in FLAGS and is_array and values.dtype.kind == "f":
        bad = int(np.count_nonzero(~np.isfinite(values)))
        hint = f", {bad} of them not finite" if bad else "; convert it with .astype(bool)"
    raise _misfit(where, name, f"{dtype} {shape}", values, hint)


def _variable_values(block: Block, name: str, kind: Kind) -> list[Any]:
    values = block[values_column(name)]
    bounds = [0, *block[offsets_column(name)].tolist()]
    ranges = list(itertools.pairwise(bounds))
    if bounds[-1] != len(values) or any(start > end for start, end in ranges):
        raise SchemaError(f"column {offsets_column(name)}: does not count the {len(values)} values.")
    pieces = [values[start:end] for start, end in ranges]
    return [piece.tobytes().decode() for piece in pieces] if kind == "text" else pieces


def _misfit(where: str, name: str, expected: str, values: object, hint: str = "") -> SchemaError:
    return SchemaError(f"{where}, column {name}: expected {expected}, found {describe(values)}{hint}.")
