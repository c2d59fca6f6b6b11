"""The values of a feature of TensorFlow Datasets, step by step, as numbers, texts and images."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.formats._shared.flags import NAMES, outcome_of, success_in
from orlog.datasets.formats._shared.flat_rows import unbounded_space
from orlog.datasets.formats._shared.pictures import opened_picture, picture_size
from orlog.datasets.formats._shared.safe_reading import reading
from orlog.datasets.formats.rlds.metadata import LARGEST_VALUE, STEPS, Leaf
from orlog.datasets.formats.rlds.tfrecords import Values, values_of
from orlog.errors import IntegrityError, SchemaError

PATHS = ("file_path", "recording_folderpath")
RAGGED_VALUES = "/ragged_flat_values"
RAGGED_LENGTHS = "/ragged_row_lengths_0"
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def stored_names(leaf: Leaf) -> list[str]:
    """Return the names that a feature has in a record."""
    if leaf.length is None or not leaf.name.startswith(f"{STEPS}/"):
        return [leaf.name]
    return [leaf.name + RAGGED_VALUES, leaf.name + RAGGED_LENGTHS]


def space_of(parts: Mapping[str, Leaf]) -> spaces.Space[Any]:
    """Return the space of features, a Dict where they have names."""
    if list(parts) == [""]:
        return _leaf_space(parts[""])
    groups: dict[str, dict[str, Leaf]] = {}
    for path, leaf in parts.items():
        name, _, rest = path.partition("/")
        groups.setdefault(name, {})[rest] = leaf
    return spaces.Dict({name: space_of(group) for name, group in groups.items()})


def _leaf_space(leaf: Leaf) -> spaces.Space[Any]:
    shape: Any = leaf.shape
    if leaf.kind == "classes" and leaf.classes:
        return spaces.Discrete(leaf.classes)
    if leaf.dtype.kind == "b":
        return (
            spaces.MultiBinary(shape if len(shape) > 1 else shape[0])
            if shape
            else spaces.Discrete(2)
        )
    if leaf.dtype.kind in "iu" and leaf.dtype != np.uint8:
        limits = np.iinfo(leaf.dtype)
        return spaces.Box(limits.min, limits.max, shape, leaf.dtype.type)
    return unbounded_space(leaf.dtype, shape)


def stored_dtype(leaf: Leaf) -> np.dtype[Any]:
    """Return the dtype of values of the space of a feature."""
    if leaf.dtype.kind == "b":
        return np.dtype(np.int8 if leaf.shape else np.int64)
    return leaf.dtype


def is_number(leaf: Leaf | None) -> bool:
    """Return whether a feature is one number in each value."""
    return leaf is not None and leaf.kind == "numbers" and leaf.size == 1 and leaf.length is None


def is_path(leaf: Leaf) -> bool:
    """Return whether a feature of episodes is the path that each comes from."""
    return leaf.kind == "text" and leaf.name.rpartition("/")[2] in PATHS


def stated_success(
    column: Callable[[Leaf], Column],
    metadata: Mapping[str, Leaf],
    infos: Mapping[str, Leaf],
    rows: int,
) -> int:
    """Return 1 or 0 where a record states whether its episode succeeded, -1 where it does not.

    Its metadata say it by a number, or as DROID's by the folder that the episode comes from; else its steps do.
    """
    success = metadata.get("success")
    if success is not None and is_number(success):
        return int(column(success).rows(0, 1)[0] > 0)
    paths = [column(leaf).rows(0, 1)[0] for leaf in metadata.values() if is_path(leaf)]
    outcomes = map(outcome_of, paths)
    for outcome in outcomes:
        if outcome is not None:
            return int(outcome)
    of_steps = {name: infos[name] for name in NAMES if is_number(infos.get(name))}
    found = success_in({name: column(leaf).rows(0, rows) for name, leaf in of_steps.items()})
    if found is None:
        return -1
    return int(found.any() if "success" in of_steps else found[-1])


class Column:
    """The values of a feature in one record, a row a step.

    A row of `numbers` and `classes` is one of an array, as is one of an `image`; one of `text` is a text, and one of
    a sequence without a fixed length an array of its own.
    """

    def __init__(self, example: Mapping[str, Any], leaf: Leaf, where: str) -> None:
        """Take a feature of a record.

        Raises IntegrityError if the record has none of that name, or it holds values of another kind.
        """
        self.leaf, self.where = leaf, f"{where}, {leaf.name}"
        names = stored_names(leaf)
        missing = [name for name in names if name not in example]
        if missing:
            raise IntegrityError(
                f"{where}: has no feature {missing[0]}, which features.json says.", file=where
            )
        self._values: Values
        self._values, *lengths = (values_of(example[name]) for name in names)
        is_of_bytes = leaf.kind in ("text", "image") or bool(leaf.encoding)
        if isinstance(self._values, list) != is_of_bytes and len(self._values):
            raise self._error(
                f"expected {'bytes' if is_of_bytes else 'numbers'}, found values of another kind"
            )
        self._stops: np.ndarray | None = None
        if lengths:
            self._stops = self._stops_of(np.asarray(lengths[0]))
        self.replaced_bytes = 0  # texts that are no UTF-8

    def _error(self, what: str) -> IntegrityError:
        return IntegrityError(f"{self.where}: {what}.", file=self.where)

    def _stops_of(self, lengths: np.ndarray) -> np.ndarray:
        fixed = self.leaf.length not in (-1, None)
        if lengths.dtype.kind != "i" or (lengths < 0).any() or (lengths > LARGEST_VALUE).any():
            raise self._error("its sequences have no lengths, or are too long")
        if fixed and (lengths != self.leaf.length).any():
            raise self._error(f"a sequence has {lengths.min()} values, expected {self.leaf.length}")
        return np.cumsum(lengths)

    def __len__(self) -> int:
        """Return the number of rows.

        Raises IntegrityError if the numbers are no whole number of rows.
        """
        size, count = max(1, self.leaf.size), len(self._values)
        if self._stops is not None or isinstance(self._values, list):
            return count if self._stops is None else len(self._stops)
        if count % size:
            raise self._error(f"holds {count:,} numbers, and one step has {size}")
        return count // size

    def check(self, rows: int) -> None:
        """Refuse other than so many rows.

        Raises IntegrityError if there are more or fewer.
        """
        size, count = self.leaf.size, len(self._values)
        pairs = [(count, rows if isinstance(self._values, list) else rows * size)]
        if self._stops is not None:
            pairs = [(len(self._stops), rows), (count, int(self._stops[-1:].sum()) * size)]
        for present, wanted in pairs:
            if present != wanted:
                how = "more" if present > wanted else "fewer"
                raise self._error(f"it holds {how} values than steps")

    def rows(self, start: int, stop: int) -> Any:
        """Return the values of some rows.

        Raises IntegrityError if there are fewer, or they are not what features.json says.
        """
        leaf, values = self.leaf, self._values
        if self._stops is not None:
            return self._sequences(start, stop)
        if isinstance(values, list):
            some = values[start:stop]
            if len(some) < stop - start:
                raise self._error("it holds fewer values than steps")
            if leaf.kind == "text":
                return [self._text(one) for one in some]
            return self._images(some) if leaf.kind == "image" else self._encoded(some)
        part = values[start * leaf.size : stop * leaf.size]
        if len(part) < (stop - start) * leaf.size:
            raise self._error("it holds fewer values than steps")
        return self._typed(part).reshape(stop - start, *(one or 0 for one in leaf.shape))

    def first_bytes(self) -> bytes:
        """Return the first value as it is stored."""
        if not isinstance(self._values, list) or not self._values:
            raise self._error("it holds fewer values than steps")
        return self._values[0]

    def _typed(self, values: np.ndarray) -> np.ndarray:
        """Return numbers in the dtype that features.json says, if it holds them."""
        dtype = self.leaf.dtype
        if len(values) and (values.dtype.kind == "f") != (dtype.kind == "f"):
            found = "floats" if values.dtype.kind == "f" else "integers"
            raise self._error(f"expected {dtype}, found {found}")
        with np.errstate(over="ignore"):
            kept = values.astype(dtype)
        if dtype.kind in "iub" and dtype.itemsize < 8 and (kept != values).any():
            raise self._error(f"holds integers that are no {dtype}")
        return kept

    def _text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.replaced_bytes += 1
            return data.decode(errors="backslashreplace")

    def _encoded(self, some: Sequence[bytes]) -> np.ndarray:
        leaf, dtype = self.leaf, self.leaf.dtype.newbyteorder("<")
        size = leaf.size * dtype.itemsize
        rows = [self._inflated(one, size) if leaf.encoding == "zlib" else one for one in some]
        for row in rows:
            if len(row) != size:
                raise self._error(
                    f"expected {size} bytes for {dtype} {leaf.shape}, found {len(row)}"
                )
        array = np.frombuffer(b"".join(rows), np.uint8 if dtype.kind == "b" else dtype)
        return array.astype(leaf.dtype).reshape(len(some), *(one or 0 for one in leaf.shape))

    def _inflated(self, data: bytes, size: int) -> bytes:
        stream = zlib.decompressobj()
        with reading(self.where):
            inflated = stream.decompress(data, size + 1)
        if not stream.eof:
            raise self._error(f"its compressed bytes do not give {size} bytes")
        return inflated

    def _sequences(self, start: int, stop: int) -> Any:
        leaf, stops = self.leaf, self._stops
        assert stops is not None
        if len(stops) < stop or (stop and stops[stop - 1] * leaf.size > len(self._values)):
            raise self._error("it holds fewer values than steps")
        first = int(stops[start - 1]) if start else 0
        last = int(stops[stop - 1]) if stop else 0
        flat = self._typed(np.asarray(self._values[first * leaf.size : last * leaf.size]))
        rows = flat.reshape(last - first, *(one or 0 for one in leaf.shape))
        parts = np.split(rows, stops[start:stop] - first)[:-1]
        return parts if leaf.length == -1 else np.stack(parts)

    def _images(self, some: Sequence[bytes]) -> np.ndarray:
        shape: Any = self.leaf.shape
        frames = np.empty((len(some), *shape), np.uint8)
        for row, data in enumerate(some):
            frames[row] = _pixels(data, shape, self.where)
        return frames


def image_shape(data: bytes, shape: tuple[int | None, ...], where: str) -> tuple[int, ...]:
    """Return the shape of an image, of which some sizes may be said.

    Raises IntegrityError if it is no image; SchemaError if it has another shape than was said, or is too
    large.
    """
    with opened_picture(data, where) as image:
        sizes = picture_size(image)
    found = tuple(one or other for one, other in zip(shape, sizes, strict=False))
    if len(shape) != 3 or math.prod(found) > LARGEST_VALUE:
        raise SchemaError(f"{where}: an image of {sizes} is too large, or no frame.")
    return found


def _pixels(data: bytes, shape: tuple[int, ...], where: str) -> np.ndarray:
    with opened_picture(data, where) as image:
        mode = MODES.get(shape[-1])
        sizes = picture_size(image)
        if sizes[:2] != shape[:2] or mode is None or (sizes[2] != shape[2] and sizes[2] != 1):
            raise IntegrityError(f"{where}: expected images of {shape}, found {sizes}.", file=where)
        if image.mode not in ("1", "L", "P", "RGB", "RGBA"):
            raise SchemaError(f"{where}: images of the kind {image.mode} are not read.")
        return np.asarray(image if image.mode == mode else image.convert(mode)).reshape(shape)
