"""Datasets with unequal spaces as one: vectors are filled up with zeros, and flags tell what is real.

    reach   observations (3,)   1 2 3            -> 1 2 3 0 0   infos/valid/observations   1 1 1 0 0
    push    observations (5,)   4 5 6 7 8        -> 4 5 6 7 8                              1 1 1 1 1

    actions of a Box     as observations are; `infos/valid/actions`
    choices              the space has all choices of any; `infos/legal_actions` says which there are

Every episode also has the number of its task and the task in words, `episodes/task` and `episodes/instruction`,
in place of what its dataset calls so. Nothing is copied: versions are read through `PaddedVersion`, which fills up
rows as they are read. Of other columns those stay that all datasets have alike.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Container, Iterable, Sequence
from typing import Any

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.schema import Schema
from orlog.datasets.reading.source import SourceT
from orlog.datasets.store.in_place import Coming
from orlog.datasets.store.shards import Place
from orlog.datasets.store.version import StoredVersion
from orlog.errors import NotFoundError, SchemaError
from orlog.manifests.columns import ColumnSpec, axis_of, offsets_column, values_column
from orlog.manifests.documents import canonical_json
from orlog.manifests.manifest import Column
from orlog.manifests.roles import CHOICES, NUMBER, WORDS
from orlog.manifests.spaces import space_to_json

VALID = "infos/valid/"
_SPACES = {"observations": "observation_space", "actions": "action_space"}


def padded_schema(parents: Sequence[SourceT], words: Sequence[Sequence[str]]) -> Schema:
    """Return the columns of several datasets whose spaces may differ.

    Raises SchemaError if spaces are neither equal, nor vectors, nor choices; or if two datasets have a task of
    one name in unequal spaces.
    """
    _check_tasks(parents, words)
    first = parents[0].schema
    found = {root: _padded_space(parents, name) for root, name in _SPACES.items()}
    made = {
        name: spec
        for name, spec in first.extras.items()
        if all(
            one.schema.extras.get(name) == spec
            and one.schema.variable.get(name) == first.variable.get(name)
            for one in parents
        )
    }
    flag = np.dtype(np.bool_)
    for root, space in found.items():
        if isinstance(space, spaces.Box) and len(space.shape) == 1:
            made[VALID + root] = ColumnSpec(VALID + root, flag, space.shape)
    if isinstance(found["actions"], spaces.Discrete):
        made[CHOICES] = ColumnSpec(CHOICES, flag, (int(found["actions"].n),))
    made[NUMBER] = ColumnSpec(NUMBER, np.dtype(np.int64), ())
    made[WORDS] = ColumnSpec(WORDS, np.dtype(np.uint8), ())
    kept = {name: kind for name, kind in first.variable.items() if name in made}
    kept.pop(NUMBER, None)
    schema = Schema(
        observation_space=found["observations"],
        action_space=found["actions"],
        reward_dtype=np.result_type(*(one.schema.reward_dtype for one in parents)),
        extras=dict(sorted(made.items())),
        variable={**kept, WORDS: "text"},
    )
    schema.check(parents[0].name)
    return schema


def padded_versions(
    parents: Sequence[SourceT], words: Sequence[Sequence[str]], schema: Schema
) -> dict[str, PaddedVersion]:
    """Return the versions that fill up those of some datasets, by the identity of these."""
    numbers = {one: index for index, one in enumerate(dict.fromkeys(itertools.chain(*words)))}
    versions: dict[str, StoredVersion] = {}
    said: dict[str, list[str]] = {}
    for parent, some in zip(parents, words, strict=True):
        selection = parent.selection()
        for stored in selection.versions:
            versions.setdefault(stored.identity, stored)
            said.setdefault(stored.identity, [""] * len(stored.lengths))
        for source, index, text in zip(
            selection.source.tolist(), selection.index.tolist(), some, strict=True
        ):
            said[selection.versions[source].identity][index] = text
    return {
        identity: PaddedVersion(stored, schema, said[identity], numbers)
        for identity, stored in versions.items()
    }


class PaddedVersion(StoredVersion):
    """A stored version whose rows are filled up to wider spaces as they are read."""

    def __init__(
        self, stored: StoredVersion, schema: Schema, words: Sequence[str], numbers: dict[str, int]
    ) -> None:
        """Fill up `stored` to `schema`; `words` are the tasks of its episodes, `numbers` those of the tasks.

        Episodes without words are not used.
        """
        self._stored = stored
        self.folder, self.digest, self.schema = stored.folder, stored.digest, schema
        self.elsewhere = stored.elsewhere
        has_other_spaces = any(
            getattr(schema, name) != getattr(stored.schema, name) for name in _SPACES.values()
        )
        kept = {
            name
            for name, spec in schema.columns().items()
            if stored.schema.columns().get(name) == spec
        }
        given = stored.manifest
        self.manifest = msgspec.structs.replace(
            given,
            environment=None if has_other_spaces else given.environment,
            benchmark="" if has_other_spaces else given.benchmark,
            roles={
                name: role
                for name, role in given.roles.items()
                if role not in ("task", "task_words") and name not in (NUMBER, WORDS, CHOICES)
            },
            dimension_names={
                name: names for name, names in given.dimension_names.items() if name in kept
            },
            outside_bounds={
                name: counts for name, counts in given.outside_bounds.items() if name in kept
            },
        )
        texts = [one.encode() for one in words]
        self._made: dict[str, np.ndarray] = {
            NUMBER: np.array([numbers.get(one, -1) for one in words], np.int64),
            offsets_column(WORDS): np.cumsum([len(one) for one in texts], dtype=np.int64),
            values_column(WORDS): np.frombuffer(b"".join(texts), np.uint8),
        }
        self._flags: dict[str, np.ndarray] = {
            VALID + "observations": self._real("observation_space"),
            VALID + "actions": self._real("action_space"),
            CHOICES: self._real("action_space"),
        }
        steps, episodes = int(stored.lengths.sum()), len(words)
        rows = {"step": steps, "observation": steps + episodes, "episode": episodes}
        self._columns = {
            name: Column(
                name=name,
                dtype=str(spec.dtype),
                shape=[*spec.shape],
                rows=len(self._made[name])
                if name in self._made
                else stored.rows(name)
                if name in stored.schema.columns()
                else rows[axis_of(name)],
                blake3="",
            )
            for name, spec in schema.columns().items()
        }
        self._gap_bytes = 0  # of a partial download no rows are read that were not asked for
        body = {
            "of": stored.identity,
            "spaces": [space_to_json(getattr(schema, name)) for name in _SPACES.values()],
            "columns": sorted(schema.columns()),
            "tasks": [*words],
            "numbers": numbers,
        }
        self._identity = hashlib.sha256(canonical_json(body)).hexdigest()

    @property
    def identity(self) -> str:
        """What tells it from the same version filled up otherwise."""
        return self._identity

    def read(
        self, name: str, start: int = 0, stop: int | None = None, *, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return rows of a column; see `StoredVersion.read`."""
        column = self._columns[name]
        stop = column.rows if stop is None else stop
        if not 0 <= start <= stop <= column.rows:
            raise IndexError(
                f"{name}: expected rows within 0 to {column.rows}, found {start} to {stop}."
            )
        if name in self._made:
            values = self._made[name][start:stop].copy()
        elif name not in self._stored.schema.columns():
            values = self._flagged(name, stop - start)
        elif self._is_same(name):
            return self._stored.read(name, start, stop, out=out)
        else:
            return self._filled(name, self._stored.read(name, start, stop), out)
        if out is None:
            return values
        out[...] = values
        return out

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return any rows of a column, in the order asked for; see `StoredVersion.read_rows`."""
        if name in self._made:
            return np.take(self._made[name], rows, axis=0)
        if name not in self._stored.schema.columns():
            return self._flagged(name, len(rows))
        return self._filled(name, self._stored.read_rows(name, rows))

    def bring(
        self,
        names: Iterable[str],
        episodes: np.ndarray,
        indexes: Container[str] = (),
        ahead: list[Coming] | None = None,
    ) -> None:
        """Fetch rows that are read in place; see `StoredVersion.bring`."""
        stored = self._stored.schema.columns()
        self._stored.bring([one for one in names if one in stored], episodes, indexes, ahead)

    def place(self, name: str, row: int) -> Place:
        """Return where a row lies; see `StoredVersion.place`. What is filled up or made lies nowhere."""
        if (
            name in self._made
            or name not in self._stored.schema.columns()
            or not self._is_same(name)
        ):
            raise NotFoundError(f"{name}: its rows are filled up as they are read.")
        return self._stored.place(name, row)

    def _is_same(self, name: str) -> bool:
        """Return whether a column is stored as it is read."""
        return self._stored.schema.columns()[name] == self.schema.columns()[name]

    def _flagged(self, name: str, rows: int) -> np.ndarray:
        return np.tile(self._flags[name], (rows, 1))

    def _filled(self, name: str, values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        spec = self.schema.columns()[name]
        found = np.empty((len(values), *spec.shape), spec.dtype) if out is None else out
        if values.shape[1:] == spec.shape:
            found[...] = values
            return found
        first = self._first_choice() if name == CHOICES else 0
        last = first + values.shape[1]
        found[:, :first], found[:, first:last], found[:, last:] = 0, values, 0
        return found

    def _first_choice(self) -> int:
        """Return which of all choices the first one of the stored version is."""
        here: Any = self._stored.schema.action_space
        everywhere: Any = self.schema.action_space
        return int(here.start) - int(everywhere.start)

    def _real(self, kind: str) -> np.ndarray:
        """Return which numbers or choices of a space the stored version has."""
        here, everywhere = getattr(self._stored.schema, kind), getattr(self.schema, kind)
        if isinstance(everywhere, spaces.Discrete):
            first, count = self._first_choice(), int(here.n)
            return np.isin(np.arange(everywhere.n), np.arange(first, first + count))
        if not isinstance(everywhere, spaces.Box) or len(everywhere.shape) != 1:
            return np.ones(0, np.bool_)
        real: np.ndarray = np.arange(everywhere.shape[0]) < here.shape[0]
        return real


def _check_tasks(parents: Sequence[SourceT], words: Sequence[Sequence[str]]) -> None:
    """Refuse tasks of one name in unequal spaces: a policy could not tell which one it plays."""
    owner: dict[str, SourceT] = {}
    for parent, some in zip(parents, words, strict=True):
        for task in dict.fromkeys(some):
            other = owner.setdefault(task, parent)
            for kind in _SPACES.values():
                one, two = getattr(other, kind), getattr(parent, kind)
                if one != two:
                    raise SchemaError(
                        f"{other.name} and {parent.name} both have the task {task!r:.60}, with {kind} "
                        f"{_in_short(one)} and {_in_short(two)}; tasks of one name have the same spaces: save "
                        "one of the datasets with another "
                        f"name, or record the task in words ({WORDS})."
                    )


def _in_short(space: Any) -> str:
    """Return a space in a line: bounds of many numbers would fill a page."""
    if isinstance(space, spaces.Box):
        return f"Box of {space.shape} {space.dtype}"
    return f"{space!s:.200}"


def _padded_space(parents: Sequence[SourceT], kind: str) -> gymnasium.Space[Any]:
    """Return the space that holds the values of several, filled up."""
    found: list[Any] = [getattr(one, kind) for one in parents]
    first: gymnasium.Space[Any] = found[0]
    if all(one == first for one in found):
        return first
    if all(isinstance(one, spaces.Discrete) for one in found):
        start = min(int(one.start) for one in found)
        return spaces.Discrete(max(int(one.start + one.n) for one in found) - start, start=start)
    for parent, space in zip(parents, found, strict=True):
        if not isinstance(space, spaces.Box) or len(space.shape) != 1 or space.dtype.kind != "f":
            raise SchemaError(
                f"{parent.name}: {kind} {_in_short(space)} cannot be filled up to that of another dataset; pad=True takes "
                "vectors of floats, or choices (Discrete), in all of them."
            )
    width = max(one.shape[0] for one in found)
    dtype = np.result_type(*(one.dtype for one in found))
    # Zeros stand where a dataset has no number, so they lie within the bounds there.
    low = np.stack([np.pad(one.low.astype(dtype), (0, width - len(one.low))) for one in found])
    high = np.stack([np.pad(one.high.astype(dtype), (0, width - len(one.high))) for one in found])
    return spaces.Box(low.min(axis=0), high.max(axis=0), dtype=dtype.type)
