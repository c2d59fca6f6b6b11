"""Tables in files of Parquet, CSV and lines of JSON, read in batches of Arrow."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats._containers.arrow_files import (
    check_pyarrow,
    column_of,
    parquet_batches,
    reading_arrow,
    row_groups,
)
from orlog.errors import SchemaError

JSON_LINES = (".jsonl", ".ndjson")
ENDINGS = (".csv", ".parquet", ".pq", *JSON_LINES)
BLOCK_ROWS = 2**14
CSV_BLOCK_BYTES = 2**22
DEEPEST = 64  # of values in lines of JSON
BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


class TableSpan(NamedTuple):
    """A part of a file that is read at once: all of it, or one row group of Parquet; and its first row."""

    file: Path
    where: str
    first: int
    size_bytes: int
    group: int | None


def table_spans(file: Path, where: str, *, is_whole: bool) -> list[TableSpan]:
    """Return the parts of a file, only one if it `is_whole`."""
    if is_whole or file.suffix.lower() in (".csv", *JSON_LINES):
        return [TableSpan(file, where, 0, file.stat().st_size, None)]
    found, first = [], 0
    for group, (rows, size) in enumerate(row_groups(file, where)):
        found.append(TableSpan(file, where, first, size, group))
        first += rows
    return found


def read_spans(
    columns: Sequence[str], spans: Iterable[TableSpan]
) -> Iterator[dict[str, np.ndarray]]:
    """Yield rows of some columns of parts of files, as arrays.

    Raises SchemaError if a value is missing, or is neither number nor text; IntegrityError if a file cannot be
    read.
    """
    for file, where, first, _, group in spans:
        with reading_arrow(where):
            yield from arrays_of(batches_of(file, where, columns, group), columns, where, first)


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


def batches_of(
    file: Path, where: str, columns: Sequence[str], group: int | None = None
) -> Generator[Any]:
    """Yield rows of some columns of a file, or of one row group of it."""
    if file.suffix.lower() in JSON_LINES:
        with reading_arrow(where), _opened(file) as reader:
            for batch in reader:
                yield batch.select(list(columns))
        return
    if file.suffix.lower() != ".csv":
        groups = None if group is None else [group]
        yield from parquet_batches(file, where, columns, BLOCK_ROWS, groups)
        return
    checked: set[str] = set()
    with _opened(file, columns) as reader:
        for batch in reader:
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                is_checked = name in checked or str(column.type) != "double"
                if not is_checked and np.isinf(np.asarray(column)).any():
                    checked.add(name)
                    _check_written(file, name)
            yield batch


def _check_written(file: Path, name: str) -> None:
    """Refuse a column of a CSV file whose numbers are infinite only because they are too large.

    Raises SchemaError if one is, such as 1e999.
    """
    import pyarrow as pa

    first = 0
    with _opened(file, [name], types={name: pa.string()}) as reader:
        for batch in reader:
            for row, text in enumerate(batch.column(0).to_pylist(), first):
                if any(digit.isdigit() for digit in text) and np.isinf(float(text)):
                    raise SchemaError(
                        f"{file}: {name} holds {text[:40]} at row {row}, larger than any number of 64 bits; "
                        "write inf where it is meant."
                    )
            first += batch.num_rows


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
