from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from beartype import beartype
from jaxtyping import jaxtyped

from orlog.algos.flows import flow_actions
from orlog.algos.ifql import IFQL, IFQLConfig, best_actions
from orlog.algos.networks import Scaling, make_generator
from orlog.loaders.batch import Batch
from tests.algos import plain

MakeBatch: TypeAlias = Callable[..., Batch]
SMALL: dict[str, Any] = {"hidden": (4,), "learning_rate": 1e-3, "target_rate": 0.1}


def test_the_best_action_is_that_of_the_highest_smaller_value() -> None:
    q_values = torch.tensor(
        [[[1.0, 5.0, 3.0], [0.0, -1.0, -2.0]], [[4.0, 0.0, 2.0], [-3.0, 9, -2]]]
    )
    actions = torch.arange(6.0).view(2, 3, 1)
    found = jaxtyped(typechecker=beartype)(best_actions)(q_values, actions)
    assert found.tolist() == [[2.0], [4.0]]


class PlainIFQL:
    """The update in NumPy, from the equations."""

    def __init__(self, algorithm: IFQL, seed: int) -> None:
        self.config, self.scaling = algorithm.config, algorithm.scaling
        self.generator = make_generator(seed, 1)
        critic = algorithm.critic
        self.critics = [plain.parameters_of(one) for one in (critic.first, critic.second)]
        self.value = plain.parameters_of(algorithm.value)
        self.policy = plain.parameters_of(algorithm.policy)
        self.target_critics = [[one.copy() for one in critic] for critic in self.critics]
        rate = self.config.learning_rate
        self.optimizers = [
            plain.Adam(one, rate)
            for one in (self.critics[0] + self.critics[1], self.value, self.policy)
        ]

    def q_values(self, critics: list[plain.Parameters], s: np.ndarray, a: np.ndarray) -> np.ndarray:
        both = np.concatenate([s, a], 1)
        return np.stack([plain.smooth_network(one, both, layer_norm=True)[:, 0] for one in critics])

    def update(self, batch: Batch) -> None:
        config, one = self.config, plain.in_units(self.scaling, batch)
        s, a = one["s"], one["a"]
        z = torch.randn(a.shape, generator=self.generator).numpy()
        t = torch.rand((len(a), 1), generator=self.generator).numpy()
        target_q = self.q_values(self.target_critics, s, a).min(0)
        next_v = plain.smooth_network(self.value, one["next_s"], layer_norm=True)[:, 0]
        y = one["r"] + config.discount * one["goes_on"] * next_v

        def critic_loss() -> float:
            return float(np.mean((self.q_values(self.critics, s, a) - y) ** 2, 1).sum())

        def value_loss() -> float:
            u = target_q - plain.smooth_network(self.value, s, layer_norm=True)[:, 0]
            return float(np.mean(np.abs(config.expectile - (u < 0)) * u**2))

        def actor_loss() -> float:
            inputs = np.concatenate([s, (1 - t) * z + t * a, t], 1)
            return float(np.mean((plain.smooth_network(self.policy, inputs) - (a - z)) ** 2))

        for target, online in zip(self.target_critics, self.critics, strict=True):
            plain.move(target, online, config.target_rate)
        losses = (critic_loss, value_loss, actor_loss)
        for optimizer, loss in zip(self.optimizers, losses, strict=True):
            optimizer.step(loss)


@pytest.mark.usefixtures("in_float64")
def test_updates_equal_a_plain_implementation(scaling: Scaling, make_batch: MakeBatch) -> None:
    algorithm = IFQL(IFQLConfig(**SMALL), plain.doubles(scaling), seed=3)
    expected = PlainIFQL(algorithm, 3)
    for index in range(4):
        batch = make_batch(index, rows=8).map(torch.Tensor.double)
        algorithm.update(batch)
        expected.update(batch)
    plain.check_critics(algorithm.critic, expected.critics)
    plain.check_critics(algorithm.target_critic, expected.target_critics)
    plain.check_equal(algorithm.value, expected.value)
    plain.check_equal(algorithm.policy, expected.policy)


@pytest.mark.usefixtures("in_float64")
def test_parameters_after_100_updates_are_the_authors() -> None:
    assert plain.difference_from_recorded(IFQL, "ifql") < 1e-7


def test_each_observation_gets_the_best_of_its_own_actions(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    algorithm = IFQL(IFQLConfig(**SMALL, sampled_actions=5), scaling, seed=0)
    observations = make_batch(0, rows=3).observations
    found = algorithm.actor(3).act(observations)
    noise = torch.randn((15, 2), generator=make_generator(0, 3))
    for row, s in enumerate(scaling.observations(observations)):
        many, z = s.expand(5, -1), noise[5 * row : 5 * row + 5]
        actions = flow_actions(algorithm.policy, many, z, 10)
        best = algorithm.critic(many, actions).amin(0).argmax()
        torch.testing.assert_close(found[row], scaling.actions_from_unit(actions[best]))


def test_acting_does_not_change_training_and_evaluations_repeat(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    batch = make_batch(0)
    one, two = (IFQL(IFQLConfig(**SMALL), scaling, seed=0) for _ in range(2))
    assert torch.equal(*(one.actor(32).act(batch.observations) for _ in range(2)))
    assert not torch.equal(one.act(batch.observations), one.act(batch.observations))
    for algorithm in (one, two):
        algorithm.update(batch)
    for first, second in zip(one.policy.parameters(), two.policy.parameters(), strict=True):
        assert torch.equal(first, second)


def test_defaults_are_the_published_ones() -> None:
    # IFQL / official, seohongpark/fql@719d04417c: common
    assert dataclasses.asdict(IFQLConfig()) == {
        "encoder": "nature",
        "random_shift": 0,
        "hidden": (512, 512, 512, 512),
        "learning_rate": 3e-4,
        "batch_size": 256,
        "discount": 0.99,
        "target_rate": 0.005,
        "expectile": 0.9,
        "sampled_actions": 32,
        "flow_steps": 10,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expectile", 1.0),
        ("expectile", math.nan),
        ("sampled_actions", 0),
        ("flow_steps", 0),
        ("discount", 1.01),
        ("target_rate", 0.0),
        ("learning_rate", 0.0),
        ("hidden", ()),
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        IFQLConfig(**{name: value})
