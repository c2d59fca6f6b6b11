"""The large files that `benchmarks/readers.py --memory` imports: zeros, which take little room on the disk."""

from __future__ import annotations

import contextlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np

import orlog

LENGTH, ROW, BLOCK, HOLE = 1000, 512, 2**13, 2**16
ZEROS = bytes(HOLE)


class Sparse(io.RawIOBase):
    """A new file in which zeros take no room, as the system lets files have holes."""

    def __init__(self, path: Path) -> None:
        """Open the file."""
        self._file = path.open("wb", buffering=0)

    def writable(self) -> bool:
        """Say that it is there to be written."""
        return True

    def seekable(self) -> bool:
        """Say that places in it can be gone to."""
        return True

    def seek(self, place: int, whence: int = 0) -> int:
        """Go to a place."""
        return self._file.seek(place, whence)

    def write(self, data: Any) -> int:
        """Write bytes, and go past blocks that are zeros."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), HOLE):
            block = view[start : start + HOLE]
            if block == ZEROS[: len(block)]:
                self._file.seek(len(block), os.SEEK_CUR)
            else:
                self._file.write(block)
        return len(view)

    def close(self) -> None:
        """End the file where it was written to last."""
        if not self.closed:
            self._file.truncate(self._file.seek(0, os.SEEK_CUR))
            self._file.close()
        super().close()


def _hdf5(folder: Path, steps: int, options: dict[str, Any]) -> Path:
    """Write D4RL's layout, zeros but for the ends of episodes."""
    path = folder / "large.hdf5"
    # Room for all zeros at once, which the system gives without writing any.
    room = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    room.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    room.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w") as file:
        shapes = {"observations": (steps, ROW), "actions": (steps, 2), "rewards": (steps,)}
        for key, shape in shapes.items():
            if not options:
                file.create_dataset(key, shape, "f4", dcpl=room)
                continue
            node = file.create_dataset(key, shape, "f4", chunks=(BLOCK // 4, *shape[1:]), **options)
            for start in range(0, steps, BLOCK):
                node[start : start + BLOCK] = 0
        file["terminals"] = np.zeros(steps, bool)
        file["timeouts"] = np.arange(steps) % LENGTH == LENGTH - 1
    return path


def _robomimic(folder: Path, steps: int) -> Path:
    """Write ten demonstrations of zeros."""
    path = folder / "large.hdf5"
    count = steps // 10
    with h5py.File(path, "w") as file:
        for number in range(10):
            group = file.create_group(f"data/demo_{number}")
            for key, shape in {
                "actions": (count, 2),
                "rewards": (count,),
                "dones": (count,),
                "obs/state": (count, ROW // 2),
                "next_obs/state": (count, ROW // 2),
            }.items():
                chunks = (BLOCK // 4, *shape[1:])
                node = group.create_dataset(key, shape, "f4", chunks=chunks, compression="gzip", compression_opts=1)
                for start in range(0, count, BLOCK):
                    node[start : start + BLOCK] = 0
    return path


def _npz(folder: Path, steps: int, compression: int) -> Path:
    """Write arrays of zeros as NumPy does, but piece by piece."""
    path = folder / "large.npz"
    ends = np.arange(steps) % LENGTH == LENGTH - 1
    shapes = {"observations": (steps, ROW), "actions": (steps, 2), "rewards": (steps,)}
    with contextlib.closing(Sparse(path)) as file, zipfile.ZipFile(file, "w", compression, compresslevel=1) as archive:
        for name, shape in shapes.items():
            head = {"descr": "<f4", "fortran_order": False, "shape": shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array_header_1_0(stream, head)
                left = 4 * int(np.prod(shape))
                while left:
                    stream.write(bytes(min(left, 2**22)))
                    left -= min(left, 2**22)
        for name, values in (("terminals", np.zeros(steps, bool)), ("timeouts", ends)):
            with archive.open(f"{name}.npy", "w") as stream:
                np.lib.format.write_array(stream, values)
    return path


def _parquet(folder: Path, steps: int) -> Path:
    """Write a table of zeros, not packed."""
    import pyarrow as pa
    import pyarrow.parquet

    path = folder / "large.parquet"
    rows = 50_000
    columns = {
        "observation": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * ROW, np.float32)), ROW),
        "action": pa.array(np.zeros(rows)),
    }
    schema = pa.schema([*((name, column.type) for name, column in columns.items()), ("episode", pa.int64())])
    with (
        contextlib.closing(Sparse(path)) as file,
        pyarrow.parquet.ParquetWriter(file, schema, use_dictionary=False, compression="none") as writer,
    ):
        for start in range(0, steps, rows):
            table = pa.table({**columns, "episode": (start + np.arange(rows)) // LENGTH})
            writer.write_table(table, row_group_size=rows)
    return path


def _rlds(folder: Path, steps: int) -> Path:
    """Export one short episode, and write its record with zeros in it as often as steps ask for."""
    box = gymnasium.spaces.Box
    with orlog.DatasetWriter(
        "bench/zeros-v0",
        observation_space=box(-np.inf, np.inf, (ROW,), np.float32),
        action_space=box(-np.inf, np.inf, (2,), np.float32),
        reward_dtype=np.float32,
    ) as writer:
        writer.add_episode(
            orlog.Episode(
                observations=np.zeros((LENGTH + 1, ROW), np.float32),
                actions=np.zeros((LENGTH, 2), np.float32),
                rewards=np.zeros(LENGTH, np.float32),
                terminations=np.zeros(LENGTH, bool),
                truncations=np.arange(LENGTH) == LENGTH - 1,
            )
        )
    orlog.export_dataset("bench/zeros-v0", folder / "out", to="rlds", lossy=True)
    (info,) = folder.rglob("dataset_info.json")
    (records,) = info.parent.glob("*.tfrecord*")
    record = records.read_bytes()
    episodes = steps // LENGTH
    with contextlib.closing(Sparse(records)) as file:
        for _ in range(episodes):
            file.write(record)
    said = json.loads(info.read_text())
    (split,) = said["splits"]
    split["shardLengths"], split["numBytes"] = [str(episodes)], str(episodes * len(record))
    info.write_text(json.dumps(said))
    return folder / "out"


LARGE: dict[str, Callable[[Path, int], Path]] = {
    "d4rl": lambda folder, steps: _hdf5(folder, steps, {"compression": "gzip", "compression_opts": 1}),
    "d4rl, not packed": lambda folder, steps: _hdf5(folder, steps, {}),
    "npz": lambda folder, steps: _npz(folder, steps, zipfile.ZIP_DEFLATED),
    "npz, not packed": lambda folder, steps: _npz(folder, steps, zipfile.ZIP_STORED),
    "robomimic": _robomimic,
    "rlds": _rlds,
    "table": _parquet,
}
