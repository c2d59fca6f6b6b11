"""The log of a recording: the rows of each episode since the last journal, kept for a killed process.

    episodes-N    blocks, each as: bytes of the rest (uint64), BLAKE3 of the rest (32 bytes),
                  bytes of the header (uint32), header (JSON: name, dtype and shape of each column),
                  the columns' values

A block holds some steps of an episode, or the row of the episode that ends with it, or both; an empty
one drops the steps of the open episode. `N` is the number of the journal that the log continues. No
disk is waited for: what a process has written survives its own end, but not that of the machine.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3

from orlog.base.files import storage_errors
from orlog.datasets.columns.blocks import Block

LARGEST_LOG = 2**28
SMALL = 2**20  # bytes of a block that are written at once
_DIGEST_BYTES = 32


class EpisodeLog:
    """Writes the log that continues the newest journal.

    Attributes:
        is_due: Whether a journal is needed, since the log is large, or lacks an episode's rows.
    """

    def __init__(self, folder: Path) -> None:
        """Wait for the first journal; `folder` is that of the recording."""
        self.is_due = True
        self._folder = folder
        self._file: FileIO | None = None
        self._bytes = 0

    def start(self, number: int, *, whole: bool) -> None:
        """Continue the journal of this number, if the next rows start a whole episode.

        Otherwise its first rows are in no log, and another journal is needed when it ends. Raises StorageError
        if the file cannot be made.
        """
        self.close()
        if whole:
            with storage_errors(self._folder):
                self._file = (self._folder / f"episodes-{number}").open("wb", buffering=0)
            self._bytes, self.is_due = 0, False

    def write(self, block: Block) -> None:
        """Add a block, if the log has a journal to continue.

        Raises StorageError if the disk is full; the log then ends before this block.
        """
        if self._file is None:
            return
        arrays = [np.ascontiguousarray(values) for values in block.values()]
        described = [
            (name, values.dtype.str, values.shape)
            for name, values in zip(block, arrays, strict=True)
        ]
        header = msgspec.json.encode(described)
        body: list[Any] = [len(header).to_bytes(4, "little"), header]
        body += [values.data.cast("B") for values in arrays if values.size]
        size = sum(map(len, body))
        if size < SMALL:
            body = [b"".join(body)]
        digest = blake3()
        for piece in body:
            digest.update(piece)
        pieces = [size.to_bytes(8, "little") + digest.digest(), *body]
        try:
            with storage_errors(self._folder):
                for piece in pieces:
                    rest = memoryview(piece)
                    while rest:
                        rest = rest[self._file.write(rest) :]
        except BaseException:
            self.close()
            raise
        self._bytes += size
        self.is_due = self._bytes > LARGEST_LOG

    def close(self) -> None:
        """Stop until the next journal."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None
        self.is_due = True


def logged_episodes(folder: Path, number: int) -> Iterator[list[Block]]:
    """Yield the blocks of each whole episode in the log after a journal; none if there is no log.

    A last block that was being written when the process ended, and an episode without its end, are
    left out.

    Raises StorageError if the file cannot be read.
    """
    path = folder / f"episodes-{number}"
    if not path.exists():
        return
    held: list[Block] = []
    with storage_errors(path), path.open("rb") as file:
        largest = path.stat().st_size
        while True:
            size = int.from_bytes(file.read(8), "little")
            digest = file.read(_DIGEST_BYTES)
            body = file.read(min(size, largest))
            if not body or len(body) < size or blake3(body).digest() != digest:
                return
            block = _block_of(body)
            held = [*held, block] if block else []
            if "episodes/lengths" in block:
                yield held
                held = []


def _block_of(body: bytes) -> Block:
    start = 4 + int.from_bytes(body[:4], "little")
    block: Block = {}
    for name, dtype, shape in msgspec.json.decode(body[4:start]):
        values = np.frombuffer(body, dtype, math.prod(shape), start)
        block[name] = values.reshape(shape)
        start += values.nbytes
    return block
