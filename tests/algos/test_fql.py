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

from orlog.algos.fql import FQL, FQLConfig, policy_loss
from orlog.algos.networks import Scaling, make_generator
from orlog.loaders.batch import Batch
from tests.algos import plain

MakeBatch: TypeAlias = Callable[..., Batch]
SMALL: dict[str, Any] = {
    "hidden": (4,),
    "learning_rate": 1e-3,
    "target_rate": 0.1,
    "distillation_weight": 0.5,
    "flow_steps": 3,
}


def parameters(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in network.parameters()])


def test_the_policys_loss_is_the_distance_minus_the_value() -> None:
    rng = np.random.default_rng(0)
    q, predicted, carried = (
        rng.normal(size=(2, 5)),
        rng.normal(size=(5, 2)),
        rng.normal(size=(5, 2)),
    )
    tensors = [torch.from_numpy(one).float() for one in (q, predicted, carried)]
    distance, values = 0.3 * ((predicted - carried) ** 2).mean(), q.mean(0)
    expected = [distance - values.mean(), distance - values.mean() / np.abs(values).mean()]
    loss = jaxtyped(typechecker=beartype)(policy_loss)
    found = [loss(tensors[0], tensors[1], tensors[2], 0.3, one).item() for one in (False, True)]
    assert found == pytest.approx(expected, rel=1e-4)


class PlainFQL:
    """The update in NumPy, from the equations."""

    def __init__(self, algorithm: FQL, seed: int) -> None:
        self.config, self.scaling = algorithm.config, algorithm.scaling
        self.generator = make_generator(seed, 1)
        critic = algorithm.critic
        self.critics = [plain.parameters_of(one) for one in (critic.first, critic.second)]
        self.flow = plain.parameters_of(algorithm.flow)
        self.policy = plain.parameters_of(algorithm.policy)
        self.target_critics = [[one.copy() for one in critic] for critic in self.critics]
        rate = self.config.learning_rate
        self.optimizers = [plain.Adam(self.critics[0] + self.critics[1], rate)]
        self.optimizers += [plain.Adam(one, rate) for one in (self.flow, self.policy)]

    def q_values(self, critics: list[plain.Parameters], s: np.ndarray, a: np.ndarray) -> np.ndarray:
        both = np.concatenate([s, a], 1)
        return np.stack([plain.smooth_network(one, both, layer_norm=True)[:, 0] for one in critics])

    def update(self, batch: Batch) -> None:
        config, one = self.config, plain.in_units(self.scaling, batch)
        s, a, next_s = one["s"], one["a"], one["next_s"]
        next_z, x_0 = (torch.randn(a.shape, generator=self.generator).numpy() for _ in range(2))
        t = torch.rand((len(a), 1), generator=self.generator).numpy()
        z = torch.randn(a.shape, generator=self.generator).numpy()

        next_a = plain.smooth_network(self.policy, np.concatenate([next_s, next_z], 1))
        both_q = self.q_values(self.target_critics, next_s, np.clip(next_a, -1, 1))
        next_q = both_q.mean(0) if config.target == "mean" else both_q.min(0)
        y = one["r"] + config.discount * one["goes_on"] * next_q

        def critic_loss() -> float:
            return float(np.mean((self.q_values(self.critics, s, a) - y) ** 2))

        def flow_loss() -> float:
            inputs = np.concatenate([s, (1 - t) * x_0 + t * a, t], 1)
            return float(np.mean((plain.smooth_network(self.flow, inputs) - (a - x_0)) ** 2))

        x = z
        for step in range(config.flow_steps):
            times = np.full((len(a), 1), step / config.flow_steps)
            inputs = np.concatenate([s, x, times], 1)
            x = x + plain.smooth_network(self.flow, inputs) / config.flow_steps
        carried = np.clip(x, -1, 1)
        before = [[one.copy() for one in critic] for critic in self.critics]

        def own_values() -> tuple[np.ndarray, np.ndarray]:
            mu = plain.smooth_network(self.policy, np.concatenate([s, z], 1))
            found: np.ndarray = self.q_values(before, s, np.clip(mu, -1, 1)).mean(0)
            return mu, found

        scale = np.mean(np.abs(own_values()[1])) if config.normalize_values else 1.0

        def actor_loss() -> float:
            mu, q = own_values()
            distance = np.mean((mu - carried) ** 2)
            return float(config.distillation_weight * distance - np.mean(q) / scale)

        for target, online in zip(self.target_critics, before, strict=True):
            plain.move(target, online, config.target_rate)
        losses = (critic_loss, flow_loss, actor_loss)
        for optimizer, loss in zip(self.optimizers, losses, strict=True):
            optimizer.step(loss)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("settings", [{}, {"target": "smallest", "normalize_values": True}])
def test_updates_equal_a_plain_implementation(
    scaling: Scaling, make_batch: MakeBatch, settings: dict[str, Any]
) -> None:
    algorithm = FQL(FQLConfig(**{**SMALL, **settings}), plain.doubles(scaling), seed=3)
    expected = PlainFQL(algorithm, 3)
    for index in range(4):
        batch = make_batch(index, rows=8).map(torch.Tensor.double)
        algorithm.update(batch)
        expected.update(batch)
    plain.check_critics(algorithm.critic, expected.critics)
    plain.check_critics(algorithm.target_critic, expected.target_critics)
    plain.check_equal(algorithm.flow, expected.flow)
    plain.check_equal(algorithm.policy, expected.policy)


@pytest.mark.usefixtures("in_float64")
def test_parameters_after_100_updates_are_the_authors() -> None:
    assert plain.difference_from_recorded(FQL, "fql") < 1e-7


def after(scaling: Scaling, batch: Batch, steps: int, **settings: Any) -> FQL:
    algorithm = FQL(FQLConfig(**{**SMALL, **settings}), scaling, seed=0)
    for _ in range(steps):
        algorithm.update(batch)
    return algorithm


def test_values_move_the_policy_alone(scaling: Scaling, make_batch: MakeBatch) -> None:
    batch = make_batch(0)
    one, two = (after(scaling, batch, 1, distillation_weight=weight) for weight in (0.0, 9.0))
    assert torch.equal(parameters(one.flow), parameters(two.flow))
    assert torch.equal(parameters(one.critic), parameters(two.critic))
    assert not torch.equal(parameters(one.policy), parameters(two.policy))


def test_what_follows_a_termination_does_not_matter_and_a_truncation_does(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    ended = make_batch(0, terminations=torch.ones(32), truncations=torch.zeros(32))
    cut = dataclasses.replace(ended, terminations=torch.zeros(32), truncations=torch.ones(32))
    for batch, is_same in ((ended, True), (cut, False)):
        other = dataclasses.replace(batch, next_observations=batch.next_observations * -3 + 1)
        one, two = after(scaling, batch, 2), after(scaling, other, 2)
        assert torch.equal(parameters(one.critic), parameters(two.critic)) == is_same


def test_acting_does_not_change_training_and_evaluations_repeat(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    batch = make_batch(0)
    one, two = (after(scaling, batch, 1) for _ in range(2))
    observations = batch.observations
    first = one.actor(32).act(observations)
    assert torch.equal(first, one.actor(32).act(observations))
    assert torch.equal(first, two.actor(32).act(observations))
    drawn = [one.act(observations), one.act(observations)]
    assert not torch.equal(*drawn)
    for algorithm in (one, two):
        algorithm.update(batch)
    assert torch.equal(parameters(one.policy), parameters(two.policy))


def test_defaults_are_the_published_ones() -> None:
    # FQL / official, seohongpark/fql@719d04417c: common
    assert dataclasses.asdict(FQLConfig()) == {
        "encoder": "nature",
        "random_shift": 0,
        "hidden": (512, 512, 512, 512),
        "learning_rate": 3e-4,
        "batch_size": 256,
        "discount": 0.99,
        "target_rate": 0.005,
        "target": "mean",
        "distillation_weight": 10.0,
        "normalize_values": False,
        "flow_steps": 10,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("distillation_weight", -0.1),
        ("distillation_weight", math.nan),
        ("flow_steps", 0),
        ("discount", 1.01),
        ("target_rate", 0.0),
        ("target", "largest"),
        ("learning_rate", 0.0),
        ("hidden", ()),
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        FQLConfig(**{name: value})
