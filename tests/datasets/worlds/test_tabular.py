"""Worlds whose transitions are tables: their values are those of slow loops and of episodes. The recipes of tabular: probabilities and values are exact, and learning comes near the optimum."""

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest

import orlog
from orlog.algos.fitted_q_evaluation import FQESettings
from orlog.datasets.worlds.environments import make_environment
from orlog.datasets.worlds.tabular import (
    DATASETS,
    Table,
    TableWorld,
    TabularRecipe,
    best_values,
    known_values,
    policy_values,
    stationary_values,
)
from tests.levels import scaled

WORLDS = {"orlog/Taxi-v0": 500, "orlog/FrozenLake-v0": 64, "orlog/ICUSepsis-v0": 716}


def random_table(seed, states=6, actions=3):
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


def slowly(table, choose, horizon, discount):
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
def test_values_are_those_of_a_slow_loop(seed):
    table = random_table(seed)
    policy = np.random.default_rng(seed).dirichlet(np.ones(3), 6)
    for horizon, discount in ((1, 1.0), (4, 0.9)):
        best = best_values(table, horizon, discount)[-1]
        expected = slowly(table, lambda _state, of_actions: of_actions.max(), horizon, discount)
        np.testing.assert_allclose(best, expected, atol=1e-9)
        found = policy_values(table, policy, horizon, discount)
        expected = slowly(table, lambda state, of_actions: policy[state] @ of_actions, horizon, discount)
        np.testing.assert_allclose(found, expected, atol=1e-9)
    q_values = stationary_values(table, 0.9)
    again = table.backed_up(q_values.max(1), 0.9)
    np.testing.assert_allclose(again, q_values, atol=1e-9)
    of_policy = stationary_values(table, 0.9, policy)
    np.testing.assert_allclose(table.backed_up((policy * of_policy).sum(1), 0.9), of_policy, atol=1e-9)
    with pytest.raises(ValueError, match=r"a discount in \(0, 1\), found 1"):
        stationary_values(table, 1.0)


@pytest.mark.parametrize("name", WORLDS)
def test_the_table_is_that_of_the_world_and_regret_is_its_distance_to_the_optimum(name):
    made = make_environment(name, {})
    with made as env:
        table = env.get_wrapper_attr("table")
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


RECIPES = {name: entry.recipe for name, entry in DATASETS.items() if isinstance(entry.recipe, TabularRecipe)}
SMALL = "orlog-tests/Table-v0"
HORIZON = 8


class _Sampled(gymnasium.Env[Any, Any]):
    """A world that draws from a table."""

    def __init__(self):
        self.table = random_table(3, states=8)
        self.observation_space = gymnasium.spaces.Discrete(8)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.state = int(self.np_random.choice(8, p=self.table.starts))
        return self.state, {}

    def step(self, action):
        table, pair = self.table, self.state * 3 + action
        rows = np.flatnonzero(table.pairs == pair)
        row = rows[self.np_random.choice(len(rows), p=table.chances[rows])]
        reward = float(table.rewards[self.state, action])
        self.state = int(table.next_states[row])
        return self.state, reward, not table.goes_on[row], False, {}


def _table():
    return random_table(3, states=8)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Return the name of a dataset of a small world, in an empty current folder."""
    world = lambda: TableWorld(_Sampled(), _table, HORIZON)  # noqa: E731
    gymnasium.register(SMALL, world, max_episode_steps=HORIZON)
    recipe = TabularRecipe(environment_id=SMALL, mistaken=0.3, known=0.4, noise=0.4, discount=0.9, steps=12_000, seed=1)
    entry = dataclasses.replace(DATASETS["tabular/taxi-v1"], recipe=recipe)
    monkeypatch.setitem(DATASETS, "tabular/small-v1", entry)
    monkeypatch.chdir(tmp_path)
    known_values.cache_clear()
    orlog.build_dataset("tabular/small-v1")
    yield "tabular/small-v1"
    del gymnasium.registry[SMALL]


@pytest.mark.parametrize("name", RECIPES)
def test_each_step_has_the_probability_and_the_values_of_its_state(name):
    recipe = RECIPES[name]
    known = known_values(recipe)
    (one,) = recipe.episodes(3, 4)
    states = one.observations[:-1]
    np.testing.assert_array_equal(one.infos["action_log_probs"], np.log(known.behavior[states, one.actions]))
    np.testing.assert_array_equal(one.infos["optimal_value"], known.optimal_values[states])
    np.testing.assert_array_equal(one.infos["behavior_value"], known.behavior_values[states])
    np.testing.assert_allclose(known.behavior.sum(1), 1)
    assert (known.optimal_values >= known.behavior_values - 1e-9).all()
    means = known.mean_returns
    assert means["best"] >= means["optimal"] > means["mode"] > means["random"]
    assert recipe.expert().policy(states).tolist() == known.optimal_actions[states].tolist()


def test_behavior_acts_as_often_as_its_probabilities_say(small):
    recipe = DATASETS[small].recipe
    known = known_values(recipe)
    dataset = orlog.load_dataset(small)
    states, actions = (
        np.concatenate([getattr(one, column)[: len(one.actions)] for one in dataset])
        for column in ("observations", "actions")
    )
    for state in range(8):
        taken = np.bincount(actions[states == state], minlength=3)
        error = 4.5 * np.sqrt(taken.sum()) / 2
        assert (np.abs(taken - taken.sum() * known.behavior[state]) < error).all()


def test_every_estimator_is_near_the_exact_value_and_value_iteration_near_the_optimum(small):
    dataset = orlog.load_dataset(small)
    train, rest = orlog.split_dataset(dataset, [0.5, 0.5], seed=0)
    settings = {"hidden": [32], "learning_rate": 0.01, "batch_size": 256, "discount": 0.9}
    planned = orlog.train("value_iteration", train, steps=120, settings={"discount": 0.9}, evaluations=0)
    learned = orlog.train("cql", train, steps=400, settings={**settings, "target_interval": 20}, evaluations=0)
    results = [orlog.evaluate(run, episodes=200) for run in (planned, learned)]
    for result in results:
        (distance,) = (one for one in result.numbers if one.metric == "lost_value")
        assert distance.name == "distance to the optimum"
        assert -0.01 <= distance.value < 0.3
    assert results[0].numbers[0].value < 0.1

    fits = FQESettings(hidden=(32,), learning_rate=0.01, target_rate=0.05, steps=500, fits=2)
    found = orlog.evaluate_off_policy([planned, learned], on=rest, settings=fits)
    with gymnasium.make(SMALL) as env:
        exact = env.get_wrapper_attr("policy_value")
        for run, policy in zip((planned, learned), found.policies, strict=True):
            assert policy.value.interval is None
            acted = orlog.load_policy(run)
            assert policy.value.value == pytest.approx(exact(acted, 0.9))
            assert policy.mean_return == pytest.approx(exact(acted, 1.0))
            assert {"fqe", "wis", "pdwis", "dr", "wdr", "critic"} == {*policy.estimates}
            for name, estimate in policy.estimates.items():
                if (name, policy.algorithm) == ("critic", "cql"):
                    assert estimate.value < policy.value.value  # conservative
                else:
                    assert abs(estimate.value - policy.value.value) < 0.5, (name, policy)
