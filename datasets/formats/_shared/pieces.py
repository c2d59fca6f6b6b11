"""Pieces of files that can be read on their own: here, one after the other, or by jobs, wherever these run.

A format takes part by saying which pieces its files have and how one is read, in place of a loop over them:

    for steps in read_pieces(asked, functools.partial(_read_file, options), files):

and by `Format.shares`. What is read is the same, and comes in the same order; what goes on from one piece to the next,
such as cutting rows into episodes, is done by the process that asks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from orlog.base.jobs import check_seen, do_jobs
from orlog.datasets.formats._shared.carried_sums import CarriedSums, note_all, noted_sums
from orlog.datasets.formats._shared.episodes import Asked, Steps
from orlog.datasets.formats._shared.hdf5_files import checked_before
from orlog.datasets.formats._shared.notes import Note

JOB_BYTES = 2**25
"""About how much a job reads: it is sent to the process that writes, and some wait there for an earlier one."""
LARGEST_STREAM = 2**27
"""Most that a job reads of what can only be read from its beginning on."""

Piece = TypeVar("Piece")
Found = TypeVar("Found")


def read_pieces(
    asked: Asked, read: Callable[[Piece], Iterable[Found]], pieces: Iterable[Piece]
) -> Iterator[Found]:
    """Yield what is read of each piece, in their order.

    Args:
        asked: The files, and who reads them; several processes get whole pieces.
        read: Yields what a piece holds; for other processes it, pieces and what it yields can be pickled, and it
            remembers nothing of another piece.
        pieces: What can be read on its own, each of about `JOB_BYTES` where several processes read.
    """
    if asked.sharing is None:
        for piece in pieces:
            yield from read(piece)
        return
    folders = {one if one.is_dir() else one.parent for one in asked.files}
    there = functools.partial(_read_there, read, sorted(folders))
    for found, sums in do_jobs(there, pieces, **asked.sharing._asdict()):
        note_all(sums)
        yield from found


def read_steps(
    asked: Asked,
    read: Callable[[Piece], Iterable[Steps | Note]],
    pieces: Iterable[Piece],
    notes: list[Note],
) -> Iterator[Steps]:
    """Yield the steps of all pieces as `read_pieces` does; what `read` says of them is added once to the notes."""
    for one in read_pieces(asked, read, pieces):
        if isinstance(one, Steps):
            yield one
        elif one not in notes:
            notes.append(one)


def rows_of_job(row_bytes: int, at_least: int = 0) -> int:
    """Return how many rows a job reads, of so many bytes each; `at_least` is a number of bytes."""
    return max(1, max(JOB_BYTES, at_least) // max(1, row_bytes))


def groups_of_jobs(
    asked: Asked, pieces: Iterable[Piece], size_of: Callable[[Piece], int]
) -> Iterator[Iterable[Piece]]:
    """Yield the groups of neighbors that jobs read, by their bytes; all are one where this process reads."""
    if asked.sharing is None:
        yield pieces
        return
    group: list[Piece] = []
    total = 0
    for piece in pieces:
        group.append(piece)
        total += size_of(piece)
        if total >= JOB_BYTES:
            yield group
            group, total = [], 0
    if group:
        yield group


class Span(NamedTuple):
    """Rows of something, from one on and before another one."""

    of: Any
    start: int
    stop: int


def spans_of(
    asked: Asked, counts: Iterable[tuple[Any, int]], row_bytes: int, at_least: int = 0
) -> Iterator[Span]:
    """Yield the rows of several things, given with how many each has: all of it, or what a job reads at most."""
    for of, count in counts:
        step = count if asked.sharing is None else rows_of_job(row_bytes, at_least)
        for start in range(0, max(1, count), max(1, step)):
            yield Span(of, start, min(count, start + step))


def jobs_of(
    asked: Asked, counts: Iterable[tuple[Any, int]], row_bytes: int
) -> Iterator[Iterable[Span]]:
    """Return the groups of `spans_of` that jobs read; all are one where this process reads."""
    spans = spans_of(asked, counts, row_bytes)
    return groups_of_jobs(asked, spans, lambda one: (one.stop - one.start) * row_bytes)


def check_stream(asked: Asked, size_bytes: int, where: str) -> None:
    """Refuse to have several processes read what one job would have to hold in memory.

    Raises ValueError if it is larger than a job may be.
    """
    if asked.sharing is not None and size_bytes > LARGEST_STREAM:
        raise ValueError(
            f"{where}: its {size_bytes:,} bytes can only be read from the first to the last, so one process reads "
            "them; leave out execute= and workers=."
        )


def _read_there(
    read: Callable[[Piece], Iterable[Found]], folders: Sequence[Path], piece: Piece
) -> tuple[list[Found], CarriedSums]:
    """Read a piece in a process that may be on another machine, with what was noted about checksums."""
    check_seen(*folders)
    with noted_sums() as sums, checked_before():
        return [*read(piece)], sums
