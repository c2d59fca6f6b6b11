"""The protocol of recipes: code that makes the episodes of a dataset, the same bytes each time.

A module of this package adds datasets to the catalogue by a constant `DATASETS`
(name -> `CatalogueEntry`); it need not be registered anywhere else.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import gymnasium
import numpy as np

import orlog.datasets.worlds
from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.environments import make_environment

Policy: TypeAlias = Callable[[Any], np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expert:
    """The policy whose mean return is an environment's upper reference (a score of 100).

    Attributes:
        name: Description, for the record of the references.
        policy: Returns the actions for a batch of observations.
    """

    name: str
    policy: Policy


class Recipe(Protocol):
    """Builds a dataset; it is pickled for worker processes."""

    @property
    def name(self) -> str:
        """Name of the recipe, for the manifest."""

    @property
    def version(self) -> int:
        """Number to raise whenever the same parameters would give other bytes."""

    @property
    def seed(self) -> int:
        """Root of all randomness."""

    @property
    def steps(self) -> int:
        """Steps in the dataset, where the last episode is cut (truncated)."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything besides the seed that decides the bytes, as JSON."""

    @property
    def environment_id(self) -> str:
        """The registered environment that records and scores."""

    @property
    def environment_kwargs(self) -> dict[str, Any]:
        """Arguments of `gymnasium.make`."""

    @property
    def behavior_policy(self) -> str:
        """Description of the policy that chose the actions."""

    def lengths(self, limit: int) -> list[int]:
        """Return the number of steps of each episode if the environment truncates at `limit`.

        Where only playing shows how long episodes last, it is the most that each may have.
        """

    def episodes(self, first: int, last: int) -> Iterator[Episode]:
        """Yield episodes `first` to `last - 1`; each depends only on the recipe and its index.

        Their `infos` and `metadata` become columns, the same ones in every episode. A recipe that
        knows the probability of each recorded action keeps its logarithm as `action_log_probs`; where
        actions are clipped after noise was added there is no such density, and it leaves it out.
        """

    def expert(self) -> Expert | None:
        """Return the expert for reference returns; None if there is none."""

    # One whose actions cannot be drawn uniformly, such as texts, also has `random_policy() -> Expert`, the policy whose
    # mean return is a score of 0. One that records in another environment than `environment_id` has
    # `records_elsewhere = True`.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A dataset of the catalogue.

    Attributes:
        description: Short description of the data.
        recipe: Recipe that builds the data.
        version: Content version that the recipe builds.
        license: SPDX identifier of the data's license.
        roles: What columns mean (`manifests/roles.py`); those with usual names need none.
    """

    description: str
    recipe: Recipe
    version: str = "1.0.0"
    license: str = "CC0-1.0"
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)


def parameters_of(recipe: Any) -> dict[str, Any]:
    """Return the fields of a dataclass except `seed`, as JSON values."""
    values = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}
    del values["seed"]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


class _Playing(Recipe, Protocol):
    """A recipe that plays an episode after another."""

    @property
    def root(self) -> tuple[int, ...]: ...

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, index: int) -> Episode: ...


class PlayedRecipe:
    """What recipes have in common that play one environment, an episode after another.

    It is for dataclasses of numbers. They say with `episode(env, reset_seed, rng, index)` how one is played, from a seed
    for the environment's reset and a generator that are its own. Most have `environment_id`, the registered environment
    that records and scores, `count`, the number of episodes, `steps`, how many these have, and `seed`, the root of all
    randomness.
    """

    version = 1  # raised whenever the same parameters would give other bytes
    NO_BYTES: ClassVar[frozenset[str]] = frozenset()  # fields that follow from others, or decide none of the bytes

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything besides the seed that decides the bytes, as JSON."""
        every = parameters_of(self)
        return {name: value for name, value in every.items() if name not in self.NO_BYTES}

    @property
    def environment_kwargs(self) -> dict[str, Any]:
        """Arguments of `gymnasium.make`: none."""
        return {}

    @property
    def root(self: Recipe) -> tuple[int, ...]:
        """What the seeds of all episodes come from, with the number of each."""
        return (self.seed,)

    def lengths(self: Recipe, limit: int) -> list[int]:
        """Most steps of each episode; of as many episodes as steps where only playing shows how many there are."""
        return [limit] * getattr(self, "count", self.steps)

    def episodes(self: _Playing, first: int, last: int) -> Iterator[Episode]:
        """Yield episodes `first` to `last - 1`.

        Raises MissingExtraError if the environment needs a package that is not installed.
        """
        with make_environment(self.environment_id, self.environment_kwargs) as env:
            for index in range(first, last):
                reset_seed, stream = np.random.SeedSequence((*self.root, index)).generate_state(2)
                rng = np.random.Generator(np.random.PCG64(int(stream)))
                yield self.episode(env, int(reset_seed), rng, index)


def for_each(choose: Callable[[Any], Any]) -> Policy:
    """Return the policy that chooses an action for each observation by itself."""

    def policy(observations: Any) -> np.ndarray:
        if isinstance(observations, dict):
            rows = zip(*observations.values(), strict=True)
            observations = [dict(zip(observations, row, strict=True)) for row in rows]
        return _batch_of([choose(observation) for observation in observations])

    return policy


def _batch_of(actions: list[Any]) -> np.ndarray:
    """Return actions as one array: texts as objects, integers as they are, other numbers as float32."""
    if actions and isinstance(actions[0], str):
        return np.array(actions, object)
    batch = np.array(actions)
    return batch if batch.dtype.kind == "i" else batch.astype(np.float32)


class Watching:
    """A controller as a policy: it looks at environments, not at observations."""

    def __init__(self, choose: Callable[[Any], Any]) -> None:
        self._choose = choose
        self._environments: Sequence[gymnasium.Env[Any, Any]] = ()

    def watch(self, environments: Sequence[gymnasium.Env[Any, Any]]) -> None:
        """Take note of the environments that the next calls are for."""
        self._environments = environments

    def __call__(self, _observations: Any) -> np.ndarray:
        """Return the actions for all environments."""
        return _batch_of([self._choose(env) for env in self._environments])


def parts_of(recipe: Recipe) -> Sequence[Recipe]:
    """Return the recipes that make a dataset one after another: `recipe.parts`, or itself alone."""
    parts: Sequence[Recipe] = getattr(recipe, "parts", [recipe])
    return parts


def play_episode(
    env: gymnasium.Env[Any, Any],
    reset_seed: int,
    choose: Callable[[Any], tuple[Any, Mapping[str, Any]]],
    metadata: dict[str, Any] | None = None,
    infos: Sequence[str] = (),
    most: int | None = None,
) -> Episode:
    """Return an episode played to its end, or cut (truncated) after `most` steps.

    `choose` returns an action for an observation, and what is known of it by the names of infos, such as
    `action_log_probs`. Of the environment's own infos those that are named are kept.
    """
    observation, _ = env.reset(seed=reset_seed)
    observations, terminated, truncated = [observation], False, False
    actions: list[Any] = []
    rewards: list[float] = []
    kept: dict[str, list[Any]] = {}
    while not terminated and not truncated:
        action, known = choose(observation)
        observation, reward, terminated, truncated, info = env.step(action)
        observations.append(observation)
        actions.append(action)
        rewards.append(float(reward))
        truncated = truncated or (len(actions) == most and not terminated)
        for name, value in (*known.items(), *((name, info[name]) for name in infos)):
            kept.setdefault(name, []).append(value)
    return finished_episode(
        observations, actions, rewards, (terminated, truncated), seed=reset_seed, infos=kept, metadata=metadata
    )


def finished_episode(
    observations: list[Any],
    actions: list[Any],
    rewards: list[float],
    end: tuple[bool, bool],
    *,
    seed: int,
    infos: Mapping[str, list[Any]] | None = None,
    metadata: dict[str, Any] | None = None,
) -> Episode:
    """Return the episode of these steps; `end` says whether the last one terminated it, and truncated it."""
    is_last = np.arange(len(actions)) == len(actions) - 1
    return Episode(
        observations=column_of(observations),
        actions=column_of(actions),
        rewards=np.array(rewards),
        terminations=is_last & end[0],
        truncations=is_last & end[1],
        infos={name: column_of(values) for name, values in (infos or {}).items()},
        seed=seed,
        metadata=metadata or {},
    )


def column_of(values: list[Any]) -> Any:
    """Return the values of a space, a step each, as an array; by key where they are dicts; texts stay a list."""
    if isinstance(values[0], dict):
        return {key: column_of([value[key] for value in values]) for key in values[0]}
    return values if isinstance(values[0], str) else np.array(values)


NO_RECIPES = {"behavior_policies", "build", "d4rl", "environments", "rebuilds", "recipe"}


def catalogue() -> dict[str, CatalogueEntry]:
    """Return the entries of the catalogue by dataset name, from the other modules of this package.

    Raises ValueError if two modules declare the same name.
    """
    entries: dict[str, CatalogueEntry] = {}
    for module in pkgutil.iter_modules(orlog.datasets.worlds.__path__):
        if module.name not in NO_RECIPES:
            path = f"{orlog.datasets.worlds.__name__}.{module.name}"
            declared = importlib.import_module(path).DATASETS
            if twice := declared.keys() & entries.keys():
                raise ValueError(f"{path}: another recipe declares {min(twice)} already.")
            entries |= declared
    return entries
