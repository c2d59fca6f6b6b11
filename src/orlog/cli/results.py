"""A result of a command is one structure, of which both the JSON for scripts and what people read are made."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from orlog.base.terminal import ago, print_json, show_table
from orlog.manifests.names import size_text

Result = TypeVar("Result")


def show(result: Result, as_json: bool, text: Callable[[Result], None]) -> None:
    """Print a result as one JSON document, or in words as `text` does."""
    if as_json:
        print_json(result)
    else:
        text(result)


def show_rows(rows: Sequence[Mapping[str, Any]], columns: str, *, spare: Sequence[str] = ()) -> None:
    """Print some values of each row as a table; numbers are aligned to the right.

    Args:
        rows: The rows, such as a list in the JSON document.
        columns: Keys of the rows, each with its heading where it is another one: `name size_bytes=size`;
            `_` in a heading stands for a blank.
        spare: Headings of columns that a narrow terminal leaves out, the first one first.
    """
    headings = _headings(columns)
    numbers = [
        at for at, key in enumerate(headings) if any(_is_number(row[key]) for row in rows) or key.endswith("_bytes")
    ]
    cells = [[in_words(key, row[key]) for key in headings] for row in rows]
    show_table([*headings.values()], cells, numbers=numbers, spare=spare)


def facts(body: Mapping[str, Any], columns: str) -> list[tuple[str, str]]:
    """Return names and texts of those of some values that a document has, for `show_facts`."""
    return [
        (heading, in_words(key, body[key]))
        for key, heading in _headings(columns).items()
        if body.get(key) not in (None, "", [])
    ]


def in_words(key: str, value: Any) -> str:
    """Return a value of a document as people read it; its key says whether a number is one of bytes."""
    if value is None or value is False:
        return ""
    if key.endswith("_bytes"):
        return size_text(value)
    if isinstance(value, dt.datetime):
        return ago(value.timestamp())
    if isinstance(value, list | tuple):
        return ", ".join(in_words(key, part) for part in value)
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if _is_number(value) else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _headings(columns: str) -> dict[str, str]:
    """Return the heading of each key."""
    pairs = (column.partition("=") for column in columns.split())
    return {key: (heading or key).replace("_", " ") for key, _, heading in pairs}
