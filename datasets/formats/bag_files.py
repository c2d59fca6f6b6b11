"""Opens recordings of robots: MCAP files, and bags of ROS 1 and 2. Nothing of ROS is needed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from orlog.datasets.formats.ros_messages import Types, decode_message
from orlog.datasets.formats.safe_reading import finite_float, reading
from orlog.errors import SchemaError, needing

MCAP_START = b"\x89MCAP0\r\n"
BAG_START = b"#ROSBAG V2.0\n"
SQLITE_START = b"SQLite format"
METADATA = "metadata.yaml"
JOURNALS, SHARED_MEMORY = ("-wal", "-journal"), "-shm"
PROGRAMS = re.compile(r"\b(virtual|as|generated|trigger)\b", re.IGNORECASE)
ROS_KEYS = ("offered_qos_profiles", "topic_type_hash")  # of delivery, and a hash of the definition


Message = tuple[int, int | None, bytes]


@dataclasses.dataclass
class Topic:
    """What was published under one name."""

    name: str  # its name, such as `/cmd_vel`
    kind: str  # the type of its messages
    decode: Callable[[bytes], Any]  # turns the bytes of a message into fields
    # yields of each message, by time, when it was recorded and published in nanoseconds, and its bytes
    messages: Callable[[], Iterator[Message]]
    expected: int = 0  # how many messages the recording says that it has
    unread: str = ""  # the encoding of messages that are not read


def is_bag(path: Path) -> bool:
    """Return whether a file or folder is a recording that is read."""
    try:
        if path.is_dir():
            head = (path / METADATA).read_bytes()[:200] if (path / METADATA).is_file() else b""
            return b"rosbag2_bagfile_information" in head
        return _head(path).startswith((MCAP_START, BAG_START)) or is_database(path)
    except OSError:
        return False


def is_database(path: Path) -> bool:
    """Return whether a file is a database of a bag of ROS 2, which may lie in a folder with others."""
    return path.suffix == ".db3" and path.is_file() and _head(path) == SQLITE_START


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(BAG_START))


def journals_of(database: Path) -> list[Path]:
    """Return the files beside a database that hold what is not in it yet."""
    beside = [database.with_name(database.name + ending) for ending in JOURNALS]
    return [file for file in beside if file.is_file() and file.stat().st_size]


@contextlib.contextmanager
def open_bag(path: Path, where: str) -> Iterator[tuple[dict[str, Topic], list[str]]]:
    """Open a recording; yield its topics by name, and names of what an MCAP file holds beside messages.

    Raises SchemaError if messages are stored in a way that is not read; IntegrityError if it is damaged;
    MissingExtraError if the libraries that read it are not installed.
    """
    with contextlib.ExitStack() as stack:
        with reading(where):
            if path.is_file() and _head(path).startswith(MCAP_START):
                opened = _open_mcap(path, where)
            else:
                opened = _open_rosbag(path, where, stack), []
        yield opened


def _open_mcap(path: Path, where: str) -> tuple[dict[str, Topic], list[str]]:
    with needing(f"{where}: recordings of robots need mcap", "orlog[formats]"):
        from mcap.reader import make_reader
    with path.open("rb") as file:
        summary = make_reader(file, validate_crcs=True).get_summary()
    if summary is None or summary.statistics is None:
        raise SchemaError(f"{where}: has no summary at its end, so the recording did not end well; run: mcap recover")

    def messages(topic: str) -> Generator[Message]:
        with reading(where), path.open("rb") as file:
            reader = make_reader(file, validate_crcs=True)
            for _, _, message in reader.iter_messages(topics=[topic]):
                yield message.log_time, message.publish_time, message.data

    beside = [f"the attachment {index.name}" for index in summary.attachment_indexes]
    beside += [f"the metadata {index.name}" for index in summary.metadata_indexes]
    topics: dict[str, Topic] = {}
    for channel in summary.channels.values():
        name, encoding = channel.topic, channel.message_encoding
        beside += [f"{name}@{key}" for key in channel.metadata if key not in ROS_KEYS]
        schema = summary.schemas.get(channel.schema_id)
        topic = Topic(name, "" if schema is None else schema.name, _json, functools.partial(messages, name))
        if encoding in ("cdr", "ros1") and schema is not None:
            text, is_idl = schema.data.decode(errors="replace"), schema.encoding == "ros2idl"
            topic.decode = _decoder(text, topic.kind, is_idl=is_idl, is_ros1=encoding == "ros1")
        elif encoding != "json":
            topic.unread = encoding or "no encoding"
            topic.decode = functools.partial(_refuse, f"{where}, {name}", topic.unread)
        topic.expected = summary.statistics.channel_message_counts.get(channel.id, 0)
        topic.expected += topics[name].expected if name in topics else 0
        topics[name] = topic
    return topics, beside


def _open_rosbag(path: Path, where: str, stack: contextlib.ExitStack) -> dict[str, Topic]:
    with needing(f"{where}: recordings of robots need rosbags", "orlog[formats]"):
        import rosbags.rosbag1
        import rosbags.rosbag2
    if path.is_dir() and any(file.is_symlink() for file in path.iterdir()):
        raise SchemaError(f"{where}: holds a link, which is not followed.")
    is_ros1 = path.is_file() and not is_database(path)
    if is_ros1:
        reader: Any = rosbags.rosbag1.Reader(path)
    else:
        settled = stack.enter_context(_settled(path))
        for database in _databases_in(settled):
            _refuse_programs(database)
        reader = rosbags.rosbag2.Reader(settled)
    stack.enter_context(reader)

    def messages(connections: list[Any]) -> Generator[Message]:
        with reading(where):
            for _, time, data in reader.messages(connections=connections):
                yield time, None, bytes(data)

    topics = {}
    for connection in reader.connections:
        text, is_idl = connection.msgdef.data, connection.msgdef.format.name == "IDL"
        same = [other for other in reader.connections if other.topic == connection.topic]
        topics[connection.topic] = Topic(
            connection.topic,
            connection.msgtype,
            _decoder(text, connection.msgtype, is_idl=is_idl, is_ros1=is_ros1),
            functools.partial(messages, same),
            sum(other.msgcount for other in same),
        )
    return topics


def _databases_in(bag: Path) -> list[Path]:
    """Return the databases of a bag, which is a folder or one of them."""
    return sorted(bag.glob("*.db3")) if bag.is_dir() else [bag]


@contextlib.contextmanager
def _settled(bag: Path) -> Iterator[Path]:
    """Yield a bag whose databases hold all that was written to them, and beside which nothing is written.

    Where a journal lies beside one, as after a crash or with SQLite's WAL, that is a copy in a temporary folder.
    """
    journals = [file for database in _databases_in(bag) for file in journals_of(database)]
    if not journals and not {*str(bag)} & {*"?#%"}:
        yield bag
        return
    with tempfile.TemporaryDirectory() as temporary:
        settled = Path(temporary) / f"bag{bag.suffix if bag.is_file() else ''}"
        if not journals:  # rosbags does not quote names that it gives to SQLite
            settled.symlink_to(bag.absolute())
        elif bag.is_dir():
            shutil.copytree(bag, settled, ignore=shutil.ignore_patterns(f"*{SHARED_MEMORY}"))
        else:
            for file in [bag, *journals]:
                shutil.copyfile(file, f"{settled}{file.name.removeprefix(bag.name)}")
        for database in _databases_in(settled) if journals else ():
            with contextlib.closing(sqlite3.connect(database)) as connection:
                connection.execute("PRAGMA journal_mode=DELETE")
        yield settled


def _refuse_programs(path: Path) -> None:
    """Refuse a database of SQLite in which reading a table would compute something."""
    # Otherwise SQLite writes beside a database whose journal is a WAL.
    place = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(place, uri=True)) as file:
        for kind, name, sql in file.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
            if kind != "index" and PROGRAMS.search(str(sql)):
                raise ValueError(f"its {kind} {name!r:.100} computes what it holds, which is not run")


def _decoder(text: str, kind: str, *, is_idl: bool, is_ros1: bool) -> Callable[[bytes], Any]:
    """Return what decodes messages of a type; its definition is parsed when it is first needed."""
    from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

    package, _, name = kind.rpartition("/")
    full = kind if "/msg" in kind else f"{package}/msg/{name}"

    @functools.cache
    def types() -> Types:
        known: Any = get_typestore(Stores.ROS2_HUMBLE).fielddefs
        if not text:
            return known  # type: ignore[no-any-return]
        return {**known, **(get_types_from_idl(text) if is_idl else get_types_from_msg(text, full))}

    return lambda data: decode_message(data, full, types(), is_ros1=is_ros1)


def _json(data: bytes) -> Any:
    return json.loads(data, parse_int=_whole_number, parse_float=finite_float)


def _whole_number(text: str) -> float:
    """Return a whole number of JSON, in which 1 and 1.0 are the same, as a float where that has all of its digits."""
    number = int(text)
    if not -(2**63) <= number < 2**64:
        raise ValueError(f"{text:.40} is an integer of more than 64 bits")
    return float(text) if abs(number) <= 2**53 else number


def _refuse(where: str, encoding: str, _data: bytes) -> Any:
    raise SchemaError(
        f"{where}: messages in {encoding} are not read, only those of ROS and JSON; convert this topic to either, or "
        "map another."
    )
