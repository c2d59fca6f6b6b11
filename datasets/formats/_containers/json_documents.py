"""JSON documents beside the data of other tools, which are not trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
