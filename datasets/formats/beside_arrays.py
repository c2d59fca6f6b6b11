"""What files say beside arrays: what the numbers in a row are called, and values of whole episodes.

A list of names (`dof_names`, an attribute `joint_names`) belongs to the array whose attribute it is. Otherwise the nearest
one counts, in the array's own group or one around it, whose length is the width of the array; `body_names` is only for
arrays whose names begin with `body`.

Values of episodes are attributes, keys in those that are JSON, and arrays with a row for each episode:

    --map episodes/task=@current_task                        the attribute current_task
    --map episodes/task=@problem_info:language_instruction   a key in an attribute that is JSON; `:a.b` is a key in a key
    --map episodes/task=metadata@instruction                 an attribute of the group metadata
    --map episodes/score=meta/scores                         an array with a row for each episode

The attribute nearest to an episode counts: that of its own group, then those of the groups around it, up to the file's.
Where nothing says `episodes/task`, the names count by which LIBERO, RoboCasa, DROID and others keep it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.npz_files import LazyColumn
from orlog.errors import OrlogError, SchemaError
from orlog.manifests.names import did_you_mean

NAMES = re.compile(r"(?:(.+)_)?names?")
JOINTS = ("joint", "joints", "dof", "dofs", "motor", "actuator")
NO_JOINTS = re.compile(r"pose|quat|rot|eef|(^|_)ee(_|$)|tcp|cart|wrench|reward|image|depth")
LONGEST_NAME = 100
EPISODES, AXIS = "episodes", "episodes/"
TASK = "task"
TASKS = (
    "@language_instruction",
    "@natural_language_instruction",
    "@instruction",
    "@problem_info:language_instruction",  # LIBERO
    "@ep_meta:lang",  # RoboCasa
    "@current_task",  # DROID
    "@task_description",
)
"""Where files keep the task in words."""
AttributesAt = Callable[[str], Mapping[str, Any]]
"""Gives the attributes of the group or array at a path, which are read when they are looked up; none where nothing lies there."""


class AxisNames(NamedTuple):
    """What the numbers in a row of an array are called, and the list that says it, as an import names it."""

    texts: Sequence[str]
    source: str = ""


NO_NAMES = AxisNames(())


def texts_of(value: Any) -> list[str]:
    """Return a list of texts that differ from each other; nothing where it is something else."""
    values = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(values, list):
        return []
    texts = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in values]
    if not all(isinstance(text, str) and text.isprintable() and text for text in texts):
        return []
    is_short = max(map(len, texts), default=0) <= LONGEST_NAME
    return texts if is_short and len({*texts}) == len(texts) else []


class Lists:
    """The lists of names in an open file of arrays."""

    def __init__(self, names: Sequence[str], attributes_at: AttributesAt, whole: Callable[[str], Any]) -> None:
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
            for path, texts in self._lists_at(place, array):
                fitting |= {tuple(texts): path} if len(texts) == shape[1] else {}
            if fitting:
                return AxisNames(*fitting.popitem()) if len(fitting) == 1 else NO_NAMES
        return NO_NAMES

    def _lists_at(self, place: str, array: str) -> Iterator[tuple[str, list[str]]]:
        """Yield the lists of a group that may be about an array, or the attributes of that array."""
        attributes = self._attributes_at(place)
        for name in filter(NAMES.fullmatch, attributes):
            if place == array or _may_name(name, array):
                yield f"{place}@{name}", texts_of(attributes[name])
        for path in self._arrays.get(place, ()):
            if _may_name(path.rpartition("/")[2], array):
                with contextlib.suppress(OrlogError):  # it holds something else
                    yield path, texts_of(self._whole(path))


def _may_name(name: str, array: str) -> bool:
    """Return whether a list that lies beside an array may be about it, by their names."""
    match, last = NAMES.fullmatch(name), array.rpartition("/")[2].lower()
    stem = match[1] if match else None
    if stem is None or stem.lower() in JOINTS:
        return any(joint in last for joint in JOINTS) or NO_JOINTS.search(last) is None
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
            array if array.endswith(f".{name}") else f"{array}.{name}" for array in arrays for name in names_of[array]
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


def reordered(column: Any, names: Sequence[str], wanted: Sequence[str]) -> Any:
    """Return an array with its numbers in the order of the names that are wanted; `names` are those that it has."""
    if not names or [*names] == [*wanted]:
        return column
    order = [[*names].index(name) for name in wanted]
    return LazyColumn(column.shape, column.dtype, lambda start, stop: np.asarray(column[start:stop])[:, order])


def of_episodes(columns: Mapping[str, str]) -> dict[str, str]:
    """Return what `--map` says of values of episodes, by their names without `episodes/`."""
    return {role.removeprefix(AXIS): where for role, where in columns.items() if role.startswith(AXIS)}


def of_steps(columns: Mapping[str, str]) -> dict[str, str]:
    """Return what `--map` says of everything else."""
    return {role: where for role, where in columns.items() if not role.startswith(AXIS)}


def values_of_place(
    wanted: Mapping[str, str], place: Any, count: int, known: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return the values of so many episodes in a place of arrays (`places.py`), beside those that are known of it.

    Raises SchemaError if one that is wanted is not there, or an array has another number of rows.
    """
    attributes = {name: source for name, source in wanted.items() if "@" in source}
    values = {
        **({} if TASK in wanted else _task(place)),
        **known,
        **{name: _value_at(source, place) for name, source in attributes.items()},
    }
    episodes = [dict(values) for _ in range(count)]
    for name, array in wanted.items():
        if name in attributes:
            continue
        rows = np.asarray(place.whole(array))
        rows = rows[None] if rows.ndim == 0 and count == 1 else rows
        if len(rows) != count:
            raise SchemaError(
                f"{place.where}, {array}: expected a row for each of {count:,} episodes, found {len(rows):,}."
            )
        for episode, row in zip(episodes, rows, strict=True):
            episode[name] = plain(row)
    return [*episodes]


def _task(place: Any) -> dict[str, str]:
    """Return the task in words, where an attribute holds it that is called as others call it."""
    around = [*_around("", place)]
    for source in TASKS:
        if any(_parts(source)[1] in attributes for attributes in around):
            with contextlib.suppress(SchemaError):
                value = _value_at(source, place)
                if isinstance(value, str) and value.strip():
                    return {TASK: value}
    return {}


def _value_at(source: str, place: Any) -> Any:
    """Return the value that `@ATTRIBUTE`, `@ATTRIBUTE:KEY` or `GROUP@ATTRIBUTE` means for an episode."""
    group, name, keys = _parts(source)
    known: dict[str, None] = {}
    for attributes in _around(group, place):
        if name in attributes:
            return _inside(attributes[name], keys, f"{place.where}, {name}")
        known |= dict.fromkeys(attributes)
    raise SchemaError(
        f"{place.where}: has no attribute {name!r:.100}"
        + (did_you_mean(name, known) or f"; there are {', '.join(known) or 'no attributes'}.")
    )


def _parts(source: str) -> tuple[str, str, str]:
    """Return group, attribute and keys."""
    group, _, rest = source.partition("@")
    name, _, keys = rest.partition(":")
    return group, name, keys


def _around(group: str, place: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the attributes where an episode may have its own, the nearest first; `group` lies in these."""
    parts = [part for part in place.path.split("/") if part]
    for end in range(len(parts), -1, -1):
        yield place.attributes("/".join(filter(None, (*parts[:end], group))))


def _inside(value: Any, keys: str, where: str) -> Any:
    """Return a value as a number, a text or an array, or what the keys name in a text of JSON."""
    value = plain(value)
    for key in filter(None, keys.split(".")):
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = None
        if not isinstance(value, dict) or key not in value:
            its = ", ".join(value) if isinstance(value, dict) else ""
            raise SchemaError(
                f"{where}: expected an object of JSON with the key {key!r:.100}"
                + (f"; its keys are {its}." if its else ".")
            )
        value = value[key]
    if isinstance(value, dict) or value is None:
        its = "nothing (null)" if value is None else f"an object; name a key: {', '.join(value)}"
        raise SchemaError(f"{where}: holds {its}.")
    return plain(value)


def plain(value: Any) -> Any:
    """Return what a file holds as a bool, a number, a text, or an array of numbers; a list of words as one text."""
    value = np.asarray(value).reshape(-1) if isinstance(value, list | tuple) else value
    if isinstance(value, np.ndarray | np.generic):
        if value.size == 1:
            value = value.reshape(-1)[0]
            value = value.item() if isinstance(value, np.generic) else value
        elif value.dtype.kind in "OSU":
            value = " ".join(str(plain(word)) for word in value.reshape(-1).tolist())
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def attributes_read(wanted: Mapping[str, str], values: Mapping[str, Any]) -> list[str]:
    """Return the attributes that were read, as patterns of `Format.reads`, given the values of an episode."""
    read = [*wanted.values(), *(TASKS if TASK in values and TASK not in wanted else ())]
    return [f"*@{_parts(source)[1]}" for source in read if "@" in source]


def in_all(values: list[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Note]]:
    """Return the values that all episodes have, and a note about those that only some have."""
    names = {name: None for episode in values for name in episode}
    some = [name for name in names if not all(name in episode for episode in values)]
    if not some:
        return values, []
    kept = [{name: episode[name] for name in episode if name not in some} for episode in values]
    return [*kept], [Note("left_out_of_some", some)]
