"""Decodes messages of ROS 1 and ROS 2 by their definitions, which come with the recording, and runs none of them.

Libraries that do this turn definitions into programs. Here a definition is data that a loop walks.
http://wiki.ros.org/msg and https://design.ros2.org/articles/generated_interfaces_cpp.html
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats.array_files import opened_picture, picture_size
from orlog.datasets.formats.safe_reading import numbers_in
from orlog.errors import SchemaError

BASE = {"bool": "?", "byte": "B", "char": "B", "octet": "B", "float32": "f", "float64": "d"}
BASE |= {f"int{8 * size}": f"i{size}" for size in (1, 2, 4, 8)}
BASE |= {f"uint{8 * size}": f"u{size}" for size in (1, 2, 4, 8)}
TEXTS = ("string", "wstring")
TIMES = ("builtin_interfaces/msg/Time", "builtin_interfaces/msg/Duration")
TIME = [("sec", (1, ("int32", 0))), ("nanosec", (1, ("uint32", 0)))]
PLAIN, MESSAGE, SEQUENCE = 1, 2, 4  # kinds of fields, by the numbers of rosbags
IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/Image")
PICTURES = ("sensor_msgs/msg/CompressedImage", "sensor_msgs/CompressedImage")
PIXELS = {
    **dict.fromkeys(("rgb8", "bgr8", "8UC3"), ("u1", 3)),
    **dict.fromkeys(("rgba8", "bgra8"), ("u1", 4)),
    **dict.fromkeys(("mono8", "8UC1"), ("u1", 1)),
    **dict.fromkeys(("mono16", "16UC1"), ("u2", 1)),
    "32FC1": ("f4", 1),
}
NAMES = re.compile(r"(?:.*_|[a-z]+(?=N))?[nN]ames?|interface_groups")
"""Lists of texts that name what lies beside them: `name` of JointState and of Gazebo's ModelStates, `joint_names`."""
NAMES_OF_ELEMENTS = ("name", "joint_name", "child_frame_id", "key")
Key = tuple[str, str]
"""A named thing, such as a joint: the list that names it, and its name."""
Types = Mapping[str, tuple[Any, Sequence[tuple[str, Any]]]]


def decode_message(data: bytes, name: str, types: Types, *, is_ros1: bool) -> dict[str, Any]:
    """Return the fields of a message: numbers, arrays, texts, dicts, and lists of dicts.

    `types` has the fields of all types, as rosbags parses them. Bytes that are no such message give a
    ValueError or struct.error, a type that is not there a KeyError.
    """
    if is_ros1:
        return _Reader(data, "<", types, is_aligned=False).message(name)
    if data[:2] not in (b"\0\0", b"\0\1"):
        raise ValueError("it is not stored as CDR")
    return _Reader(data[4:], "<" if data[1] else ">", types, is_aligned=True).message(name)


class _Reader:
    """Walks along the bytes of a message."""

    def __init__(self, data: bytes, order: str, types: Types, *, is_aligned: bool) -> None:
        self._data, self._order, self._types, self._at = data, order, types, 0
        self._is_aligned = is_aligned

    def message(self, name: str) -> dict[str, Any]:
        fields = self._types[name][1] if name in self._types or name not in TIMES else TIME
        if not fields and self._is_aligned:
            self._at += 1  # CDR gives a struct without fields a byte
        return {field: self._value(kind) for field, kind in fields}

    def _value(self, kind: Any) -> Any:
        number, inner = int(kind[0]), kind[1]
        if number == PLAIN:
            return self._text() if inner[0] in TEXTS else self._numbers(inner[0], 1)[0]
        if number == MESSAGE:
            return self.message(inner)
        element, count = inner
        count = self._length() if number == SEQUENCE else count
        if count > len(self._data):
            raise ValueError(f"a list claims {count:,} values")
        if int(element[0]) == PLAIN and element[1][0] not in TEXTS:
            return self._numbers(element[1][0], count)
        return [self._value(element) for _ in range(count)]

    def _numbers(self, base: str, count: int) -> np.ndarray:
        dtype = np.dtype(self._order + BASE[base])
        if self._is_aligned and count:
            self._at += -self._at % dtype.itemsize
        if not count:
            return np.zeros(0, dtype.newbyteorder("="))
        numbers = np.frombuffer(self._data, dtype, count, self._at)
        self._at += numbers.nbytes
        return numbers.astype(dtype.newbyteorder("="), copy=False)

    def _length(self) -> int:
        """Return how long a list or text is."""
        self._at += -self._at % 4 if self._is_aligned else 0
        (length,) = struct.unpack_from(f"{self._order}I", self._data, self._at)
        self._at += 4
        return int(length)

    def _text(self) -> str:
        length = self._length()
        if length > len(self._data) - self._at:
            raise ValueError("a text is longer than its message")
        self._at += length
        text = self._data[self._at - length : self._at]
        return text.rstrip(b"\0").decode(errors="replace")


class Leaf(NamedTuple):
    """Numbers of a message."""

    values: np.ndarray  # the numbers
    # what those along the first axis are called, where the message says it; else nothing
    names: tuple[str, ...] = ()
    keys: frozenset[Key] = frozenset()  # the named things that they are of
    source: str = ""  # the list that has the names


def leaves_of(message: Any, kind: str, where: str) -> tuple[dict[str, Leaf], frozenset[Key]]:
    """Return the numbers of a message by the path of their fields, `linear.x`, and all named things in it.

    A picture has the empty path. Messages in a list are called by their names, where they have some:
    `transforms.wrist.transform.translation.x`.

    Raises SchemaError if a list of names has one twice; IntegrityError or ValueError if a picture is damaged.
    """
    if kind in IMAGES and isinstance(message, dict):
        return {"": Leaf(_frame(message))}, frozenset()
    if kind in PICTURES and isinstance(message, dict):
        with opened_picture(bytes(message["data"]), where) as image:
            return {"": Leaf(np.asarray(image).reshape(picture_size(image)))}, frozenset()
    walk = _Walk(where)
    walk.into(message, "", None, frozenset())
    return walk.leaves, frozenset(walk.keys)


class _Names(NamedTuple):
    """A list of names in a message, which orders what lies beside it."""

    path: str
    names: tuple[str, ...]
    keys: frozenset[Key]


class _Walk:
    """Walks through a message; collects its numbers, and all named things in it."""

    def __init__(self, where: str) -> None:
        self.leaves: dict[str, Leaf] = {}
        self.keys: set[Key] = set()
        self._where = where

    def into(self, value: Any, path: str, beside: _Names | None, around: frozenset[Key]) -> None:
        """Walk on into a value, with the names that lie beside it, and the named things that it is of."""
        start = f"{path}." if path else ""
        if isinstance(value, dict):
            lists = [field for field in value.items() if isinstance(field[1], list)]
            own = next((name for name, texts in lists if _names_others(name, texts)), "")
            beside = self._names(start + own, value[own]) if own else beside
            for name, inner in value.items():
                self.into(inner, start + name, beside, around)
        elif value is None or isinstance(value, str) or _is_texts(value):
            return
        elif (numbers := _numbers_in(value)) is not None:
            self._add(value, numbers, path, beside, around)
        elif (names := self._names_of_elements(value, path, beside)) is None:
            for place, inner in enumerate(value):
                self.into(inner, f"{start}{place}", beside, around)
        else:
            for name, inner in zip(names.names, value, strict=True):
                self.into(inner, start + name, None, around | {(names.path, name)})

    def _add(self, value: Any, numbers: np.ndarray, path: str, beside: _Names | None, around: frozenset[Key]) -> None:
        if not numbers.size:
            return
        if isinstance(value, list):
            numbers_in(value, f"{self._where}, {path}")  # refuses integers that floats would change
        if beside is not None and numbers.ndim and len(numbers) == len(beside.names):
            keys = around | beside.keys if around else beside.keys
            self.leaves[path] = Leaf(numbers, beside.names, keys, beside.path)
        else:
            self.leaves[path] = Leaf(numbers, (), around)

    def _names(self, path: str, names: Sequence[str]) -> _Names:
        keys = frozenset((path, name) for name in names)
        if len(keys) < len(names):
            twice = next(name for place, name in enumerate(names) if name in names[:place])
            raise SchemaError(
                f"{self._where}: {path} has {twice!r:.100} twice, so values cannot be told apart by their names; "
                "record it with names that differ."
            )
        self.keys |= keys
        return _Names(path, tuple(names), keys)

    def _names_of_elements(self, value: Any, path: str, beside: _Names | None) -> _Names | None:
        """Return what names the messages in a list: a text in each, or the list of names beside them."""
        if not value or not all(isinstance(inner, dict) for inner in value):
            return None
        for field in NAMES_OF_ELEMENTS:
            texts = [inner.get(field) for inner in value]
            if all(texts) and _is_texts(texts) and len({*texts}) == len(texts):
                return self._names(f"{path}.{field}", texts)
        # The points of a trajectory are as many as its joints only by chance: each holds a number a joint.
        is_as_long = beside is not None and len(beside.names) == len(value)
        return beside if is_as_long and not _hold_arrays(value, len(value)) else None


def _names_others(field: str, value: Any) -> bool:
    return NAMES.fullmatch(field) is not None and _is_texts(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value) and any(value)


def _hold_arrays(messages: Sequence[Any], length: int) -> bool:
    """Return whether a message holds an array of so many numbers that it does not name itself."""
    for value in messages:
        if not isinstance(value, dict):
            is_array = isinstance(value, np.ndarray | list) and len(value) == length
            if is_array and _numbers_in(value) is not None:
                return True
        elif not any(_names_others(*field) for field in value.items()) and _hold_arrays([*value.values()], length):
            return True
    return False


def may_vary(value: Any) -> bool:
    """Return whether other messages like this one may have other fields, as JSON may, and those with lists."""
    if isinstance(value, dict):
        return not value or any(map(may_vary, value.values()))
    return not isinstance(value, np.generic | str)


def paths_of(value: Any, path: str = "") -> list[str]:
    """Return the paths of all fields of a message, whatever they hold; a list is one field."""
    if not isinstance(value, dict):
        return [path] if path else []
    start = f"{path}." if path else ""
    return [inner_path for name, inner in value.items() for inner_path in paths_of(inner, f"{start}{name}")]


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
