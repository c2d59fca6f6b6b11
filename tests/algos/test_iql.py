from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from beartype import beartype
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import jaxtyped
from scipy import optimize, stats
from torch import nn

from orlog.algos.iql import IQL, IQLConfig, expectile_loss, policy_loss
from orlog.algos.networks import Scaling
from orlog.loaders.batch import Batch
from tests.algos import plain

MakeBatch: TypeAlias = Callable[..., Batch]
SMALL: dict[str, Any] = {"hidden": (16, 16), "learning_rate": 1e-3, "target_rate": 0.1}


def parameters(network: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in network.parameters()])


def test_expectile_loss_weighs_the_two_sides() -> None:
    loss = jaxtyped(typechecker=beartype)(expectile_loss)
    advantages = torch.tensor([2.0, -1.0, 0.0, -3.0])
    expected = (0.7 * 4 + 0.3 * 1 + 0 + 0.3 * 9) / 4
    assert loss(advantages, 0.7).item() == pytest.approx(expected)


@settings(deadline=None)
@given(expectile=st.floats(0.05, 0.95))
def test_the_value_of_least_loss_is_the_expectile(expectile: float) -> None:
    sample = np.random.default_rng(0).gamma(2, size=40)

    def loss(value: float) -> float:
        return expectile_loss(torch.from_numpy(sample - value), expectile).item()

    best = optimize.minimize_scalar(loss, bounds=(0, 10), method="bounded").x
    assert best == pytest.approx(stats.expectile(sample, expectile), abs=1e-3)


def test_policy_loss_weighs_by_the_clipped_exponential() -> None:
    log_likelihoods = torch.tensor([-1.0, -2.0, 3.0, -0.5])
    advantages = torch.tensor([0.0, 1000.0, math.log(2) / 3, -math.log(2) / 3])
    found = policy_loss(log_likelihoods, advantages, 3.0, 100.0)
    assert found.item() == pytest.approx(-(1 * -1 + 100 * -2 + 2 * 3 + 0.5 * -0.5) / 4)


class PlainIQL:
    """The update with four separate optimizers, in CORL's order."""

    def __init__(self, algorithm: IQL) -> None:
        self.config, self.scaling = algorithm.config, algorithm.scaling
        self.q1 = copy.deepcopy(algorithm.critic.first)
        self.q2 = copy.deepcopy(algorithm.critic.second)
        self.target1, self.target2 = copy.deepcopy(self.q1), copy.deepcopy(self.q2)
        self.value = copy.deepcopy(algorithm.value)
        self.policy = copy.deepcopy(algorithm.policy)
        self.log_std = nn.Parameter(algorithm.log_std.detach().clone())
        lr = self.config.learning_rate
        self.value_optimizer = torch.optim.Adam(self.value.parameters(), lr=lr)
        self.q_optimizer = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters()], lr=lr)
        self.policy_optimizer = torch.optim.Adam([*self.policy.parameters(), self.log_std], lr=lr)
        assert self.config.steps is not None
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.policy_optimizer, self.config.steps
        )

    def update(self, batch: Batch) -> None:
        config, scaling = self.config, self.scaling
        s = (batch.observations - scaling.obs_mean) / scaling.obs_std
        next_s = (batch.next_observations - scaling.obs_mean) / scaling.obs_std
        width = scaling.action_high - scaling.action_low
        a = 2 * (batch.actions - scaling.action_low) / width - 1
        sa = torch.cat([s, a], 1)

        with torch.no_grad():
            next_v = self.value(next_s)[:, 0]
            target_q = torch.minimum(self.target1(sa), self.target2(sa))[:, 0]
        advantage = target_q - self.value(s)[:, 0]
        value_loss = torch.mean(
            torch.abs(config.expectile - (advantage < 0).float()) * advantage**2
        )
        self.value_optimizer.zero_grad()
        value_loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.value_optimizer.step()

        targets = batch.rewards + (1 - batch.terminations) * config.discount * next_v
        q_loss = nn.functional.mse_loss(self.q1(sa)[:, 0], targets) + nn.functional.mse_loss(
            self.q2(sa)[:, 0], targets
        )
        self.q_optimizer.zero_grad()
        q_loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.q_optimizer.step()
        for target, online in ((self.target1, self.q1), (self.target2, self.q2)):
            for old, new in zip(target.parameters(), online.parameters(), strict=True):
                old.data.copy_((1 - config.target_rate) * old.data + config.target_rate * new.data)

        weights = torch.exp(config.inverse_temperature * advantage.detach())
        weights = torch.minimum(weights, torch.tensor(config.max_weight))
        normal = torch.distributions.Normal(torch.tanh(self.policy(s)), self.log_std.exp())
        log_likelihoods = normal.log_prob(a).sum(1)  # type: ignore[no-untyped-call]  # as above
        policy_loss = torch.mean(weights * -log_likelihoods)
        self.policy_optimizer.zero_grad()
        policy_loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.policy_optimizer.step()
        self.schedule.step()


@pytest.mark.parametrize(
    "settings", [{}, {"inverse_temperature": 30.0, "max_weight": 3.0, "expectile": 0.9}]
)
def test_updates_equal_a_plain_implementation(
    scaling: Scaling, make_batch: MakeBatch, settings: dict[str, Any]
) -> None:
    algorithm = IQL(IQLConfig(**{**SMALL, "steps": 6, **settings}), scaling, seed=0)
    plain = PlainIQL(algorithm)
    for index in range(4):
        batch = make_batch(index)
        algorithm.update(batch)
        plain.update(batch)
    for found, expected in [
        (algorithm.critic.first, plain.q1),
        (algorithm.critic.second, plain.q2),
        (algorithm.target_critic.first, plain.target1),
        (algorithm.target_critic.second, plain.target2),
        (algorithm.value, plain.value),
        (algorithm.policy, plain.policy),
    ]:
        torch.testing.assert_close(parameters(found), parameters(expected), rtol=0, atol=1e-5)
    torch.testing.assert_close(algorithm.log_std, plain.log_std, rtol=0, atol=1e-5)


def test_metrics_are_those_of_the_networks_before_the_step(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    algorithm = IQL(IQLConfig(**SMALL), scaling, seed=0)
    batch = make_batch(0)
    s = scaling.observations(batch.observations)
    with torch.no_grad():
        values = algorithm.value(s).mean().item()
        q_values = algorithm.critic(s, scaling.actions_to_unit(batch.actions)).mean().item()
    metrics = algorithm.update(batch)
    assert metrics["value/mean"].item() == pytest.approx(values, rel=1e-5)
    assert metrics["critic/mean"].item() == pytest.approx(q_values, rel=1e-5)
    assert not any(value.requires_grad for value in metrics.values())


def test_targets_get_no_gradient_and_follow_by_polyak(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    algorithm = IQL(IQLConfig(**SMALL), scaling, seed=0)
    algorithm.update(make_batch(0))
    before = parameters(algorithm.target_critic)
    algorithm.update(make_batch(1))
    expected = 0.9 * before + 0.1 * parameters(algorithm.critic)
    torch.testing.assert_close(parameters(algorithm.target_critic), expected)
    for value in algorithm.target_critic.parameters():
        assert not value.requires_grad
        assert value.grad is None
    trained = {id(p) for group in algorithm.optimizer.param_groups for p in group["params"]}
    assert trained.isdisjoint(id(value) for value in algorithm.target_critic.parameters())


def after(scaling: Scaling, batch: Batch, steps: int, **settings: Any) -> IQL:
    algorithm = IQL(IQLConfig(**{**SMALL, **settings}), scaling, seed=0)
    for _ in range(steps):
        algorithm.update(batch)
    return algorithm


def test_the_policys_loss_moves_neither_values_nor_critics(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    batch = make_batch(0)
    one = after(scaling, batch, 3, inverse_temperature=3.0)
    other = after(scaling, batch, 3, inverse_temperature=0.0)
    assert torch.equal(parameters(one.critic), parameters(other.critic))
    assert torch.equal(parameters(one.value), parameters(other.value))
    assert not torch.equal(parameters(one.policy), parameters(other.policy))


def test_the_value_loss_moves_no_critic(scaling: Scaling, make_batch: MakeBatch) -> None:
    batch = make_batch(0)
    one = after(scaling, batch, 1, expectile=0.9)
    other = after(scaling, batch, 1, expectile=0.1)
    assert torch.equal(parameters(one.critic), parameters(other.critic))
    assert torch.equal(parameters(one.policy), parameters(other.policy))
    assert not torch.equal(parameters(one.value), parameters(other.value))


def test_the_critics_loss_moves_no_value(scaling: Scaling, make_batch: MakeBatch) -> None:
    batch = make_batch(0)
    one = after(scaling, batch, 1, discount=0.9)
    other = after(scaling, batch, 1, discount=0.5)
    assert torch.equal(parameters(one.value), parameters(other.value))
    assert not torch.equal(parameters(one.critic), parameters(other.critic))


def test_what_follows_a_termination_does_not_matter(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    batch = make_batch(0, terminations=torch.ones(32), truncations=torch.zeros(32))
    other = dataclasses.replace(batch, next_observations=batch.next_observations * -3 + 1)
    one, two = after(scaling, batch, 3), after(scaling, other, 3)
    assert torch.equal(parameters(one.critic), parameters(two.critic))
    assert torch.equal(parameters(one.value), parameters(two.value))
    assert torch.equal(parameters(one.policy), parameters(two.policy))


def test_a_truncated_step_still_bootstraps(scaling: Scaling, make_batch: MakeBatch) -> None:
    batch = make_batch(0, terminations=torch.zeros(32), truncations=torch.ones(32))
    other = dataclasses.replace(batch, next_observations=batch.next_observations * -3 + 1)
    uncut = dataclasses.replace(batch, truncations=torch.zeros(32))
    one, two, three = (after(scaling, which, 1) for which in (batch, other, uncut))
    assert not torch.equal(parameters(one.critic), parameters(two.critic))
    assert torch.equal(parameters(one.critic), parameters(three.critic))


def test_the_policys_rate_falls_along_a_cosine_to_zero(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    algorithm = IQL(IQLConfig(**{**SMALL, "steps": 4}), scaling, seed=0)
    rates = []
    for index in range(4):
        algorithm.update(make_batch(index))
        rates.append(algorithm.optimizer.param_groups[1]["lr"])
    half = math.sqrt(0.5)
    assert rates == pytest.approx([1e-3, 5e-4 * (1 + half), 5e-4, 5e-4 * (1 - half)])
    policy, critic = parameters(algorithm.policy), parameters(algorithm.critic)
    for index in range(3):  # and past the end it stays there
        algorithm.update(make_batch(10 + index))
    assert torch.equal(parameters(algorithm.policy), policy)
    assert not torch.equal(parameters(algorithm.critic), critic)
    assert algorithm.optimizer.param_groups[0]["lr"] == 1e-3


@pytest.mark.usefixtures("in_float64")
def test_parameters_after_100_updates_are_corls() -> None:
    # CORL computes the weights of the value loss in float32.
    assert plain.difference_from_recorded(IQL, "iql") < 1e-8


def test_defaults_are_the_published_ones() -> None:
    # IQL / official, ikostrikov/implicit_q_learning@09d7002481, common and locomotion
    assert dataclasses.asdict(IQLConfig()) == {
        "encoder": "nature",
        "random_shift": 0,
        "hidden": (256, 256),
        "learning_rate": 3e-4,
        "batch_size": 256,
        "discount": 0.99,
        "target_rate": 0.005,
        "expectile": 0.7,
        "inverse_temperature": 3.0,
        "max_weight": 100.0,
        "steps": 1_000_000,
    }


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("expectile", [0.0, 1.0, -0.1, math.nan]),
        ("discount", [0.0, 1.01, math.nan]),
        ("target_rate", [0.0, 1.01, math.nan]),
        ("inverse_temperature", [-0.1]),
        ("max_weight", [0.0]),
        ("learning_rate", [0.0, -1.0]),
        ("batch_size", [0]),
        ("steps", [0]),
        ("hidden", [()]),
    ],
)
def test_settings_out_of_range_are_refused(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=name):
            IQLConfig(**{name: value})
