"""What the commands print: tables, JSON for scripts, progress bars and one line for an error."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, ConsoleDimensions
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

LINE_SECONDS = 5.0
UNBOUNDED = 10**6  # columns


class _Output(Console):
    """A console that wraps lines for people, and never in a file or a pipe."""

    @property
    def size(self) -> ConsoleDimensions:
        """Return the terminal's size; what is not a terminal is as wide as needed."""
        # With FORCE_COLOR rich takes a pipe for a terminal; its lines still have no width.
        return super().size if self.file.isatty() else ConsoleDimensions(UNBOUNDED, super().size[1])

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size


# A file and class such as my_method.py:X: would otherwise hold an emoji, :X:.
console = _Output(highlight=False, emoji=False)
errors = _Output(stderr=True, highlight=False, emoji=False)


def print_json(body: object) -> None:
    """Print one JSON document to stdout, the same bytes for a terminal and for a script."""
    print(json.dumps(body, indent=2, allow_nan=False))  # noqa: T201 (rich would wrap and color it)


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()
) -> Table:
    """Return a table; the columns in `numbers` are aligned to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for index, heading in enumerate(headings):
        made.add_column(
            printable(heading), justify="right" if index in numbers else "left", overflow="fold"
        )
    for row in rows:
        made.add_row(*map(printable, row))
    return made


def printable(text: str) -> str:
    """Return text from outside, with characters that could control a terminal escaped."""
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode()
        for one in text
    )


@contextlib.contextmanager
def progress_bar(what: str, *, lines: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show one bar, or lines as `progress_bars` does; yield a function of (done, total)."""
    with progress_bars(lines=lines) as update:
        yield lambda done, total: update(what, done, total)


class TransferBar:
    """A bar with bytes, rate and time left; call it with bytes done and bytes in all."""

    def __init__(self, bar: Progress, what: str) -> None:
        self._bar = bar
        self._task = bar.add_task(what, total=None, state="")

    def __call__(self, done: int, total: int) -> None:
        """Show how many bytes of all are done."""
        self._bar.update(self._task, completed=done, total=total)

    def audited(self, done: int, total: int) -> None:
        """Show how much of the data was audited before the transfer."""
        self._bar.update(self._task, state=f"audit: {done / max(1, total):.0%}")

    def count(self, done: int, total: int) -> None:
        """Show how many files of all are done."""
        self._bar.update(self._task, state=f"{done:,}/{total:,} files")


@contextlib.contextmanager
def transfer_bar(what: str) -> Iterator[TransferBar]:
    """Show one bar with bytes, files, rate and time left."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[state]}"),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=errors,
        disable=not errors.is_terminal,
    )
    with bar:
        yield TransferBar(bar, what)


@contextlib.contextmanager
def progress_bars(*, lines: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for each label; yield a function of (label, done, total).

    If the output is not a terminal, no bars are drawn; with `lines`, long work prints its progress
    there every few seconds.
    """
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=errors,
        disable=not errors.is_terminal,
    )
    tasks = {}
    printed: dict[str, float] = {}
    with bars:

        def update(label: str, done: int, total: int) -> None:
            now = time.monotonic()
            if (
                lines
                and not errors.is_terminal
                and now - printed.setdefault(label, now) > LINE_SECONDS
            ):
                errors.print(f"{label}: {done:,} of {total:,}", soft_wrap=True)
                printed[label] = now
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total)
            bars.update(tasks[label], completed=done, total=total)

        yield update
