"""The fields of the topics of a recording, by the names that messages give to numbers.

Messages of one topic may name other things, as those of two arms do, or of an arm and its gripper. Each such set of
names is a stream of its own, whose last message counts; a column holds all sets, in the order of their first messages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from orlog.datasets.formats._containers.bag_files import Topic, reading_bag
from orlog.datasets.formats._containers.ros_messages import (
    Key,
    Leaf,
    has_lists,
    leaves_of,
    paths_of,
)
from orlog.datasets.formats._shared.roles import matching
from orlog.errors import IntegrityError, SchemaError

ALL = -1
MOST_SETS = 1000
Leaves = dict[str, Leaf]


@dataclasses.dataclass
class Survey:
    """What the messages of a topic hold.

    Attributes:
        times: When each was recorded, in nanoseconds.
        kinds: Which of `firsts` has the named things of each.
        firsts: The first message with each set of named things.
        keys: These sets.
        outside: Fields of the first message without numbers.
    """

    times: np.ndarray
    kinds: np.ndarray
    firsts: list[Leaves]
    keys: list[frozenset[Key]]
    outside: list[str]

    def leaves(self) -> Leaves:
        """Return each field as the first message that has it holds it."""
        merged: Leaves = {}
        for leaves in reversed(self.firsts):
            merged = leaves | {path: leaf for path, leaf in merged.items() if path not in leaves}
        return merged


@dataclasses.dataclass
class Field:
    """A field that is read, or one named number of it.

    Attributes:
        path: Its path in a message.
        name: The name of the only number that is read; nothing for all.
        groups: The streams that it is in, and the names of its numbers in each.
        shape: Of a row.
        dtype: Of its numbers.
        names: The names of all numbers of a row, if they have some.
        source: The list in the messages that has the names.
    """

    path: str
    name: str
    groups: dict[int, tuple[str, ...]]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    names: Sequence[str]
    source: str

    def take(self, leaves: Mapping[int, Leaves], where: str) -> np.ndarray:
        """Return its numbers, of the last message of each stream.

        Raises SchemaError if a message does not have them.
        """
        parts = []
        for group, names in self.groups.items():
            leaf = leaves[group].get(self.path)
            if leaf is None or not {*names} <= {*leaf.names}:
                raise SchemaError(
                    f"{where}: expected {f'{len(names)} numbers by name' if names else self.shape} in each message, "
                    f"found {'none' if leaf is None else leaf.values.shape}."
                )
            places = [leaf.names.index(name) for name in names]
            parts.append(leaf.values[places] if names and leaf.names != names else leaf.values)
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        values = values[0] if self.name else values
        if values.shape != self.shape:
            raise SchemaError(
                f"{where}: expected {self.shape} in each message, found {values.shape}."
            )
        kept = values.astype(self.dtype)
        if kept.dtype != values.dtype and (kept.astype(values.dtype) != values).any():
            raise SchemaError(
                f"{where}: {values.tolist()} does not fit {self.dtype}, which the first message has."
            )
        return kept


def survey(topic: Topic, where: str) -> Survey:
    """Look at all messages of a topic, at no more than their times where the first one has no lists that name things.

    Raises SchemaError if there is none, or names are not what they should be.
    """
    where = f"{where}, {topic.name}"
    with reading_bag(where), contextlib.closing(_in_order(topic, where)) as messages:
        first = next(messages, None)
        if first is None:
            raise SchemaError(f"{where}: has no message.")
        message = topic.decode(first[1])
        leaves, keys = leaves_of(message, topic.kind, where)
        is_picture = "" in leaves
        outside = (
            []
            if is_picture
            else [
                path
                for path in paths_of(message)
                if not any(inner.startswith(path) for inner in leaves)
            ]
        )
        if is_picture or not has_lists(message):
            times = np.fromiter(
                itertools.chain([first[0]], (time for time, _ in messages)), np.int64
            )
            return Survey(times, np.zeros(len(times), np.int16), [leaves], [keys], outside)
        each, kinds, number_of = [first[0]], [0], {keys: 0}
        firsts = [leaves]
        for time, data in messages:
            leaves, keys = leaves_of(topic.decode(data), topic.kind, where)
            if keys not in number_of:
                number_of[keys] = len(firsts)
                firsts.append(leaves)
            each.append(time)
            kinds.append(number_of[keys])
            if len(firsts) > MOST_SETS:
                raise SchemaError(f"{where}: names over {MOST_SETS:,} sets of things.")
    return Survey(np.array(each), np.array(kinds, np.int16), firsts, [*number_of], outside)


def _in_order(topic: Topic, where: str) -> Generator[tuple[int, bytes]]:
    """Yield the messages of a topic; raise IntegrityError if one is older than the one before it."""
    newest = -(2**63)
    for time, data in topic.messages():
        if time < newest:
            raise IntegrityError(
                f"{where}: its messages are not in the order of their times; files of the bag may be listed "
                "in another order than they were written.",
                file=where,
            )
        newest = time
        yield time, data


def names_of_fields(topic: str, seen: Survey, wanted: Sequence[str]) -> list[str]:
    """Return the full names of the fields of a topic, or of single numbers of those of which some are wanted.

    `wanted` are patterns: `/joint_states.position.elbow` means one number of a field, and `/joint_states.*` whole ones.
    """
    fields = []
    for path, leaf in seen.leaves().items():
        whole = f"{topic}.{path}" if path else topic
        names = [f"{whole}.{name}" for name in _all_names(path, seen)] if leaf.names else []
        patterns = [pattern for pattern in wanted if not matching(pattern, [whole])]
        single = [name for name in names if matching(",".join(patterns), [name])]
        is_whole = not single or len(patterns) < len(wanted)
        fields += [whole, *single] if is_whole else names
    return fields


def _all_names(path: str, seen: Survey) -> list[str]:
    return [
        *dict.fromkeys(
            name for leaves in seen.firsts if path in leaves for name in leaves[path].names
        )
    ]


def fields_of(
    topic: str, seen: Survey, wanted: Sequence[str], where: str
) -> tuple[dict[str, Field], np.ndarray, list[str]]:
    """Return the wanted fields of a topic, the stream of each of its messages, and what errors call each stream.

    Raises SchemaError if sets of names overlap, or some messages have names and others none.
    """
    leaves = seen.leaves()
    asked: dict[str, tuple[str, str]] = {}
    for full in wanted:
        path = full.removeprefix(topic).removeprefix(".")
        inside = [outer for outer in leaves if path.startswith(f"{outer}.")]
        asked[full] = (path, "") if path in leaves else (inside[0], path[len(inside[0]) + 1 :])
    whole = {leaves[path].source for path, name in asked.values() if not name} - {""}
    single = {(leaves[path].source, name) for path, name in asked.values() if name}
    for path, _ in asked.values():
        single |= {key for key in leaves[path].keys if key[0] != leaves[path].source}
    sets = [frozenset(k for k in keys if k[0] in whole or k in single) for keys in seen.keys]
    distinct = [keys for keys in dict.fromkeys(sets) if keys]
    clash = _clash(distinct)
    if clash is not None:
        common = _common(asked, leaves, clash[0] & clash[1])
        raise SchemaError(
            f"{where}, {topic}: some messages hold {_listed(clash[0])}, and others {_listed(clash[1])}; rows cannot "
            f"have both. Map what all of them hold: {common or 'nothing that you name'}."
        )
    group_of = [distinct.index(keys) if keys else ALL for keys in sets]
    fields = {}
    for full, (path, name) in asked.items():
        groups: dict[int, tuple[str, ...]] = {}
        for first, group in zip(seen.firsts, group_of, strict=True):
            leaf = first.get(path)
            if leaf is None or (name and name not in leaf.names):
                continue
            if bool(leaf.names) != bool(leaves[path].names):
                raise SchemaError(
                    f"{where}, {full}: some of its messages name their numbers, and others do not."
                )
            groups.setdefault(group if leaf.keys else ALL, (name,) if name else leaf.names)
        fields[full] = _field(path, name, groups, leaves[path], topic)
    called = [f"{topic} ({_listed(keys)})" if len(distinct) > 1 else topic for keys in distinct]
    return fields, np.array(group_of)[seen.kinds], called


def _field(
    path: str, name: str, groups: dict[int, tuple[str, ...]], leaf: Leaf, topic: str
) -> Field:
    names = [called for several in groups.values() for called in several]
    inner = leaf.values.shape[1:]
    shape = leaf.values.shape if not names else inner if name else (len(names), *inner)
    if shape == ():
        names = [name or path]
    source = f"{topic}.{leaf.source}" if leaf.source else ""
    return Field(
        path, name, groups, shape, leaf.values.dtype, names if len(shape) < 2 else [], source
    )


def _clash(sets: Sequence[frozenset[Key]]) -> tuple[frozenset[Key], frozenset[Key]] | None:
    """Return two sets of names that differ and have some in common."""
    first_with: dict[Key, frozenset[Key]] = {}
    for keys in sets:
        for key in keys:
            if first_with.setdefault(key, keys) is not keys:
                return first_with[key], keys
    return None


def _common(asked: Mapping[str, tuple[str, str]], leaves: Leaves, keys: frozenset[Key]) -> str:
    """Return the fields, or single numbers of them, that two sets of names have in common."""
    names = []
    for full, (path, name) in asked.items():
        leaf = leaves[path]
        if name or not leaf.names:
            names += [full] if {*leaf.keys} <= keys or (leaf.source, name) in keys else []
        else:
            names += [f"{full}.{inner}" for inner in leaf.names if (leaf.source, inner) in keys]
    return ",".join(names[:20])


def _listed(keys: frozenset[Key]) -> str:
    names = sorted(name for _, name in keys)
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(names[:20]) + more
