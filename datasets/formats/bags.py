"""Reads recordings of robots, MCAP files and bags of ROS 1 and 2, at the rate that the user names.

    orlog import drive.mcap lab/drive-v1 --map observation/image=/camera --map action=/cmd_vel --rate 10

Names of `--map` are topics, `/cmd_vel`, all of whose numbers are taken but those of the header, or fields of one,
`/joint_states.position`. Pictures (`sensor_msgs/Image`, `CompressedImage`) become frames. A row is a point in time, by
the clock of the recorder: `--rate` of them a second, from when all topics have a message until the first of them
ends. Each row has the last message of each topic up to then. A file, of some or of a folder, is an episode; nothing says how it ended.
`--clock header` takes the times in messages' headers, and `--clock publish` those of an MCAP file's publishers.
`--resample nearest` takes the message next to a row, also a later one, and `--resample linear` puts floats of
observations and infos on the line between two messages. Both hold for one topic as `/camera=header`. `/camera@time` is
the time of the message that a row has, in nanoseconds, and `@time` that of the row.
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
import math
import shlex
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats.bag_files import METADATA, Topic, is_bag, is_database, open_bag
from orlog.datasets.formats.episodes import Asked, Opened, Options, tell_lack
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import ArrayLayout, open_mapped
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.places import FILE, NO_NAMES, AxisNames, Place, Places, Taken, files_in
from orlog.datasets.formats.roles import SAY, base_role, by_numbers, matching
from orlog.datasets.formats.ros_messages import Key, Leaf, leaves_of, may_vary, paths_of
from orlog.datasets.formats.safe_reading import reading
from orlog.errors import IntegrityError, OrlogError, SchemaError
from orlog.manifests.names import counted, did_you_mean

SECOND = 10**9
MOST_ROWS = 2**31
MOST_SHOWN = 20
HEADER = ".header."
TIME = "@time"
ALL = "*"
CLOCKS = {"log": "", "header": "of header.stamp", "publish": "when they were published"}
RULES = ("last", "nearest", "linear")
STAMP = (("sec", "secs"), ("nanosec", "nsec", "nsecs"))
"""Names of the parts of a time, in seconds and nanoseconds."""
MOVING = ("observation", "next_observation", "infos")
QUATERNION = "xyzw"
Leaves = dict[str, Leaf]
Stream = tuple[int, ...]
"""The kinds of messages of which the last one counts."""


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    if not asked.options.columns:
        raise SchemaError(f"{asked.sources[0]}: say what its topics mean as columns=.{_describe(asked.files)}")
    for option, given, words in (("clock", asked.options.clock, CLOCKS), ("resample", asked.options.resample, RULES)):
        for topic, word in given.items():
            if word not in words:
                what = f"{option}={ ({topic: word} if topic != ALL else word)!r}"
                raise SchemaError(f"{asked.sources[0]}: {what}: expected {', '.join(words)}.")
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
            age, rule = max(taken.age for taken in each), word_of(asked.options.resample, topic, "last")
            code = "messages_nearest" if rule == "nearest" else "messages"
            opened.notes.append(Note(code, [topic], messages=are, age=age))
            names = ("repeated", "before", "after", "rows")
            counts = {name: sum(getattr(taken, name) for taken in each) for name in names}
            if counts["repeated"] or counts["before"] or counts["after"]:
                opened.notes.append(Note("repeated", [topic], **counts))
            gap = max(taken.gap for taken in each)
            linear = dict.fromkeys(name for taken in each for name in taken.linear)
            opened.notes += [Note("interpolated", linear, gap=gap)] if linear else []
        for clock, times in CLOCKS.items():
            topics = [topic for topic in seen if times and word_of(asked.options.clock, topic, "log") == clock]
            opened.notes += [Note("clocks", topics, clock=times)] if topics else []
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


def word_of(given: Mapping[str, str], topic: str, default: str) -> str:
    """Return what is given for a topic: under its name, else for all others."""
    return given.get(topic, given.get(ALL, default))


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
                around = [candidate for candidate in topics if name == candidate or name.startswith(f"{candidate}.")]
                topic, inside = max(around, key=len, default=""), list[str]()
                if topic:
                    key = where, topic
                    clock = word_of(asked.options.clock, topic, "log")
                    surveys[key] = surveys.get(key) or survey(topics[topic], where, clock)
                    fields = names_of_fields(topic, surveys[key], ())
                    inside = [field for field in fields if field.startswith(f"{name}.")]
                    inside = [] if name in fields else inside
                # Headers have times, also those of messages in a list.
                kept = [field for field in inside if HEADER not in field.removeprefix(name)]
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
            if any(pattern in (name, name + TIME) or pattern.startswith((f"{name}.", f"{name}*")) for pattern in named)
        }
        if not wanted:
            raise SchemaError(
                f"{where}: has none of the topics that columns= names; it has {', '.join(sorted(topics))}."
            )
        for option, given in (("clock", options.clock), ("resample", options.resample)):
            if unknown := sorted(given.keys() - {ALL, *wanted}):
                what = f"{option}={{{unknown[0]!r}: {given[unknown[0]]!r}}}: columns= names no such topic"
                raise SchemaError(
                    f"{where}: {what}{did_you_mean(unknown[0], wanted) or '; it names ' + ', '.join(wanted) + '.'}"
                )
        steady = [fields for role, fields in options.columns.items() if base_role(role) not in MOVING]
        names, outside, notes = [TIME] if TIME in named else [], [*beside], list[Note]()
        parts: list[tuple[Topic, Survey, dict[str, Field], dict[Stream, _Times]]] = []
        for name, topic in wanted.items():
            clock = word_of(options.clock, name, "log")
            seen = surveys.get((where, name)) or survey(topic, where, clock)
            inside = names_of_fields(name, seen, named)
            stamp = [name + TIME] if matching(",".join(named), [name + TIME]) else []
            names += [*inside, *stamp]
            outside += [f"{name}.{path}" for path in seen.outside]
            own = fields_of(name, seen, matching(",".join(named), inside), where)
            changed = [full for full, field in own.items() if field.is_changed]
            notes += [Note("names_change", changed)] if changed else []
            several = _times_of(name, seen, own.values())
            for stream in several.values() if clock != "log" else ():
                _check_times(stream, name, clock, where)
            parts.append((topic, seen, own, several))
        streams = [stream for *_, several in parts for stream in several.values()]
        ticks = _ticks(streams, options.rate, where)
        columns: dict[str, Any] = {TIME: ticks}
        fields, taken = dict[str, Field](), {}
        for topic, seen, own, several in parts:
            rule = word_of(options.resample, topic.name, "last")
            linear = _linear(own, seen, steady) if rule == "linear" else []
            if own and not linear and options.resample.get(topic.name) == "linear":
                raise SchemaError(
                    f"{where}, {topic.name}: resample='linear' is for floats of observations and infos that are no "
                    "pictures, rotations or actions too, and columns= names none of this topic."
                )
            chosen = {stream: times.at(ticks, rule) for stream, times in several.items()}
            messages = _Messages(topic, own, chosen, linear, where)
            fields |= own
            for full, field in own.items():
                columns[full] = _Column(messages, full, (len(ticks), *field.shape), field.dtype)
            # Of several senders it is the oldest of their messages.
            columns[topic.name + TIME] = np.min([seen.times[each.numbers] for each in chosen.values()], axis=0)
            taken[topic.name] = _taken(topic, seen, ticks, [*chosen.values()], tuple(linear), own.keys() - {*linear})
        yield Place(
            where,
            [*names, *sorted(topics.keys() - wanted.keys())],
            columns.__getitem__,
            reading,
            outside=outside,
            taken=taken,
            names_of=lambda full: AxisNames(fields[full].names, fields[full].source) if full in fields else NO_NAMES,
            notes=notes,
        )


def _linear(own: Mapping[str, Field], seen: Survey, steady: Sequence[str]) -> list[str]:
    """Return the fields that may lie between two messages: floats that are no pictures, rotations, nor actions too."""
    kept = {*matching(",".join(steady), [*own])}
    rotations = {
        f"{start}.{axis}" if start else axis
        for start in {path.rpartition(".")[0] for path in seen.leaves}
        for axis in QUATERNION
        if all((f"{start}.{part}" if start else part) in seen.leaves for part in QUATERNION)
    }
    return [
        full
        for full, field in own.items()
        if field.path and field.dtype.kind == "f" and full not in kept and field.path not in rotations
    ]


def _taken(
    topic: Topic,
    seen: Survey,
    ticks: np.ndarray,
    chosen: Sequence[_Chosen],
    linear: tuple[str, ...],
    others: Collection[str],
) -> Taken:
    """Count which messages of a topic are in rows, some fields of which are linear."""
    is_free = np.ones(len(seen.times), bool)
    for each in chosen:
        is_free[each.numbers] = False
        if linear:
            is_free[each.after[each.share > 0]] = False
    age = max(np.abs(ticks - seen.times[each.numbers]).max() for each in chosen)
    gaps = [(seen.times[each.after] - seen.times[each.numbers])[each.share > 0] for each in chosen]
    is_same = np.all([np.diff(each.numbers) == 0 for each in chosen], axis=0)
    return Taken(
        len(seen.kinds),
        topic.expected,
        int((~is_free).sum()),
        age / SECOND,
        before=int((is_free & (seen.times < ticks[0])).sum()),
        after=int((is_free & (seen.times > ticks[-1])).sum()),
        repeated=int(is_same.sum()) if others or not linear else 0,
        rows=len(ticks),
        gap=max(gap.max(initial=0) for gap in gaps) / SECOND if linear else 0.0,
        linear=linear,
    )


class _Chosen(NamedTuple):
    """The number of the message that each row has of a stream, that of the next one, and how far it is on the way."""

    numbers: np.ndarray
    after: np.ndarray
    share: np.ndarray


class _Times(NamedTuple):
    """The times of the messages of a stream, in nanoseconds: what errors call it, times, and numbers in the topic."""

    label: str
    times: np.ndarray
    numbers: np.ndarray

    def at(self, ticks: np.ndarray, rule: str) -> _Chosen:
        """Return the messages at each time; of those with one time the last counts, and of two as near the earlier."""
        before = np.searchsorted(self.times, ticks, side="right") - 1
        after = np.minimum(before + 1, len(self.times) - 1)
        after = np.searchsorted(self.times, self.times[after], side="right") - 1
        past, ahead = ticks - self.times[before], self.times[after] - ticks
        if rule == "nearest":
            before = np.where(ahead < past, after, before)
        share = np.where(ahead > 0, past / np.maximum(past + ahead, 1), 0.0)
        return _Chosen(self.numbers[before], self.numbers[after], share)


def _check_times(stream: _Times, topic: str, clock: str, where: str) -> None:
    """Refuse times that go back or stand still, as those of headers may that nobody sets."""
    steps = np.diff(stream.times)
    wrong = np.flatnonzero(steps <= 0)
    if len(wrong):
        first = int(stream.numbers[wrong[0] + 1])
        how = f"{-int(steps[wrong[0]]) / SECOND:.6g} s before" if steps[wrong[0]] else "the same as"
        raise SchemaError(
            f"{where}, {stream.label}: {len(wrong):,} of {len(stream.times):,} times {CLOCKS[clock]} are not after that "
            f"of the message before; that of message {first} is {how} it. clock={{{topic!r}: 'log'}} takes the "
            "recorder's times."
        )


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
    if not 0 < rate < math.inf:
        raise SchemaError(f"{where}: rate={rate}: expected rows a second, a number above 0.")
    latest = max(streams, key=lambda stream: int(stream.times[0]))
    first = min(streams, key=lambda stream: int(stream.times[-1]))
    start, stop = int(latest.times[0]), int(first.times[-1])
    rows = (stop - start) * rate / SECOND + 1
    if stop < start or not 2 <= rows <= MOST_ROWS:
        raise SchemaError(
            f"{where}: the topics that columns= names have {max(0, rows):.4g} rows in common at {rate:g} a second, "
            f"expected 2 to {MOST_ROWS:,}; {latest.label} begins {abs(stop - start) / SECOND:.6g} s "
            f"{'after' if stop < start else 'before'} {first.label} ends."
        )
    count = int((stop - start) * rate // SECOND) + 1
    return start + np.round(np.arange(count) * (SECOND / rate)).astype(np.int64)


class _Messages:
    """The messages of a topic at the time of each row, in order."""

    def __init__(
        self,
        topic: Topic,
        fields: Mapping[str, Field],
        chosen: Mapping[Stream, _Chosen],
        linear: Collection[str],
        where: str,
    ) -> None:
        """Take the fields to read, those of them that are linear, and the messages that each row has of each stream."""
        self._topic, self._fields, self._chosen, self._where = topic, fields, chosen, where
        self._linear = {*linear}
        self._held: tuple[slice, dict[str, np.ndarray]] = slice(0), {}
        self._decoded: dict[int, Leaves] = {}
        self._messages = enumerate(topic.messages())
        self._next = 0

    def read(self, rows: slice) -> dict[str, np.ndarray]:
        """Return the fields of some rows; those of the last call are held for the next field."""
        if self._held[0] != rows:
            last = {stream: each.numbers[rows].tolist() for stream, each in self._chosen.items()}
            later = {stream: each.after[rows].tolist() for stream, each in self._chosen.items()} if self._linear else {}
            wanted = {number for several in (*last.values(), *later.values()) for number in several}
            decoded = self._decode(wanted)
            count = len(next(iter(last.values())))
            values = {name: np.empty((count, *field.shape), field.dtype) for name, field in self._fields.items()}
            for row in range(count):
                leaves = {stream: decoded[numbers[row]] for stream, numbers in last.items()}
                after = {
                    stream: (decoded[numbers[row]], float(self._chosen[stream].share[rows][row]))
                    for stream, numbers in later.items()
                }
                for name, field in self._fields.items():
                    where = f"{self._where}, {name} at row {(rows.start or 0) + row}"
                    values[name][row] = field.take(leaves, where, after if name in self._linear else {})
            self._held = rows, values
        return self._held[1]

    def _decode(self, numbers: set[int]) -> dict[int, Leaves]:
        """Return some messages by their numbers; those of the last call are kept."""
        self._decoded = {n: leaves for n, leaves in self._decoded.items() if n in numbers}
        missing, where = numbers - self._decoded.keys(), f"{self._where}, {self._topic.name}"
        if missing and min(missing) < self._next:
            self._messages, self._next = enumerate(self._topic.messages()), 0
        while missing:
            number, (_, _, data) = next(self._messages)
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

    times: np.ndarray  # of each, by the clock that is asked for, in nanoseconds
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


def survey(topic: Topic, where: str, clock: str = "log") -> Survey:
    """Look at all messages of a topic, at no more than their times where the type of the first one fixes its fields.

    Raises SchemaError if there is none, one has no time by the clock, or names are not what they should be.
    """
    where = f"{where}, {topic.name}"
    seen = Survey(np.array([]), np.array([]), [], [], [], [])
    times, kinds = list[int](), list[int]()
    paths: dict[str, None] = {}
    number_of: dict[frozenset[Key], int] = {}
    with reading(where):
        is_fixed = False  # whether all messages have the fields of the first one
        recorded = None
        for time, published, data in topic.messages():
            if recorded is not None and time < recorded:
                raise IntegrityError(
                    f"{where}: its messages are not in the order of their times; files of the bag may be listed "
                    "in another order than they were written.",
                    file=where,
                )
            recorded = time
            message = topic.decode(data) if clock == "header" or not is_fixed else None
            times.append(
                time if clock == "log" else _time_of(message, published, clock, f"{where}, message {len(times)}")
            )
            if is_fixed:
                continue
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
    with reading(where):  # a header may hold any number
        seen.times = np.array(times, np.int64)
    seen.kinds, seen.keys = np.array(kinds), [*number_of]
    seen.outside = [path for path in paths if not any(field.startswith(path) for field in seen.leaves)]
    return seen


def _time_of(message: Any, published: int | None, clock: str, where: str) -> int:
    """Return when a message was published, or the time in its header, in nanoseconds; SchemaError without one."""
    if clock == "publish":
        if published is None:
            raise SchemaError(
                f"{where}: clock='publish' is known of MCAP files alone, each named itself; clock='log' is of all."
            )
        return published
    stamp = message
    for name in ("header", "stamp"):
        stamp = stamp.get(name) if isinstance(stamp, dict) else None
    if not isinstance(stamp, dict):
        raise SchemaError(
            f"{where}: has no header.stamp; name the topics that have one, such as clock={{'/camera': 'header'}}, or "
            "leave out clock=header."
        )
    parts = [next((stamp[name] for name in names if name in stamp), None) for names in STAMP]
    if not all(isinstance(part, int | float | np.number) and float(part).is_integer() for part in parts):
        raise SchemaError(f"{where}: header.stamp is {stamp!r:.100}, expected whole numbers as sec and nanosec.")
    return int(parts[0]) * SECOND + int(parts[1])  # type: ignore[arg-type]


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

    def take(
        self, leaves: Mapping[Stream, Leaves], where: str, after: Mapping[Stream, tuple[Leaves, float]]
    ) -> np.ndarray:
        """Return its numbers, of a message of each stream, or on the way to those of the next one.

        Raises SchemaError if a message does not have them.
        """
        parts = []
        for stream, names in self.streams.items():
            parts.append(self._of(leaves[stream], names))
            if stream in after:
                parts[-1] = _between(parts[-1], self._of(after[stream][0], names), after[stream][1])
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        values = values[0] if self.is_single and len(values) else values
        kept = values.astype(self.dtype)
        if values.shape != self.shape:
            raise SchemaError(f"{where}: expected {self.shape} in each message, found {values.shape}.")
        if kept.dtype != values.dtype and (kept.astype(values.dtype) != values).any():
            raise SchemaError(f"{where}: {values.tolist()} does not fit {self.dtype}, which the first message has.")
        return kept

    def _of(self, leaves: Leaves, names: tuple[str, ...]) -> np.ndarray:
        """Return its numbers of some names in a message; all without names."""
        leaf = leaves.get(self.path, Leaf(np.zeros(0)))
        if not names or leaf.names == names:
            return leaf.values
        places = [leaf.names.index(name) for name in names if name in leaf.names]
        return np.atleast_1d(leaf.values)[places]


def _between(before: np.ndarray, after: np.ndarray, share: float) -> np.ndarray:
    """Return what lies so far on the way from some numbers to the next; those of which one is not finite stay."""
    if not share or before.shape != after.shape:
        return before
    with np.errstate(invalid="ignore", over="ignore"):
        between = before.astype(np.float64) * (1 - share) + after.astype(np.float64) * share
    return np.where(np.isfinite(between), between, before).astype(before.dtype)


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
        names = [f"{topic}.{field}" for field in good[:MOST_SHOWN]]
        advice = f" Map what can be read: {','.join(names)}." if good else ""
        which = "; ".join([*dict.fromkeys(problems.values())][:MOST_SHOWN])
        raise SchemaError(f"{where}, {topic}: {which}; rows need one value at each time.{advice}")
    return fields


def _problem(seen: Survey, path: str, names: Sequence[str]) -> str:
    """Return why numbers of a field have no plain value at each time; nothing where they have."""
    leaf = seen.leaves[path]
    if any(bool(first[path].names) != bool(leaf.names) for first in seen.firsts if path in first):
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
    topics_read = "".join(f"\n    {topic.name}  {topic.kind}, {counted(topic.expected, 'message')}" for topic in read)
    return f"{text}\nThe topics of {first}:{topics_read}{SAY} Give rate= too, rows a second."


FORMAT = Format(
    name="bags",
    open=_open,
    recognizes=_recognizes,
    extensions=(".mcap", ".bag", ".db3", ""),
    options=("columns", "rate", "clock", "resample", "horizon", "ends", "partial"),
    shares=True,
    only_mapped=True,
    any_layout=True,
    describe=_describe,
    reads=(
        *(f"./*{end}" for end in (".mcap", ".bag", ".db3", ".db3-wal", ".db3-journal", ".db3-shm")),
        "./*metadata.yaml",
    ),
)
