"""Reads and writes the folders in which TensorDict keeps tensors: no code, no pickle, no link followed.

FOLDER/meta.json             {"shape": [S], "observation": {"dtype": "torch.float32", "shape": [S, 3], ..},
                              "next": {"type": "TensorDict"}, ..}
FOLDER/observation.memmap    the numbers alone, row by row
FOLDER/next/meta.json ..     a TensorDict inside
"""

from __future__ import annotations

import dataclasses
import math
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats._containers.json_documents import read_json_object
from orlog.errors import IntegrityError, SchemaError

META = "meta.json"
FLAGS = ("done", "terminated", "truncated")
IDS = ("collector/traj_ids", "traj_ids", "episode", "next/traj_ids", "next/episode")
NEXT = "next/"
OBSERVATION = "observation"
INFO = "info/"
LARGEST_DOCUMENT = 2**24
BLOCK_BYTES = 2**24  # that are read at once where the rows of environments alternate
LARGEST_ROW_BYTES = 2**26
MOST_ROWS = 2**40
MOST_COLUMNS = 1024
DEEPEST = 16
LONGEST_NAME = 240  # of a file, in bytes
NUMBERS = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
DTYPES = {f"torch.{name}": np.dtype(name) for name in (*NUMBERS, "float16", "float32", "float64")}
UNSAFE = frozenset('/<>:"|?*\\ %\x7f') | {chr(code) for code in range(32)}


@dataclasses.dataclass(frozen=True)
class Batch:
    """Where the rows of one or more environments lie; those of one come after those of the other.

    Attributes:
        shape: Shape of the batch: rows, or environments and rows, or rows and environments.
        environments: How many environments there are.
        steps: Rows of each that are filled.
        in_turn: Whether each row of the file is followed by that of the next environment.
        oldest: The row of each environment that was written first: not 0 in a ring whose first rows were overwritten.
    """

    shape: tuple[int, ...]
    environments: int
    steps: int
    in_turn: bool
    oldest: int = 0

    @property
    def rows(self) -> str:
        """The shape in words."""
        return " x ".join(map(str, self.shape))

    @property
    def count(self) -> int:
        """How many rows are filled."""
        return self.environments * self.steps

    def ends(self) -> np.ndarray:
        """Return the last row of each environment."""
        return self.steps * np.arange(1, self.environments + 1) - 1


class TensorColumn:
    """The rows of a tensor in a file, of one environment after another, each in the order of time.

    Attributes:
        where: What errors call it.
        shape: Its shape: that of a row after the number of rows.
        dtype: What numbers it holds.
    """

    def __init__(
        self, path: Path, where: str, batch: Batch, row: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        """Compare the file with what is said about it.

        Raises SchemaError if it is not there, or a link; IntegrityError if it has another size.
        """
        self.where, self.shape, self.dtype = where, (batch.count, *row), dtype
        self._path, self._batch = path, batch
        shape = (*batch.shape, *row)
        try:
            found = path.lstat()
        except (OSError, ValueError) as error:  # the name may be none
            raise IntegrityError(f"{where}: {path.name!r} is missing.", file=where) from error
        if not stat.S_ISREG(found.st_mode):
            raise SchemaError(f"{where}: {path.name} is a link or a folder, which is not read.")
        wanted = math.prod(shape) * dtype.itemsize
        if found.st_size != wanted:
            raise IntegrityError(
                f"{where}: shape {shape} of {dtype} takes {wanted:,} bytes, and {path.name} has "
                f"{found.st_size:,}.",
                file=where,
            )

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows.

        Raises IntegrityError if the file cannot be read to there any more.
        """
        start, stop, _ = rows.indices(len(self))
        batch = self._batch
        if not (batch.in_turn or batch.oldest):
            return self._read(start, stop)
        values = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        row_bytes = max(1, math.prod(self.shape[1:]) * self.dtype.itemsize)
        block = max(1, BLOCK_BYTES // (row_bytes * batch.environments))
        done = start
        while done < stop:
            environment, step = divmod(done, batch.steps)
            count = min(stop - done, batch.steps - step, block)
            step = (step + batch.oldest) % batch.steps
            count = min(count, batch.steps - step)
            of_all = self._read(step * batch.environments, (step + count) * batch.environments)
            values[done - start :][:count] = of_all[environment :: batch.environments]
            done += count
        return values

    def _read(self, start: int, stop: int) -> np.ndarray:
        """Return rows in the order of the file."""
        width, count = math.prod(self.shape[1:]), max(0, stop - start)
        # Read, not mapped: a mapped file that another program cuts short ends the process.
        try:
            offset = start * width * self.dtype.itemsize
            values = np.fromfile(self._path, self.dtype, count * width, offset=offset)
        except OSError as error:
            raise IntegrityError(f"{self.where}: {error}.", file=self.where) from error
        if len(values) != count * width:
            raise IntegrityError(f"{self.where}: became shorter.", file=self.where)
        if self.dtype == bool and (values.view(np.uint8) > 1).any():
            raise IntegrityError(f"{self.where}: a flag is neither 0 nor 1.", file=self.where)
        return values.reshape(count, *self.shape[1:])


def read_document(path: Path, where: str) -> dict[str, Any]:
    """Return a JSON object.

    Raises SchemaError if there is no such file, it is a link, or holds something else; IntegrityError if it
    is no JSON.
    """
    missing = f"has no {path.name} that can be read."
    return read_json_object(path, where, missing=missing, most_bytes=LARGEST_DOCUMENT)


def tensor_columns(
    folder: Path, where: str, filled: int | None, oldest: int = 0
) -> tuple[dict[str, TensorColumn], list[str], Batch]:
    """Return the tensors with a row for each step by their paths, such as `next/observation`; what is left out; and the batch.

    A batch of two axes is [environments, time] as collectors give it, and [time, environments] in the storage
    of a buffer, of which `filled` rows are filled; None if it is no storage. In a ring the `oldest` row of each
    environment comes first.
    """
    found: dict[str, TensorColumn] = {}
    left_out: list[str] = []
    batch = _batch(_batch_shape(read_document(folder / META, where), where), filled, where)
    batch = dataclasses.replace(batch, oldest=oldest)
    _collect(folder, where, "", batch, found, left_out)
    return found, left_out, batch


def written_rows(tensors: Mapping[str, TensorColumn]) -> int:
    """Return how many rows of a storage were written: what follows is zeros to the end, as it was made.

    Zeros that the row before them leads to may be steps, as where states are numbers; and so may zeros alone.
    """
    count = stop = len(next(iter(tensors.values())))
    row_bytes = sum(one.dtype.itemsize * math.prod(one.shape[1:]) for one in tensors.values())
    block, last = max(1, BLOCK_BYTES // row_bytes), -1
    while stop and last < 0:
        start = max(0, stop - block)
        for one in tensors.values():
            rows = one[start:stop].reshape(stop - start, -1).view(np.uint8).any(axis=1)
            last = max(last, *(start + np.flatnonzero(rows)[-1:]).tolist(), -1)
        stop = start
    if last < 0:
        return count
    after = {name: one for name, one in tensors.items() if name.startswith(NEXT)}
    after.pop(f"{NEXT}reward", None)
    leads_on = not any(one[last : last + 1].view(np.uint8).any() for one in after.values())
    has_states = any(one.dtype != bool for one in after.values())
    return count if has_states and leads_on else last + 1


def _collect(
    folder: Path,
    where: str,
    prefix: str,
    batch: Batch,
    found: dict[str, TensorColumn],
    left_out: list[str],
) -> None:
    """Add the tensors of a folder and of those in it."""
    here = f"{where}, {prefix.rstrip('/')}" if prefix else where
    if folder.is_symlink() or prefix.count("/") > DEEPEST:
        raise SchemaError(f"{here}: a link, or nested too deeply; not read.")
    body = read_document(folder / META, here)
    if _shape(body, here)[: len(batch.shape)] != batch.shape:
        raise SchemaError(f"{here}: {META} says {_shape(body, here)}, expected {batch.rows} rows.")
    for key, said in body.items():
        if not isinstance(said, dict):  # of the TensorDict itself: shape, device, names
            continue
        path = folder / file_name(key)
        if len(path.name.encode(errors="replace")) > LONGEST_NAME:
            raise SchemaError(f"{here}: the name {key!r:.50} is too long.")
        if said.get("type") == "TensorDict":
            _collect(path, where, f"{prefix}{key}/", batch, found, left_out)
            continue
        dtype = DTYPES.get(str(said.get("dtype")))
        if "type" in said or dtype is None or said.get("is_nested"):
            left_out.append(f"{prefix}{key}")
            continue
        shape = _shape(said, f"{where}, {prefix}{key}")
        row = shape[len(batch.shape) :]
        if shape[: len(batch.shape)] != batch.shape:
            raise SchemaError(f"{where}, {prefix}{key}: expected {batch.rows} rows, found {shape}.")
        row_bytes = math.prod(row) * dtype.itemsize
        if row_bytes == 0:
            left_out.append(f"{prefix}{key}")
            continue
        if row_bytes > LARGEST_ROW_BYTES or len(found) == MOST_COLUMNS:
            raise SchemaError(f"{where}, {prefix}{key}: too large, or too many.")
        file = path.with_name(f"{path.name}.memmap")
        found[f"{prefix}{key}"] = TensorColumn(file, f"{where}, {prefix}{key}", batch, row, dtype)


def _batch_shape(body: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """Return the shape of a TensorDict's batch."""
    shape = _shape(body, where)
    if len(shape) not in (1, 2) or not 0 < math.prod(shape) <= MOST_ROWS:
        raise SchemaError(
            f"{where}: expected a row for each step, or for each environment and step, found a batch of shape "
            f"{shape}. Save the steps of each environment one after another: "
            "TensorDict.load_memmap(..).flatten(0, -2).memmap(..), if time is the last axis."
        )
    return shape


def _batch(shape: tuple[int, ...], filled: int | None, where: str) -> Batch:
    """Return where rows lie, of a storage as far as it is filled.

    Raises SchemaError if environments are filled to different lengths.
    """
    environments = math.prod(shape[1:] if filled is not None else shape[:-1])
    count = math.prod(shape) if filled is None else min(filled, math.prod(shape))
    if count % environments:
        raise SchemaError(
            f"{where}: {filled:,} filled rows are not as many of each of {environments:,} environments."
        )
    in_turn = filled is not None and environments > 1
    return Batch(shape, environments, count // environments, in_turn)


def _shape(body: Mapping[str, Any], where: str) -> tuple[int, ...]:
    shape = body.get("shape")
    if not isinstance(shape, list) or not all(
        type(one) is int and 0 <= one <= MOST_ROWS for one in shape
    ):
        raise SchemaError(f"{where}: expected a shape, found {shape!r:.50}.")
    return tuple(shape)


def file_name(key: str) -> str:
    """Return the name of a file as TensorDict makes it of a key; it never leaves the folder."""
    if key in ("", ".", ".."):
        return "%2E" * len(key) or "%"
    return "".join(f"%{ord(one):02X}" if one in UNSAFE else one for one in key)
