"""What the numbers in a row of an array are called, where texts beside it say so: `dof_names`, an attribute `joint_names`.

A list belongs to the array whose attribute it is. Otherwise the nearest one counts, in the array's own group or one
around it, whose length is the width of the array; `body_names` is only for arrays whose names begin with `body`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats._containers.hdf5_files import (
    attribute,
    check_heaps,
    child,
    names_in,
    reading,
)
from orlog.datasets.formats._containers.npz_files import NpyFolder, NpzFile, reading_npz
from orlog.datasets.formats._containers.zarr_arrays import ZarrFile
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


def is_list_of_names(path: str) -> bool:
    """Return whether an array or attribute is called as lists of names are: `meta/dof_names`, `qpos@names`."""
    return NAMES.fullmatch(re.split("[/@]", path)[-1]) is not None


def texts_of(value: Any) -> list[str]:
    """Return a list of texts that differ from each other; nothing where it is something else."""
    values = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(values, list) or not 0 < len(values) <= MOST_NAMES:
        return []
    texts = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in values]
    is_named = all(isinstance(text, str) and text.isprintable() and text for text in texts)
    is_short = is_named and max(map(len, texts)) <= LONGEST_NAME
    return texts if is_short and len({*texts}) == len(texts) else []


def names_for(array: str, shape: Sequence[int], lists: Mapping[str, Read]) -> AxisNames:
    """Return what the numbers in a row of an array are called; nothing where no list fits it, or several differ.

    Args:
        array: Its path.
        shape: Its shape, of which the first is rows.
        lists: Reads the texts of arrays and attributes by their paths: `meta/dof_names`, `obs/qpos@joint_names`.
    """
    if len(shape) != 2:
        return NO_NAMES
    by_place: dict[str, list[str]] = {}
    for path in lists:
        place, sign, _ = path.rpartition("@") if "@" in path else path.rpartition("/")
        is_near = place in ("", array) or array.startswith(f"{place}/")
        if is_near and (_may_name(path, array) or (sign == "@" and place == array)):
            by_place.setdefault(place, []).append(path)
    for place in sorted(by_place, key=len, reverse=True):
        fitting = {tuple(texts_of(lists[path]())): path for path in by_place[place]}
        fitting = {names: path for names, path in fitting.items() if len(names) == shape[1]}
        if fitting:
            return AxisNames(*fitting.popitem()) if len(fitting) == 1 else NO_NAMES
    return NO_NAMES


def _may_name(path: str, array: str) -> bool:
    """Return whether a list that lies beside an array may be about it, by their names."""
    match, last = NAMES.fullmatch(re.split("[/@]", path)[-1]), array.rpartition("/")[2].lower()
    stem = match[1] if match else None
    is_of_joints = any(joint in last for joint in JOINTS)
    if stem is None or stem.lower() in JOINTS:
        return is_of_joints or NO_JOINTS.search(last) is None
    return last.startswith(stem.lower())


def lists_in_npz(path: Path, archive: NpzFile | NpyFolder) -> dict[str, Read]:
    """Return the lists of names in an npz file or a folder of npy; arrays of objects are pickles, and not read."""

    def read(name: str) -> Any:
        with reading_npz(archive.where):
            if path.is_dir():
                return np.load(path / f"{name}.npy", allow_pickle=False)
            with np.load(path, allow_pickle=False) as arrays:
                return arrays[name]

    return {
        name: functools.partial(read, name)
        for name in filter(is_list_of_names, archive.names)
        if archive.dtype(name).kind in "US" and math.prod(archive.shape(name)) <= MOST_NAMES
    }


def lists_in_zarr(file: ZarrFile) -> dict[str, Read]:
    """Return the lists of names in a folder or archive of Zarr: arrays of texts, and attributes (`qpos@names`)."""

    def read(name: str) -> Any:
        with contextlib.suppress(OrlogError):
            return file.texts(name)
        return []

    lists: dict[str, Read] = {
        name: functools.partial(read, name) for name in filter(is_list_of_names, file.names)
    }
    for name in filter(is_list_of_names, file.attributes()):
        place, _, attribute_name = name.rpartition("@")
        lists[name] = file.attributes_at(place)[attribute_name]
    return lists


def lists_in_hdf5(file: Any, path: Path, where: str) -> Callable[[str], dict[str, Read]]:
    """Return what gives the lists of names around an array of an open file, by the path of the array."""
    checked: list[bool] = []

    def read(kind: str, value: Read) -> Any:
        if kind == "O" and not checked:  # texts of any length
            check_heaps(path, file, where)
            checked.append(True)
        with reading(where):
            return value()

    @functools.cache
    def lists_at(place: str) -> dict[str, Read]:
        lists: dict[str, Read] = {}
        node = file[place] if place else file
        for name in filter(is_list_of_names, node.attrs.keys()):
            kind = node.attrs.get_id(name).dtype.kind
            value = functools.partial(attribute, node, name, where)
            lists[f"{place}@{name}"] = functools.partial(read, kind, value)
        for name in filter(is_list_of_names, names_in(node)):
            inner = child(node, name, f"{where}, {place}", "names of numbers")
            shape: tuple[int, ...] = getattr(inner, "shape", ())
            if len(shape) == 1 and shape[0] <= MOST_NAMES and inner.dtype.kind in "OS":
                value = functools.partial(inner.__getitem__, slice(None))
                inside = f"{place}/{name}".lstrip("/")
                lists[inside] = functools.partial(read, inner.dtype.kind, value)
        return lists

    def around(array: str) -> dict[str, Read]:
        parts = array.split("/")
        places = ["/".join(parts[:end]) for end in range(len(parts) + 1)]
        return {name: read for place in places for name, read in lists_at(place).items()}

    return around


def names_in_demonstrations(
    file: Any, path: Path, where: str, groups: Sequence[str], parts: Mapping[str, str]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the names of the numbers of columns in robomimic's layout, and the lists that say them.

    Args:
        file: The open file.
        path: Where it lies.
        where: What errors call it.
        groups: The groups of demonstrations.
        parts: Where each part of the observations lies in `obs`.

    Raises SchemaError if another group has other names than the first, or has them in another order.
    """
    around = lists_in_hdf5(file, path, where)
    names: dict[str, list[str]] = {}
    sources: list[str] = []
    arrays = {f"observations/{part}": f"obs/{inner}" for part, inner in parts.items()}
    arrays["actions"] = "actions"
    for column, array in arrays.items():
        for group in groups:
            inside = f"{group}/{array}"
            texts, source = names_for(inside, file[inside].shape, around(inside))
            if group == groups[0] and texts:
                names[column] = [*texts]
                sources.append(source.removeprefix(group).lstrip("/"))
            if [*texts] != names.get(column, []):
                raise SchemaError(
                    f"{where}, {inside}: its numbers are called {', '.join(texts) or 'nothing'}, and those of "
                    f"{groups[0]} {', '.join(names[column])}, in this order. Import these groups apart, with --map."
                )
            if not source.startswith(group):
                break  # no list, or one of all groups
    return names, sources


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
