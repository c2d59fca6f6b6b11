"""Combinations of several datasets: which episodes they have, how steps are weighted, and unequal spaces as one.

A **task** of an episode is what its column of the role `task_words` says, such as `pick place`; where there is none,
the name of its dataset, with the number that a column of the role `task` has. With the weights `tasks` each task
is as likely as any other, and within a task each step.

Where spaces are unequal, vectors are filled up with zeros, and flags tell what is real:

    reach   observations (3,)   1 2 3            -> 1 2 3 0 0   infos/valid/observations   1 1 1 0 0
    push    observations (5,)   4 5 6 7 8        -> 4 5 6 7 8                              1 1 1 1 1

    actions of a Box     as observations are; `infos/valid/actions`
    choices              the space has all choices of any; `infos/legal_actions` says which there are

Every episode then also has the number of its task and the task in words, `episodes/task` and `episodes/instruction`,
in place of what its dataset calls so. Nothing is copied: versions are read through `PaddedVersion`, which fills up
rows as they are read. Of other columns those stay that all datasets have alike.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.schema import Schema
from orlog.datasets.reading.selection import MOST_EPISODES, ROUNDING, Selection, episode_column
from orlog.datasets.store.version import StoredVersion
from orlog.datasets.store.zarr_reader import placed
from orlog.errors import SchemaError
from orlog.manifests.columns import ColumnSpec, axis_of, offsets_column, values_column
from orlog.manifests.documents import canonical_json
from orlog.manifests.manifest import Column
from orlog.manifests.roles import CHOICES, NUMBER, WORDS, columns_with
from orlog.manifests.spaces import space_to_json

if TYPE_CHECKING:
    from orlog.datasets.download.in_place import Coming
    from orlog.datasets.reading.dataset import Dataset

TASKS = "tasks"
"""The weights with which each task is as likely as any other."""
VALID = "infos/valid/"
_SPACES = {"observations": "observation_space", "actions": "action_space"}


def combine(parents: Sequence[Dataset], value: Any) -> tuple[Selection, Schema]:
    """Return the episodes of all datasets, one dataset after the other, and their columns."""
    weights, pad = value["weights"], value.get("pad", False)
    is_weighted = weights in (None, TASKS) or _are_weights(weights, len(parents))
    if {*value} - {"weights", "pad"} or type(pad) is not bool or not is_weighted:
        raise ValueError(
            f"combine takes a weight for each dataset, none negative, which sum to 1, or {TASKS!r}; found "
            f"{value!r:.99}."
        )
    if sum(parent.total_episodes for parent in parents) > MOST_EPISODES:
        raise IndexError(f"more than {MOST_EPISODES} episodes in a view.")
    words = [_words_of_episodes(parent) for parent in parents] if pad or weights == TASKS else []
    schema = parents[0].schema
    padded: dict[str, PaddedVersion] = {}
    if pad:
        schema = _padded_schema(parents, words)
        padded = _padded_versions(parents, words, schema)
    else:
        for parent in parents[1:]:
            _check_alike(parents[0], parent)
    selections = [parent.selection() for parent in parents]
    versions: dict[str, StoredVersion] = {}
    sources = []
    for selection in selections:
        used = [padded.get(stored.identity, stored) for stored in selection.versions]
        for stored in used:
            versions.setdefault(stored.identity, stored)
        places = {identity: number for number, identity in enumerate(versions)}
        sources.append(np.array([places[stored.identity] for stored in used])[selection.source])
    if weights == TASKS:
        component, shares = _each_task_alike(parents, words)
    else:
        component, shares = _weighted(selections, weights)
    indices = np.concatenate([selection.index for selection in selections])
    made = Selection(tuple(versions.values()), np.concatenate(sources), indices, component, shares)
    return made, schema


def _words_of_episodes(dataset: Dataset) -> list[str]:
    """Return the task of each episode, in words."""
    texts, numbers = (
        [name for name in columns_with(dataset.roles, role) if axis_of(name) == "episode"]
        for role in ("task_words", "task")
    )
    if texts:
        return [words or dataset.name for words in episode_column(dataset, texts[0]).tolist()]
    if numbers:
        return [f"{dataset.name} task {number}" for number in dataset.column(numbers[0]).tolist()]
    return [dataset.name] * dataset.total_episodes


def _numbers_of(words: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the number of each task, in the order in which they come."""
    return {task: number for number, task in enumerate(dict.fromkeys(itertools.chain(*words)))}


def _each_task_alike(parents: Sequence[Dataset], words: list[list[str]]) -> tuple[np.ndarray, tuple[float, ...]]:
    """Return the task of each episode and equal weights of all tasks."""
    for parent in parents:
        if parent.mixture is not None:
            raise ValueError(
                f"{parent.name} is weighted itself, so its tasks cannot count alike; combine what it was combined "
                "from, or give a weight for each dataset."
            )
    numbers = _numbers_of(words)
    component = [numbers[task] for task in itertools.chain(*words)]
    return np.array(component, np.int64), (1 / max(1, len(numbers)),) * len(numbers)


def _weighted(selections: Sequence[Selection], weights: list[float] | None) -> tuple[np.ndarray, tuple[float, ...]]:
    """Return the component of each episode, and the weights of components; none without weights."""
    if weights is None:
        return np.zeros(sum(len(selection.index) for selection in selections), np.int64), ()
    components = []
    shares: list[float] = []
    for selection, weight in zip(selections, weights, strict=True):
        # A mixture inside a mixture keeps its proportions within its own share.
        inner = selection.weights or (1.0,)
        flat = selection.component if len(inner) > 1 else np.zeros_like(selection.component)
        components.append(flat + len(shares))
        shares += [share * weight for share in inner]
    return np.concatenate(components), tuple(shares)


def _are_weights(weights: Any, count: int) -> bool:
    return (
        isinstance(weights, list)
        and len(weights) == count
        and all(type(weight) is float and weight >= 0 for weight in weights)
        and math.isclose(math.fsum(weights), 1, abs_tol=ROUNDING)
    )


def _check_alike(first: Dataset, other: Dataset) -> None:
    """Refuse to combine datasets with different spaces or columns."""
    where = f"{first.name} and {other.name} cannot be combined"
    for kind in _SPACES.values():
        expected, actual = getattr(first, kind), getattr(other, kind)
        if expected != actual:
            raise SchemaError(
                f"{where}: {kind} {expected} and {actual}; combine_datasets with pad=True fills up vectors of "
                "unequal length."
            )
    columns, others = first.schema.columns(), other.schema.columns()
    for name in sorted({*columns, *others}):
        if columns.get(name) != others.get(name):
            raise SchemaError(
                f"{where}: column {name} is {columns.get(name, 'missing')} and "
                f"{others.get(name, 'missing')}; select_columns leaves out what only one of them has."
            )


def _padded_schema(parents: Sequence[Dataset], words: Sequence[Sequence[str]]) -> Schema:
    """Return the columns of several datasets whose spaces may differ."""
    _check_tasks(parents, words)
    first, *others = (parent.schema for parent in parents)
    made = {root: _padded_space(parents, kind) for root, kind in _SPACES.items()}
    extras = {
        name: spec
        for name, spec in first.extras.items()
        if all(
            other.extras.get(name) == spec and other.variable.get(name) == first.variable.get(name) for other in others
        )
    }
    for root, space in made.items():
        if isinstance(space, spaces.Box) and len(space.shape) == 1:
            extras[VALID + root] = ColumnSpec(VALID + root, np.dtype(np.bool_), space.shape)
    actions = made["actions"]
    if isinstance(actions, spaces.Discrete):
        extras[CHOICES] = ColumnSpec(CHOICES, np.dtype(np.bool_), (int(actions.n),))
    extras[NUMBER] = ColumnSpec(NUMBER, np.dtype(np.int64), ())
    extras[WORDS] = ColumnSpec(WORDS, np.dtype(np.uint8), ())
    kept = {name: kind for name, kind in first.variable.items() if name in extras and name != NUMBER}
    schema = Schema(
        observation_space=made["observations"],
        action_space=actions,
        reward_dtype=np.result_type(first.reward_dtype, *(other.reward_dtype for other in others)),
        extras=dict(sorted(extras.items())),
        variable={**kept, WORDS: "text"},
    )
    schema.check(parents[0].name)
    return schema


def _check_tasks(parents: Sequence[Dataset], words: Sequence[Sequence[str]]) -> None:
    """Refuse tasks of one name in unequal spaces: a policy could not tell which one it plays."""
    owner: dict[str, Dataset] = {}
    for parent, some in zip(parents, words, strict=True):
        for task in dict.fromkeys(some):
            other = owner.setdefault(task, parent)
            for kind in _SPACES.values():
                before, now = getattr(other, kind), getattr(parent, kind)
                if before != now:
                    raise SchemaError(
                        f"{other.name} and {parent.name} both have the task {task!r:.60}, with {kind} "
                        f"{_in_short(before)} and {_in_short(now)}; tasks of one name have the same spaces: save "
                        f"one of the datasets with another name, or record the task in words ({WORDS})."
                    )


def _in_short(space: Any) -> str:
    """Return a space in a line: bounds of many numbers would fill a page."""
    if isinstance(space, spaces.Box):
        return f"Box of {space.shape} {space.dtype}"
    return f"{space!s:.200}"


def _padded_space(parents: Sequence[Dataset], kind: str) -> gymnasium.Space[Any]:
    """Return the space that holds the values of several, filled up."""
    given: list[Any] = [getattr(parent, kind) for parent in parents]
    if all(space == given[0] for space in given):
        first: gymnasium.Space[Any] = given[0]
        return first
    if all(isinstance(space, spaces.Discrete) for space in given):
        start = min(int(space.start) for space in given)
        end = max(int(space.start + space.n) for space in given)
        return spaces.Discrete(end - start, start=start)
    for parent, space in zip(parents, given, strict=True):
        if not isinstance(space, spaces.Box) or len(space.shape) != 1 or space.dtype.kind != "f":
            raise SchemaError(
                f"{parent.name}: {kind} {_in_short(space)} cannot be filled up to that of another dataset; pad=True "
                "takes vectors of floats, or choices (Discrete), in all of them."
            )
    width = max(space.shape[0] for space in given)
    dtype = np.result_type(*(space.dtype for space in given))
    # Zeros stand where a dataset has no number, so they lie within the bounds there.
    low, high = (
        np.stack([np.pad(bound.astype(dtype), (0, width - len(bound))) for bound in bounds])
        for bounds in ([space.low for space in given], [space.high for space in given])
    )
    return spaces.Box(low.min(axis=0), high.max(axis=0), dtype=dtype.type)


def _padded_versions(
    parents: Sequence[Dataset], words: Sequence[Sequence[str]], schema: Schema
) -> dict[str, PaddedVersion]:
    """Return the versions that fill up those of some datasets, by the identity of these."""
    versions: dict[str, StoredVersion] = {}
    tasks: dict[str, list[str]] = {}
    for parent, some in zip(parents, words, strict=True):
        selection = parent.selection()
        for stored in selection.versions:
            versions.setdefault(stored.identity, stored)
            tasks.setdefault(stored.identity, [""] * len(stored.lengths))
        places = zip(selection.source.tolist(), selection.index.tolist(), some, strict=True)
        for source, index, task in places:
            tasks[selection.versions[source].identity][index] = task
    numbers = _numbers_of(words)
    return {identity: PaddedVersion(stored, schema, tasks[identity], numbers) for identity, stored in versions.items()}


class PaddedVersion(StoredVersion):
    """A stored version whose rows are filled up to wider spaces as they are read."""

    def __init__(self, stored: StoredVersion, schema: Schema, words: Sequence[str], numbers: dict[str, int]) -> None:
        """Fill up `stored` to `schema`; `words` are the tasks of its episodes, `numbers` those of the tasks.

        Episodes without words are not used.
        """
        vars(self).update(vars(stored))  # it is a whole version, whatever is asked of it
        self._stored, self.schema = stored, schema
        texts = [task.encode() for task in words]
        self._made: dict[str, np.ndarray] = {
            NUMBER: np.array([numbers.get(task, -1) for task in words], np.int64),
            offsets_column(WORDS): np.cumsum([len(text) for text in texts], dtype=np.int64),
            values_column(WORDS): np.frombuffer(b"".join(texts), np.uint8),
        }
        here: Any = stored.schema.action_space
        everywhere: Any = schema.action_space
        is_choice = isinstance(everywhere, spaces.Discrete)
        self._first_choice = int(here.start) - int(everywhere.start) if is_choice else 0
        self._flags = {VALID + root: self._real(kind) for root, kind in _SPACES.items()}
        self._flags[CHOICES] = self._flags[VALID + "actions"]
        own, specs = stored.schema.columns(), schema.columns()
        self._same = {name for name, spec in specs.items() if own.get(name) == spec}
        self._same -= self._made.keys()
        self.manifest = self._padded_manifest()
        steps, episodes = stored.manifest.total_steps, len(words)
        rows = {"step": steps, "observation": steps + episodes, "episode": episodes}
        rows |= {name: stored.rows(name) for name in own}
        rows |= {name: len(values) for name, values in self._made.items()}
        self._columns = {
            name: Column(
                name=name,
                dtype=str(spec.dtype),
                shape=[*spec.shape],
                rows=rows.get(name, rows[axis_of(name)]),
                blake3="",
            )
            for name, spec in specs.items()
        }
        self._gap_bytes = 0  # of a partial download no rows are read that were not asked for
        body = {
            "of": stored.identity,
            "spaces": [space_to_json(getattr(schema, name)) for name in _SPACES.values()],
            "columns": sorted(specs),
            "tasks": [*words],
            "numbers": numbers,
        }
        self._identity = hashlib.sha256(canonical_json(body)).hexdigest()

    def _real(self, kind: str) -> np.ndarray:
        """Return which numbers or choices of a space the stored version has."""
        here, everywhere = getattr(self._stored.schema, kind), getattr(self.schema, kind)
        if isinstance(everywhere, spaces.Discrete):
            choices = np.arange(everywhere.n) - self._first_choice
            return np.asarray((choices >= 0) & (choices < here.n))
        if not isinstance(everywhere, spaces.Box) or len(everywhere.shape) != 1:
            return np.ones(0, np.bool_)
        return np.asarray(np.arange(everywhere.shape[0]) < here.shape[0])

    def _padded_manifest(self) -> Any:
        """Return the manifest without what no longer holds."""
        given = self._stored.manifest
        changes: dict[str, Any] = {
            field: {name: entry for name, entry in getattr(given, field).items() if name in self._same}
            for field in ("dimension_names", "outside_bounds")
        }
        changes["roles"] = {
            name: role
            for name, role in given.roles.items()
            if role not in ("task", "task_words") and name not in (NUMBER, WORDS, CHOICES)
        }
        if any(getattr(self.schema, name) != getattr(self._stored.schema, name) for name in _SPACES.values()):
            changes |= {"environment": None, "benchmark": ""}
        return msgspec.structs.replace(given, **changes)

    @property
    def identity(self) -> str:
        """What tells it from the same version filled up otherwise."""
        return self._identity

    def read(self, name: str, start: int = 0, stop: int | None = None, *, out: np.ndarray | None = None) -> np.ndarray:
        """Return rows of a column; see `StoredVersion.read`."""
        stop = self._stop(name, start, stop)
        if name in self._same:
            return self._stored.read(name, start, stop, out=out)
        if name in self._stored.schema.columns() and name not in self._made:
            return self._filled(name, self._stored.read(name, start, stop), out)
        return placed(self._made_rows(name, np.arange(start, stop)), out)

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return any rows of a column, in the order asked for; see `StoredVersion.read_rows`."""
        if name in self._same:
            return self._stored.read_rows(name, rows)
        if name in self._stored.schema.columns() and name not in self._made:
            return self._filled(name, self._stored.read_rows(name, rows))
        return self._made_rows(name, rows)

    def _made_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        if name in self._made:
            return np.take(self._made[name], rows, axis=0)
        return np.tile(self._flags[name], (len(rows), 1))

    def _filled(self, name: str, values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        spec = self.schema.columns()[name]
        filled = np.empty((len(values), *spec.shape), spec.dtype) if out is None else out
        if values.shape[1:] == spec.shape:
            filled[...] = values
            return filled
        first = self._first_choice if name == CHOICES else 0
        last = first + values.shape[1]
        filled[:, :first], filled[:, first:last], filled[:, last:] = 0, values, 0
        return filled

    def bring(
        self,
        names: Iterable[str],
        episodes: np.ndarray,
        indexes: Container[str] = (),
        ahead: list[Coming] | None = None,
    ) -> None:
        """Fetch rows that are read in place; see `StoredVersion.bring`."""
        own = self._stored.schema.columns()
        self._stored.bring([name for name in names if name in own], episodes, indexes, ahead)

    def hash_column(self, part: int, name: str, see: Callable[[np.ndarray], None] = lambda _: None) -> str:
        """Return the BLAKE3 of a column of the stored version, as it is stored."""
        return self._stored.hash_column(part, name, see)
