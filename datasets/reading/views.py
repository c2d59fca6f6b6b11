"""Views: datasets derived from others without copying, each with a digest and a lineage.

    {"view_version": 1, "digest": "sha256:..", "operation": {"filter": "returns > 100"},
     "parents": [{"dataset": "pointmaze/umaze-v1@sha256:.."}]}

The digest is the SHA-256 of the canonical JSON of the operation and the parents' digests. A parent
may be a view itself, written out in the same way. Operations:

| operation | value |
|---|---|
| `filter` | an expression on columns of episodes |
| `episodes` | positions, as [first, behind the last] ranges |
| `split` | sizes, seed, part: a seeded partition of whole episodes |
| `top` | percent, by |
| `columns` | names that are kept of those that may go |
| `combine` | weights, or none |
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.columns.schema import ALWAYS, Schema
from orlog.datasets.columns.summaries import summary
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.expressions import evaluate
from orlog.datasets.reading.given import Given, as_dataset, wrong_type
from orlog.datasets.reading.selection import Selection, seeded_order
from orlog.errors import (
    FormatVersionError,
    IntegrityError,
    ManifestError,
    NotFoundError,
    SchemaError,
    VersionExistsError,
)
from orlog.files import absolute_path, storage_errors, sync, write_durably
from orlog.manifests.manifest import canonical_json, parse_json
from orlog.manifests.names import did_you_mean
from orlog.manifests.spaces import named_parts

__all__ = [
    "combine_datasets",
    "fewer_columns",
    "filter_episodes",
    "open_view",
    "operation_text",
    "save_view",
    "select_columns",
    "select_episodes",
    "split_dataset",
    "top_episodes",
    "view_sources",
]

Operation: TypeAlias = dict[str, Any]

VIEW_VERSION = 1
LARGEST_VIEW = 64 * 2**20
DEEPEST = 64
MOST_EPISODES = 2**26
ROUNDING = 1e-9


def filter_episodes(dataset: Dataset, condition: str | Callable[[Episode], bool]) -> Dataset:
    """Return a view of the episodes that fulfill a condition; see `Dataset.filter_episodes`."""
    if isinstance(condition, str):
        return _apply({"filter": condition}, [dataset])
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


def select_episodes(dataset: Dataset, index: slice | Sequence[int] | np.ndarray) -> Dataset:
    """Return a view of episodes: a slice, positions (negative ones count from the end) or a mask."""
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
                    f"{positions.shape}"
                )
            positions = np.flatnonzero(positions)
        if positions.dtype.kind not in "iu" or positions.ndim != 1:
            raise IndexError(
                f"{dataset.name}: episodes are selected by a slice, integers or a mask, found "
                f"{positions.dtype} {positions.shape}"
            )
        if len(positions) and not (-count <= positions.min() and positions.max() < count):
            raise IndexError(
                f"{dataset.name}: episodes {positions.min()} to {positions.max()} of {count}"
            )
        positions = positions.astype(np.int64) % max(1, count)
    return _apply({"episodes": _to_ranges(positions)}, [dataset])


def top_episodes(dataset: Dataset, percent: float, *, by: str = "returns") -> Dataset:
    """Return a view of the best episodes; see `Dataset.top_episodes`."""
    return _apply({"top": {"percent": float(percent), "by": by}}, [dataset])


def select_columns(dataset: Dataset, columns: Sequence[str]) -> Dataset:
    """Return a view with fewer columns; see `Dataset.select_columns`."""
    return _apply({"columns": sorted(set(columns))}, [dataset])


def split_dataset(
    dataset: Given, sizes: Sequence[float], *, seed: int | None = None
) -> list[Dataset]:
    """Return disjoint views of whole episodes, so that no episode leaks from one to another.

    Args:
        dataset: What to split.
        sizes: Numbers of episodes, or fractions of all of them, which sum to at most 1.
        seed: Draws which episodes go where; without one the first go to the first view. Inside a
            view episodes keep their order.

    Raises:
        ValueError: sizes that are negative or more than there is.
    """
    dataset = as_dataset(dataset)
    given: object = sizes
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise wrong_type("sizes", "a sequence such as [0.9, 0.1]", sizes)
    counts = _split_counts(dataset, list(sizes))
    split = {"sizes": counts, "seed": None if seed is None else int(seed)}
    return [_apply({"split": {**split, "part": part}}, [dataset]) for part in range(len(counts))]


def combine_datasets(
    datasets: Iterable[Given], *, weights: Sequence[float] | None = None
) -> Dataset:
    """Return a view of all episodes of several datasets, one dataset after the other.

    Weights that the datasets have from an earlier combination are kept: they are multiplied by
    those given here.

    Args:
        datasets: What to combine; spaces and columns must be the same.
        weights: Probability that a sampled step comes from each of them (they are scaled to sum
            to 1). Without weights every dataset counts by its steps, so that where none of them
            is weighted itself every step is as likely as any other.

    Raises:
        SchemaError: spaces or columns differ; the message says where.
        ValueError: weights that are negative, all zero, or not one for each dataset.
    """
    if isinstance(datasets, str | Path | Dataset) or not isinstance(datasets, Iterable):
        raise wrong_type("datasets", "a sequence of datasets", datasets)
    parents = [as_dataset(one, "datasets") for one in datasets]
    if not parents:
        raise ValueError("combine_datasets needs at least one dataset")
    scaled = None
    if weights is None and any(one.mixture is not None and one.total_steps for one in parents):
        # Saved views without weights leave those inside out, and keep that meaning with their
        # digest. So the shares are written into the operation.
        weights = [one.total_steps for one in parents]
    if weights is not None:
        weights = [float(weight) for weight in weights]
        total = math.fsum(weights)
        if len(weights) != len(parents) or not all(
            math.isfinite(weight) and weight >= 0 for weight in weights
        ):
            raise ValueError(
                f"expected {len(parents)} weights that are not negative, found {list(weights)}"
            )
        if total <= 0:
            raise ValueError("weights are all zero")
        scaled = [weight / total for weight in weights]
    return _apply({"combine": {"weights": scaled}}, parents)


def operation_text(operation: Operation) -> str:
    """Return an operation as canonical JSON, for a lineage."""
    return canonical_json(operation).decode()


def save_view(dataset: Dataset, path: Path, *, replace: bool = False) -> Path:
    """Write a view's JSON in one step; see `Dataset.save`."""
    if dataset.operation is None:
        raise ValueError(
            f"{dataset.name}@{dataset.version} is a stored version, not a view: name it by "
            f"{dataset.name}@{dataset.digest[:19]}"
        )
    path = absolute_path(path)
    if _depth(dataset) > DEEPEST:
        raise SchemaError(
            f"{dataset.name}: views are nested more than {DEEPEST} deep; store one of them first, "
            "with save_dataset"
        )
    body = {"view_version": VIEW_VERSION, "digest": dataset.digest, **_to_json(dataset)}
    data = (json.dumps(body, allow_nan=False) + "\n").encode()
    if len(data) > LARGEST_VIEW:
        raise SchemaError(
            f"{dataset.name}: the view takes {len(data)} bytes of JSON, more than {LARGEST_VIEW}; "
            "store it with save_dataset"
        )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_replaceable(path, dataset.digest, replace=replace)
        try:
            write_durably(temporary, data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync(path.parent)
    return path


def _check_replaceable(path: Path, digest: str, *, replace: bool) -> None:
    """Refuse to write over a file unless it is this view, or any view that may be replaced.

    Raises:
        VersionExistsError: it is another view, or no view at all.
    """
    if not os.path.lexists(path):
        return
    try:
        stated = _read_view(path)[1]
    except FormatVersionError:  # a view all the same
        stated = None
    except ManifestError as error:
        raise VersionExistsError(
            f"{path} is there already and is not a view that orlog saved, so it is never replaced: "
            "choose another file"
        ) from error
    if stated != digest and not replace:
        raise VersionExistsError(
            f"{path} holds another view ({str(stated)[:19]}), this one is {digest[:19]}: choose "
            "another file, or replace it with replace=True (orlog view --replace)"
        )


def open_view(path: Path, find: Callable[[str], Dataset]) -> Dataset:
    """Return the view of a JSON file; `find` opens the stored versions it names.

    Raises:
        ManifestError: it is malformed, or what it says does not give the digest it states.
        FormatVersionError: it was written by a newer orlog.
        NotFoundError: a parent is not on this machine.
    """
    body, stated = _read_view(path)
    try:
        dataset = _from_json(body, functools.cache(find), _Budget(MOST_EPISODES), 0)
    except (SchemaError, IndexError, KeyError, TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, IntegrityError | NotFoundError | FormatVersionError):
            raise
        raise ManifestError(f"{path}: {error}") from error
    if dataset.digest != stated:
        raise ManifestError(
            f"{path}: the view was edited or damaged: it says its digest is {stated}, its content "
            f"has {dataset.digest}",
            expected=str(stated),
            found=dataset.digest,
        )
    dataset._view_file = path
    return dataset


def view_sources(path: Path) -> list[str]:
    """Return the stored versions that a view's file names, without opening them.

    Raises:
        ManifestError: it is malformed.
        FormatVersionError: it was written by a newer orlog.
    """
    names: list[str] = []
    waiting: list[Any] = [_read_view(path)[0]]
    while waiting:
        body = waiting.pop(0)
        if isinstance(body, dict) and isinstance(body.get("dataset"), str):
            names.append(body["dataset"])
        elif isinstance(body, dict) and isinstance(body.get("parents"), list):
            waiting += body["parents"]
        else:
            raise ManifestError(f"{path}: no view: a part of it names neither dataset nor parents")
    return sorted(set(names))


def _read_view(path: Path) -> tuple[dict[str, Any], object]:
    """Return what a view's file says, and the digest that it states."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe or device could give bytes without end
            raise ManifestError(f"{path}: no readable view: it is not a file")
        if found.st_size > LARGEST_VIEW:
            raise ManifestError(f"{path}: a view has at most {LARGEST_VIEW} bytes")
        body = parse_json(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ManifestError):
            raise
        raise ManifestError(f"{path}: no readable view: {error}") from error
    if not isinstance(body, dict) or type(body.get("view_version")) is not int:
        raise ManifestError(f"{path}: no view: expected a JSON object with a view_version")
    version, stated = body.pop("view_version"), body.pop("digest", None)
    if version < 1:
        raise ManifestError(f"{path}: there is no view_version {version}")
    if version > VIEW_VERSION:
        raise FormatVersionError(
            f"{path}: view_version {version} is newer than this orlog reads ({VIEW_VERSION}); run: "
            "pip install --upgrade orlog"
        )
    return body, stated


def _depth(dataset: Dataset) -> int:
    return 1 + max(map(_depth, dataset.parents), default=-1)


def _to_json(dataset: Dataset) -> dict[str, Any]:
    if dataset.operation is None:
        return {"dataset": f"{dataset.name}@{dataset.digest}"}
    return {
        "operation": dataset.operation,
        "parents": [_to_json(parent) for parent in dataset.parents],
    }


class _Budget:
    """How many episodes all views of a file may still select together."""

    def __init__(self, episodes: int) -> None:
        self.left = episodes

    def spend(self, episodes: int) -> None:
        self.left -= episodes
        if self.left < 0:
            raise IndexError(f"more than {MOST_EPISODES} episodes in the views of a file")


def _from_json(body: Any, find: Callable[[str], Dataset], budget: _Budget, depth: int) -> Dataset:
    if depth > DEEPEST:
        raise ValueError(f"views are nested more than {DEEPEST} deep")
    if not isinstance(body, dict):
        raise TypeError(f"a view is a JSON object, found {body!r:.60}")
    if set(body) == {"dataset"} and isinstance(body["dataset"], str):
        name, at, digest = body["dataset"].partition("@")
        if not at or not digest.startswith("sha256:") or len(digest) != 71:
            raise ValueError(
                f"a parent is named by its whole digest, found {body['dataset']!r:.99}"
            )
        return find(f"{name}@{digest}")
    if set(body) != {"operation", "parents"} or not isinstance(body["parents"], list):
        raise ValueError(f"a view has an operation and parents, found {sorted(body)!r:.99}")
    parents = [_from_json(parent, find, budget, depth + 1) for parent in body["parents"]]
    if not isinstance(body["operation"], dict) or not parents:
        raise ValueError("a view has an operation and at least one parent")
    made = _apply(body["operation"], parents)
    budget.spend(made.total_episodes)
    return made


def _apply(operation: Operation, parents: list[Dataset]) -> Dataset:
    """Return the view that an operation makes of its parents: the one way views come to be."""
    if len(operation) != 1:
        raise ValueError(f"an operation has one name, found {sorted(operation)!r:.99}")
    ((kind, value),) = operation.items()
    if kind != "combine" and len(parents) != 1:
        raise ValueError(f"{kind} takes one dataset, found {len(parents)}")
    first = parents[0]
    schema = first.schema
    if kind == "combine":
        selection = _combine(parents, value)
    elif kind == "columns":
        selection, schema = first.selection(), fewer_columns(first.schema, value, first.name)
    elif kind == "filter":
        selection = first.selection().take(np.flatnonzero(_evaluate(first, value)))
    elif kind == "episodes":
        selection = first.selection().take(_from_ranges(value, first.total_episodes))
    elif kind == "split":
        selection = first.selection().take(_split_part(first, value))
    elif kind == "top":
        selection = first.selection().take(_best(first, value))
    else:
        raise ValueError(f"unknown operation {kind!r:.60}")
    body = {"operation": operation, "parents": [parent.digest for parent in parents]}
    digest = f"sha256:{hashlib.sha256(canonical_json(body)).hexdigest()}"
    return Dataset.view(parents, operation, digest, selection, schema)


def _evaluate(dataset: Dataset, expression: Any) -> np.ndarray:
    if not isinstance(expression, str):
        raise TypeError(f"filter takes an expression, found {expression!r:.60}")
    prefix = "episodes/"
    names = [
        name.removeprefix(prefix)
        for name in [*dataset.schema.columns(), *dataset.schema.variable]
        if name.startswith(prefix) and "@" not in name
    ]
    return evaluate(
        expression,
        lambda name: _episode_column(dataset, prefix + name),
        names,
        dataset.total_episodes,
    )


def _episode_column(dataset: Dataset, name: str) -> np.ndarray:
    """Return a column of episodes; text as an array of text."""
    if dataset.schema.variable.get(name) != "text":
        return dataset.column(name)
    ends = dataset.column(f"{name}@offsets").tolist()
    data = dataset.column(f"{name}@values").tobytes()
    pairs = itertools.pairwise([0, *ends])
    try:
        texts = [data[start:end].decode() for start, end in pairs]
    except UnicodeDecodeError as error:
        raise IntegrityError(f"{dataset.name}: column {name}: not UTF-8: {error}") from error
    # As objects: an array of text would give each episode the room of the longest.
    column = np.empty(len(texts), object)
    column[:] = texts
    return column


def _best(dataset: Dataset, value: Any) -> np.ndarray:
    percent, by = value["percent"], value["by"]
    if set(value) != {"percent", "by"} or type(percent) is not float or not 0 < percent <= 100:
        raise ValueError(f"top takes a percentage in (0, 100], found {percent!r:.60}")
    name = f"episodes/{by}"
    values = dataset.column(name)
    if "@" in name or values.ndim != 1 or values.dtype.kind not in "biuf":
        raise SchemaError(f"{dataset.name}: column {name} cannot be ordered")
    # Not-a-number sorts last; ties go to the earlier episode.
    order = np.argsort(-values.astype(np.float64), kind="stable")
    count = math.ceil(len(values) * percent / 100 - ROUNDING)
    return np.sort(order[: max(1, count)])


def _split_counts(dataset: Dataset, sizes: list[Any]) -> list[int]:
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
            f"that sum to at most 1, found {list(sizes)}"
        )
    return counts


def _split_part(dataset: Dataset, value: Any) -> np.ndarray:
    counts, seed, part = _split_counts(dataset, value["sizes"]), value["seed"], value["part"]
    if (
        set(value) != {"sizes", "seed", "part"}
        or type(seed) not in (int, type(None))
        or type(part) is not int
        or not 0 <= part < len(counts)
    ):
        raise ValueError(f"split has sizes, seed and part, found {value!r:.99}")
    order = np.arange(dataset.total_episodes)
    if seed is not None:
        order = seeded_order(seed, dataset.total_episodes)
    first = sum(counts[:part])
    return np.sort(order[first : first + counts[part]])


def fewer_columns(schema: Schema, names: Any, name_of_dataset: str) -> Schema:
    """Return a schema without the columns that may go and are not named.

    Raises:
        NotFoundError: there is no such column.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"columns takes a list of names, found {names!r:.60}")
    space = schema.observation_space
    keys = {}
    if isinstance(space, gymnasium.spaces.Dict):
        keys = {f"observations/{name}": str(key) for key, name, _ in named_parts(space)}
    known = {*keys, *schema.extras, *ALWAYS, "observations", "actions", "rewards"}
    known |= {"terminations", "truncations"}
    for name in names:
        if name not in known:
            raise NotFoundError(
                f"{name_of_dataset}: no column {name!r}"
                + did_you_mean(name, known)
                + f" It has: {', '.join(sorted(known))}"
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


def _combine(parents: list[Dataset], value: Any) -> Selection:
    weights = value["weights"]
    if set(value) != {"weights"} or (weights is not None and not _are_weights(weights, parents)):
        raise ValueError(
            f"combine takes a weight for each dataset, none negative, which sum to 1; found "
            f"{value!r:.99}"
        )
    if sum(parent.total_episodes for parent in parents) > MOST_EPISODES:
        raise IndexError(f"more than {MOST_EPISODES} episodes in a view")
    for parent in parents[1:]:
        _check_alike(parents[0], parent)
    recordings: dict[str, Any] = {}
    for parent in parents:
        for recording in parent.selection().recordings:
            recordings.setdefault(recording.digest, recording)
    place = {digest: number for number, digest in enumerate(recordings)}
    sources, indices, components = [], [], []
    shares: list[float] = []
    for number, parent in enumerate(parents):
        selection = parent.selection()
        moved = np.array([place[one.digest] for one in selection.recordings], np.int64)
        sources.append(moved[selection.source])
        indices.append(selection.index)
        # A mixture inside a mixture keeps its proportions within the share of the whole.
        inner = selection.weights if weights is not None and selection.weights else (1.0,)
        flat = selection.component if len(inner) > 1 else np.zeros_like(selection.component)
        components.append(flat + len(shares))
        shares += [share * (1.0 if weights is None else weights[number]) for share in inner]
    return Selection(
        recordings=tuple(recordings.values()),
        source=np.concatenate(sources),
        index=np.concatenate(indices),
        component=np.concatenate(components)
        if weights is not None
        else np.zeros(sum(map(len, indices)), np.int64),
        weights=() if weights is None else tuple(shares),
    )


def _are_weights(weights: Any, parents: list[Dataset]) -> bool:
    return (
        isinstance(weights, list)
        and len(weights) == len(parents)
        and all(type(weight) is float and weight >= 0 for weight in weights)
        and math.isclose(math.fsum(weights), 1, abs_tol=ROUNDING)
    )


def _check_alike(first: Dataset, other: Dataset) -> None:
    """Refuse to combine what has other spaces or columns."""
    for kind in ("observation_space", "action_space"):
        expected, found = getattr(first, kind), getattr(other, kind)
        if expected != found:
            raise SchemaError(
                f"{first.name} and {other.name} cannot be combined: {kind} {expected} and {found}"
            )
    expected_columns, found_columns = first.schema.columns(), other.schema.columns()
    for name in sorted({*expected_columns, *found_columns}):
        if expected_columns.get(name) != found_columns.get(name):
            raise SchemaError(
                f"{first.name} and {other.name} cannot be combined: column {name} is "
                f"{expected_columns.get(name, 'missing')} and {found_columns.get(name, 'missing')}; "
                "select_columns leaves out what only one of them has"
            )


def _to_ranges(positions: np.ndarray) -> list[list[int]]:
    """Return positions as [first, behind the last] ranges, in their order."""
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
            raise IndexError(f"episodes {first!r:.20} to {last!r:.20} of {count}")
        total += last - first
    if total > MOST_EPISODES:
        raise IndexError(f"{total} episodes in a view, more than {MOST_EPISODES}")
    if not total:
        return np.empty(0, np.int64)
    return np.concatenate([np.arange(first, last) for first, last in ranges])
