"""The options of an environment's reset as text: JSON in which arrays are marked.

    {"reset_cell": np.array([1, 2])}    {"reset_cell": {"__array__": [1, 2], "dtype": "int64"}}

Tuples become lists. No options are the empty text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from orlog.errors import SchemaError, clause

_ARRAY = "__array__"


def options_to_text(options: Mapping[str, Any] | None) -> str:
    """Return options as text.

    Raises SchemaError if they hold something else than numbers, texts, arrays, lists and dicts.
    """
    if options is None:
        return ""
    try:
        return json.dumps(options, default=_marked, allow_nan=False)
    except (RecursionError, TypeError, ValueError) as error:
        raise SchemaError(f"options of reset cannot be kept as JSON: {clause(error)}.") from error


def options_from_text(text: str) -> dict[str, Any] | None:
    """Return the options that a text holds; None if there were none.

    Raises SchemaError if it is no such text.
    """
    if not text:
        return None
    try:
        options = json.loads(text, object_hook=_array)
    except (RecursionError, TypeError, ValueError) as error:
        raise SchemaError(f"recorded options of reset cannot be read: {clause(error)}.") from error
    if not isinstance(options, dict):
        raise SchemaError(f"recorded options of reset are no dict: {text!r:.80}.")
    return options


def _marked(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {_ARRAY: value.tolist(), "dtype": value.dtype.name}
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be stored")


def _array(value: dict[str, Any]) -> Any:
    return np.array(value[_ARRAY], value["dtype"]) if _ARRAY in value else value
