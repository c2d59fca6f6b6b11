"""The crash log of a recording: what a process that is killed does not lose.

    part/           full shards, which the writer of columns makes
    journal.json    totals, schema, and the number of acknowledged rows of each column
    pending-N       the acknowledged rows after the full shards, one column after the other
    episodes-N      blocks of rows since, each as: bytes of the rest (uint64), BLAKE3 of the rest (32 bytes),
                    bytes of the header (uint32), header (JSON: name, dtype and shape of each column), values

Acknowledged rows are on disk: also after a power cut. Each journal replaces the one before in one step, and N is its
number. Blocks wait for no disk: what a process has written survives its own end, but not that of the machine. A block
holds some steps of an episode, or the row of the episode that ends with it, or both. Anything else in the folder is
ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from blake3 import blake3

from orlog.base.files import storage_errors, sync, sync_folders, write_durably
from orlog.datasets.columns.schema import Schema
from orlog.datasets.columns.values import Block
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
LARGEST_BLOCKS = 2**28  # bytes of blocks after which a journal is due
_BUFFER_BYTES = 2**20
_DIGEST_BYTES = 32


class CrashLog:
    """What a recording has acknowledged, `episodes` of them, and the blocks since."""

    def __init__(self, folder: Path, *, keeps_blocks: bool) -> None:
        """Read the journal in the folder of a recording, if there is one.

        Raises ManifestError if it is damaged.
        """
        self._folder, self._keeps_blocks = folder, keeps_blocks
        journal = _read_journal(folder / JOURNAL) or {"episodes": 0, "pending": 0}
        self.episodes: int = journal["episodes"]
        self._number: int = journal["pending"]
        self._file: BinaryIO | None = None
        self._bytes = 0

    @property
    def is_due(self) -> bool:
        """Whether the next end of an episode must be acknowledged: no journal precedes its blocks, or they are many."""
        return self._keeps_blocks and (self._file is None or self._bytes > LARGEST_BLOCKS)

    def acknowledge(self, header: Mapping[str, Any], writer: EpisodeWriter, rows: Mapping[str, int]) -> None:
        """Acknowledge the first `rows` of each column, whose full shards must be durable already.

        `header` is compared when the recording is resumed. Raises StorageError if the disk is full.
        """
        self.close()
        with storage_errors(self._folder):
            sync_folders(self._folder / "part")
            self._number += 1
            self._write_journal(header, writer, rows)
            # Blocks continue a journal only at the start of an episode; else its first rows are in none.
            if self._keeps_blocks and not writer.inside_episode:
                self._file = (self._folder / f"episodes-{self._number}").open("wb", _BUFFER_BYTES)
                self._bytes = 0
            sync(self._folder)
        self.episodes = writer.episodes

    def write(self, block: Block) -> None:
        """Add a block, if there is a journal that it continues.

        Raises StorageError if the disk is full; the log then ends before this block.
        """
        if self._file is None:
            return
        arrays = {name: np.ascontiguousarray(values) for name, values in block.items()}
        header = msgspec.json.encode([(name, values.dtype.str, values.shape) for name, values in arrays.items()])
        body: list[Any] = [len(header).to_bytes(4, "little"), header]
        body += [values.data.cast("B") for values in arrays.values() if values.size]
        digest, size = blake3(), sum(map(len, body))
        for piece in body:
            digest.update(piece)
        try:
            with storage_errors(self._folder):
                self._file.writelines([size.to_bytes(8, "little"), digest.digest(), *body])
                self._file.flush()
        except BaseException:
            self.close()
            raise
        self._bytes += size

    def close(self) -> None:
        """Write no more blocks until the next journal."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None

    def restore(self, header: Mapping[str, Any], writer: EpisodeWriter, wanted: str) -> dict[str, int]:
        """Fill a new writer with all whole episodes; return the rows of each column.

        Raises IntegrityError if acknowledged rows are missing or damaged; SchemaError if another recording was
        begun, or columns have other encodings.
        """
        body = _read_journal(self._folder / JOURNAL)
        if body is None:
            return {}
        if body["header"] != header:
            raise SchemaError(
                f"{self._folder}: the interrupted recording of {wanted} has other spaces, another "
                "container or another base version; give the same, or discard=True."
            )
        writer.schema = _schema_from_json(writer.schema, body["schema"])
        path = self._folder / f"pending-{body['pending']}"
        data = path.read_bytes() if path.is_file() else b""
        specs, first = writer.schema.columns(), 0
        for name, state in body["columns"].items():
            rows = data[first : first + state["bytes"]]
            first += state["bytes"]
            if hashlib.sha256(rows).hexdigest() != state["sha256"]:
                raise IntegrityError(
                    f"{path}: the acknowledged rows of column {name} are gone or damaged; discard=True drops the "
                    "recording.",
                    file=name,
                )
            self._restore_column(writer.container.add_column(specs[name]), state, rows)
        writer.episodes, writer.steps = body["episodes"], body["steps"]
        for blocks in _whole_episodes(self._folder / f"episodes-{body['pending']}"):
            for block in blocks:
                writer.add_block(block, block.get("episodes/lengths", np.empty(0, np.int64)))
        return {name: column.rows for name, column in writer.container.columns.items()}

    def _restore_column(self, column: ColumnWriter, state: Mapping[str, Any], data: bytes) -> None:
        spec, encoding = column.spec, Encoding(**state["encoding"])
        if not column.frames_decide and encoding != column.encoding:
            raise SchemaError(
                f"{self._folder}: column {spec.name} was recorded with {encoding}, not {column.encoding}; give the "
                "same encodings."
            )
        column.encoding = encoding
        full, rest = divmod(state["rows"], encoding.shard_rows)
        if 0 in spec.shape:
            full, rows = 0, np.empty((state["rows"], *spec.shape), spec.dtype)
        elif state["on_disk"] and rest:
            rows = column.read_shard(full, rest)[0]
        else:
            rows = np.frombuffer(data, spec.dtype).reshape(-1, *spec.shape)
        column.restore(full, rows)

    def _write_journal(self, header: Mapping[str, Any], writer: EpisodeWriter, rows: Mapping[str, int]) -> None:
        pending = self._folder / f"pending-{self._number}"
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
            "pending": self._number,
            "columns": columns,
        }
        body["sha256"] = hashlib.sha256(canonical_json(body)).hexdigest()
        temporary = self._folder / f"{JOURNAL}.unfinished"
        write_durably(temporary, json.dumps(body).encode())
        temporary.replace(self._folder / JOURNAL)
        sync(self._folder)  # before removing what the old journal needs
        for path in (*self._folder.glob("pending-*"), *self._folder.glob("episodes-*")):
            if path != pending:
                path.unlink()


def schema_json(schema: Schema) -> dict[str, Any]:
    """Return a schema as JSON, to be stored and compared."""
    return {
        "observation_space": space_to_json(schema.observation_space),
        "action_space": space_to_json(schema.action_space),
        "reward_dtype": schema.reward_dtype.name,
        "extras": {name: [spec.dtype.name, list(spec.shape)] for name, spec in schema.extras.items()},
        "variable": dict(schema.variable),
    }


def _schema_from_json(schema: Schema, body: Mapping[str, Any]) -> Schema:
    """Return the schema with the extra columns of a journal."""
    extras = {name: ColumnSpec(name, np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in body["extras"].items()}
    return dataclasses.replace(schema, extras=extras, variable=body["variable"])


def _read_journal(path: Path) -> dict[str, Any] | None:
    """Return a journal; None if nothing was acknowledged."""
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


def _pending_rows(column: ColumnWriter, rows: int) -> bytes | None:
    """Return the acknowledged rows that are not in a durable shard; None if all are."""
    first = rows - rows % column.encoding.shard_rows
    in_memory = column.rows - len(column.pending)
    # If the open episode has filled the shard since, these rows are on disk.
    return column.pending[: rows - first].tobytes() if in_memory == first else None


def _whole_episodes(path: Path) -> Iterator[list[Block]]:
    """Yield the blocks of each whole episode in a file of blocks.

    A last block that was being written when the process ended, and an episode without its end, are left out.
    """
    if not path.exists():
        return
    held: list[Block] = []
    with storage_errors(path), path.open("rb") as file:
        largest = path.stat().st_size
        while True:
            size = int.from_bytes(file.read(8), "little")
            digest = file.read(_DIGEST_BYTES)
            body = file.read(min(size, largest))
            if not body or len(body) < size or blake3(body).digest() != digest:
                return
            start = 4 + int.from_bytes(body[:4], "little")
            block: Block = {}
            for name, dtype, shape in msgspec.json.decode(body[4:start]):
                values = np.frombuffer(body, dtype, math.prod(shape), start)
                block[name] = values.reshape(shape)
                start += values.nbytes
            held.append(block)
            if "episodes/lengths" in block:
                yield held
                held = []
