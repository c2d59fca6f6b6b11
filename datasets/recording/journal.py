"""The journal of a recording: what it has acknowledged, in a small file replaced in one step.

    journal.json    totals, schema, and the number of acknowledged rows of each column
    pending-N       the acknowledged rows after the full shards, one column after the other

Full shards are in `part/`. `log.py` keeps what comes between two journals. Anything else in a recording's folder is ignored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from orlog.base.files import sync, write_durably
from orlog.datasets.columns.schema import Schema
from orlog.datasets.recording.episodes import EpisodeWriter
from orlog.datasets.store.encoding import Encoding
from orlog.datasets.store.zarr_writer import ColumnWriter
from orlog.errors import IntegrityError, ManifestError, SchemaError, clause
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.documents import canonical_json, parse_json, read_small_file
from orlog.manifests.spaces import space_to_json

JOURNAL = "journal.json"
JOURNAL_VERSION = 1
LARGEST_JOURNAL = 2**26


def write_journal(
    folder: Path,
    number: int,
    header: Mapping[str, Any],
    writer: EpisodeWriter,
    rows: Mapping[str, int],
) -> None:
    """Acknowledge the first `rows` of each column; full shards must be durable already.

    `number` must grow by one with each journal; `header` is stored and compared on resuming.
    """
    pending = folder / f"pending-{number}"
    columns: dict[str, Any] = {}
    with pending.open("wb") as file:
        for name, column in writer.container.columns.items():
            data = _pending_rows(column, rows.get(name, 0))
            file.write(data or b"")
            columns[name] = {
                "rows": rows.get(name, 0),
                "on_disk": data is None,
                "encoding": dataclasses.asdict(column.encoding),
                "bytes": len(data or b""),
                "sha256": hashlib.sha256(data or b"").hexdigest(),
            }
        file.flush()
        os.fsync(file.fileno())
    body = {
        "journal_version": JOURNAL_VERSION,
        "header": header,
        "schema": schema_json(writer.schema),
        "episodes": writer.episodes,
        "steps": writer.steps,
        "pending": number,
        "columns": columns,
    }
    body["sha256"] = hashlib.sha256(canonical_json(body)).hexdigest()
    temporary = folder / f"{JOURNAL}.unfinished"
    write_durably(temporary, json.dumps(body).encode())
    temporary.replace(folder / JOURNAL)
    sync(folder)  # before removing what the old journal needs
    for path in (*folder.glob("pending-*"), *folder.glob("episodes-*")):
        if path != pending:
            path.unlink()


def read_journal(folder: Path) -> dict[str, Any] | None:
    """Return the journal of a recording; None if nothing was acknowledged.

    Raises ManifestError if it is damaged.
    """
    path = folder / JOURNAL
    if not path.exists():
        return None
    try:
        body = parse_json(read_small_file(path, LARGEST_JOURNAL))
        stated = body.pop("sha256")
        if body["journal_version"] != JOURNAL_VERSION:
            raise ValueError(f"journal_version {body['journal_version']!r}.")  # noqa: TRY301
        if hashlib.sha256(canonical_json(body)).hexdigest() != stated:
            raise ValueError("its checksum is wrong.")  # noqa: TRY301
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ManifestError(
            f"{path}: no readable journal of a recording: {clause(error)}; discard=True drops it."
        ) from error
    return dict(body)


def restore(folder: Path, body: Mapping[str, Any], writer: EpisodeWriter) -> dict[str, int]:
    """Fill a new writer with the rows that a journal acknowledges; return their number by column.

    Raises IntegrityError if acknowledged rows are missing or damaged; SchemaError if columns were recorded
    with other encodings.
    """
    writer.schema = _schema_from_json(writer.schema, body["schema"])
    specs = writer.schema.columns()
    path = folder / f"pending-{body['pending']}"
    if not path.is_file():
        raise IntegrityError(
            f"{path}: the acknowledged rows are gone; discard=True drops the recording.",
            file=path.name,
        )
    with path.open("rb") as file:
        for name, state in body["columns"].items():
            column = writer.container.add_column(specs[name])
            encoding = Encoding(**state["encoding"])
            if not column.frames_decide and column.encoding != encoding:
                raise SchemaError(
                    f"{folder}: column {name} was recorded with {_changed(encoding, column.encoding)}"
                    "; give the same encodings."
                )
            column.encoding = encoding
            data = file.read(state["bytes"])
            if hashlib.sha256(data).hexdigest() != state["sha256"]:
                raise IntegrityError(
                    f"{folder}: the acknowledged rows of column {name} are damaged; discard=True "
                    "drops the recording.",
                    file=name,
                )
            full, rest = divmod(state["rows"], column.encoding.shard_rows)
            if 0 in column.spec.shape:
                full, rows = 0, np.empty((state["rows"], *column.spec.shape), column.spec.dtype)
            elif state["on_disk"] and rest:
                rows = column.read_shard(full, rest)[0]
            else:
                rows = np.frombuffer(data, column.spec.dtype).reshape(-1, *column.spec.shape)
            column.restore(full, rows)
    writer.episodes, writer.steps = body["episodes"], body["steps"]
    return {name: state["rows"] for name, state in body["columns"].items()}


def schema_json(schema: Schema) -> dict[str, Any]:
    """Return a schema as JSON, to be stored and compared."""
    return {
        "observation_space": space_to_json(schema.observation_space),
        "action_space": space_to_json(schema.action_space),
        "reward_dtype": schema.reward_dtype.name,
        "extras": {
            name: [spec.dtype.name, list(spec.shape)] for name, spec in schema.extras.items()
        },
        "variable": dict(schema.variable),
    }


def _changed(recorded: Encoding, given: Encoding) -> str:
    """Describe how two encodings differ."""
    if recorded.chunk_rows != given.chunk_rows:
        return f"chunks of {recorded.chunk_rows} rows, not {given.chunk_rows}"
    before, after = dataclasses.asdict(recorded), dataclasses.asdict(given)
    return ", ".join(
        f"{name} {before[name]}, not {after[name]}"
        for name in before
        if before[name] != after[name]
    )


def _pending_rows(column: ColumnWriter, rows: int) -> bytes | None:
    """Return the acknowledged rows that are not in a durable shard; None if all are."""
    first = rows - rows % column.encoding.shard_rows
    in_memory = column.rows - len(column.pending)
    # If the open episode has filled the shard since, these rows are on disk.
    return column.pending[: rows - first].tobytes() if in_memory == first else None


def _schema_from_json(schema: Schema, body: Mapping[str, Any]) -> Schema:
    """Return the schema with the extra columns of a journal."""
    extras = {
        name: ColumnSpec(name, np.dtype(dtype), tuple(shape))
        for name, (dtype, shape) in body["extras"].items()
    }
    return dataclasses.replace(schema, extras=extras, variable=body["variable"])
