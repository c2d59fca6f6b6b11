"""The metadata of Zarr v3 arrays and groups, written for format 1 and compared on reading.

What no value depends on may differ: names of dimensions, attributes, and the number for chunks that are missing,
since none may be.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import Any

from orlog.datasets.store.encoding import COMPRESSIONS, Encoding, codec_metadata
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.documents import parse_json

LARGEST_METADATA = 2**20
_FREE = {"attributes", "dimension_names", "fill_value"}

PATH = re.compile(r"(?:parts/(?P<part>[1-9][0-9]{0,8})/)?(?P<inside>.+)", re.DOTALL)
SHARD = re.compile(r"(?P<column>.+)/c\.(?P<number>[0-9]{1,15})(?:\.0)*")
"""An object of a version, which may be in a part; and a shard in a part."""


def shard_path(spec: ColumnSpec, shard: int) -> str:
    """Return the path of a shard inside the container's folder."""
    return f"{spec.name}/c.{shard}{'.0' * len(spec.shape)}"


def column_of(path: str) -> str | None:
    """Return the column that an object holds rows of; None for metadata and whole files."""
    match = PATH.fullmatch(path)
    shard = SHARD.fullmatch(match["inside"]) if match else None
    return shard["column"] if shard else None


def array_metadata(
    spec: ColumnSpec, rows: int, encoding: Encoding, *, smallest: int = 1
) -> dict[str, Any]:
    """Return the content of a column's `zarr.json`, in zarr-python's order.

    No side of a chunk is shorter than `smallest`: 1 by Zarr's rule, though those of rows that hold no numbers were 0
    before.
    """
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
    """Return the encoding that a `zarr.json` states; nothing else that values depend on may differ from format 1.

    Raises ValueError if format 1 does not allow it for these rows.
    """
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
    allowed, before = (
        _without_free(array_metadata(spec, rows, encoding, smallest=smallest))
        for smallest in (1, 0)
    )
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
        if key not in _FREE
        and not (isinstance(value, dict) and value.get("must_understand") is False)
    }


def _compression_of(described: list[Any], spec: ColumnSpec) -> tuple[str, bool]:
    """Return the name of the codec with this description, and whether it shuffles bits.

    Raises ValueError if no codec has it.
    """
    for name in COMPRESSIONS:
        for bit_shuffle in (True, False):
            if codec_metadata(name, spec.dtype, bit_shuffle=bit_shuffle) == described:
                return name, bit_shuffle
    raise ValueError(f"no codec of this orlog is described by {json.dumps(described):.200}.")


def to_bytes(body: dict[str, Any]) -> bytes:
    """Return the bytes of a `zarr.json`."""
    return json.dumps(body, indent=2).encode()


def group_metadata(columns: list[str]) -> list[str]:
    """Return the folders that hold arrays or other groups; first "", the container itself."""
    parents = {parent.as_posix() for name in columns for parent in PurePosixPath(name).parents}
    return sorted({"", *(f"{parent}/" for parent in parents if parent != ".")})
