"""Columns of the tables that `meta/info.json` does not list, as tools leave them that write it by hand.

They are features like others where their rows hold numbers, texts or images of one shape in all tables; any
other is named with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orlog.datasets.formats._containers.arrow_files import (
    array_of,
    arrow_names,
    parquet_batches,
    reading_arrow,
)
from orlog.datasets.formats.lerobot.image_tables import image_size
from orlog.datasets.formats.lerobot.language import EVENTS, PERSISTENT
from orlog.datasets.formats.lerobot.metadata import COUNTERS
from orlog.errors import IntegrityError, SchemaError

ROWS = 1000
PASSED_OVER = "__index_level_"  # pandas' own numbers of rows


def add_unlisted(info: dict[str, Any], files: Sequence[Path], where: str) -> list[str]:
    """Add the unlisted columns to the features; return sentences about them.

    Raises SchemaError if some tables lack a column that others have, and that is listed; IntegrityError if one is
    damaged.
    """
    features = info.get("features")
    if not isinstance(features, dict):
        return []
    columns = {file: _names(file, where) for file in files}
    every = dict.fromkeys(name for names in columns.values() for name in names)
    read, left_out = [], []
    for name in every:
        lacking = [file for file, names in columns.items() if name not in names]
        if name in features and lacking:
            raise SchemaError(
                f"{where}: {len(lacking):,} of {len(files):,} tables have no column {name}, such as "
                f"{_place(lacking[0])}, and the others have one; write it there too, or take it out of all."
            )
        is_counter = name in COUNTERS and name != "timestamp"
        if name in features or is_counter or name.startswith(PASSED_OVER):
            continue
        if lacking:
            count = len(files) - len(lacking)
            left_out.append(f"{name} (only in {count:,} of {len(files):,} tables)")
            continue
        try:
            features[name] = _feature(files, name, where)
            read.append(name)
        except SchemaError as error:
            left_out.append(f"{name} ({str(error).rstrip('.')})")
    said = [f"Read, though info.json does not list them: {', '.join(read)}."] if read else []
    if left_out:
        said.append(f"Left out, and not listed in info.json: {'; '.join(left_out)}.")
    return said


def _names(file: Path, where: str) -> list[str]:
    with reading_arrow(f"{where}, {_place(file)}"):
        import pyarrow.parquet

        if file.suffix == ".parquet":
            return list(pyarrow.parquet.read_schema(file).names)
        return arrow_names(file)


def _feature(files: Sequence[Path], name: str, where: str) -> dict[str, Any]:
    """Return what info.json would say of a column.

    Raises SchemaError if it is none that can be read.
    """
    if name in (PERSISTENT, EVENTS):
        return {"dtype": "language", "shape": [1]}
    feature: dict[str, Any] = {}
    for file in files:
        place, done = _place(file), 0
        for batch in parquet_batches(file, f"{where}, {place}", [name], ROWS):
            found = feature_of(batch.column(0), name, place, done)
            if found["dtype"] == "image":
                return found
            feature = feature or found
            if found != feature:
                raise SchemaError(
                    f"{place} holds {found['dtype']} {found['shape']} from row {done} on, and tables before "
                    f"{feature['dtype']} {feature['shape']}"
                )
            done += batch.num_rows
    if not feature or 0 in feature["shape"]:
        raise SchemaError("its rows hold nothing")
    return feature


def feature_of(column: Any, name: str, where: str, first: int) -> dict[str, Any]:
    """Return what info.json would say of some rows: numbers, texts, or images as the first one of these.

    Raises SchemaError if they are none of these, or an image is damaged.
    """
    from pyarrow import types

    if types.is_struct(column.type) and {one.name for one in column.type} == {"bytes", "path"}:
        try:
            shape = image_size(column[0].as_py(), f"{where}, row {first}")
        except IntegrityError as error:
            raise SchemaError(str(error)) from error
        return {"dtype": "image", "shape": list(shape)}
    values = array_of(column, name, where, first)
    dtype = "string" if values.dtype.kind == "O" else str(values.dtype)
    return {"dtype": dtype, "shape": list(values.shape[1:]) or [1]}


def _place(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"
