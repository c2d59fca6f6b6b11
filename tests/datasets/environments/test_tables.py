"""Worlds whose transitions are tables: their values are those of slow loops and of episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orlog.datasets.environments.tables import Table, best_values, policy_values, stationary_values
from orlog.manifests.environments import make_environment
from tests.levels import scaled

WORLDS = {"orlog/Taxi-v0": 500, "orlog/FrozenLake-v0": 64, "orlog/ICUSepsis-v0": 716}


def random_table(seed: int, states: int = 6, actions: int = 3) -> Table:
    """Return a small table with terminations, rewards and impossible transitions."""
    rng = np.random.default_rng(seed)
    chances = rng.dirichlet(np.full(states, 0.3), (states, actions)) + 1e-3
    chances[rng.random(chances.shape) < 0.2] = 0
    chances[..., 0] += 1e-3
    chances /= chances.sum(-1, keepdims=True)
    state, action, after = np.nonzero(chances)
    return Table(
        states=states,
        actions=actions,
        pairs=state * actions + action,
        next_states=after,
        chances=chances[state, action, after],
        goes_on=1.0 - (rng.random(len(state)) < 0.2),
        rewards=rng.normal(size=(states, actions)),
        starts=rng.dirichlet(np.ones(states)),
    )


def slowly(table: Table, choose: Any, horizon: int, discount: float) -> np.ndarray:
    """Return values of states by loops: `choose` is given the values of a state's actions."""
    values = np.zeros(table.states)
    for _ in range(horizon):
        now = np.zeros(table.states)
        for state in range(table.states):
            of_actions = table.rewards[state].copy()
            for pair, after, chance, goes_on in zip(
                table.pairs, table.next_states, table.chances, table.goes_on, strict=True
            ):
                if pair // table.actions == state:
                    of_actions[pair % table.actions] += discount * chance * goes_on * values[after]
            now[state] = choose(state, of_actions)
        values = now
    return values


@pytest.mark.parametrize("seed", range(3))
def test_values_are_those_of_a_slow_loop(seed: int) -> None:
    table = random_table(seed)
    policy = np.random.default_rng(seed).dirichlet(np.ones(3), 6)
    for horizon, discount in ((1, 1.0), (4, 0.9)):
        best = best_values(table, horizon, discount)[-1]
        expected = slowly(table, lambda _state, of_actions: of_actions.max(), horizon, discount)
        np.testing.assert_allclose(best, expected, atol=1e-9)
        found = policy_values(table, policy, horizon, discount)
        expected = slowly(
            table, lambda state, of_actions: policy[state] @ of_actions, horizon, discount
        )
        np.testing.assert_allclose(found, expected, atol=1e-9)
    q_values = stationary_values(table, 0.9)
    again = table.backed_up(q_values.max(1), 0.9)
    np.testing.assert_allclose(again, q_values, atol=1e-9)
    of_policy = stationary_values(table, 0.9, policy)
    np.testing.assert_allclose(
        table.backed_up((policy * of_policy).sum(1), 0.9), of_policy, atol=1e-9
    )
    with pytest.raises(ValueError, match=r"a discount in \(0, 1\), found 1"):
        stationary_values(table, 1.0)


@pytest.mark.parametrize("name", WORLDS)
def test_the_table_is_that_of_the_world_and_regret_is_its_distance_to_the_optimum(
    name: str,
) -> None:
    made: Any = make_environment(name, {})
    with made as env:
        table: Table = env.get_wrapper_attr("table")
        assert env.observation_space.n == table.states == WORLDS[name]
        assert env.action_space.n == table.actions
        assert env.get_wrapper_attr("horizon") == env.spec.max_episode_steps
        sums = np.add.reduceat(table.chances, table.first_rows)
        np.testing.assert_allclose(sums, 1)
        assert table.starts.sum() == pytest.approx(1)
        best = stationary_values(table, 0.99).argmax(1)
        rng = np.random.default_rng(0)
        chosen = np.where(rng.random(table.states) < 0.02, 0, best)
        optimum = env.get_wrapper_attr("best_value")()
        exact = env.get_wrapper_attr("policy_value")(lambda states: chosen[states])
        assert exact <= optimum

        regrets, returns, episodes = [], [], scaled(800, 60)
        for seed in range(episodes):
            state, info = env.reset(seed=seed)
            assert info == {}
            assert table.starts[state] > 0
            lost = total = 0.0
            ended = cut = False
            while not ended and not cut:
                action = int(chosen[state])
                after, reward, ended, cut, info = env.step(action)
                pair = state * table.actions + action
                rows = slice(*np.searchsorted(table.pairs, [pair, pair + 1]))
                goes_on = table.goes_on[rows][table.next_states[rows] == after]
                assert ((goes_on == 0) == ended).any()
                assert info["regret"] >= 0
                lost, total, state = lost + info["regret"], total + reward, after
            regrets.append(lost)
            returns.append(total)
        for values, mean in ((regrets, optimum - exact), (returns, exact)):
            error = 4 * np.std(values) / episodes**0.5
            assert abs(np.mean(values) - mean) <= error + 1e-9, (np.mean(values), mean, error)
