"""Opens recordings of robots: MCAP files, and bags of ROS 1 and 2. Nothing of ROS is needed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from orlog.datasets.formats._containers.bounded_unpacking import (
    LARGEST_CHUNK,
    bound_mcap,
    bound_rosbags,
    databases_in,
    refuse_programs,
    settled,
)
from orlog.datasets.formats._containers.json_documents import finite_float
from orlog.datasets.formats._containers.ros_messages import Types, decode_message
from orlog.errors import IntegrityError, OrlogError, SchemaError, needing

LARGEST_MESSAGE = 2**28
MCAP_START = b"\x89MCAP0\r\n"
BAG_START = b"#ROSBAG V2.0\n"
SQLITE_START = b"SQLite format"
METADATA = "metadata.yaml"
ROS_KEYS = ("offered_qos_profiles", "topic_type_hash")  # of delivery, and a hash of the definition


@dataclasses.dataclass
class Topic:
    """What was published under one name.

    Attributes:
        name: Its name, such as `/cmd_vel`.
        kind: The type of its messages.
        decode: Turns the bytes of a message into fields.
        messages: Yields time in nanoseconds and bytes of each message, by time.
        expected: How many messages the recording says that it has; None if it does not.
        unread: The encoding of messages that are not read.
    """

    name: str
    kind: str
    decode: Callable[[bytes], Any]
    messages: Callable[[], Generator[tuple[int, bytes]]]
    expected: int | None = None
    unread: str = ""


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


@contextlib.contextmanager
def reading_bag(where: str) -> Iterator[None]:
    """Turn what a library says about a recording that it cannot read into an error that names it."""
    try:
        yield
    except OrlogError:
        raise
    except Exception as error:  # the libraries raise errors of many kinds about damage
        text = str(error).partition("\n")[0] or type(error).__name__
        raise IntegrityError(f"{where}: cannot be read: {text:.200}.", file=where) from error


@contextlib.contextmanager
def open_bag(path: Path, where: str) -> Iterator[dict[str, Topic]]:
    """Open a recording and yield its topics by name.

    Raises SchemaError if messages are stored in a way that is not read; IntegrityError if it is damaged;
    MissingExtraError if the libraries that read it are not installed.
    """
    with contextlib.ExitStack() as stack:
        with reading_bag(where):
            is_mcap = path.is_file() and _head(path).startswith(MCAP_START)
            topics = _open_mcap(path, where) if is_mcap else _open_rosbag(path, where, stack)
        yield topics


def extras_of_bag(path: Path, where: str) -> list[str]:
    """Return the names of what an MCAP file holds beside messages: attachments, metadata, those of channels."""
    if path.is_dir() or not _head(path).startswith(MCAP_START):
        return []
    from mcap.reader import make_reader

    with reading_bag(where), path.open("rb") as file:
        summary = make_reader(file, validate_crcs=True).get_summary()
    if summary is None:
        return []
    found = [f"the attachment {one.name}" for one in summary.attachment_indexes]
    found += [f"the metadata {one.name}" for one in summary.metadata_indexes]
    for channel in summary.channels.values():
        found += [f"{channel.topic}@{name}" for name in channel.metadata if name not in ROS_KEYS]
    return found


def _open_mcap(path: Path, where: str) -> dict[str, Topic]:
    with needing(f"{where}: recordings of robots need mcap", "orlog[formats]"):
        from mcap.reader import make_reader
    bound_mcap()
    with path.open("rb") as file:
        summary = make_reader(file, validate_crcs=True).get_summary()
    if summary is None or summary.statistics is None:
        raise SchemaError(
            f"{where}: has no summary at its end, so the recording did not end well; run: mcap recover"
        )
    for chunk in summary.chunk_indexes:
        if max(chunk.uncompressed_size, chunk.message_index_length) > LARGEST_CHUNK:
            raise SchemaError(f"{where}: a chunk claims {chunk.uncompressed_size:,} bytes.")

    def messages(topic: str) -> Generator[tuple[int, bytes]]:
        with reading_bag(where), path.open("rb") as file:
            reader = make_reader(file, validate_crcs=True)
            for _, _, message in reader.iter_messages(topics=[topic]):
                yield message.log_time, message.data

    found: dict[str, Topic] = {}
    for channel in summary.channels.values():
        schema = summary.schemas.get(channel.schema_id)
        kind = "" if schema is None else schema.name
        if channel.message_encoding == "json":
            decode: Callable[[bytes], Any] = functools.partial(
                json.loads, parse_int=_number, parse_float=finite_float
            )
        elif channel.message_encoding in ("cdr", "ros1") and schema is not None:
            text, is_idl = schema.data.decode(errors="replace"), schema.encoding == "ros2idl"
            decode = _decoder(text, kind, is_idl=is_idl, is_ros1=channel.message_encoding == "ros1")
        else:
            decode = _refuser(where, channel.topic, channel.message_encoding)
        topic = Topic(channel.topic, kind, decode, functools.partial(messages, channel.topic))
        before = found.get(topic.name, topic)
        count = summary.statistics.channel_message_counts.get(channel.id, 0)
        topic.expected = (before.expected or 0) + count
        is_read = channel.message_encoding in ("json", "cdr", "ros1")
        topic.unread = "" if is_read else channel.message_encoding or "no encoding"
        found[topic.name] = topic
    return found


def _open_rosbag(path: Path, where: str, stack: contextlib.ExitStack) -> dict[str, Topic]:
    with needing(f"{where}: recordings of robots need rosbags", "orlog[formats]"):
        import rosbags.rosbag1
        import rosbags.rosbag2
    if path.is_dir() and any(one.is_symlink() for one in path.iterdir()):
        raise SchemaError(f"{where}: holds a link, which is not followed.")
    bound_rosbags()
    is_ros1 = path.is_file() and not is_database(path)
    whole = path if is_ros1 else stack.enter_context(settled(path))
    for database in () if is_ros1 else databases_in(whole):
        refuse_programs(database)
    reader: Any = rosbags.rosbag1.Reader(path) if is_ros1 else rosbags.rosbag2.Reader(whole)
    stack.enter_context(reader)
    found = {}
    for connection in reader.connections:
        text, is_idl = connection.msgdef.data, connection.msgdef.format.name == "IDL"
        decode = _decoder(text, connection.msgtype, is_idl=is_idl, is_ros1=is_ros1)
        same = [one for one in reader.connections if one.topic == connection.topic]

        def messages(same: list[Any] = same) -> Generator[tuple[int, bytes]]:
            with reading_bag(where):
                for _, time, data in reader.messages(connections=same):
                    yield time, bytes(data)

        expected = sum(one.msgcount for one in same)
        found[connection.topic] = Topic(
            connection.topic, connection.msgtype, decode, messages, expected
        )
    return found


def _decoder(text: str, kind: str, *, is_idl: bool, is_ros1: bool) -> Callable[[bytes], Any]:
    """Return what decodes messages of a type; its definition is parsed when it is first needed."""
    from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

    known: dict[str, Types] = {}
    package, _, name = kind.rpartition("/")
    full = kind if "/msg" in kind else f"{package}/msg/{name}"

    def decode(data: bytes) -> Any:
        if len(data) > LARGEST_MESSAGE:
            raise ValueError(f"it has {len(data):,} bytes")
        if not known:
            said: Any = get_typestore(Stores.ROS2_HUMBLE).fielddefs
            if text:
                parsed = get_types_from_idl(text) if is_idl else get_types_from_msg(text, full)
                said = {**said, **parsed}
            known[""] = said
        return decode_message(data, full, known[""], is_ros1=is_ros1)

    return decode


def _number(text: str) -> float:
    """Return a whole number of JSON, in which 1 and 1.0 are the same, as a float where that has all of its digits.

    Raises ValueError if it has more than 64 bits.
    """
    number = int(text)
    if not -(2**63) <= number < 2**64:
        raise ValueError(f"{text:.40} is an integer of more than 64 bits")
    return float(text) if abs(number) <= 2**53 else number


def _refuser(where: str, topic: str, encoding: str) -> Callable[[bytes], Any]:
    def refuse(_data: bytes) -> Any:
        raise SchemaError(
            f"{where}, {topic}: messages in {encoding or 'no encoding'} are not read, only those of ROS and JSON; "
            "convert this topic to either, or map another."
        )

    return refuse
