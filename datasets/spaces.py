"""Gymnasium spaces as JSON, and the leaves whose values are stored.

Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict, Tuple, Sequence, Graph and OneOf, nested to
32 levels. A Dict or Tuple becomes one leaf per part, named by its path: `observations/goal`,
`observations/0`. Which columns hold the values of a leaf, `layout.py` says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.errors import SchemaError

__all__ = ["leaf_spaces", "space_from_json", "space_to_json"]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NUMBERS = {
    "bool": bool,
    **dict.fromkeys(("int8", "int16", "int32", "int64"), int),
    **dict.fromkeys(("uint8", "uint16", "uint32", "uint64"), int),
    **dict.fromkeys(("float16", "float32", "float64"), float),
}
_DEEPEST = 32
# Numbers that one row of all leaves together may hold. Each space counts for at least the second:
# so neither a size nor a count in a manifest can make us allocate without bound.
_LARGEST = 2**24
_SMALLEST = 2**10


def space_to_json(space: gymnasium.Space[Any]) -> dict[str, Json]:
    """Return the JSON form of a space, from which an equal space can be read.

    Raises:
        SchemaError: the space, or one inside it, cannot be stored.
    """
    data = _write(space, 1)
    if space_from_json(data) != space:
        raise SchemaError(f"the space {space!s:.200} cannot be stored: its JSON reads differently")
    return data


def _write(space: gymnasium.Space[Any] | None, depth: int) -> dict[str, Json]:
    if depth > _DEEPEST:
        raise SchemaError(f"a space nested deeper than {_DEEPEST} levels cannot be stored")
    match space:
        case spaces.Box():
            return {
                "type": "Box",
                "shape": list(space.shape),
                "dtype": str(_dtype(str(space.dtype))),
                "low": _bounds_to_json(space.low),
                "high": _bounds_to_json(space.high),
            }
        case spaces.Discrete():
            plain: dict[str, Json] = {
                "type": "Discrete",
                "n": int(space.n),
                "start": int(space.start),
            }
            return plain if space.dtype == np.int64 else {**plain, "dtype": str(space.dtype)}
        case spaces.MultiDiscrete():
            return {
                "type": "MultiDiscrete",
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
                "dtype": str(space.dtype),
            }
        case spaces.MultiBinary():
            # To Gymnasium MultiBinary([3]) is not MultiBinary(3).
            listed = {"listed": True} if isinstance(space.n, tuple) and len(space.n) == 1 else {}
            return {"type": "MultiBinary", "shape": list(space.shape), **listed}
        case spaces.Text():
            return {
                "type": "Text",
                "min_length": space.min_length,
                "max_length": space.max_length,
                "charset": "".join(sorted(space.character_set)),
            }
        case spaces.Dict():
            for key in space:
                _check_key(key)
            return {
                "type": "Dict",
                "spaces": {key: _write(value, depth + 1) for key, value in sorted(space.items())},
            }
        case spaces.Tuple():
            return {"type": "Tuple", "spaces": [_write(value, depth + 1) for value in space]}
        case spaces.Sequence():
            return {
                "type": "Sequence",
                "space": _write(space.feature_space, depth + 1),
                "stack": bool(space.stack),
            }
        case spaces.Graph():
            edges = space.edge_space
            return {
                "type": "Graph",
                "node_space": _write(space.node_space, depth + 1),
                "edge_space": None if edges is None else _write(edges, depth + 1),
            }
        case spaces.OneOf():
            return {"type": "OneOf", "spaces": [_write(value, depth + 1) for value in space.spaces]}
    raise SchemaError(
        f"a {type(space).__name__} space cannot be stored: expected Box, Discrete, MultiDiscrete, "
        "MultiBinary, Text, Dict, Tuple, Sequence, Graph or OneOf"
    )


def space_from_json(data: object) -> gymnasium.Space[Any]:
    """Return the space of a JSON form.

    Raises:
        SchemaError: the form is unknown, or names absurd sizes.
    """
    return _Reader().read(data, 1)


class _Reader:
    """Builds one space and all inside it within one budget of numbers."""

    def __init__(self) -> None:
        self.left = _LARGEST

    def read(self, data: object, depth: int) -> gymnasium.Space[Any]:
        if not isinstance(data, dict):
            raise SchemaError(f"a space is a JSON object, found {type(data).__name__}")
        if depth > _DEEPEST:
            raise SchemaError(f"a space cannot be nested deeper than {_DEEPEST} levels")
        fields = dict(data)
        kind = fields.pop("type", None)
        try:
            space = self._build(kind, fields, depth + 1)
        except SchemaError:
            raise
        except (
            ArithmeticError,
            AssertionError,
            AttributeError,
            KeyError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise SchemaError(f"a space of type {kind!r:.80} cannot be read: {error}") from error
        if fields:
            raise SchemaError(f"a {kind} space has no field {next(iter(fields))!r:.80}")
        return space

    def _build(self, kind: object, fields: dict[str, Any], depth: int) -> gymnasium.Space[Any]:
        match kind:
            case "Box":
                shape, dtype = self._shape(fields.pop("shape")), _dtype(fields.pop("dtype"))
                low = _bounds_from_json(fields.pop("low"), shape, dtype)
                high = _bounds_from_json(fields.pop("high"), shape, dtype)
                return spaces.Box(low, high, shape, dtype.type)
            case "Discrete":
                self._spend(1)
                n, start = _integer(fields.pop("n")), _integer(fields.pop("start"))
                if "dtype" not in fields:  # older versions of Gymnasium know int64 alone
                    return spaces.Discrete(n, start=start)
                return spaces.Discrete(n, start=start, dtype=_dtype(fields.pop("dtype")))
            case "MultiDiscrete":
                dtype = _dtype(fields.pop("dtype"))
                counts, starts = (
                    np.array(_integers(fields.pop(key)), dtype) for key in ("nvec", "start")
                )
                self._spend(counts.size)
                return spaces.MultiDiscrete(counts, dtype, start=starts)
            case "MultiBinary":
                shape = self._shape(fields.pop("shape"))
                listed = "listed" in fields
                if listed and (fields.pop("listed") is not True or len(shape) != 1):
                    raise SchemaError("only a MultiBinary of one size is listed, and says true")
                return spaces.MultiBinary(shape[0] if len(shape) == 1 and not listed else shape)
            case "Text":
                charset = _charset(fields.pop("charset"))
                self._spend(len(charset))
                shortest, longest = (
                    _integer(fields.pop(key)) for key in ("min_length", "max_length")
                )
                return spaces.Text(longest, min_length=shortest, charset=charset)
            case "Dict":
                self._spend(1)
                parts = _of_type(dict, fields.pop("spaces"))
                for key in parts:
                    _check_key(key)
                return spaces.Dict({key: self.read(part, depth) for key, part in parts.items()})
            case "Tuple":
                self._spend(1)
                return spaces.Tuple(self._read_all(fields.pop("spaces"), depth))
            case "Sequence":
                stack = _of_type(bool, fields.pop("stack"))
                inner = self._read_batched(fields.pop("space"), depth, copies=int(stack))
                return spaces.Sequence(inner, stack=stack)
            case "Graph":
                nodes, edges = fields.pop("node_space"), fields.pop("edge_space")
                return spaces.Graph(
                    self._read_batched(nodes, depth, copies=1),
                    None if edges is None else self._read_batched(edges, depth, copies=1),
                )
            case "OneOf":
                self._spend(1)
                return spaces.OneOf(self._read_all(fields.pop("spaces"), depth))
        raise SchemaError(f"unknown type of space {kind!r:.80}")

    def _read_all(self, parts: object, depth: int) -> list[gymnasium.Space[Any]]:
        return [self.read(part, depth) for part in _of_type(list, parts)]

    def _read_batched(self, data: object, depth: int, *, copies: int) -> gymnasium.Space[Any]:
        """Read a space that Gymnasium then copies, which doubles at every level of nesting."""
        before = self.left
        space = self.read(data, depth)
        self._spend(1 + copies * (before - self.left))
        return space

    def _shape(self, value: object) -> tuple[int, ...]:
        shape = tuple(_integer(size) for size in _of_type(list, value))
        if any(size < 0 for size in shape):
            raise SchemaError(f"shape {shape} is negative")
        self._spend(math.prod(shape))
        return shape

    def _spend(self, numbers: int) -> None:
        self.left -= max(numbers, _SMALLEST)
        if self.left < 0:
            raise SchemaError(
                f"a space is absurdly large: expected at most {_LARGEST} numbers in a row, each "
                f"space inside counting for {_SMALLEST} or more"
            )


def leaf_spaces(
    space: gymnasium.Space[Any], path: str
) -> Iterator[tuple[str, gymnasium.Space[Any]]]:
    """Yield (column name, space) of each leaf, Dict keys in sorted order as Gymnasium flattens."""
    if isinstance(space, spaces.Dict):
        for key, value in sorted(space.items()):
            yield from leaf_spaces(value, f"{path}/{key}")
    elif isinstance(space, spaces.Tuple):
        for index, value in enumerate(space):
            yield from leaf_spaces(value, f"{path}/{index}")
    else:
        yield path, space


def _check_key(key: object) -> None:
    if type(key) is not str or not _KEY.fullmatch(key) or key == "zarr.json":
        raise SchemaError(
            f"key {key!r:.80} of a Dict space cannot name a column: expected text of letters, "
            "digits, '_', '-' and '.', not a '.' or '-' first, not zarr.json"
        )


def _of_type(expected: type[Any], value: object) -> Any:
    if type(value) is not expected:
        raise SchemaError(f"expected a {expected.__name__}, found a {type(value).__name__}")
    return value


def _integer(value: object) -> int:
    if type(value) is not int or abs(value) >= 2**64:
        raise SchemaError(f"expected an integer of 64 bits, found {value!r:.80}")
    return value


def _integers(value: object) -> Any:
    """Check nested lists of integers."""
    if isinstance(value, list):
        return [_integers(item) for item in value]
    return _integer(value)


def _dtype(name: object) -> np.dtype[Any]:
    if name not in _NUMBERS:
        raise SchemaError(
            f"values of type {name!r:.80} cannot be stored: expected one of {', '.join(_NUMBERS)}"
        )
    return np.dtype(name)


def _charset(value: object) -> str:
    charset: str = _of_type(str, value)
    if charset != "".join(sorted(set(charset))):
        raise SchemaError("the charset of a Text is not sorted, or names a character twice")
    charset.encode()  # which refuses what UTF-8 cannot hold
    return charset


def _bounds_to_json(bounds: np.ndarray) -> Json:
    """Return one number where all bounds are equal, else nested lists; infinities as text."""
    if bounds.size and (bounds == bounds.flat[0]).all():
        return _number_to_json(bounds.flat[0].item())
    return _nest(bounds.tolist())


def _nest(value: Any) -> Json:
    return [_nest(item) for item in value] if isinstance(value, list) else _number_to_json(value)


def _number_to_json(value: float) -> Json:
    if math.isnan(value):
        raise SchemaError("a bound of a Box is not a number (NaN)")
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _bounds_from_json(value: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    infinities = {"inf": math.inf, "-inf": -math.inf}
    expected = (int, float) if dtype.kind == "f" else (_NUMBERS[dtype.name],)

    def number(item: Any) -> Any:
        if isinstance(item, list):
            return [number(inner) for inner in item]
        if isinstance(item, str):
            return infinities[item]
        if type(item) not in expected:
            raise SchemaError(f"a bound of a {dtype} Box is a number of it, found {item!r:.80}")
        return item

    with np.errstate(over="raise"):
        bounds = np.array(number(value), dtype)
    if bounds.size == math.prod(shape) == 0:  # lists cannot say (0, 3)
        return np.empty(shape, dtype)
    if bounds.shape not in ((), shape):
        raise SchemaError(f"bounds of shape {bounds.shape} in a Box of shape {shape}")
    return np.broadcast_to(bounds, shape)
