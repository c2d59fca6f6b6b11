"""What the commands print: lines, tables, JSON for scripts, and progress bars.

Nothing that is printed here is read as rich's markup, since names and paths may look like it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console, ConsoleDimensions
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

LINE_SECONDS = 20.0  # between two lines of progress where the output is no terminal
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


# A file and class such as my_method.py:X: would otherwise hold an emoji, :X:, and a[1] a style.
console = _Output(highlight=False, emoji=False, markup=False)
errors = _Output(stderr=True, highlight=False, emoji=False, markup=False)

COLORS = {"error": "red", "failed": "red", "damaged": "red", "differs": "red", "warning": "yellow"}
"""The colors of labels that lines begin with; others are bold."""


def say(text: object = "", *, label: str = "", style: str = "", to: Console = console) -> None:
    """Print text as it is, behind a label if one is given; the terminal breaks lines that are long."""
    line = Text(printable(str(text)), style)
    if label:
        line = Text.assemble((printable(f"{label}:"), COLORS.get(label, "bold")), " ", line)
    to.print(line, soft_wrap=True)


def tell(text: object, *, label: str = "", style: str = "") -> None:
    """Print text to stderr, as `say` does."""
    say(text, label=label, style=style, to=errors)


def print_json(body: object) -> None:
    """Print one JSON document to stdout, the same bytes for a terminal and for a script."""
    text = json.dumps(body, indent=2, allow_nan=False, default=_as_text)
    print(text)  # noqa: T201 (rich would wrap and color it)


def _as_text(value: object) -> str:
    if isinstance(value, dt.datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} is not in a JSON document.")


def ago(then: float) -> str:
    """Return a time in words, such as `3 hours ago`; `then` is in seconds since 1970."""
    passed = max(0.0, time.time() - then)
    for unit, seconds in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        count = int(passed // seconds)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def say_notes(notes: Iterable[object], say: Callable[[str], None] = say) -> None:
    """Print notes, such as caveats of a score, a line each."""
    for note in notes:
        say(f"note: {note}")


def waits(what: str, say: Callable[[str], None] = tell) -> Callable[[], None]:
    """Return what says that another process is at it, such as `building it`."""
    return lambda: say(f"another process is {what}; waiting for it to finish.")


def table(headings: Sequence[str], rows: Sequence[Sequence[str | Text]], *, numbers: Sequence[int] = ()) -> Table:
    """Return a table; the columns in `numbers` are aligned to the right, and `Text` has a style.

    Line breaks of plain cells are escaped; `Text` keeps its own.
    """
    made = Table(box=None, pad_edge=False, header_style="bold", show_header=any(headings))
    for index, heading in enumerate(headings):
        justify: Literal["left", "right"] = "right" if index in numbers else "left"
        made.add_column(_cell(heading), justify=justify, overflow="fold")
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(text: str | Text) -> Text:
    return text if isinstance(text, Text) else Text(printable(text).replace("\n", "\\n"))


def show_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    numbers: Sequence[int] = (),
    spare: Sequence[str] = (),
) -> None:
    """Print a table; the columns in `numbers` are aligned to the right, and `Text` has a style.

    Columns without any text are left out, and where the terminal is too narrow those named in `spare`,
    the first one first.
    """
    shown = [index for index in range(len(headings)) if not rows or any(row[index] for row in rows)]

    def made() -> Table:
        right = [place for place, index in enumerate(shown) if index in numbers]
        chosen = [[row[index] for index in shown] for row in rows]
        return table([headings[index] for index in shown], chosen, numbers=right)

    for index in map(headings.index, spare):
        if index in shown and console.measure(made()).maximum >= console.width:
            shown.remove(index)
    with console.capture() as captured:  # rich fills lines with blanks, which no file needs
        console.print(made())
    for line in captured.get().splitlines():
        print(line.rstrip(), file=console.file)


def show_facts(facts: Iterable[tuple[str, str | Text]], *, alarming: Collection[str] = ()) -> None:
    """Print what is known of one thing: names and texts, the names in `alarming` in yellow."""
    show_table(("", ""), [(Text(name, "bold yellow" if name in alarming else "bold"), text) for name, text in facts])


def printable(text: str) -> str:
    """Return text from outside, with characters that could control a terminal escaped."""
    return "".join(ch if ch.isprintable() or ch == "\n" else ch.encode("unicode_escape").decode() for ch in text)


@contextlib.contextmanager
def progress_bar(what: str, begun: str = "") -> Iterator[Callable[[int, int], None]]:
    """Show one bar, or lines as `progress_bars` does; yield a function of (done, total).

    If the output is not a terminal, the first line says what has `begun`, and how much there is to do.
    """
    with progress_bars() as update:
        yield functools.partial(update, what, begun=begun)


@contextlib.contextmanager
def progress_bars() -> Iterator[Callable[..., None]]:
    """Show a bar for each label; yield a function of (label, done, total), with a `state` if it is not the time left.

    `in_bytes` shows counts in megabytes; a total of None is not known yet. If the output is not a terminal, a line is
    printed every `LINE_SECONDS` instead, and first what has `begun`, if that is given.
    """
    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        TextColumn("{task.fields[state]}", markup=False, table_column=rest),
        console=errors,
        expand=True,
        disable=not errors.is_terminal,
    )
    tasks: dict[str, tuple[TaskID, float, int]] = {}
    printed: dict[str, float] = {}

    def update(
        label: str, done: int, total: int | None, state: str = "", *, in_bytes: bool = False, begun: str = ""
    ) -> None:
        now = time.monotonic()
        if label not in tasks:
            tasks[label] = bars.add_task(printable(label), total=total, state=""), now, done
            printed[label] = now
            if begun and not errors.is_terminal:
                tell(f"{begun}: {total:,} {label}")
        task, since, before = tasks[label]
        words = [printable(state)] if state else []
        if total is not None:
            words.insert(0, _amount(done, total, in_bytes=in_bytes))
            if not state and before < done < total:
                rate = (done - before) / max(now - since, 1e-9)
                if in_bytes:
                    words.append(f"{rate / 1e6:,.1f} MB/s")
                words.append(f"{dt.timedelta(seconds=round((total - done) / rate))} left")
        line = ", ".join(words)
        bars.update(task, completed=done, total=total, state=line)
        if not errors.is_terminal and total is not None and now - printed[label] > LINE_SECONDS:
            tell(f"{label}: {line}")
            printed[label] = now

    with bars:
        yield update


def _amount(done: int, total: int, *, in_bytes: bool) -> str:
    if in_bytes:
        return f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB"
    return f"{done:,} of {total:,}" if total else f"{done:,}"
