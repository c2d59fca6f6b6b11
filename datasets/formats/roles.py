"""What columns and arrays mean: as the user names them, by their usual names, or as an example that an error prints.

An example is printed only where its reading works: it takes the first look of an import (headers, flags and what says where
episodes end) and the first rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import gymnasium

from orlog.datasets.formats.episode_cutter import NAMES
from orlog.datasets.formats.episodes import Asked, Opened, Options
from orlog.errors import OrlogError, SchemaError
from orlog.manifests.names import counted, did_you_mean

MOST_NAMED = 40
MOST_SHOWN = 40
MOST_TRIED = 200  # files
ROLES = ("observation", "action", "reward", "terminated", "truncated", "next_observation")
JOINED = ("observation", "action", "next_observation")
USUAL = {
    "observation": ("observation", "observations", "obs", "state"),
    "action": ("action", "actions", "act"),
    "next_observation": ("next_observation", "next_observations", "next_obs", "next_state"),
    "reward": ("reward", "rewards", "rew"),
    "terminated": ("terminated", "terminations", "terminal", "terminals"),
    "truncated": ("truncated", "truncations", "timeout", "timeouts"),
    "episode": ("episode", "episode_id", "episode_index", "trajectory", "traj"),
    "step": ("step", "timestep", "step_index", "frame_index"),
}
"""Usual names of columns by what they are; observations and actions may be numbered: `obs_0`, `obs_1`."""
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


class Layout:
    """Which columns of a table are what.

    Attributes:
        columns: Names of columns by role.
        episode: The column that tells episodes apart.
        step: The one that counts steps, or nothing.
        length: The one with the length of an episode, or nothing.
        observations: Roles of observations: `observation`, or those of its parts.
        left_out: Columns that are not named.
        guessed: Whether columns were taken by their usual names, as nothing was named.
    """

    def __init__(self, names: list[str], options: Options, where: str, *, needs_episode: bool = True) -> None:
        """Find the columns that the options name.

        Raises SchemaError if one is not there, or an option is missing.
        """
        self.columns: dict[str, list[str]] = {}
        self.episode, self.step, self.length = options.episode, options.step, options.length
        if not options.columns and not self.episode and "episode" in names:
            self.columns = {name: [name] for name in names if _is_role(name)}
            self.episode = "episode"
            self.step = self.step or ("step" if "step" in names else "")
        self.guessed = not options.columns and "observation" not in map(base_role, self.columns)
        if self.guessed:
            named = usual(names)
            self.episode = self.episode or named.get("episode", [""])[0]
            self.step = self.step or named.get("step", [""])[0]
            infos = {role: one for role, one in self.columns.items() if base_role(role) == "infos"}
            self.columns = {role: one for role, one in named.items() if role in ROLES} | infos
        stars = [role for role in options.columns if role.endswith("/*")]
        for role, patterns in options.columns.items():
            _check_role(role, where)
            if role not in stars:
                self.columns[role] = _matching(patterns, names, where, role)
        for role in stars:
            self._add_parts(role, options.columns[role], names, where)
        self.observations = [role for role in self.columns if base_role(role) == "observation"]
        self._check(names, where, needs_episode=needs_episode)
        self.left_out = [name for name in names if name not in self._used()]

    def _used(self) -> set[str]:
        used = {name for several in self.columns.values() for name in several}
        return used | {self.episode, self.step, self.length}

    def _add_parts(self, role: str, patterns: str, names: list[str], where: str) -> None:
        """Add columns that are parts by the names they have, of those that are nothing else."""
        used = self._used()
        for pattern in filter(None, patterns.split(",")):
            start = pattern.partition("*")[0]
            folder = max(start.rfind("/"), start.rfind(".")) + 1
            for name in _matching(pattern, names, where, role):
                part = f"{role.removesuffix('*')}{name[folder:].replace('/', '.')}"
                if name not in used and self.columns.setdefault(part, [name]) != [name]:
                    other = self.columns[part][0]
                    raise SchemaError(f"{where}: {other} and {name} would both become {part}.")

    def _check(self, names: list[str], where: str, *, needs_episode: bool) -> None:
        """Refuse roles that do not belong together, and options that name no column."""
        missing = [] if self.observations else ["observation"]
        missing += [] if self.columns.get("action") else ["action"]
        if missing or (needs_episode and not self.episode):
            what = f"columns={{{missing[0]!r}: 'COLUMNS'}}" if missing else "episode=COLUMN"
            raise SchemaError(
                f"{where}: does not say what its columns are; give {what}. Its columns are {_listed(names)}."
            )
        if "observation" in self.observations and len(self.observations) > 1:
            raise SchemaError(f"{where}: columns= names both observation and {self.observations[-1]}.")
        after = {role for role in self.columns if base_role(role) == "next_observation"}
        odd = sorted(after ^ {f"next_{role}" for role in self.observations}) if after else []
        if odd:
            raise SchemaError(f"{where}: observation and next_observation have the same parts; see {odd[0]}.")
        for option in ("episode", "step", "length"):
            name = getattr(self, option)
            if name and name not in names:
                raise SchemaError(f"{where}: {option}={name!r}: {_no_column(name, names)}")
        for role, several in self.columns.items():
            if len(several) != 1 and base_role(role) not in JOINED:
                raise SchemaError(f"{where}: columns=, {role}: expected one column, found {several}.")


def said_roles(columns: Mapping[str, str], names: list[str], where: str) -> dict[str, str]:
    """Return the roles of columns that `--map` names, for formats in which each column has one of its own."""
    roles = {}
    for role, patterns in columns.items():
        _check_role(role, where)
        fitting = _matching(patterns, names, where, role)
        if len(fitting) != 1:
            raise SchemaError(
                f"{where}: columns={{{role!r}: {patterns!r}}}: expected one name, found {', '.join(fitting)}."
            )
        roles[fitting[0]] = role
    return roles


def base_role(role: str) -> str:
    """Return a role without the name of a part."""
    return role.partition("/")[0]


def _is_role(role: str) -> bool:
    base, slash, part = role.partition("/")
    has_parts = base in ("observation", "next_observation", "infos")
    return has_parts and bool(part) if slash else role in ROLES


def _check_role(role: str, where: str) -> None:
    if base_role(role) == "episodes":
        raise SchemaError(f"{where}: {role}: values of episodes are mapped in HDF5, Zarr and npz alone.")
    if not _is_role(role):
        raise SchemaError(
            f"{where}: columns={{{role!r}: '..'}}: expected {', '.join(ROLES)}, observation/NAME or "
            f"infos/NAME{did_you_mean(role, ROLES) or '.'}"
        )


def _matching(patterns: str, names: list[str], where: str, role: str) -> list[str]:
    """Return the columns that patterns with commas between name."""
    for pattern in filter(None, patterns.split(",")):
        if not matching(pattern, names):
            raise SchemaError(f"{where}: columns={{{role!r}: {patterns!r}}}: {_no_column(pattern, names)}")
    return matching(patterns, names)


def matching(patterns: str, names: list[str]) -> list[str]:
    """Return the names that patterns with commas between mean, none of those that mean nothing."""
    fitting: list[str] = []
    for pattern in filter(None, patterns.split(",")):
        # A name may hold what patterns are made of: `obs[0]`.
        is_name = pattern in names
        fitting += [pattern] if is_name else sorted(fnmatch.filter(names, pattern), key=by_numbers)
    return fitting


def columns_there(columns: Mapping[str, str], names: list[str]) -> dict[str, str]:
    """Return the columns without those that may be missing, and are."""
    known = {
        role: ",".join(one for one in patterns.split(",") if matching(one, names)) for role, patterns in columns.items()
    }
    return {role: patterns for role, patterns in known.items() if patterns}


def usual(names: list[str]) -> dict[str, list[str]]:
    """Return the columns that have usual names, by what they are."""
    columns = {}
    for what, spellings in USUAL.items():
        for spelling in spellings:
            fitting = [name for name in names if name.lower() == spelling]
            if not fitting and what in JOINED:
                numbered = re.compile(rf"{spelling}[_.]?\d+")
                fitting = sorted(filter(numbered.fullmatch, names), key=by_numbers)
            if fitting:
                columns[what] = fitting
                break
    return columns


def by_numbers(name: str) -> list[tuple[int, str]]:
    """Return what sorts `obs_2` before `obs_10`."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def alike(name: str) -> str:
    """Return a name with `#` for its numbers, which stands for all that differ in them alone."""
    return re.sub(r"\d+", "#", name)


def _spans(names: Sequence[str]) -> str:
    """Return names that differ in numbers, in their order, as one line."""
    return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names):,} alike)"


def spanned(names: Iterable[str]) -> str:
    """Return names in words, those that differ in numbers once."""
    same: dict[str, list[str]] = {}
    for name in names:
        same.setdefault(alike(name), []).append(name)
    return ", ".join(_spans(sorted(some, key=by_numbers)) for some in [*same.values()][:MOST_NAMED])


def _no_column(name: str, names: list[str]) -> str:
    instead = did_you_mean(name, names) or f"; the columns are {_listed(names)}."
    return f"there is no column {name!r:.100}{instead}"


def _listed(names: list[str]) -> str:
    """Return names for an error, which may be long and many."""
    more = f" and {len(names) - 50} more" if len(names) > 50 else ""
    return ", ".join(f"{name:.100}" for name in names[:50]) + more


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
    lines = []
    for name in names:
        if match := NUMBERED.fullmatch(name):
            inside.setdefault("".join(match.group(1, 2, 3)), []).append(match[4])
        else:
            lines.append(name)
    lines = [f"{name}  {kind(name)}" for name in lines[:MOST_SHOWN]]
    same: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for group, inner in inside.items():
        same.setdefault((alike(group), (*inner,)), []).append(group)
    tree, most = Tree(lines, [*names], "", ""), 1
    for (_, own), groups in same.items():
        groups.sort(key=by_numbers)
        if len(groups) > most:
            most = len(groups)
            # What means all names that differ in one number or more.
            parts = zip(*(re.split(r"(\d+)", group) for group in groups), strict=True)
            pattern = "".join(part[0] if len({*part}) == 1 else "*" for part in parts)
            tree = Tree(lines, [*own], pattern, f"{groups[0]}/")
        if len(lines) < MOST_SHOWN:
            lines.append(_spans(groups))
            few = own[: MOST_SHOWN - len(lines)]
            lines += [f"    {name}  {kind(f'{groups[0]}/{name}')}" for name in few]
    if len(lines) >= MOST_SHOWN:
        lines.append(f".. of {len(names):,} arrays")
    return tree


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
    named = {role: [by_last[short] for short in several] for role, several in usual(sorted(by_last)).items()}
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
    numbers = {name: ((1, *shape), kind) for name, (shape, kind) in kinds.items() if kind != "string"}
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
    """Return the first of several ways to read files that works, the likeliest first, as a call, with what it gives.

    `open_files` opens them, `names` are those of their arrays or columns, `given` what the user gave, the files or their
    folder, and `otherwise` what to decide where none works.
    """
    reason = ""
    paths = str(given[0]) if len(given) == 1 else [str(file) for file in given]
    few = dataclasses.replace(asked, files=asked.files[:MOST_TRIED], sources=asked.sources[:MOST_TRIED])
    for options in ways:
        if "ARRAY" in options.columns.values():  # no name is like an action, or an observation
            continue
        arguments = ", ".join(
            f"{name}={getattr(options, name)!r}" for name in ("episode", "sort", "columns") if getattr(options, name)
        )
        try:
            gives = _tried(open_files, dataclasses.replace(few, options=options))
        except OrlogError as error:
            reason = reason or f"\nWith {arguments}: {error}"
            continue
        it = f"Of the first {MOST_TRIED} files it" if len(asked.files) > MOST_TRIED else "It"
        return (
            f"\nSay what they mean, for example: orlog.import_dataset({paths!r}, 'NAME', {arguments})\n{it} gives "
            f"{gives}.{_about_done(names, options.columns)}"
        )
    return f"\n{otherwise}{reason}{_about_done(names, {})}"


def _tried(open_files: Callable[[Asked], AbstractContextManager[Opened]], asked: Asked) -> str:
    """Return how many episodes an import would give, with rows and the shapes of one."""
    with open_files(asked) as opened, contextlib.closing(opened.steps) as steps:  # type: ignore[type-var]
        next(steps, None)
        spaces = {"observation": opened.schema.observation_space}
        if isinstance(spaces["observation"], gymnasium.spaces.Dict):
            spaces = {f"observation/{part}": one for part, one in spaces["observation"].items()}
        spaces["action"] = opened.schema.action_space
        count, low, high = len(opened.lengths), min(opened.lengths), max(opened.lengths)
    rows = f"{low:,} rows" if low == high else f"{low:,} to {high:,} rows"
    rows += " (one of a single row may have no step)" if low == 1 else ""
    kinds = ", ".join(
        f"{role} 1 of {space.n} choices" if isinstance(space, gymnasium.spaces.Discrete) else f"{role} {space.shape}"
        for role, space in spaces.items()
    )
    return f"{counted(count, 'episode')} of {rows}; {kinds}"


def done_names(names: Sequence[str]) -> list[str]:
    """Return names like `done`, which may mean the end of the task or that of the time."""
    return [name for name in names if DONE.search(_last(name).lower())]


def _about_done(names: Sequence[str], columns: Mapping[str, str]) -> str:
    unclear = [name for name in done_names(names) if name not in columns.values()][:1]
    return "".join(
        f"\n{name} may mean the end of the task or that of the time: add columns={{'terminated': {name!r}}} or "
        f"columns={{'truncated': {name!r}}}."
        for name in unclear
    )
