"""Tables of a LeRobotDataset: rows of all features in Parquet files, images in them as PNG."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from orlog.datasets.formats.lerobot.exports import image_shape
from orlog.datasets.formats.lerobot.image_tables import encoded_images
from orlog.datasets.formats.lerobot.metadata import filled
from orlog.manifests.columns import ColumnSpec

FILES_OF_CHUNK = 1000
GROUP_BYTES = 2**24
MOST_HELD = 100


def numbered(template: str, number: int, camera: str = "") -> str:
    """Return the path of a file by its number, which is that of an episode where each has a file of its own."""
    chunk, file = divmod(number, FILES_OF_CHUNK)
    fields: dict[str, int | str] = {"chunk_index": chunk, "file_index": file, "video_key": camera}
    return filled(template, fields | {"episode_chunk": chunk, "episode_index": number})


class TableFiles:
    """Writes rows into Parquet files of bounded size, all rows that come together into one of them."""

    def __init__(
        self, root: Path, template: str, largest: int, where: str, kinds: str = ""
    ) -> None:
        """Take the path of the files, and from how many bytes on one is full: with 0 each call of `write` fills one.

        `kinds` is what Hugging Face's datasets are told of the columns, as JSON.
        """
        self._root, self._template, self._largest, self._where = root, template, largest, where
        self._kinds = kinds
        self._number, self._held_bytes = -1, 0
        self._held: list[Mapping[str, Any]] = []
        self._file: BinaryIO | None = None
        self._writer: Any = None

    def next_place(self) -> tuple[int, int]:
        """Return chunk and file of the rows that are written next."""
        if self._file is None or self._file.tell() >= self._largest:
            self.close()
            self._number += 1
            path = self._root / numbered(self._template, self._number)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
        return divmod(self._number, FILES_OF_CHUNK)

    def write(self, rows: Mapping[str, Any]) -> None:
        """Write rows of all columns; all calls have the same."""
        self._held.append(rows)
        self._held_bytes += _size(rows)
        if self._held_bytes >= GROUP_BYTES or len(self._held) == MOST_HELD:
            self._flush()

    def close(self) -> None:
        """Finish the file."""
        self._flush()
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()
        self._writer = self._file = None

    def _flush(self) -> None:
        """Write what is held, in groups of bounded size."""
        import pyarrow as pa
        import pyarrow.parquet

        if not self._held:
            return
        rows = {name: _joined([one[name] for one in self._held]) for name in self._held[0]}
        count = len(next(iter(rows.values())))
        step = max(1, GROUP_BYTES * count // max(1, self._held_bytes))
        for start in range(0, count, step):
            columns = {
                name: _column(values[start : start + step], f"{self._where}, {name}")
                for name, values in rows.items()
            }
            table = pa.table(columns)
            if self._kinds:
                table = table.replace_schema_metadata({"huggingface": self._kinds})
            if self._writer is None:
                self._writer = pyarrow.parquet.ParquetWriter(
                    self._file, table.schema, write_page_checksum=True
                )
            self._writer.write_table(table)
        self._held, self._held_bytes = [], 0


def _size(rows: Mapping[str, Any]) -> int:
    return sum(one.nbytes for one in rows.values() if isinstance(one, np.ndarray))


def _joined(parts: list[Any]) -> Any:
    """Return rows that follow each other as one array, or one list."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [one for part in parts for one in part]


def kinds_of(features: Mapping[str, Any]) -> str:
    """Return what Hugging Face's datasets are told of columns, by what `info.json` says of them."""
    kinds: dict[str, Any] = {}
    for name, feature in features.items():
        shape, value = feature["shape"], {"dtype": feature["dtype"], "_type": "Value"}
        if feature["dtype"] == "image":
            kinds[name] = {"_type": "Image"}
        elif feature["dtype"] == "video":
            continue
        elif shape == [1]:
            kinds[name] = value
        elif len(shape) == 1:
            kinds[name] = {"feature": value, "length": shape[0], "_type": "Sequence"}
        else:
            kinds[name] = {**value, "shape": shape, "_type": f"Array{len(shape)}D"}
    return json.dumps({"info": {"features": kinds}})


def are_images(values: np.ndarray) -> bool:
    """Return whether rows are written as images."""
    return image_shape(ColumnSpec("", values.dtype, values.shape[1:])) is not None


def _column(values: Any, where: str) -> Any:
    """Return rows as an array of Arrow: images, texts or lists of texts, numbers, nested lists of them."""
    import pyarrow as pa

    if not isinstance(values, np.ndarray):
        return pa.array(
            values, pa.list_(pa.string()) if isinstance(values[0], list) else pa.string()
        )
    if are_images(values):
        return encoded_images(values, where)
    shape = values.shape[1:]
    found = pa.array(np.ascontiguousarray(values).reshape(-1))
    if math.prod(shape) == 1 and len(shape) < 2:
        return found
    if len(shape) == 1:
        return pa.FixedSizeListArray.from_arrays(found, shape[0])
    for size in reversed(shape):
        offsets = np.arange(0, len(found) + 1, size, dtype=np.int32)
        found = pa.ListArray.from_arrays(offsets, found)
    return found
