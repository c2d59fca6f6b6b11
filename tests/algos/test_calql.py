from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from beartype import beartype
from jaxtyping import jaxtyped

from orlog.algos.calql import CalQL, CalQLConfig, calibrated_gaps
from orlog.algos.networks import Scaling, make_generator
from orlog.loaders.batch import Batch, ReturnBatch
from orlog.loaders.returns import with_returns
from tests.algos import plain

MakeBatch: TypeAlias = Callable[..., Batch]
SMALL: dict[str, Any] = {
    "hidden": (4,),
    "policy_learning_rate": 1e-3,
    "critic_learning_rate": 2e-3,
    "target_rate": 0.1,
    "sampled_actions": 2,
}


def returned(batch: Batch, seed: int = 0) -> ReturnBatch:
    rows = len(batch.rewards)
    return with_returns(batch, torch.from_numpy(np.random.default_rng(seed).normal(size=rows)))


class PlainCalQL:
    """The update in NumPy, from the equations."""

    def __init__(self, algorithm: CalQL, seed: int) -> None:
        self.config, self.scaling = algorithm.config, algorithm.scaling
        self.generator = make_generator(seed, 1)
        twins = (algorithm.critic.first, algorithm.critic.second)
        self.critics = [plain.parameters_of(one) for one in twins]
        self.targets = [[one.copy() for one in critic] for critic in self.critics]
        self.policy = plain.parameters_of(algorithm.policy)
        self.log_temperature, self.log_multiplier = np.zeros(1), np.ones(1)
        fast, slow = self.config.critic_learning_rate, self.config.policy_learning_rate
        self.critic_optimizer = plain.Adam(self.critics[0] + self.critics[1], fast)
        self.policy_optimizer = plain.Adam(self.policy, slow)
        self.temperature_optimizer = plain.Adam([self.log_temperature], slow)
        self.multiplier_optimizer = plain.Adam([self.log_multiplier], fast)

    def sample(self, s: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        means, log_stds = np.split(plain.network(self.policy, s), 2, -1)
        log_stds = np.clip(log_stds - 1, -20, 2)
        raw = means + np.exp(log_stds) * noise
        normal = -(0.5 * noise**2 + log_stds + 0.5 * np.log(2 * np.pi)).sum(-1)
        return np.tanh(raw), normal - np.log(1 - np.tanh(raw) ** 2).sum(-1)

    def update(self, batch: ReturnBatch) -> None:
        config, one = self.config, plain.in_units(self.scaling, batch)
        s, a, next_s, bound = one["s"], one["a"], one["next_s"], batch.returns_to_go.numpy()
        shape = (config.sampled_actions, *a.shape)
        noise = [torch.randn(shape, generator=self.generator).numpy() for _ in range(2)]
        uniform = torch.empty(shape).uniform_(-1, 1, generator=self.generator).numpy()
        fresh = torch.randn((1, *a.shape), generator=self.generator).numpy()[0]
        here, here_density = self.sample(s, noise[0])
        after, after_density = self.sample(next_s, noise[1])
        states, next_states = (np.broadcast_to(x, (len(here), *x.shape)) for x in (s, next_s))
        next_q = np.min([plain.q_value(q, next_states, after) for q in self.targets], 0).max(0)
        y = one["r"] + config.discount * one["goes_on"] * next_q

        def gap(q: plain.Parameters) -> float:
            parts = [plain.q_value(q, states, uniform) - 2 * np.log(0.5)]
            for actions, density in ((here, here_density), (after, after_density)):
                parts.append(np.maximum(plain.q_value(q, states, actions), bound) - density)
            total = np.log(np.exp(np.concatenate(parts)).sum(0))
            gaps = np.maximum(total - plain.q_value(q, s, a), config.smallest_gap)
            return float(gaps.mean())

        multiplier, goal = 1.0, 0.0
        if config.target_gap is not None:
            multiplier, goal = float(np.exp(self.log_multiplier)[0]), config.target_gap

        def critic_loss() -> float:
            squares = sum(np.mean((plain.q_value(q, s, a) - y) ** 2) for q in self.critics)
            conservative = sum(gap(q) - goal for q in self.critics)
            return float(squares + multiplier * config.conservative_weight * conservative)

        excess = config.conservative_weight * sum(gap(q) - goal for q in self.critics)
        temperature = float(np.exp(self.log_temperature)[0])

        def policy_loss() -> float:
            actions, density = self.sample(s, fresh)
            value = np.min([plain.q_value(q, s, actions) for q in self.critics], 0)
            return float(np.mean(temperature * density - value))

        entropy_error = float(np.mean(self.sample(s, fresh)[1])) - 2
        # All of them step from the same networks, so the critics are put back for the policy.
        before = [[one.copy() for one in critic] for critic in self.critics]
        self.critic_optimizer.step(critic_loss)
        stepped = [[one.copy() for one in critic] for critic in self.critics]
        for critic, values in zip(self.critics, before, strict=True):
            for kept, value in zip(critic, values, strict=True):
                kept[...] = value
        self.policy_optimizer.step(policy_loss)
        for critic, values in zip(self.critics, stepped, strict=True):
            for kept, value in zip(critic, values, strict=True):
                kept[...] = value
        self.temperature_optimizer.step(lambda: -float(self.log_temperature[0]) * entropy_error)
        if config.target_gap is not None:
            self.multiplier_optimizer.step(lambda: -float(np.exp(self.log_multiplier)[0]) * excess)
        for target, online in zip(self.targets, self.critics, strict=True):
            plain.move(target, online, config.target_rate)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("settings", [{}, {"target_gap": None, "smallest_gap": 1.5}])
def test_updates_equal_a_plain_implementation(
    scaling: Scaling, make_batch: MakeBatch, settings: dict[str, Any]
) -> None:
    algorithm = CalQL(CalQLConfig(**{**SMALL, **settings}), plain.doubles(scaling), seed=3)
    expected = PlainCalQL(algorithm, 3)
    for index in range(3):
        batch = returned(make_batch(index, rows=6).map(torch.Tensor.double), index)
        algorithm.update(batch)
        expected.update(batch)
    for twin, critic, target in zip(
        ("first", "second"), expected.critics, expected.targets, strict=True
    ):
        plain.check_equal(getattr(algorithm.critic, twin), critic)
        plain.check_equal(getattr(algorithm.target_critic, twin), target)
    plain.check_equal(algorithm.policy, expected.policy)
    assert algorithm.log_temperature.item() == pytest.approx(expected.log_temperature[0])
    assert algorithm.log_multiplier.item() == pytest.approx(expected.log_multiplier[0])


@pytest.mark.usefixtures("in_float64")
def test_parameters_after_100_updates_are_corls() -> None:
    assert plain.difference_from_recorded(CalQL, "calql") < 1e-9


def test_only_the_values_of_the_policys_actions_are_bounded() -> None:
    def gaps(uniform: float, policy: float, bound: float) -> float:
        found = jaxtyped(typechecker=beartype)(calibrated_gaps)(
            torch.full((2, 1, 1), uniform),
            torch.full((2, 1, 2), policy),
            -1.0,
            torch.zeros(1, 2),
            torch.full((2, 1), 0.25),
            torch.tensor([bound]),
            -200.0,
        )
        return float(found[0])

    expected = np.log(np.exp(1.0 + 1.0) + 2 * np.exp(3.0)) - 0.25
    assert gaps(1.0, 3.0, 2.0) == pytest.approx(expected)
    assert gaps(1.0, -5.0, 3.0) == pytest.approx(expected)
    assert gaps(1.0, 3.0, -torch.inf) == pytest.approx(expected)
    assert gaps(-5.0, 3.0, 3.0) == pytest.approx(np.log(np.exp(-4.0) + 2 * np.exp(3.0)) - 0.25)


def test_defaults_are_the_published_ones() -> None:
    # CORL's configs/finetune/cal_ql/antmaze
    assert dataclasses.asdict(CalQLConfig()) == {
        "encoder": "nature",
        "random_shift": 0,
        "hidden": (256, 256, 256),
        "policy_learning_rate": 1e-4,
        "critic_learning_rate": 3e-4,
        "batch_size": 256,
        "discount": 0.99,
        "target_rate": 0.005,
        "conservative_weight": 5.0,
        "sampled_actions": 10,
        "target_gap": 0.8,
        "smallest_gap": -200.0,
    }


@pytest.mark.parametrize(
    ("name", "value"), [("conservative_weight", -0.1), ("sampled_actions", 0), ("discount", 0.0)]
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        CalQLConfig(**{name: value})
