"""Views: datasets derived from others without copying, each with a digest and a lineage.

    {"view_version": 1, "digest": "sha256:..", "operation": {"filter": "returns > 100"},
     "parents": [{"dataset": "pointmaze/umaze-v1@sha256:.."}]}

The digest is the SHA-256 of the canonical JSON of the operation and the parents' digests. A parent
may be a view itself, written out in the same way. Operations:

| operation | value |
|---|---|
| `filter` | an expression on columns of episodes |
| `episodes` | positions, as ranges [first, last + 1] |
| `split` | sizes, seed, part: a seeded partition of whole episodes |
| `top` | percent, by |
| `columns` | names of the optional columns that are kept |
| `combine` | weights, `tasks` or none; whether unequal spaces are padded |
| `layers` | `replaces`, `later_wins`, `rename`, where they were asked for (`layers.py`) |
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
import shlex
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium
import numpy as np

from orlog.base.files import absolute_path, make_folder, replace_file, storage_errors
from orlog.datasets.columns.schema import Schema
from orlog.datasets.reading.combination import TASKS, combine
from orlog.datasets.reading.expressions import evaluate
from orlog.datasets.reading.layers import DRAFT, add_layers
from orlog.datasets.reading.selection import (
    MOST_EPISODES,
    ROUNDING,
    Selection,
    episode_column,
    seeded_order,
    success_column,
    success_of,
)
from orlog.errors import (
    FormatVersionError,
    IntegrityError,
    InvalidNameError,
    ManifestError,
    NotFoundError,
    SchemaError,
    VersionExistsError,
    clause,
    wrong_type,
)
from orlog.manifests.columns import ALWAYS, FLAGS, is_part
from orlog.manifests.documents import canonical_json, parse_json, read_small_file, refuse_newer
from orlog.manifests.names import did_you_mean
from orlog.manifests.spaces import named_parts

if TYPE_CHECKING:
    from orlog.datasets.reading.dataset import Dataset

Operation: TypeAlias = dict[str, Any]

VIEW_VERSION = 1
LARGEST_VIEW = 64 * 2**20
DEEPEST = 64
SUCCESS = "success"
"""A name in expressions: the column of episodes, else what the column with this role says."""


def derive(operation: Operation, parents: Sequence[Dataset]) -> tuple[str, Selection, Schema]:
    """Return digest, episodes and columns of the view that an operation makes of its parents."""
    if len(operation) != 1:
        raise ValueError(f"an operation has one name, found {sorted(operation)!r:.99}.")
    ((kind, value),) = operation.items()
    first = parents[0]
    selection, schema = first.selection(), first.schema
    if kind not in ("combine", "layers") and len(parents) != 1:
        raise ValueError(f"{kind} takes one dataset, found {len(parents)}.")
    if kind == "combine":
        selection, schema = combine(parents, value)
    elif kind == "layers":
        selection, schema = add_layers(parents, value)
    elif kind == "columns":
        schema = fewer_columns(schema, value, first.name)
    elif kind in _EPISODES:
        selection = selection.take(_EPISODES[kind](first, value))
    else:
        raise ValueError(f"unknown operation {kind!r:.60}.")
    body = {"operation": operation, "parents": [parent.digest for parent in parents]}
    return f"sha256:{hashlib.sha256(canonical_json(body)).hexdigest()}", selection, schema


def operation_words(text: str) -> str:
    """Return an operation of a lineage in words; what is no view's operation as it is."""
    try:
        ((kind, value),) = json.loads(text).items()
        return _WORDS[kind](value)
    except (ValueError, KeyError, AttributeError, TypeError, IndexError):
        return text


def _combined_words(value: Any) -> str:
    weights = value["weights"]
    words = "combined" + (", each task alike" if weights == TASKS else "")
    if isinstance(weights, list):
        words += f", weights {' : '.join(f'{weight:g}' for weight in weights)}"
    return words + (", unequal spaces padded" if value.get("pad") else "")


def _ranges_words(ranges: Any) -> str:
    shown = [str(a) if b - a == 1 else f"{a} to {b - 1}" for a, b in ranges[:20]]
    return f"episodes {', '.join(shown + ['..'] * (len(ranges) > 20))}"


_WORDS: dict[str, Callable[[Any], str]] = {
    "filter": lambda value: f"episodes with {value}",
    "episodes": _ranges_words,
    "split": lambda value: (
        f"part {value['part'] + 1} of a split into "
        + " : ".join(f"{size:g}" for size in value["sizes"])
        + ("" if value["seed"] is None else f", seed {value['seed']}")
    ),
    "top": lambda value: f"the best {value['percent']:g} % by {value['by']}",
    "columns": lambda value: f"only these columns: {', '.join(value)}",
    "combine": _combined_words,
    "layers": lambda value: "layers over it" + (", in place of columns of the base" if value.get("replaces") else ""),
    "rebuild": lambda value: f"built again, {value['finding']}",
}


def episodes_where(dataset: Dataset, expression: Any) -> np.ndarray:
    """Return which episodes meet an expression, (E,) bool."""
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


def positions_of(dataset: Dataset, index: slice | Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the positions that a slice, positions (negative: from the end) or a mask choose."""
    count = dataset.total_episodes
    if isinstance(index, slice):
        return np.arange(count)[index]
    positions = np.asarray(index)
    if positions.size == 0:
        positions = positions.astype(np.int64).reshape(-1)
    if positions.dtype == np.bool_:
        if positions.shape != (count,):
            raise IndexError(
                f"{dataset.name}: a mask of {count} episodes has shape ({count},), found {positions.shape}."
            )
        return np.flatnonzero(positions)
    if positions.dtype.kind not in "iu" or positions.ndim != 1:
        raise IndexError(
            f"{dataset.name}: episodes are selected by a slice, integers or a mask, found "
            f"{positions.dtype} {positions.shape}."
        )
    if len(positions) and not (-count <= positions.min() and positions.max() < count):
        raise IndexError(f"{dataset.name}: episodes {positions.min()} to {positions.max()} of {count}.")
    return positions.astype(np.int64) % max(1, count)


def as_ranges(positions: np.ndarray) -> list[list[int]]:
    """Return positions as ranges [first, last + 1], in their order."""
    edges = np.flatnonzero(np.diff(positions, prepend=positions[:1] - 2) != 1)
    firsts, lasts = positions[edges], positions[[*(edges[1:] - 1), -1][: len(edges)]]
    return [[first, last + 1] for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]


def _from_ranges(dataset: Dataset, ranges: Any) -> np.ndarray:
    total, count = 0, dataset.total_episodes
    for first, last in ranges:
        if type(first) is not int or type(last) is not int or not 0 <= first < last <= count:
            raise IndexError(f"episodes {first!r:.20} to {last!r:.20} of {count}.")
        total += last - first
        if total > MOST_EPISODES:
            raise IndexError(f"{total} episodes in a view, more than {MOST_EPISODES}.")
    pieces = [np.arange(first, last) for first, last in ranges]
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def _best(dataset: Dataset, value: Any) -> np.ndarray:
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


def _split_part(dataset: Dataset, value: Any) -> np.ndarray:
    counts, seed, part = split_counts(dataset, value["sizes"]), value["seed"], value["part"]
    is_seed = seed is None or type(seed) is int
    is_part_of = type(part) is int and 0 <= part < len(counts)
    if set(value) != {"sizes", "seed", "part"} or not (is_seed and is_part_of):
        raise ValueError(f"split has sizes, seed and part, found {value!r:.99}.")
    count = dataset.total_episodes
    order = np.arange(count) if seed is None else seeded_order(seed, count)
    first = sum(counts[:part])
    return np.sort(order[first : first + counts[part]])


def split_counts(dataset: Dataset, sizes: list[Any]) -> list[int]:
    """Return the number of episodes of each part of a split."""
    total = dataset.total_episodes
    counts = []
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, Real):
            raise wrong_type("sizes", "numbers", size)
    if all(isinstance(size, int | np.integer) for size in sizes):
        counts = [int(size) for size in sizes]
    elif all(0 <= size <= 1 for size in sizes) and math.fsum(sizes) <= 1 + ROUNDING:
        edges = [round(total * math.fsum(sizes[:end])) for end in range(len(sizes) + 1)]
        counts = [last - first for first, last in itertools.pairwise(edges)]
    if not counts or min(counts) < 0 or sum(counts) > total:
        raise ValueError(
            f"{dataset.name}: expected numbers of episodes that sum to at most {total}, or fractions "
            f"that sum to at most 1, found {list(sizes)}."
        )
    return counts


# By operation: which episodes of a dataset its value means.
_EPISODES: dict[str, Callable[[Dataset, Any], np.ndarray]] = {
    "filter": lambda dataset, value: np.flatnonzero(episodes_where(dataset, value)),
    "episodes": _from_ranges,
    "split": _split_part,
    "top": _best,
}


def no_column(dataset: str, name: str, known: Sequence[str]) -> NotFoundError:
    """Return the error for a column that a dataset of some name does not have."""
    near = did_you_mean(name, known) or "."
    return NotFoundError(f"{dataset}: no column {name!r:.100}{near} It has: {', '.join(known)}.")


def fewer_columns(schema: Schema, names: Any, name_of_dataset: str) -> Schema:
    """Return a schema without the optional columns that are not named."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"columns takes a list of names, found {names!r:.60}.")
    space = schema.observation_space
    keys = {}
    if isinstance(space, gymnasium.spaces.Dict):
        keys = {f"observations/{name}": str(key) for key, name, _ in named_parts(space)}
    known = {*keys, *schema.extras, *ALWAYS, *FLAGS, "observations", "actions", "rewards"}
    for name in names:
        if name not in known:
            raise no_column(name_of_dataset, name, sorted(known))
    kept = [key for key in keys if key in names]
    if isinstance(space, gymnasium.spaces.Dict) and kept and "observations" not in names:
        space = gymnasium.spaces.Dict({keys[key]: space[keys[key]] for key in kept})
    return dataclasses.replace(
        schema,
        observation_space=space,
        extras={name: spec for name, spec in schema.extras.items() if name in names},
        variable={name: kind for name, kind in schema.variable.items() if name in names},
    )


def save_view(dataset: Dataset, path: Path, *, replace: bool = False) -> Path:
    """Write a view's JSON in one step; see `Dataset.save`."""
    if dataset.operation is None:
        raise ValueError(
            f"{dataset.name}@{dataset.version} is a stored version, not a view, so there is nothing "
            f"to save; refer to it as {dataset.name}@{dataset.digest[:19]}."
        )
    path = absolute_path(path)
    body = {"view_version": VIEW_VERSION, "digest": dataset.digest, **_to_json(dataset, 0)}
    data = (json.dumps(body, allow_nan=False) + "\n").encode()
    if len(data) > LARGEST_VIEW:
        raise SchemaError(
            f"{dataset.name}: the view takes {len(data)} bytes of JSON, more than {LARGEST_VIEW}; "
            "store it with save_dataset."
        )
    with storage_errors(path):
        make_folder(path.parent)
        if os.path.lexists(path):
            _check_replaceable(path, dataset.digest, replace=replace)
        replace_file(path, data, alone=False)
    return path


def _to_json(dataset: Dataset, depth: int) -> dict[str, Any]:
    if depth > DEEPEST:
        raise SchemaError(
            f"{dataset.name}: views are nested more than {DEEPEST} deep; store one of them first, with save_dataset."
        )
    if dataset.operation is None:
        if dataset.name == DRAFT:
            raise SchemaError(
                f"the columns {', '.join(dataset.schema.extras)} are saved nowhere, so neither a view nor a run can name "
                "them; store them first: with_columns(..).save_layer(NAME), then load_dataset(NAME)."
            )
        return {"dataset": f"{dataset.name}@{dataset.digest}"}
    parents = [_to_json(parent, depth + 1) for parent in dataset.parents]
    return {"operation": dataset.operation, "parents": parents}


def _check_replaceable(path: Path, digest: str, *, replace: bool) -> None:
    """Refuse to overwrite a file unless it is this view, or, with `replace`, any view."""
    try:
        stated = _read_view(path)[1]
    except FormatVersionError:  # a view, though a newer one
        stated = None
    except (InvalidNameError, ManifestError) as error:
        raise VersionExistsError(
            f"{path} exists already and is not a view that orlog saved, so it is never replaced: choose another file."
        ) from error
    if stated != digest and not replace:
        raise VersionExistsError(
            f"{path} holds another view ({str(stated)[:19]}), this one is {digest[:19]}: choose "
            "another file, or replace it with replace=True."
        )


def open_view(
    path: Path, find: Callable[[str], Dataset], view: Callable[[Sequence[Dataset], Operation], Dataset]
) -> Dataset:
    """Return the view of a JSON file; `find` opens the stored versions it names, `view` derives from them."""
    body, stated = _read_view(path)
    find = functools.cache(find)

    def made_of(part: Any, depth: int) -> Dataset:
        if depth > DEEPEST:
            raise ValueError(f"views are nested more than {DEEPEST} deep.")
        match part:
            case {"dataset": str(named), **others} if not others:
                name, _, digest = named.partition("@")
                if not digest.startswith("sha256:") or len(digest) != 71:
                    raise ValueError(f"a parent is named by its whole digest, found {named!r:.99}.")
                return find(f"{name}@{digest}")
            case {"operation": dict(operation), "parents": [_, *_] as parents, **others} if not others:
                return view([made_of(parent, depth + 1) for parent in parents], operation)
        raise ValueError(f"a view has an operation and parents, found {part!r:.99}.")

    try:
        dataset = made_of(body, 0)
    except (SchemaError, IndexError, KeyError, TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, IntegrityError | NotFoundError | FormatVersionError):
            raise
        raise ManifestError(f"{path}: {clause(error)}.") from error
    if dataset.digest != stated:
        raise ManifestError(
            f"{path}: the view was edited or damaged: it says its digest is {stated!s:.99}, its "
            f"content has {dataset.digest}.",
            expected=f"{stated!s:.99}",
            found=dataset.digest,
        )
    dataset.view_file = path
    return dataset


def view_sources(path: Path) -> list[str]:
    """Return the stored versions that a view's file names, without opening them."""
    names: set[str] = set()
    waiting: list[Any] = [_read_view(path)[0]]
    while waiting:
        match waiting.pop():
            case {"dataset": str(name)}:
                names.add(name)
            case {"parents": [*parents]}:
                waiting += parents
            case _:
                raise ManifestError(f"{path}: no view: a part of it names neither dataset nor parents.")
    return sorted(names)


def _read_view(path: Path) -> tuple[dict[str, Any], object]:
    """Return a view as JSON, and the digest that its file states."""
    try:
        body = parse_json(read_small_file(path, LARGEST_VIEW))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) or path.suffix == ".json":
            raise ManifestError(f"{path}: no readable view: {clause(error)}.") from error
        body = None
    if not isinstance(body, dict) or not body.keys() & {"view_version", "operation", "parents"}:
        wrong = InvalidNameError(
            f"{path}: neither a dataset nor a saved view, which is a JSON object with a view_version; data of others are "
            f"read with: orlog import {shlex.quote(str(path))} NAME"
        )
        wrong.exit_code = 2  # a wrong use of the command
        raise wrong
    version, stated = body.pop("view_version", None), body.pop("digest", None)
    if type(version) is not int or version < 1:
        raise ManifestError(f"{path}: expected a view_version, which a saved view has.")
    refuse_newer({"view_version": version}, {"view_version": VIEW_VERSION}, str(path))
    return body, stated
