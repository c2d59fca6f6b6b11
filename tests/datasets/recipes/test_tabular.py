"""The recipes of tabular: probabilities and values are exact, and learning comes near the optimum."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import orlog
from orlog.algos.fitted_q_evaluation import FQESettings
from orlog.datasets.environments.tables import Table, TableWorld
from orlog.datasets.recipes.tabular import DATASETS, TabularRecipe, known_values
from tests.datasets.environments.test_tables import random_table

RECIPES = {
    name: entry.recipe
    for name, entry in DATASETS.items()
    if isinstance(entry.recipe, TabularRecipe)
}
SMALL = "orlog-tests/Table-v0"
HORIZON = 8


class _Sampled(gymnasium.Env[Any, Any]):
    """A world that draws from a table."""

    def __init__(self) -> None:
        self.table = random_table(3, states=8)
        self.observation_space = gymnasium.spaces.Discrete(8)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, Any]:
        super().reset(seed=seed, options=options)
        self.state = int(self.np_random.choice(8, p=self.table.starts))
        return self.state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, Any]:
        table, pair = self.table, self.state * 3 + action
        rows = np.flatnonzero(table.pairs == pair)
        row = rows[self.np_random.choice(len(rows), p=table.chances[rows])]
        reward = float(table.rewards[self.state, action])
        self.state = int(table.next_states[row])
        return self.state, reward, not table.goes_on[row], False, {}


def _table() -> Table:
    return random_table(3, states=8)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Return the name of a dataset of a small world, in an empty current folder."""
    world: Any = lambda: TableWorld(_Sampled(), _table, HORIZON)  # noqa: E731
    gymnasium.register(SMALL, world, max_episode_steps=HORIZON)
    recipe = TabularRecipe(
        environment_id=SMALL, mistaken=0.3, known=0.4, noise=0.4, discount=0.9, steps=12_000, seed=1
    )
    entry = dataclasses.replace(DATASETS["tabular/taxi-v1"], recipe=recipe)
    monkeypatch.setitem(DATASETS, "tabular/small-v1", entry)
    monkeypatch.chdir(tmp_path)
    known_values.cache_clear()
    orlog.build_dataset("tabular/small-v1")
    yield "tabular/small-v1"
    del gymnasium.registry[SMALL]


@pytest.mark.parametrize("name", RECIPES)
def test_each_step_has_the_probability_and_the_values_of_its_state(name: str) -> None:
    recipe = RECIPES[name]
    known = known_values(recipe)
    (one,) = recipe.episodes(3, 4)
    (again,) = recipe.episodes(3, 4)
    states = one.observations[:-1]
    for column in ("observations", "actions", "rewards"):
        assert getattr(one, column).tobytes() == getattr(again, column).tobytes()
    np.testing.assert_array_equal(
        one.infos["action_log_probs"], np.log(known.behavior[states, one.actions])
    )
    np.testing.assert_array_equal(one.infos["optimal_value"], known.optimal_values[states])
    np.testing.assert_array_equal(one.infos["behavior_value"], known.behavior_values[states])
    np.testing.assert_allclose(known.behavior.sum(1), 1)
    assert (known.optimal_values >= known.behavior_values - 1e-9).all()
    means = known.mean_returns
    assert means["best"] >= means["optimal"] > means["mode"] > means["random"]
    assert recipe.expert().policy(states).tolist() == known.optimal_actions[states].tolist()


def test_behavior_acts_as_often_as_its_probabilities_say(small: str) -> None:
    recipe: Any = DATASETS[small].recipe
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


def test_every_estimator_is_near_the_exact_value_and_value_iteration_near_the_optimum(
    small: str,
) -> None:
    dataset = orlog.load_dataset(small)
    train, rest = orlog.split_dataset(dataset, [0.5, 0.5], seed=0)
    settings = {"hidden": [32], "learning_rate": 0.01, "batch_size": 256, "discount": 0.9}
    planned = orlog.train(
        "value_iteration", train, steps=120, settings={"discount": 0.9}, evaluations=0
    )
    learned = orlog.train(
        "cql", train, steps=400, settings={**settings, "target_interval": 20}, evaluations=0
    )
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
            assert policy.value is not None
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
