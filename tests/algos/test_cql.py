from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import nn

from orlog.algos.cql import CQL, CQLConfig, conservative_gaps
from orlog.algos.gaussians import squashed_samples
from orlog.algos.networks import Scaling, make_generator
from orlog.loaders.batch import Batch
from tests.algos import plain

MakeBatch: TypeAlias = Callable[..., Batch]
SMALL: dict[str, Any] = {
    "cloning_steps": 0,
    "hidden": (16, 16),
    "policy_learning_rate": 1e-3,
    "critic_learning_rate": 2e-3,
    "target_rate": 0.1,
    "sampled_actions": 3,
}


def parameters(network: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in network.parameters()])


def test_gaps_are_a_weighted_log_sum_minus_the_datas_value() -> None:
    rng = np.random.default_rng(0)
    sampled, densities, data = (
        rng.normal(size=(2, 4, 5)),
        rng.normal(size=(4, 5)),
        rng.normal(size=(2, 4)),
    )
    expected = (np.log((np.exp(sampled) / np.exp(densities)).sum(2)) - data).mean(1)
    found = conservative_gaps(*map(torch.from_numpy, (sampled, densities, data)))
    np.testing.assert_allclose(found.numpy(), expected)


def test_gaps_do_not_overflow() -> None:
    found = conservative_gaps(
        torch.tensor([[[1000.0, 0.0]], [[-1000.0, -1000.0]]]), torch.zeros(1, 2), torch.zeros(2, 1)
    )
    torch.testing.assert_close(found, torch.tensor([1000.0, -1000 + math.log(2)]))


def test_the_log_integral_over_actions_is_estimated_without_bias() -> None:
    def q(action: Any) -> Any:
        return 2 * np.sin(4 * action) + action

    exact = math.log(integrate.quad(lambda action: math.exp(q(action)), -1, 1)[0])
    rng = np.random.default_rng(0)
    count = 100_000
    uniform = torch.from_numpy(rng.uniform(-1, 1, count))
    noise = torch.from_numpy(rng.normal(size=(count, 1, 1)))
    # Wide enough that the weights have a bounded variance near -1 and 1.
    squashed, log_density = squashed_samples(
        torch.tensor([[0.3]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64), noise
    )
    actions = torch.cat([uniform, squashed[:, 0, 0]])
    densities = torch.cat([torch.full((count,), -math.log(2)), log_density[:, 0]])
    values = torch.from_numpy(q(actions.numpy()))
    (gap, _) = conservative_gaps(
        values.expand(2, 1, -1), densities[None], torch.tensor([[0.25], [0.0]])
    ).tolist()
    # The estimate is a sum over samples: the mean is log(samples) less.
    assert gap - math.log(2 * count) + 0.25 == pytest.approx(exact, abs=0.01)


class PlainCQL:
    """The update with separate optimizers, in CORL's order; noise is drawn as the module says."""

    def __init__(self, algorithm: CQL, seed: int) -> None:
        self.config, self.scaling = algorithm.config, algorithm.scaling
        self.generator = make_generator(seed, 1)
        self.q1 = copy.deepcopy(algorithm.critic.first)
        self.q2 = copy.deepcopy(algorithm.critic.second)
        self.target1, self.target2 = copy.deepcopy(self.q1), copy.deepcopy(self.q2)
        self.policy = copy.deepcopy(algorithm.policy)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.log_multiplier = nn.Parameter(torch.zeros(()))
        fast, slow = self.config.critic_learning_rate, self.config.policy_learning_rate
        self.q_optimizer = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters()], lr=fast)
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters(), lr=slow)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=slow)
        self.multiplier_optimizer = torch.optim.Adam([self.log_multiplier], lr=fast)
        self.step = 0

    def normal(self, s: torch.Tensor) -> torch.distributions.Normal:
        mean, log_std = self.policy(s)[:, :2], self.policy(s)[:, 2:]
        return torch.distributions.Normal(mean, torch.clamp(log_std - 1, -20, 2).exp())

    def log_density(self, normal: torch.distributions.Normal, raw: torch.Tensor) -> torch.Tensor:
        log_prob: torch.Tensor = normal.log_prob(raw)  # type: ignore[no-untyped-call]  # torch
        return (log_prob - torch.log(1 - torch.tanh(raw) ** 2)).sum(-1)

    def update(self, batch: Batch) -> None:
        config, scaling, count = self.config, self.scaling, self.config.sampled_actions
        rows = len(batch.rewards)
        s = (batch.observations - scaling.obs_mean) / scaling.obs_std
        next_s = (batch.next_observations - scaling.obs_mean) / scaling.obs_std
        width = scaling.action_high - scaling.action_low
        a = 2 * (batch.actions - scaling.action_low) / width - 1
        noise_here = torch.randn(count, rows, 2, generator=self.generator)
        noise_there = torch.randn(count, rows, 2, generator=self.generator)
        uniform = torch.empty(count, rows, 2).uniform_(-1, 1, generator=self.generator)
        fresh = torch.randn(rows, 2, generator=self.generator)

        # policy and temperature, with the critics as they are
        here = self.normal(s)
        raw = here.mean + here.stddev * fresh
        log_pi = self.log_density(here, raw)
        alpha = self.log_alpha.exp().detach()
        alpha_loss = -(self.log_alpha * (log_pi.detach() - 2)).mean()
        if self.step < config.cloning_steps:
            policy_loss = (alpha * log_pi - self.log_density(here, torch.atanh(a))).mean()
        else:
            pair = torch.cat([s, torch.tanh(raw)], 1)
            q_pi = torch.minimum(self.q1(pair), self.q2(pair))[:, 0]
            policy_loss = (alpha * log_pi - q_pi).mean()

        with torch.no_grad():
            there = self.normal(next_s)
            raw_here = here.mean + here.stddev * noise_here
            raw_there = there.mean + there.stddev * noise_there
            pair = torch.cat([next_s, torch.tanh(raw_there[0])], 1)
            next_q = torch.minimum(self.target1(pair), self.target2(pair))[:, 0]
            targets = batch.rewards + (1 - batch.terminations) * config.discount * next_q
            proposals = [
                (uniform, torch.full((count, rows), math.log(0.5**2))),
                (torch.tanh(raw_there), self.log_density(there, raw_there)),
                (torch.tanh(raw_here), self.log_density(here, raw_here)),
            ]
        q_loss = torch.zeros(())
        multiplier_loss = torch.zeros(())
        for q in (self.q1, self.q2):
            data_q = q(torch.cat([s, a], 1))[:, 0]
            q_loss = q_loss + nn.functional.mse_loss(data_q, targets)
            parts = [
                q(torch.cat([s.expand(count, -1, -1), actions], 2))[..., 0] - log_density
                for actions, log_density in proposals
            ]
            gap = (torch.logsumexp(torch.cat(parts), 0) - data_q).mean()
            if config.target_gap is None:
                q_loss = q_loss + config.conservative_weight * gap
            else:
                multiplier = torch.clamp(self.log_multiplier.exp(), max=1e6)
                excess = config.conservative_weight * (gap - config.target_gap)
                q_loss = q_loss + multiplier.detach() * excess
                multiplier_loss = multiplier_loss - 0.5 * multiplier * excess.detach()

        for optimizer, loss in [
            (self.policy_optimizer, policy_loss),
            (self.alpha_optimizer, alpha_loss),
            (self.multiplier_optimizer, multiplier_loss),
            (self.q_optimizer, q_loss),
        ]:
            if loss.requires_grad:
                self.q_optimizer.zero_grad()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
                optimizer.step()
        for target, online in ((self.target1, self.q1), (self.target2, self.q2)):
            for old, new in zip(target.parameters(), online.parameters(), strict=True):
                old.data.copy_((1 - config.target_rate) * old.data + config.target_rate * new.data)
        self.step += 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"conservative_weight": 0.0},
        {"target_gap": 5.0, "conservative_weight": 2.0},
        {"cloning_steps": 2, "sampled_actions": 1},
    ],
)
def test_updates_equal_a_plain_implementation(
    scaling: Scaling, make_batch: MakeBatch, settings: dict[str, Any]
) -> None:
    algorithm = CQL(CQLConfig(**{**SMALL, **settings}), scaling, seed=3)
    plain = PlainCQL(algorithm, 3)
    for index in range(3):
        batch = make_batch(index)
        algorithm.update(batch)
        plain.update(batch)
    for found, expected in [
        (algorithm.critic.first, plain.q1),
        (algorithm.critic.second, plain.q2),
        (algorithm.target_critic.first, plain.target1),
        (algorithm.target_critic.second, plain.target2),
        (algorithm.policy, plain.policy),
    ]:
        torch.testing.assert_close(parameters(found), parameters(expected), rtol=0, atol=1e-5)
    for one, other in [
        (algorithm.log_temperature, plain.log_alpha),
        (algorithm.log_multiplier, plain.log_multiplier),
    ]:
        torch.testing.assert_close(one.detach(), other.detach(), rtol=0, atol=1e-5)


def after(scaling: Scaling, batch: Batch, steps: int, **settings: Any) -> CQL:
    algorithm = CQL(CQLConfig(**{**SMALL, **settings}), scaling, seed=0)
    for _ in range(steps):
        algorithm.update(batch)
    return algorithm


def test_targets_get_no_gradient_and_follow_by_polyak(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    algorithm = after(scaling, make_batch(0), 1)
    before = parameters(algorithm.target_critic)
    algorithm.update(make_batch(1))
    expected = 0.9 * before + 0.1 * parameters(algorithm.critic)
    torch.testing.assert_close(parameters(algorithm.target_critic), expected)
    for value in algorithm.target_critic.parameters():
        assert not value.requires_grad
        assert value.grad is None
    for value in algorithm.critic.parameters():
        assert value.requires_grad


def test_the_policys_loss_moves_no_critic(scaling: Scaling, make_batch: MakeBatch) -> None:
    batch = make_batch(0)
    one = after(scaling, batch, 1, cloning_steps=0)
    other = after(scaling, batch, 1, cloning_steps=1)
    assert torch.equal(parameters(one.critic), parameters(other.critic))
    assert not torch.equal(parameters(one.policy), parameters(other.policy))


def test_the_critics_losses_move_no_policy(scaling: Scaling, make_batch: MakeBatch) -> None:
    batch = make_batch(0)
    one = after(scaling, batch, 1, conservative_weight=0.0)
    other = after(scaling, batch, 1, conservative_weight=9.0, discount=0.5)
    assert torch.equal(parameters(one.policy), parameters(other.policy))
    assert torch.equal(one.log_temperature, other.log_temperature)
    assert not torch.equal(parameters(one.critic), parameters(other.critic))


def test_what_follows_a_termination_does_not_matter(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    # Next states also propose actions to the conservative term, so that is left out here.
    batch = make_batch(0, terminations=torch.ones(32), truncations=torch.zeros(32))
    other = dataclasses.replace(batch, next_observations=batch.next_observations * -3 + 1)
    one = after(scaling, batch, 3, conservative_weight=0.0)
    two = after(scaling, other, 3, conservative_weight=0.0)
    torch.testing.assert_close(parameters(one.critic), parameters(two.critic), rtol=0, atol=1e-6)
    torch.testing.assert_close(parameters(one.policy), parameters(two.policy), rtol=0, atol=1e-6)


def test_a_truncated_step_still_bootstraps(scaling: Scaling, make_batch: MakeBatch) -> None:
    batch = make_batch(0, terminations=torch.zeros(32), truncations=torch.ones(32))
    other = dataclasses.replace(batch, next_observations=batch.next_observations * -3 + 1)
    uncut = dataclasses.replace(batch, truncations=torch.zeros(32))
    one, two, three = (
        after(scaling, which, 1, conservative_weight=0.0) for which in (batch, other, uncut)
    )
    assert not torch.allclose(parameters(one.critic), parameters(two.critic), atol=1e-4)
    assert torch.equal(parameters(one.critic), parameters(three.critic))


@pytest.mark.parametrize(("log_std", "direction"), [(-6.0, 1), (1.0, -1)])
def test_the_temperature_rises_where_entropy_is_below_its_target(
    scaling: Scaling, make_batch: MakeBatch, log_std: float, direction: int
) -> None:
    algorithm = CQL(CQLConfig(**SMALL), scaling, seed=0)
    last = list(algorithm.policy.parameters())
    with torch.no_grad():
        last[-2].zero_()
        last[-1].copy_(torch.tensor([0.0, 0.0, log_std + 1, log_std + 1]))
    metrics = algorithm.update(make_batch(0))
    assert (metrics["policy/entropy"].item() < -2) == (direction > 0)
    # Adam's first step is the rate itself.
    assert algorithm.log_temperature.item() == pytest.approx(direction * 1e-3, rel=1e-3)


@pytest.mark.parametrize(("target_gap", "direction"), [(-100.0, 1), (100.0, -1)])
def test_the_multiplier_rises_where_the_gap_is_above_its_target(
    scaling: Scaling, make_batch: MakeBatch, target_gap: float, direction: int
) -> None:
    algorithm = after(scaling, make_batch(0), 1, target_gap=target_gap)
    assert algorithm.log_multiplier.item() == pytest.approx(direction * 2e-3, rel=1e-3)


def test_without_a_target_gap_the_multiplier_stays(scaling: Scaling, make_batch: MakeBatch) -> None:
    algorithm = after(scaling, make_batch(0), 3)
    assert algorithm.log_multiplier.item() == 0
    assert algorithm.log_multiplier.grad is None


def test_the_conservative_term_lowers_values_off_the_data(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    batch = make_batch(0)
    gaps = []
    for weight in (0.0, 5.0):
        settings = {"conservative_weight": weight, "critic_learning_rate": 1e-2}
        algorithm = after(scaling, batch, 100, **settings)
        gaps.append(algorithm.update(batch)["critic/gap"].item())
    assert gaps[1] < gaps[0] - 1


def test_actions_are_the_tanh_of_the_mean_in_the_environments_unit(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    algorithm = CQL(CQLConfig(**SMALL), scaling, seed=0)
    batch = make_batch(0)
    state = algorithm.generator.get_state()
    unit = torch.tanh(algorithm.policy(scaling.observations(batch.observations))[:, :2])
    expected = scaling.actions_from_unit(unit).detach()
    torch.testing.assert_close(algorithm.act(batch.observations), expected)
    assert torch.equal(algorithm.generator.get_state(), state)


@pytest.mark.usefixtures("in_float64")
def test_parameters_after_100_updates_are_corls() -> None:
    assert plain.difference_from_recorded(CQL, "cql") < 1e-9


def test_defaults_are_the_published_ones() -> None:
    # CQL / official d4rl (mujoco), aviralkumar2907/CQL@d67dbe9cf5: 3x256, version 3, no Lagrange,
    # policy_eval_start 40,000
    assert dataclasses.asdict(CQLConfig()) == {
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
        "target_gap": None,
        "cloning_steps": 40_000,
    }


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("discount", [0.0, 1.01, math.nan]),
        ("target_rate", [0.0, 1.01, math.nan]),
        ("conservative_weight", [-0.1]),
        ("sampled_actions", [0]),
        ("cloning_steps", [-1]),
        ("batch_size", [0]),
        ("hidden", [()]),
    ],
)
def test_settings_out_of_range_are_refused(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=name):
            CQLConfig(**{name: value})


@pytest.mark.parametrize("name", ["policy_learning_rate", "critic_learning_rate"])
def test_rates_that_are_not_positive_are_refused(name: str) -> None:
    for value in (0.0, -1.0):
        with pytest.raises(ValueError, match=name):
            CQLConfig(**{name: value})  # type: ignore[arg-type]  # the name is not a literal
