"""Reads recordings of robots, MCAP files and bags of ROS 1 and 2, at the rate that the user names.

    orlog import drive.mcap lab/drive-v1 --map observation/image=/camera --map action=/cmd_vel --rate 10

Names of `--map` are topics, `/cmd_vel`, all of whose numbers are taken but those of the header, or fields of one,
`/joint_states.position`. Pictures (`sensor_msgs/Image`, `CompressedImage`) become frames. A row is a point in time, by
the clock of the recorder: `--rate` of them a second, from when all topics have a message until the first of them
ends. Each row has the last message of each topic up to then. A file, of some or of a folder, is an episode; nothing says how it ended.
Messages are decoded by the definitions that the recording holds (`_containers/ros_messages.py`), or are JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats._containers.bag_files import (
    Topic,
    extras_of_bag,
    is_bag,
    open_bag,
    reading_bag,
)
from orlog.datasets.formats._containers.ros_messages import leaves_of, paths_of
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options
from orlog.datasets.formats._shared.mapped_arrays import Known, open_mapped
from orlog.datasets.formats._shared.pieces import LARGEST_STREAM
from orlog.datasets.formats._shared.places import FILE, Place, Places, files_in
from orlog.datasets.formats._shared.roles import by_numbers
from orlog.datasets.formats.formats import Format
from orlog.errors import OrlogError, SchemaError
from orlog.manifests.names import said_of

SECOND = 10**9
MOST_ROWS = 2**31
HEADER = "header."


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    if not asked.options.columns:
        raise SchemaError(
            f"{asked.sources[0]}: say what its topics mean as columns=.{_describe(asked.files)}"
        )
    ages: dict[str, list[float]] = {}
    asked = _each(asked)
    with open_bag(asked.files[0], asked.sources[0]) as topics:
        columns = _whole_topics(asked.options.columns, topics, asked.sources[0])
    options = dataclasses.replace(asked.options, columns=columns, episode=FILE)

    def note_ages(place: Place) -> tuple[dict[str, Any], None]:
        for name, late in place.late.items():
            ages.setdefault(name, []).extend(late.tolist())
        return {}, None

    known = Known(columns={}, places=Places(_recordings, _open_recording), about=note_ages)
    with open_mapped(dataclasses.replace(asked, options=options), known) as opened:
        for topic, seconds in ages.items():
            opened.doubts.append(
                f"{topic}: {said_of(len(seconds), 'rows have its last message up to their time')}; the oldest was "
                f"{max(seconds):.3g} seconds old."
            )
        yield opened


def _each(asked: Asked) -> Asked:
    """Return the recordings, those in a folder too, in the order of the numbers in their names."""
    given = list(zip(asked.files, asked.sources, strict=True))
    if len(given) == 1 and not is_bag(given[0][0]):
        ((folder, source),) = given
        given = files_in(folder, source, is_bag)
        if not given:
            raise SchemaError(f"{source}: holds no recording.")
    given.sort(key=lambda one: by_numbers(one[0].name))
    return dataclasses.replace(asked, files=[a for a, _ in given], sources=[b for _, b in given])


def _whole_topics(
    columns: Mapping[str, str], topics: Mapping[str, Topic], where: str
) -> dict[str, str]:
    """Return the columns with the fields of a topic, or of a part such as `/cmd_vel.linear`, in place of its name."""
    found = {}
    for role, patterns in columns.items():
        names = []
        for name in filter(None, patterns.split(",")):
            around = [one for one in topics if name == one or name.startswith(f"{one}.")]
            topic = max(around, key=len, default="")
            fields = list(_first(topics[topic], where)) if topic else []
            inside = [one for one in fields if one.startswith(f"{name}.")]
            is_whole = name in fields or not inside
            names += (
                [name]
                if is_whole
                else [one for one in inside if not one.startswith(f"{name}.{HEADER}")]
            )
        found[role] = ",".join(names)
    return found


def _first(topic: Topic, where: str) -> dict[str, np.ndarray]:
    """Return the fields of the first message of a topic, by their full names."""
    with reading_bag(where), contextlib.closing(topic.messages()) as messages:
        for _, data in messages:
            return _fields(topic, data, where)
    raise SchemaError(f"{where}, {topic.name}: has no message.")


def _texts(topic: Topic, where: str) -> list[str]:
    """Return the fields of the first message of a topic that hold no numbers, such as the names of joints."""
    fields = _first(topic, where)
    if topic.name in fields:  # a picture
        return []
    with reading_bag(where), contextlib.closing(topic.messages()) as messages:
        paths = paths_of(topic.decode(next(messages)[1]))
    names = [f"{topic.name}.{path}" for path in paths]
    return [one for one in names if not any(field.startswith(one) for field in fields)]


def _fields(topic: Topic, data: bytes, where: str) -> dict[str, np.ndarray]:
    where = f"{where}, {topic.name}"
    with reading_bag(where):
        leaves = leaves_of(topic.decode(data), topic.kind, where)
    return {f"{topic.name}.{path}" if path else topic.name: one for path, one in leaves.items()}


def _recordings(asked: Asked) -> list[tuple[Path, str]]:
    """Return the recordings, and what errors call them."""
    return list(zip(asked.files, asked.sources, strict=True))


def _open_recording(recording: tuple[Path, str], options: Options) -> Generator[Place]:
    """Yield a recording while it is open."""
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
        with reading_bag(where):
            times = {
                name: np.fromiter((time for time, _ in topic.messages()), np.int64)
                for name, topic in wanted.items()
            }
        ticks = _ticks(times, options.rate, where)
        streams = {name: _Stream(topic, ticks, where) for name, topic in wanted.items()}
        fields = {field: one for one in streams.values() for field in one.first}

        def column(name: str) -> _Field:
            fields[name].asked.add(name)
            return _Field(fields[name], name)

        others = sorted(topics.keys() - wanted.keys())
        outside = [one for topic in wanted.values() for one in _texts(topic, where)]
        yield Place(
            where,
            [*fields, *others],
            column,
            reading_bag,
            outside=[*outside, *extras_of_bag(file, where)],
            job_bytes=LARGEST_STREAM,  # messages before the rows have to be read, and are not decoded
            late={
                name: (ticks - one[np.searchsorted(one, ticks, side="right") - 1]) / SECOND
                for name, one in times.items()
            },
        )


def _ticks(times: Mapping[str, np.ndarray], rate: float | None, where: str) -> np.ndarray:
    """Return the time of each row, in nanoseconds."""
    for name, one in times.items():
        if not len(one):
            raise SchemaError(f"{where}, {name}: has no message.")
    if rate is None:
        rates = [
            f"{name} {SECOND * (len(one) - 1) / max(1, int(one[-1] - one[0])):.3g}"
            for name, one in times.items()
        ]
        raise SchemaError(
            f"{where}: give the rows a second as rate=; messages a second: {', '.join(rates)}."
        )
    start = max(int(one[0]) for one in times.values())
    stop = min(int(one[-1]) for one in times.values())
    count = int((stop - start) * rate // SECOND) + 1
    if stop < start or not 2 <= count <= MOST_ROWS:
        raise SchemaError(
            f"{where}: the topics that columns= names have {max(0, count)} rows in common at {rate:g} a second."
        )
    return start + np.round(np.arange(count) * (SECOND / rate)).astype(np.int64)


class _Stream:
    """The messages of a topic at the time of each row, in order.

    Attributes:
        first: The fields of the first message.
        rows: How many rows there are.
        asked: Names of the fields that are read.
    """

    def __init__(self, topic: Topic, ticks: np.ndarray, where: str) -> None:
        self._topic, self._ticks, self._where = topic, ticks, where
        self.first, self.rows = _first(topic, where), len(ticks)
        self.asked: set[str] = set()
        self._held: tuple[slice, dict[str, np.ndarray]] | None = None
        self._restart()

    def _restart(self) -> None:
        self._messages = self._topic.messages()
        self._next: tuple[int, bytes] | None = next(self._messages, None)
        self._row, self._last, self._fields = 0, b"", self.first

    def read(self, rows: slice) -> dict[str, np.ndarray]:
        """Return the fields of some rows; those of the last call are held for the next field."""
        start, stop, _ = rows.indices(self.rows)
        is_held = self._held is not None and self._held[0] == slice(start, stop)
        if self._held is None or not is_held or not self.asked <= self._held[1].keys():
            if start < self._row:
                self._restart()
            found = {
                name: np.empty((stop - start, *one.shape), one.dtype)
                for name, one in self.first.items()
            }
            for row in range(max(self._row, start), stop):
                self._go_to(row)
                self._put(found, row - start)
            self._row, self._held = stop, (slice(start, stop), found)
        return self._held[1]

    def _go_to(self, row: int) -> None:
        newest = None
        while self._next is not None and self._next[0] <= self._ticks[row]:
            newest, self._next = self._next[1], next(self._messages, None)
        if newest is not None:
            self._fields = _fields(self._topic, newest, self._where)

    def _put(self, found: dict[str, np.ndarray], place: int) -> None:
        for name, target in found.items():
            one = self._fields.get(name)
            if one is None or one.shape != target.shape[1:]:
                raise SchemaError(
                    f"{self._where}, {name}: expected {target.shape[1:]} in each message, found "
                    f"{'none' if one is None else one.shape} at row {place + self._row}."
                )
            target[place] = one


@dataclasses.dataclass
class _Field:
    """A field of a topic, as an array with a row for each point in time."""

    stream: _Stream
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Return rows and the shape of each."""
        return (self.stream.rows, *self.stream.first[self.name].shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return what numbers it holds."""
        return self.stream.first[self.name].dtype

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
    first = _each(Asked(files=files, sources=[str(file) for file in files])).files[0]
    try:
        with open_bag(first, str(first)) as topics:
            times = {name: [time for time, _ in one.messages()] for name, one in topics.items()}
            lines = [
                f"    {name}  {topics[name].kind}, {len(one):,} messages"
                for name, one in times.items()
            ]
    except OrlogError:
        return ""
    return (
        f"\nThe topics of {first}:\n"
        + "\n".join(lines)
        + f"\nSay what they mean, for example: orlog.import_dataset({str(files[0])!r}, 'NAME', "
        "columns={'observation/state': 'TOPIC', 'action': 'TOPIC'}, rate=10)"
    )


FORMAT = Format(
    name="bags",
    open=_open,
    recognizes=_recognizes,
    extensions=(".mcap", ".bag", ""),
    options=("columns", "rate", "horizon", "ends"),
    shares=True,
    only_mapped=True,
    describe=_describe,
    reads=("./*.mcap", "./*.bag", "./*.db3", "./*metadata.yaml"),
)
