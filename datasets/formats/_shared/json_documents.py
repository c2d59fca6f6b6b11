"""JSON documents beside the data of other tools, which are not trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from orlog.errors import IntegrityError, SchemaError

LARGEST_DOCUMENT = 2**26


def read_json_object(
    file: Path, where: str, *, missing: str, name: str = "", most_bytes: int = LARGEST_DOCUMENT
) -> dict[str, Any]:
    """Return the object that a file of JSON holds; errors call the dataset `where`, and the file `name`.

    `missing` is what an error says where the file is not there, is a link, or too large.
    """
    name = name or file.name
    if not file.is_file() or file.is_symlink() or file.stat().st_size > most_bytes:
        raise SchemaError(f"{where}: {missing}")
    try:
        body = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where}: {name} is no JSON: {error}.", file=where) from error
    if not isinstance(body, dict):
        raise SchemaError(f"{where}: {name} holds no object.")
    return body


def finite_float(text: str) -> float:
    """Return a number of JSON, for `parse_float` of `json.loads`.

    Raises ValueError if it is too large, such as 1e400.
    """
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text:.40} is larger than any number of 64 bits")
    return number


def numbers_in(value: Any, where: str) -> np.ndarray:
    """Return nested lists as an array; what is neither number nor text stays an object.

    Raises SchemaError if an integer would change: beside floats, or where it has more than 64 bits.
    """
    array = np.array(value)
    if array.dtype.kind == "O" or (array.dtype.kind == "f" and (abs(array) >= 2.0**53).any()):
        for row, one in enumerate(value if isinstance(value, list) else [value]):
            for number in _integers_in(one):
                if abs(number) >= 2**64 or float(number) != number:
                    shown = number if abs(number) < 2**64 else "an integer of more than 64 bits"
                    raise SchemaError(
                        f"{where}: holds {shown} at row {row}, which float64 does not hold exactly; leave it out."
                    )
    return array


def _integers_in(value: Any) -> Iterator[int]:
    if isinstance(value, list):
        for inner in value:
            yield from _integers_in(inner)
    elif isinstance(value, int):
        yield value
