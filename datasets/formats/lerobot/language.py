"""Language columns of LeRobotDatasets: texts of JSON here, lists of structs in their tables.

    {"role": "assistant", "content": "lift", "style": "subtask", "timestamp": 0.2, "camera": null, "tool_calls": null}

Rows of `language_persistent` have a timestamp, those of `language_events` none. A call of a tool is an object, which LeRobot
stores as a struct or as JSON. https://huggingface.co/docs/lerobot/language_and_recipes
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

PERSISTENT, EVENTS = "language_persistent", "language_events"
CALLS, TIME = "tool_calls", "timestamp"


class _Event(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str | None
    style: str | None
    camera: str | None
    tool_calls: list[dict[str, Any]] | None


class _Persistent(_Event):
    timestamp: float


def language_text(rows: Any) -> str:
    """Return the rows of a step as JSON, with calls of tools as objects, however they were stored.

    Raises TypeError or ValueError if they hold what JSON cannot say.
    """
    listed = [rows] if isinstance(rows, str) else rows or []
    return json.dumps([_with_calls(row) for row in listed], ensure_ascii=False)


def _with_calls(row: Any) -> Any:
    calls = row.get(CALLS) if isinstance(row, dict) else None
    return row | {CALLS: [*map(_as_object, calls)]} if isinstance(calls, list) else row


def _as_object(call: Any) -> Any:
    try:
        value = json.loads(call) if isinstance(call, str) else call
    except (ValueError, RecursionError):
        return call
    return value if isinstance(value, dict) else call


def language_fields(texts: Iterable[str], name: str) -> tuple[str, ...]:
    """Return the fields of the rows in their order; nothing where LeRobot's column cannot give the texts back."""
    fields: tuple[str, ...] = ()
    kind: type[_Event] = _Persistent if name == PERSISTENT else _Event
    for text in dict.fromkeys(texts):
        try:
            rows = msgspec.json.decode(text, type=list[dict[str, Any]])
            checked = [msgspec.convert(row, kind) for row in rows]
        except (msgspec.MsgspecError, UnicodeError):
            return ()
        orders = {tuple(row) for row in rows} | ({fields} if fields else set())
        times = np.array([row.timestamp for row in checked if isinstance(row, _Persistent)])
        with np.errstate(over="ignore"):
            is_rounded = (times.astype(np.float32) != times).any()
        if len(orders) > 1 or is_rounded or language_text(rows) != text:
            return ()
        fields = next(iter(orders), ())
    return fields or kind.__struct_fields__


def language_array(texts: Sequence[str], fields: Sequence[str]) -> Any:
    """Return texts as an array of Arrow, of the type that LeRobot 0.6 gives such a column."""
    import pyarrow as pa

    kinds: Mapping[str, Any] = {TIME: pa.float32(), CALLS: pa.list_(pa.string())}
    rows = [json.loads(text) for text in texts]
    for row in (row for several in rows for row in several):
        if row[CALLS] is not None:
            row[CALLS] = [json.dumps(call, ensure_ascii=False) for call in row[CALLS]]
    struct = [(field, kinds.get(field, pa.string())) for field in fields]
    stored = pa.array(rows, pa.list_(pa.struct(struct)))
    struct = [(field, pa.list_(pa.json_()) if field == CALLS else kind) for field, kind in struct]
    return stored.cast(pa.list_(pa.struct(struct)))
