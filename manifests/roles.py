"""What columns mean where a kind of learning needs to know it, `ROLES`, and kinds of datasets, `FAMILIES`: two tables.

A manifest gives roles to columns (`roles`: column -> role). A role that it gives to none is that of the columns
with one of the role's usual names, if their values fit: so stores without the field have roles too, and
their digests stay. The role `none` says that a column means nothing of the table, whatever its name.

Families are kinds of trajectories for which there are roles, samplers, algorithms and metrics. A dataset is of a
family if it has one of the family's roles, if what its manifest says is recognized, or by its name, which is all
that is known of what is not here.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from orlog.errors import NotFoundError, SchemaError
from orlog.manifests.columns import Axis, ColumnSpec, axis_of, is_part, offsets_column, values_column
from orlog.manifests.names import did_you_mean

if TYPE_CHECKING:
    from orlog.manifests.manifest import Column, Manifest  # slow to import, as spaces are

TEXT, ARRAY, NUMBERS, WHOLE = "text", "array", "biuf", "biu"
OF_AGENTS = "infos/agents/*/"
LEGAL, NEXT_LEGAL = "legal_actions", "next_legal_actions"
_STEP = ("infos/", OF_AGENTS)
_KINDS = {TEXT: "text", NUMBERS: "numbers", WHOLE: "whole numbers or flags", "f": "floats"}
_SHAPES = {(0,): "one in each row", (1,): "a vector in each row", (0, 1): "one or several in a row"}


@dataclasses.dataclass(frozen=True, slots=True)
class Role:
    """One meaning that a column may have.

    Attributes:
        name: Its name.
        meaning: A sentence on what such a column holds.
        usual: Names of columns that have it unless a manifest says otherwise; `*` stands for one part of a path.
        kind: What its values are: `TEXT`, or the kinds of NumPy's dtypes, such as `NUMBERS`.
        axes: Which columns may have it: those of steps, of observations or of episodes.
        dimensions: How many dimensions a row may have.
        family: The family whose datasets have it; empty for no single one.
    """

    name: str
    meaning: str
    usual: tuple[str, ...] = ()
    kind: str = NUMBERS
    axes: tuple[Axis, ...] = ("step",)
    dimensions: tuple[int, ...] = (0,)
    family: str = ""

    @property
    def expected(self) -> str:
        """Which columns it fits, in words."""
        axes = " or ".join(f"{axis}s" for axis in self.axes)
        return f"a column of {axes} with {_KINDS[self.kind]}, {_SHAPES[self.dimensions]}"


def _named(*names: str, under: Iterable[str] = _STEP) -> tuple[str, ...]:
    return tuple(f"{place}{name}" for place in under for name in names)


CHOICES, NUMBER, WORDS = "infos/legal_actions", "episodes/task", "episodes/instruction"
"""Usual names that orlog itself gives: to flags of legal choices, to the number of a task, and to its words."""

_MASKS = (
    "action_mask action_masks avail_actions available_actions legal_action_mask legal_actions legal_actions_mask "
    "legal_mask legal_moves legals valid_action_mask valid_actions valid_moves"
)
MASKS = frozenset(_MASKS.split())
"""Usual names of flags of legal choices. In infos, most have a role only where one is given."""

_ANY: tuple[Axis, ...] = ("step", "observation", "episode")
_EVERYWHERE = ("infos/", "observations/", "episodes/")
_TASK_WORDS = _named("task", "instruction", "language_instruction", "natural_language_instruction", under=_EVERYWHERE)
_SUCCESS = (*_named("success", "is_success", under=("infos/", "episodes/")), "infos/is_episode_successful")
_RANKED: tuple[Axis, ...] = ("step", "episode")
_INTERVENTION = (
    *_named("intervention", "is_intervention", under=("infos/", "episodes/")),
    "infos/complementary_info.is_intervention",  # LeRobot's
)
_SEEN_MASKS = _named("action_mask", under=("observations/", "observations/*/"))
_LEGAL = (*_named("legals", "legal_actions"), *_SEEN_MASKS)
_VECTORS = _named("objectives", "reward_vector", "vector_reward")

ROLES = {
    role.name: role
    for role in (
        Role(
            "behavior_log_prob",
            "logarithm of the probability, or of its density, with which the action was chosen",
            _named("action_log_probs"),
            "f",
        ),
        Role(
            "cost",
            "what a step costs, 0 or more, which is to stay below a limit in an episode",
            _named("cost"),
            family="safety",
        ),
        Role(
            "acts", "whether an agent takes part in a step", _named("acts", under=[OF_AGENTS]), WHOLE, family="agents"
        ),
        Role(
            LEGAL,
            "which choices may be taken in a step, one flag for each",
            _LEGAL,
            axes=("step", "observation"),
            dimensions=(1,),
        ),
        Role(
            NEXT_LEGAL,
            "which choices may be taken in the step after, as an environment's info says",
            _named("action_mask"),
            dimensions=(1,),
        ),
        Role(
            "task", "number of the task", _named("task", "task_index", under=_EVERYWHERE), WHOLE, _ANY, family="tasks"
        ),
        Role("task_words", "the task in words", _TASK_WORDS, TEXT, _ANY),
        Role("optimal_value", "exact value of a step's state under the best policy", ("infos/optimal_value",), "f"),
        Role("objectives", "reward of each objective", _VECTORS, dimensions=(1,), family="objectives"),
        Role("weights", "weight of each objective in the rewards", axes=_ANY, dimensions=(1,), family="objectives"),
        Role(
            "speaker",
            "who wrote the text of a step, such as user or assistant",
            _named("speaker"),
            TEXT,
            family="words",
        ),
        Role("success", "whether the task was done, in an episode or at a step", _SUCCESS, axes=_RANKED),
        Role(
            "demonstration",
            "whether an episode is a demonstration",
            ("episodes/demonstration",),
            WHOLE,
            ("episode",),
            family="demos",
        ),
        Role("intervention", "whether a person took over, at a step or in an episode", _INTERVENTION, WHOLE, _RANKED),
        Role("value", "estimated value of a step's state", kind="f"),
        Role("advantage", "estimated advantage of a step's action over the policy", kind="f"),
        Role("return_to_go", "sum of the rewards from a step on", kind="f"),
        Role("weight", "how often to draw a step or an episode, 0 or more", axes=_RANKED),
        Role("quality", "how good a step or an episode is, as somebody judged", axes=_RANKED),
        Role("subtask", "what is being done at a step, in words", ("infos/subtask",), TEXT),
        Role(
            "depth",
            "what makes numbers of a map of depth metres: least and greatest depth, shift, whether it is logarithmic, number "
            "of the greatest",
            ("episodes/depth/*",),
            "f",
            ("episode",),
            dimensions=(1,),
        ),
        Role("none", "nothing of this table, whatever the column is called", axes=_ANY),
    )
}
"""Every role by name. A new one is one entry here."""


class Values(NamedTuple):
    """What a column holds in each row: `TEXT`, an `ARRAY` of any length, or numbers of a kind of dtype."""

    kind: str
    shape: tuple[int, ...]


def values_of(stored: Iterable[Column] | Iterable[ColumnSpec], variable: Mapping[str, str]) -> dict[str, Values]:
    """Return what each column holds, by its path; those whose values have several columns are left out.

    `variable` says which columns of infos and episodes hold a text or an array in each row.
    """
    specs = {column.name: column for column in stored}
    held = {}
    for name, spec in specs.items():
        path = name.removesuffix("@values")
        kind = np.dtype(spec.dtype).kind
        if not is_part(name):
            held[name] = Values(kind, tuple(spec.shape))
        elif name == values_column(path) and not is_part(path) and offsets_column(path) in specs:
            of_space = TEXT if np.dtype(spec.dtype) == np.uint8 and not spec.shape else ARRAY
            held[path] = Values(variable.get(path, of_space), tuple(spec.shape))
    return held


def fits(role: Role, column: str, values: Values) -> bool:
    """Return whether a column may have a role."""
    if role.name == "none":
        return True
    if axis_of(column) not in role.axes or column.partition("/")[0] == "actions":
        return False
    if values.kind in (TEXT, ARRAY) or role.kind == TEXT:
        return values.kind == role.kind
    return values.kind in role.kind and len(values.shape) in role.dimensions


def check_roles(stated: Mapping[str, str], columns: Mapping[str, Values] | None, where: str) -> None:
    """Refuse roles of unknown names; with `columns`, also those of columns that are not there or do not fit.

    Raises SchemaError that names the dataset, `where`, and the column.
    """
    for column, name in stated.items():
        role = ROLES.get(name)
        if role is None:
            raise SchemaError(
                f"{where}: column {column!r:.100} has the unknown role {name!r:.40}"
                + (did_you_mean(name, ROLES) or f"; roles are {', '.join(ROLES)}.")
            )
        if columns is None:
            continue
        if column not in columns:
            raise SchemaError(
                f"{where}: the role {name} is given to a column {column!r:.100}, which is not there"
                + (did_you_mean(column, columns) or f"; it has {', '.join(sorted(columns))}.")
            )
        if not fits(role, column, columns[column]):
            held = _held(*columns[column])
            raise SchemaError(
                f"{where}: column {column} cannot have the role {name}, which is for {role.expected}; it is a "
                f"column of {axis_of(column)}s that holds {held}."
            )


_EXAMPLES = {"b": "bool", "i": "int", "u": "uint", "f": "float"}


def check_masks(stated: Mapping[str, str], columns: Mapping[str, Values], where: str) -> None:
    """Refuse a column that is called as flags of legal choices are, but would not limit them.

    Raises SchemaError that names the dataset, `where`, and the column.
    """
    known = {**roles_of(stated, columns), **stated}
    for column, values in columns.items():
        if column.rpartition("/")[2] not in MASKS or axis_of(column) not in ROLES[LEGAL].axes:
            continue
        if column in known and fits(ROLES[known[column]], column, values):
            continue
        reason, advice = "no role", f"{LEGAL!r} if they hold in the same row"
        if axis_of(column) == "step":
            advice = f"{LEGAL!r} if they hold in the step itself, {NEXT_LEGAL!r} if in the step after"
        if not fits(ROLES[LEGAL], column, values):
            reason, advice = (f"holds {_held(*values)}", "record one flag for each choice in each row")
        raise SchemaError(
            f"{where}: column {column} has the name of flags of legal choices, but {reason}, so every choice "
            f"would count as legal; {advice}, or 'none' if it is something else: roles={{{column!r}: ..}}."
        )


def _held(kind: str, shape: tuple[int, ...]) -> str:
    return kind if kind in (TEXT, ARRAY) else f"{np.dtype(_EXAMPLES[kind]).name} {shape}"


def spread_roles(given: Mapping[str, str], columns: Iterable[str]) -> dict[str, str]:
    """Return roles with the columns that patterns mean in place of them, such as `infos/agents/*/harm`.

    A pattern that means no column is left, for `check_roles` to name.
    """
    roles: dict[str, str] = {}
    for pattern, role in given.items():
        matching = [column for column in columns if _pattern(pattern).fullmatch(column)]
        roles |= dict.fromkeys(matching if "*" in pattern and matching else [pattern], role)
    return dict(sorted(roles.items()))


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("[^/]+".join(map(re.escape, name.split("*"))))


def roles_of(stated: Mapping[str, str], columns: Mapping[str, Values]) -> dict[str, str]:
    """Return the role of every column that has one: as stated, else by usual names. Sorted by column."""
    roles = dict(stated)
    used = {*stated.values()}
    for role in ROLES.values():
        if role.name in used:
            continue
        for column, values in columns.items():
            is_usual = any(_pattern(pattern).fullmatch(column) for pattern in role.usual)
            if is_usual and fits(role, column, values):
                roles.setdefault(column, role.name)
    return {column: role for column, role in sorted(roles.items()) if role != "none"}


def columns_with(roles: Mapping[str, str], role: str, *, of_agents: bool = False) -> list[str]:
    """Return the columns that have a role: those of the whole, or those of single agents."""
    return [
        column
        for column, name in roles.items()
        if name == role and fnmatch.fnmatchcase(column, f"{OF_AGENTS}*") == of_agents
    ]


def column_with(roles: Mapping[str, str], role: str) -> str | None:
    """Return the first column of the whole that has a role; None if none has it."""
    return next(iter(columns_with(roles, role)), None)


def shown_roles(roles: Mapping[str, str]) -> dict[str, str]:
    """Return for each role its columns in words; those of agents that are called alike stand together."""
    by_role: dict[str, dict[str, None]] = {}
    for column, role in roles.items():
        shown = re.sub(r"^infos/agents/[^/]+/", OF_AGENTS, column)
        by_role.setdefault(role, {})[shown] = None
    return {role: ", ".join(columns) for role, columns in sorted(by_role.items())}


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """A family of datasets.

    Attributes:
        name: Its name.
        about: What is special about its trajectories, in words.
        names: Patterns of names of datasets that are of it.
        recognizes: Whether a manifest is of it, besides its roles.
    """

    name: str
    about: str
    names: tuple[str, ...]
    recognizes: Callable[[Manifest], bool] = lambda _manifest: False


def _has_texts(manifest: Manifest) -> bool:
    from gymnasium import spaces

    from orlog.manifests.spaces import leaf_spaces

    roots = zip(manifest.spaces, ("observations", "actions"), strict=True)
    leaves = (leaf for space, root in roots for _, leaf in leaf_spaces(space, root))
    return any(isinstance(leaf, spaces.Text) for leaf in leaves)


def _is_tabular(manifest: Manifest) -> bool:
    from gymnasium import spaces

    return all(isinstance(space, spaces.Discrete) for space in manifest.spaces)


def _has_one_step_each(manifest: Manifest) -> bool:
    return 1 < manifest.total_episodes == manifest.total_steps


def _has_goals(manifest: Manifest) -> bool:
    from gymnasium import spaces

    space = manifest.spaces[0]
    return isinstance(space, spaces.Dict) and {"achieved_goal", "desired_goal"} <= {*space}


_DEMOS = (
    "demos/* robomimic/* mimicgen/* libero/* lerobot/* minari/*/human-* rlds/*/human_* d4rl/*-human-* d4rl/*-human-v*"
)
_GOALS = ("ogbench/*", "ogbench-local/*", "minari/d4rl/pointmaze/*", "minari/d4rl/antmaze/*")
FAMILIES = {
    family.name: family
    for family in (
        Family("safety", "each step has a cost, which is to stay below a limit in an episode", ("safety/*", "dsrl/*")),
        Family("agents", "several agents act at once", ("agents/*", "ogmarl/*")),
        Family("tasks", "several tasks, told apart by a number or words, and one policy for all", ("tasks/*",)),
        Family("objectives", "rewards of several objectives, which weights bring together", ("objectives/*",)),
        Family("words", "observations or actions are texts", ("words/*", "minari/minigrid/babyai*"), _has_texts),
        Family("demos", "demonstrations, to be imitated or to begin from", tuple(_DEMOS.split())),
        Family(
            "uncertain",
            "noise, delays or dropped frames stand between the policy and its world",
            ("uncertain/*", "neorl2/*"),
        ),
        Family("tabular", "states and actions are numbered, so that values can be exact", ("tabular/*",), _is_tabular),
        Family("bandits", "each episode is one step", ("bandits/*",), _has_one_step_each),
        Family("goals", "what is to be reached is observed too", _GOALS, _has_goals),
    )
}
"""Every family by name. A new one is one entry here."""


def find_family(name: str) -> Family:
    """Return a family by name.

    Raises NotFoundError that names the nearest and all others.
    """
    family = FAMILIES.get(name)
    if family is None:
        near = did_you_mean(name, FAMILIES) or "."
        raise NotFoundError(f"no family is called {name!r:.40}{near} There are {', '.join(FAMILIES)}.")
    return family


def is_of_family(family: Family, name: str, manifest: Manifest | None) -> bool:
    """Return whether a dataset is of a family; without a manifest only its name tells."""
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in family.names):
        return True
    if manifest is None:
        return False
    roles = {*manifest.known_roles.values()}
    return family.recognizes(manifest) or any(ROLES[role].family == family.name for role in roles)


def families_of(name: str, manifest: Manifest | None) -> list[str]:
    """Return the names of the families that a dataset is of, in the order of the table."""
    return [family.name for family in FAMILIES.values() if is_of_family(family, name, manifest)]
