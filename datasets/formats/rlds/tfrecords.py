"""TFRecord files of `tf.train.Example`, in which TensorFlow's datasets hold records, without TensorFlow.

    length, uint64 | masked CRC32C of it, uint32 | data | masked CRC32C of the data, uint32 | next record ..

All numbers are little-endian. https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np

from orlog.datasets.formats.safe_reading import reading
from orlog.errors import IntegrityError, SchemaError, needing

HEADER_BYTES, FOOTER_BYTES = 12, 4
Span = tuple[int, int]  # where bytes start in a file, and where they stop
Values = np.ndarray | list[bytes]
# the messages of tensorflow/core/example, in a package of their own beside an installed TensorFlow's
EXAMPLE = """
name: "orlog/example.proto" package: "orlog" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".orlog.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".orlog.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".orlog.Int64List" oneof_index: 0 }
}
message_type {
  name: "Features"
  field {
    name: "feature" number: 1 type: TYPE_MESSAGE label: LABEL_REPEATED type_name: ".orlog.Features.FeatureEntry"
  }
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".orlog.Feature" }
  }
}
message_type { name: "Example" field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".orlog.Features" } }
"""


@functools.cache
def _messages() -> dict[str, Any]:
    with needing("records of TensorFlow need protobuf", "orlog[formats]"):
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(EXAMPLE, descriptor_pb2.FileDescriptorProto()))
    names = ("Example", "Int64List")
    descriptors = {name: pool.FindMessageTypeByName(f"orlog.{name}") for name in names}
    return {name: message_factory.GetMessageClass(descriptors[name]) for name in names}


def read_example(data: bytes, where: str) -> Mapping[str, Any]:
    """Return the features of a record by their names.

    Raises IntegrityError if it is no Example; MissingExtraError if protobuf is not installed.
    """
    kind = _messages()["Example"]
    with reading(where, "an Example of TensorFlow"):
        features: Mapping[str, Any] = kind.FromString(data).features.feature
    return features


def values_of(feature: Any) -> Values:
    """Return the values of a feature: float32, int64, or a list of bytes."""
    kind = feature.WhichOneof("kind")
    if kind == "bytes_list":
        return list(feature.bytes_list.value)
    numbers = feature.float_list if kind == "float_list" else feature.int64_list
    count = len(numbers.value)
    # Lists are packed: a tag, how many bytes follow in 7 bits a byte, and the numbers.
    packed = numbers.SerializeToString() if count else b""
    if kind == "float_list":
        return np.frombuffer(packed, "<f4", count, 1 + _length_bytes(4 * count) if count else 0)
    if count and len(packed) == 1 + _length_bytes(count) + count:  # flags and small numbers
        return np.frombuffer(packed, np.uint8, count, len(packed) - count).astype(np.int64)
    return np.fromiter(numbers.value, np.int64, count)


def _length_bytes(length: int) -> int:
    return max(1, -(-length.bit_length() // 7))


def example_bytes(features: Mapping[str, np.ndarray | Sequence[bytes]]) -> bytes:
    """Return an Example of flat arrays of floats or integers, or lists of bytes, in the order of their names.

    protobuf itself orders names in a way of its own, and takes floats one by one.
    """
    parts = []
    for name, values in sorted(features.items()):
        if not isinstance(values, np.ndarray):
            number, body = 1, b"".join(_block(1, value) for value in values)
        elif values.dtype.kind == "f":
            number, body = 2, _block(1, values.astype("<f4").tobytes()) if len(values) else b""
        else:
            integers = _messages()["Int64List"](value=values.astype(np.int64).tolist())
            number, body = 3, integers.SerializeToString()
        feature = _block(1, name.encode()) + _block(2, _block(number, body))
        parts.append(_block(1, feature))
    return _block(1, b"".join(parts))


def _block(number: int, data: bytes) -> bytes:
    """Return a field of bytes: its number, its length in 7 bits a byte, and the bytes."""
    length = len(data)
    head = [length >> 7 * place & 0x7F | 0x80 for place in range(_length_bytes(length))]
    head[-1] &= 0x7F
    return bytes([number << 3 | 2, *head]) + data


def open_tfrecord(path: Path, where: str) -> BinaryIO:
    """Open a file of records; links are refused.

    Raises SchemaError if there is none.
    """
    if path.is_symlink() or not path.is_file():
        raise SchemaError(f"{where}: there is no file {path.name}, or it is a link.")
    return path.open("rb")


def read_records(file: BinaryIO, where: str) -> Iterator[tuple[Span, bytes]]:
    """Yield where the data of each record lie, and the data, whose checksums were compared.

    Raises IntegrityError if a checksum does not fit, or the file ends inside a record.
    """
    size = file.seek(0, os.SEEK_END)
    start, number = 0, 0
    while start < size:
        what = f"{where}, record {number} at byte {start}"
        file.seek(start)
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            raise IntegrityError(f"{what}: the file ends inside its header.", file=where)
        length, checksum = struct.unpack("<QI", header)
        if checksum != masked_checksum(header[:8]):
            raise IntegrityError(f"{what}: the checksum of its length does not fit.", file=where)
        first = start + HEADER_BYTES
        if length > size - first - FOOTER_BYTES:
            raise IntegrityError(
                f"{what}: expected {length:,} bytes, and the file ends after {max(0, size - first):,}.", file=where
            )
        data = file.read(length)
        if file.read(FOOTER_BYTES) != struct.pack("<I", masked_checksum(data)):
            raise IntegrityError(f"{what}: the checksum of its data does not fit.", file=where)
        yield (first, first + length), data
        start, number = first + length + FOOTER_BYTES, number + 1


def record_at(file: BinaryIO, span: Span) -> bytes:
    """Return the data of a record that was read before."""
    file.seek(span[0])
    return file.read(span[1] - span[0])


def write_record(file: BinaryIO, data: bytes) -> None:
    """Append a record."""
    length = struct.pack("<Q", len(data))
    file.write(length + struct.pack("<I", masked_checksum(length)))
    file.write(data)
    file.write(struct.pack("<I", masked_checksum(data)))


def masked_checksum(data: bytes) -> int:
    """Return the CRC32C of bytes as records hold it: turned, since one of data that hold one is no good check."""
    checksum = int(google_crc32c.value(data))
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
