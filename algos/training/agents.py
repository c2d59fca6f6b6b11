"""Algorithms on data of several agents: those for one agent are shared over them, those for teams see all.

    orlog train bc agents/spread-medium-v1                          one network for all agents
    orlog train bc agents/spread-medium-v1 --set agents=separate    each agent learns by itself

An algorithm for one agent sees each agent's part of an episode as an episode of its own
(`loaders/members.py`): what the agent observes, which agent it is, and which actions are legal. Nothing of
its file knows of agents. `over_agents` makes the class that is trained, with two settings more:

    agents           shared: one set of parameters; separate: one for each agent, and batches of its own
    agent_rewards    own: each agent's own reward; team: the team's

An algorithm for teams says so with `AGENTS = True`. It learns from `AgentBatch`
(`loaders/agent_transitions.py`), and acts with `act(observations, legal)`: what all agents observe,
`[batch, agents, obs]`, and which actions are legal, `[batch, agents, actions]` or None. Its scaling is that of
one agent, and says how many there are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Float32
from torch import Tensor

from orlog.algos.algorithms import AlgorithmLike, algorithm_name, find_algorithm, for_teams, takes_goals
from orlog.algos.networks import Scaling
from orlog.algos.settings import AgentSettings
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError
from orlog.loaders.agent_transitions import load_agents
from orlog.loaders.arrays import Arrays
from orlog.loaders.members import legal_place, member_arrays
from orlog.loaders.teams import Team, TeamArrays, team_of
from orlog.manifests.names import counted
from orlog.manifests.roles import MASKS
from orlog.manifests.spaces import space_leaves


class OverAgents:
    """An algorithm for one agent that learns for all; `over_agents` makes its subclasses.

    Attributes:
        KIND: Class of the algorithm for one agent.
    """

    KIND: ClassVar[type[Any]]
    CONSTANTS = ("config", "scaling", "learners", "STATE")

    def __init__(self, config: Any, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        """Make one learner, or one for each agent, whose networks differ."""
        seeds = [seed]
        if config.agents == "separate":
            states = np.random.SeedSequence((seed, scaling.agents)).generate_state(scaling.agents)
            seeds = [int(state >> 1) for state in states]
        learners = [self.KIND(config, scaling, seed=seed, device=device) for seed in seeds]
        constants = getattr(self.KIND, "CONSTANTS", ("config", "scaling"))
        names = tuple(name for name in vars(learners[0]) if name not in constants)
        if len(learners) > 1:
            names = tuple(f"{name}.{place}" for place in range(len(learners)) for name in names)
        vars(self).update(config=config, scaling=scaling, learners=learners, STATE=names)

    def __getattr__(self, name: str) -> Any:
        """Return a part of a learner's state: `policy`, or `policy.1` of the second agent."""
        return getattr(*self._place(name))

    def __setattr__(self, name: str, value: Any) -> None:
        """Put a part of a learner's state in its place."""
        setattr(*self._place(name), value)

    def _place(self, name: str) -> tuple[Any, str]:
        """Return the learner whose state has a name, and which of its attributes it is."""
        if name not in vars(self).get("STATE", ()):
            raise AttributeError(name)
        attribute, _, place = name.partition(".")
        return vars(self)["learners"][int(place or 0)], attribute

    @classmethod
    def loader(cls, config: Any) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: that of the algorithm, or one for each agent."""
        path, arguments = cls.KIND.loader(config)
        if config.agents == "shared":
            return path, arguments
        infos = {"infos": arguments["infos"]} if "infos" in arguments else {}
        return "orlog.loaders.members:separately", {"loader": path, "arguments": arguments, **infos}

    def update(self, batch: Any) -> dict[str, Tensor]:
        """Take one gradient step of each learner, and return the means of their metrics."""
        if len(self.learners) == 1:
            metrics: dict[str, Tensor] = self.learners[0].update(batch)
            return metrics
        several = [learner.update(own) for learner, own in zip(self.learners, batch, strict=True)]
        return {name: torch.stack([metrics[name] for metrics in several]).mean(0) for name in several[0]}

    def act(self, observations: Float32[Tensor, "rows obs"]) -> Tensor:
        """Return the actions of all agents, whose observations follow one another, team after team."""
        if len(self.learners) == 1:
            actions: Tensor = self.learners[0].act(observations)
            return actions
        teams = observations.view(-1, len(self.learners), observations.shape[-1])
        several = [learner.act(teams[:, place]) for place, learner in enumerate(self.learners)]
        return torch.stack(several, 1).flatten(0, 1)


@functools.cache
def over_agents(kind: type[Any]) -> type[Any]:
    """Return the class that learns for several agents with an algorithm for one."""
    more = [(field.name, field.type, field.default) for field in msgspec.structs.fields(AgentSettings)]
    name, module = kind.CONFIG.__name__, kind.CONFIG.__module__
    config = msgspec.defstruct(name, more, bases=(kind.CONFIG,), module=module, kw_only=True)
    copied = ("OBSERVATIONS", "ACTIONS", "REWARDS", "FROM_DATA", "TITLE")
    body = {name: getattr(kind, name) for name in copied if hasattr(kind, name)}
    body |= {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (OverAgents,), {**body, "KIND": kind, "CONFIG": config})


def team_form(algorithm: AlgorithmLike, dataset: Dataset) -> type[Any]:
    """Return the class that learns from a dataset of several agents.

    Raises SchemaError if the algorithm takes other actions, or cannot be shared over agents.
    """
    if isinstance(algorithm, type) and issubclass(algorithm, OverAgents):
        return algorithm
    team = team_of(dataset)
    try:
        kind = find_algorithm(algorithm, action_space=team.action_space, observations="vector")
    except SchemaError as error:
        raise SchemaError(f"{dataset.name}: of each agent, {error}") from error
    if for_teams(kind):
        return kind
    name = algorithm_name(kind)
    reasons = {
        "acts to reach goals": takes_goals(kind),
        "starts in the environment": getattr(kind, "ONLINE", False),
        "remembers episodes": hasattr(kind, "actor"),
        "takes no vectors": "vector" not in kind.OBSERVATIONS,
    }
    for reason, holds in reasons.items():
        if holds:
            raise SchemaError(
                f"{dataset.name}: {name} {reason}, and such algorithms are not shared over agents, of which this "
                "dataset has several; choose another, such as bc or iql."
            )
    return over_agents(kind)  # type: ignore[arg-type]  # classes are hashable, says mypy of others


def load_for(kind: type[Any], config: Any, dataset: Dataset, where: str, infos: tuple[str, ...]) -> Arrays:
    """Return the arrays of several agents as an algorithm samples from them."""
    arrays = load_agents(dataset, where, infos=infos)
    if for_teams(kind):
        return arrays
    return member_arrays(arrays, rewards=config.agent_rewards, infos=infos)


def statistics(packed: Arrays) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of what agents observe; 0 and 1 of what is no observation.

    Those of arrays of a team are over all agents, in the steps in which these act.
    """
    team = packed.team
    if not isinstance(team, Team):
        mean, std = packed.observation_statistics()
        mean[team.team.width :], std[team.team.width :] = 0, 1
        return mean, std
    there = TeamArrays(team, packed)
    sums, count, acts = np.zeros((2, team.width)), 0, there.flags("acts") > 0
    for first in range(0, packed.total_steps, 65536):
        rows = torch.from_numpy(packed.step_rows(first, min(first + 65536, packed.total_steps)))
        for agent in range(team.count):
            values = there.own_observations(rows[acts[rows, agent]], agent).double().numpy()
            sums += np.stack([values.sum(0), np.square(values).sum(0)])
            count += len(values)
    average, squares = sums / max(count, 1)
    deviation = np.sqrt(np.maximum(squares - np.square(average), 0))
    return torch.from_numpy(average.astype(np.float32)), torch.from_numpy(deviation.astype(np.float32))


def observed_width(kind: type[Any], dataset: Dataset) -> int:
    """Return how many numbers an algorithm sees of an agent."""
    team = team_of(dataset)
    if for_teams(kind):
        return team.width
    place = legal_place(team)
    return team.width + team.count + (0 if place is None else place.stop - place.start)


def team_scaling(kind: type[Any], dataset: Dataset, obs_mean: Tensor, obs_std: Tensor) -> Scaling:
    """Return the maps between an environment's units and an algorithm's for one agent of several.

    Raises SchemaError if actions have no finite bounds.
    """
    team = team_of(dataset)
    space, low, high = team.action_space, torch.empty(0), torch.empty(0)
    if isinstance(space, spaces.Box):
        if not space.is_bounded():
            raise SchemaError(
                f"{dataset.name}: {algorithm_name(kind)} needs actions with finite bounds, found {space} of an "
                "agent; record the data with action spaces that have bounds."
            )
        low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
    place = None if for_teams(kind) else legal_place(team)
    width = observed_width(kind, dataset)
    return Scaling(
        obs_mean=obs_mean,
        obs_std=obs_std,
        action_low=low,
        action_high=high,
        observation_space=spaces.Box(-np.inf, np.inf, (width,), np.float32),
        action_space=space,
        legal=None if place is None else ("", place),
        agents=team.count,
    )


class TeamPolicy:
    """The policy of a run on several agents: from batched observations of all to the actions of all."""

    infos = ()  # it can do without flags of what is legal: then all is

    def __init__(self, algorithm: Any, dataset: Dataset, device: str) -> None:
        self._algorithm, self._device = algorithm, device
        self._team = team_of(dataset)
        self._space: Any = dataset.observation_space
        self._name, self._who = dataset.name, algorithm_name(type(algorithm))
        self._is_for_teams = for_teams(type(algorithm))
        self._flags: dict[str, np.ndarray] = {}

    def inform(self, infos: Mapping[str, Any]) -> None:
        """Take note of what environments side by side tell: flags of what is legal in the coming step."""
        given, self._flags = infos.get("agents"), {}
        for agent in self._team.agents if isinstance(given, Mapping) else ():
            of_agent = infos["agents"].get(agent, {})
            columns = [name for name in (*self._team.legal, *self._team.next_legal) if isinstance(name, str)]
            own = [name for name in columns if name.startswith(("agents/*/", f"agents/{agent}/"))]
            names = [*(name.rpartition("/")[2] for name in own), *sorted(MASKS)]
            if name := next((name for name in names if name in of_agent), ""):
                self._flags[agent] = _stacked(of_agent[name])

    def __call__(self, observations: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the actions of all agents, by name."""
        team = self._team
        parts = [_flat(observations[agent], self._space[agent]) for agent in team.agents]
        seen = torch.zeros(len(parts[0]), team.count, team.width)
        for place, part in enumerate(parts):
            seen[:, place, : part.shape[1]] = torch.from_numpy(part)
        legal = self._legal(parts)
        if self._is_for_teams:
            given = None if legal is None else legal.to(self._device)
            actions = self._algorithm.act(seen.to(self._device), given)
        else:
            which = torch.eye(team.count).expand(len(seen), -1, -1)
            columns = [seen, which] if legal is None else [seen, which, legal.float()]
            rows = torch.cat(columns, -1).flatten(0, 1)
            actions = self._algorithm.act(rows.to(self._device))
            actions = actions.view(len(seen), team.count, *actions.shape[1:])
        return self._of_agents(actions.detach().cpu())

    def _legal(self, parts: list[np.ndarray]) -> Tensor | None:
        """Return what each agent may do; all where the environment does not say it."""
        team = self._team
        if not (team.limits_choices or (self._flags and self._is_for_teams)):
            return None
        legal = torch.zeros(len(parts[0]), team.count, max(team.action_widths), dtype=torch.bool)
        for place, (agent, width) in enumerate(zip(team.agents, team.action_widths, strict=True)):
            legal[:, place, :width] = True
            source = team.legal[place] if len(team.legal) == team.count else None
            if isinstance(source, slice):
                flags = parts[place][:, source]
            elif agent in self._flags:
                flags = self._flags[agent]
            else:
                continue
            legal[:, place, :width] = torch.from_numpy(flags[:, :width] > 0)
        return legal

    def _of_agents(self, actions: Tensor) -> dict[str, np.ndarray]:
        team = self._team
        if not bool(torch.isfinite(actions.float()).all()) or actions.shape[1] != team.count:
            raise SchemaError(
                f"{self._name}: {self._who} gave actions of shape {list(actions.shape)}, not all finite, for "
                f"{counted(team.count, 'agent')}; look at its metrics and weights, and correct its act."
            )
        by_agent = {}
        for place, (agent, space) in enumerate(zip(team.agents, team.action_spaces, strict=True)):
            own = actions[:, place].numpy()
            if team.is_discrete:
                # What is no choice of an agent that has fewer than others is its first one.
                own = np.where(own < space.n, own, 0) + team.starts[place]
            else:
                size = team.action_widths[place]
                own = own[:, :size].reshape(-1, *space.shape).clip(space.low, space.high)
            by_agent[agent] = own.astype(space.dtype)
        return by_agent


def _flat(observations: Any, space: spaces.Space[Any]) -> np.ndarray:
    """Return observations of an agent as rows of numbers, the parts of a Dict or Tuple side by side."""
    parts = []
    for leaf in space_leaves(space):
        values = observations
        for key in leaf.keys:
            values = values[key]
        parts.append(np.asarray(values).reshape(-1, math.prod(leaf.space.shape or ())))
    return np.concatenate(parts, 1, dtype=np.float32)


def _stacked(values: Any) -> np.ndarray:
    """Return flags of several environments as one array; those of one that tells none are all set."""
    flags = np.asarray(values)
    if flags.dtype != object:
        return np.atleast_2d(flags)
    known = [np.asarray(own) for own in values if own is not None]
    return np.stack([np.ones_like(known[0]) if own is None else np.asarray(own) for own in values])
