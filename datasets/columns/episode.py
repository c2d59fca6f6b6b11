"""One episode in memory, as authors pass it in and as `dataset[i]` returns it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from orlog.datasets.columns.summaries import fields_summary, summary
from orlog.datasets.looking.figures import episode_picture
from orlog.errors import SchemaError, wrong_type
from orlog.manifests.names import counted

# Values of a space over some rows. Numbers: one array. Dict: a dict of columns. Tuple: a tuple of
# columns. Text, Sequence, Graph and OneOf: a list with an entry per row. The space says which of
# these it is, so a union would only make every reader of an episode cast.
Columns: TypeAlias = Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Episode:
    """One run from reset to termination, truncation or the end of the recording.

    Attributes:
        observations: T + 1 rows; the last row is the observation after the last action. A dict of
            arrays where the observation space is a Dict, a tuple of them where it is a Tuple.
        actions: T rows.
        rewards: (T,) in the environment's unit; a list of numbers becomes an array.
        terminations: (T,) bool; true where the task itself ended, at the last step only.
        truncations: (T,) bool; true where the episode was cut off, at the last step only.
        infos: Extra columns of T rows each: arrays, lists of text, or lists of arrays of varying
            length. A list with a dict for each step, as environments give them, becomes columns.
        seed: Seed of the environment's reset; None if it is not known.
        metadata: Values for the whole episode: numbers, arrays or text by name.
        index: Its position in the dataset or view it was read from; not written.
    """

    observations: Columns
    actions: Columns
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    infos: dict[str, Columns] = dataclasses.field(default_factory=dict)
    seed: int | None = None
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    index: int | None = None

    def __post_init__(self) -> None:
        """Turn lists into arrays.

        Raises TypeError if infos are neither columns nor a list of dicts; SchemaError if infos of two steps
        differ in their names or types, or a column has another number of rows than the others.
        """
        for name in ("rewards", "terminations", "truncations"):
            object.__setattr__(self, name, as_numbers(getattr(self, name)))
        object.__setattr__(self, "infos", as_infos(self.infos))
        names = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
        check_rows({name: getattr(self, name) for name in names}, "Episode")

    def __repr__(self) -> str:
        """Return its fields, with shapes and dtypes in place of values."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return fields_summary(f"Episode of {_steps_of(self.rewards)} steps", fields)

    def plot(self) -> Any:
        """Return a matplotlib figure: the course of each column of numbers over the steps, and frames.

        Raises MissingExtraError if matplotlib is not installed.
        """
        return episode_picture(self)

    def __len__(self) -> int:
        """Return the number of steps T."""
        return len(self.rewards)


def check_rows(columns: Mapping[str, Columns], where: str, *, more: int = 1) -> None:
    """Refuse a column whose rows are of another number of steps than most columns', or actions' if these are as many.

    `more` is how many rows observations have beside one for each step. A dict counts as one column here, and what
    has no rows, or may have them along several axes, as none. Raises SchemaError that names the column.
    """
    rows_more = {name: more if name == "observations" else 0 for name in columns}
    steps = {
        name: dict(_row_counts(name, values, rows_more[name])) for name, values in columns.items()
    }
    if len({count for parts in steps.values() for count in parts.values()}) < 2:
        return
    counts = [*steps["actions"].values()][:1]
    counts += [Counter(parts.values()).most_common(1)[0][0] for parts in steps.values() if parts]
    expected = Counter(counts).most_common(1)[0][0]
    agreeing = [name for name, parts in steps.items() if {*parts.values()} == {expected}]
    name, path, count = next(
        (name, path, count)
        for name, parts in steps.items()
        for path, count in parts.items()
        if count != expected
    )
    hint = ""
    if count == expected - rows_more[name]:
        hint = "; observations have one row more than actions, the last one being what followed the last action"
    raise SchemaError(
        f"{where}, column {path}: expected {expected + rows_more[name]} rows, found {count + rows_more[name]}, as "
        f"the others ({', '.join(agreeing)}) are of {counted(expected, 'step')}{hint}."
    )


def _row_counts(path: str, values: Columns, more: int) -> Iterator[tuple[str, int]]:
    """Yield each column of numbers or samples, and for how many steps it has rows."""
    if isinstance(values, Mapping):
        for key, part in values.items():
            yield from _row_counts(f"{path}/{key}", part, more)
    elif isinstance(values, list) or (isinstance(values, np.ndarray) and values.ndim):
        yield path, len(values) - more


def _steps_of(rewards: object) -> str:
    return str(len(rewards)) if isinstance(rewards, np.ndarray) and rewards.ndim else "?"


def as_numbers(values: Any) -> Any:
    """Return a list of numbers or flags as an array, if no value changes; else return it as it is.

    In a list with floats, integers become floats if these represent them exactly.
    """
    if not isinstance(values, list | tuple) or not values:
        return values
    kinds = {np.result_type(type(one)).kind if _is_scalar(one) else "O" for one in values}
    if not kinds <= {"i", "u", "f"} and kinds != {"b"}:
        return values
    array = np.asarray(values)
    same = array.dtype.kind in "biuf" and all(
        one == other or (one != one and other != other)
        for one, other in zip(array.tolist(), values, strict=True)
    )
    return array if same else values


def _is_scalar(value: object) -> bool:
    return isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating)


def as_infos(infos: Any) -> dict[str, Columns]:
    """Return extra columns of steps, given as columns or as a list with a dict for each step.

    Raises TypeError if they are neither columns nor a list of dicts; SchemaError if two steps differ in their names or
    types.
    """
    if isinstance(infos, Mapping):
        return infos if isinstance(infos, dict) else dict(infos)
    if not isinstance(infos, list | tuple) or not all(isinstance(one, Mapping) for one in infos):
        raise wrong_type("infos", "a dict of columns, or a list with a dict for each step", infos)
    for step, one in enumerate(infos):
        if one.keys() != infos[0].keys():
            missing = sorted(map(str, infos[0].keys() ^ one.keys()))
            raise SchemaError(
                f"infos: step 0 and step {step} do not have the same names; {missing[0]!r} is in one "
                "of them only. Give every step the same names, or leave that one out."
            )
    return {
        name: as_column(name, [one[name] for one in infos]) for name in (infos[0] if infos else ())
    }


def as_column(name: str, values: list[Any]) -> Columns:
    """Return the values of all steps as one array if they fit one, else as the given list."""
    if all(isinstance(one, np.ndarray) for one in values):
        if len({(one.dtype, one.shape) for one in values}) == 1:
            return np.stack(values)
        return values
    column = values if all(isinstance(one, str) for one in values) else as_numbers(values)
    if column is values and not all(isinstance(one, str) for one in values):
        odd = next((step for step, one in enumerate(values) if type(one) is not type(values[0])), 0)
        before = f" after {summary(values[0])} in step 0" if odd else ""
        raise SchemaError(
            f"infos: {name!r} must be numbers, flags, texts or arrays of one type in all steps, "
            f"found {summary(values[odd])} in step {odd}{before}. Convert it, or leave it out."
        )
    return column
