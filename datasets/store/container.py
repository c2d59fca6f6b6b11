"""What a container returns after writing a part of a version."""

from __future__ import annotations

import dataclasses

from orlog.datasets.columns.schema import Schema
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.manifest import Outside, Part, StoredObject


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPart:
    """A part that is on disk.

    Attributes:
        schema: Its columns.
        part: Totals, and rows and BLAKE3 of each column.
        objects: Its files, by path inside its folder.
        non_finite: How many numbers of a column are not finite; columns without any are left out.
        outside: Which numbers of a column are outside their Box; columns without any are left out.
    """

    schema: Schema
    part: Part
    objects: list[StoredObject]
    non_finite: dict[str, int]
    outside: dict[str, Outside] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WrittenColumn:
    """A column that is on disk.

    Attributes:
        spec: Name, dtype and row shape.
        rows: Number of rows.
        blake3: Hex BLAKE3 of all values, row by row, little-endian.
        non_finite: How many of its numbers are infinite or not a number.
        outside: Its numbers outside their bounds; None if there are none.
        objects: Its files, with paths inside the container's folder.
    """

    spec: ColumnSpec
    rows: int
    blake3: str
    non_finite: int
    outside: Outside | None
    objects: list[StoredObject]
