"""How the bytes of a chunk are compressed: one entry of `CODECS` for each codec.

To add a codec, add an entry. Encodings name it, shards are written and read with it, and its
`metadata` is its description in Zarr's `zarr.json`, by which readers recognize it. The entries here
are part of store format 1: the bytes they write and their metadata never change.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Any, Protocol

import numpy as np
from numcodecs import blosc

# A fork breaks Blosc's own pool of threads; orlog's threads work on several chunks instead.
blosc.use_threads = False

BLOCK_BYTES = 2**19
_BLOSC_SIZES = struct.Struct("<4xI4xI")  # of the decoded bytes, and of the chunk


class Codec(Protocol):
    """Turns the values of a chunk into bytes and back, losslessly."""

    def encode(self, values: np.ndarray, *, bit_shuffle: bool) -> bytes:
        """Return the bytes of contiguous little-endian values; equal values give equal bytes."""
        ...

    def decode(self, data: bytes | memoryview, out: np.ndarray) -> None:
        """Decode the bytes of a chunk into a contiguous array of its size.

        Raises ValueError or RuntimeError if the bytes are not a chunk of this size.
        """
        ...

    def metadata(self, dtype: np.dtype[Any], *, bit_shuffle: bool) -> list[dict[str, Any]]:
        """Return Zarr's description: its bytes-to-bytes codecs, without the checksum."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Blosc:
    """One of Blosc's compressors.

    Attributes:
        compressor: Blosc's name for it.
    """

    compressor: str

    def encode(self, values: np.ndarray, *, bit_shuffle: bool) -> bytes:
        """Return one Blosc buffer."""
        shuffle = blosc.BITSHUFFLE if bit_shuffle else blosc.NOSHUFFLE
        level, block = self._level_and_block(bit_shuffle)
        return bytes(blosc.compress(values, self.compressor.encode(), level, shuffle, block))

    def decode(self, data: bytes | memoryview, out: np.ndarray) -> None:
        """Decode one Blosc buffer; its sizes are checked first, since Blosc trusts the header."""
        sizes = _BLOSC_SIZES.unpack_from(data) if len(data) >= _BLOSC_SIZES.size else (0, 0)
        if sizes != (out.nbytes, len(data)):
            raise ValueError(
                f"expected a chunk of {out.nbytes} bytes, compressed to {len(data)}, found one of "
                f"{sizes[0]} bytes, compressed to {sizes[1]}."
            )
        blosc.decompress(data, out)

    def metadata(self, dtype: np.dtype[Any], *, bit_shuffle: bool) -> list[dict[str, Any]]:
        """Return the description of Zarr's `blosc` codec."""
        level, block = self._level_and_block(bit_shuffle)
        configuration = {
            "typesize": dtype.itemsize,
            "cname": self.compressor,
            "clevel": level,
            "shuffle": "bitshuffle" if bit_shuffle else "noshuffle",
            "blocksize": block,
        }
        return [{"name": "blosc", "configuration": configuration}]

    def _level_and_block(self, bit_shuffle: bool) -> tuple[int, int]:
        """Return the compression level and the block size in bytes; 0 leaves the size to Blosc."""
        return (1, BLOCK_BYTES) if self.compressor == "zstd" and bit_shuffle else (3, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Uncompressed:
    """The values themselves."""

    def encode(self, values: np.ndarray, *, bit_shuffle: bool) -> bytes:  # noqa: ARG002 (nothing to shuffle)
        """Return the bytes of the values."""
        return values.tobytes()

    def decode(self, data: bytes | memoryview, out: np.ndarray) -> None:
        """Copy the bytes."""
        if len(data) != out.nbytes:
            raise ValueError(f"expected {out.nbytes} bytes, found {len(data)}.")
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)

    def metadata(self, dtype: np.dtype[Any], *, bit_shuffle: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return no codec."""
        return []


CODECS: dict[str, Codec] = {
    "zstd": Blosc("zstd"),
    "lz4hc": Blosc("lz4hc"),
    "lz4": Blosc("lz4"),
    "none": Uncompressed(),
}
