"""Tables in files of Parquet, CSV and lines of JSON, read in batches of Arrow."""

from __future__ import annotations

import contextlib
import decimal
import json
import math
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats._shared.arrow_files import (
    check_pyarrow,
    column_of,
    parquet_batches,
    reading_arrow,
)
from orlog.errors import SchemaError

JSON_LINES = (".jsonl", ".ndjson")
ENDINGS = (".csv", ".parquet", ".pq", *JSON_LINES)
BLOCK_ROWS = 2**14
CSV_BLOCK_BYTES = 2**22
WHOLE = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
DEEPEST = 64  # of values in lines of JSON
BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


def read_tables(
    columns: Sequence[str], files: Iterable[tuple[Path, str]]
) -> Iterator[dict[str, np.ndarray]]:
    """Yield rows of some columns of files, each given with what errors call it, as arrays.

    Raises SchemaError if a value is missing, or is neither number nor text; IntegrityError if a file cannot be
    read.
    """
    for file, where in files:
        with reading_arrow(where):
            yield from arrays_of(batches_of(file, where, columns), columns, where, 0)


def arrays_of(
    batches: Iterator[Any], columns: Sequence[str], where: str, first: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the columns of batches as arrays; the first row of all is row `first` of the file."""
    for batch in batches:
        if batch.num_rows:
            yield {name: column_of(batch, name, where, first) for name in columns}
        first += batch.num_rows


def column_names(file: Path) -> list[str]:
    """Return the names of the columns of a file."""
    with _opened(file) as reader:
        schema = reader.schema_arrow if hasattr(reader, "schema_arrow") else reader.schema
        return list(schema.names)


def batches_of(file: Path, where: str, columns: Sequence[str]) -> Generator[Any]:
    """Yield rows of some columns of a file."""
    is_json = file.suffix.lower() in JSON_LINES
    if not is_json and file.suffix.lower() != ".csv":
        yield from parquet_batches(file, where, columns, BLOCK_ROWS)
        return
    checked: set[str] = set()
    with reading_arrow(where), _opened(file, columns) as reader:
        for batch in reader:
            wanted = batch.select(list(columns))
            for name, column in zip(columns, wanted.columns, strict=True):
                if name not in checked and _holds_large(column):
                    checked.add(name)
                    _check_written(file, where, name)
            yield wanted


def _holds_large(column: Any) -> bool:
    """Whether floats are so large that they may stand for other integers in the file."""
    while hasattr(column, "flatten") and str(column.type).startswith("list<"):
        column = column.flatten()
    return str(column.type) == "double" and bool((abs(np.asarray(column)) >= 2.0**53).any())


def _check_written(file: Path, where: str, name: str) -> None:
    """Refuse a column of a text file where float64 holds another number than the one that is written.

    Raises SchemaError if it is infinite only because it is too large, such as 1e999, or an integer that is rounded.
    """
    for place, text in _written(file, name):
        if not any(digit.isdigit() for digit in text):  # inf, NaN or nothing
            continue
        number = float(text)
        if math.isinf(number):
            raise SchemaError(
                f"{where}: {name} holds {text[:40]} at {place}, larger than any number of 64 bits; "
                "write inf where it is meant."
            )
        if WHOLE.fullmatch(text) and decimal.Decimal(text) != number:
            raise SchemaError(
                f"{where}: {name} holds {text[:40]} at {place}, which float64 does not hold exactly. Integers from "
                "-2^63 to 2^63 - 1 are read as they are in a column that holds no other numbers."
            )


def _written(file: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield where each number of a column stands in a text file, and how it is written there."""
    import pyarrow as pa

    if file.suffix.lower() in JSON_LINES:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    body = json.loads(line, parse_int=str, parse_float=str, parse_constant=str)
                    yield from ((f"line {number}", text) for text in _leaves(body.get(name)))
        return
    first = 0
    with _opened(file, [name], types={name: pa.string()}) as reader:
        for batch in reader:
            for row, text in enumerate(batch.column(0).to_pylist(), first):
                yield f"row {row}", text
            first += batch.num_rows


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield str(value)


def check_nesting(file: Path, where: str) -> None:
    """Refuse lines whose values lie so deep in each other that Arrow's reader would end the process."""
    with file.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(2 * CSV_BLOCK_BYTES), b""), 1):
            if line.count(b"[") + line.count(b"{") <= DEEPEST:
                continue
            depth = 0
            for token in BRACKETS.finditer(line):
                depth += (token[0] in (b"[", b"{")) - (token[0] in (b"]", b"}"))
                if depth > DEEPEST:
                    raise SchemaError(
                        f"{where}: the values of line {number} lie more than {DEEPEST} deep in each other."
                    )


@contextlib.contextmanager
def _opened(
    file: Path, columns: Sequence[str] | None = None, types: Mapping[str, Any] | None = None
) -> Iterator[Any]:
    check_pyarrow()
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    if file.suffix.lower() == ".csv":
        options = pyarrow.csv.ReadOptions(block_size=CSV_BLOCK_BYTES)
        convert = pyarrow.csv.ConvertOptions(
            include_columns=columns, column_types=types, strings_can_be_null=False
        )
        with pyarrow.csv.open_csv(file, options, convert_options=convert) as reader:
            yield reader
    elif file.suffix.lower() in JSON_LINES:
        how = pyarrow.json.ReadOptions(block_size=CSV_BLOCK_BYTES)
        with pyarrow.json.open_json(file, how) as reader:
            yield reader
    else:
        with pyarrow.parquet.ParquetFile(file, page_checksum_verification=True) as reader:
            yield reader
