"""What columns and arrays mean: as the user names them, or by their usual names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence

from orlog.datasets.formats.episodes import Options
from orlog.errors import SchemaError
from orlog.manifests.names import did_you_mean

MOST_NAMED = 40
MOST_SHOWN = 40
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
SAY = (
    "\nSay which is which, as columns={'observation': 'NAMES', 'action': 'NAME'}; docs/formats.md says how, and what "
    "episode= takes."
)
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
            infos = {role: column for role, column in self.columns.items() if base_role(role) == "infos"}
            self.columns = {role: column for role, column in named.items() if role in ROLES} | infos
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
        role: ",".join(glob for glob in wanted.split(",") if matching(glob, names)) for role, wanted in columns.items()
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


def which_is_which(kinds: Mapping[str, Kind]) -> str:
    """Return names with their shapes and dtypes, a name a line and those that differ in numbers once, and what to do."""
    first: dict[str, str] = {}
    for name in kinds:
        first.setdefault(alike(name), name)
    shown = [f"\n    {name}  {' '.join(map(str, kinds[name]))}" for name in first.values()]
    more = f"\n    .. of {len(shown):,} names" if len(shown) > MOST_SHOWN else ""
    return "".join(shown[:MOST_SHOWN]) + more + SAY
