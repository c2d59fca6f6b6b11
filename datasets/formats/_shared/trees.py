"""Shows what a file of no known layout holds, and guesses by the names of arrays what they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from orlog.datasets.formats._shared.flags import NAMES
from orlog.datasets.formats._shared.roles import by_numbers, usual

MOST_SHOWN = 40
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
ONE_NUMBER = ("reward", "terminated", "truncated")
Kind = tuple[tuple[int, ...], str]
"""Shape, and what numbers; a shape without axes is not known."""


class Tree:
    """The names of a file, those of groups that are alike but for a number in their names once.

    Attributes:
        lines: What to show.
        names: Names that `--map` could give, in the largest set of alike groups, or in the whole file.
        episode: The pattern of that set's names; nothing where there is none.
    """

    def __init__(self, names: Sequence[str], kind: Callable[[str], str]) -> None:
        """Take the names, and what tells of one its shape and dtype."""
        inside: dict[str, list[str]] = {}
        parts = {name: NUMBERED.fullmatch(name) for name in names}
        for part in parts.values():
            if part is not None:
                inside.setdefault("".join(part.group(1, 2, 3)), []).append(part[4])
        alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for group, own in inside.items():
            alike.setdefault((re.sub(r"\d+", "#", group), tuple(own)), []).append(group)
        single = [name for name, part in parts.items() if part is None]
        self.names, self.episode, first = list(names), "", ""
        self.lines = [f"{name}  {kind(name)}" for name in single[:MOST_SHOWN]]
        shown, most = len(self.lines), 1
        for (_, inner), groups in alike.items():
            groups.sort(key=by_numbers)
            if len(groups) > most:
                most, first = len(groups), groups[0]
                self.episode, self.names = _pattern(groups), list(inner)
            if shown >= MOST_SHOWN:
                continue
            self.lines.append(spans(groups))
            for name in inner[: MOST_SHOWN - shown]:
                self.lines.append(f"    {name}  {kind(f'{groups[0]}/{name}')}")
                shown += 1
        self.start = f"{first}/" if first else ""
        left = len(single) + sum(len(inner) for _, inner in alike) - shown
        if left > 0:
            self.lines.append(f"and {left:,} more")


def spans(groups: Sequence[str]) -> str:
    """Return names that differ in numbers, in their order, as one line."""
    if len(groups) == 1:
        return groups[0]
    return f"{groups[0]} .. {groups[-1]} ({len(groups):,} alike)"


def spanned(groups: Iterable[str]) -> str:
    """Return names in words, those that differ in numbers once."""
    alike: dict[str, list[str]] = {}
    for group in groups:
        alike.setdefault(re.sub(r"\d+", "#", group), []).append(group)
    return ", ".join(spans(sorted(one, key=by_numbers)) for one in [*alike.values()][:MOST_SHOWN])


def _pattern(groups: Sequence[str]) -> str:
    """Return what means all names that differ in one number or more."""
    parts = [re.split(r"(\d+)", group) for group in groups]
    same = [len(set(several)) == 1 for several in zip(*parts, strict=True)]
    return "".join(part if is_same else "*" for part, is_same in zip(parts[0], same, strict=True))


def likely(kinds: Mapping[str, Kind]) -> dict[str, list[str]]:
    """Return which names may be what, by their last parts; observations are at least one where anything is left."""
    last = {name: re.split(r"[/.]", name)[-1].lower().rstrip("_#") for name in kinds}
    by_last = {short: name for name, short in reversed(last.items())}
    named = {
        role: [by_last[one] for one in found] for role, found in usual(sorted(by_last)).items()
    }
    found: dict[str, list[str]] = {}
    for role, pattern in LIKE.items():
        fitting = named.get(role) or [one for one in kinds if pattern.search(last[one])]
        if role in ONE_NUMBER:
            fitting = [one for one in fitting if _is_single(kinds[one])][:1]
        if fitting:
            found[role] = fitting if role in named else fitting[:1]
    rows = {kinds[name][0][:1] for name in found.get("action", ())} - {()}
    used = {name for several in found.values() for name in several}
    rest = [one for one in kinds if one not in used and not rows.isdisjoint(_rows(kinds[one]))]
    rest = rest if rows else [one for one in kinds if one not in used]
    rest = [one for one in rest if not last[one].startswith("next") and last[one] not in NAMES]
    seen = named.get("observation", [])
    if not seen or last[seen[0]] == "state":  # which is one of several, more often than not
        seen = [one for one in rest if OBSERVED.search(one.lower())]
    found["observation"] = seen or [one for one in rest if not _is_single(kinds[one])]
    if "action" not in found:  # UMI learns the poses that come next
        found["action"] = [one for one in found["observation"] if POSE.search(last[one])]
    return {role: several for role, several in found.items() if several}


def _rows(kind: Kind) -> set[tuple[int, ...]]:
    """Return the shapes of rows that actions may have beside an array: as many, or one less."""
    return {kind[0][:1], (kind[0][0] - 1,)} if kind[0] else {()}


def _is_single(kind: Kind) -> bool:
    return len(kind[0]) == 1 or kind[0][1:] == (1,)


def map_of(kinds: Mapping[str, Kind], *, joins: bool = True) -> dict[str, str]:
    """Return columns by the roles that their names are like; `ARRAY` for what none is like.

    `kinds` are shapes, rows first, and dtypes; with `joins`, several arrays can make one observation or action.
    """
    found = likely(kinds)
    seen = found.pop("observation", ["ARRAY"])
    axes = {len(kinds[one][0]) for one in seen if one in kinds}
    if len(seen) == 1 or (joins and axes <= {1, 2}):
        columns = {"observation": ",".join(seen)}
    else:
        short = {one: re.split(r"[/.]", one)[-1].rstrip("_#") for one in seen}
        is_clear = len({*short.values()}) == len(seen)
        columns = {
            f"observation/{short[one] if is_clear else one.replace('/', '.')}": one for one in seen
        }
    actions = found.pop("action", ["ARRAY"])
    columns["action"] = ",".join(actions)
    if joins and actions[0] in kinds:
        rows = kinds[actions[0]][0][:1]
        for name, kind in kinds.items():
            last = re.split(r"[/.]", name)[-1]
            if last in NAMES and _is_single(kind) and kind[0][:1] == rows:
                columns[f"infos/{last}"] = name
    return columns | {role: several[0] for role, several in found.items()}


def which_is_which(kinds: Mapping[str, Kind]) -> str:
    """Return the names of features, with shape and dtype of a row, and what they are like, a name each."""
    found = "".join(f"\n    {name}  {shape} {kind}" for name, (shape, kind) in kinds.items())
    numbers = {
        name: ((1, *shape), kind) for name, (shape, kind) in kinds.items() if kind != "string"
    }
    return f"{found}\nSay which is which, for example: columns={map_of(numbers, joins=False)}"
