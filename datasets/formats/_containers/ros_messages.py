"""Decodes messages of ROS 1 and ROS 2 by their definitions, which come with the recording, and runs none of them.

Libraries that do this turn definitions into programs. Here a definition is data that a loop walks.
http://wiki.ros.org/msg and https://design.ros2.org/articles/generated_interfaces_cpp.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from orlog.datasets.formats._containers.pictures import opened_picture, picture_size

DEEPEST = 32
MOST_LEAVES = 4096
BASE = {
    "bool": "?",
    "byte": "B",
    "char": "B",
    "octet": "B",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
}
TIMES = ("builtin_interfaces/msg/Time", "builtin_interfaces/msg/Duration")
TIME = [("sec", (1, ("int32", 0))), ("nanosec", (1, ("uint32", 0)))]
IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/Image")
PICTURES = ("sensor_msgs/msg/CompressedImage", "sensor_msgs/CompressedImage")
PIXELS = {
    "rgb8": ("u1", 3),
    "bgr8": ("u1", 3),
    "rgba8": ("u1", 4),
    "bgra8": ("u1", 4),
    "mono8": ("u1", 1),
    "8UC1": ("u1", 1),
    "8UC3": ("u1", 3),
    "mono16": ("u2", 1),
    "16UC1": ("u2", 1),
    "32FC1": ("f4", 1),
}
Types = Mapping[str, tuple[Any, Sequence[tuple[str, Any]]]]


def decode_message(data: bytes, name: str, types: Types, *, is_ros1: bool) -> dict[str, Any]:
    """Return the fields of a message: numbers, arrays, texts, dicts, and lists of dicts.

    `types` has the fields of all types, as rosbags parses them. Bytes that are no such message give a
    ValueError or struct.error, a type that is not there a KeyError.
    """
    order = "<"
    if not is_ros1:
        if len(data) < 4 or data[:2] not in (b"\0\0", b"\0\1"):
            raise ValueError("it is not stored as CDR")
        order = "<" if data[1] else ">"
    reader = _Reader(data if is_ros1 else data[4:], order, types, is_aligned=not is_ros1)
    return reader.message(name, 0)


class _Reader:
    """Walks along the bytes of a message."""

    def __init__(self, data: bytes, order: str, types: Types, *, is_aligned: bool) -> None:
        self._data, self._order, self._types, self._at = data, order, types, 0
        self._is_aligned = is_aligned

    def message(self, name: str, depth: int) -> dict[str, Any]:
        if depth > DEEPEST:
            raise ValueError("its types lie in each other without end")
        fields = self._types[name][1] if name in self._types or name not in TIMES else TIME
        if not fields and self._is_aligned:
            self._at += 1  # CDR gives a struct without fields a byte
        return {field: self._value(kind, depth) for field, kind in fields}

    def _value(self, kind: Any, depth: int) -> Any:
        number, inner = int(kind[0]), kind[1]
        if number == 1:
            return (
                self._text() if inner[0] in ("string", "wstring") else self._numbers(inner[0], 1)[0]
            )
        if number == 2:
            return self.message(inner, depth + 1)
        element, count = inner
        if number == 4:
            count = int(self._numbers("uint32", 1)[0])
        if count > len(self._data):
            raise ValueError(f"a list claims {count:,} values")
        base = element[1][0] if int(element[0]) == 1 else ""
        if base and base not in ("string", "wstring"):
            return self._numbers(base, count)
        return [self._value(element, depth + 1) for _ in range(count)]

    def _numbers(self, base: str, count: int) -> np.ndarray:
        dtype = np.dtype(self._order + BASE[base])
        if self._is_aligned and count:
            self._at += -self._at % dtype.itemsize
        if count * dtype.itemsize > len(self._data) - self._at:
            raise ValueError("it ends too early")
        found = np.frombuffer(self._data, dtype, count, self._at)
        self._at += found.nbytes
        return found.astype(dtype.newbyteorder("="), copy=False)

    def _text(self) -> str:
        length = int(self._numbers("uint32", 1)[0])
        if length > len(self._data) - self._at:
            raise ValueError("a text is longer than its message")
        found = self._data[self._at : self._at + length]
        self._at += length
        return found.rstrip(b"\0").decode(errors="replace")


def leaves_of(message: Any, kind: str, where: str) -> dict[str, np.ndarray]:
    """Return the numbers of a message by the path of their fields, `linear.x`; a picture by the empty path.

    Raises ValueError if there are too many; IntegrityError if a picture is damaged.
    """
    if kind in IMAGES and isinstance(message, dict):
        return {"": _frame(message)}
    if kind in PICTURES and isinstance(message, dict):
        with opened_picture(bytes(message["data"]), where) as image:
            return {"": np.asarray(image).reshape(picture_size(image))}
    found: dict[str, np.ndarray] = {}
    for path, values in _leaves(message, ""):
        found[path] = values
        if len(found) > MOST_LEAVES:
            raise ValueError(f"it has over {MOST_LEAVES:,} fields")
    return found


def _leaves(value: Any, path: str) -> Iterator[tuple[str, np.ndarray]]:
    start = f"{path}." if path else ""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{start}{name}")
    elif not isinstance(value, str) and value is not None:
        numbers = _numbers_in(value)
        if numbers is not None and numbers.size:
            yield path, numbers
        elif numbers is None:
            for place, inner in enumerate(value):
                yield from _leaves(inner, f"{start}{place}")


def paths_of(value: Any, path: str = "") -> list[str]:
    """Return the paths of all fields of a message, whatever they hold; a list is one field."""
    if not isinstance(value, dict):
        return [path] if path else []
    start = f"{path}." if path else ""
    return [one for name, inner in value.items() for one in paths_of(inner, f"{start}{name}")]


def _numbers_in(value: Any) -> np.ndarray | None:
    """Return a number, or lists of numbers of equal length; None for other lists."""
    try:
        numbers = np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    return numbers if numbers.dtype.kind in "biuf" else None


def _frame(message: Mapping[str, Any]) -> np.ndarray:
    """Return the pixels of a sensor_msgs/Image, (height, width, channels), red before blue."""
    encoding = str(message["encoding"])
    if encoding not in PIXELS:
        raise ValueError(f"frames of the encoding {encoding!r:.50} are not read")
    kind, channels = PIXELS[encoding]
    dtype = np.dtype(kind).newbyteorder(">" if message["is_bigendian"] else "<")
    height, width, step = (int(message[name]) for name in ("height", "width", "step"))
    rows = np.asarray(message["data"], np.uint8)
    row = width * channels * dtype.itemsize
    if not row or step < row or len(rows) != height * step:
        raise ValueError(f"a frame of {height} rows of {step} bytes has {len(rows)}")
    pixels = np.ascontiguousarray(rows.reshape(height, step)[:, :row]).view(dtype)
    frame = pixels.reshape(height, width, channels).astype(dtype.newbyteorder("="), copy=False)
    return frame[..., [2, 1, 0, 3][:channels]] if encoding.startswith("bgr") else frame


UNREADABLE = (ArithmeticError, KeyError, LookupError, TypeError, ValueError, struct.error)
