import dataclasses
import itertools

import numpy as np
import pytest
import torch

from orlog.algos.algorithms import make_algorithm
from orlog.algos.settings import make_config
from orlog.algos.training.data import loaded
from orlog.loaders.arrays import Arrays
from tests.algos import plain

STEPS = 300
GRID = torch.linspace(-1, 1, 41)[:, None]


@pytest.fixture(scope="module")
def one_choice():
    """Return episodes of one step: the data's actions spread around s, the best one is s + 0.8."""
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, 4000)
    actions = (states + rng.uniform(-1, 1, 4000)).clip(-2, 2)
    rewards = -np.square(actions - states - 0.8)
    return packed(states, actions, rewards, terminated=np.ones(4000))


@pytest.fixture(scope="module")
def two_steps():
    """Return episodes of two steps: a > 0 costs a little at once and earns much at the end.

    The state is -1 at first and the sign of the first action, 0 or 1, then; the reward of the
    second step is that state.
    """
    rng = np.random.default_rng(0)
    first = rng.uniform(-2, 2, 2000)
    second = rng.uniform(-2, 2, 2000)
    state = (first > 0).astype(float)
    states = np.stack([np.full(2000, -1.0), state], 1).reshape(-1)
    actions = np.stack([first, second], 1).reshape(-1)
    rewards = np.stack([-0.2 * state, state], 1).reshape(-1)
    return packed(states, actions, rewards, terminated=np.tile([0.0, 1.0], 2000), length=2)


def packed(states, actions, rewards, *, terminated, length=1):
    steps = len(states)
    step_rows = np.arange(steps) + np.arange(steps) // length
    rows = torch.zeros(steps + steps // length, 5)
    columns = np.stack([states, actions, rewards, terminated], 1)
    rows[step_rows, :4] = torch.from_numpy(columns.astype(np.float32))
    lengths = np.full(steps // length, length)
    return Arrays(rows=rows, lengths=lengths, obs_dim=1, action_dim=1, digest="sha256:toy")


def trained(name, data, steps=STEPS):
    config = make_config(name, {"hidden": [32, 32], "batch_size": 128, **FAST[name]})
    algorithm = make_algorithm(name, config, plain.toy_scaling(), seed=0)
    for batch in itertools.islice(loaded(type(algorithm), config, data, seed=0), steps):
        algorithm.update(batch)
    return algorithm


AHEAD = {"target_rate": 0.1, "discount": 0.9}
BOTH = {"policy_learning_rate": 3e-3, "critic_learning_rate": 3e-3, **AHEAD}
FAST = {
    "bc": {"learning_rate": 3e-3},
    "iql": {"learning_rate": 3e-3, "expectile": 0.9, "inverse_temperature": 10.0, **AHEAD},
    "cql": {**BOTH, "sampled_actions": 4, "conservative_weight": 0.1, "cloning_steps": 0},
    "td3bc": {
        **BOTH,
        "policy_learning_rate": 1e-3,
        "critic_learning_rate": 1e-2,
        "value_weight": 30.0,
        "target_rate": 0.2,
    },
}
VALUES = ["cql", "iql", "td3bc"]


def test_cloning_finds_the_mean_action_and_not_the_rewarded(one_choice):
    before = trained_error("bc", one_choice, offset=0.0, steps=0)
    after = trained_error("bc", one_choice, offset=0.0, steps=STEPS)
    assert after < 0.15 < before
    assert trained_error("bc", one_choice, offset=0.8, steps=STEPS) > 0.7


def test_cloning_does_not_reach_back(two_steps):
    cloned = trained("bc", two_steps)
    assert abs(cloned.act(torch.tensor([[-1.0]])).item()) < 0.3


@pytest.mark.parametrize("name", VALUES)
def test_values_find_the_rewarded_action(one_choice, name):
    assert trained_error(name, one_choice, offset=0.8, steps=STEPS) < 0.4


def trained_error(name, data, *, offset, steps):
    """Return the mean distance of a trained policy's actions from s + offset."""
    return float((trained(name, data, steps).act(GRID) - GRID - offset).abs().mean())


@pytest.mark.parametrize("name", VALUES)
def test_values_reach_back_over_a_step_that_costs(two_steps, name):
    algorithm = trained(name, two_steps)
    assert algorithm.act(torch.tensor([[-1.0]])).item() > 0.5


@pytest.mark.parametrize("name", VALUES)
def test_values_without_a_future_avoid_the_cost(two_steps, name):
    ended = dataclasses.replace(two_steps, rows=two_steps.rows.clone())
    ended.rows[ended.step_rows(), 3] = 1.0
    algorithm = trained(name, ended)
    assert algorithm.act(torch.tensor([[-1.0]])).item() < 0.2
