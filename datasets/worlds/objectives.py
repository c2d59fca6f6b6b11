"""Worlds with rewards of several objectives, which the weights of an episode bring together.

    orlog/Treasure-v0    MO-Gymnasium's deep-sea-treasure: what a submarine brings up, and -1 for each step
                         (Vamplew and others 2011, with the convex treasures of Yang and others 2019)
    orlog/Gathering-v0   MO-Gymnasium's resource-gathering: -1 if an enemy strikes, 1 for gold and 1 for a gem that
                         are brought home (Barrett and Narayanan 2008); all of it loses 5 % of its worth in each step

    observation  a Dict: `state`, as in the packages, and `weights`, those of the episode, which sum to 1
    reward       weights . objectives, where objectives are in the info: `objectives`; `weights` too
    weights      of a grid, `grid(objectives)`: that of place seed % size for a reset with a seed, a random one
                 without; or those of `reset(options={"weights": ..})`, or of `gymnasium.make(.., weights=..)`

So evaluations, whose episodes have seeds that follow one another, take turns over the whole grid.

What is known of the values comes from the table of moves (`moves`): the best policy for weights is that of value
iteration, and `front` has the mean objectives of an episode of these policies, which are the corners of the Pareto front
that weights can reach.

Recipes of the `objectives/...` datasets: rewards of several objectives, weighted anew in each episode.

The weights of an episode are of the world's grid, by its reset seed. In every `informed`-th episode the behavior follows
the policy that is best for these weights, in the others the one that is best for weights of the grid that it draws; all
with uniform actions in a share `noise` of the steps. So what the data do in a state depends only a little on the
weights, and their rewards do entirely.

Infos are `objectives`, the reward of each; and `action_log_probs`, exact for the policy of the episode, whose metadata has
`informed`. Observations hold the weights, which have the role `weights`.

Every episode depends on (recipe seed, episode index) only.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Float64

from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, PlayedRecipe, play_episode
from orlog.datasets.worlds.tabular import Table, policy_values, stationary_values

PARTS = {2: 20, 3: 4}  # into how many parts a grid of weights divides each of so many objectives
_STEPS = 100  # of an episode, as in the packages
_PATIENCE = 0.999  # so that of two ways that are worth the same, the shorter one is better
_WORTH = {"treasure": 1.0, "gathering": 0.95}
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


@functools.cache
def grid(objectives: int) -> Float64[np.ndarray, "weights objectives"]:
    """Return the weights that sum to 1 in equal steps, in their lexical order."""
    parts = PARTS[objectives]
    places = itertools.product(range(parts + 1), repeat=objectives)
    weights: np.ndarray = np.array([place for place in places if sum(place) == parts]) / parts
    return weights


class WeightedWorld(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment of several objectives whose reward is weighted; see the docstring of this module."""

    def __init__(
        self, env: gymnasium.Env[Any, Any], objectives: int, worth: float, weights: Sequence[float] | None = None
    ) -> None:
        super().__init__(env)
        self.objectives, self.worth = objectives, worth
        self._given = None if weights is None else self._checked(weights)
        self.observation_space = spaces.Dict(
            state=env.observation_space, weights=spaces.Box(0.0, 1.0, (objectives,), np.float32)
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode; `options` may have its weights.

        Raises ValueError if these are not one number >= 0 for each objective that sum to 1.
        """
        state, _ = self.env.reset(seed=seed)
        of_grid = grid(self.objectives)
        given = (options or {}).get("weights", self._given)
        if given is None:
            place = self.np_random.integers(len(of_grid)) if seed is None else seed % len(of_grid)
            given = of_grid[int(place)]
        self._weights, self._worth = self._checked(given), 1.0
        return self._seen(state), {"weights": self._weights.copy()}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take a step; its info has the reward of each objective, and the weights."""
        state, rewards, terminated, truncated, _ = self.env.step(int(action))
        self._worth *= self.worth
        objectives = np.asarray(rewards, np.float64) * self._worth
        reward = float(self._weights @ objectives)
        info = {"objectives": objectives, "weights": self._weights.copy()}
        return self._seen(state), reward, bool(terminated), bool(truncated), info

    def _checked(self, given: Any) -> Float64[np.ndarray, " objectives"]:
        """Return weights as numbers; raises ValueError if they are not as many as objectives, >= 0, or sum to 1."""
        weights = np.asarray(given, np.float64)
        if weights.shape != (self.objectives,) or not (weights >= 0).all() or abs(float(weights.sum()) - 1) > 1e-6:
            raise ValueError(f"weights must be {self.objectives} numbers >= 0 that sum to 1, found {given!r:.80}.")
        return weights

    def _seen(self, state: np.ndarray) -> dict[str, np.ndarray]:
        return {"state": state, "weights": self._weights.astype(np.float32)}


@functools.cache
def moves(world: str) -> tuple[Table, Float64[np.ndarray, "states actions objectives"]]:
    """Return the table of a world, and the mean reward of each objective in place of one reward.

    A state's number is that of its cell, and in `gathering` cells + that of its cell with gold, and so on.
    """
    return _treasure_moves() if world == "treasure" else _gathering_moves()


def state_number(world: str, state: np.ndarray) -> int:
    """Return the number of a state in the table."""
    row, column, *carried = (int(number) for number in state)
    size = 11 if world == "treasure" else 5
    kind = sum(flag << place for place, flag in enumerate(carried))
    return kind * size * size + row * size + column


def _treasure_moves() -> tuple[Table, np.ndarray]:
    sea = _package("deep_sea_treasure").DEFAULT_MAP
    rows: list[tuple[int, int, float, float]] = []
    rewards = np.zeros((121, 4, 2))
    for row, column, action in itertools.product(range(11), range(11), range(4)):
        after = _moved(row, column, action, 11)
        after = after if sea[after] != -10 else (row, column)
        rewards[row * 11 + column, action] = max(float(np.float32(sea[after])), 0.0), -1.0
        pair = (row * 11 + column) * 4 + action
        rows.append((pair, after[0] * 11 + after[1], 1.0, float(sea[after] == 0)))
    return _table(rows, 121, 0), rewards


def _gathering_moves() -> tuple[Table, np.ndarray]:
    ground = _made("resource_gathering", "ResourceGathering").map
    rows: list[tuple[int, int, float, float]] = []
    rewards = np.zeros((100, 4, 3))
    for kind, row, column, action in itertools.product(range(4), range(5), range(5), range(4)):
        after = _moved(row, column, action, 5)
        what = str(ground[after])
        carried = kind | {"R1": 1, "R2": 2}.get(what, 0)
        state, follows = kind * 25 + row * 5 + column, carried * 25 + after[0] * 5 + after[1]
        pair = state * 4 + action
        if what in ("E1", "E2"):
            rows += [(pair, follows, 0.1, 0.0), (pair, follows, 0.9, 1.0)]
            rewards[state, action, 0] = -0.1
        else:
            rows.append((pair, follows, 1.0, float(what != "H")))
        if what == "H":
            rewards[state, action, 1:] = carried & 1, carried >> 1
    return _table(rows, 100, 4 * 5 + 2), rewards


def _moved(row: int, column: int, action: int, size: int) -> tuple[int, int]:
    down, right = _MOVES[action]
    inside = 0 <= row + down < size and 0 <= column + right < size
    return (row + down, column + right) if inside else (row, column)


def _table(rows: list[tuple[int, int, float, float]], states: int, first: int) -> Table:
    pairs, after, chances, goes_on = (np.array(column) for column in zip(*rows, strict=True))
    return Table(
        states=states,
        actions=4,
        pairs=pairs,
        next_states=after,
        chances=chances,
        goes_on=goes_on,
        rewards=np.zeros((states, 4)),
        starts=np.eye(states)[first],
    )


@functools.cache
def best_actions(world: str) -> np.ndarray:
    """Return the best action for each weights of the grid and each state, `[weights, states]`."""
    table, rewards = moves(world)
    discount = min(_WORTH[world], _PATIENCE)
    actions = []
    for weights in grid(rewards.shape[-1]):
        q_values = stationary_values(_with(table, rewards @ weights), discount)
        # Values that differ by rounding alone count as equal, so that every machine takes the same action.
        actions.append((q_values >= q_values.max(1, keepdims=True) - 1e-9).argmax(1))
    return np.stack(actions)


@functools.cache
def front(world: str) -> Float64[np.ndarray, "weights objectives"]:
    """Return the exact mean objectives of an episode for the best actions of each weights of the grid."""
    table, rewards = moves(world)
    means = []
    for actions in best_actions(world):
        policy = np.eye(4)[actions]
        of_objectives = [
            policy_values(_with(table, rewards[..., objective]), policy, _STEPS, _WORTH[world])
            for objective in range(rewards.shape[-1])
        ]
        means.append([float(table.starts @ values) * _WORTH[world] for values in of_objectives])
    return np.array(means)


def _with(table: Table, rewards: np.ndarray) -> Table:
    return Table(**{**{name: getattr(table, name) for name in table.__dataclass_fields__}, "rewards": rewards})


def _package(name: str) -> Any:
    return importlib.import_module(f"mo_gymnasium.envs.{name}.{name}")


def _made(name: str, kind: str) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*precision lowered by casting to float32")
        return getattr(_package(name), kind)()


def treasure(weights: Sequence[float] | None = None) -> WeightedWorld:
    """Return the world of treasures, with the same weights in all episodes if they are given."""
    sea = _made("deep_sea_treasure", "DeepSeaTreasure")
    return WeightedWorld(sea, 2, _WORTH["treasure"], weights)


def gathering(weights: Sequence[float] | None = None) -> WeightedWorld:
    """Return the world of gold and gems, with the same weights in all episodes if they are given."""
    ground = _made("resource_gathering", "ResourceGathering")
    return WeightedWorld(ground, 3, _WORTH["gathering"], weights)


ACTIONS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectivesRecipe(PlayedRecipe):
    """Everything that decides the bytes of an `objectives` dataset.

    Attributes:
        world: `treasure` or `gathering`.
        informed: One episode of so many follows the weights that it has.
        noise: Share of uniform actions.
        steps: Steps in the dataset; the last episode is cut (truncated) where they run out.
    """

    world: str
    informed: int
    noise: float
    steps: int
    seed: int = 0

    name = "objectives"

    @property
    def environment_id(self) -> str:
        """The world that records and scores."""
        return f"orlog/{self.world.title()}-v0"

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        return (
            f"one episode of {self.informed} follows the best policy for its weights, the others that for weights "
            f"that are drawn; uniform actions in {self.noise:.0%} of the steps; action_log_probs are exact for "
            "the policy of the episode"
        )

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, index: int) -> Episode:
        """Return one episode."""
        best = best_actions(self.world)
        is_informed = index % self.informed == 0
        followed = reset_seed % len(best) if is_informed else int(rng.integers(len(best)))

        def choose(seen: Any) -> tuple[int, dict[str, float]]:
            chosen = int(best[followed, state_number(self.world, seen["state"])])
            chance, uniform = rng.random(2).tolist()
            action = chosen if chance >= self.noise else int(ACTIONS * uniform)
            share = self.noise / ACTIONS + (1 - self.noise if action == chosen else 0.0)
            return action, {"action_log_probs": math.log(share)}

        metadata = {"informed": is_informed}
        return play_episode(env, reset_seed, choose, metadata, infos=("objectives",))

    def expert(self) -> Expert:
        """Return the policy that is best for the weights that it sees, of the nearest place of the grid."""
        best = best_actions(self.world)
        of_grid = grid(front(self.world).shape[1])

        def policy(seen: Any) -> np.ndarray:
            apart = np.square(np.asarray(seen["weights"])[:, None] - of_grid[None]).sum(-1)
            states = [state_number(self.world, state) for state in seen["state"]]
            return np.asarray(best[apart.argmin(1), states])

        return Expert(name="the best policy for the weights, from the table of moves", policy=policy)


def _entry(task: str, recipe: ObjectivesRecipe) -> CatalogueEntry:
    return CatalogueEntry(
        description=(
            f"{task}, with other weights in each episode, of which the data follow some; the reward of each objective "
            f"is an info. {recipe.steps:,} steps."
        ),
        recipe=recipe,
        roles={"infos/objectives": "objectives", "observations/weights": "weights"},
    )


DATASETS = {
    "objectives/treasure-v1": _entry(
        "A submarine weighs treasures against time",
        ObjectivesRecipe(world="treasure", informed=3, noise=0.2, steps=60_000, seed=80),
    ),
    "objectives/gathering-v1": _entry(
        "Gold and a gem are brought home past enemies",
        ObjectivesRecipe(world="gathering", informed=3, noise=0.2, steps=60_000, seed=81),
    ),
}
