"""Unpacks chunks of recordings, never to more than a chunk may hold.

The libraries that read recordings unpack a chunk to whatever it grows to, and a megabyte of bzip2 can become
hundreds of gigabytes. They look up by name what unpacks; the functions here take these places.
"""

from __future__ import annotations

import bz2
import contextlib
import functools
import shutil
import sqlite3
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

LARGEST_CHUNK = 2**28
MOST_GROWTH, SPARE_BYTES = 200, 2**30  # of a file that is packed as a whole, as of archives
LZ4_RATIO = 256
JOURNALS, SHARED_MEMORY = ("-wal", "-journal"), "-shm"
PROGRAMS = ("view", "trigger")


@functools.cache
def bound_mcap() -> None:
    """Let the library `mcap` unpack through this module."""
    import lz4.frame
    import zstandard
    from mcap import stream_reader

    def unpack_zstd(data: bytes, size: int) -> bytes:
        if size > LARGEST_CHUNK or zstandard.frame_content_size(data) not in (-1, size):
            raise ValueError(_grows(data))
        return zstandard.decompress(data, size)

    places: Any = stream_reader
    places.zstandard = types.SimpleNamespace(decompress=unpack_zstd)
    places.lz4 = types.SimpleNamespace(
        decompress=_unpacker(lz4.frame.LZ4FrameDecompressor, LZ4_RATIO)
    )


@functools.cache
def bound_rosbags() -> None:
    """Let the library `rosbags` unpack through this module."""
    import lz4.frame
    from rosbags.rosbag1 import reader as first
    from rosbags.rosbag2 import reader as second
    from rosbags.rosbag2 import storage_mcap

    places: Any = second
    zstd = places.zstd
    unpack_zstd = _unpacker(zstd.ZstdDecompressor)
    unpack_lz4 = _unpacker(lz4.frame.LZ4FrameDecompressor, LZ4_RATIO)

    @contextlib.contextmanager
    def open_bounded(file: BinaryIO, mode: str) -> Iterator[_Bounded]:
        size = file.seek(0, 2)
        file.seek(0)
        with zstd.open(file, mode) as unpacked:
            yield _Bounded(unpacked, size)

    places.zstd = types.SimpleNamespace(decompress=unpack_zstd, open=open_bounded)
    first.decompressors.update(bz2=_unpacker(bz2.BZ2Decompressor), lz4=unpack_lz4)
    storage_mcap.DECOMPRESSORS.update(
        lz4=lambda data, _: unpack_lz4(data), zstd=lambda data, _: unpack_zstd(data)
    )


def databases_in(bag: Path) -> list[Path]:
    """Return the databases of a bag, which is a folder or one of them."""
    return sorted(bag.glob("*.db3")) if bag.is_dir() else [bag]


def journals_of(database: Path) -> list[Path]:
    """Return the files beside a database that hold what is not in it yet."""
    beside = [database.with_name(database.name + ending) for ending in JOURNALS]
    return [one for one in beside if one.is_file() and one.stat().st_size]


@contextlib.contextmanager
def settled(bag: Path) -> Iterator[Path]:
    """Yield a bag whose databases hold all that was written to them, and beside which nothing is written.

    Where a journal lies beside one, as after a crash or with SQLite's WAL, that is a copy in a temporary folder.
    """
    journals = [one for database in databases_in(bag) for one in journals_of(database)]
    if not journals and not {*str(bag)} & {*"?#%"}:
        yield bag
        return
    with tempfile.TemporaryDirectory() as temporary:
        if not journals:  # rosbags does not quote names that it gives to SQLite
            link = Path(temporary) / f"bag{bag.suffix if bag.is_file() else ''}"
            link.symlink_to(bag.absolute())
            yield link
            return
        folder = Path(temporary) / bag.name if bag.is_dir() else Path(temporary)
        folder.mkdir(exist_ok=True)
        for file in [*(bag.iterdir() if bag.is_dir() else [bag]), *journals]:
            if file.is_file() and not file.name.endswith(SHARED_MEMORY):
                shutil.copyfile(file, folder / file.name)
        for database in databases_in(folder):
            with contextlib.closing(sqlite3.connect(database)) as connection:
                connection.execute("PRAGMA journal_mode=DELETE")
        yield folder if bag.is_dir() else folder / bag.name


def refuse_programs(path: Path) -> None:
    """Refuse a database of SQLite in which reading a table would compute something.

    Raises ValueError if it holds a view, a trigger, a virtual table or a computed column; sqlite3.Error if it
    cannot be read.
    """
    # Otherwise SQLite writes beside a database whose journal is a WAL.
    place = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(place, uri=True)) as file:
        found = file.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master").fetchall()
    for kind, name, sql in found:
        words = str(sql).lower().split()
        is_computed = (
            "virtual" in words or "as" in words or "generated" in words or "as(" in str(sql).lower()
        )
        if kind in PROGRAMS or (kind == "table" and is_computed):
            raise ValueError(f"its {kind} {name!r:.100} computes what it holds, which is not run")


class _Bounded:
    """A file that is unpacked while it is read, and may not grow too far."""

    def __init__(self, file: BinaryIO, packed_bytes: int) -> None:
        self._file, self._packed = file, packed_bytes
        self._left = MOST_GROWTH * packed_bytes + SPARE_BYTES

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size if size > 0 else LARGEST_CHUNK)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(
                f"its {self._packed:,} bytes unpack to over {MOST_GROWTH} times as many"
            )
        return data


def _unpacker(kind: Callable[[], Any], bound: int | None = None) -> Callable[[bytes], bytes]:
    """Return a function that unpacks whole chunks with a decompressor that takes a largest length."""

    def unpack(data: bytes) -> bytes:
        unpacker = kind()
        # LZ4's takes room for the largest length at once, and LZ4 cannot grow further than this.
        most = LARGEST_CHUNK if bound is None else min(LARGEST_CHUNK, bound * len(data) + 2**16)
        unpacked = bytes(unpacker.decompress(data, most + 1))
        if len(unpacked) > most:
            raise ValueError(_grows(data))
        if not unpacker.eof:
            raise ValueError(f"a chunk of {len(data):,} bytes breaks off")
        return unpacked

    return unpack


def _grows(data: bytes) -> str:
    return f"a chunk of {len(data):,} bytes unpacks to other than it says, or to over {LARGEST_CHUNK:,}"
