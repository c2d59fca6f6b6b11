"""The values of a feature of TensorFlow Datasets, step by step, as numbers, texts and images."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np
from gymnasium import spaces

from orlog.datasets.formats._containers.pictures import opened_picture, picture_size
from orlog.datasets.formats._shared.flags import NAMES, outcome_of, success_in
from orlog.datasets.formats._shared.flat_rows import unbounded_space
from orlog.datasets.formats.rlds.metadata import LARGEST_VALUE, STEPS, Leaf
from orlog.datasets.formats.rlds.tf_examples import READ_AT_ONCE, Feature, Values
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
        return int(column(success).rows(1)[0] > 0)
    outcomes = [outcome_of(column(leaf).rows(1)[0]) for leaf in metadata.values() if is_path(leaf)]
    for outcome in outcomes:
        if outcome is not None:
            return int(outcome)
    of_steps = {name: infos[name] for name in NAMES if is_number(infos.get(name))}
    found = success_in({name: column(leaf).rows(rows) for name, leaf in of_steps.items()})
    if found is None:
        return -1
    return int(found.any() if "success" in of_steps else found[-1])


class Column:
    """The values of a feature in one record, from the first to the last.

    A value of `numbers` and `classes` is a row of an array, one of an `image` too, one of `text` a
    text, and one of a sequence without a fixed length an array of its own.
    """

    def __init__(
        self, file: BinaryIO, example: Mapping[str, Feature], leaf: Leaf, where: str
    ) -> None:
        """Begin at the first value.

        Raises IntegrityError if the record has no such feature.
        """
        self.leaf = leaf
        self.where = f"{where}, {leaf.name}"
        names = stored_names(leaf)
        missing = [name for name in names if name not in example]
        if missing:
            raise IntegrityError(
                f"{where}: has no feature {missing[0]}, which features.json says.", file=where
            )
        self._values, *lengths = (Values(file, example[name], self.where) for name in names)
        self._lengths = lengths[0] if lengths else None
        self.replaced_bytes = 0  # texts that are no UTF-8

    def rows(self, count: int) -> Any:
        """Return the next values.

        Raises IntegrityError if there are fewer, or they are not what features.json says.
        """
        leaf = self.leaf
        if leaf.kind == "text":
            return [self._text() for _ in range(count)]
        if leaf.kind == "image":
            return self._images(count)
        if self._lengths is not None:
            return self._sequences(self._lengths.numbers(count))
        if leaf.encoding:
            return self._encoded(count)
        length = 1 if leaf.length is None else leaf.length
        found = self._typed(self._values.numbers(count * length * leaf.size))
        shape = leaf.shape if leaf.length is None else (length, *leaf.shape)
        return found.reshape(count, *(one or 0 for one in shape))

    def skip(self, count: int) -> None:
        """Go past some values."""
        leaf = self.leaf
        if self._values.kind == "bytes":
            for _ in range(count):
                self._values.one_bytes(skip=True)
        elif self._lengths is not None:
            self._sequences(self._lengths.numbers(count))
        else:
            at_once = max(1, READ_AT_ONCE // max(1, leaf.size))
            for start in range(0, count, at_once):
                self._values.numbers(min(at_once, count - start) * leaf.size)

    def left(self) -> int:
        """Return how many values are left, and go past them.

        Raises IntegrityError if they are no whole number of values.
        """
        if self._lengths is not None:
            return len(self._lengths.all_numbers())
        if self._values.kind == "bytes":
            return self._values.left_bytes()
        found = self._values.left_numbers()
        if found % max(1, self.leaf.size):
            raise IntegrityError(
                f"{self.where}: holds {found:,} numbers, and one step has {self.leaf.size}.",
                file=self.where,
            )
        return found // max(1, self.leaf.size)

    def check_end(self) -> None:
        """Refuse values after those that were taken.

        Raises IntegrityError if there are some.
        """
        for values in filter(None, (self._values, self._lengths)):
            values.check_end()

    def _typed(self, values: np.ndarray) -> np.ndarray:
        """Return numbers in the dtype that features.json says, if it holds them."""
        dtype = self.leaf.dtype
        if values.dtype.kind == "f" and dtype.kind != "f":
            raise IntegrityError(f"{self.where}: expected {dtype}, found floats.", file=self.where)
        if dtype.kind == "f" and values.dtype.kind != "f" and len(values):
            raise IntegrityError(
                f"{self.where}: expected {dtype}, found integers.", file=self.where
            )
        with np.errstate(over="ignore"):
            found = values.astype(dtype)
        if dtype.kind in "iub" and dtype.itemsize < 8 and (found != values).any():
            raise IntegrityError(
                f"{self.where}: holds integers that are no {dtype}.", file=self.where
            )
        return found

    def _text(self) -> str:
        data = self._values.one_bytes()
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.replaced_bytes += 1
            return data.decode(errors="backslashreplace")

    def _encoded(self, count: int) -> np.ndarray:
        leaf = self.leaf
        dtype = leaf.dtype.newbyteorder("<")
        size = leaf.size * dtype.itemsize
        rows = []
        for _ in range(count):
            data = self._values.one_bytes()
            if leaf.encoding == "zlib":
                data = self._inflated(data, size)
            if len(data) != size:
                raise IntegrityError(
                    f"{self.where}: expected {size} bytes for {dtype} {leaf.shape}, found {len(data)}.",
                    file=self.where,
                )
            rows.append(data)
        array = np.frombuffer(b"".join(rows), np.uint8 if dtype.kind == "b" else dtype)
        return array.astype(leaf.dtype).reshape(count, *(one or 0 for one in leaf.shape))

    def _inflated(self, data: bytes, size: int) -> bytes:
        stream = zlib.decompressobj()
        try:
            found = stream.decompress(data, size + 1)
        except zlib.error as error:
            raise IntegrityError(f"{self.where}: {error}.", file=self.where) from error
        if not stream.eof:
            raise IntegrityError(
                f"{self.where}: its compressed bytes do not give {size} bytes.", file=self.where
            )
        return found

    def _sequences(self, lengths: np.ndarray) -> Any:
        leaf = self.leaf
        if (lengths < 0).any() or (
            leaf.length not in (-1, None) and (lengths != leaf.length).any()
        ):
            raise IntegrityError(
                f"{self.where}: a sequence has {lengths.min()} values, expected {leaf.length}.",
                file=self.where,
            )
        shape = tuple(one or 0 for one in leaf.shape)
        found = []
        for length in lengths.tolist():
            if length * max(1, leaf.size) > LARGEST_VALUE:
                raise IntegrityError(
                    f"{self.where}: a sequence of {length:,} values is too long.", file=self.where
                )
            values = self._typed(self._values.numbers(length * leaf.size))
            found.append(values.reshape(length, *shape))
        return found if leaf.length == -1 else np.stack(found)

    def _images(self, count: int) -> np.ndarray:
        shape: Any = self.leaf.shape
        found = np.empty((count, *shape), np.uint8)
        for row in range(count):
            found[row] = _pixels(self._values.one_bytes(), shape, self.where)
        return found

    def first_bytes(self) -> bytes:
        """Return the next value as it is stored."""
        return self._values.one_bytes()


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
