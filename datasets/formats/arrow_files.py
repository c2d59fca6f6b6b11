"""Tables in files of Parquet, CSV, lines of JSON and Arrow, read in batches of Arrow, and their columns as arrays."""

from __future__ import annotations

import contextlib
import decimal
import json
import math
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats.safe_reading import reading
from orlog.errors import SchemaError, needing

JSON_LINES = (".jsonl", ".ndjson")
ENDINGS = (".csv", ".parquet", ".pq", *JSON_LINES)
BLOCK_ROWS = 2**14
BLOCK_BYTES = 2**24
BUFFER_BYTES = 2**20
TEXT_BLOCK_BYTES = 2**22
SIGNATURE = b"ARROW1\0\0"
"""First bytes of a file of Arrow; a stream has others."""
WHOLE = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
DEEPEST = 64  # of values in lines of JSON
BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


def array_of(column: Any, name: str, where: str, first: int) -> np.ndarray:
    """Return a column of Arrow as an array [rows, ..]: numbers, lists of numbers of equal length, or texts.

    Anything else, and a missing value, is a SchemaError; `first` is the row of the file that it starts with.
    """
    import pyarrow as pa
    from pyarrow import types

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count:
        row = first + int(np.flatnonzero(np.asarray(column.is_null()))[0])
        raise SchemaError(f"{where}: {name} has no value at row {row}.")
    kind = column.type
    if types.is_dictionary(kind):
        # Texts that are repeated are one text in memory, however long.
        values = array_of(column.dictionary, name, where, first)
        return np.take(values, np.asarray(column.indices), 0)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return np.asarray(column)
    if types.is_string(kind) or types.is_large_string(kind):
        return np.array(column.to_pylist(), object)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        parts = array_of(column.flatten(), name, where, first)
        sizes = np.asarray(column.value_lengths())
        if parts.dtype.kind not in "biuf" or (sizes != sizes[:1]).any():
            row = first + int((sizes != sizes[:1]).argmax())
            what = "lists of other things than numbers, or of different lengths,"  # versions may say so
            raise SchemaError(f"{where}: {name} holds {what} at row {row}.")
        return parts.reshape(len(column), *sizes[:1].tolist(), *parts.shape[1:])
    raise SchemaError(f"{where}: {name} holds {kind}, expected numbers, lists of numbers or texts.")


def arrays_of(batch: Any, names: Sequence[str], where: str, first: int) -> dict[str, np.ndarray]:
    """Return columns of a batch as `array_of` does; tensors that Ray wrote have the shape that their field says."""
    arrays = {}
    for name in names:
        column, about = batch.column(name), batch.schema.field(name).metadata or {}
        values = array_of(getattr(column, "storage", column), name, where, first)
        if about.get(b"ARROW:extension:name", b"").startswith(b"ray.data.arrow_tensor"):
            shape = json.loads(about[b"ARROW:extension:metadata"])
            values = values.reshape(len(values), *shape)
        arrays[name] = values
    return arrays


def arrow_names(file: Path) -> list[str]:
    """Return the names of the columns of a file of Arrow, or of a stream."""
    with reading_arrow(str(file)):
        import pyarrow as pa

        with pa.memory_map(str(file)) as source:
            return list(_arrow_reader(source).schema.names)


def count_rows(file: Path) -> int:
    """Return the number of rows of a Parquet file, or of a stream of Arrow."""
    import pyarrow as pa
    import pyarrow.parquet

    if file.suffix == ".parquet":
        return int(pyarrow.parquet.read_metadata(file).num_rows)
    with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
        return sum(batch.num_rows for batch in reader)


def table_batches(file: Path, rows: int) -> Iterator[Any]:
    """Yield at most so many rows of a Parquet file, or of a file or stream of Arrow, at once and in order."""
    import pyarrow as pa

    if file.suffix == ".parquet":
        with open_parquet(file) as table:
            yield from table.iter_batches(rows)
        return
    with pa.memory_map(str(file)) as source:
        reader = _arrow_reader(source)
        count = getattr(reader, "num_record_batches", None)
        batches = reader if count is None else map(reader.get_batch, range(count))
        for batch in batches:
            batch.validate(full=True)
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


def _arrow_reader(source: Any) -> Any:
    """Open a file of Arrow, or a stream."""
    import pyarrow as pa

    is_file = source.read(len(SIGNATURE)) == SIGNATURE
    source.seek(0)
    return pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)


def open_parquet(file: Path) -> Any:
    """Open a Parquet file, whose checksums are compared; a group of rows that is larger than memory is read in pieces."""
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(file, page_checksum_verification=True, buffer_size=BUFFER_BYTES)


def parquet_batches(file: Path, where: str, columns: Sequence[str], most_rows: int) -> Generator[Any]:
    """Yield some columns of a Parquet file in batches of at most `most_rows`, fewer where rows are large."""
    with reading_arrow(where), open_parquet(file) as table:
        # Asked of the first row, since asking for what a column says of itself can end the process.
        first = next(table.iter_batches(1, columns=list(columns)), None)
        row_bytes = 0 if first is None else first.nbytes
        rows = max(1, min(most_rows, BLOCK_BYTES // max(1, row_bytes)))
        yield from table.iter_batches(rows, columns=list(columns))


def column_names(file: Path, where: str) -> list[str]:
    """Return the names of the columns of a table, which differ."""
    with reading_arrow(where):
        if file.suffix.lower() in JSON_LINES:
            _check_nesting(file, where)
        if file.suffix.lower() in (".csv", *JSON_LINES):
            with _open_text(file) as reader:
                names = list(reader.schema.names)
        else:
            with open_parquet(file) as table:
                names = list(table.schema_arrow.names)
    if len(set(names)) != len(names):
        raise SchemaError(f"{where}: two columns have the same name.")
    return names


def batches_of(file: Path, where: str, columns: Sequence[str]) -> Generator[Any]:
    """Yield rows of some columns of a table, none with a number that float64 does not hold."""
    if file.suffix.lower() not in (".csv", *JSON_LINES):
        yield from parquet_batches(file, where, columns, BLOCK_ROWS)
        return
    checked: set[str] = set()
    with reading_arrow(where), _open_text(file, columns) as reader:
        for batch in reader:
            wanted = batch.select(list(columns))
            for name, column in zip(columns, wanted.columns, strict=True):
                if name not in checked and _holds_large(column):
                    checked.add(name)
                    _check_written(file, where, name)
            yield wanted


def _open_text(file: Path, columns: Sequence[str] | None = None, types: Mapping[str, Any] | None = None) -> Any:
    """Open a file of CSV, or of lines of JSON."""
    import pyarrow.csv
    import pyarrow.json

    if file.suffix.lower() in JSON_LINES:
        return pyarrow.json.open_json(file, pyarrow.json.ReadOptions(block_size=TEXT_BLOCK_BYTES))
    convert = pyarrow.csv.ConvertOptions(include_columns=columns, column_types=types, strings_can_be_null=False)
    read = pyarrow.csv.ReadOptions(block_size=TEXT_BLOCK_BYTES)
    return pyarrow.csv.open_csv(file, read, convert_options=convert)


def _holds_large(column: Any) -> bool:
    """Whether floats are so large that they may stand for other integers in the file."""
    while hasattr(column, "flatten") and str(column.type).startswith("list<"):
        column = column.flatten()
    return str(column.type) == "double" and bool((abs(np.asarray(column)) >= 2.0**53).any())


def _check_written(file: Path, where: str, name: str) -> None:
    """Refuse a column where float64 holds another number than the one that is written: rounded, or infinite as of 1e999."""
    for place, text in _written(file, name):
        if not any(digit.isdigit() for digit in text):  # inf, NaN or nothing
            continue
        number = float(text)
        if math.isinf(number):
            raise SchemaError(f"{where}: {name} holds {text[:40]} at {place}, larger than any number of 64 bits.")
        if WHOLE.fullmatch(text) and decimal.Decimal(text) != number:
            raise SchemaError(f"{where}: {name} holds {text[:40]} at {place}, which float64 does not hold exactly.")


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
    row = 0
    with _open_text(file, [name], {name: pa.string()}) as reader:
        for batch in reader:
            for text in batch.column(0).to_pylist():
                yield f"row {row}", text
                row += 1


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield str(value)


def _check_nesting(file: Path, where: str) -> None:
    """Refuse lines that are no objects, or lie so deep in each other: Arrow's reader would end the process."""
    with file.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(2 * TEXT_BLOCK_BYTES), b""), 1):
            if line.strip() and not line.lstrip().startswith(b"{"):
                raise SchemaError(f"{where}: line {number} is no object of JSON.")
            if line.count(b"[") + line.count(b"{") <= DEEPEST:
                continue
            depth = 0
            for token in BRACKETS.finditer(line):
                depth += (token[0] in (b"[", b"{")) - (token[0] in (b"]", b"}"))
                if depth > DEEPEST:
                    raise SchemaError(f"{where}: the values of line {number} lie more than {DEEPEST} deep.")


@contextlib.contextmanager
def reading_arrow(where: str) -> Iterator[None]:
    """Turn errors of pyarrow into an IntegrityError that names the file."""
    check_pyarrow()
    with reading(where, "a table"):
        yield


def check_pyarrow() -> None:
    """Raise MissingExtraError if pyarrow is not installed."""
    with needing("tables need pyarrow", "orlog[formats]"):
        import pyarrow as pa  # noqa: F401
