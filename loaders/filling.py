"""Reads a dataset's columns into the rows of `Arrays`, any range of rows at a time.

Filling a range reads only the columns that are sampled, and no more rows than it fills, so a
dataset of any size is read in bounded memory.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from jaxtyping import Int64

from orlog.datasets.columns.bounds import bounds_of, describe_outside, merge_outside
from orlog.datasets.columns.values import episode_blocks
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.columns import ColumnSpec, axis_of, offsets_column, row_ends, values_column
from orlog.manifests.spaces import leaf_spaces, space_leaves

ALLOW_NON_FINITE = "orlog.load_arrays(ds, allow_non_finite=True), whose result every sampling function takes"
_MOST_EXACT = 2**24  # float32 represents all integers up to this exactly
_FLAGS = ("terminations", "truncations")
_TEXT_ROWS = 65536  # rows whose texts are in memory at once, unless a single episode is longer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Where a part of an observation is: a column by name, or a place and shape in the matrix."""

    column: str = ""
    first: int = 0
    shape: tuple[int, ...] = ()

    @property
    def place(self) -> slice:
        """Its numbers in a row of the matrix."""
        return slice(self.first, self.first + math.prod(self.shape))


class TextTable:
    """The distinct texts of a column, as far as it was read.

        column    "go to the door"   "go to the door"   "open it"   "go to the door"
        places     0                  0                  1           0
        texts     ("go to the door", "open it"): in the order in which they first occur

    So each distinct text needs to be encoded once, and a batch of places selects its encodings. Rows must be read
    in order, since places follow the first occurrence of texts.
    """

    def __init__(self, column: str) -> None:
        self._column = column
        self._places: dict[bytes, int] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts by place."""
        try:
            return tuple(text.decode() for text in self._places)
        except UnicodeDecodeError as error:
            raise SchemaError(f"column {self._column}: a text is not UTF-8: {error.object!r:.80}.") from error

    def read(self, dataset: Dataset, start: int, stop: int) -> Int64[np.ndarray, " rows"]:
        """Return the places of the texts of rows `start` to `stop - 1`; add new texts to the table."""
        if start == stop:
            return np.empty(0, np.int64)
        ends = row_ends(self._column, dataset.episode_lengths)
        first, last = np.searchsorted(ends, [start, stop - 1], "right")
        edges = episode_blocks(ends[first : last + 1], _TEXT_ROWS) + first
        pieces = [
            self._read_episodes(dataset, begin, end)
            for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        ]
        before = int(ends[first - 1]) if first else 0
        return np.concatenate(pieces)[start - before : stop - before]

    def _read_episodes(self, dataset: Dataset, first: int, last: int) -> Int64[np.ndarray, " rows"]:
        some = dataset[first:last]
        offsets = offsets_column(self._column)
        ends = some.column(offsets)
        texts = some.column(values_column(self._column)).tobytes()
        starts = np.concatenate([[0], ends[:-1]])
        if (starts > ends).any() or ends[-1] != len(texts):
            raise IntegrityError(
                f"{dataset.name}: column {offsets} does not count the {len(texts)} "
                f"bytes of episodes {first} to {last - 1}; run: orlog verify {dataset.name}",
                file=offsets,
            )
        known = self._places
        return np.array(
            [
                known.setdefault(texts[begin:end], len(known))
                for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)
            ],
            np.int64,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the columns of a dataset lie in its `Arrays`.

    Attributes:
        packed: First place of each column in a row of the matrix, by name.
        others: Columns that are kept as they are, by name; texts as int64 places in their table.
        tables: Tables of those of `others` that hold texts, filled as the columns are read.
        obs_dim: Numbers of observations in the matrix.
        action_dim: Numbers of actions in the matrix.
        observation_leaves: As in `Arrays`.
        parts: As in `Arrays`.
        first_rows: Row of each episode's first step.
        final_rows: Row of each episode's final observation.
        groups: The columns of those of `others` that have several side by side, as their second axis.
    """

    packed: Mapping[str, slice]
    others: Mapping[str, ColumnSpec]
    tables: Mapping[str, TextTable]
    obs_dim: int
    action_dim: int
    observation_leaves: Mapping[str, Leaf]
    parts: Mapping[str, Leaf]
    first_rows: Int64[np.ndarray, " episodes"]
    final_rows: Int64[np.ndarray, " episodes"]
    groups: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of the matrix: steps and final observations."""
        return int(self.final_rows[-1]) + 1

    @property
    def width(self) -> int:
        """Numbers in a row of the matrix."""
        return max((place.stop for place in self.packed.values()), default=0)

    @property
    def row_bytes(self) -> Mapping[str, int]:
        """Bytes per row of each of `others`, and of the matrix under the empty name."""
        kept = {name: spec.dtype.itemsize * math.prod(spec.shape) for name, spec in self.others.items()}
        return {"": 4 * self.width, **kept}

    @property
    def total_bytes(self) -> int:
        """Bytes of all rows, and of the table of steps."""
        return self.rows * sum(self.row_bytes.values()) + self.rows - len(self.final_rows)

    @property
    def forms(self) -> Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Row shape and dtype of each of `others`, and of the matrix under the empty name."""
        kept = {name: (spec.shape, spec.dtype) for name, spec in self.others.items()}
        return {"": ((self.width,), np.dtype(np.float32)), **kept}

    @property
    def texts(self) -> dict[str, tuple[str, ...]]:
        """Distinct texts by column, in order of their places; complete once all rows are filled."""
        return {name: table.texts for name, table in self.tables.items()}

    def ranges(self, name: str, limit_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of ranges that together cover all rows of a name of `row_bytes`.

        A range has at most `limit_bytes`, unless it is a single row.
        """
        # A power of two, like the size of chunks, so that most chunks are decoded only once.
        count = 1 << (max(1, limit_bytes // max(1, self.row_bytes[name])).bit_length() - 1)
        for first in range(0, self.rows, count):
            yield first, min(first + count, self.rows)

    def step_rows(self, first: int, last: int) -> Int64[np.ndarray, " steps"]:
        """Return which rows from `first` to `last - 1` are steps."""
        inside = np.searchsorted(self.final_rows, [first, last])
        return np.delete(np.arange(first, last), self.final_rows[slice(*inside)] - first)

    def place_of(self, row: int) -> tuple[int, int]:
        """Return the episode of a row, and which of its steps the row is."""
        episode = int(np.searchsorted(self.first_rows, row, "right")) - 1
        return episode, row - int(self.first_rows[episode])


def layout_of(dataset: Dataset) -> Layout:
    """Return how a dataset's columns are laid out; `read_arrays` says which are packed."""
    if not isinstance(dataset, Dataset):
        raise TypeError(f"expected a dataset, as orlog.load_dataset gives it, found {type(dataset).__name__}.")
    if dataset.total_steps == 0:
        raise SchemaError(
            f"{dataset.name}: no steps to sample from in {dataset.total_episodes} episodes; if it is "
            "a view, choose a filter that keeps some."
        )
    obs = [_form_of(dataset, *leaf) for leaf in leaf_spaces(dataset.observation_space, "observations")]
    actions = [_form_of(dataset, *leaf) for leaf in leaf_spaces(dataset.action_space, "actions")]
    kinds = {action.kind for action in actions}
    if len(actions) > 1 and "packed" in kinds and kinds != {"packed"}:
        raise SchemaError(f"{dataset.name}: actions that mix floats and integers cannot be sampled.")
    if len(actions) > 1 and any(action.shape or action.kind == "text" for action in actions if action.kind != "packed"):
        raise SchemaError(
            f"{dataset.name}: actions of several parts can be sampled if all are floats, or if each is one "
            f"integer; found {dataset.action_space}."
        )
    specs = dataset.schema.columns()
    packed: dict[str, slice] = {}
    others: dict[str, ColumnSpec] = {}
    tables: dict[str, TextTable] = {}
    leaves: dict[str, Leaf] = {}
    position = 0

    def place(form: _Form, name: str, dtype: np.dtype[Any]) -> None:
        nonlocal position
        if form.kind == "packed":
            packed[form.name] = slice(position, position + math.prod(form.shape))
            position = packed[form.name].stop
            return
        others[name] = ColumnSpec(form.name, dtype, form.shape)
        if form.kind == "text":
            tables[name] = TextTable(form.name)

    for part, inside in zip(obs, space_leaves(dataset.observation_space), strict=True):
        key = "/".join(map(str, inside.keys))
        if key in leaves:
            raise SchemaError(f"{dataset.name}: two parts of observations are both named {key!r}.")
        is_packed = part.kind == "packed"
        leaves[key] = Leaf(first=position, shape=part.shape) if is_packed else Leaf(column=part.name)
        place(part, part.name, np.dtype(np.int64) if part.kind == "text" else specs[part.name].dtype)
    obs_dim = position
    groups: dict[str, tuple[str, ...]] = {}
    if len(actions) > 1 and kinds == {"kept"}:
        groups["actions"] = tuple(action.name for action in actions)
        others["actions"] = ColumnSpec("actions", np.dtype(np.int64), (len(actions),))
    else:
        for action in actions:
            place(action, "actions", np.dtype(np.int64))
    action_dim = position - obs_dim
    for name in ("rewards", *_FLAGS):
        packed[name] = slice(position, position + 1)
        position += 1
    is_vector = not any(leaf.column for leaf in leaves.values())
    return Layout(
        packed=packed,
        others=others,
        tables=tables,
        obs_dim=obs_dim,
        action_dim=action_dim,
        observation_leaves={} if is_vector else leaves,
        parts=leaves if is_vector else {},
        groups=groups,
        **rows_of(dataset),
    )


def rows_of(dataset: Dataset) -> dict[str, Int64[np.ndarray, " episodes"]]:
    """Return the first and the final row of each episode, as fields of a `Layout`."""
    first_rows = dataset.episode_starts + np.arange(dataset.total_episodes)
    return {"first_rows": first_rows, "final_rows": first_rows + dataset.episode_lengths}


def fill_matrix(dataset: Dataset, layout: Layout, first: int, last: int, matrix: np.ndarray) -> str:
    """Read rows `first` to `last - 1` of the matrix into an array of zeros, float32 `[last - first, width]`.

    Returns where the first number that is not finite stands, as text; empty where all are finite.
    """
    step_rows = layout.step_rows(first, last)
    inside = step_rows - first
    with np.errstate(over="ignore"):  # overflows become infinite, which is found below
        for name, place in layout.packed.items():
            values = _read(dataset, layout, name, first, last, None)
            values = values.reshape(len(values), place.stop - place.start)
            is_observation = axis_of(name) == "observation"
            if name in _FLAGS:
                _check_flags(dataset, layout, name, step_rows[values[:, 0] != 0])
            elif values.dtype.kind in "iu":
                _check_exact(dataset, layout, name, values, first if is_observation else step_rows)
            if is_observation:
                matrix[:, place] = values
            else:
                matrix[inside, place] = values
    finite = np.isfinite(matrix)
    if finite.all():
        return ""
    row, number = np.unravel_index(int(finite.argmin()), finite.shape)
    column = next(name for name, place in layout.packed.items() if number < place.stop)
    episode, step = layout.place_of(first + int(row))
    return f"column {column}, episode {episode}, step {step}"


def fill_other(dataset: Dataset, layout: Layout, name: str, first: int, last: int, out: np.ndarray) -> None:
    """Read rows `first` to `last - 1` of one of `layout.others` into an array of zeros.

    Texts must be read in the order of rows, so that places follow their first occurrence.
    """
    if name in layout.groups:
        steps = layout.step_rows(first, last) - first
        for number, column in enumerate(layout.groups[name]):
            out[steps, number] = _read(dataset, layout, column, first, last, None)
        return
    column = layout.others[name].name
    table = layout.tables.get(name)
    if axis_of(column) == "observation" and table is None:
        dataset.column(column, first, last, out=out)
        return
    values = _read(dataset, layout, column, first, last, table)
    if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
        raise SchemaError(f"{dataset.name}: column {column} holds {values.max()}, more than int64 can; leave it out.")
    if axis_of(column) == "observation":
        out[:] = values
    else:
        out[layout.step_rows(first, last) - first] = values


def not_finite(dataset: Dataset, place: str, switch: str = ALLOW_NON_FINITE) -> SchemaError:
    """Return the error for a number that is not finite, at a place that `fill_matrix` returned.

    `switch` is the argument that allows such numbers.
    """
    return SchemaError(
        f"{dataset.name}: a number that is not finite in float32 in {place}; leave the episode out "
        f"(ds.filter_episodes), or take such numbers as they are: {switch}"
    )


def _read(dataset: Dataset, layout: Layout, column: str, first: int, last: int, table: TextTable | None) -> np.ndarray:
    """Return a column's values for a range of rows; for texts, their places in the table.

    Of columns of steps, and of episodes, there is a value for each of `layout.step_rows`.
    """

    def read(start: int, stop: int) -> np.ndarray:
        return table.read(dataset, start, stop) if table else dataset.column(column, start, stop)

    axis = axis_of(column)
    if axis == "observation":
        return read(first, last)
    if axis == "step":
        before = np.searchsorted(layout.final_rows, [first, last])
        return read(first - int(before[0]), last - int(before[1]))
    episodes = np.searchsorted(layout.final_rows, layout.step_rows(first, last))
    if not len(episodes):
        return read(0, 0)
    values = read(int(episodes[0]), int(episodes[-1]) + 1)
    of_steps: np.ndarray = np.take(values, episodes - episodes[0], axis=0)
    return of_steps


def _check_flags(dataset: Dataset, layout: Layout, name: str, flagged: np.ndarray) -> None:
    """Refuse an end flag inside an episode: its step would take the next episode's data."""
    episode = np.searchsorted(layout.first_rows, flagged, "right") - 1
    wrong = flagged[flagged + 1 != layout.final_rows[episode]]
    if len(wrong):
        where, step = layout.place_of(int(wrong[0]))
        raise SchemaError(
            f"{dataset.name}: column {name} is true at step {step} of episode {where}, "
            "but the episode continues after it; leave it out (ds.filter_episodes)."
        )


def _check_exact(dataset: Dataset, layout: Layout, name: str, values: np.ndarray, rows: np.ndarray | int) -> None:
    """Refuse integers so large that float32 would round them, in some rows of a column.

    `rows` are the number of each of these rows, or of the first one.
    """
    if values.dtype.itemsize <= 2 or not values.size:
        return
    if values.min() >= -_MOST_EXACT and values.max() <= _MOST_EXACT:
        return
    wrong = (values < -_MOST_EXACT) | (values > _MOST_EXACT)
    row, number = np.unravel_index(int(wrong.argmax()), wrong.shape)
    place = rows + int(row) if isinstance(rows, int) else int(rows[row])
    episode, step = layout.place_of(place)
    raise SchemaError(
        f"{dataset.name}: column {name}, episode {episode}, step {step}: {values[row, number]} is "
        "an integer that float32 would round; sample a view without the column (select_columns)."
    )


class _Form(NamedTuple):
    """How the column of a leaf is kept: packed, as integers, or as texts."""

    name: str
    shape: tuple[int, ...]
    kind: Literal["packed", "kept", "text"]


def _form_of(dataset: Dataset, name: str, leaf: gymnasium.Space[object]) -> _Form:
    match leaf:
        case gymnasium.spaces.Box():
            is_image = leaf.dtype == np.uint8 and len(leaf.shape) >= 2
            return _Form(name, leaf.shape, "kept" if is_image else "packed")
        case gymnasium.spaces.Discrete():
            return _Form(name, (), "kept")
        case gymnasium.spaces.MultiDiscrete() | gymnasium.spaces.MultiBinary():
            return _Form(name, leaf.shape or (), "kept")
        case gymnasium.spaces.Text():
            return _Form(name, (), "text")
    raise SchemaError(
        f"{dataset.name}: column {name} is a {type(leaf).__name__}, whose values are neither "
        "numbers of a fixed shape nor texts; sample a view without it (select_columns)."
    )


def warn_of_outside(dataset: Dataset) -> None:
    """Warn if a dataset has numbers outside of the bounds of their Box."""
    versions = dataset.selection().versions
    counts = merge_outside(version.manifest.outside_bounds for version in versions)
    if not counts:
        return
    bounds = bounds_of(dataset.observation_space, dataset.action_space)
    shown = [
        f"{name}: {describe_outside(counts[name], bounds.get(name))}"
        for name in sorted(counts.keys() & set(dataset.columns))
    ]
    if shown:
        which = "it holds" if dataset.operation is None else "the dataset it is a view of holds"
        warnings.warn(
            f"{dataset.name}: {which} numbers outside of their Box ({'; '.join(shown)}). A policy "
            "whose actions stay inside cannot learn the actions outside, and such observations may "
            "be mistakes; leave these episodes out (ds.filter_episodes), or record them with wider "
            "bounds.",
            stacklevel=4,
        )
