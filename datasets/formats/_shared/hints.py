"""Shows what files of no known layout hold, guesses by names what it means, and prints the line that reads it.

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
from typing import Any, NamedTuple

import gymnasium

from orlog.datasets.formats._shared.episodes import Asked, Opened, Options
from orlog.datasets.formats._shared.flags import NAMES
from orlog.datasets.formats._shared.roles import alike, by_numbers, spans, usual
from orlog.errors import OrlogError
from orlog.manifests.names import counted

MOST_SHOWN = 40
MOST_TRIED = 200  # files, and groups of each
GIVEN = ("episode", "sort", "columns")
DONE = re.compile(r"(^|_)dones?(_|$)")
NUMBERED = re.compile(r"((?:[^/]+/)*?[^/]*?)(\d+)([^/\d]*)/(.+)")
LIKE = {
    "action": re.compile(r"(^|_)(act|actions?|cmds?|commands?|controls?|ctrl|torques?|u|a)(_|$)"),
    "reward": re.compile(r"(^|_)(rewards?|rew|r|scores?)(_|$)"),
    "terminated": re.compile(r"^(?!.*(trunc|time)).*(^|_)(terminated|terminals?)(_|$)"),
    "truncated": re.compile(r"(^|_)(truncated|truncations?|timeouts?)(_|$)"),
}
OBSERVED = re.compile(
    r"obs|state|pos|vel|joint|qpos|qvel|rgb|image|img|cam|depth|pixel|frame|sensor|proprio|gripper|eef|imu|lidar|^o$|^s$"
)
POSE = re.compile(r"(^|_)eef_(pos|rot\w*)$|gripper_width$")
Kind = tuple[tuple[int, ...], str]
"""Shape, and what numbers; a shape without axes is not known."""


class Tree(NamedTuple):
    """The names of a file, those of groups that are alike but for a number in their names once.

    Attributes:
        lines: What to show.
        names: Names that `--map` could give, in the largest set of alike groups, or in the whole file.
        episode: The pattern of that set's names; nothing where there is none.
        start: The first of these groups, with a slash; nothing likewise.
    """

    lines: list[str]
    names: list[str]
    episode: str
    start: str


def tree_of(names: Sequence[str], kind: Callable[[str], str]) -> Tree:
    """Return the names of a file as a tree; `kind` tells of one its shape and dtype."""
    inside: dict[str, list[str]] = {}
    single = []
    for name in names:
        if match := NUMBERED.fullmatch(name):
            inside.setdefault("".join(match.group(1, 2, 3)), []).append(match[4])
        else:
            single.append(name)
    same: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for group, inner in inside.items():
        same.setdefault((alike(group), (*inner,)), []).append(group)
    lines = [f"{name}  {kind(name)}" for name in single[:MOST_SHOWN]]
    shown = len(lines)
    tree = Tree(lines, [*names], "", "")
    most = 1
    for (_, own), groups in same.items():
        groups.sort(key=by_numbers)
        if len(groups) > most:
            most = len(groups)
            tree = Tree(lines, [*own], _pattern(groups), f"{groups[0]}/")
        if shown < MOST_SHOWN:
            few = own[: MOST_SHOWN - shown]
            lines += [
                spans(groups),
                *(f"    {name}  {kind(f'{groups[0]}/{name}')}" for name in few),
            ]
            shown += len(few)
    left = len(single) + sum(len(own) for _, own in same) - shown
    lines += [f"and {left:,} more"] if left > 0 else []
    return tree


def _pattern(groups: Sequence[str]) -> str:
    """Return what means all names that differ in one number or more."""
    parts = zip(*(re.split(r"(\d+)", group) for group in groups), strict=True)
    return "".join(several[0] if len({*several}) == 1 else "*" for several in parts)


def map_of(kinds: Mapping[str, Kind], *, joins: bool = True) -> dict[str, str]:
    """Return columns by the roles that their names are like; `ARRAY` for what none is like.

    `kinds` are shapes, rows first, and dtypes; with `joins`, several arrays can make one observation or action.
    """
    likely = _likely(kinds)
    seen = likely.pop("observation", ["ARRAY"])
    actions = likely.pop("action", ["ARRAY"])
    axes = {len(kinds[name][0]) for name in seen if name in kinds}
    columns = {"observation": ",".join(seen)}
    if len(seen) > 1 and not (joins and axes <= {1, 2}):
        short = {name: _last(name).rstrip("_#") for name in seen}
        is_clear = len({*short.values()}) == len(seen)
        parts = short if is_clear else {name: name.replace("/", ".") for name in seen}
        columns = {f"observation/{parts[name]}": name for name in seen}
    columns["action"] = ",".join(actions)
    rows = kinds[actions[0]][0][:1] if joins and actions[0] in kinds else None
    for name, kind in kinds.items():
        if _last(name) in NAMES and _is_single(kind) and kind[0][:1] == rows:
            columns[f"infos/{_last(name)}"] = name
    return columns | {role: several[0] for role, several in likely.items()}


def _likely(kinds: Mapping[str, Kind]) -> dict[str, list[str]]:
    """Return which names may be what, by their last parts; observations are at least one where anything is left."""
    last = {name: _last(name).lower().rstrip("_#") for name in kinds}
    by_last = {short: name for name, short in reversed(last.items())}
    named = {
        role: [by_last[short] for short in several]
        for role, several in usual(sorted(by_last)).items()
    }
    likely: dict[str, list[str]] = {}
    for role, pattern in LIKE.items():
        fitting = named.get(role) or [name for name in kinds if pattern.search(last[name])][:1]
        if role != "action":
            fitting = [name for name in fitting if _is_single(kinds[name])][:1]
        likely |= {role: fitting} if fitting else {}
    rows = {kinds[name][0][:1] for name in likely.get("action", ())} - {()}
    used = {name for several in likely.values() for name in several}
    rest = [
        name
        for name, (shape, _) in kinds.items()
        if name not in used
        and not last[name].startswith("next")
        and last[name] not in NAMES
        # Beside actions lie as many rows, or one more.
        and (not rows or rows & {shape[:1], *([(shape[0] - 1,)] if shape else [])})
    ]
    seen = named.get("observation", [])
    if not seen or last[seen[0]] == "state":  # which is one of several, more often than not
        seen = [name for name in rest if OBSERVED.search(name.lower())]
    likely["observation"] = seen or [name for name in rest if not _is_single(kinds[name])]
    if "action" not in likely:  # UMI learns the poses that come next
        likely["action"] = [name for name in likely["observation"] if POSE.search(last[name])]
    return {role: several for role, several in likely.items() if several}


def _last(name: str) -> str:
    return re.split(r"[/.]", name)[-1]


def _is_single(kind: Kind) -> bool:
    return len(kind[0]) == 1 or kind[0][1:] == (1,)


def which_is_which(kinds: Mapping[str, Kind]) -> str:
    """Return the names of features, with shape and dtype of a row, and what they are like, a name each."""
    shown = "".join(f"\n    {name}  {shape} {kind}" for name, (shape, kind) in kinds.items())
    numbers = {
        name: ((1, *shape), kind) for name, (shape, kind) in kinds.items() if kind != "string"
    }
    return f"{shown}\nSay which is which, for example: columns={map_of(numbers, joins=False)}"


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
            count, gives = _tried(open_files, dataclasses.replace(few, options=options))
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


def _tried(
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
        count, low, high = len(opened.lengths), min(opened.lengths), max(opened.lengths)
    rows = f"{low:,} rows" if low == high else f"{low:,} to {high:,} rows"
    rows += " (one of a single row may have no step)" if low == 1 else ""
    kinds = ", ".join(f"{role} {_shape(space)}" for role, space in spaces.items())
    return count, f"{counted(count, 'episode')} of {rows}; {kinds}"


def _shape(space: gymnasium.Space[Any]) -> str:
    is_choice = isinstance(space, gymnasium.spaces.Discrete)
    return f"1 of {space.n} choices" if is_choice else str(space.shape)  # type: ignore[attr-defined]


def _arguments(options: Options) -> str:
    given = {name: getattr(options, name) for name in GIVEN}
    return ", ".join(f"{name}={value!r}" for name, value in given.items() if value)


def done_names(names: Sequence[str]) -> list[str]:
    """Return names like `done`, which may mean the end of the task or that of the time."""
    return [name for name in names if DONE.search(_last(name).lower())]


def _about_done(names: Sequence[str], columns: Mapping[str, str]) -> str:
    there = [name for name in done_names(names) if name not in columns.values()][:1]
    return "".join(
        f"\n{name} may mean the end of the task or that of the time: add columns={{'terminated': {name!r}}} or "
        f"columns={{'truncated': {name!r}}}."
        for name in there
    )
