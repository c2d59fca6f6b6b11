"""Which checksums files carry inside: noted while they are read, so that an import can say so.

Arrays of HDF5 may carry fletcher32 and pages of Parquet a CRC-32; both are compared when they are read.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

MOST_TOLD = 5
NO_CRC = 3  # fields of a page's header before its CRC
LONGEST_NUMBER = 5  # bytes of an int32 in Thrift's compact form
NEXT_INTEGER = 0x15  # in that form, what comes before an int32 that is the next field


@dataclasses.dataclass(slots=True)
class _Filled:
    """Rows of an array that a fill value stands for.

    Attributes:
        runs: Begins and ends of runs of rows, in order, and how many numbers are missing in each.
        total: How many numbers the array has.
        fill: The value.
        looked: Up to which row chunks were looked for; an array may be read more than once.
    """

    total: int
    fill: str
    runs: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    looked: int = 0

    @property
    def values(self) -> int:
        """How many numbers the value stands for."""
        return sum(count for _, _, count in self.runs)


@dataclasses.dataclass(slots=True)
class CarriedSums:
    """The checksums that the parts of files carry.

    Attributes:
        kind: Which ones; nothing where the format has none, or that is not known.
        covered: Parts that carry one.
        bare: Parts that carry none.
        unwritten: Arrays of HDF5 that nobody wrote, so that a fill value stands for all their numbers.
        filled: Of each array of Zarr the rows of which chunks are not stored, likewise.
    """

    kind: str = ""
    covered: int = 0
    bare: int = 0
    unwritten: dict[str, None] = dataclasses.field(default_factory=dict)
    filled: dict[str, _Filled] = dataclasses.field(default_factory=dict)

    def note(self, kind: str, is_covered: bool) -> None:
        """Note a part."""
        self.kind = kind
        self.covered += is_covered
        self.bare += not is_covered

    def __str__(self) -> str:
        """Say which parts carry one; nothing where that is not known."""
        if not self.kind:
            return ""
        parts = "all" if not self.bare else "some" if self.covered else "no"
        return f"{self.kind} inside for {parts} columns"


_open: contextvars.ContextVar[CarriedSums | None] = contextvars.ContextVar("_open", default=None)


@contextlib.contextmanager
def noted_sums() -> Iterator[CarriedSums]:
    """Note the checksums of what is read in this context."""
    found = CarriedSums()
    token = _open.set(found)
    try:
        yield found
    finally:
        _open.reset(token)


def note_array(is_covered: bool) -> None:
    """Note an array of HDF5 that is about to be read."""
    found = _open.get()
    if found is not None:
        found.note("fletcher32", is_covered)


def note_unwritten(where: str) -> bool:
    """Note an array of HDF5 that nobody wrote; return whether an import will tell it."""
    found = _open.get()
    if found is not None:
        found.unwritten[where] = None
    return found is not None


def note_filled(where: str, rows: tuple[int, int], values: int, total: int, fill: Any) -> None:
    """Note rows of an array of Zarr, not all of whose chunks are stored.

    Args:
        where: What errors call the array.
        rows: Begin and end of the rows.
        values: How many of their numbers are not stored.
        total: How many numbers the array has.
        fill: The value that stands for them.
    """
    found = _open.get()
    if found is None:
        return
    one = found.filled.setdefault(where, _Filled(total, str(fill)))
    if rows[0] < one.looked:
        return
    one.runs.append((*rows, values))
    one.looked = rows[1]


def note_all(others: CarriedSums) -> None:
    """Note what was noted elsewhere, where a part of the files was read."""
    found = _open.get()
    if found is None:
        return
    found.kind = found.kind or others.kind
    found.covered += others.covered
    found.bare += others.bare
    found.unwritten |= others.unwritten
    for where, one in others.filled.items():
        for first, last, values in one.runs:  # two processes may have read the same chunk
            note_filled(where, (first, last), values, one.total, one.fill)


def told_blanks() -> list[str]:
    """Return what was noted so far of values that are not in the files, a sentence each."""
    found = _open.get() or CarriedSums()
    whole = {one: each for one, each in found.filled.items() if each.values == each.total}
    said = []
    for library, blank in (("HDF5", [*found.unwritten]), ("Zarr", [*whole])):
        if blank:
            said.append(
                f"Never written, so that {library}'s fill value stands for all values: "
                f"{_listed(map(_place, blank))}."
            )
    some = [
        f"{_place(one)} ({each.fill} in {_rows(each.runs)})"
        for one, each in found.filled.items()
        if one not in whole
    ]
    if some:
        said.append(
            "Chunks that are not stored, as a writer leaves out those that hold the fill value alone, or a copy lost "
            f"them: the fill value stands for their rows in {_listed(some)}."
        )
    return said


def _place(where: str) -> str:
    """Return the name of an array, and that of its file without folders."""
    file, _, inner = where.partition(", ")
    return f"{inner} in {Path(file).name}" if inner else Path(file).name


def _rows(runs: Sequence[tuple[int, int, int]]) -> str:
    joined: list[tuple[int, int]] = []
    for first, last, _ in runs:
        begins = joined.pop()[0] if joined and joined[-1][1] == first else first
        joined.append((begins, last))
    said = [f"row {a}" if b == a + 1 else f"rows {a} to {b - 1}" for a, b in joined]
    return _listed(said, " and ")


def _listed(said: Iterable[str], sign: str = ", ") -> str:
    several = list(said)
    more = f" and {len(several) - MOST_TOLD} more" if len(several) > MOST_TOLD else ""
    return sign.join(several[:MOST_TOLD]) + more


def note_table(file: Path) -> None:
    """Note the columns of a Parquet file by their first pages; one that cannot be read is left alone."""
    import pyarrow as pa
    import pyarrow.parquet

    found = _open.get()
    if found is None:
        return
    try:
        with pyarrow.parquet.ParquetFile(file) as table, file.open("rb") as data:
            columns = table.metadata.num_columns if table.metadata.num_row_groups else 0
            for number in range(columns):
                column = table.metadata.row_group(0).column(number)
                data.seek(column.dictionary_page_offset or column.data_page_offset)
                header = data.read((NO_CRC + 1) * (LONGEST_NUMBER + 1))
                found.note("CRC-32", _has_crc(header))
    except (pa.ArrowException, OSError, ValueError):  # its reader says what is wrong with it
        return


def _has_crc(header: bytes) -> bool:
    """Return whether the header of a page has its fourth field, the CRC, which may be left out.

    The first three are integers as well: type, size, and size in the file. See PageHeader in the
    specification of Parquet, and Thrift's compact protocol.
    """
    place = 0
    for _ in range(NO_CRC):
        if header[place : place + 1] != bytes([NEXT_INTEGER]):
            return False
        place += 1
        while place < len(header) and header[place] & 0x80:  # a number goes on
            place += 1
        place += 1
    return header[place : place + 1] == bytes([NEXT_INTEGER])
