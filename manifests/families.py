"""Families of datasets: kinds of trajectories for which there are roles, samplers, algorithms and metrics.

`FAMILIES` is the table. A dataset is of a family if it has one of the family's roles (`manifests/roles.py`), if
what its manifest says is recognized, or by its name, which is all that is known of what is not here.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable
from typing import TYPE_CHECKING

from orlog.errors import NotFoundError
from orlog.manifests.names import did_you_mean
from orlog.manifests.roles import ROLES

if TYPE_CHECKING:
    from orlog.manifests.manifest import Manifest  # slow to import, as spaces are


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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


FAMILIES = {
    one.name: one
    for one in (
        Family(
            name="safety",
            about="each step has a cost, which is to stay below a limit in an episode",
            names=("safety/*", "dsrl/*"),
        ),
        Family(name="agents", about="several agents act at once", names=("agents/*", "ogmarl/*")),
        Family(
            name="tasks",
            about="several tasks, told apart by a number or words, and one policy for all",
            names=("tasks/*",),
        ),
        Family(
            name="objectives",
            about="rewards of several objectives, which weights bring together",
            names=("objectives/*",),
        ),
        Family(
            name="words",
            about="observations or actions are texts",
            names=("words/*", "minari/minigrid/babyai*"),
            recognizes=_has_texts,
        ),
        Family(
            name="demos",
            about="demonstrations, to be imitated or to begin from",
            names=(
                *("demos/*", "robomimic/*", "mimicgen/*", "libero/*", "lerobot/*"),
                *("minari/*/human-*", "rlds/*/human_*"),
                *("d4rl/*-human-*", "d4rl/*-human-v*"),
            ),
        ),
        Family(
            name="uncertain",
            about="noise, delays or dropped frames stand between the policy and its world",
            names=("uncertain/*", "neorl2/*"),
        ),
        Family(
            name="tabular",
            about="states and actions are numbered, so that values can be exact",
            names=("tabular/*",),
            recognizes=_is_tabular,
        ),
        Family(
            name="bandits",
            about="each episode is one step",
            names=("bandits/*",),
            recognizes=_has_one_step_each,
        ),
        Family(
            name="goals",
            about="what is to be reached is observed too",
            names=(
                "ogbench/*",
                "ogbench-local/*",
                "minari/d4rl/pointmaze/*",
                "minari/d4rl/antmaze/*",
            ),
            recognizes=_has_goals,
        ),
    )
}
"""Every family by name. A new one is one entry here."""


def find_family(name: str) -> Family:
    """Return a family by name.

    Raises NotFoundError that names the nearest and all others.
    """
    found = FAMILIES.get(name)
    if found is None:
        near = did_you_mean(name, FAMILIES) or "."
        raise NotFoundError(
            f"no family is called {name!r:.40}{near} There are {', '.join(FAMILIES)}."
        )
    return found


def is_of_family(family: Family, name: str, manifest: Manifest | None) -> bool:
    """Return whether a dataset is of a family; without a manifest only its name tells."""
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in family.names):
        return True
    if manifest is None:
        return False
    roles = {*manifest.known_roles.values()}
    return family.recognizes(manifest) or any(ROLES[one].family == family.name for one in roles)


def families_of(name: str, manifest: Manifest | None) -> list[str]:
    """Return the names of the families that a dataset is of, in the order of the table."""
    return [one.name for one in FAMILIES.values() if is_of_family(one, name, manifest)]
