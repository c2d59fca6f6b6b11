"""Prints the tables of results to a terminal."""

from __future__ import annotations

from collections.abc import Callable

from orlog.base.terminal import say, say_notes, show_table
from orlog.manifests.names import counted
from orlog.normalize.statistics import Comparison
from orlog.results.page import (
    COUNTED,
    HEADINGS,
    NUMBERS,
    PUBLISHED,
    cells,
    counted_cells,
    published_cells,
)
from orlog.results.tables import Board, Table

SPARE = ("IQM", "rank", "episodes", "steps")
"""Columns of a table that a narrow terminal leaves out."""
MOST_LINES, LONGEST_LINE = 40, 160
"""What a terminal gets of the differences between tables; --html and --json have all."""


def print_board(board: Board, print_comparison: Callable[[Comparison], None]) -> None:
    """Print tables, what differs between them, and by a function each comparison over datasets."""
    for number, one in enumerate(board.tables, 1):
        say(f"{one.dataset}", label=f"table {number}")
        _print_table(one)
        say()
    lines = [
        f"tables {first + 1} and {second + 1} differ in {line}"
        for (first, second), found in board.differences.items()
        for line in found
    ]
    for line in lines[:MOST_LINES]:
        say(_short(line))
    if len(lines) > MOST_LINES:
        say(f".. and in {len(lines) - MOST_LINES} more: --json and --html have all.")
    for comparison in board.overall:
        say(f"over {counted(len(comparison.tasks), 'dataset')}", label="\ntogether")
        print_comparison(comparison)
    say_notes(board.notes)


def _short(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} .."


def _print_table(one: Table) -> None:
    for name, text in one.facts.items():
        say(_short(f"  {name}: {text}"))
    if one.published is not None:
        show_table(PUBLISHED, published_cells(one), numbers=(1, 3))
    else:
        show_table(HEADINGS, cells(one), numbers=NUMBERS, spare=SPARE)
        counts = counted_cells(one)
        if counts:
            show_table(COUNTED, counts, numbers=(2, 3))
        for row in one.rows:  # whose paths and URLs are too long for a column
            for where in row.entry.where[:1]:
                say(f"  {row.name}: {where}")
    say_notes(one.notes)
