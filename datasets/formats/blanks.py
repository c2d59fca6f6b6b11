"""Notes the values that files do not hold: arrays of HDF5 that nobody wrote, and chunks of Zarr that are not stored."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from orlog.datasets.formats.notes import Note

MOST_TOLD = 5


@dataclasses.dataclass(slots=True)
class _Blank:
    """An array of `total` numbers, for some of which a fill value stands.

    `runs` are begins and ends of runs of rows, in order, and how many numbers are missing in each.
    """

    library: str
    total: int
    fill: str
    runs: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return sum(missing for _, _, missing in self.runs) == self.total


Blanks = dict[str, _Blank]
"""Arrays with such values, by what errors call them."""
_open: contextvars.ContextVar[Blanks | None] = contextvars.ContextVar("_open", default=None)


@contextlib.contextmanager
def noted_blanks() -> Iterator[Blanks]:
    """Note the values that are read in this context and are in no file."""
    blanks: Blanks = {}
    token = _open.set(blanks)
    try:
        yield blanks
    finally:
        _open.reset(token)


def note_blank(
    library: str, where: str, total: int, rows: tuple[int, int] = (0, 1), missing: int | None = None, fill: Any = ""
) -> bool:
    """Note rows of an array that are not, or not all, in its file; return whether an import will tell it.

    Args:
        library: "HDF5" or "Zarr".
        where: What errors call the array.
        total: How many numbers it has.
        rows: Begin and end of the rows.
        missing: How many of their numbers are missing; all by default.
        fill: The value that stands for them.
    """
    blanks = _open.get()
    if blanks is not None:
        blank = blanks.setdefault(where, _Blank(library, total, str(fill)))
        if not blank.runs or rows[0] >= blank.runs[-1][1]:  # an array may be read more than once
            blank.runs.append((*rows, total if missing is None else missing))
    return blanks is not None


def note_all(others: Blanks) -> None:
    """Note what was noted elsewhere, where a part of the files was read."""
    for where, blank in others.items():
        for first, last, missing in blank.runs:
            note_blank(blank.library, where, blank.total, (first, last), missing, blank.fill)


def notes_of_blanks() -> list[Note]:
    """Return what was noted so far of values that are not in the files."""
    blanks = _open.get() or {}
    notes = []
    for library in ("HDF5", "Zarr"):
        whole = [_place(where) for where, blank in blanks.items() if blank.library == library and blank.is_whole]
        if whole:
            notes.append(Note("never_written", whole, library=library, places=_listed(whole)))
    some = {
        _place(where): f"{_place(where)} ({blank.fill} in {_rows(blank)})"
        for where, blank in blanks.items()
        if not blank.is_whole
    }
    if some:
        notes.append(Note("chunks_not_stored", some, places=_listed(some.values())))
    return notes


def _place(where: str) -> str:
    """Return the name of an array, and that of its file without folders."""
    file, _, inner = where.partition(", ")
    return f"{inner} in {Path(file).name}" if inner else Path(file).name


def _rows(blank: _Blank) -> str:
    joined: list[tuple[int, int]] = []
    for first, last, _ in blank.runs:
        begin = joined.pop()[0] if joined and joined[-1][1] == first else first
        joined.append((begin, last))
    rows = [f"row {a}" if b == a + 1 else f"rows {a} to {b - 1}" for a, b in joined]
    return _listed(rows, " and ")


def _listed(texts: Iterable[str], sign: str = ", ") -> str:
    several = list(texts)
    more = f" and {len(several) - MOST_TOLD} more" if len(several) > MOST_TOLD else ""
    return sign.join(several[:MOST_TOLD]) + more
