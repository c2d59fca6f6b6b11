"""The policy of a run: its algorithm, made from the run's record, as a function of observations.

An algorithm declares which kinds of spaces it takes; batches and policies give it the same tensors:

    OBSERVATIONS  vector         one float32 vector [batch, obs]: Box, or Dict and Tuple of Boxes
                  structured     a tensor by key, or one tensor: images, integers, and mixtures of all
                  text           a list of texts, or by key a list of texts or a tensor: mixtures with texts
                  numbered       of these only int64 [batch]: Discrete
    ACTIONS       continuous     float32 [batch, act] in the environment's unit: Box
                  discrete       int64 [batch]: Discrete
                  multidiscrete  int64 [batch, parts]: MultiDiscrete and MultiBinary
                  text           a list of texts: Text

In batches texts are int64 places in `Arrays.texts`, or tokens (`orlog.token_sequences`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from orlog.algos.algorithms import (
    ALGORITHMS,
    Actor,
    Algorithm,
    AlgorithmLike,
    action_kind,
    algorithm_forms,
    algorithm_name,
    find_algorithm,
    for_teams,
    make_algorithm,
    own_errors,
    takes_goals,
)
from orlog.algos.networks import Scaling
from orlog.algos.settings import make_config
from orlog.algos.training import agents
from orlog.algos.training.generators import MAKING, seeded
from orlog.algos.training.run_data import infos_of
from orlog.algos.training.runs import RunRecord
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import NotFoundError, SchemaError
from orlog.loaders.filling import Layout, layout_of
from orlog.loaders.info_rows import info_column
from orlog.loaders.states_and_goals import ACHIEVED, DESIRED, GoalParts, goal_parts
from orlog.loaders.teams import is_team
from orlog.manifests.roles import LEGAL
from orlog.manifests.spaces import space_leaves
from orlog.normalize.rollouts import Policy

_IN_WORDS = {
    "vector": "vectors of numbers (a Box, or a Dict or Tuple of such)",
    "structured": "images, integers and mixtures of spaces",
    "text": "texts and mixtures with texts",
    "numbered": "numbers of states (a Discrete space)",
}


def fitting_form(algorithm: AlgorithmLike, dataset: Dataset) -> type[Any]:
    """Return the class of an algorithm that takes a dataset's observations and actions.

    On data of several agents it is one that learns for all of them (`agents.py`).
    """
    if is_team(dataset):
        return agents.team_form(algorithm, dataset)
    found = _observations(dataset)
    try:
        kind = find_algorithm(algorithm, action_space=dataset.action_space, observations=found[0])
    except SchemaError as error:
        raise SchemaError(f"{dataset.name}: {error}") from error
    if not {*found} & {*kind.OBSERVATIONS}:
        others = [
            name
            for name in ALGORITHMS
            if any(
                {*found} & {*form.OBSERVATIONS}
                and action_kind(dataset.action_space) in form.ACTIONS
                and not for_teams(form)
                for form in algorithm_forms(name)
            )
        ]
        raise SchemaError(
            f"{dataset.name}: {algorithm_name(algorithm)} takes observations that are "
            f"{' or '.join(_IN_WORDS[one] for one in kind.OBSERVATIONS)}, found "
            f"{dataset.observation_space}"
            + (
                f"; choose one of: {', '.join(others)}."
                if others
                else "; none of orlog's algorithms takes them: sample a view without the parts that are "
                "texts (select_columns)."
            )
        )
    if for_teams(kind):
        raise SchemaError(
            f"{dataset.name}: {algorithm_name(kind)} learns from several agents that act at once, and this is "
            "data of one; choose another algorithm, such as bc or iql."
        )
    if takes_goals(kind):
        _goal_parts(dataset)
    return kind


def check_goal_to_act_for(kind: type[Any], dataset: Dataset) -> None:
    """Refuse to evaluate an algorithm that acts for goals where observations have no part with one."""
    if takes_goals(kind) and _goal_parts(dataset).desired is None:
        raise NotFoundError(
            f"{dataset.name}: {algorithm_name(kind)} acts to reach a goal, and observations have no "
            "desired_goal to say which, so its policy can be trained but not scored; for scores, use "
            "data of a Gymnasium goal environment."
        )


def _goal_parts(dataset: Dataset) -> GoalParts:
    layout = layout_of(dataset)
    leaves = {**layout.parts, **layout.observation_leaves}
    found = goal_parts(leaves, layout.obs_dim, dataset.name)
    if found.desired is not None and layout.observation_leaves:
        space: Any = dataset.observation_space
        achieved, desired = space[ACHIEVED], space[DESIRED]
        if (achieved.shape, achieved.dtype) != (desired.shape, desired.dtype):
            raise SchemaError(
                f"{dataset.name}: {DESIRED} is {desired} and {ACHIEVED} is {achieved}; record both in the same units."
            )
    return found


def _state_space(space: gymnasium.spaces.Dict) -> gymnasium.spaces.Dict:
    """Return the space of observations without the goal that they ask for."""
    return gymnasium.spaces.Dict([(key, one) for key, one in space.items() if key != DESIRED])


def _observations(dataset: Dataset) -> list[str]:
    """Return the kinds that observations are of, the most general one first."""
    layout = layout_of(dataset)
    if not layout.observation_leaves:
        return ["vector"]
    columns = (leaf.column for leaf in layout.observation_leaves.values())
    if any(one in layout.tables for one in columns):
        return ["text"]
    is_numbered = isinstance(dataset.observation_space, gymnasium.spaces.Discrete)
    return ["structured", "numbered"] if is_numbered else ["structured"]


def observation_width(dataset: Dataset, algorithm: AlgorithmLike) -> int:
    """Return how many numbers of an observation to standardize: those packed as float32."""
    if is_team(dataset):
        return agents.observed_width(fitting_form(algorithm, dataset), dataset)
    return layout_of(dataset).obs_dim


def make_from_record(
    record: RunRecord, dataset: Dataset, algorithm: AlgorithmLike | None = None, *, device: str = "cpu"
) -> Algorithm:
    """Return the algorithm of a run, before any training; by default the one that the record names."""
    kind = fitting_form(record.algorithm if algorithm is None else algorithm, dataset)
    make = _team_scaling if is_team(dataset) else _scaling
    scaling = make(kind, dataset, record)
    config = make_config(kind, record.config)
    try:
        with seeded(kind, record.seed, MAKING):
            return make_algorithm(kind, config, scaling, seed=record.seed, device=device)
    except SchemaError as error:
        raise SchemaError(f"{dataset.name}: {error}") from error


def _team_scaling(kind: type[Any], dataset: Dataset, record: RunRecord) -> Scaling:
    obs_mean, obs_std = torch.tensor(record.obs_mean), torch.tensor(record.obs_std)
    return agents.team_scaling(kind, dataset, obs_mean, obs_std)


def _scaling(kind: type[Any], dataset: Dataset, record: RunRecord) -> Scaling:
    """Return the maps between the units of a dataset's environment and an algorithm's."""
    low, high = np.empty(0, np.float32), np.empty(0, np.float32)
    if isinstance(dataset.action_space, gymnasium.spaces.Box):
        low, high = dataset.action_space.low, dataset.action_space.high
        if not dataset.action_space.is_bounded():
            actions = dataset.column("actions")
            actions = actions[np.isfinite(actions)]
            least, most = math.floor(actions.min(initial=-1)), math.ceil(actions.max(initial=1))
            raise SchemaError(
                f"{dataset.name}: {record.algorithm} needs actions with finite bounds, found "
                f"{dataset.action_space}; import the file again with bounds, orlog import .. --bounds "
                f"action={least}:{most}, or with those of a benchmark's dataset, --like NAME; or record the "
                "data with an action space that has bounds."
            )
    obs_mean, obs_std = torch.tensor(record.obs_mean), torch.tensor(record.obs_std)
    goal_mean = goal_std = goal_space = None
    observation_space: Any = dataset.observation_space
    if takes_goals(kind) and (parts := _goal_parts(dataset)).goal_key is not None:
        # A desired goal is in the units of an achieved one, so both are standardized the same way.
        goal_mean, goal_std = obs_mean[parts.achieved], obs_std[parts.achieved]
        goal_space = observation_space[parts.goal_key]
        obs_mean, obs_std = parts.numbers(obs_mean), parts.numbers(obs_std)
        observation_space = _state_space(observation_space)
    return Scaling(
        obs_mean=obs_mean,
        obs_std=obs_std,
        action_low=torch.from_numpy(low.reshape(-1).astype(np.float32)),
        action_high=torch.from_numpy(high.reshape(-1).astype(np.float32)),
        observation_space=observation_space,
        action_space=dataset.action_space,
        goal_mean=goal_mean,
        goal_std=goal_std,
        goal_space=goal_space,
        legal=_legal_place(dataset),
    )


def _legal_place(dataset: Dataset) -> tuple[str, slice] | None:
    """Return where observations say which actions are legal, if they do and actions are choices."""
    if not isinstance(dataset.action_space, gymnasium.spaces.Discrete):
        return None
    columns = [column for column, role in dataset.roles.items() if role == LEGAL]
    layout = layout_of(dataset)
    for leaf in space_leaves(dataset.observation_space):
        key = "/".join(map(str, leaf.keys))
        if f"observations/{key}" in columns:
            if layout.observation_leaves:
                return key, slice(None)
            return "", layout.parts[key].place
    return None


def make_policy(algorithm: Algorithm, dataset: Dataset, record: RunRecord, *, device: str = "cpu") -> Policy:
    """Return a callable from batched observations of the environment to batched actions.

    `device` is where the algorithm computes.

    For an algorithm with memory it is a `PolicyWithMemory` and an `InformedPolicy` of
    `orlog.normalize.rollouts`, and on data of several agents an `InformedPolicy`.
    """
    if is_team(dataset):
        return agents.TeamPolicy(algorithm, dataset, device)
    spaces = Spaces(dataset, device)
    if hasattr(algorithm, "actor"):
        return _Remembering(algorithm, spaces, record, dataset)
    act = _acting_for_goals(algorithm, dataset) if takes_goals(type(algorithm)) else algorithm.act
    name = algorithm_name(type(algorithm))

    def policy(observations: Any) -> np.ndarray:
        given = spaces.observations(observations)
        with own_errors(type(algorithm)):
            actions = act(given)
        return spaces.actions(actions, _count(given), name)

    return policy


_ROUNDING = 1e-4  # of the width of a space: in float32, a tanh of 1 may lie outside the bounds


class Spaces:
    """The maps between what environments and algorithms take and give."""

    def __init__(self, dataset: Dataset, device: str) -> None:
        self.name, self.device = dataset.name, device
        self.action_space, self.layout = dataset.action_space, layout_of(dataset)
        self.leaves = [*space_leaves(dataset.observation_space)]

    def observations(self, observations: Any) -> Any:
        """Return batched observations of the environment as batches hold them; texts as lists."""
        parts = [_leaf(observations, leaf.keys).reshape(-1, *leaf.space.shape or ()) for leaf in self.leaves]
        found = _as_in_batches(parts, self.layout)
        if isinstance(found, dict):
            return {key: self._here(one) for key, one in found.items()}
        return self._here(found)

    def _here(self, part: Tensor | list[str]) -> Tensor | list[str]:
        return part.to(self.device) if isinstance(part, Tensor) else part

    def actions(self, actions: Any, count: int, algorithm: str) -> np.ndarray:
        """Return batched actions as the environment takes them, for `count` observations.

        What rounding puts outside the bounds of a Box is clipped into them. The algorithm is named in
        messages.
        """
        space, who = self.action_space, f"{self.name}: {algorithm}"
        shape = space.shape or ()
        if isinstance(space, gymnasium.spaces.Text):
            return _texts(actions, count, space, who)
        if not isinstance(actions, Tensor):
            raise SchemaError(f"{who} gave a {type(actions).__name__} as actions, expected a tensor; correct its act.")
        if actions.shape[:1] != (count,) or actions.numel() != count * math.prod(shape):
            raise SchemaError(
                f"{who} gave actions of shape {list(actions.shape)} for {count} observations, expected "
                f"{[count, *shape]} for {space}; correct its act."
            )
        found = actions.detach().cpu().numpy().reshape(-1, *shape)
        if not np.isfinite(found).all():
            raise SchemaError(
                f"{who} gave actions that are not finite: {_first(found, ~np.isfinite(found))}; look at "
                "its metrics and weights, and correct its act."
            )
        outside = np.zeros(1, np.bool_)
        if isinstance(space, gymnasium.spaces.Box):
            outside = outside_bounds(found, space) > 0
            found = found if outside.any() else found.clip(space.low, space.high)
        elif (bounds := _whole_bounds(space)) is not None:
            outside = (found < bounds[0]) | (found > bounds[1])
        if outside.any():
            raise SchemaError(f"{who} gave actions that are not in {space}: {_first(found, outside)}; correct its act.")
        return found.astype(np.dtype(space.dtype))


def outside_bounds(actions: np.ndarray, space: gymnasium.spaces.Box) -> np.ndarray:
    """Return by how much each number lies outside the bounds of a space; 0 within rounding of them."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    apart = np.maximum(low - actions, actions - high)
    found: np.ndarray = np.where(apart > _ROUNDING * (high - low), apart, 0)
    return found


def _whole_bounds(space: gymnasium.Space[Any]) -> tuple[Any, Any] | None:
    """Return the lowest and the highest action of a space of whole numbers."""
    match space:
        case gymnasium.spaces.Discrete():
            return space.start, space.start + space.n - 1
        case gymnasium.spaces.MultiDiscrete():
            return space.start, space.start + space.nvec - 1
        case gymnasium.spaces.MultiBinary():
            return 0, 1
        case _:
            return None


def _texts(actions: Any, count: int, space: gymnasium.spaces.Text, who: str) -> np.ndarray:
    """Return actions that are texts as an array of objects."""
    if not isinstance(actions, list) or len(actions) != count:
        found = f"{len(actions)} of them" if isinstance(actions, list) else type(actions).__name__
        raise SchemaError(f"{who}: expected a list of {count} texts, found {found}; correct its act.")
    for row, one in enumerate(actions):
        if one not in space:
            raise SchemaError(
                f"{who} gave actions that are not in {space}: {one!r:.100} for observation {row}; correct its act."
            )
    return np.array(actions, object)


def _first(actions: np.ndarray, wrong: np.ndarray) -> str:
    """Return the first wrong action in words."""
    row = int(wrong.reshape(len(wrong), -1).any(1).argmax())
    return f"{actions[row].tolist()} for observation {row}"


def _count(observations: Any) -> int:
    """Return the number of observations in a batch."""
    return len(next(iter(observations.values())) if isinstance(observations, dict) else observations)


class _Remembering:
    """The policy of an algorithm with memory; infos that it looks at are given to it with the rewards."""

    def __init__(self, algorithm: Any, spaces: Spaces, record: RunRecord, dataset: Dataset) -> None:
        self._make_actor: Callable[[int], Actor] = algorithm.actor
        self._kind, self._spaces = type(algorithm), spaces
        self._algorithm = record.algorithm
        self._scale, self._shift = record.reward_scale, record.reward_shift
        self._told: Mapping[str, Any] = {}
        self.start(1)
        # An environment tells what a column has by the column's name, which may be another one in batches.
        looks = hasattr(self._actor, "notice")
        names = infos_of(self._kind, algorithm.config) if looks else ()
        columns = {one: info_column(dataset, one).removeprefix("infos/") for one in names}
        self._names = {name: column for name, column in columns.items() if not column.startswith("episodes/")}
        self.infos = tuple(self._names.values())

    def start(self, environments: int) -> None:
        with own_errors(self._kind):
            self._actor = self._make_actor(environments)

    def begin(self, which: np.ndarray) -> None:
        with own_errors(self._kind):
            self._actor.begin(torch.from_numpy(which).to(self._spaces.device))

    def __call__(self, observations: Any) -> np.ndarray:
        given = self._spaces.observations(observations)
        with own_errors(self._kind):
            actions = self._actor.act(given)
        return self._spaces.actions(actions, _count(given), self._algorithm)

    def inform(self, infos: Mapping[str, Any]) -> None:
        self._told = infos

    def reward(self, rewards: np.ndarray) -> None:
        scaled = np.asarray(rewards, np.float64) * self._scale + self._shift
        told = {name: self._here(self._told[column]) for name, column in self._names.items()}
        with own_errors(self._kind):
            if told:
                self._actor.notice(told)  # type: ignore[attr-defined]  # not all actors have it
            self._actor.reward(self._here(scaled))

    def _here(self, values: Any) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.float32)).to(self._spaces.device)


def _acting_for_goals(algorithm: Any, dataset: Dataset) -> Callable[[Any], Tensor]:
    """Return the actions of an algorithm for the goals that observations ask for."""
    parts = _goal_parts(dataset)

    def act(observations: Any) -> Tensor:
        if parts.desired is None:
            check_goal_to_act_for(type(algorithm), dataset)
        actions: Tensor = algorithm.act(parts.states(observations), parts.wanted(observations))
        return actions

    return act


def _as_in_batches(parts: list[np.ndarray], layout: Layout) -> Any:
    """Return the parts of observations as tensors in the form that loaders use, and texts as lists."""
    if not layout.observation_leaves:
        flat = [part.reshape(len(part), math.prod(part.shape[1:])) for part in parts]
        return torch.from_numpy(np.concatenate(flat, 1, dtype=np.float32))
    tensors: dict[str, Tensor | list[str]] = {}
    for part, (key, leaf) in zip(parts, layout.observation_leaves.items(), strict=True):
        if leaf.column in layout.tables:
            tensors[key] = part.tolist()
            continue
        dtype = layout.others[leaf.column].dtype if leaf.column else np.float32
        tensors[key] = torch.from_numpy(np.ascontiguousarray(part, dtype))
    return tensors.get("", tensors)


def _leaf(observations: Any, keys: tuple[str | int, ...]) -> np.ndarray:
    for key in keys:
        observations = observations[key]
    return np.asarray(observations)
