"""The codec `orlog.difference`, with which Zarr itself reads images; registered by an entry point.

    stored[i] = values[i] - values[i - 1]   along one axis, modulo 256; values[-1] = 0

orlog itself needs neither this module nor Zarr: `shards.py` reads and writes the same bytes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from zarr.abc.codec import ArrayArrayCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer


@dataclasses.dataclass(frozen=True)
class DifferenceCodec(ArrayArrayCodec):
    """Replaces each uint8 by its difference from the previous one along an axis, modulo 256."""

    axis: int

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DifferenceCodec:
        """Return the codec with this JSON form."""
        return cls(axis=int(data["configuration"]["axis"]))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"name": "orlog.difference", "configuration": {"axis": self.axis}}

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:  # noqa: ARG002 (Zarr's signature)
        """Return the size of the output, which is that of the input."""
        return input_byte_length

    async def _encode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:  # noqa: ARG002
        values = np.asarray(chunk_array.as_ndarray_like())
        first = np.take(values, [0], self.axis)
        differences: Any = np.concatenate([first, np.diff(values, axis=self.axis)], self.axis)
        return chunk_array.__class__.from_ndarray_like(differences)

    async def _decode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:  # noqa: ARG002
        differences = np.asarray(chunk_array.as_ndarray_like())
        values: Any = np.add.accumulate(differences, self.axis, dtype=np.uint8)
        return chunk_array.__class__.from_ndarray_like(values)
