"""Where the bytes of a row lie: which file of a store, which chunk of it, and its checksum."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """The place of a row.

    Attributes:
        file: Path inside the store's folder.
        chunk: Number of the chunk in that file.
        first_row: First row of the chunk in its part of the column.
        rows: Rows that a whole chunk holds.
        offset: First byte of the chunk in the file.
        size_bytes: Bytes of the chunk, its checksum included.
        checksum: The chunk's checksum, which was compared with its bytes: its kind and its value.
    """

    file: str
    chunk: int
    first_row: int
    rows: int
    offset: int
    size_bytes: int
    checksum: str
