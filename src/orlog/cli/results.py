"""A result of a command is one structure, of which both the JSON for scripts and what people read are made."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from orlog.base.terminal import ago, print_json, say, show_facts, show_table
from orlog.manifests.names import size_text


def show(body: Any, as_json: bool, text: Callable[[Any], None] | None = None, **columns: str) -> None:
    """Print a result as one JSON document, or in words: as `text` does, or its values and then its lists as tables.

    `columns` name those of a list's table, as `show_rows` takes them; a list that none are named for is left out.
    """
    if as_json:
        print_json(body)
    elif text is not None:
        text(body)
    else:
        show_facts(facts(body, " ".join(key for key, value in body.items() if not _is_table(value))))
        for key, headings in columns.items():
            if body[key]:
                say()
                show_rows(body[key], headings)


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def show_rows(rows: Sequence[Mapping[str, Any]], columns: str, *, spare: Sequence[str] = ()) -> None:
    """Print some values of each row as a table; numbers are aligned to the right.

    Args:
        rows: The rows, such as a list in the JSON document.
        columns: Keys of the rows, each with its heading where it is another one: `name size_bytes=size`;
            `_` in a heading stands for a blank.
        spare: Headings of columns that a narrow terminal leaves out, the first one first.
    """
    headings = _headings(columns)
    numbers = [at for at, key in enumerate(headings) if any(_is_number(row.get(key)) for row in rows)]
    cells = [[in_words(key, row.get(key)) for key in headings] for row in rows]
    show_table([*headings.values()], cells, numbers=numbers, spare=spare)


def facts(body: Mapping[str, Any], columns: str) -> list[tuple[str, str]]:
    """Return names and texts of those of some values that a document has, for `show_facts`."""
    return [
        (heading, in_words(key, body[key]))
        for key, heading in _headings(columns).items()
        if body.get(key) not in (None, "", [], {})
    ]


def in_words(key: str, value: Any) -> str:
    """Return a value of a document as people read it; its key says whether a number is one of bytes."""
    if value is None or value is False:
        return ""
    if value is True:
        return "yes"
    if key.endswith("_bytes"):
        return size_text(value)
    if isinstance(value, dt.datetime):
        return ago(value.timestamp())
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {in_words(name, part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(in_words(key, part) for part in value)
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if _is_number(value) else str(value)


def score_text(score: float | None, interval: Sequence[float] | None = None) -> str:
    """Return a score, with its interval if it has one."""
    if score is None:
        return ""
    return f"{score:z.1f}" + (f" ({interval[0]:z.1f} to {interval[1]:z.1f})" if interval else "")


def say_caveats(caveats: Iterable[str], page: str = "docs/scores.md") -> None:
    """Print what to know before comparing numbers as one line, with the page that says more."""
    if text := " ".join(caveats):
        say(f"note: {text} More: {page}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _headings(columns: str) -> dict[str, str]:
    pairs = (column.partition("=") for column in columns.split())
    return {key: (heading or key.removesuffix("_bytes")).replace("_", " ") for key, _, heading in pairs}
