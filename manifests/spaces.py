"""Gymnasium spaces as JSON, and the leaves whose values are stored.

Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict, Tuple, Sequence, Graph and OneOf, nested to
32 levels. A Dict or Tuple becomes one leaf per part, named by its path: `observations/goal`,
`observations/0`. `datasets/columns/values.py` says which columns hold the values of a leaf.

Keys of a Dict that cannot name a file are escaped in the path: each byte other than a letter, a
digit, `_`, `-` and `.`, and a leading `.` or `-`, becomes `~` and two hexadecimal digits, so
`bottom burner` is at `observations/bottom~20burner`. In keys that differ only in case, capitals are
escaped too. The empty key is `~`.

A space of another type is stored as one of these that its samples fit, with the name of its type.
"""

from __future__ import annotations

import collections
import copy
import math
import re
import string
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.errors import SchemaError, clause

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NUMBERS = {
    "bool": bool,
    **dict.fromkeys(("int8", "int16", "int32", "int64"), int),
    **dict.fromkeys(("uint8", "uint16", "uint32", "uint64"), int),
    **dict.fromkeys(("float16", "float32", "float64"), float),
}
_KEPT = frozenset(string.ascii_letters + string.digits + "_.-")
_ORIGINAL = "orlog_original_type"  # attribute of a space that stands in for another type
_PROBES = 16
_LONGEST_TEXT = 2**16
_LONGEST_TYPE = 200
_DEEPEST = 32
# The most numbers that one row of all leaves together may hold, and the least that each space
# counts for: so neither a size nor a count in a manifest makes orlog allocate without bound.
_LARGEST = 2**24
_SMALLEST = 2**10
# What Gymnasium and NumPy raise for fields that make no space.
_UNREADABLE: tuple[type[Exception], ...] = (ArithmeticError, AssertionError, AttributeError)
_UNREADABLE += (KeyError, RecursionError, TypeError, ValueError)


def space_to_json(space: gymnasium.Space[Any]) -> dict[str, Json]:
    """Return the JSON form of a space, from which an equal space can be read.

    Raises SchemaError if the space, or one inside it, cannot be stored.
    """
    data = _write(space, 1)
    if space_from_json(data) != space:
        raise SchemaError(f"the space {space!s:.200} cannot be stored: reading its JSON gives another space.")
    return data


def _write(space: gymnasium.Space[Any] | None, depth: int) -> dict[str, Json]:
    if depth > _DEEPEST:
        raise SchemaError(f"a space nested deeper than {_DEEPEST} levels cannot be stored.")
    original = None if space is None else original_type(space)
    return {**_fields(space, depth), **({} if original is None else {"original": original})}


def _fields(space: gymnasium.Space[Any] | None, depth: int) -> dict[str, Json]:
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
            counts: dict[str, Json] = {"n": int(space.n), "start": int(space.start)}
            plain = {"type": "Discrete", **counts}
            return plain if space.dtype == np.int64 else {**plain, "dtype": str(space.dtype)}
        case spaces.MultiDiscrete():
            return {
                "type": "MultiDiscrete",
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
                "dtype": str(space.dtype),
            }
        case spaces.MultiBinary():
            # Gymnasium distinguishes MultiBinary([3]) from MultiBinary(3).
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
            return {"type": "Dict", "spaces": {key: _write(value, depth + 1) for key, value in sorted(space.items())}}
        case spaces.Tuple():
            return {"type": "Tuple", "spaces": [_write(value, depth + 1) for value in space]}
        case spaces.Sequence():
            return {"type": "Sequence", "space": _write(space.feature_space, depth + 1), "stack": bool(space.stack)}
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
        "MultiBinary, Text, Dict, Tuple, Sequence, Graph or OneOf."
    )


def space_from_json(data: object) -> gymnasium.Space[Any]:
    """Return the space of a JSON form.

    Raises SchemaError if the form is unknown, or names absurd sizes.
    """
    return _Reader().read(data, 1)


class _Reader:
    """Builds one space and all spaces inside it within one budget of numbers."""

    def __init__(self) -> None:
        self.left = _LARGEST

    def read(self, data: object, depth: int) -> gymnasium.Space[Any]:
        if not isinstance(data, dict):
            raise SchemaError(f"a space is a JSON object, found {type(data).__name__}.")
        if depth > _DEEPEST:
            raise SchemaError(f"a space cannot be nested deeper than {_DEEPEST} levels.")
        fields = dict(data)
        kind, original = fields.pop("type", None), fields.pop("original", "")
        if type(original) is not str or len(original) > _LONGEST_TYPE or not original.isprintable():
            raise SchemaError(f"a space's original type is a name, found {original!r:.80}.")
        try:
            space = self._build(kind, fields, depth + 1)
            if original:
                setattr(space, _ORIGINAL, original)
        except SchemaError:
            raise
        except _UNREADABLE as error:
            raise SchemaError(f"a space of type {kind!r:.80} cannot be read: {clause(error)}.") from error
        if fields:
            raise SchemaError(f"a {kind} space has no field {next(iter(fields))!r:.80}.")
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
                if "dtype" not in fields:  # older Gymnasium has int64 only
                    return spaces.Discrete(n, start=start)
                return spaces.Discrete(n, start=start, dtype=_dtype(fields.pop("dtype")))
            case "MultiDiscrete":
                dtype = _dtype(fields.pop("dtype"))
                counts, starts = (np.array(_integers(fields.pop(key)), dtype) for key in ("nvec", "start"))
                self._spend(counts.size)
                return spaces.MultiDiscrete(counts, dtype, start=starts)
            case "MultiBinary":
                shape = self._shape(fields.pop("shape"))
                listed = "listed" in fields
                if listed and (fields.pop("listed") is not True or len(shape) != 1):
                    raise SchemaError("a MultiBinary has the field listed only for one size, and then it is true.")
                return spaces.MultiBinary(shape[0] if len(shape) == 1 and not listed else shape)
            case "Text":
                charset = _charset(fields.pop("charset"))
                self._spend(len(charset))
                shortest, longest = (_integer(fields.pop(key)) for key in ("min_length", "max_length"))
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
        raise SchemaError(f"unknown type of space {kind!r:.80}.")

    def _read_all(self, parts: object, depth: int) -> list[gymnasium.Space[Any]]:
        return [self.read(part, depth) for part in _of_type(list, parts)]

    def _read_batched(self, data: object, depth: int, *, copies: int) -> gymnasium.Space[Any]:
        """Read a space that Gymnasium then copies: each level of nesting triples the cost."""
        before = self.left
        space = self.read(data, depth)
        self._spend(1 + 2 * copies * (before - self.left))
        return space

    def _shape(self, value: object) -> tuple[int, ...]:
        shape = tuple(_integer(size) for size in _of_type(list, value))
        if any(size < 0 for size in shape):
            raise SchemaError(f"shape {shape} is negative.")
        self._spend(math.prod(shape))
        return shape

    def _spend(self, numbers: int) -> None:
        self.left -= max(numbers, _SMALLEST)
        if self.left < 0:
            raise SchemaError(
                f"a space is too large: expected at most {_LARGEST} numbers in a row, where each "
                f"nested space counts for at least {_SMALLEST}."
            )


class SpaceLeaf(NamedTuple):
    """A space inside a Dict or Tuple that is neither: what a column, or a tensor, holds.

    Attributes:
        keys: Keys and indices that lead to it.
        path: Name of its column.
        space: The space: its kind, dtype and shape.
    """

    keys: tuple[str | int, ...]
    path: str
    space: gymnasium.Space[Any]


def space_leaves(space: gymnasium.Space[Any], path: str = "") -> Iterator[SpaceLeaf]:
    """Yield each leaf, with Dict keys sorted as Gymnasium flattens them."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part, value in named_parts(space):
            for leaf in space_leaves(value, f"{path}/{part}"):
                yield leaf._replace(keys=(key, *leaf.keys))
    else:
        yield SpaceLeaf((), path, space)


def leaf_spaces(space: gymnasium.Space[Any], path: str) -> Iterator[tuple[str, gymnasium.Space[Any]]]:
    """Yield (column name, space) of each leaf."""
    for leaf in space_leaves(space, path):
        yield leaf.path, leaf.space


def has_choices(space: gymnasium.Space[Any]) -> bool:
    """Return whether a value of a space holds a choice among a number of them."""
    choices = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    return any(isinstance(leaf, choices) for _, leaf in leaf_spaces(space, ""))


def map_leaves(
    space: gymnasium.Space[Any], make: Callable[[tuple[str | int, ...], gymnasium.Space[Any]], Any], *keys: str | int
) -> Any:
    """Return what a function makes of the keys and the space of each leaf, in dicts and tuples as its values are."""
    if isinstance(space, spaces.Dict):
        return {key: map_leaves(part, make, *keys, key) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
        return tuple(map_leaves(part, make, *keys, index) for index, part in parts)
    return make(keys, space)


def named_parts(space: spaces.Dict | spaces.Tuple) -> list[tuple[str | int, str, gymnasium.Space[Any]]]:
    """Return (key or index, its form in column names, space) of each part."""
    if isinstance(space, spaces.Tuple):
        return [(index, str(index), part) for index, part in enumerate(space)]
    times = collections.Counter(key.lower() for key in space)
    return [(key, _part(key, times[key.lower()] > 1), part) for key, part in sorted(space.items())]


def _part(key: str, is_twice: bool) -> str:
    """Return how a key is written in column names, which are file paths."""
    if not is_twice and _KEY.fullmatch(key) and key != "zarr.json":
        return key
    kept = _KEPT.difference(string.ascii_uppercase) if is_twice else _KEPT
    text = "".join(
        character if character in kept and not (character in ".-" and first) else f"~{byte:02X}"
        for first, byte, character in ((place == 0, byte, chr(byte)) for place, byte in enumerate(key.encode()))
    )
    return {"": "~", "zarr.json": "zarr~2Ejson"}.get(text, text)


def storable_space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Return a space in which spaces of unknown types are replaced by ones that their samples fit.

    Text samples become a Text, numbers and arrays of one shape a Box without bounds, dicts and
    tuples a Dict and a Tuple of such spaces. `original_type` of a replacement names the type that
    it stands in for. A space of Gymnasium's own types is returned as it is.

    Raises SchemaError if samples are none of these, or a key of a Dict is not text.
    """
    match space:
        case spaces.Dict():
            for key in space:
                _check_key(key)
            named = {key: storable_space(part) for key, part in space.items()}
            changed = any(named[key] is not part for key, part in space.items())
            return spaces.Dict(named) if changed else space
        case spaces.Tuple() | spaces.OneOf():
            parts = [storable_space(part) for part in space.spaces]
            if all(new is old for new, old in zip(parts, space.spaces, strict=True)):
                return space
            return spaces.Tuple(parts) if isinstance(space, spaces.Tuple) else spaces.OneOf(parts)
        case spaces.Sequence():
            inner = storable_space(space.feature_space)
            return space if inner is space.feature_space else spaces.Sequence(inner, stack=space.stack)
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return space
        case spaces.Text() | spaces.Graph():
            return space
    name = f"{type(space).__module__}.{type(space).__qualname__}"[:_LONGEST_TYPE]
    probe = copy.deepcopy(space)  # draws must not advance the original space
    probe.seed(0)
    try:
        samples = [probe.sample() for _ in range(_PROBES)]
    except NotImplementedError as error:
        raise SchemaError(f"a {name} space cannot be stored: it has no samples.") from error
    replacement = _space_of(samples)
    if replacement is None:
        raise SchemaError(
            f"a {name} space cannot be stored: expected samples that are texts, numbers or arrays of "
            f"one dtype and shape, or dicts or tuples of these, found {samples[0]!r:.80}."
        )
    setattr(replacement, _ORIGINAL, name)
    return replacement


def original_type(space: gymnasium.Space[Any]) -> str | None:
    """Return the name of the type that a space stands in for; None if it is not a replacement."""
    name: str | None = getattr(space, _ORIGINAL, None)
    return name


def _space_of(samples: Sequence[Any]) -> gymnasium.Space[Any] | None:
    """Return a space of Gymnasium's own types that the samples fit."""
    kinds = {type(sample) for sample in samples}
    if kinds == {str}:
        # Later texts may have usual characters that these few samples lack.
        charset = {*string.printable, *"".join(samples)}
        return spaces.Text(_LONGEST_TEXT, min_length=0, charset=frozenset(charset))
    if kinds == {dict} and len({frozenset(sample) for sample in samples}) == 1:
        named = {key: _space_of([sample[key] for sample in samples]) for key in samples[0]}
        if any(type(key) is not str or part is None for key, part in named.items()):
            return None
        return spaces.Dict({key: part for key, part in named.items() if part is not None})
    if kinds == {tuple} and len({len(sample) for sample in samples}) == 1:
        parts = [_space_of(values) for values in zip(*samples, strict=True)]
        known = [part for part in parts if part is not None]
        return spaces.Tuple(known) if len(known) == len(parts) else None
    if not all(isinstance(sample, np.ndarray | np.generic | int | float) for sample in samples):
        return None
    arrays = [np.asarray(sample) for sample in samples]
    forms = {(array.dtype, array.shape) for array in arrays}
    dtype, shape = forms.pop()
    if forms or dtype.name not in _NUMBERS:
        return None
    low, high = {"b": (0, 1), "f": (-np.inf, np.inf)}.get(dtype.kind) or (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(low, high, shape, dtype.type)


def _check_key(key: object) -> None:
    try:
        if type(key) is str:
            key.encode()
            return
    except UnicodeEncodeError:
        pass
    raise SchemaError(f"key {key!r:.80} of a Dict space cannot be stored: expected text that UTF-8 can hold.")


def _of_type(expected: type[Any], value: object) -> Any:
    if type(value) is not expected:
        raise SchemaError(f"expected a {expected.__name__}, found a {type(value).__name__}.")
    return value


def _integer(value: object) -> int:
    if type(value) is not int or abs(value) >= 2**64:
        raise SchemaError(f"expected an integer of 64 bits, found {value!r:.80}.")
    return value


def _integers(value: object) -> Any:
    """Check nested lists of integers."""
    if isinstance(value, list):
        return [_integers(item) for item in value]
    return _integer(value)


def _dtype(name: object) -> np.dtype[Any]:
    if name not in _NUMBERS:
        raise SchemaError(f"values of type {name!r:.80} cannot be stored: expected one of {', '.join(_NUMBERS)}.")
    return np.dtype(name)


def _charset(value: object) -> str:
    charset: str = _of_type(str, value)
    if charset != "".join(sorted(set(charset))):
        raise SchemaError("the charset of a Text is not sorted, or names a character twice.")
    charset.encode()  # refuses what UTF-8 cannot hold
    return charset


def _bounds_to_json(bounds: np.ndarray) -> Json:
    """Return one number if all bounds are equal, else nested lists; infinities as text."""
    if bounds.size and (bounds == bounds.flat[0]).all():
        return _number_to_json(bounds.flat[0].item())
    return _nest(bounds.tolist())


def _nest(value: Any) -> Json:
    return [_nest(item) for item in value] if isinstance(value, list) else _number_to_json(value)


def _number_to_json(value: float) -> Json:
    if math.isnan(value):
        raise SchemaError("a bound of a Box is not a number (NaN).")
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
            raise SchemaError(f"a bound of a {dtype} Box must be a number of that dtype, found {item!r:.80}.")
        return item

    with np.errstate(over="raise"):
        bounds = np.array(number(value), dtype)
    if bounds.size == math.prod(shape) == 0:  # lists cannot express (0, 3)
        return np.empty(shape, dtype)
    if bounds.shape not in ((), shape):
        raise SchemaError(f"bounds of shape {bounds.shape} in a Box of shape {shape}.")
    return np.broadcast_to(bounds, shape)
