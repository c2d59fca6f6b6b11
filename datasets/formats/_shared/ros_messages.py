"""Decodes messages of ROS 1 and ROS 2 by their definitions, which come with the recording, and runs none of them.

Libraries that do this turn definitions into programs. Here a definition is data that a loop walks.
http://wiki.ros.org/msg and https://design.ros2.org/articles/generated_interfaces_cpp.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from orlog.datasets.formats._shared.json_documents import numbers_in
from orlog.datasets.formats._shared.pictures import opened_picture, picture_size
from orlog.errors import SchemaError

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
NAMES = re.compile(r"(?:.*_|[a-z]+(?=N))?[nN]ames?|interface_groups")
"""Lists of texts that name what lies beside them: `name` of JointState and of Gazebo's ModelStates, `joint_names`."""
NAMES_OF_ELEMENTS = ("name", "joint_name", "child_frame_id", "key")
Key = tuple[str, str]
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
            count = self._length()
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

    def _length(self) -> int:
        """Return how long a list or text is."""
        self._at += -self._at % 4 if self._is_aligned else 0
        if len(self._data) < self._at + 4:
            raise ValueError("it ends too early")
        self._at += 4
        kind: Literal["little", "big"] = "little" if self._order == "<" else "big"
        return int.from_bytes(self._data[self._at - 4 : self._at], kind)

    def _text(self) -> str:
        length = self._length()
        if length > len(self._data) - self._at:
            raise ValueError("a text is longer than its message")
        found = self._data[self._at : self._at + length]
        self._at += length
        return found.rstrip(b"\0").decode(errors="replace")


class Leaf(NamedTuple):
    """Numbers of a message.

    Attributes:
        values: The numbers.
        names: What those along the first axis are called, where the message says it; else nothing.
        keys: The named things that they are of, such as joints: the list that names them, and the name.
        source: The list that has the names.
    """

    values: np.ndarray
    names: tuple[str, ...] = ()
    keys: frozenset[Key] = frozenset()
    source: str = ""


class _Scope(NamedTuple):
    """A list of names in a message, which orders what lies beside it."""

    path: str
    names: tuple[str, ...]
    keys: frozenset[Key]


def leaves_of(message: Any, kind: str, where: str) -> tuple[dict[str, Leaf], frozenset[Key]]:
    """Return the numbers of a message by the path of their fields, `linear.x`, and all named things in it.

    A picture has the empty path. Messages in a list are called by their names, where they have some:
    `transforms.wrist.transform.translation.x`.

    Raises ValueError if there are too many; SchemaError if a list of names has one twice; IntegrityError if a
    picture is damaged.
    """
    if kind in IMAGES and isinstance(message, dict):
        return {"": Leaf(_frame(message))}, frozenset()
    if kind in PICTURES and isinstance(message, dict):
        with opened_picture(bytes(message["data"]), where) as image:
            return {"": Leaf(np.asarray(image).reshape(picture_size(image)))}, frozenset()
    keys: set[Key] = set()
    found: dict[str, Leaf] = {}
    for path, leaf in _Walk(keys, where).leaves(message, "", None, frozenset()):
        found[path] = leaf
        if len(found) > MOST_LEAVES:
            raise ValueError(f"it has over {MOST_LEAVES:,} fields")
    return found, frozenset(keys)


def may_vary(value: Any) -> bool:
    """Return whether other messages like this one may have other fields, as JSON may, and those with lists."""
    if isinstance(value, dict):
        return not value or any(map(may_vary, value.values()))
    return not isinstance(value, np.generic | str)


class _Walk:
    """Walks through a message; notes all named things in it."""

    def __init__(self, keys: set[Key], where: str) -> None:
        self._keys, self._where = keys, where

    def leaves(
        self, value: Any, path: str, scope: _Scope | None, on: frozenset[Key]
    ) -> Iterator[tuple[str, Leaf]]:
        start = f"{path}." if path else ""
        if isinstance(value, dict):
            own = next((n for n, one in value.items() if NAMES.fullmatch(n) and _is_texts(one)), "")
            scope = self._scope(f"{start}{own}", value[own]) if own else scope
            for name, inner in value.items():
                yield from self.leaves(inner, f"{start}{name}", scope, on)
        elif not isinstance(value, str) and value is not None and not _is_texts(value):
            numbers = _numbers_in(value)
            if numbers is None:
                names = self._names_of_elements(value, path, scope)
                for place, inner in enumerate(value):
                    if names is None:
                        yield from self.leaves(inner, f"{start}{place}", scope, on)
                    else:
                        name = names.names[place]
                        yield from self.leaves(inner, start + name, None, on | {(names.path, name)})
            elif numbers.size:
                if isinstance(value, list):
                    numbers_in(value, f"{self._where}, {path}")
                is_named = scope is not None and numbers.ndim and len(numbers) == len(scope.names)
                if scope is not None and is_named:
                    yield path, Leaf(numbers, scope.names, on | scope.keys, scope.path)
                else:
                    yield path, Leaf(numbers, (), on)

    def _scope(self, path: str, names: Sequence[str]) -> _Scope:
        keys = frozenset((path, name) for name in names)
        if len(keys) < len(names):
            twice = next(name for place, name in enumerate(names) if name in names[:place])
            raise SchemaError(
                f"{self._where}: {path} has {twice!r:.100} twice, so values cannot be told apart by their names; "
                "record it with names that differ."
            )
        self._keys |= keys
        return _Scope(path, tuple(names), keys)

    def _names_of_elements(self, value: Any, path: str, scope: _Scope | None) -> _Scope | None:
        """Return what names the messages in a list: a text in each, or the list of names beside them."""
        if not value or not all(isinstance(one, dict) for one in value):
            return None
        for field in NAMES_OF_ELEMENTS:
            texts = [one.get(field) for one in value]
            if all(texts) and _is_texts(texts) and len({*texts}) == len(texts):
                return self._scope(f"{path}.{field}", texts)
        # The points of a trajectory are as many as its joints only by chance: each holds a number a joint.
        if (
            scope is None
            or len(scope.names) != len(value)
            or any(_holds_arrays(one, len(value)) for one in value)
        ):
            return None
        return scope


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value) and any(value)


def _holds_arrays(value: Any, length: int) -> bool:
    """Return whether a message holds an array of so many numbers that it does not name itself."""
    if isinstance(value, dict):
        if any(NAMES.fullmatch(name) and _is_texts(one) for name, one in value.items()):
            return False
        return any(_holds_arrays(one, length) for one in value.values())
    is_array = isinstance(value, np.ndarray | list) and len(value) == length
    return is_array and _numbers_in(value) is not None


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
