"""How a column's rows become chunks: a rule by dtype and row shape, which authors can override.

| rows | a chunk holds | before compression | compressed by |
|---|---|---|---|
| images: uint8, 2 or 3 dimensions, both sides of 16 or more | one frame, or small ones within 8 KiB | difference to the row of pixels above, bit shuffle | LZ4HC |
| images that zstd alone makes smaller, on 16 frames of the first shard | the same | nothing | zstd |
| text: the UTF-8 bytes of `@values` | up to 1 MiB | nothing | zstd |
| everything else | up to 1 MiB, a power of two of rows | bit shuffle | zstd |

A shard holds up to 16 MiB. Everything is lossless.

Measured on numbers: shuffled in blocks of 512 KiB and compressed at zstd's level 1, they take half
of the time and 0.98 of the size of level 3 with Blosc's default blocks.

Measured on 64 x 64 x 3 frames: with sensor noise, LZ4HC on differences to the row above reaches
0.56 of the raw size at 10 microseconds a frame; zstd needs 23 for 0.51. Undoing such differences
costs a quarter of undoing those to the left, since whole rows of pixels are added at once. Rendered
frames, with their flat areas, take 0.62 that way and 0.33 with zstd alone, at 19 microseconds.

A column's `zarr.json` states its encoding, and is compared on reading. What no value depends on may differ there:
names of dimensions, attributes, and the number for chunks that are missing, since none may be.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from typing import Any

import numpy as np
from numcodecs import blosc

from orlog.errors import clause
from orlog.manifests.columns import ColumnSpec, is_values
from orlog.manifests.documents import parse_json

# A fork breaks Blosc's own pool of threads; orlog's threads work on several chunks instead.
blosc.use_threads = False

# Part of store format 1: what is written by these names, and its description, never change.
COMPRESSIONS = ("zstd", "lz4hc", "lz4", "none")
BLOCK_BYTES = 2**19
CHUNK_BYTES = 2**20
SHARD_BYTES = 2**24
FRAME_BYTES = 2**13
LARGEST_CHUNK_BYTES = 2**28
LARGEST_SHARD_BYTES = 2**30
MOST_CHUNKS = 2**20
_SMALLEST_SIDE = 16
LARGEST_METADATA = 2**20
_FREE = {"attributes", "dimension_names", "fill_value"}
_BLOSC_SIZES = struct.Struct("<4xI4xI")  # of the decoded bytes, and of the chunk


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How the rows of one column are cut and compressed; always lossless.

    Attributes:
        chunk_rows: Rows in a chunk, the unit of random reading.
        chunks_per_shard: Chunks in a file.
        compression: One of `COMPRESSIONS`.
        bit_shuffle: Whether bits are transposed first, which suits numbers and not text.
        difference_axis: Axis of a chunk along which each value is replaced by its difference from
            the previous one, modulo 256; None for no difference. For uint8 only.
    """

    chunk_rows: int
    chunks_per_shard: int
    compression: str = "zstd"
    bit_shuffle: bool = True
    difference_axis: int | None = None

    @property
    def shard_rows(self) -> int:
        """Rows in a shard."""
        return self.chunk_rows * self.chunks_per_shard

    def check(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Refuse an encoding that format 1 does not allow."""
        row_bytes = max(1, dtype.itemsize * math.prod(shape))
        most_rows = max(1, LARGEST_CHUNK_BYTES // row_bytes)
        if not 1 <= self.chunk_rows <= most_rows:
            raise ValueError(f"a chunk holds 1 to {most_rows} rows of {row_bytes} bytes, found {self.chunk_rows}.")
        most_chunks = min(MOST_CHUNKS, LARGEST_SHARD_BYTES // (self.chunk_rows * row_bytes))
        if not 1 <= self.chunks_per_shard <= max(1, most_chunks):
            raise ValueError(
                f"a shard holds 1 to {max(1, most_chunks)} of these chunks, found {self.chunks_per_shard}."
            )
        if self.compression not in COMPRESSIONS:
            raise ValueError(f"compression is one of {', '.join(COMPRESSIONS)}, found {self.compression!r:.40}.")
        axis = self.difference_axis
        if axis is not None and (type(axis) is not int or dtype != np.uint8 or not 1 <= axis <= len(shape)):
            raise ValueError(
                f"differences need uint8 and an axis of a row, 1 to {len(shape)}, found {dtype} and {axis!r:.40}."
            )


def compress(values: np.ndarray, encoding: Encoding) -> bytes:
    """Return the bytes of contiguous little-endian values; equal values give equal bytes."""
    if encoding.compression == "none":
        return values.tobytes()
    shuffle = blosc.BITSHUFFLE if encoding.bit_shuffle else blosc.NOSHUFFLE
    level, block = _level_and_block(encoding.compression, encoding.bit_shuffle)
    return bytes(blosc.compress(values, encoding.compression.encode(), level, shuffle, block))


def decompress(data: bytes | memoryview, out: np.ndarray, compression: str) -> None:
    """Decode the bytes of a chunk into a contiguous array; sizes are checked, since Blosc trusts its header."""
    if compression == "none":
        if len(data) != out.nbytes:
            raise ValueError(f"expected {out.nbytes} bytes, found {len(data)}.")
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
        return
    sizes = _BLOSC_SIZES.unpack_from(data) if len(data) >= _BLOSC_SIZES.size else (0, 0)
    if sizes != (out.nbytes, len(data)):
        raise ValueError(
            f"expected a chunk of {out.nbytes} bytes, compressed to {len(data)}, found one of "
            f"{sizes[0]} bytes, compressed to {sizes[1]}."
        )
    blosc.decompress(data, out)


def codec_metadata(compression: str, dtype: np.dtype[Any], *, bit_shuffle: bool) -> list[dict[str, Any]]:
    """Return Zarr's description of a compression: its bytes-to-bytes codecs, without the checksum."""
    if compression == "none":
        return []
    level, block = _level_and_block(compression, bit_shuffle)
    configuration = {
        "typesize": dtype.itemsize,
        "cname": compression,
        "clevel": level,
        "shuffle": "bitshuffle" if bit_shuffle else "noshuffle",
        "blocksize": block,
    }
    return [{"name": "blosc", "configuration": configuration}]


def _level_and_block(compression: str, bit_shuffle: bool) -> tuple[int, int]:
    """Return the compression level and the block size in bytes; 0 leaves the size to Blosc."""
    return (1, BLOCK_BYTES) if compression == "zstd" and bit_shuffle else (3, 0)


def choose_encoding(
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    *,
    chunk_rows: int | None = None,
    compression: str | None = None,
) -> Encoding:
    """Return the encoding of a column by the rule above; `chunk_rows`, `compression` override it.

    Raises:
        ValueError: a chunk would hold no rows or over 256 MiB, or there is no such compression.
    """
    row_bytes = max(1, dtype.itemsize * math.prod(shape))
    height = _height_axis(dtype, shape)
    is_text = is_values(name) and dtype == np.uint8 and shape == ()
    rows = _power_of_two_within(CHUNK_BYTES if height is None else FRAME_BYTES, row_bytes)
    if chunk_rows is not None:
        rows = chunk_rows
    encoding = Encoding(
        chunk_rows=rows,
        chunks_per_shard=_power_of_two_within(SHARD_BYTES, max(1, rows) * row_bytes),
        compression=compression or ("zstd" if height is None else "lz4hc"),
        bit_shuffle=not is_text,
        difference_axis=None if height is None or compression == "none" else height + 1,
    )
    try:
        encoding.check(dtype, shape)
    except ValueError as error:
        raise ValueError(f"column {name}: {clause(error)}.") from error
    return encoding


def _power_of_two_within(limit: int, size: int) -> int:
    return 1 << (max(1, limit // size).bit_length() - 1)


def _height_axis(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int | None:
    """Return the vertical axis of a frame; None if rows are not images."""
    if dtype != np.uint8 or len(shape) not in (2, 3):
        return None
    first_is_channels = len(shape) == 3 and shape[0] < shape[2]
    axis = 1 if first_is_channels else 0
    return axis if min(shape[axis], shape[axis + 1]) >= _SMALLEST_SIDE else None


def array_metadata(spec: ColumnSpec, rows: int, encoding: Encoding, *, smallest: int = 1) -> dict[str, Any]:
    """Return the content of a column's `zarr.json`, in zarr-python's order."""
    dtype = spec.dtype
    row = [max(smallest, size) for size in spec.shape]
    little: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
    number_codec = little if dtype.itemsize > 1 else {"name": "bytes"}
    codecs: list[dict[str, Any]] = [number_codec]
    if encoding.difference_axis is not None:
        axis = {"axis": encoding.difference_axis}
        codecs.insert(0, {"name": "orlog.difference", "configuration": axis})
    codecs += codec_metadata(encoding.compression, dtype, bit_shuffle=encoding.bit_shuffle)
    codecs.append({"name": "crc32c"})
    sharding = {
        "chunk_shape": [encoding.chunk_rows, *row],
        "codecs": codecs,
        "index_codecs": [little, {"name": "crc32c"}],
        "index_location": "end",
    }
    shard_shape = {"chunk_shape": [encoding.shard_rows, *row]}
    zero = {"b": False, "f": 0.0}.get(dtype.kind, 0)
    return {
        "shape": [rows, *spec.shape],
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": shard_shape},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": zero,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def read_encoding(data: bytes, spec: ColumnSpec, rows: int) -> Encoding:
    """Return the encoding that a `zarr.json` states; nothing else that values depend on may differ from format 1."""
    try:
        body = parse_json(data)
        sharding = body["codecs"][0]["configuration"]
        chunk_rows = sharding["chunk_shape"][0]
        shard_rows = body["chunk_grid"]["configuration"]["chunk_shape"][0]
        codecs = sharding["codecs"]
        is_image = codecs[0]["name"] == "orlog.difference"
        axis = codecs[0]["configuration"]["axis"] if is_image else None
        compression, bit_shuffle = _compression_of(codecs[2 if is_image else 1 : -1], spec)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"not the metadata of an array of format 1: {error!r}.") from error
    if type(chunk_rows) is not int or type(shard_rows) is not int or chunk_rows < 1:
        raise ValueError("chunks without rows.")
    encoding = Encoding(
        chunk_rows=chunk_rows,
        chunks_per_shard=max(1, shard_rows // chunk_rows),
        compression=compression,
        bit_shuffle=bit_shuffle,
        difference_axis=axis,
    )
    encoding.check(spec.dtype, spec.shape)
    stated = {"storage_transformers": [], **_without_free(body)}
    allowed, before = (_without_free(array_metadata(spec, rows, encoding, smallest=smallest)) for smallest in (1, 0))
    if stated not in (allowed, before):
        wrong = [key for key in {**allowed, **stated} if stated.get(key) != allowed.get(key)]
        raise ValueError(
            f"its metadata do not describe {rows} rows of {spec.dtype} {spec.shape} as format 1 does: "
            f"see {', '.join(wrong):.200}."
        )
    return encoding


def _without_free(body: dict[str, Any]) -> dict[str, Any]:
    """Return the entries that values depend on; Zarr marks further ones that readers may pass over."""
    return {
        key: value
        for key, value in body.items()
        if key not in _FREE and not (isinstance(value, dict) and value.get("must_understand") is False)
    }


def _compression_of(described: list[Any], spec: ColumnSpec) -> tuple[str, bool]:
    for name in COMPRESSIONS:
        for bit_shuffle in (True, False):
            if codec_metadata(name, spec.dtype, bit_shuffle=bit_shuffle) == described:
                return name, bit_shuffle
    raise ValueError(f"no codec of this orlog is described by {json.dumps(described):.200}.")


def to_bytes(body: dict[str, Any]) -> bytes:
    """Return the bytes of a `zarr.json`."""
    return json.dumps(body, indent=2).encode()
