"""Reads recordings of robots, MCAP files and bags of ROS 1 and 2, at the rate that the user names.

    orlog import drive.mcap lab/drive-v1 --map observation/image=/camera --map action=/cmd_vel --rate 10

Names of `--map` are topics, `/cmd_vel`, all of whose numbers are taken but those of the header, or fields of one,
`/joint_states.position`. Pictures (`sensor_msgs/Image`, `CompressedImage`) become frames. A row is a point in time, by
the clock of the recorder: `--rate` of them a second, from when all topics have a message until the first of them
ends. Each row has the last message of each topic up to then. A file, of some or of a folder, is an episode; nothing says how it ended.
Messages are decoded by the definitions that the recording holds (`ros_messages.py`), or are JSON.

Messages of one topic may name other numbers, as those of two arms do, or of an arm and its gripper. A number is that of
the last message that names it; a column holds all, in the order of their first messages. A number that messages with
different sets of names have in turn is refused, since these may be two senders.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import shlex
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats.bag_files import METADATA, Topic, is_bag, is_database, open_bag
from orlog.datasets.formats.episodes import Asked, Opened, Options, tell_lack
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import ArrayLayout, open_mapped
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.places import FILE, AxisNames, Place, Places, Taken, files_in
from orlog.datasets.formats.roles import SAY, by_numbers, matching
from orlog.datasets.formats.ros_messages import Key, Leaf, leaves_of, may_vary, paths_of
from orlog.datasets.formats.safe_reading import reading
from orlog.errors import IntegrityError, OrlogError, SchemaError
from orlog.manifests.names import counted

SECOND = 10**9
MOST_ROWS = 2**31
MOST_SHOWN = 20
HEADER = ".header."
Leaves = dict[str, Leaf]
Stream = tuple[int, ...]
"""The kinds of messages of which the last one counts."""


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    if not asked.options.columns:
        raise SchemaError(f"{asked.sources[0]}: say what its topics mean as columns=.{_describe(asked.files)}")
    seen: dict[str, list[Taken]] = {}
    asked = _each(asked)
    surveys: dict[tuple[str, str], Survey] = {}
    columns = _whole_topics(asked, surveys)
    options = dataclasses.replace(asked.options, columns=columns, episode=FILE)
    lacks: list[Note] = []

    def note_taken(place: Place) -> tuple[dict[str, Any], None]:
        for topic, taken in place.taken.items():
            seen.setdefault(topic, []).append(taken)
            what = (
                f"{place.where}, {topic}: holds {taken.messages:,} messages, but its metadata says {taken.expected:,}"
            )
            if taken.messages < taken.expected:
                tell_lack(asked.options, lacks, SchemaError(f"{what}."))
            elif taken.messages > taken.expected:
                lacks.append(Note("more_messages", [topic], what=what))
        return {}, None

    places = Places(_recordings, functools.partial(_open_recording, surveys))
    known = ArrayLayout(columns={}, places=places, about=note_taken)
    with open_mapped(dataclasses.replace(asked, options=options), known) as opened:
        opened.notes += lacks
        for topic, each in seen.items():
            total = sum(taken.messages for taken in each)
            left = total - sum(taken.taken for taken in each)
            are = f"{left:,} of its {total:,} messages {'is' if left == 1 else 'are'} in no row"
            are = are if left else f"all of its {total:,} messages are in rows"
            age = max(taken.age for taken in each)
            opened.notes.append(Note("messages", [topic], messages=are, age=age))
        yield opened


def _each(asked: Asked) -> Asked:
    """Return the recordings, those in a folder too, in the order of the numbers in their names."""
    given = _recordings(asked)
    if len(given) == 1 and not is_bag(given[0][0]):
        ((folder, source),) = given
        given = files_in(folder, source, is_bag) if folder.is_dir() else []
        if not given:
            raise SchemaError(f"{source}: holds no recording.")
    for file, source in given:
        if is_database(file) and (file.parent / METADATA).is_file():
            line = shlex.join(["orlog", "import", str(file.parent), "NAME"])
            raise SchemaError(f"{source}: a part of the bag in the folder around it; import that: {line}")
    given.sort(key=lambda recording: by_numbers(recording[0].name))
    files, sources = map(list, zip(*given, strict=True))
    return dataclasses.replace(asked, files=files, sources=sources)


def _recordings(asked: Asked) -> list[tuple[Path, str]]:
    """Return the recordings, and what errors call them."""
    return list(zip(asked.files, asked.sources, strict=True))


def _whole_topics(asked: Asked, surveys: dict[tuple[str, str], Survey]) -> dict[str, str]:
    """Return the columns with the fields of a topic, or of a part such as `/cmd_vel.linear`, in place of its name.

    The first recording says which these are; what is seen of its topics is added to `surveys`.
    """
    columns, where = {}, asked.sources[0]
    with open_bag(asked.files[0], where) as (topics, _):
        for role, patterns in asked.options.columns.items():
            names: list[str] = []
            for name in filter(None, patterns.split(",")):
                around = [one for one in topics if name == one or name.startswith(f"{one}.")]
                topic, inside = max(around, key=len, default=""), list[str]()
                if topic:
                    key = where, topic
                    surveys[key] = surveys.get(key) or survey(topics[topic], where)
                    fields = names_of_fields(topic, surveys[key], ())
                    inside = [one for one in fields if one.startswith(f"{name}.")]
                    inside = [] if name in fields else inside
                # Headers have times, also those of messages in a list.
                kept = [one for one in inside if HEADER not in one.removeprefix(name)]
                names += kept if inside else [name]
            columns[role] = ",".join(names)
    return columns


def _open_recording(
    surveys: Mapping[tuple[str, str], Survey], recording: tuple[Path, str], options: Options
) -> Generator[Place]:
    """Yield a recording while it is open; what some topics of it hold may be known already."""
    file, where = recording
    with open_bag(file, where) as (topics, beside):
        named = ",".join(options.columns.values()).split(",")
        wanted = {
            name: topic
            for name, topic in topics.items()
            if any(one == name or one.startswith((f"{name}.", f"{name}*")) for one in named)
        }
        if not wanted:
            raise SchemaError(
                f"{where}: has none of the topics that columns= names; it has {', '.join(sorted(topics))}."
            )
        names, outside, notes = list[str](), [*beside], list[Note]()
        parts: list[tuple[Topic, Survey, dict[str, Field], dict[Stream, _Times]]] = []
        for name, topic in wanted.items():
            seen = surveys.get((where, name)) or survey(topic, where)
            inside = names_of_fields(name, seen, named)
            names += inside
            outside += [f"{name}.{path}" for path in seen.outside]
            own = fields_of(name, seen, matching(",".join(named), inside), where)
            changed = [full for full, field in own.items() if field.is_changed]
            notes += [Note("names_change", changed)] if changed else []
            parts.append((topic, seen, own, _times_of(name, seen, own.values())))
        streams = [stream for *_, several in parts for stream in several.values()]
        ticks = _ticks(streams, options.rate, where)
        columns, fields, taken = dict[str, _Column](), dict[str, Field](), {}
        for topic, seen, own, several in parts:
            last = {stream: times.last_at(ticks) for stream, times in several.items()}
            messages = _Messages(topic, own, last, where)
            fields |= own
            for full, field in own.items():
                columns[full] = _Column(messages, full, (len(ticks), *field.shape), field.dtype)
            in_rows = np.unique([*last.values()])
            age = max((ticks - seen.times[numbers]).max() for numbers in last.values()) / SECOND
            taken[topic.name] = Taken(len(seen.kinds), topic.expected, len(in_rows), age)
        yield Place(
            where,
            [*names, *sorted(topics.keys() - wanted.keys())],
            columns.__getitem__,
            reading,
            outside=outside,
            taken=taken,
            names_of=lambda full: AxisNames(fields[full].names, fields[full].source),
            notes=notes,
        )


class _Times(NamedTuple):
    """When the messages of a stream were recorded: what errors call it, times, and numbers in the topic."""

    label: str
    times: np.ndarray
    numbers: np.ndarray

    def last_at(self, ticks: np.ndarray) -> np.ndarray:
        """Return the number of the last message at each time."""
        last: np.ndarray = self.numbers[np.searchsorted(self.times, ticks, side="right") - 1]
        return last


def _times_of(topic: str, seen: Survey, fields: Iterable[Field]) -> dict[Stream, _Times]:
    """Return the times of each stream that some fields of a topic are in."""
    named: dict[Stream, set[str]] = {}
    for field in fields:
        for stream, names in field.streams.items():
            named.setdefault(stream, set()).update(names)
    times = {}
    for stream, own in (named or {(*range(len(seen.keys)),): set[str]()}).items():
        numbers = np.flatnonzero(np.isin(seen.kinds, stream))
        label = f"{topic} ({_listed(own)})" if own and len(named) > 1 else topic
        times[stream] = _Times(label, seen.times[numbers], numbers)
    return times


def _ticks(streams: Sequence[_Times], rate: float | None, where: str) -> np.ndarray:
    """Return the time of each row, in nanoseconds."""
    if rate is None:
        rates = [
            f"{label} {SECOND * (len(times) - 1) / max(1, int(times[-1] - times[0])):.3g}"
            for label, times, _ in streams
        ]
        raise SchemaError(f"{where}: give the rows a second as rate=; messages a second: {', '.join(rates)}.")
    start = max(int(stream.times[0]) for stream in streams)
    stop = min(int(stream.times[-1]) for stream in streams)
    rows = (stop - start) * rate / SECOND + 1
    if stop < start or not 2 <= rows <= MOST_ROWS:
        raise SchemaError(
            f"{where}: the topics that columns= names have {max(0, rows):.4g} rows in common at {rate:g} a second, "
            f"expected 2 to {MOST_ROWS:,}."
        )
    count = int((stop - start) * rate // SECOND) + 1
    return start + np.round(np.arange(count) * (SECOND / rate)).astype(np.int64)


class _Messages:
    """The messages of a topic at the time of each row, in order."""

    def __init__(
        self, topic: Topic, fields: Mapping[str, Field], last: Mapping[Stream, np.ndarray], where: str
    ) -> None:
        """Take the fields to read, and the number of the message that each row has of each stream."""
        self._topic, self._fields, self._last, self._where = topic, fields, last, where
        self._held: tuple[slice, dict[str, np.ndarray]] = slice(0), {}
        self._decoded: dict[int, Leaves] = {}
        self._messages = enumerate(topic.messages())
        self._next = 0

    def read(self, rows: slice) -> dict[str, np.ndarray]:
        """Return the fields of some rows; those of the last call are held for the next field."""
        if self._held[0] != rows:
            last = {stream: numbers[rows].tolist() for stream, numbers in self._last.items()}
            decoded = self._decode({number for several in last.values() for number in several})
            count = len(next(iter(last.values())))
            values = {name: np.empty((count, *field.shape), field.dtype) for name, field in self._fields.items()}
            for row in range(count):
                leaves = {stream: decoded[numbers[row]] for stream, numbers in last.items()}
                for name, field in self._fields.items():
                    where = f"{self._where}, {name} at row {(rows.start or 0) + row}"
                    values[name][row] = field.take(leaves, where)
            self._held = rows, values
        return self._held[1]

    def _decode(self, numbers: set[int]) -> dict[int, Leaves]:
        """Return some messages by their numbers; those of the last call are kept."""
        self._decoded = {n: leaves for n, leaves in self._decoded.items() if n in numbers}
        missing, where = numbers - self._decoded.keys(), f"{self._where}, {self._topic.name}"
        if missing and min(missing) < self._next:
            self._messages, self._next = enumerate(self._topic.messages()), 0
        while missing:
            number, (_, data) = next(self._messages)
            self._next = number + 1
            if number in missing:
                missing.remove(number)
                with reading(where):
                    message = self._topic.decode(data)
                    self._decoded[number], _ = leaves_of(message, self._topic.kind, where)
        return self._decoded


@dataclasses.dataclass
class _Column:
    """A field of a topic, as an array with a row for each point in time."""

    messages: _Messages
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows."""
        return self.messages.read(rows)[self.name]


@dataclasses.dataclass
class Survey:
    """What the messages of a topic hold."""

    times: np.ndarray  # when each was recorded, in nanoseconds
    kinds: np.ndarray  # which of `keys` are the named things of each
    keys: list[frozenset[Key]]  # these sets
    firsts: list[Leaves]  # each field, for each set, as the first message that has it holds it
    counts: list[Counter[str]]  # how many messages with each set have each field
    outside: list[str]  # fields that have numbers in no message

    @functools.cached_property
    def leaves(self) -> Leaves:
        """Each field as the first message that has it holds it."""
        merged: Leaves = {}
        for leaves in self.firsts:
            merged |= {path: leaf for path, leaf in leaves.items() if path not in merged}
        return merged

    def names_of(self, path: str) -> list[str]:
        """Return the names of the numbers of a field, in the order of their first messages; without any, ''."""
        each = [leaves[path].names for leaves in self.firsts if path in leaves]
        return [*dict.fromkeys(itertools.chain(*each))] or [""]

    def kinds_of(self, path: str, name: str) -> Stream:
        """Return the kinds of messages that should have a number: those that name it, and what it is of."""
        leaf = self.leaves[path]
        needs = {key for key in leaf.keys if key[0] != leaf.source}
        needs |= {(leaf.source, name)} if name else set()
        return tuple(kind for kind, keys in enumerate(self.keys) if needs <= keys)


def survey(topic: Topic, where: str) -> Survey:
    """Look at all messages of a topic, at no more than their times where the type of the first one fixes its fields.

    Raises SchemaError if there is none, or names are not what they should be.
    """
    where = f"{where}, {topic.name}"
    seen = Survey(np.array([]), np.array([]), [], [], [], [])
    times, kinds = list[int](), list[int]()
    paths: dict[str, None] = {}
    number_of: dict[frozenset[Key], int] = {}
    with reading(where):
        is_fixed = False  # whether all messages have the fields of the first one
        for time, data in topic.messages():
            if times and time < times[-1]:
                raise IntegrityError(
                    f"{where}: its messages are not in the order of their times; files of the bag may be listed "
                    "in another order than they were written.",
                    file=where,
                )
            times.append(time)
            if is_fixed:
                continue
            message = topic.decode(data)
            leaves, keys = leaves_of(message, topic.kind, where)
            kind = number_of.setdefault(keys, len(number_of))
            if kind == len(seen.firsts):
                seen.firsts.append({})
                seen.counts.append(Counter())
            for path, leaf in leaves.items():
                seen.firsts[kind].setdefault(path, leaf)
            seen.counts[kind].update([*leaves])
            kinds.append(kind)
            if "" not in leaves:
                paths |= dict.fromkeys(paths_of(message))
            is_fixed = len(times) == 1 and bool(leaves) and ("" in leaves or not may_vary(message))
    if not times:
        raise SchemaError(f"{where}: has no message.")
    if is_fixed:
        kinds = [0] * len(times)
        seen.counts = [Counter(dict.fromkeys(seen.firsts[0], len(times)))]
    seen.times, seen.kinds, seen.keys = np.array(times), np.array(kinds), [*number_of]
    seen.outside = [path for path in paths if not any(one.startswith(path) for one in seen.leaves)]
    return seen


def names_of_fields(topic: str, seen: Survey, wanted: Sequence[str]) -> list[str]:
    """Return the full names of the fields of a topic, or of single numbers of those of which some are wanted.

    `wanted` are patterns: `/joint_states.position.elbow` means one number of a field, and `/joint_states.*` whole ones.
    """
    fields = []
    for path in seen.leaves:
        whole = f"{topic}.{path}" if path else topic
        names = [f"{whole}.{name}" for name in seen.names_of(path) if name]
        patterns = [pattern for pattern in wanted if not matching(pattern, [whole])]
        single = [name for name in names if matching(",".join(patterns), [name])]
        is_whole = not single or len(patterns) < len(wanted)
        fields += [whole, *single] if is_whole else names
    return fields


@dataclasses.dataclass
class Field:
    """A field that is read, or one named number of it."""

    path: str  # its path in a message
    is_single: bool  # whether it is one number alone
    streams: dict[Stream, tuple[str, ...]]  # with the names of its numbers in each
    shape: tuple[int, ...]  # of a row
    dtype: np.dtype[Any]  # of its numbers
    names: Sequence[str]  # the names of all numbers of a row, if they have some
    source: str  # the list in the messages that has the names
    is_changed: bool  # whether messages with other names beside its own follow those before

    def take(self, leaves: Mapping[Stream, Leaves], where: str) -> np.ndarray:
        """Return its numbers, of the last message of each stream.

        Raises SchemaError if a message does not have them.
        """
        parts = []
        for stream, names in self.streams.items():
            leaf = leaves[stream].get(self.path, Leaf(np.zeros(0)))
            if not names or leaf.names == names:
                parts.append(leaf.values)
            else:
                places = [leaf.names.index(name) for name in names if name in leaf.names]
                parts.append(np.atleast_1d(leaf.values)[places])
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        values = values[0] if self.is_single and len(values) else values
        kept = values.astype(self.dtype)
        if values.shape != self.shape:
            raise SchemaError(f"{where}: expected {self.shape} in each message, found {values.shape}.")
        if kept.dtype != values.dtype and (kept.astype(values.dtype) != values).any():
            raise SchemaError(f"{where}: {values.tolist()} does not fit {self.dtype}, which the first message has.")
        return kept


def fields_of(topic: str, seen: Survey, wanted: Sequence[str], where: str) -> dict[str, Field]:
    """Return the wanted fields of a topic.

    Raises SchemaError if one has no value that is plainly the last one at each time.
    """
    fields, problems = {}, {}
    for full in wanted:
        outer = full.removeprefix(topic).removeprefix(".")
        is_path = outer in seen.leaves
        path = outer if is_path else next(p for p in seen.leaves if outer.startswith(f"{p}."))
        single, leaf = outer[len(path) + 1 :], seen.leaves[path]
        names = [single] if single else seen.names_of(path)
        problem = _problem(seen, path, names)
        if problem:
            problems[full] = problem
        streams: dict[Stream, tuple[str, ...]] = {}
        for name in names:
            kinds = seen.kinds_of(path, name)
            streams[kinds] = (*streams.get(kinds, ()), *filter(None, [name]))
        inner = leaf.values.shape[1:]
        shape = inner if single else (len(names), *inner) if leaf.names else leaf.values.shape
        called = [name for several in streams.values() for name in several]
        called = called if shape else [single or path]
        source = f"{topic}.{leaf.source}" if leaf.source else ""
        fields[full] = Field(
            path,
            bool(single),
            streams,
            shape,
            leaf.values.dtype,
            called if len(shape) < 2 else [],
            source,
            any(len(_sets_in_turn(seen, path, name)) > 1 for name in names),
        )
    if problems:
        good = []
        for path in (path for path in seen.leaves if HEADER not in f".{path}"):
            names = [name for name in seen.names_of(path) if not _problem(seen, path, [name])]
            is_whole = names == seen.names_of(path)
            good += [path] if is_whole else [f"{path}.{name}" for name in names]
        names = [f"{topic}.{one}" for one in good[:MOST_SHOWN]]
        advice = f" Map what can be read: {','.join(names)}." if good else ""
        which = "; ".join([*dict.fromkeys(problems.values())][:MOST_SHOWN])
        raise SchemaError(f"{where}, {topic}: {which}; rows need one value at each time.{advice}")
    return fields


def _problem(seen: Survey, path: str, names: Sequence[str]) -> str:
    """Return why numbers of a field have no plain value at each time; nothing where they have."""
    leaf = seen.leaves[path]
    if any(bool(one[path].names) != bool(leaf.names) for one in seen.firsts if path in one):
        return f"some messages name the numbers of {path}, and others do not"
    for name in names:
        kinds = seen.kinds_of(path, name)
        total = int(np.isin(seen.kinds, kinds).sum())
        lack = total - sum(seen.counts[kind][path] for kind in kinds)
        if lack:
            return f"{lack:,} of {total:,} messages have no {path}"
        sets = _sets_in_turn(seen, path, name)
        if len(sets) > len({*sets}):
            ours, theirs = (_listed(name for _, name in keys) for keys in sets[:2])
            number = f"{path}.{name}" if name else path
            return f"messages that name {ours} and messages that name {theirs} both have {number} in turn"
    return ""


def _sets_in_turn(seen: Survey, path: str, name: str) -> list[frozenset[Key]]:
    """Return the sets of names, of the lists that a number belongs to, in the messages that have it: each change of them."""
    lists = {source for source, _ in seen.leaves[path].keys}
    sets = {kind: frozenset(key for key in seen.keys[kind] if key[0] in lists) for kind in seen.kinds_of(path, name)}
    if len({*sets.values()}) == 1:
        return [*sets.values()][:1]
    each = (sets[kind] for kind in seen.kinds.tolist() if kind in sets)
    return [keys for keys, _ in itertools.groupby(each)]


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return ", ".join(names[:MOST_SHOWN]) + more


def _recognizes(files: Sequence[Path]) -> bool:
    if len(files) == 1 and files[0].is_dir() and any(map(is_bag, files[0].iterdir())):
        return True
    return bool(files) and all(map(is_bag, files))


def _describe(files: Sequence[Path]) -> str:
    """Return the topics of the first recording, and how to say what they mean."""
    if not _recognizes(files):
        return ""
    try:
        first = _each(Asked(files=files, sources=[str(file) for file in files])).files[0]
        with open_bag(first, str(first)) as (topics, _):
            read = [topic for topic in topics.values() if not topic.unread]
    except OrlogError as error:
        return f"\n{error}"
    unread = [f"{topic.name} ({topic.unread})" for topic in topics.values() if topic.unread]
    text = (
        "\nOnly messages of ROS and JSON are read; convert these topics to either, if you need them: "
        f"{', '.join(unread)}."
        if unread
        else ""
    )
    if not read:
        return text
    topics_read = "".join(f"\n    {one.name}  {one.kind}, {counted(one.expected, 'message')}" for one in read)
    return f"{text}\nThe topics of {first}:{topics_read}{SAY} Give rate= too, rows a second."


FORMAT = Format(
    name="bags",
    open=_open,
    recognizes=_recognizes,
    extensions=(".mcap", ".bag", ".db3", ""),
    options=("columns", "rate", "horizon", "ends", "partial"),
    shares=True,
    only_mapped=True,
    any_layout=True,
    describe=_describe,
    reads=(
        *(f"./*{end}" for end in (".mcap", ".bag", ".db3", ".db3-wal", ".db3-journal", ".db3-shm")),
        "./*metadata.yaml",
    ),
)
