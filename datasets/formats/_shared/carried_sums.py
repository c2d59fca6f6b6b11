"""What files say of their own values while they are read: checksums inside, and values that nobody wrote."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from orlog.datasets.formats._shared.notes import Note

MOST_TOLD = 5


@dataclasses.dataclass(slots=True)
class _Filled:
    """Rows of an array of Zarr that a fill value stands for, of `total` numbers in all.

    `runs` are begins and ends of runs of rows, in order, and how many numbers are missing in each.
    """

    total: int
    fill: str
    runs: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return sum(values for _, _, values in self.runs) == self.total


@dataclasses.dataclass(slots=True)
class CarriedSums:
    """Whether the arrays of HDF5 files carry fletcher32, which is compared when they are read.

    Attributes:
        covered: Arrays that carry it.
        bare: Arrays that do not.
        unwritten: Arrays of HDF5 that nobody wrote, so that a fill value stands for all their numbers.
        filled: Of each array of Zarr the rows of which chunks are not stored, likewise.
    """

    covered: int = 0
    bare: int = 0
    unwritten: dict[str, None] = dataclasses.field(default_factory=dict)
    filled: dict[str, _Filled] = dataclasses.field(default_factory=dict)

    def note(self, is_covered: bool) -> None:
        """Note an array of HDF5."""
        self.covered += is_covered
        self.bare += not is_covered

    def __str__(self) -> str:
        """Say which arrays carry one; nothing where that is not known."""
        if not self.covered + self.bare:
            return ""
        parts = "all" if not self.bare else "some" if self.covered else "no"
        return f"fletcher32 inside for {parts} columns"


_open: contextvars.ContextVar[CarriedSums | None] = contextvars.ContextVar("_open", default=None)


@contextlib.contextmanager
def noted_sums() -> Iterator[CarriedSums]:
    """Note what is said of values that are read in this context."""
    sums = CarriedSums()
    token = _open.set(sums)
    try:
        yield sums
    finally:
        _open.reset(token)


def sums_here() -> CarriedSums | None:
    """Return what notes go to in this context; None where they go nowhere."""
    return _open.get()


def note_array(is_covered: bool) -> None:
    """Note an array of HDF5 that is about to be read."""
    if (sums := _open.get()) is not None:
        sums.note(is_covered)


def note_unwritten(where: str) -> bool:
    """Note an array of HDF5 that nobody wrote; return whether an import will tell it."""
    sums = _open.get()
    if sums is not None:
        sums.unwritten[where] = None
    return sums is not None


def note_filled(where: str, rows: tuple[int, int], values: int, total: int, fill: Any) -> None:
    """Note rows of an array of Zarr, not all of whose chunks are stored.

    Args:
        where: What errors call the array.
        rows: Begin and end of the rows.
        values: How many of their numbers are not stored.
        total: How many numbers the array has.
        fill: The value that stands for them.
    """
    if (sums := _open.get()) is not None:
        filled = sums.filled.setdefault(where, _Filled(total, str(fill)))
        if not filled.runs or rows[0] >= filled.runs[-1][1]:  # an array may be read more than once
            filled.runs.append((*rows, values))


def note_all(others: CarriedSums) -> None:
    """Note what was noted elsewhere, where a part of the files was read."""
    if (sums := _open.get()) is not None:
        sums.covered += others.covered
        sums.bare += others.bare
        sums.unwritten |= others.unwritten
        for where, filled in others.filled.items():
            for first, last, values in filled.runs:
                note_filled(where, (first, last), values, filled.total, filled.fill)


def notes_of_blanks() -> list[Note]:
    """Return what was noted so far of values that are not in the files."""
    sums = _open.get() or CarriedSums()
    whole = [where for where, filled in sums.filled.items() if filled.is_whole]
    notes = []
    for library, blank in (("HDF5", [*sums.unwritten]), ("Zarr", whole)):
        if blank:
            places = [*map(_place, blank)]
            notes.append(Note("never_written", places, library=library, places=_listed(places)))
    some = {
        _place(where): f"{_place(where)} ({filled.fill} in {_rows(filled)})"
        for where, filled in sums.filled.items()
        if not filled.is_whole
    }
    if some:
        notes.append(Note("chunks_not_stored", some, places=_listed(some.values())))
    return notes


def _place(where: str) -> str:
    """Return the name of an array, and that of its file without folders."""
    file, _, inner = where.partition(", ")
    return f"{inner} in {Path(file).name}" if inner else Path(file).name


def _rows(filled: _Filled) -> str:
    joined: list[tuple[int, int]] = []
    for first, last, _ in filled.runs:
        begin = joined.pop()[0] if joined and joined[-1][1] == first else first
        joined.append((begin, last))
    said = [f"row {a}" if b == a + 1 else f"rows {a} to {b - 1}" for a, b in joined]
    return _listed(said, " and ")


def _listed(said: Iterable[str], sign: str = ", ") -> str:
    several = list(said)
    more = f" and {len(several) - MOST_TOLD} more" if len(several) > MOST_TOLD else ""
    return sign.join(several[:MOST_TOLD]) + more
