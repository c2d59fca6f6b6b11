"""Worlds whose transitions are tables, so that the values of policies can be computed and not only estimated.

    orlog/Taxi-v0            Gymnasium's Taxi: 500 states, 6 actions, 200 steps           (Dietterich 2000)
    orlog/FrozenLake-v0      Gymnasium's slippery lake of 8 x 8: 64 states, 4 actions, 200 steps
    orlog/ICUSepsis-v0       ICU-Sepsis: 716 states, 25 actions, 500 steps; the reward is 1 for a patient that
                             survives   (Choudhary, Gupta and Thomas 2024, https://arxiv.org/abs/2406.05646)

The environments of these packages act; a wrapper knows their tables and tells two things more:

    info["regret"]               V*_n(s) - Q*_n(s, a), where n is the number of steps that are left: what the
                                 action loses against the best one. Its sum over an episode has as mean, exactly,
                                 the best possible mean return minus that of the policy (the performance
                                 difference lemma of Kakade and Langford 2002 for a horizon), and 0 for a policy
                                 that always acts best
    policy_value(policy, ..)     the mean discounted return of a policy up to the time limit

Values are of at most as many steps as an episode has (`horizon`), so that they are means of what is measured;
`stationary_values` are those without a limit, which algorithms learn.

Recipes of the `tabular/...` datasets: worlds of numbered states whose every value is known.

The behavior is one policy for all episodes, soft around a policy that is the best one but for some states:

    b(a | s)  =  (1 - noise) m(a | s)  +  noise / actions
    m(a | s)  =  [a = argmax Q*(s, .)], but in a share `mistaken` of the states, drawn by the seed, another
                 action with probability 1 - `known` and the best one with probability `known`, less than half

Imitation ends in those states; the data show what is better there. Every step keeps log b(a | s), exactly,
and the exact values of its state at the recipe's discount, without a time limit: `optimal_value`, V*(s), and
`behavior_value`, that of b. They come from the tables of the worlds (`environments/tables.py`), and are rounded to
9 digits behind the point, so that every machine has the same.

Every episode depends on (recipe seed, episode index) only.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Float64, Int64

from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.environments import make_environment
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, PlayedRecipe, play_episode

_CONVERGED = 1e-12
_TERMINAL = (713, 714, 715)  # of ICU-Sepsis: death, survival, and the state after them


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A world with numbered states and actions; a row for each transition of positive probability.

    Attributes:
        states: Number of states.
        actions: Number of actions.
        pairs: Of each row, state * actions + action; ascending, and every pair has a row.
        next_states: Of each row, the state that follows.
        chances: Of each row, its probability.
        goes_on: Of each row, 0 where the episode terminates with it and 1 elsewhere.
        rewards: Mean reward of each pair, `[states, actions]`.
        starts: Probability of each state to be the first one.
    """

    states: int
    actions: int
    pairs: Int64[np.ndarray, " rows"]
    next_states: Int64[np.ndarray, " rows"]
    chances: Float64[np.ndarray, " rows"]
    goes_on: Float64[np.ndarray, " rows"]
    rewards: Float64[np.ndarray, "states actions"]
    starts: Float64[np.ndarray, " states"]

    @functools.cached_property
    def first_rows(self) -> Int64[np.ndarray, " pairs"]:
        """The first row of each pair."""
        return np.searchsorted(self.pairs, np.arange(self.states * self.actions))

    def backed_up(
        self, values: Float64[np.ndarray, " states"], discount: float
    ) -> Float64[np.ndarray, "states actions"]:
        """Return Q(s, a) = r(s, a) + discount * sum over s' of P(s' | s, a) V(s'), 0 after a termination."""
        weighted = self.chances * self.goes_on * values[self.next_states]
        later = np.add.reduceat(weighted, self.first_rows).reshape(self.rewards.shape)
        return self.rewards + discount * later


def best_values(table: Table, horizon: int, discount: float = 1.0) -> list[Float64[np.ndarray, " states"]]:
    """Return V*_n for n = 0, 1, .. steps that are left, up to `horizon` or to where it changes no more."""
    best = [np.zeros(table.states)]
    while len(best) <= horizon:
        values = table.backed_up(best[-1], discount).max(1)
        if np.abs(values - best[-1]).max() < _CONVERGED:
            break
        best.append(values)
    return best


def policy_values(
    table: Table, policy: Float64[np.ndarray, "states actions"], horizon: int, discount: float = 1.0
) -> Float64[np.ndarray, " states"]:
    """Return the values of a policy's probabilities for `horizon` steps."""
    states, actions = np.divmod(table.pairs, table.actions)
    weights = discount * policy[states, actions] * table.chances * table.goes_on
    cells = states * table.states + table.next_states
    moves = np.bincount(cells, weights, table.states**2).reshape(table.states, table.states)
    gained = (policy * table.rewards).sum(1)
    values = np.zeros(table.states)
    for _ in range(horizon):
        before, values = values, gained + moves @ values
        if np.abs(values - before).max() < _CONVERGED:
            break
    return values


def stationary_values(
    table: Table, discount: float, policy: Float64[np.ndarray, "states actions"] | None = None
) -> Float64[np.ndarray, "states actions"]:
    """Return Q(s, a) without a time limit: of a policy's probabilities, or else the best one's.

    Raises ValueError if the discount does not lie in (0, 1).
    """
    if not 0 < discount < 1:
        raise ValueError(f"values without a time limit need a discount in (0, 1), found {discount}.")
    steps = int(np.ceil(np.log(_CONVERGED) / np.log(discount)))
    if policy is None:
        return table.backed_up(best_values(table, steps, discount)[-1], discount)
    return table.backed_up(policy_values(table, policy, steps, discount), discount)


class TableWorld(gymnasium.Wrapper[int, int, int, int]):
    """An environment whose table is known; see the docstring of this module.

    Attributes:
        table: The table.
        horizon: Steps after which an episode is truncated; the time limit of its id.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], table: Callable[[], Table], horizon: int) -> None:
        super().__init__(env)
        self.table, self.horizon = table(), horizon
        self._find = table

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Begin an episode."""
        observation, _ = self.env.reset(seed=seed, options=options)
        self._state, self._left = int(observation), self.horizon
        return self._state, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Take a step; the info has its `regret`."""
        lost = self._lost(self._state, int(action))
        observation, reward, terminated, truncated, _ = self.env.step(int(action))
        self._state, self._left = int(observation), self._left - 1
        return self._state, float(reward), bool(terminated), bool(truncated), {"regret": lost}

    def _lost(self, state: int, action: int) -> float:
        best = _best_values(self._find, self.horizon)
        values = best[min(self._left - 1, len(best) - 1)]
        table = self.table
        first = state * table.actions
        rows = slice(*np.searchsorted(table.pairs, [first, first + table.actions]))
        weighted = table.chances[rows] * table.goes_on[rows] * values[table.next_states[rows]]
        starts = table.first_rows[first : first + table.actions] - rows.start
        q_values = table.rewards[state] + np.add.reduceat(weighted, starts)
        return float(q_values.max() - q_values[action])

    def policy_value(self, policy: Callable[[np.ndarray], np.ndarray], discount: float = 1.0) -> float:
        """Return the exact mean discounted return of an episode.

        Args:
            policy: Returns the action for each of a batch of observations, always the same ones.
            discount: Weight of the next step, in (0, 1].
        """
        chosen = np.asarray(policy(np.arange(self.table.states)))
        chances = np.eye(self.table.actions)[chosen]
        values = policy_values(self.table, chances, self.horizon, discount)
        return float(self.table.starts @ values)

    def best_value(self, discount: float = 1.0) -> float:
        """Return the exact mean discounted return of the best policy, which knows how many steps are left."""
        best = best_values(self.table, self.horizon, discount)[-1]
        return float(self.table.starts @ best)


@functools.cache
def _best_values(table: Callable[[], Table], horizon: int) -> list[np.ndarray]:
    """Return what `best_values` does, computed once for environments side by side."""
    return best_values(table(), horizon)


def _of_lists(env: Any) -> Table:
    states, actions = int(env.observation_space.n), int(env.action_space.n)
    rows = [
        (state * actions + action, int(after), float(chance), float(reward), bool(ended))
        for state in range(states)
        for action in range(actions)
        for chance, after, reward, ended in env.P[state][action]
        if chance > 0
    ]
    pairs, after, chances, rewards, ended = (np.array(column) for column in zip(*rows, strict=True))
    means = np.bincount(pairs, chances * rewards, states * actions)
    return Table(
        states=states,
        actions=actions,
        pairs=pairs.astype(np.int64),
        next_states=after.astype(np.int64),
        chances=chances,
        goes_on=1.0 - ended,
        rewards=means.reshape(states, actions),
        starts=np.asarray(env.initial_state_distrib, np.float64),
    )


def _toy(name: str, **arguments: Any) -> gymnasium.Env[Any, Any]:
    module = importlib.import_module(f"gymnasium.envs.toy_text.{name}")
    made: gymnasium.Env[Any, Any] = {
        "taxi": lambda: module.TaxiEnv(**arguments),
        "frozen_lake": lambda: module.FrozenLakeEnv(map_name="8x8", **arguments),
    }[name]()
    return made


@functools.cache
def taxi_table() -> Table:
    """Return the table of Taxi."""
    return _of_lists(_toy("taxi"))


@functools.cache
def lake_table() -> Table:
    """Return the table of the lake."""
    return _of_lists(_toy("frozen_lake"))


@functools.cache
def _sepsis_numbers() -> Any:
    """Return the numbers of ICU-Sepsis, which all of its environments share: 200 MB."""
    package = importlib.import_module("icu_sepsis")
    folder = Path(str(package.__file__)).parent / "envs" / "assets"
    return importlib.import_module("icu_sepsis.utils.io").MDPParameters(folder)


@functools.cache
def sepsis_table() -> Table:
    """Return the table of ICU-Sepsis."""
    numbers = _sepsis_numbers()
    chances, rewards = numbers.tx_mat, numbers.r_mat
    states, actions, _ = chances.shape
    state, action, after = np.nonzero(chances)
    return Table(
        states=states,
        actions=actions,
        pairs=state * actions + action,
        next_states=after,
        chances=chances[state, action, after],
        goes_on=1.0 - np.isin(after, _TERMINAL),
        rewards=np.einsum("ijk,ijk->ij", chances, rewards),
        starts=np.asarray(numbers.d_0, np.float64),
    )


def taxi(**arguments: Any) -> TableWorld:
    """Return Taxi with its table."""
    return TableWorld(_toy("taxi", **arguments), taxi_table, 200)


def frozen_lake(**arguments: Any) -> TableWorld:
    """Return the slippery lake of 8 x 8 with its table."""
    return TableWorld(_toy("frozen_lake", **arguments), lake_table, 200)


def icu_sepsis() -> TableWorld:
    """Return ICU-Sepsis with its table; actions are numbered from 0 to 24."""
    wrapper = importlib.import_module("icu_sepsis.wrappers").FlattenActionWrapper
    made = wrapper(importlib.import_module("icu_sepsis.envs").ICUSepsisEnv(params=_sepsis_numbers()))
    made.action_space = spaces.Discrete(int(made.action_space.n))  # its number is NumPy's
    return TableWorld(made, sepsis_table, 500)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TabularRecipe(PlayedRecipe):
    """Everything that decides the bytes of a `tabular` dataset.

    Attributes:
        environment_id: The world that records and scores.
        mistaken: Share of states in which the behavior takes another action more often than the best one.
        known: How often it takes the best one there, before noise.
        noise: Share of uniform actions in the behavior.
        discount: Discount of the values.
        steps: Steps in the dataset; the last episode is cut (truncated) where they run out.
    """

    environment_id: str
    mistaken: float
    known: float
    noise: float
    discount: float
    steps: int
    seed: int = 0

    name = "tabular"

    @property
    def behavior_policy(self) -> str:
        """Description of the policy that chose the actions."""
        return (
            f"the best policy at a discount of {self.discount:g}, which in {self.mistaken:.0%} of the states takes "
            f"the best action only {self.known:.0%} of the time and else another one, and a uniform action in "
            f"{self.noise:.0%} of the steps; action_log_probs, optimal_value and behavior_value are exact"
        )

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, _index: int) -> Episode:
        """Return one episode, with the exact values of its states."""
        known = known_values(self)

        def choose(state: Any) -> tuple[int, dict[str, float]]:
            chances = known.behavior[int(state)]
            action = int(np.searchsorted(np.cumsum(chances[:-1]), rng.random(), "right"))
            return action, {"action_log_probs": math.log(chances[action])}

        made = play_episode(env, reset_seed, choose)
        seen = made.observations[:-1]
        values = {"optimal_value": known.optimal_values[seen], "behavior_value": known.behavior_values[seen]}
        return dataclasses.replace(made, infos={**made.infos, **values})

    def expert(self) -> Expert:
        """Return the best policy at the recipe's discount."""
        best = known_values(self).optimal_actions
        return Expert(
            name=f"the best policy at a discount of {self.discount:g}, from the transitions",
            policy=lambda states: best[np.asarray(states)],
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class KnownValues:
    """What is exactly known of a recipe's world and of its behavior.

    Attributes:
        optimal_values: V*(s) at the recipe's discount, without a time limit.
        optimal_actions: The best action of each state, the first of equal ones.
        behavior: Probabilities of the behavior, `[states, actions]`.
        behavior_values: Its values, as `optimal_values`.
        mean_returns: Exact mean undiscounted return of an episode, up to the time limit: of the `best` policy,
            which knows how many steps are left, of the `optimal` actions, of the `behavior`, of its `mode`
            (what imitation takes from it), and of `random` ones.
    """

    optimal_values: np.ndarray
    optimal_actions: np.ndarray
    behavior: np.ndarray
    behavior_values: np.ndarray
    mean_returns: dict[str, float]


@functools.cache
def known_values(recipe: TabularRecipe) -> KnownValues:
    """Return what is exactly known of a recipe."""
    with make_environment(recipe.environment_id, recipe.environment_kwargs) as env:
        table: Table = env.get_wrapper_attr("table")
        horizon: int = env.get_wrapper_attr("horizon")
    q_values = stationary_values(table, recipe.discount)
    # Values that differ by rounding alone count as equal, so that every machine takes the same action.
    best = (q_values >= q_values.max(1, keepdims=True) - 1e-9).argmax(1)
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((recipe.seed, 2**32 - 1))))
    is_mistaken = rng.random(table.states) < recipe.mistaken
    other = (best + rng.integers(1, table.actions, table.states)) % table.actions
    every = np.eye(table.actions)
    mode = every[np.where(is_mistaken, other, best)]
    knows = np.where(is_mistaken, recipe.known, 1)[:, None]
    behavior = (1 - recipe.noise) * (knows * every[best] + (1 - knows) * mode)
    behavior += recipe.noise / table.actions
    policies = {
        "optimal": every[best],
        "behavior": behavior,
        "mode": mode,
        "random": np.full_like(mode, 1 / table.actions),
    }
    returns = {name: float(table.starts @ policy_values(table, policy, horizon)) for name, policy in policies.items()}
    of_behavior = stationary_values(table, recipe.discount, behavior)
    return KnownValues(
        optimal_values=q_values.max(1).round(9),
        optimal_actions=best,
        behavior=behavior,
        behavior_values=(behavior * of_behavior).sum(1).round(9),
        mean_returns={"best": float(table.starts @ best_values(table, horizon)[-1]), **returns},
    )


def _entry(task: str, recipe: TabularRecipe) -> CatalogueEntry:
    return CatalogueEntry(
        description=(
            f"{task}; numbered states and actions, and the exact values of both the best policy and the one "
            f"that acted. {recipe.steps:,} steps."
        ),
        recipe=recipe,
    )


DATASETS = {
    "tabular/taxi-v1": _entry(
        "A taxi fetches a passenger and brings it to its destination",
        TabularRecipe(
            environment_id="orlog/Taxi-v0", mistaken=0.1, known=0.4, noise=0.2, discount=0.99, steps=100_000, seed=60
        ),
    ),
    "tabular/frozenlake-v1": _entry(
        "A walk over slippery ice between holes",
        TabularRecipe(
            environment_id="orlog/FrozenLake-v0",
            mistaken=0.2,
            known=0.4,
            noise=0.2,
            discount=0.999,
            steps=100_000,
            seed=61,
        ),
    ),
    "tabular/icu-sepsis-v1": _entry(
        "Treatment of sepsis in intensive care, a model from records of patients (ICU-Sepsis)",
        TabularRecipe(
            environment_id="orlog/ICUSepsis-v0",
            mistaken=0.4,
            known=0.4,
            noise=0.2,
            discount=0.999,
            steps=100_000,
            seed=62,
        ),
    ),
}
