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
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
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
from orlog.algos.presets import Rewards
from orlog.algos.settings import make_config
from orlog.algos.training import agents
from orlog.algos.training.data import MAKING, RunData, infos_of, seeded
from orlog.algos.training.runs import TOKENIZER_FILE, RunRecord
from orlog.datasets.columns.vocabulary import read_vocabulary, train_vocabulary
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import ManifestError, NotFoundError, SchemaError
from orlog.loaders.filling import Layout, layout_of
from orlog.loaders.goals import ACHIEVED, DESIRED, GoalParts, goal_parts
from orlog.loaders.infos import info_column
from orlog.loaders.teams import is_team
from orlog.loaders.token_sequences import parts_without_texts, spoken_with, text_counts
from orlog.manifests.roles import LEGAL
from orlog.manifests.spaces import space_leaves
from orlog.normalize.rollouts import Policy

_IN_WORDS = {
    "vector": "vectors of numbers (a Box, or a Dict or Tuple of such)",
    "structured": "images, integers and mixtures of spaces",
    "text": "texts and mixtures with texts",
    "numbered": "numbers of states (a Discrete space)",
}
_ROUNDING = 1e-4  # of the width of a space: in float32, a tanh of 1 may lie outside the bounds

# --- the class that fits


def fitting_form(algorithm: AlgorithmLike, dataset: Dataset) -> type[Any]:
    """Return the class of an algorithm that takes a dataset's observations and actions.

    On data of several agents it is one that learns for all of them (`agents.py`).
    """
    if is_team(dataset):
        return agents.team_form(algorithm, dataset)
    kinds = _observations(dataset)
    try:
        kind = find_algorithm(algorithm, action_space=dataset.action_space, observations=kinds[0])
    except SchemaError as error:
        raise SchemaError(f"{dataset.name}: {error}") from error
    if not {*kinds} & {*kind.OBSERVATIONS}:
        action = action_kind(dataset.action_space)
        others = [
            name
            for name in ALGORITHMS
            for form in algorithm_forms(name)
            if {*kinds} & {*form.OBSERVATIONS} and action in form.ACTIONS and not for_teams(form)
        ]
        raise SchemaError(
            f"{dataset.name}: {algorithm_name(algorithm)} takes observations that are "
            f"{' or '.join(_IN_WORDS[seen] for seen in kind.OBSERVATIONS)}, found {dataset.observation_space}; choose "
            f"one of: {', '.join(dict.fromkeys(others))}; or sample a view without the other parts (select_columns)."
        )
    if for_teams(kind):
        raise SchemaError(
            f"{dataset.name}: {algorithm_name(kind)} learns from several agents that act at once, and this is "
            "data of one; choose another algorithm, such as bc or iql."
        )
    if takes_goals(kind):
        _goal_parts(dataset)
    return kind


def _observations(dataset: Dataset) -> list[str]:
    """Return the kinds that observations are of, the most general one first."""
    layout = layout_of(dataset)
    if not layout.observation_leaves:
        return ["vector"]
    if any(leaf.column in layout.tables for leaf in layout.observation_leaves.values()):
        return ["text"]
    is_numbered = isinstance(dataset.observation_space, gymnasium.spaces.Discrete)
    return ["structured", "numbered"] if is_numbered else ["structured"]


def observation_width(dataset: Dataset, algorithm: AlgorithmLike) -> int:
    """Return how many numbers of an observation to standardize: those packed as float32."""
    if is_team(dataset):
        return agents.observed_width(fitting_form(algorithm, dataset), dataset)
    return layout_of(dataset).obs_dim


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
    parts = goal_parts({**layout.parts, **layout.observation_leaves}, layout.obs_dim, dataset.name)
    if parts.desired is not None and layout.observation_leaves:
        space: Any = dataset.observation_space
        achieved, desired = space[ACHIEVED], space[DESIRED]
        if (achieved.shape, achieved.dtype) != (desired.shape, desired.dtype):
            raise SchemaError(
                f"{dataset.name}: {DESIRED} is {desired} and {ACHIEVED} is {achieved}; record both in the same units."
            )
    return parts


# --- what a run takes from its data


def _best_tenth(_config: Any, data: RunData) -> float:
    count = math.ceil(len(data.lengths) / 10)
    return float(np.sort(data.returns)[-count:].mean())


def _one_over_largest(_config: Any, data: RunData) -> float:
    largest = float(np.abs(data.returns).max())
    return 1 / largest if largest else 1.0


def _trained_tokenizer(config: Any, data: RunData) -> str:
    return train_vocabulary(text_counts(data.arrays), config.vocabulary).digest


SOURCES: dict[str, tuple[str, Callable[[Any, RunData], Any]]] = {
    "target_return": ("the mean return of the best tenth of the episodes", _best_tenth),
    "return_scale": ("1 / the largest absolute return of an episode", _one_over_largest),
    "episode_length": ("the mean length of an episode", lambda _config, data: float(data.lengths.mean())),
    "tokenizer": ("a tokenizer that is trained on the texts of the dataset", _trained_tokenizer),
    "spoken": ("the tokens of the actions of the dataset", lambda config, data: spoken_with(config, data.arrays)),
}
"""What each setting that an algorithm may name in `FROM_DATA` becomes: in words, from its settings and the data."""


def settings_from_data(kind: type[Any], config: Any, data: RunData) -> tuple[Any, list[str]]:
    """Return a configuration without settings that are None, and a line on each that was filled in.

    `FROM_DATA` of the class names these settings, each a key of `SOURCES`; or it has for each what it becomes, in
    words, and a function of the settings and `RunData`, which has the rewards of training. A tokenizer that is
    given becomes its digest.
    """
    if getattr(config, "tokenizer", None) is not None:
        config = msgspec.structs.replace(config, tokenizer=read_vocabulary(config.tokenizer).digest)
    named = getattr(kind, "FROM_DATA", ())
    sources = named if isinstance(named, Mapping) else SOURCES
    missing = [name for name in named if getattr(config, name) is None]
    lines = []
    if "tokenizer" in named and (unread := parts_without_texts(data.arrays)):
        lines.append(f"observations: only their texts are read; left out: {', '.join(unread)}")
    for name in missing:  # later ones may depend on earlier ones
        about, source = sources[name]
        value = source(config, data)
        config = msgspec.structs.replace(config, **{name: value})
        shown = (
            f"{len(value)} of them" if isinstance(value, tuple) else value if isinstance(value, str) else f"{value:g}"
        )
        lines.append(f"{name}={shown}: {about}")
    return config, lines


def check_rewards(kind: type[Any], name: str, data: RunData) -> None:
    """Refuse data whose rewards are all 0 to an algorithm of orlog's that learns from them."""
    if name in ALGORITHMS and not takes_goals(kind) and getattr(kind, "REWARDS", True) and not data.has_rewards:
        goals = [algorithm for algorithm in ALGORITHMS if takes_goals(ALGORITHMS[algorithm])]
        raise SchemaError(
            f"{data.name}: every reward is 0, and {name} learns from rewards; imitate the actions "
            f"(bc), learn to reach goals ({', '.join(goals)}), or record the data with rewards."
        )


def reward_numbers(rewards: Rewards, data: RunData) -> tuple[float, float]:
    """Return the factor and the shift that rewards of a dataset are trained with.

    A range of returns that is 0 is refused where they depend on it.
    """
    if rewards.return_range is None:
        return rewards.scale, rewards.shift
    returns = data.returns
    spread = float(returns.max() - returns.min())
    if not spread > 0:
        raise SchemaError(
            f"{data.name}: rewards are to be scaled by the range of returns, but all {len(returns)} episodes have the "
            f"return {returns[0]:g}; choose another preset, or the defaults: preset='none'."
        )
    return rewards.scale * (rewards.return_range / spread), rewards.shift


def find_tokenizer(folder: Path, config: Mapping[str, Any]) -> None:
    """Read the tokenizer of a run, so that its digest finds it.

    Raises ManifestError if the file is missing or not the run's; MissingExtraError where the library is not installed.
    """
    digest, path = config.get("tokenizer"), folder / TOKENIZER_FILE
    if isinstance(digest, str) and not (path.is_file() and read_vocabulary(path).digest == digest):
        raise ManifestError(
            f"{path}: is {'not the tokenizer of the run' if path.is_file() else 'missing'}, without which its policy "
            "cannot read; restore the file, or train again in another folder.",
            file=str(path),
        )


# --- the algorithm of a run


def make_from_record(
    record: RunRecord, dataset: Dataset, algorithm: AlgorithmLike | None = None, *, device: str = "cpu"
) -> Algorithm:
    """Return the algorithm of a run, before any training; by default the one that the record names."""
    kind = fitting_form(record.algorithm if algorithm is None else algorithm, dataset)
    scaling = (agents.team_scaling if is_team(dataset) else _scaling)(
        kind, dataset, torch.tensor(record.obs_mean), torch.tensor(record.obs_std)
    )
    config = make_config(kind, record.config)
    try:
        with seeded(kind, record.seed, MAKING):
            return make_algorithm(kind, config, scaling, seed=record.seed, device=device)
    except SchemaError as error:
        raise SchemaError(f"{dataset.name}: {error}") from error


def _scaling(kind: type[Any], dataset: Dataset, obs_mean: Tensor, obs_std: Tensor) -> Scaling:
    low, high = np.empty(0, np.float32), np.empty(0, np.float32)
    if isinstance(dataset.action_space, gymnasium.spaces.Box):
        low, high = dataset.action_space.low, dataset.action_space.high
        if not dataset.action_space.is_bounded():
            actions = dataset.column("actions")
            actions = actions[np.isfinite(actions)]
            least, most = math.floor(actions.min(initial=-1)), math.ceil(actions.max(initial=1))
            raise SchemaError(
                f"{dataset.name}: {algorithm_name(kind)} needs actions with finite bounds, found "
                f"{dataset.action_space}; import the file again with bounds, orlog import .. --bounds "
                f"action={least}:{most}, or with those of a benchmark's dataset, --like NAME; or record the "
                "data with an action space that has bounds."
            )
    goal_mean = goal_std = goal_space = None
    observation_space: Any = dataset.observation_space
    if takes_goals(kind) and (parts := _goal_parts(dataset)).goal_key is not None:
        # A desired goal is in the units of an achieved one, so both are standardized the same way.
        goal_mean, goal_std = obs_mean[parts.achieved], obs_std[parts.achieved]
        goal_space = observation_space[parts.goal_key]
        obs_mean, obs_std = parts.numbers(obs_mean), parts.numbers(obs_std)
        states = [(key, space) for key, space in observation_space.items() if key != DESIRED]
        observation_space = gymnasium.spaces.Dict(states)
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
    if isinstance(dataset.action_space, gymnasium.spaces.Discrete):
        layout = layout_of(dataset)
        for leaf in space_leaves(dataset.observation_space):
            key = "/".join(map(str, leaf.keys))
            if dataset.roles.get(f"observations/{key}") == LEGAL:
                return (key, slice(None)) if layout.observation_leaves else ("", layout.parts[key].place)
    return None


# --- policies


def make_policy(algorithm: Algorithm, dataset: Dataset, record: RunRecord, *, device: str = "cpu") -> Policy:
    """Return a callable from batched observations of the environment to batched actions.

    `device` is where the algorithm computes.

    For an algorithm with memory it is a `PolicyWithMemory` and an `InformedPolicy` of
    `orlog.normalize.rollouts`, and on data of several agents an `InformedPolicy`.
    """
    if is_team(dataset):
        return agents.TeamPolicy(algorithm, dataset, device)
    kind, spaces = type(algorithm), Spaces(dataset, device)
    given = _goals_beside_states(kind, dataset) if takes_goals(kind) else lambda observations: (observations,)
    if hasattr(algorithm, "actor"):
        return _Remembering(algorithm, spaces, record, dataset, given)

    def act(observations: Any) -> Any:
        seen = given(observations)
        with own_errors(kind):
            return algorithm.act(*seen)

    return lambda observations: spaces.acted(act, observations, algorithm_name(kind))


def _goals_beside_states(kind: type[Any], dataset: Dataset) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that gives the states and the wanted goals of observations."""
    parts = _goal_parts(dataset)

    def given(observations: Any) -> tuple[Any, ...]:
        if parts.desired is None:
            check_goal_to_act_for(kind, dataset)
        return parts.states(observations), parts.wanted(observations)

    return given


class Spaces:
    """The maps between what environments and algorithms take and give."""

    def __init__(self, dataset: Dataset, device: str) -> None:
        self.name, self.device = dataset.name, device
        self.action_space, self.layout = dataset.action_space, layout_of(dataset)
        self.leaves = [*space_leaves(dataset.observation_space)]

    def acted(self, act: Callable[[Any], Any], observations: Any, algorithm: str) -> np.ndarray:
        """Return the actions of an algorithm, which messages name, for batched observations of the environment."""
        given = self.observations(observations)
        count = len(next(iter(given.values())) if isinstance(given, dict) else given)
        return self.actions(act(given), count, algorithm)

    def observations(self, observations: Any) -> Any:
        """Return batched observations of the environment as batches hold them; texts as lists."""
        parts = [_leaf(observations, leaf.keys).reshape(-1, *leaf.space.shape or ()) for leaf in self.leaves]
        given = _as_in_batches(parts, self.layout)
        if isinstance(given, dict):
            return {key: self._here(part) for key, part in given.items()}
        return self._here(given)

    def _here(self, part: Tensor | list[str]) -> Tensor | list[str]:
        return part.to(self.device) if isinstance(part, Tensor) else part

    def actions(self, actions: Any, count: int, algorithm: str) -> np.ndarray:
        """Return batched actions as the environment takes them, for `count` observations.

        What rounding puts outside the bounds of a Box is clipped into them. The algorithm is named in
        messages.
        """
        space, who = self.action_space, f"{self.name}: {algorithm} gave"
        is_text, shape = isinstance(space, gymnasium.spaces.Text), space.shape or ()
        if not isinstance(actions, list if is_text else Tensor):
            expected = "a list of texts" if is_text else "a tensor"
            raise SchemaError(f"{who} a {type(actions).__name__} as actions, expected {expected}; correct its act.")
        array = actions.detach().cpu().numpy() if isinstance(actions, Tensor) else np.array(actions, object)
        if array.shape[:1] != (count,) or array.size != count * math.prod(shape):
            raise SchemaError(
                f"{who} actions of shape {[*array.shape]} for {count} observations, expected "
                f"{[count, *shape]} for {space}; correct its act."
            )
        array = array.reshape(-1, *shape)
        outside = np.zeros(1, np.bool_)
        if is_text:
            outside = np.array([action not in space for action in actions])
        elif not np.isfinite(array).all():
            raise SchemaError(
                f"{who} actions that are not finite: {_first(array, ~np.isfinite(array))}; correct its act."
            )
        elif isinstance(space, gymnasium.spaces.Box):
            outside = outside_bounds(array, space) > 0
            array = array if outside.any() else array.clip(space.low, space.high)
        elif (bounds := _whole_bounds(space)) is not None:
            outside = (array < bounds[0]) | (array > bounds[1])
        if outside.any():
            raise SchemaError(f"{who} actions that are not in {space}: {_first(array, outside)}; correct its act.")
        return array if is_text else array.astype(np.dtype(space.dtype))


def outside_bounds(actions: np.ndarray, space: gymnasium.spaces.Box) -> np.ndarray:
    """Return by how much each number lies outside the bounds of a space; 0 within rounding of them."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    apart = np.maximum(low - actions, actions - high)
    return np.asarray(np.where(apart > _ROUNDING * (high - low), apart, 0))


def _whole_bounds(space: gymnasium.Space[Any]) -> tuple[Any, Any] | None:
    match space:
        case gymnasium.spaces.Discrete():
            return space.start, space.start + space.n - 1
        case gymnasium.spaces.MultiDiscrete():
            return space.start, space.start + space.nvec - 1
        case gymnasium.spaces.MultiBinary():
            return 0, 1
    return None


def _first(actions: np.ndarray, wrong: np.ndarray) -> str:
    row = int(wrong.reshape(len(wrong), -1).any(1).argmax())
    return f"{actions[row : row + 1].tolist()[0]!r:.100} for observation {row}"


class _Remembering:
    """The policy of an algorithm with memory; infos that it looks at are given to it with the rewards."""

    def __init__(
        self,
        algorithm: Any,
        spaces: Spaces,
        record: RunRecord,
        dataset: Dataset,
        given: Callable[[Any], tuple[Any, ...]],
    ) -> None:
        self._make_actor: Callable[[int], Actor] = algorithm.actor
        self._kind, self._spaces, self._given = type(algorithm), spaces, given
        self._algorithm = record.algorithm
        self._scale, self._shift = record.reward_scale, record.reward_shift
        self._told: Mapping[str, Any] = {}
        self.start(1)
        # An environment tells what a column has by the column's name, which may be another one in batches.
        names = infos_of(self._kind, algorithm.config) if hasattr(self._actor, "notice") else ()
        columns = {name: info_column(dataset, name).removeprefix("infos/") for name in names}
        self._names = {name: column for name, column in columns.items() if not column.startswith("episodes/")}
        self.infos = tuple(self._names.values())

    def start(self, environments: int) -> None:
        with own_errors(self._kind):
            self._actor = self._make_actor(environments)

    def begin(self, which: np.ndarray) -> None:
        with own_errors(self._kind):
            self._actor.begin(torch.from_numpy(which).to(self._spaces.device))

    def __call__(self, observations: Any) -> np.ndarray:
        return self._spaces.acted(self._act, observations, self._algorithm)

    def _act(self, observations: Any) -> Any:
        seen = self._given(observations)
        with own_errors(self._kind):
            return self._actor.act(*seen)

    def inform(self, infos: Mapping[str, Any]) -> None:
        self._told = infos

    def reward(self, rewards: np.ndarray) -> None:
        infos = {name: self._here(self._told[column]) for name, column in self._names.items()}
        with own_errors(self._kind):
            if infos:
                self._actor.notice(infos)  # type: ignore[attr-defined]  # not all actors have it
            self._actor.reward(self._here(np.asarray(rewards, np.float64) * self._scale + self._shift))

    def _here(self, values: Any) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.float32)).to(self._spaces.device)


def _as_in_batches(parts: list[np.ndarray], layout: Layout) -> Any:
    """Return the parts of observations as tensors in the form that loaders use, and texts as lists."""
    if not layout.observation_leaves:
        flat = [part.reshape(len(part), math.prod(part.shape[1:])) for part in parts]
        return torch.from_numpy(np.concatenate(flat, 1, dtype=np.float32))
    tensors: dict[str, Tensor | list[str]] = {}
    for part, (key, leaf) in zip(parts, layout.observation_leaves.items(), strict=True):
        if leaf.column in layout.tables:
            tensors[key] = part.tolist()
        else:
            dtype = layout.others[leaf.column].dtype if leaf.column else np.float32
            tensors[key] = torch.from_numpy(np.ascontiguousarray(part, dtype))
    return tensors.get("", tensors)


def _leaf(observations: Any, keys: tuple[str | int, ...]) -> np.ndarray:
    for key in keys:
        observations = observations[key]
    return np.asarray(observations)
