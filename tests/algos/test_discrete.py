"""The forms of BC, CQL and IQL for discrete actions."""

import dataclasses

import gymnasium
import msgspec
import numpy as np
import pytest
import torch

from orlog.algos.algorithms import find_algorithm
from orlog.algos.cql_discrete import CQLDiscrete, CQLDiscreteConfig
from orlog.algos.networks import make_generator
from orlog.algos.policies import actions_from_indices, actions_to_indices, chosen_values
from orlog.algos.settings import complete_config, make_config
from orlog.loaders.batch import Batch
from tests.algos import plain


def make_batch(observations, actions, rewards, ended):
    """Return a batch of steps that end where they began."""
    return Batch(
        observations=observations,
        actions=actions,
        rewards=rewards.float(),
        next_observations=observations,
        terminations=ended.float(),
        truncations=torch.zeros(len(actions)),
        discounts=torch.ones(len(actions)),
    )


@pytest.mark.usefixtures("in_float64")
def test_convolutions_on_frames_are_d3rlpys():
    assert plain.difference_with_frames() < 1e-12


def test_actions_are_counted_from_the_first_of_the_space(discrete):
    actions = torch.tensor([2, 4, 3])
    indices = actions_to_indices(discrete, actions)
    assert indices.tolist() == [0, 2, 1]
    assert torch.equal(actions_from_indices(discrete, indices), actions)
    values = torch.arange(18.0).reshape(2, 3, 3)
    assert chosen_values(values, indices).tolist() == [[0, 5, 7], [9, 14, 16]]


@pytest.mark.parametrize("name", ["bc", "cql", "iql"])
def test_values_of_the_data_decide(discrete, name):
    """One step: of three actions, the second is the commonest and the third is rewarded."""
    kind = find_algorithm(name, action_space=discrete.action_space)
    fast = {"hidden": [16], "learning_rate": 1e-2, "batch_size": 64}
    if name == "iql":
        fast |= {"expectile": 0.9, "inverse_temperature": 10.0, "target_rate": 0.1}
    algorithm = kind(make_config(kind, fast), discrete, seed=0)
    rng, generator = np.random.default_rng(0), make_generator(0, 0)
    for _ in range(80):
        actions = torch.from_numpy(rng.choice(3, 64, p=[0.2, 0.5, 0.3]))
        seen = torch.randn(64, 3, generator=generator)
        algorithm.update(make_batch(seen, actions + 2, actions == 2, torch.ones(64)))
    chosen = algorithm.act(torch.randn(200, 3, generator=generator))
    share = (chosen == 2 + (1 if name == "bc" else 2)).float().mean()
    assert share > 0.9


def one_state_values(config, scaling):
    """Return what it learns in one state: actions with other rewards and chances of a termination."""
    rewards, chances = torch.tensor([1.5, 0.9]), torch.tensor([0.3, 0.02])
    algorithm, drawn = CQLDiscrete(config, scaling, seed=0), torch.Generator().manual_seed(0)
    here, rows = torch.ones(config.batch_size, 3), config.batch_size
    for _ in range(600):
        actions = torch.randint(2, (rows,), generator=drawn)
        ended = torch.rand(rows, generator=drawn) < chances[actions]
        algorithm.update(make_batch(here, actions, rewards[actions], ended))
    return [float(one) for one in algorithm.critic(algorithm.encoder(here[:1])).detach()[0]]


def test_cql_learns_what_terminations_cost(scaling):
    none = torch.zeros(0)
    two = dataclasses.replace(scaling, action_low=none, action_high=none, action_space=gymnasium.spaces.Discrete(2))
    fast = {"hidden": (16,), "learning_rate": 0.03, "batch_size": 256}
    weightless = CQLDiscreteConfig(**fast, target_interval=5, conservative_weight=0.0)
    # The second action is worth 0.9 / (1 - 0.99 * 0.98), and the first 1.5 + 0.99 * 0.7 times that.
    best = 0.9 / (1 - 0.99 * 0.98)
    found = one_state_values(weightless, two)
    assert found == pytest.approx([1.5 + 0.99 * 0.7 * best, best], rel=0.05)
    first, second = one_state_values(CQLDiscreteConfig(**fast, target_interval=5), two)
    assert first < second < best
    first, second = one_state_values(msgspec.structs.replace(weightless, bellman_loss="huber"), two)
    assert second > 1.5 * best  # as if there were no terminations


def test_records_of_cql_that_name_no_loss_had_hubers():
    recorded = {"hidden": [64], "target_interval": 100}
    assert complete_config("cql", recorded)["bellman_loss"] == "huber"
    named = {**recorded, "bellman_loss": "square"}
    assert complete_config("cql", named)["bellman_loss"] == "square"
