"""Operations that derive a dataset from others: filters, splits, mixtures, fewer columns.

| operation | value |
|---|---|
| `filter` | an expression on columns of episodes |
| `episodes` | positions, as ranges [first, last + 1] |
| `split` | sizes, seed, part: a seeded partition of whole episodes |
| `top` | percent, by |
| `columns` | names of the optional columns that are kept |
| `combine` | weights, `tasks` or none; whether unequal spaces are padded |

A derived dataset's digest is the SHA-256 of the canonical JSON of its operation and its parents'
digests.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import gymnasium
import numpy as np

from orlog.datasets.columns.episode import Episode, summary
from orlog.datasets.columns.schema import Schema
from orlog.datasets.reading.combination import TASKS, combine
from orlog.datasets.reading.expressions import evaluate
from orlog.datasets.reading.selection import seeded_order
from orlog.datasets.reading.source import (
    MOST_EPISODES,
    ROUNDING,
    Operation,
    Source,
    SourceT,
    episode_column,
    success_column,
    success_of,
)
from orlog.errors import NotFoundError, SchemaError, wrong_type
from orlog.manifests.columns import ALWAYS, FLAGS, is_part
from orlog.manifests.documents import canonical_json
from orlog.manifests.names import did_you_mean
from orlog.manifests.spaces import named_parts

SUCCESS = "success"
"""A name in expressions: the column of episodes, else what the column with this role says."""


def filter_episodes(dataset: SourceT, condition: str | Callable[[Episode], bool]) -> SourceT:
    """Return a view of the episodes that meet a condition; see `Dataset.filter_episodes`."""
    if isinstance(condition, str):
        return apply_operation({"filter": condition}, [dataset])
    if not callable(condition):
        raise wrong_type(
            "condition", "an expression in a text or a function of an episode", condition
        )
    kept = []
    for index, episode in enumerate(dataset):
        answer: object = condition(episode)
        if getattr(answer, "shape", ()) != ():
            raise TypeError(
                "condition must return one truth value for an episode, found "
                f"{summary(answer)} for episode {index}; use .all() or .any()."
            )
        if answer:
            kept.append(index)
    return select_episodes(dataset, np.array(kept, np.int64))


def select_episodes(dataset: SourceT, index: slice | Sequence[int] | np.ndarray) -> SourceT:
    """Return a view of episodes by a slice, positions (negative: from the end) or a mask."""
    count = dataset.total_episodes
    if isinstance(index, slice):
        positions = np.arange(count)[index]
    else:
        positions = np.asarray(index)
        if positions.size == 0:
            positions = positions.astype(np.int64).reshape(-1)
        if positions.dtype == np.bool_:
            if positions.shape != (count,):
                raise IndexError(
                    f"{dataset.name}: a mask of {count} episodes has shape ({count},), found "
                    f"{positions.shape}."
                )
            positions = np.flatnonzero(positions)
        if positions.dtype.kind not in "iu" or positions.ndim != 1:
            raise IndexError(
                f"{dataset.name}: episodes are selected by a slice, integers or a mask, found "
                f"{positions.dtype} {positions.shape}."
            )
        if len(positions) and not (-count <= positions.min() and positions.max() < count):
            raise IndexError(
                f"{dataset.name}: episodes {positions.min()} to {positions.max()} of {count}."
            )
        positions = positions.astype(np.int64) % max(1, count)
    return apply_operation({"episodes": _to_ranges(positions)}, [dataset])


def top_episodes(dataset: SourceT, percent: float, *, by: str = "returns") -> SourceT:
    """Return a view of the best episodes; see `Dataset.top_episodes`."""
    if 0 < percent < 1:
        raise ValueError(
            f"{dataset.name}: top takes a percentage from 1 to 100; {percent:g} would keep {percent:g} % of the episodes. For "
            f"{100 * percent:g} % give {100 * percent:g}."
        )
    return apply_operation({"top": {"percent": float(percent), "by": by}}, [dataset])


def select_columns(dataset: SourceT, columns: Sequence[str]) -> SourceT:
    """Return a view with fewer columns; see `Dataset.select_columns`."""
    return apply_operation({"columns": sorted(set(columns))}, [dataset])


def operation_text(operation: Operation) -> str:
    """Return an operation as canonical JSON, for a lineage."""
    return canonical_json(operation).decode()


def operation_words(text: str) -> str:
    """Return an operation of a lineage in words; what is no view's operation as it is."""
    try:
        ((kind, value),) = json.loads(text).items()
        return _WORDS[kind](value)
    except (ValueError, KeyError, AttributeError, TypeError, IndexError):
        return text


_WORDS: dict[str, Callable[[Any], str]] = {
    "filter": lambda value: f"episodes with {value}",
    "episodes": lambda value: (
        "episodes "
        + ", ".join(str(a) if b - a == 1 else f"{a} to {b - 1}" for a, b in value[:20])
        + (", .." if len(value) > 20 else "")
    ),
    "split": lambda value: (
        f"part {value['part'] + 1} of a split into "
        + " : ".join(f"{size:g}" for size in value["sizes"])
        + ("" if value["seed"] is None else f", seed {value['seed']}")
    ),
    "top": lambda value: f"the best {value['percent']:g} % by {value['by']}",
    "columns": lambda value: f"only these columns: {', '.join(value)}",
    "combine": lambda value: (
        "combined"
        + (", each task alike" if value["weights"] == TASKS else "")
        + (
            f", weights {' : '.join(f'{one:g}' for one in value['weights'])}"
            if isinstance(value["weights"], list)
            else ""
        )
        + (", unequal spaces padded" if value.get("pad") else "")
    ),
    "rebuild": lambda value: f"built again, {value['finding']}",
}


def apply_operation(operation: Operation, parents: list[SourceT]) -> SourceT:
    """Return the view that an operation makes of its parents; every view is made here."""
    if len(operation) != 1:
        raise ValueError(f"an operation has one name, found {sorted(operation)!r:.99}.")
    ((kind, value),) = operation.items()
    if kind != "combine" and len(parents) != 1:
        raise ValueError(f"{kind} takes one dataset, found {len(parents)}.")
    first = parents[0]
    schema = first.schema
    if kind == "combine":
        selection, schema = combine(parents, value)
    elif kind == "columns":
        selection, schema = first.selection(), fewer_columns(first.schema, value, first.name)
    elif kind == "filter":
        selection = first.selection().take(np.flatnonzero(episodes_where(first, value)))
    elif kind == "episodes":
        selection = first.selection().take(_from_ranges(value, first.total_episodes))
    elif kind == "split":
        selection = first.selection().take(_split_part(first, value))
    elif kind == "top":
        selection = first.selection().take(_best(first, value))
    else:
        raise ValueError(f"unknown operation {kind!r:.60}.")
    body = {"operation": operation, "parents": [parent.digest for parent in parents]}
    digest = f"sha256:{hashlib.sha256(canonical_json(body)).hexdigest()}"
    return first.view(parents, operation, digest, selection, schema)


def episodes_where(dataset: SourceT, expression: Any) -> np.ndarray:
    """Return which episodes meet an expression, (E,) bool.

    Raises SchemaError if it cannot be read, or names no column of episodes.
    """
    if not isinstance(expression, str):
        raise TypeError(f"filter takes an expression, found {expression!r:.60}.")
    prefix = "episodes/"
    names = [
        name.removeprefix(prefix)
        for name in [*dataset.schema.columns(), *dataset.schema.variable]
        if name.startswith(prefix) and not is_part(name)
    ]
    of_steps = None if SUCCESS in names else success_column(dataset)
    if of_steps is not None:
        names.append(SUCCESS)

    def column(name: str) -> np.ndarray:
        if name == SUCCESS and of_steps is not None:
            return success_of(dataset, of_steps)
        values = episode_column(dataset, prefix + name)
        is_flag = dataset.roles.get(prefix + name) == SUCCESS and np.isin(values, (0, 1)).all()
        return values != 0 if is_flag else values

    return evaluate(expression, column, names, dataset.total_episodes)


def _best(dataset: SourceT, value: Any) -> np.ndarray:
    percent, by = value["percent"], value["by"]
    if set(value) != {"percent", "by"} or type(percent) is not float or not 1 <= percent <= 100:
        raise ValueError(f"top takes a percentage in [1, 100], found {percent!r:.60}.")
    name = f"episodes/{by}"
    values = dataset.column(name)
    if is_part(name) or values.ndim != 1 or values.dtype.kind not in "biuf":
        raise SchemaError(f"{dataset.name}: column {name} cannot be ordered.")
    return best_positions(values, percent)


def best_positions(values: np.ndarray, percent: float) -> np.ndarray:
    """Return the positions of the highest values, a percentage of them and at least one, ascending."""
    # NaN sorts last; of equal values, the earlier one is first.
    order = np.argsort(-values.astype(np.float64), kind="stable")
    count = math.ceil(len(values) * percent / 100 - ROUNDING)
    return np.sort(order[: max(1, count)])


def _split_part(dataset: SourceT, value: Any) -> np.ndarray:
    counts, seed, part = split_counts(dataset, value["sizes"]), value["seed"], value["part"]
    if (
        set(value) != {"sizes", "seed", "part"}
        or type(seed) not in (int, type(None))
        or type(part) is not int
        or not 0 <= part < len(counts)
    ):
        raise ValueError(f"split has sizes, seed and part, found {value!r:.99}.")
    order = np.arange(dataset.total_episodes)
    if seed is not None:
        order = seeded_order(seed, dataset.total_episodes)
    first = sum(counts[:part])
    return np.sort(order[first : first + counts[part]])


def fewer_columns(schema: Schema, names: Any, name_of_dataset: str) -> Schema:
    """Return a schema without the optional columns that are not named.

    Raises NotFoundError if there is no such column.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"columns takes a list of names, found {names!r:.60}.")
    space = schema.observation_space
    keys = {}
    if isinstance(space, gymnasium.spaces.Dict):
        keys = {f"observations/{name}": str(key) for key, name, _ in named_parts(space)}
    known = {*keys, *schema.extras, *ALWAYS, *FLAGS, "observations", "actions", "rewards"}
    for name in names:
        if name not in known:
            raise NotFoundError(
                f"{name_of_dataset}: no column {name!r:.100}"
                + (did_you_mean(name, known) or ".")
                + f" It has: {', '.join(sorted(known))}."
            )
    kept = [key for key in keys if key in names]
    if keys and kept and "observations" not in names:
        assert isinstance(space, gymnasium.spaces.Dict)
        space = gymnasium.spaces.Dict({keys[key]: space[keys[key]] for key in kept})
    return dataclasses.replace(
        schema,
        observation_space=space,
        extras={name: spec for name, spec in schema.extras.items() if name in names},
        variable={name: kind for name, kind in schema.variable.items() if name in names},
    )


def _to_ranges(positions: np.ndarray) -> list[list[int]]:
    """Return positions as ranges [first, last + 1], in their order."""
    if not len(positions):
        return []
    edges = np.flatnonzero(np.diff(positions, prepend=positions[:1] - 2) != 1)
    ends = [*edges[1:].tolist(), len(positions)]
    return [
        [int(positions[first]), int(positions[last - 1]) + 1]
        for first, last in zip(edges.tolist(), ends, strict=True)
    ]


def _from_ranges(ranges: Any, count: int) -> np.ndarray:
    total = 0
    for first, last in ranges:
        if type(first) is not int or type(last) is not int or not 0 <= first < last <= count:
            raise IndexError(f"episodes {first!r:.20} to {last!r:.20} of {count}.")
        total += last - first
    if total > MOST_EPISODES:
        raise IndexError(f"{total} episodes in a view, more than {MOST_EPISODES}.")
    if not total:
        return np.empty(0, np.int64)
    return np.concatenate([np.arange(first, last) for first, last in ranges])


def split_counts(dataset: Source, sizes: list[Any]) -> list[int]:
    """Return the number of episodes of each part of a split.

    Raises TypeError if a size is not a number; ValueError if sizes are negative, or exceed the dataset.
    """
    total = dataset.total_episodes
    counts = []
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, Real):
            raise wrong_type("sizes", "numbers", size)
    if sizes and all(isinstance(size, int | np.integer) for size in sizes):
        counts = [int(size) for size in sizes]
    elif sizes and all(0 <= size <= 1 for size in sizes) and math.fsum(sizes) <= 1 + ROUNDING:
        edges = [round(total * math.fsum(sizes[:end])) for end in range(len(sizes) + 1)]
        counts = [last - first for first, last in itertools.pairwise(edges)]
    if not counts or min(counts) < 0 or sum(counts) > total:
        raise ValueError(
            f"{dataset.name}: expected numbers of episodes that sum to at most {total}, or fractions "
            f"that sum to at most 1, found {list(sizes)}."
        )
    return counts
