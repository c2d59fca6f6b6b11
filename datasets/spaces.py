"""Gymnasium spaces as JSON, and the columns that hold their values.

Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple. A Dict or Tuple becomes one column per
leaf, named by its path: `observations/achieved_goal`, `observations/0`.
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
_LARGEST = 2**24  # values in one row; bounds what a manifest can make us allocate


def space_to_json(space: gymnasium.Space[Any]) -> dict[str, Json]:
    """Return the JSON form of a space.

    Raises:
        SchemaError: the space, or one inside it, cannot be stored.
    """
    match space:
        case spaces.Box():
            return {
                "type": "Box",
                "shape": list(space.shape),
                "dtype": str(space.dtype),
                "low": _bounds_to_json(space.low),
                "high": _bounds_to_json(space.high),
            }
        case spaces.Discrete():
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {
                "type": "MultiDiscrete",
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
                "dtype": str(space.dtype),
            }
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "shape": list(space.shape)}
        case spaces.Dict():
            for key in space:
                if type(key) is not str or not _KEY.fullmatch(key) or key == "zarr.json":  # type: ignore[comparison-overlap, unused-ignore]  # users may use any key
                    raise SchemaError(
                        f"key {key!r} of a Dict space cannot name a column: expected text of "
                        "letters, digits, '_', '-' and '.', not a '.' or '-' first, not zarr.json"
                    )
            return {
                "type": "Dict",
                "spaces": {key: space_to_json(value) for key, value in sorted(space.items())},
            }
        case spaces.Tuple():
            return {"type": "Tuple", "spaces": [space_to_json(value) for value in space]}
    raise SchemaError(
        f"a {type(space).__name__} space cannot be stored: expected Box, Discrete, MultiDiscrete, "
        "MultiBinary, Dict or Tuple"
    )


def space_from_json(data: object) -> gymnasium.Space[Any]:
    """Return the space of a JSON form.

    Raises:
        SchemaError: the form is unknown, or names absurd sizes.
    """
    if not isinstance(data, dict):
        raise SchemaError(f"a space is a JSON object, found {data!r:.80}")
    fields = dict(data)
    kind = fields.pop("type", None)
    try:
        space = _build(kind, fields)
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
        raise SchemaError(f"a space of type {kind!r} cannot be read: {error}") from error
    if fields:
        raise SchemaError(f"a {kind} space has no field {next(iter(fields))!r}")
    return space


def _build(kind: object, fields: dict[str, Any]) -> gymnasium.Space[Any]:
    match kind:
        case "Box":
            shape, dtype = _shape(fields.pop("shape")), _dtype(fields.pop("dtype"))
            low = _bounds_from_json(fields.pop("low"), shape, dtype)
            high = _bounds_from_json(fields.pop("high"), shape, dtype)
            return spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            return spaces.Discrete(_integer(fields.pop("n")), start=_integer(fields.pop("start")))
        case "MultiDiscrete":
            dtype = _dtype(fields.pop("dtype"))
            nvec, start = (_integers(fields.pop(key)) for key in ("nvec", "start"))
            return spaces.MultiDiscrete(
                np.array(nvec, dtype), dtype.type, start=np.array(start, dtype)
            )
        case "MultiBinary":
            shape = _shape(fields.pop("shape"))
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
        case "Dict":
            return spaces.Dict(
                {key: space_from_json(value) for key, value in fields.pop("spaces").items()}
            )
        case "Tuple":
            return spaces.Tuple([space_from_json(value) for value in fields.pop("spaces")])
    raise SchemaError(f"unknown type of space {kind!r}")


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


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise SchemaError(f"expected an integer, found {value!r:.80}")
    return value


def _integers(value: Any) -> Any:
    """Check nested lists of integers."""
    if isinstance(value, list):
        return [_integers(item) for item in value]
    return _integer(value)


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise SchemaError(f"a shape is a list of integers, found {value!r:.80}")
    shape = tuple(_integer(size) for size in value)
    if any(size < 0 for size in shape) or math.prod(shape) > _LARGEST:
        raise SchemaError(f"shape {shape} is negative or absurdly large")
    return shape


def _dtype(name: Any) -> np.dtype[Any]:
    dtype = np.dtype(str(name))
    if dtype.kind not in "biuf" or dtype.hasobject:
        raise SchemaError(f"dtype {name!r} is not a number")
    return dtype


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


def _bounds_from_json(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    infinities = {"inf": math.inf, "-inf": -math.inf}

    def number(item: Any) -> Any:
        if isinstance(item, list):
            return [number(inner) for inner in item]
        if isinstance(item, str):
            return infinities[item]
        if isinstance(item, bool | int | float):
            return item
        raise SchemaError(f"a bound of a Box is a number, found {item!r:.80}")

    bounds = np.array(number(value), dtype)
    if bounds.shape not in ((), shape):
        raise SchemaError(f"bounds of shape {bounds.shape} in a Box of shape {shape}")
    return np.broadcast_to(bounds, shape)
