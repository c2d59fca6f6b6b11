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

from orlog.algos.networks import Scaling, make_generator
from orlog.algos.rebrac import ReBRAC, ReBRACConfig, penalized_values, policy_loss
from orlog.loaders.batch import NextActionBatch
from tests.algos import plain

MakeBatch: TypeAlias = Callable[..., NextActionBatch]
SMALL: dict[str, Any] = {
    "hidden": (4,),
    "policy_learning_rate": 1e-3,
    "critic_learning_rate": 2e-3,
    "target_rate": 0.1,
    "policy_penalty": 0.5,
    "critic_penalty": 0.5,
}


def parameters(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in network.parameters()])


def test_values_are_penalized_where_the_data_have_a_next_action() -> None:
    found = jaxtyped(typechecker=beartype)(penalized_values)(
        torch.tensor([[1.0, 5.0], [2.0, 4.0]]),
        torch.tensor([[0.5, 0.0], [0.5, 0.0]]),
        torch.tensor([[0.0, 1.0], [0.0, 1.0]]),
        torch.tensor([1.0, 0.0]),
        2.0,
    )
    assert found.tolist() == [1 - 2 * 1.25, 4.0]


def test_the_policys_loss_is_the_penalty_minus_the_normalized_value() -> None:
    rng = np.random.default_rng(0)
    q, predicted, actions = rng.normal(size=5), rng.normal(size=(5, 2)), rng.normal(size=(5, 2))
    expected = (0.3 * ((predicted - actions) ** 2).sum(1) - q / np.abs(q).mean()).mean()
    tensors = [torch.from_numpy(one) for one in (q, predicted, actions)]
    assert policy_loss(tensors[0], tensors[1], tensors[2], 0.3).item() == pytest.approx(expected)


def critic_value(parameters: plain.Parameters, s: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Return the values of a critic with a layer normalization after each ReLU."""
    *hidden, weight, bias = parameters
    values = np.concatenate([s, a], 1)
    for index in range(0, len(hidden), 4):
        inner, offset, scale, shift = hidden[index : index + 4]
        values = np.maximum(values @ inner.T + offset, 0)
        apart = values - values.mean(1, keepdims=True)
        values = apart / np.sqrt((apart**2).mean(1, keepdims=True) + 1e-6) * scale + shift
    found: np.ndarray = (values @ weight.T + bias)[:, 0]
    return found


class PlainReBRAC:
    """The update in NumPy, from the equations."""

    def __init__(self, algorithm: ReBRAC, seed: int) -> None:
        self.config, self.scaling, self.step = algorithm.config, algorithm.scaling, 0
        self.generator = make_generator(seed, 1)
        critic = algorithm.critic
        self.critics = [plain.parameters_of(one) for one in (critic.first, critic.second)]
        self.policy = plain.parameters_of(algorithm.policy)
        self.target_critics = [[one.copy() for one in critic] for critic in self.critics]
        self.target_policy = [one.copy() for one in self.policy]
        self.critic_optimizer = plain.Adam(
            self.critics[0] + self.critics[1], self.config.critic_learning_rate
        )
        self.policy_optimizer = plain.Adam(self.policy, self.config.policy_learning_rate)

    def update(self, batch: NextActionBatch) -> None:
        config, one = self.config, plain.in_units(self.scaling, batch)
        s, a, next_s = one["s"], one["a"], one["next_s"]
        data_a = self.scaling.actions_to_unit(batch.next_actions).numpy()
        noise = torch.randn(a.shape, generator=self.generator).numpy() * config.target_noise
        noise = np.clip(noise, -config.noise_clip, config.noise_clip)
        next_a = np.clip(np.tanh(plain.network(self.target_policy, next_s)) + noise, -1, 1)
        next_q = np.min([critic_value(q, next_s, next_a) for q in self.target_critics], 0)
        penalty = batch.has_next_action.numpy() * ((next_a - data_a) ** 2).sum(1)
        y = one["r"] + config.discount * one["goes_on"] * (next_q - config.critic_penalty * penalty)

        def critic_loss() -> float:
            return sum(float(np.mean((critic_value(q, s, a) - y) ** 2)) for q in self.critics)

        self.critic_optimizer.step(critic_loss)
        self.step += 1
        if (self.step - 1) % config.policy_interval:
            return
        for target, online in zip(self.target_critics, self.critics, strict=True):
            plain.move(target, online, config.target_rate)
        plain.move(self.target_policy, self.policy, config.target_rate)

        def own_q() -> np.ndarray:
            pi = np.tanh(plain.network(self.policy, s))
            found: np.ndarray = np.min([critic_value(q, s, pi) for q in self.critics], 0)
            return found

        scale = 1 / np.mean(np.abs(own_q()))

        def loss() -> float:
            pi = np.tanh(plain.network(self.policy, s))
            distance = ((pi - a) ** 2).sum(1)
            return float(np.mean(config.policy_penalty * distance - scale * own_q()))

        self.policy_optimizer.step(loss)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("settings", [{}, {"policy_interval": 1, "critic_penalty": 3.0}])
def test_updates_equal_a_plain_implementation(
    scaling: Scaling, make_batch: MakeBatch, settings: dict[str, Any]
) -> None:
    algorithm = ReBRAC(ReBRACConfig(**{**SMALL, **settings}), plain.doubles(scaling), seed=3)
    expected = PlainReBRAC(algorithm, 3)
    for index in range(4):
        batch = make_batch(index, rows=8).map(torch.Tensor.double)
        algorithm.update(batch)
        expected.update(batch)
    plain.check_critics(algorithm.critic, expected.critics)
    plain.check_critics(algorithm.target_critic, expected.target_critics)
    plain.check_equal(algorithm.policy, expected.policy)
    plain.check_equal(algorithm.target_policy, expected.target_policy)


@pytest.mark.usefixtures("in_float64")
def test_parameters_after_100_updates_are_corls() -> None:
    assert plain.difference_from_recorded(ReBRAC, "rebrac") < 1e-9


def after(scaling: Scaling, batch: NextActionBatch, steps: int, **settings: Any) -> ReBRAC:
    algorithm = ReBRAC(ReBRACConfig(**{**SMALL, **settings}), scaling, seed=0)
    for _ in range(steps):
        algorithm.update(batch)
    return algorithm


def test_policy_and_targets_move_in_the_first_and_every_second_update(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    algorithm = ReBRAC(ReBRACConfig(**SMALL), scaling, seed=0)
    moved = []
    for index in range(4):
        before = [parameters(getattr(algorithm, name)) for name in ("policy", "target_critic")]
        algorithm.update(make_batch(index))
        now = [parameters(getattr(algorithm, name)) for name in ("policy", "target_critic")]
        moved.append([not torch.equal(*pair) for pair in zip(before, now, strict=True)])
    assert moved == [[True, True], [False, False]] * 2
    for network in (algorithm.target_critic, algorithm.target_policy):
        assert not any(value.requires_grad for value in network.parameters())


def test_what_follows_a_termination_does_not_matter_and_a_truncation_does(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    ended = make_batch(0, terminations=torch.ones(32), truncations=torch.zeros(32))
    cut = dataclasses.replace(ended, terminations=torch.zeros(32), truncations=torch.ones(32))
    for batch, is_same in ((ended, True), (cut, False)):
        for change in ("next_observations", "next_actions"):
            other = dataclasses.replace(batch, **{change: getattr(batch, change) * -3 + 1})
            one, two = after(scaling, batch, 2), after(scaling, other, 2)
            assert torch.equal(parameters(one.critic), parameters(two.critic)) == is_same


def test_an_action_that_the_data_do_not_have_does_not_matter(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    batch = make_batch(0, has_next_action=torch.zeros(32))
    other = dataclasses.replace(batch, next_actions=batch.next_actions * -3 + 1)
    assert torch.equal(
        parameters(after(scaling, batch, 2).critic), parameters(after(scaling, other, 2).critic)
    )


def test_defaults_are_the_published_ones() -> None:
    # ReBRAC / official, tinkoff-ai/ReBRAC@694385b72f: common, and Gym's; the penalties are those of
    # most datasets
    assert dataclasses.asdict(ReBRACConfig()) == {
        "encoder": "nature",
        "random_shift": 0,
        "hidden": (256, 256, 256),
        "policy_learning_rate": 1e-3,
        "critic_learning_rate": 1e-3,
        "batch_size": 1024,
        "discount": 0.99,
        "target_rate": 0.005,
        "policy_penalty": 0.01,
        "critic_penalty": 0.01,
        "policy_interval": 2,
        "target_noise": 0.2,
        "noise_clip": 0.5,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("discount", 1.01),
        ("target_rate", 0.0),
        ("policy_penalty", -0.1),
        ("critic_penalty", math.nan),
        ("critic_penalty", -0.1),
        ("policy_interval", 0),
        ("target_noise", -1.0),
        ("noise_clip", -1.0),
        ("policy_learning_rate", 0.0),
        ("hidden", ()),
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        ReBRACConfig(**{name: value})
