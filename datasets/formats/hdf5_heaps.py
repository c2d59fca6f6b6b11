"""Refuses heaps of HDF5 whose sizes or free blocks lead libhdf5 2.0.0 around in circles, where it holds Python and takes memory.

It looks at the bytes of a file, once while that stays as it is. See "Local Heap" and "Global Heap" in the specification of
HDF5's file format.
"""

from __future__ import annotations

import functools
import mmap
import re
import struct
from pathlib import Path

from orlog.errors import IntegrityError

NAMES, TEXTS = re.compile(rb"HEAP\x00\x00\x00\x00"), re.compile(rb"GCOL\x01")
TEXTS_HEADER = 16
LEAST_TEXTS_BYTES = 4096
NO_BLOCK = 1  # ends the list of free blocks
MOST_LOOKED_THROUGH = 2**26  # bytes of a file whose texts are not read; a larger one would take long


def check_heaps(path: Path, where: str, *, texts: bool) -> None:
    """Look at the heaps of a file of at most 64 MiB, or of any size if its `texts` will be read: half a second for each GB.

    Raises IntegrityError if one leads nowhere.
    """
    state = path.stat()
    if texts or state.st_size <= MOST_LOOKED_THROUGH:
        _check(path, (state.st_ino, state.st_size, state.st_mtime_ns), where)


@functools.lru_cache(maxsize=1024)
def _check(path: Path, state: tuple[int, int, int], where: str) -> None:
    if not state[1]:
        return
    with path.open("rb") as stored, mmap.mmap(stored.fileno(), 0, access=mmap.ACCESS_READ) as data:
        refused = f"{where}: cannot be read as HDF5: "
        for heap in NAMES.finditer(data) if state[1] <= MOST_LOOKED_THROUGH else ():
            if heap.start() + 32 > len(data):
                continue
            size, block, first = struct.unpack_from("<QQQ", data, heap.start() + 8)
            for _ in range(min(size, len(data)) // 16 + 1):
                if block == NO_BLOCK or first + block + 8 > len(data):
                    break
                (block,) = struct.unpack_from("<Q", data, first + block)
            else:
                raise IntegrityError(
                    f"{refused}the free blocks of its heap of names at byte {heap.start()} lead around in a circle.",
                    file=where,
                )
        for heap in TEXTS.finditer(data):
            stop = heap.start() + int.from_bytes(data[heap.start() + 8 : heap.start() + 16], "little")
            if not heap.start() + LEAST_TEXTS_BYTES <= stop <= len(data):
                continue  # anything else that begins alike is in the way of nobody
            place = heap.start() + TEXTS_HEADER
            while place + TEXTS_HEADER <= stop:
                number, _, _, size = struct.unpack_from("<HHLQ", data, place)
                # Object 0 is the free space, whose size counts the header.
                taken = TEXTS_HEADER + -(-size // 8) * 8 if number else size
                if taken == 0 or taken > stop - place:
                    raise IntegrityError(
                        f"{refused}in its heap of texts at byte {heap.start()}, object {number} claims {size} bytes.",
                        file=where,
                    )
                place += taken
