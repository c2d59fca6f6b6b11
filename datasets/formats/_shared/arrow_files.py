"""Columns of Arrow, as Parquet and CSV files give them, as arrays of NumPy."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.errors import IntegrityError, OrlogError, SchemaError, needing

BLOCK_BYTES = 2**24
BUFFER_BYTES = 2**20
LARGEST_ROW_BYTES = 2**27
SIGNATURE = b"ARROW1\0\0"
"""First bytes of a file of Arrow; a stream has others."""


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
            raise SchemaError(
                f"{where}: {name} holds lists of other things than numbers, or of different lengths, "
                f"at row {row}."
            )
        return parts.reshape(len(column), *sizes[:1].tolist(), *parts.shape[1:])
    raise SchemaError(f"{where}: {name} holds {kind}, expected numbers, lists of numbers or texts.")


def column_of(batch: Any, name: str, where: str, first: int) -> np.ndarray:
    """Return a column of a batch as `array_of` does; tensors that Ray wrote have the shape that their field says."""
    column, said = batch.column(name), batch.schema.field(name).metadata or {}
    values = array_of(getattr(column, "storage", column), name, where, first)
    if said.get(b"ARROW:extension:name", b"").startswith(b"ray.data.arrow_tensor"):
        shape = json.loads(said[b"ARROW:extension:metadata"])
        return values.reshape(len(values), *shape)
    return values


def arrow_names(file: Path) -> list[str]:
    """Return the names of the columns of a file of Arrow, or of a stream.

    Raises IntegrityError if it is damaged; MissingExtraError if pyarrow is not installed.
    """
    with reading_arrow(str(file)):
        import pyarrow as pa

        with pa.memory_map(str(file)) as source:
            is_file = source.read(len(SIGNATURE)) == SIGNATURE
            source.seek(0)
            reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
            return list(reader.schema.names)


def count_rows(file: Path) -> int:
    """Return the number of rows of a Parquet file, or of a stream of Arrow."""
    import pyarrow as pa
    import pyarrow.parquet

    if file.suffix == ".parquet":
        return int(pyarrow.parquet.read_metadata(file).num_rows)
    with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
        return sum(batch.num_rows for batch in reader)


def table_batches(file: Path, rows: int, first: int = 0, last: int | None = None) -> Iterator[Any]:
    """Yield at most so many rows of a Parquet file, or of a file or stream of Arrow, at once and in order.

    They are those from row `first` on and before row `last`, by default all.
    """
    import pyarrow as pa
    import pyarrow.parquet

    if file.suffix == ".parquet":
        # With a buffer, a group of rows that is larger than memory is read in pieces.
        with pyarrow.parquet.ParquetFile(
            file, page_checksum_verification=True, buffer_size=BUFFER_BYTES
        ) as table:
            groups, before = None, 0
            if first or last is not None:
                groups, before = _groups_of(table.metadata, first, last)
            batches = table.iter_batches(rows, row_groups=groups)
            yield from _between(batches, first - before, None if last is None else last - before)
        return
    with pa.memory_map(str(file)) as source:
        for batch in _between(_stored_batches(source), first, last):
            batch.validate(full=True)
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


def _groups_of(metadata: Any, first: int, last: int | None) -> tuple[list[int], int]:
    """Return the row groups that hold some rows, and how many rows come before these groups."""
    counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    ends = np.cumsum(counts)
    stop = int(ends[-1]) if last is None and counts else last or 0
    wanted = [int(one) for one in np.flatnonzero((ends > first) & (ends - counts < stop))]
    return wanted, int(ends[wanted[0]] - counts[wanted[0]]) if wanted else 0


def _between(batches: Iterator[Any], first: int, last: int | None) -> Iterator[Any]:
    """Yield the rows of batches from row `first` on and before row `last`."""
    done = 0
    for batch in batches:
        count = batch.num_rows
        if done + count > first:
            start = max(0, first - done)
            part = batch.slice(start) if last is None else batch.slice(start, last - done - start)
            if part.num_rows or last is None:
                yield part
        done += count
        if last is not None and done >= last:
            return


def _stored_batches(source: Any) -> Iterator[Any]:
    import pyarrow as pa

    is_file = source.read(len(SIGNATURE)) == SIGNATURE
    source.seek(0)
    if not is_file:
        with pa.ipc.open_stream(source) as reader:
            yield from reader
        return
    with pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def parquet_batches(
    file: Path, where: str, columns: Sequence[str], most_rows: int
) -> Iterator[Any]:
    """Yield some columns of a Parquet file in batches of at most `most_rows`, fewer where rows are large.

    Memory is bounded: a row that is too large is refused.
    """
    import pyarrow.parquet

    with (
        reading_arrow(where),
        pyarrow.parquet.ParquetFile(
            file, page_checksum_verification=True, buffer_size=BUFFER_BYTES, pre_buffer=False
        ) as table,
    ):
        # Asked of the first row, since asking for what a column says of itself can end the process.
        one = next(table.iter_batches(1, columns=list(columns)), None)
        row_bytes = 0 if one is None else one.nbytes
        if row_bytes > LARGEST_ROW_BYTES:
            raise SchemaError(f"{where}: {row_bytes:,} bytes a row are too many.")
        rows = max(1, min(most_rows, BLOCK_BYTES // max(1, row_bytes)))
        yield from table.iter_batches(rows, columns=list(columns))


@contextlib.contextmanager
def reading_arrow(where: str) -> Iterator[None]:
    """Turn errors of pyarrow into one that names the file."""
    check_pyarrow()
    import pyarrow as pa

    try:
        yield
    except OrlogError:
        raise
    except (pa.ArrowException, KeyError, OSError, TypeError, ValueError) as error:
        text = str(error.args[0] if error.args else error).partition("\n")[0]
        raise IntegrityError(
            f"{where}: cannot be read as a table: {text:.300}.", file=where
        ) from error


def check_pyarrow() -> None:
    """Refuse to go on without pyarrow.

    Raises MissingExtraError if it is not installed.
    """
    with needing("tables need pyarrow", "orlog[formats]"):
        import pyarrow as pa  # noqa: F401
