"""Recordings of robots that want to fill memory, disk or time: chunks that grow, databases that compute."""

from __future__ import annotations

import bz2
import contextlib
import functools
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import lz4.frame
import mcap.writer
import pytest
import zstandard
from rosbags import rosbag1, rosbag2

from orlog.datasets.formats import bags
from orlog.datasets.formats._containers import bounded_unpacking
from orlog.datasets.formats._shared.episodes import Options
from orlog.errors import IntegrityError, OrlogError
from tests.datasets.formats.reading import read_files
from tests.datasets.formats.test_bags import MAPPED, ROS1, ROS2, drive, write_json, write_ros2

WRITER: Any = mcap.writer
PLACES: list[Any] = [rosbag2.writer, rosbag2.storage_mcap]
GROWN = 2**26
MOST = 2**22
OPTIONS = Options(columns=MAPPED, rate=20)


@pytest.fixture(autouse=True)
def smaller_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let chunks be small, so that a bomb need not be large to be one."""
    monkeypatch.setattr(bounded_unpacking, "LARGEST_CHUNK", MOST)


@functools.cache
def bomb(kind: str) -> bytes:
    """Return a few kilobytes that grow to 64 MiB of zeros."""
    zeros = bytes(GROWN)
    if kind == "bz2":
        return bz2.compress(zeros)
    if kind == "lz4":
        return bytes(lz4.frame.compress(zeros))
    if kind == "lz4 of no stated size":
        return bytes(lz4.frame.compress(zeros, store_size=False))
    if kind == "zstd of no stated size":
        return zstandard.ZstdCompressor(write_content_size=False).compress(zeros)
    return zstandard.compress(zeros)


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
        assert peak < 4 * MOST
    finally:
        tracemalloc.stop()


def refused(path: Path, store: Path) -> None:
    with little_memory(), pytest.raises(OrlogError, match=path.name):
        read_files(bags.FORMAT, path, store, OPTIONS)


@pytest.mark.parametrize("kind", ["lz4", "lz4 of no stated size", "zstd", "zstd of no stated size"])
def test_a_chunk_of_mcap_that_grows_takes_little_memory(tmp_path: Path, kind: str) -> None:
    """The chunk says a small size; what unpacks it alone knows the large one."""
    packer = mock.Mock(return_value=bomb(kind))
    compression = mcap.writer.CompressionType["LZ4" if "lz4" in kind else "ZSTD"]
    writer = functools.partial(mcap.writer.Writer, compression=compression)
    with (
        mock.patch.object(WRITER.zstandard, "compress", packer),
        mock.patch.object(WRITER.lz4.frame, "compress", packer),
        mock.patch.object(mcap.writer, "Writer", writer),
    ):
        path, _ = write_json(tmp_path / "drive")
    assert packer.called
    assert path.stat().st_size < 2**20
    refused(path, tmp_path / "store")


@pytest.mark.parametrize("kind", ["bz2", "lz4", "lz4 of no stated size"])
def test_a_chunk_of_a_bag_of_ros_1_that_grows_takes_little_memory(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "drive.bag"
    writer = rosbag1.Writer(path)
    writer.set_compression(rosbag1.Writer.CompressionFormat[kind[:3].upper()])
    writer.compressor = lambda _: bomb(kind)
    with writer:
        for time, topic, name, message in drive(ROS1):
            found = [one for one in writer.connections if one.topic == topic]
            connection = found[0] if found else writer.add_connection(topic, name, typestore=ROS1)
            writer.write(connection, time, bytes(ROS1.serialize_ros1(message, name)))
    assert path.stat().st_size < 2**21
    refused(path, tmp_path / "store")


@pytest.mark.parametrize("kind", ["zstd", "zstd of no stated size"])
@pytest.mark.parametrize(("plugin", "mode"), [("SQLITE3", "MESSAGE"), ("MCAP", "STORAGE")])
def test_messages_and_chunks_of_a_bag_of_ros_2_that_grow_take_little_memory(
    tmp_path: Path, kind: str, plugin: str, mode: str
) -> None:
    path, messages = tmp_path / "drive", drive(ROS2)
    storage = rosbag2.StoragePlugin[plugin]
    writer = rosbag2.Writer(path, version=9, storage_plugin=storage)
    writer.set_compression(rosbag2.CompressionMode[mode], rosbag2.CompressionFormat.ZSTD)
    packer = mock.Mock(return_value=bomb(kind))
    with contextlib.ExitStack() as stack:
        for place in PLACES:
            stack.enter_context(mock.patch.object(place.zstd, "compress", packer))
        stack.enter_context(writer)
        names = {topic: name for _, topic, name, _ in messages}
        connections = {
            topic: writer.add_connection(topic, name, typestore=ROS2)
            for topic, name in names.items()
        }
        for time, topic, name, message in messages:
            writer.write(connections[topic], time, bytes(ROS2.serialize_cdr(message, name)))
    assert packer.called
    refused(path, tmp_path / "store")


def test_a_file_of_ros_2_that_grows_on_disk_is_refused(tmp_path: Path) -> None:
    """A whole database may be packed; it is unpacked beside, up to 200 times its size and 1 GiB more."""
    monkey = mock.patch.multiple(bounded_unpacking, SPARE_BYTES=2**20)
    path, _ = write_ros2(tmp_path / "drive", plugin="SQLITE3")
    (database,) = path.glob("*.db3")
    packed = database.with_name(f"{database.name}.zstd")
    packed.write_bytes(zstandard.compress(bytes(GROWN)))
    database.unlink()
    metadata = path / "metadata.yaml"
    text = metadata.read_text("utf-8").replace(database.name, packed.name)
    text = text.replace("compression_mode: ''", "compression_mode: file")
    metadata.write_text(text.replace("compression_format: ''", "compression_format: zstd"), "utf-8")
    with monkey, little_memory(), pytest.raises(IntegrityError, match="unpack to over 200 times"):
        read_files(bags.FORMAT, path, tmp_path / "store", OPTIONS)


def endless(file: sqlite3.Connection) -> None:
    """Make the table of messages one that is computed and never ends."""
    file.execute("ALTER TABLE messages RENAME TO others")
    rows = "SELECT 1 AS id UNION ALL SELECT id + 1 FROM n"
    file.execute(
        f"CREATE VIEW messages AS WITH RECURSIVE n(id) AS ({rows}) SELECT id, 1 AS topic_id, "
        "id AS timestamp, zeroblob(1000000000) AS data FROM n"
    )


def computed(file: sqlite3.Connection) -> None:
    """Let each message be a gigabyte that is nowhere stored."""
    file.execute("ALTER TABLE messages RENAME COLUMN data TO other")
    file.execute("ALTER TABLE messages ADD COLUMN data BLOB AS (zeroblob(1000000000)) VIRTUAL")


def triggered(file: sqlite3.Connection) -> None:
    file.execute("CREATE TRIGGER grow AFTER INSERT ON messages BEGIN SELECT zeroblob(9); END")


@pytest.mark.parametrize("change", [endless, computed, triggered])
def test_a_database_that_computes_what_it_holds_is_refused(
    tmp_path: Path, change: Callable[[Any], None]
) -> None:
    path, _ = write_ros2(tmp_path / "drive", plugin="SQLITE3")
    (database,) = path.glob("*.db3")
    with contextlib.closing(sqlite3.connect(database)) as file, file:
        change(file)
    with little_memory(), pytest.raises(IntegrityError, match="computes what it holds"):
        read_files(bags.FORMAT, path, tmp_path / "store", OPTIONS)


@pytest.mark.parametrize("plugin", ["SQLITE3", "MCAP"])
def test_a_sound_recording_is_read_within_the_limits(tmp_path: Path, plugin: str) -> None:
    path, _ = write_ros2(tmp_path / "drive", plugin=plugin)
    dataset, _ = read_files(bags.FORMAT, path, tmp_path / "store", OPTIONS)
    assert len(dataset) == 1
