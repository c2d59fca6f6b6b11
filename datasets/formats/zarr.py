"""Reads replay buffers in Zarr, as Diffusion Policy (Chi and others, 2023) and its relatives store demonstrations.

    data/NAME (N, ..)           the steps of all episodes, one after the other
    data/action (N, n)
    meta/episode_ends (E,)      the rows up to which each episode goes

A folder or a Zip archive, in Zarr's version 2 or 3. All arrays of `data` but the action, and a reward where there is
one, become observations by their names. https://github.com/real-stanford/diffusion_policy
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np

from orlog.datasets.formats._containers.zarr_arrays import is_zarr, names_in_zarr
from orlog.datasets.formats._shared.flat_writing import (
    demonstration_losses,
    file_stem,
    flat_columns,
)
from orlog.datasets.formats._shared.mapped_arrays import Known, open_known
from orlog.datasets.formats.formats import Format
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import needing

ENDS = "meta/episode_ends"
CHUNK_BYTES = 2**20
KNOWN = Known(
    columns={"action": "data/action", "reward": "data/reward", "observation/*": "data/*"},
    episode=ENDS,
)


def _recognizes(files: Sequence[Path]) -> bool:
    return all(is_zarr(one) and {ENDS, "data/action"} <= names_in_zarr(one) for one in files)


def _write(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write `NAME.zarr`, a replay buffer in version 2, which Diffusion Policy opens.

    A filter of numcodecs, as old as version 2, keeps a checksum in each chunk; every reader compares it.
    """
    with needing("to write Zarr needs zarr", "orlog[formats]"):
        import zarr
    checks: dict[str, Any] = {"filters": [numcodecs.CRC32()]}
    root = zarr.open_group(folder / f"{file_stem(dataset)}.zarr", mode="w", zarr_format=2)
    arrays: dict[str, Any] = {}
    ends: list[int] = []
    for rows in flat_columns(dataset, progress):
        start = ends[-1] if ends else 0
        ends.append(start + len(rows["rewards"]))
        for column, values in rows.items():
            name = _place(column)
            if name is not None and name not in arrays:
                row_bytes = max(1, values.dtype.itemsize * math.prod(values.shape[1:]))
                chunk = min(dataset.total_steps, max(1, CHUNK_BYTES // row_bytes))
                arrays[name] = root.create_array(
                    name,
                    shape=(dataset.total_steps, *values.shape[1:]),
                    chunks=(chunk, *values.shape[1:]),
                    dtype=values.dtype,
                    **checks,
                )
            if name is not None:
                arrays[name][start : ends[-1]] = values
    root.create_array(ENDS, data=np.array(ends, np.int64), **checks)


def _place(column: str) -> str | None:
    """Return the array that a column becomes; None for one that has no place."""
    if column.startswith("observations"):
        return f"data/{column.partition('/')[2] or 'state'}"
    return {"actions": "data/action", "rewards": "data/reward"}.get(column)


FORMAT = Format(
    name="zarr",
    open=functools.partial(open_known, KNOWN),
    recognizes=_recognizes,
    extensions=("", ".zarr", ".zip"),
    options=("horizon", "ends"),
    shares=True,
    write=_write,
    losses=lambda dataset: demonstration_losses(
        dataset, "replay buffers", own=("action", "reward")
    ),
    reads=("**",),
)
