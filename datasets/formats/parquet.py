"""Reads Parquet tables as `table.py` does, and writes them: a row for each step, columns by their names here.

episode  step           numbers from 0
observation             a list of numbers, or observation/NAME for each part of a Dict
next_observation        the same, after the step
action  reward          numbers, or lists of them
terminated  truncated   flags
infos/NAME              numbers, or lists of them
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats._containers.arrow_files import check_pyarrow
from orlog.datasets.formats._shared.flat_rows import ROLES
from orlog.datasets.formats._shared.flat_writing import file_stem, flat_columns, flat_losses
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.table import FORMAT as TABLE
from orlog.datasets.reading.dataset import Dataset

ROW_GROUP_BYTES = 2**25


def _write(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write `NAME.parquet`."""
    import pyarrow as pa
    import pyarrow.parquet

    file, writer = folder / f"{file_stem(dataset)}.parquet", None
    held: list[Any] = []
    held_bytes = 0
    with contextlib.ExitStack() as stack:
        for number, rows in enumerate(flat_columns(dataset, progress, tells_episodes=True)):
            count = len(rows["rewards"])
            columns = {"episode": np.full(count, number), "step": np.arange(count)}
            columns |= {_column_name(key): values for key, values in rows.items()}
            held.append(pa.table({key: _column(values) for key, values in columns.items()}))
            held_bytes += held[-1].nbytes
            if number == dataset.total_episodes - 1 or held_bytes >= ROW_GROUP_BYTES:
                table, held, held_bytes = pa.concat_tables(held).combine_chunks(), [], 0
                if writer is None:
                    writer = stack.enter_context(
                        pyarrow.parquet.ParquetWriter(file, table.schema, write_page_checksum=True)
                    )
                writer.write_table(table)


def _column_name(key: str) -> str:
    base, slash, part = key.partition("/")
    return f"{ROLES.get(base, base)}{slash}{part}"


def _column(values: np.ndarray) -> Any:
    """Return numbers, or lists of them, as a column of Arrow."""
    import pyarrow as pa

    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in values.shape[:0:-1]:
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


FORMAT = Format(
    name="parquet",
    open=TABLE.open,
    recognizes=lambda _files: False,  # `table` does
    extensions=(".parquet", ".pq"),
    options=TABLE.options,
    shares=TABLE.shares,
    write=_write,
    losses=lambda dataset: flat_losses(dataset, "tables", takes_parts=True, tells_episodes=True),
    check=check_pyarrow,
    reads=TABLE.reads,
)
