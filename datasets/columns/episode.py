"""One episode in memory, as authors pass it in and as `dataset[i]` returns it."""

from __future__ import annotations

import dataclasses
import json
import reprlib
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from orlog.datasets.looking.figures import episode_picture
from orlog.errors import SchemaError, clause, wrong_type
from orlog.manifests.names import counted

# Values of a space over some rows. Numbers: one array. Dict: a dict of columns. Tuple: a tuple of
# columns. Text, Sequence, Graph and OneOf: a list with an entry per row. The space says which of
# these it is, so a union would only make every reader of an episode cast.
Columns: TypeAlias = Any

LAST_OBSERVATION = "; observations have one row more than actions, the last one being what followed the last action"
_MOST_KEYS = 8
_ARRAY = "__array__"


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
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        steps = [*np.shape(self.rewards), "?"][0]
        return fields_summary(f"Episode of {steps} steps", fields)

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
    order = sorted(columns, key=lambda name: name != "actions")
    counts = {name: dict(_row_counts(name, columns[name], more if name == "observations" else 0)) for name in order}
    if len({count for parts in counts.values() for count in parts.values()}) < 2:
        return
    most = [Counter(parts.values()).most_common(1)[0][0] for parts in counts.values() if parts]
    expected = Counter(most).most_common(1)[0][0]
    agreeing = [name for name in columns if {*counts[name].values()} == {expected}]
    path, count = next(pair for name in columns for pair in counts[name].items() if pair[1] != expected)
    extra = more if path.partition("/")[0] == "observations" else 0
    raise SchemaError(
        f"{where}, column {path}: expected {expected + extra} rows, found {count + extra}, as the others "
        f"({', '.join(agreeing)}) are of {counted(expected, 'step')}"
        f"{LAST_OBSERVATION if extra and count == expected - extra else ''}."
    )


def _row_counts(path: str, values: Columns, more: int) -> Iterator[tuple[str, int]]:
    """Yield each column of numbers or samples, and for how many steps it has rows."""
    if isinstance(values, Mapping):
        for key, part in values.items():
            yield from _row_counts(f"{path}/{key}", part, more)
    elif isinstance(values, list) or (isinstance(values, np.ndarray) and values.ndim):
        yield path, len(values) - more


def as_numbers(values: Any) -> Any:
    """Return a list of numbers or flags as an array, if no value changes; else return it as it is.

    In a list with floats, integers become floats if these represent them exactly.
    """
    if not isinstance(values, list | tuple) or not values:
        return values
    scalars = bool | int | float | np.bool_ | np.integer | np.floating
    kinds = {np.result_type(type(v)).kind if isinstance(v, scalars) else "O" for v in values}
    if not kinds <= {"i", "u", "f"} and kinds != {"b"}:
        return values
    array = np.asarray(values)
    is_same = array.dtype.kind in "biuf" and all(
        number == value or (number != number and value != value)
        for number, value in zip(array.tolist(), values, strict=True)
    )
    return array if is_same else values


def as_infos(infos: Any) -> dict[str, Columns]:
    """Return extra columns of steps, given as columns or as a list with a dict for each step."""
    if isinstance(infos, Mapping):
        return infos if isinstance(infos, dict) else dict(infos)
    if not isinstance(infos, list | tuple) or not all(isinstance(info, Mapping) for info in infos):
        raise wrong_type("infos", "a dict of columns, or a list with a dict for each step", infos)
    names = infos[0].keys() if infos else ()
    for step, info in enumerate(infos):
        if info.keys() != names:
            missing = sorted(map(str, names ^ info.keys()))
            raise SchemaError(
                f"infos: step 0 and step {step} do not have the same names; {missing[0]!r} is in one "
                "of them only. Give every step the same names, or leave that one out."
            )
    return {name: as_column(name, [info[name] for info in infos]) for name in names}


def as_column(name: str, values: list[Any]) -> Columns:
    """Return the values of all steps as one array if they fit one, else as the given list."""
    if all(isinstance(value, np.ndarray) for value in values):
        is_even = len({(value.dtype, value.shape) for value in values}) == 1
        return np.stack(values) if is_even else values
    if all(isinstance(value, str) for value in values):
        return values
    column = as_numbers(values)
    if column is values:
        kind = type(values[0])
        odd = next((step for step, value in enumerate(values) if type(value) is not kind), 0)
        before = f" after {summary(values[0])} in step 0" if odd else ""
        raise SchemaError(
            f"infos: {name!r} must be numbers, flags, texts or arrays of one type in all steps, "
            f"found {summary(values[odd])} in step {odd}{before}. Convert it, or leave it out."
        )
    return column


def summary(value: object) -> str:
    """Return `float32[300, 2]` for an array or tensor, and similar text for containers of them."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        device = str(getattr(value, "device", "cpu"))
        place = "" if device == "cpu" else f" on {device}"
        return f"{str(dtype).removeprefix('torch.')}{list(shape)}{place}"
    if isinstance(value, Mapping):
        shown = [f"{key!r}: {summary(entry)}" for key, entry in list(value.items())[:_MOST_KEYS]]
        more = [f"{len(value) - _MOST_KEYS} more"] if len(value) > _MOST_KEYS else []
        return f"{{{', '.join(shown + more)}}}"
    if isinstance(value, list | tuple) and value:
        return f"{type(value).__name__} of {len(value)} {type(value[0]).__name__}"
    return reprlib.repr(value)


def fields_summary(name: str, fields: Mapping[str, object]) -> str:
    """Return the `repr` of a record: its name and fields, a few lines at most."""
    text = f"{name}({', '.join(f'{key}={summary(value)}' for key, value in fields.items())})"
    return "\n".join(textwrap.wrap(text, 100, subsequent_indent="    ", break_long_words=False))


def options_to_text(options: Mapping[str, Any] | None) -> str:
    """Return the options of a reset as JSON in which arrays are marked; no options are the empty text.

        {"reset_cell": np.array([1, 2])}    {"reset_cell": {"__array__": [1, 2], "dtype": "int64"}}

    Tuples become lists. Raises SchemaError if they hold something else than numbers, texts, arrays, lists and dicts.
    """
    if options is None:
        return ""
    try:
        return json.dumps(options, default=_marked, allow_nan=False)
    except (RecursionError, TypeError, ValueError) as error:
        raise SchemaError(f"options of reset cannot be kept as JSON: {clause(error)}.") from error


def options_from_text(text: str) -> dict[str, Any] | None:
    """Return the options that a text of `options_to_text` holds; None if there were none."""
    if not text:
        return None
    try:
        options = json.loads(text, object_hook=_array)
    except (RecursionError, TypeError, ValueError) as error:
        raise SchemaError(f"recorded options of reset cannot be read: {clause(error)}.") from error
    if not isinstance(options, dict):
        raise SchemaError(f"recorded options of reset are no dict: {text!r:.80}.")
    return options


def _marked(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {_ARRAY: value.tolist(), "dtype": value.dtype.name}
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be stored")


def _array(value: dict[str, Any]) -> Any:
    return np.array(value[_ARRAY], value["dtype"]) if _ARRAY in value else value
