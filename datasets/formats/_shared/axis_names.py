"""What the numbers in a row of an array are called, where texts beside it say so: `dof_names`, an attribute `joint_names`.

A list belongs to the array whose attribute it is. Otherwise the nearest one counts, in the array's own group or one
around it, whose length is the width of the array; `body_names` is only for arrays whose names begin with `body`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from orlog.errors import OrlogError, SchemaError

NAMES = re.compile(r"(?:(.+)_)?names?")
JOINTS = ("joint", "joints", "dof", "dofs", "motor", "actuator")
NO_JOINTS = re.compile(r"pose|quat|rot|eef|(^|_)ee(_|$)|tcp|cart|wrench|reward|image|depth")
LONGEST_NAME, MOST_NAMES = 100, 4096
Read = Callable[[], Any]


class AxisNames(NamedTuple):
    """What the numbers in a row of an array are called, and the list that says it, as an import names it."""

    texts: Sequence[str]
    source: str = ""


NO_NAMES = AxisNames(())


def texts_of(value: Any) -> list[str]:
    """Return a list of texts that differ from each other; nothing where it is something else."""
    values = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(values, list) or not 0 < len(values) <= MOST_NAMES:
        return []
    texts = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in values]
    is_named = all(isinstance(text, str) and text.isprintable() and text for text in texts)
    is_short = is_named and max(map(len, texts)) <= LONGEST_NAME
    return texts if is_short and len({*texts}) == len(texts) else []


class Lists:
    """The lists of names in an open file of arrays."""

    def __init__(
        self,
        names: Sequence[str],
        attributes_at: Callable[[str], Mapping[str, Read]],
        whole: Callable[[str], Any],
    ) -> None:
        """Take the names of arrays, what gives the attributes at a path, and what reads a small array of texts."""
        self._attributes_at, self._whole = attributes_at, whole
        self._arrays: dict[str, list[str]] = {}
        for path in names:
            group, _, name = path.rpartition("/")
            if NAMES.fullmatch(name):
                self._arrays.setdefault(group, []).append(path)

    def names_of(self, array: str, shape: Sequence[int]) -> AxisNames:
        """Return what the numbers in a row of an array are called; nothing where no list fits it, or several differ.

        `shape` is that of the array, of which the first is rows.
        """
        parts = array.split("/")
        for end in range(len(parts), -1, -1) if len(shape) == 2 else ():
            place = "/".join(parts[:end])
            fitting: dict[tuple[str, ...], str] = {}
            for path, read in self._lists_at(place):
                if place == array or _may_name(path, array):
                    texts = texts_of(read())
                    fitting |= {tuple(texts): path} if len(texts) == shape[1] else {}
            if fitting:
                return AxisNames(*fitting.popitem()) if len(fitting) == 1 else NO_NAMES
        return NO_NAMES

    def _lists_at(self, place: str) -> Iterator[tuple[str, Read]]:
        """Yield the lists of a group, or the attributes of an array."""
        for name, read in self._attributes_at(place).items():
            if NAMES.fullmatch(name):
                yield f"{place}@{name}", read
        for path in self._arrays.get(place, ()):
            yield path, functools.partial(self._texts, path)

    def _texts(self, path: str) -> Any:
        try:
            return self._whole(path)
        except OrlogError:  # it holds something else
            return []


def _may_name(path: str, array: str) -> bool:
    """Return whether a list that lies beside an array may be about it, by their names."""
    match, last = NAMES.fullmatch(re.split("[/@]", path)[-1]), array.rpartition("/")[2].lower()
    stem = match[1] if match else None
    is_of_joints = any(joint in last for joint in JOINTS)
    if stem is None or stem.lower() in JOINTS:
        return is_of_joints or NO_JOINTS.search(last) is None
    return last.startswith(stem.lower())


def column_of(role: str) -> str:
    """Return the column that a role becomes: `actions`, `observations/arm`, `infos/torque`."""
    base, slash, part = role.partition("/")
    return f"{base if base == 'infos' else base + 's'}{slash}{part}"


def dimension_names(arrays: Sequence[str], names_of: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of all numbers of the arrays that make a column; nothing unless all have short ones.

    The name of the array stands before them where they would not differ.
    """
    if not all(names_of.get(array) for array in arrays):
        return []
    names = [name for array in arrays for name in names_of[array]]
    if len({*names}) < len(names):
        names = [
            array if array.endswith(f".{name}") else f"{array}.{name}"
            for array in arrays
            for name in names_of[array]
        ]
    return texts_of(names)


def check_names(names: Sequence[str], expected: Sequence[str], array: str, where: str) -> None:
    """Refuse an array whose numbers are called otherwise than those of the first file or group; their order may differ.

    Raises SchemaError, which names both.
    """
    if names and {*names} != {*expected}:
        raise SchemaError(
            f"{where}, {array}: holds {', '.join(names)}; before it held {', '.join(expected)}. Import what has other "
            "names as a dataset of its own."
        )


def in_order(column: Any, names: Sequence[str], wanted: Sequence[str]) -> Any:
    """Return an array with its numbers in the order of the names that are wanted."""
    if not names or [*names] == [*wanted]:
        return column
    return _Reordered(column, [[*names].index(name) for name in wanted])


class _Reordered:
    """An array whose numbers are put into another order."""

    def __init__(self, column: Any, order: list[int]) -> None:
        self._column, self._order = column, order
        self.shape, self.dtype = column.shape, column.dtype

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return np.asarray(self._column[rows])[:, self._order]
