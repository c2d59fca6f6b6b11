"""One-line summaries of values of any size: shapes and dtypes in place of numbers."""

from __future__ import annotations

import reprlib
import textwrap
from collections.abc import Mapping

WIDTH = 100
MOST_KEYS = 8


def summary(value: object) -> str:
    """Return `float32[300, 2]` for an array or tensor, and similar text for containers of them."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        device = str(getattr(value, "device", "cpu"))
        place = "" if device == "cpu" else f" on {device}"
        return f"{str(dtype).removeprefix('torch.')}{list(shape)}{place}"
    if isinstance(value, Mapping):
        shown = [f"{key!r}: {summary(one)}" for key, one in list(value.items())[:MOST_KEYS]]
        more = [f"{len(value) - MOST_KEYS} more"] if len(value) > MOST_KEYS else []
        return f"{{{', '.join(shown + more)}}}"
    if isinstance(value, list | tuple) and value:
        return f"{type(value).__name__} of {len(value)} {type(value[0]).__name__}"
    return reprlib.repr(value)


def fields_summary(name: str, fields: Mapping[str, object]) -> str:
    """Return the `repr` of a record: its name and fields, a few lines at most."""
    text = f"{name}({', '.join(f'{key}={summary(one)}' for key, one in fields.items())})"
    return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_long_words=False))
