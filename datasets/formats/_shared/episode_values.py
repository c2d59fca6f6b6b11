"""Values of whole episodes: attributes, keys in those that are JSON, and arrays with a row for each episode.

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
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from orlog.datasets.formats._shared.notes import Note
from orlog.errors import SchemaError
from orlog.manifests.names import did_you_mean

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

Read = Callable[[], Any]
AttributesAt = Callable[[str], Mapping[str, Read]]
"""Gives the attributes of the group or array at a path, unread; none where nothing lies there."""


def of_episodes(columns: Mapping[str, str]) -> dict[str, str]:
    """Return what `--map` says of values of episodes, by their names without `episodes/`."""
    return {
        role.removeprefix(AXIS): said for role, said in columns.items() if role.startswith(AXIS)
    }


def of_steps(columns: Mapping[str, str]) -> dict[str, str]:
    """Return what `--map` says of everything else."""
    return {role: said for role, said in columns.items() if not role.startswith(AXIS)}


def values_of_place(
    said: Mapping[str, str], place: Any, count: int, known: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return the values of so many episodes in a place of arrays (`places.py`), beside those that are known of it.

    Raises SchemaError if one that is said is not there, or an array has another number of rows.
    """
    attributes = {name: one for name, one in said.items() if "@" in one}
    values = {
        **_task(said, place),
        **known,
        **{name: _value_at(one, place) for name, one in attributes.items()},
    }
    found = [dict(values) for _ in range(count)]
    for name, array in said.items():
        if name in attributes:
            continue
        rows = np.asarray(place.whole(array))
        rows = rows[None] if rows.ndim == 0 and count == 1 else rows
        if len(rows) != count:
            raise SchemaError(
                f"{place.where}, {array}: expected a row for each of {count:,} episodes, found {len(rows):,}."
            )
        for one, row in zip(found, rows, strict=True):
            one[name] = plain(row)
    return [*found]


def _task(said: Mapping[str, str], place: Any) -> dict[str, str]:
    """Return the task in words, where an attribute holds it that is called as others call it."""
    for one in TASKS if TASK not in said else ():
        if any(_parts(one)[1] in attributes for attributes in _around(one, place)):
            with contextlib.suppress(SchemaError):
                value = _value_at(one, place)
                if isinstance(value, str) and value.strip():
                    return {TASK: value}
    return {}


def _value_at(said: str, place: Any) -> Any:
    """Return the value that `@ATTRIBUTE`, `@ATTRIBUTE:KEY` or `GROUP@ATTRIBUTE` means for an episode.

    Raises SchemaError if there is no such attribute or key.
    """
    name, keys = _parts(said)[1:]
    there: dict[str, None] = {}
    for attributes in _around(said, place):
        if name in attributes:
            return _inside(attributes[name](), keys, f"{place.where}, {name}")
        there |= dict.fromkeys(attributes)
    raise SchemaError(
        f"{place.where}: has no attribute {name!r:.100}"
        + (did_you_mean(name, there) or f"; there are {', '.join(there) or 'no attributes'}.")
    )


def _parts(said: str) -> tuple[str, str, str]:
    """Return group, attribute and keys."""
    group, _, rest = said.partition("@")
    name, _, keys = rest.partition(":")
    return group, name, keys


def _around(said: str, place: Any) -> Iterator[Mapping[str, Read]]:
    """Yield the attributes where an episode may have one that is said, the nearest first."""
    parts = [part for part in place.path.split("/") if part]
    for end in range(len(parts), -1, -1):
        yield place.attributes("/".join(filter(None, (*parts[:end], _parts(said)[0]))))


def _inside(value: Any, keys: str, where: str) -> Any:
    """Return a value as a number, a text or an array, or what the keys name in a text of JSON."""
    value = plain(value)
    for key in filter(None, keys.split(".")):
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = None
        if not isinstance(value, dict):
            raise SchemaError(f"{where}: expected an object of JSON with the key {key!r:.100}.")
        if key not in value:
            raise SchemaError(
                f"{where}: has no key {key!r:.100}"
                + (did_you_mean(key, value) or f"; its keys are {', '.join(value) or 'none'}.")
            )
        value = value[key]
    if isinstance(value, dict):
        raise SchemaError(f"{where}: an object of JSON; name one of its keys: {', '.join(value)}.")
    if value is None:
        raise SchemaError(f"{where}: holds nothing (null).")
    return plain(value)


def plain(value: Any) -> Any:
    """Return what a file holds as a bool, a number, a text, or an array of numbers; a list of words as one text."""
    value = np.asarray(value).reshape(-1) if isinstance(value, list | tuple) else value
    if isinstance(value, np.ndarray | np.generic):
        if value.size == 1:
            value = value.reshape(-1)[0]
            value = value.item() if isinstance(value, np.generic) else value
        elif value.dtype.kind in "OSU":
            value = " ".join(str(plain(one)) for one in value.reshape(-1).tolist())
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def attributes_read(said: Mapping[str, str], values: Mapping[str, Any]) -> list[str]:
    """Return the attributes that were read, as patterns of `Format.reads`, given the values of an episode."""
    read = [*said.values(), *(TASKS if TASK in values and TASK not in said else ())]
    return [f"*@{one.partition('@')[2].partition(':')[0]}" for one in read if "@" in one]


def in_all(values: list[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Note]]:
    """Return the values that all episodes have, and a note about those that only some have."""
    names = {name: None for one in values for name in one}
    some = [name for name in names if not all(name in one for one in values)]
    if not some:
        return values, []
    kept = [{name: one[name] for name in one if name not in some} for one in values]
    return [*kept], [Note("left_out_of_some", some)]
