"""Reads recordings of robots, MCAP files and bags of ROS 1 and 2, at the rate that the user names.

    orlog import drive.mcap lab/drive-v1 --map observation/image=/camera --map action=/cmd_vel --rate 10

Names of `--map` are topics, `/cmd_vel`, all of whose numbers are taken but those of the header, or fields of one,
`/joint_states.position`. Pictures (`sensor_msgs/Image`, `CompressedImage`) become frames. A row is a point in time, by
the clock of the recorder: `--rate` of them a second, from when all topics have a message until the first of them
ends. Each row has the last message of each topic up to then. A file, of some or of a folder, is an episode; nothing says how it ended.
Messages are decoded by the definitions that the recording holds (`_shared/ros_messages.py`), or are JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
import shlex
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats._shared.axis_names import AxisNames
from orlog.datasets.formats._shared.bag_fields import (
    HEADER,
    Field,
    Leaves,
    Stream,
    Survey,
    fields_of,
    names_of_fields,
    survey,
)
from orlog.datasets.formats._shared.bag_files import (
    METADATA,
    Topic,
    extras_of_bag,
    is_bag,
    is_database,
    open_bag,
)
from orlog.datasets.formats._shared.damage import reading
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options, tell_lack
from orlog.datasets.formats._shared.mapped_arrays import ArrayLayout, open_mapped
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.pieces import LARGEST_STREAM
from orlog.datasets.formats._shared.places import FILE, Place, Places, Taken, files_in
from orlog.datasets.formats._shared.roles import by_numbers, matching
from orlog.datasets.formats._shared.ros_messages import leaves_of
from orlog.datasets.formats.formats import Format
from orlog.errors import OrlogError, SchemaError
from orlog.manifests.names import counted

SECOND = 10**9
MOST_ROWS = 2**31
MOST_OFFERED = 100  # messages that are looked at before topics are offered
COMMAND = re.compile(r"cmd|command|action|target|goal|desired")


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    if not asked.options.columns:
        raise SchemaError(
            f"{asked.sources[0]}: say what its topics mean as columns=.{_describe(asked.files)}"
        )
    seen: dict[str, list[Taken]] = {}
    asked = _each(asked)
    with open_bag(asked.files[0], asked.sources[0]) as topics:
        where, surveys = asked.sources[0], dict[str, Survey]()
        columns = _whole_topics(asked.options.columns, topics, where, surveys)
    options = dataclasses.replace(asked.options, columns=columns, episode=FILE)

    lacks: list[Note] = []

    def note_taken(place: Place) -> tuple[dict[str, Any], None]:
        for topic, taken in place.taken.items():
            seen.setdefault(topic, []).append(taken)
            expected = taken.messages if taken.expected is None else taken.expected
            what = f"{place.where}, {topic}: holds {taken.messages:,} messages, but its metadata says {expected:,}"
            if taken.messages < expected:
                tell_lack(asked.options, lacks, SchemaError(f"{what}."))
            elif taken.messages > expected:
                lacks.append(Note("more_messages", [topic], what=what))
        return {}, None

    opened_by = functools.partial(_open_recording, {(where, one): surveys[one] for one in surveys})
    known = ArrayLayout(columns={}, places=Places(_recordings, opened_by), about=note_taken)
    with open_mapped(dataclasses.replace(asked, options=options), known) as opened:
        opened.notes += lacks
        for topic, each in seen.items():
            total, taken = sum(one.messages for one in each), sum(one.taken for one in each)
            left, age = total - taken, max(one.age for one in each)
            are = f"{left:,} of its {total:,} messages {'is' if left == 1 else 'are'} in no row"
            are = are if left else f"all of its {total:,} messages are in rows"
            opened.notes.append(Note("messages", [topic], messages=are, age=age))
        yield opened


def _each(asked: Asked) -> Asked:
    """Return the recordings, those in a folder too, in the order of the numbers in their names."""
    given = list(zip(asked.files, asked.sources, strict=True))
    if len(given) == 1 and not is_bag(given[0][0]):
        ((folder, source),) = given
        given = files_in(folder, source, is_bag)
        if not given:
            raise SchemaError(f"{source}: holds no recording.")
    for file, source in given:
        if is_database(file) and (file.parent / METADATA).is_file():
            line = shlex.join(["orlog", "import", str(file.parent), "NAME"])
            raise SchemaError(
                f"{source}: a part of the bag in the folder around it; import that: {line}"
            )
    given.sort(key=lambda one: by_numbers(one[0].name))
    return dataclasses.replace(asked, files=[a for a, _ in given], sources=[b for _, b in given])


def _whole_topics(
    columns: Mapping[str, str], topics: Mapping[str, Topic], where: str, surveys: dict[str, Survey]
) -> dict[str, str]:
    """Return the columns with the fields of a topic, or of a part such as `/cmd_vel.linear`, in place of its name."""
    found = {}
    for role, patterns in columns.items():
        names: list[str] = []
        for name in filter(None, patterns.split(",")):
            around = [one for one in topics if name == one or name.startswith(f"{one}.")]
            topic = max(around, key=len, default="")
            if topic and topic not in surveys:
                surveys[topic] = survey(topics[topic], where)
            fields = names_of_fields(topic, surveys[topic], ()) if topic else []
            inside = [one for one in fields if one.startswith(f"{name}.")]
            is_whole = name in fields or not inside
            # Headers have times, also those of messages in a list.
            names += (
                [name]
                if is_whole
                else [one for one in inside if HEADER not in one.removeprefix(name)]
            )
        found[role] = ",".join(names)
    return found


def _recordings(asked: Asked) -> list[tuple[Path, str]]:
    """Return the recordings, and what errors call them."""
    return list(zip(asked.files, asked.sources, strict=True))


def _open_recording(
    surveys: Mapping[tuple[str, str], Survey], recording: tuple[Path, str], options: Options
) -> Generator[Place]:
    """Yield a recording while it is open; what some topics of it hold may be known already."""
    file, where = recording
    with open_bag(file, where) as topics:
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
        fields: dict[str, Field] = {}
        of_field: dict[str, _Messages] = {}
        names, outside, times, streams = [], list[str](), list[_Times](), {}
        for topic in wanted.values():
            seen = surveys.get((where, topic.name)) or survey(topic, where)
            inside = names_of_fields(topic.name, seen, named)
            names += inside
            outside += [f"{topic.name}.{path}" for path in seen.outside]
            asked, called = fields_of(topic, seen, matching(",".join(named), inside), where)
            fields |= asked
            stream = _Messages(topic, asked, seen.kinds, where)
            streams[topic.name] = stream
            of_field |= dict.fromkeys(asked, stream)
            for kinds, label in called.items() or [((*range(len(seen.keys)),), topic.name)]:
                number = np.flatnonzero(np.isin(seen.kinds, kinds))
                times.append(_Times(topic.name, label, seen.times[number], number))
        ticks = _ticks(times, options.rate, where)
        for stream in streams.values():
            stream.begin(ticks)
        others = sorted(topics.keys() - wanted.keys())
        yield Place(
            where,
            [*names, *others],
            lambda name: _Column(of_field[name], name),
            reading,
            outside=[*outside, *extras_of_bag(file, where)],
            job_bytes=LARGEST_STREAM,  # messages before the rows have to be read, and are not decoded
            taken=_taken(times, ticks, streams),
            names_of=lambda name: AxisNames(fields[name].names, fields[name].source),
        )


class _Times(NamedTuple):
    """When the messages of a stream were recorded: its topic, what errors call it, times, and numbers in the topic."""

    topic: str
    label: str
    times: np.ndarray
    numbers: np.ndarray


def _taken(
    times: Sequence[_Times], ticks: np.ndarray, streams: Mapping[str, _Messages]
) -> dict[str, Taken]:
    """Return how many messages of each topic are in rows, and how old they are there."""
    found = {}
    for topic, stream in streams.items():
        in_rows, age = set(), 0
        for one in times:
            if one.topic == topic:
                last = np.searchsorted(one.times, ticks, side="right") - 1
                in_rows |= {*one.numbers[last].tolist()}
                age = max(age, int((ticks - one.times[last]).max()))
        found[topic] = Taken(len(stream.kinds), stream.expected, len(in_rows), age / SECOND)
    return found


def _ticks(streams: Sequence[_Times], rate: float | None, where: str) -> np.ndarray:
    """Return the time of each row, in nanoseconds."""
    if rate is None:
        rates = [
            f"{label} {SECOND * (len(one) - 1) / max(1, int(one[-1] - one[0])):.3g}"
            for _, label, one, _ in streams
        ]
        raise SchemaError(
            f"{where}: give the rows a second as rate=; messages a second: {', '.join(rates)}."
        )
    start = max(int(one.times[0]) for one in streams)
    stop = min(int(one.times[-1]) for one in streams)
    rows = (stop - start) * rate / SECOND + 1
    if stop < start or not 2 <= rows <= MOST_ROWS:
        raise SchemaError(
            f"{where}: the topics that columns= names have {max(0, rows):.4g} rows in common at {rate:g} a second, "
            f"expected 2 to {MOST_ROWS:,}."
        )
    count = int((stop - start) * rate // SECOND) + 1
    return start + np.round(np.arange(count) * (SECOND / rate)).astype(np.int64)


class _Messages:
    """The messages of a topic at the time of each row, in order.

    Attributes:
        kinds: Which set of names each message has.
        fields: The fields that are read.
        expected: How many messages the recording says that there are.
        rows: How many rows there are.
    """

    def __init__(
        self, topic: Topic, fields: Mapping[str, Field], kinds: np.ndarray, where: str
    ) -> None:
        self.kinds, self.fields, self.rows = kinds, fields, 0
        self.expected = topic.expected
        self._topic, self._where = topic, where
        self._streams = {stream for field in fields.values() for stream in field.streams}
        self._held: tuple[slice, dict[str, np.ndarray]] | None = None

    def begin(self, ticks: np.ndarray) -> None:
        """Take the time of each row, in nanoseconds."""
        self._ticks, self.rows = ticks, len(ticks)
        self._restart()

    def _restart(self) -> None:
        self._messages = enumerate(self._topic.messages())
        self._next = next(self._messages, None)
        self._row = 0
        self._leaves: dict[Stream, Leaves] = {}

    def read(self, rows: slice) -> dict[str, np.ndarray]:
        """Return the fields of some rows; those of the last call are held for the next field."""
        start, stop, _ = rows.indices(self.rows)
        if self._held is None or self._held[0] != slice(start, stop):
            if start < self._row:
                self._restart()
            found = {
                name: np.empty((stop - start, *field.shape), field.dtype)
                for name, field in self.fields.items()
            }
            for row in range(max(self._row, start), stop):
                self._go_to(row)
                for name, field in self.fields.items():
                    where = f"{self._where}, {name} at row {row}"
                    found[name][row - start] = field.take(self._leaves, where)
            self._row, self._held = stop, (slice(start, stop), found)
        return self._held[1]

    def _go_to(self, row: int) -> None:
        newest: dict[int, tuple[int, bytes]] = {}
        while self._next is not None and self._next[1][0] <= self._ticks[row]:
            number, (_, data) = self._next
            newest[int(self.kinds[number])] = (number, data)
            self._next = next(self._messages, None)
        where = f"{self._where}, {self._topic.name}"
        decoded: dict[int, Leaves] = {}
        for stream in self._streams:
            last = max((newest[kind] for kind in stream if kind in newest), default=None)
            if last is not None:
                number, data = last
                if number not in decoded:
                    with reading(where):
                        message = self._topic.decode(data)
                        decoded[number], _ = leaves_of(message, self._topic.kind, where)
                self._leaves[stream] = decoded[number]


@dataclasses.dataclass
class _Column:
    """A field of a topic, as an array with a row for each point in time."""

    stream: _Messages
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Return rows and the shape of each."""
        return (self.stream.rows, *self.stream.fields[self.name].shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return what numbers it holds."""
        return self.stream.fields[self.name].dtype

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.stream.rows

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows."""
        return self.stream.read(rows)[self.name]


def _recognizes(files: Sequence[Path]) -> bool:
    if len(files) == 1 and files[0].is_dir() and any(map(is_bag, files[0].iterdir())):
        return True
    return bool(files) and all(map(is_bag, files))


def _describe(files: Sequence[Path]) -> str:
    """Return the topics of the first recording, and a `--map` to begin with."""
    if not _recognizes(files):
        return ""
    try:
        first = _each(Asked(files=files, sources=[str(file) for file in files])).files[0]
        with open_bag(first, str(first)) as topics:
            read = {name: topic for name, topic in topics.items() if not topic.unread}
            numbers = [name for name, topic in read.items() if _has_numbers(topic, str(first))]
    except OrlogError as error:
        return f"\n{error}"
    unread = [f"{topic.name} ({topic.unread})" for topic in topics.values() if topic.unread]
    told = (
        "\nOnly messages of ROS and JSON are read; convert these topics to either, if you need them: "
        f"{', '.join(unread)}."
    )
    told = told if unread else ""
    if not read:
        return told
    action = next(filter(COMMAND.search, numbers), "TOPIC")
    state = next((name for name in numbers if name != action), "TOPIC")
    lines = [
        f"    {name}  {topic.kind}, {counted(topic.expected or 0, 'message')}"
        for name, topic in read.items()
    ]
    return (
        f"{told}\nThe topics of {first}:\n"
        + "\n".join(lines)
        + f"\nSay what they mean, for example: orlog.import_dataset({str(files[0])!r}, 'NAME', "
        f"columns={{'observation/state': {state!r}, 'action': {action!r}}}, rate=10)"
    )


def _has_numbers(topic: Topic, where: str) -> bool:
    """Return whether the first messages of a topic hold numbers and can be read."""
    begin = dataclasses.replace(
        topic, messages=lambda: itertools.islice(topic.messages(), MOST_OFFERED)
    )
    with contextlib.suppress(OrlogError):
        return any(path and HEADER not in f".{path}" for path in survey(begin, where).leaves())
    return False


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
        "./*.mcap",
        "./*.bag",
        "./*.db3",
        "./*.db3-wal",
        "./*.db3-journal",
        "./*.db3-shm",
        "./*metadata.yaml",
    ),
)
