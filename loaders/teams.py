"""Datasets of several agents: which agents there are, and where their values lie in arrays.

    observations, actions       a Dict with a part for each agent, as `orlog.record_parallel` stores them
    infos/agents/AGENT/..       acts, rewards, terminations, truncations, and flags of what is legal

Agents may have unequal spaces: observations and actions are then padded with zeros to the largest, and
flags of what is legal with False. All actions must be integers (Discrete), or all vectors of floats.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from gymnasium import spaces
from jaxtyping import Bool

from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays
from orlog.loaders.gathering import gather_rows
from orlog.loaders.infos import known_infos
from orlog.loaders.tensors import Tensor, torch
from orlog.manifests.roles import LEGAL, NEXT_LEGAL, OF_AGENTS, columns_with
from orlog.manifests.spaces import leaf_spaces

_OWN = ("acts", "rewards", "terminations", "truncations")
_INFOS = "infos/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Team:
    """The agents of a dataset.

    Attributes:
        dataset: Name of the dataset, for messages.
        agents: Their names, in the order in which batches have them.
        widths: Numbers in each one's observation, flattened.
        action_spaces: Each one's action space.
        legal: Flags of what may be done now: columns of infos, or of places in each one's observation; None
            of an agent that lacks them, which may do all.
        next_legal: Infos with flags of what may be done in the step after.
        has: Which of `acts`, `rewards`, `terminations` and `truncations` each agent has.
    """

    dataset: str
    agents: tuple[str, ...]
    widths: tuple[int, ...]
    action_spaces: tuple[Any, ...]
    legal: tuple[str | slice | None, ...]
    next_legal: tuple[str | None, ...]
    has: frozenset[str]

    @property
    def count(self) -> int:
        """How many agents there are."""
        return len(self.agents)

    @property
    def width(self) -> int:
        """Numbers in the largest observation."""
        return max(self.widths)

    @property
    def is_discrete(self) -> bool:
        """Whether actions are integers."""
        return isinstance(self.action_spaces[0], spaces.Discrete)

    @property
    def action_widths(self) -> tuple[int, ...]:
        """Choices of each agent, or numbers in each one's action."""
        return tuple(
            int(own.n) if isinstance(own, spaces.Discrete) else math.prod(own.shape) for own in self.action_spaces
        )

    @property
    def action_space(self) -> spaces.Space[Any]:
        """The action space of an agent as algorithms see it: from 0, and as wide as the widest."""
        if self.is_discrete:
            return spaces.Discrete(max(self.action_widths))
        low, high = np.full((2, max(self.action_widths)), [[-1.0], [1.0]], np.float32)
        for space in self.action_spaces:
            low[: space.low.size] = np.minimum(low[: space.low.size], space.low.reshape(-1))
            high[: space.high.size] = np.maximum(high[: space.high.size], space.high.reshape(-1))
        first = self.action_spaces[0]
        if all(space == first for space in self.action_spaces):
            low, high = first.low.reshape(-1), first.high.reshape(-1)
        return spaces.Box(low.astype(np.float32), high.astype(np.float32))

    @property
    def starts(self) -> tuple[int, ...]:
        """The integer of each agent's first choice."""
        return tuple(int(getattr(space, "start", 0)) for space in self.action_spaces)

    @property
    def infos(self) -> tuple[str, ...]:
        """Names of the infos that its batches are made of."""
        own = [f"agents/*/{name}" for name in _OWN if name in self.has]
        legal = [source for source in (*self.legal, *self.next_legal) if isinstance(source, str)]
        return tuple(dict.fromkeys([*own, *legal]))

    @property
    def limits_choices(self) -> bool:
        """Whether not every choice of the widest agent is one of each agent at any time."""
        says = self.legal or self.next_legal or min(self.action_widths) < max(self.action_widths)
        return self.is_discrete and bool(says)


def is_team(dataset: Dataset) -> bool:
    """Return whether a dataset is of several agents that act at once."""
    observation_space, action_space = dataset.observation_space, dataset.action_space
    if not isinstance(observation_space, spaces.Dict) or not isinstance(action_space, spaces.Dict):
        return False
    agents = sorted(observation_space.spaces)
    columns = {*dataset.columns}
    return agents == sorted(action_space.spaces) and all(f"{_INFOS}agents/{agent}/acts" in columns for agent in agents)


def team_of(dataset: Dataset) -> Team:
    """Return the agents of a dataset."""
    if not is_team(dataset):
        raise SchemaError(
            f"{dataset.name}: these are no data of several agents: expected observations and actions that are "
            f"a Dict with a part for each agent, and a column {_INFOS}{OF_AGENTS.removeprefix(_INFOS)}acts of "
            "each, as orlog.record_parallel stores them; for one agent, take orlog.transitions."
        )
    observation_space: Any = dataset.observation_space
    action_space: Any = dataset.action_space
    agents = tuple(sorted(observation_space.spaces))  # as columns and matrices have them
    widths = []
    for agent in agents:
        leaves = [leaf for _, leaf in leaf_spaces(observation_space[agent], agent)]
        for leaf in leaves:
            if not isinstance(leaf, spaces.Box) or (leaf.dtype == np.uint8 and len(leaf.shape) > 1):
                raise SchemaError(
                    f"{dataset.name}: agent {agent} observes {observation_space[agent]}; batches of agents "
                    "take vectors of numbers (a Box, or a Dict or Tuple of such): sample a view without the "
                    "other parts (select_columns)."
                )
        widths.append(sum(_size(leaf) for leaf in leaves))
    own = [action_space[agent] for agent in agents]
    for kind in (spaces.Discrete, spaces.Box):
        if isinstance(own[0], kind) and all(isinstance(space, kind) for space in own):
            break
    else:
        odd = next((n for n, space in enumerate(own) if type(space) is not type(own[0])), 0)
        raise SchemaError(
            f"{dataset.name}: agent {agents[odd]} has actions in {own[odd]}, agent {agents[0]} in {own[0]}; "
            "batches of agents take integers (Discrete) of all, or vectors (Box) of all."
        )
    known = known_infos(dataset)
    has = [name for name in _OWN if all(f"agents/{agent}/{name}" in known for agent in agents)]
    columns, places = _legal_columns(dataset, agents, LEGAL), _legal_places(dataset, agents)
    legal: tuple[str | slice | None, ...] = columns or places
    if len(columns) == len(places):
        legal = tuple(column or place for column, place in zip(columns, places, strict=True))
    return Team(
        dataset=dataset.name,
        agents=agents,
        widths=tuple(widths),
        action_spaces=tuple(own),
        legal=legal,
        next_legal=_legal_columns(dataset, agents, NEXT_LEGAL),
        has=frozenset(has),
    )


def _legal_columns(dataset: Dataset, agents: tuple[str, ...], role: str) -> tuple[str | None, ...]:
    """Return each agent's info of a role, or one name for all if their shapes are equal; nothing if none has it."""
    specs = dataset.schema.columns()
    names: dict[str, str] = {}
    for column in columns_with(dataset.roles, role, of_agents=True):
        _, _, agent, name = column.split("/", 3)
        if agent in agents and agent not in names:
            _check_width(dataset, agent, column, specs[column].shape[0])
            names[agent] = name
    if not names:
        return ()
    forms = {
        (name, specs[f"{_INFOS}agents/{agent}/{name}"].dtype, specs[f"{_INFOS}agents/{agent}/{name}"].shape)
        for agent, name in names.items()
    }
    if len(forms) == 1 and len(names) == len(agents):
        return (f"agents/*/{names[agents[0]]}",)
    return tuple(f"agents/{agent}/{names[agent]}" if agent in names else None for agent in agents)


def _legal_places(dataset: Dataset, agents: tuple[str, ...]) -> tuple[slice | None, ...]:
    """Return where the flags of what is legal lie in each agent's observation; nothing if none has them."""
    columns = {column for column, role in dataset.roles.items() if role == LEGAL}
    observation_space: Any = dataset.observation_space
    places: dict[str, slice] = {}
    for agent in agents:
        first = 0
        for name, leaf in leaf_spaces(observation_space[agent], f"observations/{agent}"):
            if name in columns:
                _check_width(dataset, agent, name, _size(leaf))
                places[agent] = slice(first, first + _size(leaf))
            first += _size(leaf)
    return tuple(places.get(agent) for agent in agents) if places else ()


def _check_width(dataset: Dataset, agent: str, column: str, width: int) -> None:
    """Refuse fewer flags than an agent has choices, or more than any agent has."""
    of_actions: Any = dataset.action_space
    counts = {name: getattr(space, "n", width) for name, space in of_actions.spaces.items()}
    if not counts[agent] <= width <= max(counts.values()):
        raise SchemaError(
            f"{dataset.name}: column {column} has {width} flags of what is legal, but agent {agent} has "
            f"{counts[agent]} choices; record one flag for each, or leave the column out (ds.select_columns)."
        )


def _size(leaf: spaces.Space[Any]) -> int:
    """Return how many numbers a value of a Box has."""
    return math.prod(leaf.shape or ())


class TeamArrays:
    """Finds the values of agents in the rows of `Arrays`."""

    def __init__(self, team: Team, arrays: Arrays) -> None:
        self.team, self.arrays = team, arrays
        infos = arrays.infos
        assert infos is not None
        self._leaves = infos.observation_leaves
        self._infos = infos
        self._edges = np.cumsum((0, *team.widths)).tolist()

    @functools.cached_property
    def _is_final(self) -> Bool[Tensor, " rows"]:
        """Which rows are final observations: a byte a row."""
        flags = torch.zeros(len(self.arrays.rows), dtype=torch.bool)
        flags[torch.from_numpy(self.arrays.final_rows)] = True
        return flags.to(self.arrays.rows.device)

    @property
    def rewards(self) -> slice | None:
        """Place of the agents' rewards among the numbers of infos; None if only the team's are there."""
        return self._leaves["agents/*/rewards"].place if "rewards" in self.team.has else None

    def flags(self, name: str) -> Tensor:
        """Return flags of all agents, `[rows, agents]`, as they are stored; `name` is such as `acts`."""
        leaf = self._leaves[f"agents/*/{name}"]
        if leaf.column:
            return self._infos.others[leaf.column]
        return self._infos.rows[:, leaf.place]

    def own_observations(self, rows: Tensor, agent: int) -> Tensor:
        """Return what one agent observes in some rows, padded, `[rows, width]`."""
        first, stop = self._edges[agent], self._edges[agent + 1]
        return pad(self.arrays.rows[:, first:stop].index_select(0, rows), self.team.width)

    def own_actions(self, rows: Tensor, agent: int) -> Tensor:
        """Return what one agent did in some rows: whole numbers from 0, or floats padded with zeros."""
        team, arrays = self.team, self.arrays
        if team.is_discrete:
            actions = arrays.others["actions"]
            own = actions if actions.ndim == 1 else actions[:, agent]
            return own.index_select(0, rows) - team.starts[agent]
        edges = np.cumsum((arrays.obs_dim, *team.action_widths)).tolist()
        own = arrays.rows[:, edges[agent] : edges[agent + 1]].index_select(0, rows)
        return pad(own, max(team.action_widths))

    def legal(self, rows: Tensor) -> Bool[Tensor, "rows agents choices"] | None:
        """Return what each agent may do in the steps at some rows; None if nothing says it.

        Where only what comes after a step is known, that is what the step before says. All is taken to be legal
        where nothing is known: at the first step of an episode, and where an agent comes of which the step before
        says nothing; also at final observations, unless these hold the flags.
        """
        team = self.team
        if not team.limits_choices:
            return None
        known = self.everything.expand(len(rows), -1, -1)
        if team.next_legal:
            before = (rows - 1).clamp(min=0)
            starts = self._is_final.index_select(0, before) | (rows == 0)
            stated = self._flags_of(team.next_legal, before, known)
            if self._some_come_late:
                acts = self.flags("acts")
                comes = (acts.index_select(0, rows) > 0) & ~(acts.index_select(0, before) > 0)
                untold = comes & ~stated.any(-1)
                stated = torch.where(untold[..., None], known, stated)
            known = torch.where(starts[:, None, None], known, stated)
        return self._flags_of(team.legal, rows, known) if team.legal else known

    @functools.cached_property
    def _some_come_late(self) -> bool:
        """Whether an agent acts in a step and not in the one before it."""
        acts = self.flags("acts") > 0
        return bool((acts[1:] & ~acts[:-1] & ~self._is_final[:-1, None]).any())

    @functools.cached_property
    def everything(self) -> Bool[Tensor, "agents choices"]:
        """Return the choices that each agent has."""
        counts = torch.tensor(self.team.action_widths, device=self.arrays.rows.device)
        return torch.arange(int(counts.max()), device=counts.device) < counts[:, None]

    def _flags_of(self, sources: tuple[str | slice | None, ...], rows: Tensor, otherwise: Tensor) -> Tensor:
        """Return flags of some infos or places as `[rows, agents, choices]`; `otherwise` where there are none."""
        choices = otherwise.shape[-1]
        is_final = self._is_final.index_select(0, rows)[:, None]
        several = []
        for agent, source in enumerate(sources):
            if source is None:
                several.append(otherwise[:, agent])
            elif isinstance(source, slice):
                edge = self._edges[agent]
                place = slice(edge + source.start, edge + source.stop)
                several.append(pad(gather_rows(self.arrays.rows[:, place], rows) > 0, choices))
            else:
                flags = pad(as_flags(self._infos.leaf(self._leaves[source], rows)), choices)
                if flags.ndim == 3:  # of all agents
                    return torch.where(is_final[..., None], otherwise, flags)
                several.append(torch.where(is_final, otherwise[:, agent], flags))
        return torch.stack(several, 1)


def as_flags(values: Tensor) -> Bool[Tensor, ...]:
    """Return flags that may be stored as numbers."""
    return values if values.dtype is torch.bool else values > 0


def pad(values: Tensor, width: int) -> Tensor:
    """Return values with zeros behind them, to a last axis of some width."""
    missing = width - values.shape[-1]
    return torch.nn.functional.pad(values, (0, missing)) if missing else values


def check_legal(team: Team, arrays: Arrays) -> None:
    """Refuse steps in which an agent acts though nothing is legal for it, or a choice that it lacks."""
    if not team.legal and not team.next_legal:
        return
    there = TeamArrays(team, arrays)
    for first in range(0, arrays.total_steps, _BLOCK):
        steps = np.arange(first, min(first + _BLOCK, arrays.total_steps))
        rows = arrays.step_table.take(steps)
        chosen = torch.from_numpy(rows).to(arrays.rows.device)
        legal = there.legal(chosen)
        if legal is None:
            return
        acts = there.flags("acts").index_select(0, chosen) > 0
        lacks = (legal & ~there.everything).any(-1)
        wrong = (acts & (lacks | ~legal.any(-1))).nonzero()
        if len(wrong):
            place, agent = wrong[0].tolist()
            episode = int(rows[place] - steps[place])
            step = int(rows[place] - arrays.first_rows[episode])
            reason = (
                f"more than its {team.action_widths[agent]} choices are"
                if lacks[place, agent]
                else "none of its actions is"
            )
            raise SchemaError(
                f"{team.dataset}: agent {team.agents[agent]} acts in step {step} of episode {episode}, but "
                f"{reason} legal there; correct the flags, or leave the episode out "
                "(ds.filter_episodes)."
            )


_BLOCK = 2**18
