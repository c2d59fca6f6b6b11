"""How an array of Zarr is stored: its chunks, and what undoes the codecs that packed them, in bounded memory.

What a chunk claims is compared with what the array says of it before it is decoded, and no codec is looked for
among plug-ins. https://zarr-specs.readthedocs.io
"""

from __future__ import annotations

import bz2
import itertools
import lzma
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import google_crc32c
import numcodecs
import numpy as np

from orlog.errors import SchemaError

LARGEST_CHUNK = 2**28
FILTERS = ("crc32", "delta", "fixedscaleoffset", "shuffle")
NO_CHUNK = 2**64 - 1


Box = tuple[slice, ...]
Decode = Callable[[bytes, list[Box]], np.ndarray]


class StoredArray:
    """How an array is stored.

    Attributes:
        shape: Its shape.
        dtype: What numbers it holds.
        chunks: Shape of what one file holds.
        key: Path of a chunk, by its place in the grid.
        fill: The value of what is not stored.
        decode: Turns the bytes of a file into values of the shape `chunks`, and adds which boxes of them the file
            does not hold, where it is made of several chunks.
    """

    def __init__(
        self,
        shape: Any,
        dtype: np.dtype[Any],
        chunks: Any,
        key: Callable[[Sequence[int]], str],
        fill: Any,
        decode: Decode,
    ) -> None:
        self.shape, self.chunks = tuple(map(int, shape)), tuple(map(int, chunks))
        self.dtype, self.key, self.decode = dtype, key, decode
        self.fill = np.zeros((), dtype) if fill is None else np.asarray(fill).astype(dtype)


def array_of_version_2(body: Mapping[str, Any], where: str) -> StoredArray:
    """Return how an array of version 2 is stored."""
    dtype = np.dtype(str(body["dtype"]))
    filters, compressor = body.get("filters") or [], body.get("compressor")
    for one in filters:
        if one["id"] not in FILTERS:
            raise SchemaError(f"{where}: the filter {one['id']!r} is not used.")
    undo = [numcodecs.get_codec(dict(one)) for one in reversed(filters)]
    shape, order = [int(size) for size in body["chunks"]], body.get("order", "C")
    if order not in ("C", "F"):
        raise SchemaError(f"{where}: the order {order!r} is not known.")
    if dtype.hasobject or dtype.kind not in "biuf":
        raise SchemaError(f"{where}: expected numbers, found {dtype}.")
    size = math.prod(shape) * dtype.itemsize

    def decode(data: bytes, _blanks: list[Box]) -> np.ndarray:
        # A filter may have stored other numbers than those of the array.
        unpacked: Any = _unpacked(data, compressor, LARGEST_CHUNK if undo else size, where)
        for codec in undo:
            unpacked = codec.decode(unpacked)
        return np.frombuffer(unpacked, dtype).reshape(shape, order=order)

    separator = body.get("dimension_separator", ".")
    fill = body.get("fill_value")
    return StoredArray(
        body["shape"],
        dtype,
        shape,
        lambda place: separator.join(map(str, place)) or "0",
        _number(fill),
        decode,
    )


def array_of_version_3(body: Mapping[str, Any], where: str) -> StoredArray:
    """Return how an array of version 3 is stored."""
    grid, keys = body["chunk_grid"], body["chunk_key_encoding"]
    if grid["name"] != "regular" or body.get("storage_transformers"):
        raise SchemaError(f"{where}: stored in a way that is not read ({grid['name']}).")
    if not isinstance(body["data_type"], str):
        raise SchemaError(f"{where}: expected numbers, found {str(body['data_type'])[:50]}.")
    kind = body["data_type"]
    if kind != "bool" and not kind.startswith(("int", "uint", "float")):
        raise SchemaError(f"{where}: expected numbers, found {kind}.")
    dtype = np.dtype(kind)
    shape = [int(size) for size in grid["configuration"]["chunk_shape"]]
    fill = _number(body.get("fill_value"))
    decode = _codecs(body["codecs"], shape, dtype, fill, where)
    settings = keys.get("configuration", {})
    if keys["name"] == "v2":
        separator, start = settings.get("separator", "."), []
    else:
        separator, start = settings.get("separator", "/"), ["c"]
    return StoredArray(
        body["shape"],
        dtype,
        shape,
        lambda place: separator.join([*start, *map(str, place)]),
        fill,
        decode,
    )


def _codecs(codecs: Any, shape: list[int], dtype: np.dtype[Any], fill: Any, where: str) -> Decode:
    """Return what undoes the codecs of version 3."""
    packers, order, stored = [], list(range(len(shape))), dtype
    for codec in codecs:
        name, settings = codec["name"].removeprefix("numcodecs."), codec.get("configuration", {})
        if name == "sharding_indexed":
            if len(codecs) != 1:
                raise SchemaError(f"{where}: shards inside of {codecs[0]['name']} are not read.")
            return _shards(settings, shape, dtype, fill, where)
        if name == "transpose":
            order = [order[int(axis)] for axis in settings["order"]]
        elif name == "bytes":
            stored = dtype.newbyteorder(
                "<" if settings.get("endian", "little") == "little" else ">"
            )
        else:
            packers.append({**settings, "id": name})
    transposed = [shape[axis] for axis in order]
    size = math.prod(shape) * dtype.itemsize

    def decode(data: bytes, _blanks: list[Box]) -> np.ndarray:
        for place, packer in enumerate(reversed(packers)):
            is_last = place == len(packers) - 1
            data = _unpacked(data, packer, size if is_last else LARGEST_CHUNK, where)
        values = np.frombuffer(data, stored).reshape(transposed)
        return values.transpose(np.argsort(order)) if len(order) else values

    return decode


def _shards(
    settings: Mapping[str, Any], shape: list[int], dtype: np.dtype[Any], fill: Any, where: str
) -> Decode:
    """Return what reads a file of several chunks, with an index of their places."""
    inner = [int(size) for size in settings["chunk_shape"]]
    if (
        len(inner) != len(shape)
        or min(inner) < 1
        or any(a % b for a, b in zip(shape, inner, strict=True))
    ):
        raise SchemaError(f"{where}: chunks of shape {inner} do not fill shards of {shape}.")
    decode = _codecs(settings["codecs"], inner, dtype, fill, where)
    grid = [a // b for a, b in zip(shape, inner, strict=True)]
    index_codecs = [codec["name"] for codec in settings["index_codecs"]]
    sums = 4 if "crc32c" in index_codecs else 0
    if index_codecs not in (["bytes"], ["bytes", "crc32c"]):
        raise SchemaError(f"{where}: an index packed by {index_codecs} is not read.")
    size = math.prod(grid) * 16
    at_start = settings.get("index_location", "end") == "start"

    def read(data: bytes, blanks: list[Box]) -> np.ndarray:
        index = data[: size + sums] if at_start else data[len(data) - size - sums :]
        if len(index) != size + sums:
            raise ValueError("a shard is shorter than its index")
        places = np.frombuffer(
            _unpacked(index, {"id": "crc32c"}, size, where) if sums else index, "<u8"
        )
        values = np.empty(shape, dtype)
        for number, place in enumerate(itertools.product(*map(range, grid))):
            start, length = map(int, places[2 * number : 2 * number + 2])
            box = tuple(slice(a * c, a * c + c) for a, c in zip(place, inner, strict=True))
            target = values[box]
            if start == length == NO_CHUNK:
                target[...] = 0 if fill is None else fill
                blanks.append(box)
            elif start + length > len(data):
                raise ValueError("a chunk lies outside of its shard")
            else:
                within: list[Box] = []
                target[...] = decode(data[start : start + length], within)
                blanks += [
                    tuple(
                        slice(a.start + b.start, a.start + b.stop)
                        for a, b in zip(box, one, strict=True)
                    )
                    for one in within
                ]
        return values

    return read


def _unpacked(data: bytes, codec: Mapping[str, Any] | None, size: int, where: str) -> bytes:
    """Return the bytes that a codec packed, of which there are at most `size`.

    Raises SchemaError if the codec is not used; ValueError if there are more.
    """
    name = "" if codec is None else str(codec["id"])
    if name in UNPACKERS:
        found = UNPACKERS[name](data, size)
    elif name in CLAIMS:
        claimed = CLAIMS[name](data)
        if claimed > size:
            raise ValueError(f"claims {claimed:,} bytes, expected {size:,}")
        found = bytes(numcodecs.get_codec({"id": name}).decode(data))
    else:
        raise SchemaError(
            f"{where}: is packed by the codec {name!r:.50}, which is not read: save this array again with Blosc, zstd "
            "or without a codec, or leave it out by naming others (columns={..})."
        )
    if len(found) > size:
        raise ValueError(f"holds more than {size:,} bytes")
    return found


def _inflated(data: bytes, size: int) -> bytes:
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    found = unpacker.decompress(data, size + 1)
    if not unpacker.eof and len(found) <= size:
        raise EOFError("it ends too early")
    return found


def _of_crc32c(data: bytes, _size: int) -> bytes:
    if len(data) < 4 or google_crc32c.value(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise ValueError("its checksum is wrong")
    return data[:-4]


def _blosc_claims(data: bytes) -> int:
    claimed, length = struct.unpack_from("<4xI4xI", data)
    if length != len(data):  # Blosc trusts what it says of itself
        raise ValueError(f"claims to be packed into {length:,} bytes, and is {len(data):,}")
    return int(claimed)


def _zstd_claims(data: bytes) -> int:
    """Return the size of the content, which the header of a frame says. RFC 8878, section 3.1.1.1."""
    if data[:4] != b"\x28\xb5\x2f\xfd":
        raise ValueError("it is no frame of zstd")
    flags = data[4]
    is_single, has_dictionary = flags >> 5 & 1, (0, 1, 2, 4)[flags & 3]
    length = (is_single, 2, 4, 8)[flags >> 6]
    if not length:
        raise ValueError("zstd does not say how much it holds; save it again with its size")
    start = 5 + (not is_single) + has_dictionary
    return int.from_bytes(data[start : start + length], "little") + (256 if length == 2 else 0)


UNPACKERS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "": lambda data, _size: data,
    "crc32c": _of_crc32c,
    "zlib": _inflated,
    "gzip": _inflated,
    "bz2": lambda data, size: bz2.BZ2Decompressor().decompress(data, size + 1),
    "lzma": lambda data, size: lzma.LZMADecompressor(memlimit=LARGEST_CHUNK).decompress(
        data, size + 1
    ),
}
CLAIMS: Mapping[str, Callable[[bytes], int]] = {
    "blosc": _blosc_claims,
    "lz4": lambda data: int.from_bytes(data[:4], "little"),
    "zstd": _zstd_claims,
}


def _number(fill: Any) -> Any:
    """Return a fill value; JSON has no word for some of them."""
    return float(fill) if isinstance(fill, str) else fill
