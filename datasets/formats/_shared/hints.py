"""Tries what files of no known layout may mean, and prints the line that reads them with what that gives.

A line is printed only where its reading works: it takes the first look of an import (headers, flags and what says where
episodes end) and the first rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import gymnasium

from orlog.datasets.formats._shared.episodes import Asked, Opened, Options
from orlog.errors import OrlogError
from orlog.manifests.names import counted

DONE = re.compile(r"(^|_)dones?(_|$)")
MOST_TRIED = 200  # files, and groups of each
GIVEN = ("episode", "sort", "columns")


def tried(
    open_files: Callable[[Asked], AbstractContextManager[Opened]], asked: Asked
) -> tuple[int, str]:
    """Return how many episodes an import would give, and that in words, with rows and the shapes of one.

    Raises OrlogError as it would.
    """
    with open_files(asked) as opened, contextlib.closing(opened.steps) as steps:  # type: ignore[type-var]
        next(steps, None)
        spaces = {"observation": opened.schema.observation_space}
        if isinstance(spaces["observation"], gymnasium.spaces.Dict):
            spaces = {f"observation/{part}": one for part, one in spaces["observation"].items()}
        spaces["action"] = opened.schema.action_space
        low, high = min(opened.lengths), max(opened.lengths)
        rows = f"{low:,} rows" if low == high else f"{low:,} to {high:,} rows"
        rows += " (one of a single row may have no step)" if low == 1 else ""
        kinds = ", ".join(f"{role} {_kind(space)}" for role, space in spaces.items())
        count = len(opened.lengths)
        return count, f"{counted(count, 'episode')} of {rows}; {kinds}"


def _kind(space: gymnasium.Space[Any]) -> str:
    if isinstance(space, gymnasium.spaces.Discrete):
        return f"1 of {space.n} choices"
    return str(space.shape)


def hint(
    open_files: Callable[[Asked], AbstractContextManager[Opened]],
    asked: Asked,
    ways: Iterable[Options],
    names: Sequence[str],
    given: Sequence[Path],
    *,
    otherwise: str,
) -> str:
    """Return the first of several ways to read files that works, as a call, with what it gives.

    Args:
        open_files: Opens them, as `Format.open` does.
        asked: The files.
        ways: What they may mean, the likeliest first.
        names: The names of their arrays or columns.
        given: What the user gave: the files, or their folder.
        otherwise: What to decide where none works.
    """
    reason = ""
    paths = str(given[0]) if len(given) == 1 else [str(file) for file in given]
    few = dataclasses.replace(
        asked, files=asked.files[:MOST_TRIED], sources=asked.sources[:MOST_TRIED]
    )
    for options in ways:
        if "ARRAY" in options.columns.values():  # no name is like an action, or an observation
            continue
        try:
            count, gives = tried(open_files, dataclasses.replace(few, options=options))
        except OrlogError as error:
            reason = reason or f"\nWith {_arguments(options)}: {error}"
            continue
        call = f"orlog.import_dataset({paths!r}, 'NAME', {_arguments(options)})"
        are_groups = "*" in options.episode or "#" in "".join(options.columns.values())
        part = "groups" if are_groups and count >= MOST_TRIED else ""
        part = "files" if len(asked.files) > MOST_TRIED else part
        it = f"Of the first {MOST_TRIED} {part} it" if part else "It"
        about_done = _about_done(names, options.columns)
        return f"\nSay what they mean, for example: {call}\n{it} gives {gives}.{about_done}"
    return f"\n{otherwise}{reason}{_about_done(names, {})}"


def _arguments(options: Options) -> str:
    given = {name: getattr(options, name) for name in GIVEN}
    return ", ".join(f"{name}={value!r}" for name, value in given.items() if value)


def done_names(names: Sequence[str]) -> list[str]:
    """Return names like `done`, which may mean the end of the task or that of the time."""
    return [one for one in names if DONE.search(re.split(r"[/.]", one)[-1].lower())]


def _about_done(names: Sequence[str], columns: Mapping[str, str]) -> str:
    there = [one for one in done_names(names) if one not in columns.values()][:1]
    return "".join(
        f"\n{one} may mean the end of the task or that of the time: add columns={{'terminated': {one!r}}} or "
        f"columns={{'truncated': {one!r}}}."
        for one in there
    )
