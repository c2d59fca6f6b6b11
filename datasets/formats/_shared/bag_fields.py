"""The fields of the topics of a recording, by the names that messages give to numbers.

Messages of one topic may name other things, as those of two arms do, or of an arm and its gripper. Each such set of
names is a stream of its own, whose last message counts; a column holds all sets, in the order of their first messages.
A number that messages with different sets have is read only where their values agree, as when things come and go.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from orlog.datasets.formats._shared.bag_files import Topic
from orlog.datasets.formats._shared.damage import reading
from orlog.datasets.formats._shared.roles import matching
from orlog.datasets.formats._shared.ros_messages import Key, Leaf, leaves_of, may_vary, paths_of
from orlog.errors import IntegrityError, SchemaError

MOST_SETS = 1000
MOST_SHOWN = 20
MOST_JUMP = 2  # from one sender to another, in steps of each
SPARE_STEPS = 3  # as few jumps may be large by noise
HEADER = ".header."
Leaves = dict[str, Leaf]
Stream = tuple[int, ...]
"""The kinds of messages of which the last one counts."""
Asked = Mapping[str, tuple[str, str]]
"""Fields by their full names: the path of each in a message, and the name of the only number that is read."""


@dataclasses.dataclass
class Survey:
    """What the messages of a topic hold.

    Attributes:
        times: When each was recorded, in nanoseconds.
        kinds: Which of `keys` are the named things of each.
        keys: These sets.
        firsts: Each field, for each set, as the first message that has it holds it.
        counts: How many messages with each set have each field.
        outside: Fields that have numbers in no message.
    """

    times: np.ndarray
    kinds: np.ndarray
    keys: list[frozenset[Key]]
    firsts: list[Leaves]
    counts: list[Counter[str]]
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
        streams: Those that it is in, and the names of its numbers in each.
        shape: Of a row.
        dtype: Of its numbers.
        names: The names of all numbers of a row, if they have some.
        source: The list in the messages that has the names.
    """

    path: str
    name: str
    streams: dict[Stream, tuple[str, ...]]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    names: Sequence[str]
    source: str

    def take(self, leaves: Mapping[Stream, Leaves], where: str) -> np.ndarray:
        """Return its numbers, of the last message of each stream.

        Raises SchemaError if a message does not have them.
        """
        parts = []
        for stream, names in self.streams.items():
            leaf = leaves[stream].get(self.path)
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
    """Look at all messages of a topic, at no more than their times where the type of the first one fixes its fields.

    Raises SchemaError if there is none, or names are not what they should be.
    """
    where = f"{where}, {topic.name}"
    with reading(where), contextlib.closing(_in_order(topic, where)) as messages:
        first = next(messages, None)
        if first is None:
            raise SchemaError(f"{where}: has no message.")
        message = topic.decode(first[1])
        leaves, keys = leaves_of(message, topic.kind, where)
        if leaves and ("" in leaves or not may_vary(message)):
            times = np.fromiter(
                itertools.chain([first[0]], (time for time, _ in messages)), np.int64
            )
            counts = Counter(dict.fromkeys(leaves, len(times)))
            outside = [] if "" in leaves else _outside(paths_of(message), leaves)
            return Survey(
                times, np.zeros(len(times), np.int16), [keys], [leaves], [counts], outside
            )
        seen = Survey(np.array([]), np.array([]), [], [], [], [])
        each, kinds = [], []
        number_of: dict[frozenset[Key], int] = {}
        paths: dict[str, None] = {}
        for time, data in itertools.chain([first], messages):
            message = topic.decode(data)
            leaves, keys = leaves_of(message, topic.kind, where)
            if keys not in number_of:
                number_of[keys] = len(number_of)
                seen.firsts.append({})
                seen.counts.append(Counter())
                if len(number_of) > MOST_SETS:
                    raise SchemaError(f"{where}: names over {MOST_SETS:,} sets of things.")
            kind = number_of[keys]
            for path, leaf in leaves.items():
                seen.firsts[kind].setdefault(path, leaf)
            seen.counts[kind].update([*leaves])
            paths |= dict.fromkeys(paths_of(message))
            each.append(time)
            kinds.append(kind)
    seen.times, seen.kinds, seen.keys = np.array(each), np.array(kinds, np.int16), [*number_of]
    seen.outside = _outside(paths, seen.leaves())
    return seen


def _outside(paths: Iterable[str], leaves: Leaves) -> list[str]:
    return [path for path in paths if not any(inner.startswith(path) for inner in leaves)]


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
    topic: Topic, seen: Survey, wanted: Sequence[str], where: str
) -> tuple[dict[str, Field], dict[Stream, str]]:
    """Return the wanted fields of a topic, and what errors call each of their streams.

    Raises SchemaError if some messages lack a field, sets of names overlap, several senders give one number values
    that differ, or some messages have names and others none.
    """
    where = f"{where}, {topic.name}"
    leaves = seen.leaves()
    asked: dict[str, tuple[str, str]] = {}
    for full in wanted:
        path = full.removeprefix(topic.name).removeprefix(".")
        outer = path if path in leaves else next(o for o in leaves if path.startswith(f"{o}."))
        asked[full] = (outer, path[len(outer) + 1 :])
    _check_sets(topic, seen, asked, where)
    fields, streams, lacks = {}, dict[Stream, set[str]](), dict[str, str]()
    for full, (path, name) in asked.items():
        leaf = leaves[path]
        if any(bool(one[path].names) != bool(leaf.names) for one in seen.firsts if path in one):
            raise SchemaError(
                f"{where}: some messages name the numbers of {path}, and others do not."
            )
        lack = _lack(seen, path, name)
        lacks |= {full: lack} if lack else {}
        own = _streams(seen, path, name)
        for stream, names in own.items():
            around = {inner for source, inner in leaf.keys if source != leaf.source}
            streams.setdefault(stream, set()).update(around, names)
        fields[full] = _field(path, name, own, leaf, topic.name)
    if lacks:
        others = {full: one for full, one in asked.items() if full not in lacks}
        every = {f"{topic.name}.{path}": (path, "") for path in leaves if HEADER not in f".{path}"}
        advice = _advice(topic, seen, others or every, where)
        which = "; ".join([*dict.fromkeys(lacks.values())][:MOST_SHOWN])
        raise SchemaError(f"{where}: {which}; rows need a value from each message.{advice}")
    return fields, {
        stream: f"{topic.name} ({_listed(names)})" if names and len(streams) > 1 else topic.name
        for stream, names in streams.items()
    }


def _streams(seen: Survey, path: str, name: str) -> dict[Stream, tuple[str, ...]]:
    """Return the streams that a field is in, and the names of its numbers in each."""
    having = [kind for kind, first in enumerate(seen.firsts) if path in first]
    if name:
        return {tuple(kind for kind in having if name in seen.firsts[kind][path].names): (name,)}
    streams: dict[Stream, tuple[str, ...]] = {}
    for leaf in (seen.firsts[kind][path] for kind in having):
        stream = tuple(kind for kind, keys in enumerate(seen.keys) if leaf.keys <= keys)
        streams.setdefault(stream, leaf.names)
    return streams


def _lack(seen: Survey, path: str, name: str) -> str:
    """Return how many of the messages that should have a field do not; nothing if all have it."""
    for stream in _streams(seen, path, name):
        total = int(np.isin(seen.kinds, stream).sum())
        lack = total - sum(seen.counts[kind][path] for kind in stream)
        if lack:
            return f"{lack:,} of {total:,} messages have no {path}"
    return ""


def _field(
    path: str, name: str, streams: dict[Stream, tuple[str, ...]], leaf: Leaf, topic: str
) -> Field:
    names = [called for several in streams.values() for called in several]
    inner = leaf.values.shape[1:]
    shape = leaf.values.shape if not names else inner if name else (len(names), *inner)
    if shape == ():
        names = [name or path]
    source = f"{topic}.{leaf.source}" if leaf.source else ""
    return Field(
        path, name, streams, shape, leaf.values.dtype, names if len(shape) < 2 else [], source
    )


def _check_sets(topic: Topic, seen: Survey, asked: Asked, where: str) -> None:
    """Refuse numbers that messages with different sets of names have, and that rows could not tell apart."""
    leaves = seen.leaves()
    whole = {leaves[path].source for path, name in asked.values() if not name} - {""}
    around = {
        key
        for path, _ in asked.values()
        for key in leaves[path].keys
        if key[0] != leaves[path].source
    }
    sets = [frozenset(k for k in keys if k[0] in whole or k in around) for keys in seen.keys]
    clash = _clash(sets)
    if clash is not None:
        singles: dict[str, tuple[str, str]] = {}
        for full, (path, name) in asked.items():
            leaf = leaves[path]
            if leaf.names and not name:
                singles |= {f"{full}.{one}": (path, one) for one in _all_names(path, seen)}
            elif {key for key in leaf.keys if key[0] != leaf.source} <= clash[0] & clash[1]:
                singles[full] = (path, name)
        raise SchemaError(
            f"{where}: some messages hold {_listed_keys(clash[0])}, and others {_listed_keys(clash[1])}; rows cannot "
            f"have both.{_advice(topic, seen, singles, where)}"
        )
    for full, (ours, theirs) in _rivals(topic, seen, asked, where).items():
        path, name = asked[full]
        start = full.removesuffix(f".{name}")
        singles = {f"{start}.{one}": (path, one) for one in _all_names(path, seen)}
        raise SchemaError(
            f"{where}: messages with {_listed_keys(ours)} and messages with {_listed_keys(theirs)} both have "
            f"{full.removeprefix(topic.name)[1:]}, and their values differ; rows cannot have both."
            f"{_advice(topic, seen, singles if name else asked, where)}"
        )


def _clash(sets: Sequence[frozenset[Key]]) -> tuple[frozenset[Key], frozenset[Key]] | None:
    """Return two sets of names that differ and have some in common."""
    first_with: dict[Key, frozenset[Key]] = {}
    for keys in sets:
        for key in keys:
            if first_with.setdefault(key, keys) != keys:
                return first_with[key], keys
    return None


def _rivals(
    topic: Topic, seen: Survey, asked: Asked, where: str
) -> dict[str, tuple[frozenset[Key], frozenset[Key]]]:
    """Return fields of which two senders give values that differ, and the sets of names that these two have.

    The values of one sender, and of two that agree, change no more from a message with one set to one with
    another than since the last message with that set.
    """
    senders: dict[str, dict[int, frozenset[Key]]] = {}
    for full, (path, name) in asked.items():
        sets = {}
        for kind, first in enumerate(seen.firsts):
            if path in first and (not name or name in first[path].names):
                leaf = first[path]
                lists = {source for source, _ in leaf.keys if name or source != leaf.source}
                sets[kind] = frozenset(key for key in seen.keys[kind] if key[0] in lists)
        if len({*sets.values()}) > 1:
            senders[full] = sets
    if not senders:
        return {}
    last: dict[str, tuple[frozenset[Key], np.ndarray]] = {}
    last_of: dict[tuple[str, frozenset[Key]], np.ndarray] = {}
    sums = {full: np.zeros(4) for full in senders}  # steps, their number, jumps, steps at jumps
    widest: dict[str, tuple[float, set[frozenset[Key]]]] = {}
    with reading(where):
        for kind, (_, data) in zip(seen.kinds.tolist(), topic.messages(), strict=True):
            leaves, _ = leaves_of(topic.decode(data), topic.kind, where)
            for full, sets in senders.items():
                path, name = asked[full]
                if kind not in sets or path not in leaves or name not in ("", *leaves[path].names):
                    continue
                values, sender = _values_by_name(leaves[path], name), sets[kind]
                before, other = last_of.get((full, sender)), last.get(full)
                last[full], last_of[full, sender] = (sender, values), values
                if before is None or other is None or before.shape != values.shape:
                    continue
                step = float(np.nansum(abs(values - before)))
                sums[full] += (step, 1, 0, 0)
                if other[0] != sender and other[1].shape == values.shape:
                    jump = float(np.nansum(abs(values - other[1])))
                    sums[full] += (0, 0, jump, step)
                    if jump > widest.get(full, (-1.0,))[0]:
                        widest[full] = (jump, {other[0], sender})
    rivals = {}
    for full, (total, count, jumps, steps) in sums.items():
        if jumps > MOST_JUMP * (steps + SPARE_STEPS * total / max(1, count)):
            two = widest[full][1]
            first_set, second_set = (
                one for one in dict.fromkeys(senders[full].values()) if one in two
            )
            rivals[full] = (first_set, second_set)
    return rivals


def _values_by_name(leaf: Leaf, name: str) -> np.ndarray:
    """Return numbers in the order of their names, or the named one alone."""
    values = leaf.values.astype(np.float64)
    if name:
        return np.asarray(values[leaf.names.index(name)])
    return values[np.argsort(leaf.names)] if leaf.names else values


def _advice(topic: Topic, seen: Survey, candidates: Asked, where: str) -> str:
    """Return a sentence that names those of some fields that can be read."""
    rivals = _rivals(topic, seen, candidates, where)
    good = [
        full
        for full, (path, name) in candidates.items()
        if full not in rivals and not _lack(seen, path, name)
    ]
    return f" Map what can be read: {','.join(good[:MOST_SHOWN])}." if good else ""


def _listed_keys(keys: Iterable[Key]) -> str:
    return _listed(name for _, name in keys)


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return ", ".join(names[:MOST_SHOWN]) + more
