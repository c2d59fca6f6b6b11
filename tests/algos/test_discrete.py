"""The forms of BC, CQL and IQL for discrete actions."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import gymnasium
import numpy as np
import pytest
import torch

from orlog.algos.algorithms import find_algorithm
from orlog.algos.bc_discrete import BCDiscrete, BCDiscreteConfig, cloning_loss
from orlog.algos.cql_discrete import CQLDiscrete, CQLDiscreteConfig, conservative_gap
from orlog.algos.discrete import actions_from_indices, actions_to_indices, chosen_values
from orlog.algos.iql_discrete import IQLDiscrete, IQLDiscreteConfig
from orlog.algos.networks import Scaling
from orlog.algos.settings import complete_config, make_config
from orlog.loaders.batch import StructuredBatch
from tests.algos import plain

ACTIONS = 3
FIRST = 2
SMALL: dict[str, Any] = {"hidden": (5, 4)}


@pytest.fixture
def discrete(scaling: Scaling) -> Scaling:
    """Return the maps of three observations, and three actions counted from 2."""
    none = torch.zeros(0)
    space = gymnasium.spaces.Discrete(ACTIONS, start=FIRST)
    return dataclasses.replace(scaling, action_low=none, action_high=none, action_space=space)


def make_batch(seed: int, rows: int = 16) -> StructuredBatch:
    rng = np.random.default_rng((seed, 2))
    dtype = torch.get_default_dtype()

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=shape)).to(dtype)

    return StructuredBatch(
        observations=normal(rows, 3),
        actions=torch.from_numpy(rng.integers(FIRST, FIRST + ACTIONS, rows)),
        rewards=normal(rows),
        next_observations=normal(rows, 3),
        terminations=torch.from_numpy(rng.random(rows) < 0.3).to(dtype),
        truncations=torch.from_numpy(rng.random(rows) < 0.3).to(dtype),
        discounts=torch.full((rows,), 0.1, dtype=dtype),  # of the loader; the setting counts
    )


def columns(scaling: Scaling, batch: StructuredBatch) -> dict[str, Any]:
    mean, std = scaling.obs_mean.numpy(), scaling.obs_std.numpy()
    assert isinstance(batch.observations, torch.Tensor)
    assert isinstance(batch.next_observations, torch.Tensor)
    return {
        "s": (batch.observations.numpy() - mean) / std,
        "a": batch.actions.numpy() - FIRST,
        "r": batch.rewards.numpy(),
        "next_s": (batch.next_observations.numpy() - mean) / std,
        "goes_on": 1 - batch.terminations.numpy(),
    }


def log_softmax(logits: np.ndarray) -> np.ndarray:
    largest = logits.max(-1, keepdims=True)
    shifted = logits - largest
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return found


def of(values: np.ndarray, actions: np.ndarray) -> np.ndarray:
    picked: np.ndarray = values[np.arange(len(actions)), actions]
    return picked


class PlainBC:
    """The update of BC in NumPy, from its equation."""

    def __init__(self, algorithm: BCDiscrete) -> None:
        self.config = algorithm.config
        self.policy = plain.parameters_of(algorithm.policy)
        self.optimizer = plain.Adam(self.policy, self.config.learning_rate)

    def update(self, one: dict[str, Any]) -> None:
        def loss() -> float:
            log_pi = log_softmax(plain.network(self.policy, one["s"]))
            penalty = self.config.log_penalty * np.mean(log_pi**2)
            return float(-np.mean(of(log_pi, one["a"])) + penalty)

        self.optimizer.step(loss)


class PlainCQL:
    """The update of CQL in NumPy, from its equations."""

    def __init__(self, algorithm: CQLDiscrete) -> None:
        self.config, self.count = algorithm.config, 0
        self.critic = plain.parameters_of(algorithm.critic)
        self.target_critic = plain.parameters_of(algorithm.target_critic)
        self.optimizer = plain.Adam(self.critic, self.config.learning_rate)

    def update(self, one: dict[str, Any]) -> None:
        config = self.config
        best = plain.network(self.critic, one["next_s"]).argmax(-1)
        next_q = of(plain.network(self.target_critic, one["next_s"]), best)
        y = one["r"] + config.discount * one["goes_on"] * next_q

        def loss() -> float:
            q = plain.network(self.critic, one["s"])
            error = np.abs(of(q, one["a"]) - y)
            losses = 0.5 * error**2
            if config.bellman_loss == "huber":
                losses = np.where(error < 1, losses, error - 0.5)
            gap = np.log(np.exp(q).sum(-1)) - of(q, one["a"])
            return float(np.mean(losses) + config.conservative_weight * np.mean(gap))

        self.optimizer.step(loss)
        if self.count % config.target_interval == 0:
            plain.move(self.target_critic, self.critic, 1.0)
        self.count += 1


class PlainIQL:
    """The update of IQL in NumPy, from equations 5 to 7."""

    def __init__(self, algorithm: IQLDiscrete) -> None:
        self.config, self.count = algorithm.config, 0
        self.critics = [plain.parameters_of(one) for one in algorithm.critics]
        self.targets = [plain.parameters_of(one) for one in algorithm.target_critics]
        self.value = plain.parameters_of(algorithm.value)
        self.policy = plain.parameters_of(algorithm.policy)
        rate = self.config.learning_rate
        self.learned = plain.Adam([*self.critics[0], *self.critics[1], *self.value], rate)
        self.policy_optimizer = plain.Adam(self.policy, rate)

    def update(self, one: dict[str, Any]) -> None:
        config, s, a = self.config, one["s"], one["a"]
        target_q = np.min([of(plain.network(q, s), a) for q in self.targets], 0)
        next_v = plain.network(self.value, one["next_s"])[:, 0]
        y = one["r"] + config.discount * one["goes_on"] * next_v
        advantage = target_q - plain.network(self.value, s)[:, 0]
        weights = np.minimum(np.exp(config.inverse_temperature * advantage), config.max_weight)

        def loss() -> float:
            u = target_q - plain.network(self.value, s)[:, 0]
            value_loss = np.mean(np.abs(config.expectile - (u < 0)) * u**2)
            errors = [of(plain.network(q, s), a) - y for q in self.critics]
            return float(value_loss + sum(np.mean(error**2) for error in errors))

        def policy_loss() -> float:
            log_pi = log_softmax(plain.network(self.policy, s))
            return float(-np.mean(weights * of(log_pi, a)))

        self.learned.step(loss)
        progress = self.count / config.steps
        self.policy_optimizer.rate = config.learning_rate * (1 + math.cos(math.pi * progress)) / 2
        self.policy_optimizer.step(policy_loss)
        for target, online in zip(self.targets, self.critics, strict=True):
            plain.move(target, online, config.target_rate)
        self.count += 1


@pytest.mark.usefixtures("in_float64")
def test_updates_of_bc_equal_a_plain_implementation(discrete: Scaling) -> None:
    config = BCDiscreteConfig(**SMALL, log_penalty=0.2)
    algorithm = BCDiscrete(config, plain.doubles(discrete), seed=3)
    expected = PlainBC(algorithm)
    for index in range(4):
        algorithm.update(make_batch(index))
        expected.update(columns(algorithm.scaling, make_batch(index)))
    plain.check_equal(algorithm.policy, expected.policy)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(("weight", "loss"), [(0.0, "square"), (2.0, "square"), (2.0, "huber")])
def test_updates_of_cql_equal_a_plain_implementation(
    discrete: Scaling, weight: float, loss: Literal["square", "huber"]
) -> None:
    config = CQLDiscreteConfig(
        **SMALL,
        learning_rate=0.01,
        target_interval=3,
        conservative_weight=weight,
        bellman_loss=loss,
    )
    algorithm = CQLDiscrete(config, plain.doubles(discrete), seed=3)
    expected = PlainCQL(algorithm)
    for index in range(5):
        algorithm.update(make_batch(index))
        expected.update(columns(algorithm.scaling, make_batch(index)))
    plain.check_equal(algorithm.critic, expected.critic)
    plain.check_equal(algorithm.target_critic, expected.target_critic)
    assert not any(one.requires_grad for one in algorithm.target_critic.parameters())


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("max_weight", [100.0, 1.1])
def test_updates_of_iql_equal_a_plain_implementation(discrete: Scaling, max_weight: float) -> None:
    config = IQLDiscreteConfig(**SMALL, target_rate=0.1, steps=6, max_weight=max_weight)
    algorithm = IQLDiscrete(config, plain.doubles(discrete), seed=3)
    expected = PlainIQL(algorithm)
    for index in range(4):
        algorithm.update(make_batch(index))
        expected.update(columns(algorithm.scaling, make_batch(index)))
    for place in range(2):
        plain.check_equal(algorithm.critics[place], expected.critics[place])
        plain.check_equal(algorithm.target_critics[place], expected.targets[place])
    plain.check_equal(algorithm.value, expected.value)
    plain.check_equal(algorithm.policy, expected.policy)


@pytest.mark.usefixtures("in_float64")
def test_parameters_after_100_updates_are_d3rlpys() -> None:
    assert plain.difference_from_recorded(BCDiscrete, "bc_discrete") < 1e-12
    assert plain.difference_from_recorded(CQLDiscrete, "cql_discrete") < 1e-12


@pytest.mark.usefixtures("in_float64")
def test_convolutions_on_frames_are_d3rlpys() -> None:
    assert plain.difference_with_frames() < 1e-12


def test_losses_of_one_state() -> None:
    log_pi = torch.log(torch.tensor([[0.5, 0.25, 0.25]]))
    found = cloning_loss(log_pi, torch.tensor([1]), 0.3)
    squares = (math.log(2) ** 2 + 2 * math.log(4) ** 2) / 3
    assert found.item() == pytest.approx(math.log(4) + 0.3 * squares)
    gap = conservative_gap(torch.zeros(2, 4), torch.tensor([0.0, 1.0]))
    assert gap.item() == pytest.approx(math.log(4) - 0.5)


def test_actions_are_counted_from_the_first_of_the_space(discrete: Scaling) -> None:
    actions = torch.tensor([2, 4, 3])
    indices = actions_to_indices(discrete, actions)
    assert indices.tolist() == [0, 2, 1]
    assert torch.equal(actions_from_indices(discrete, indices), actions)
    values = torch.arange(18.0).reshape(2, 3, 3)
    assert chosen_values(values, indices).tolist() == [[0, 5, 7], [9, 14, 16]]


@pytest.mark.parametrize("kind", [BCDiscrete, CQLDiscrete, IQLDiscrete])
def test_actions_are_those_of_the_space(discrete: Scaling, kind: type[Any]) -> None:
    algorithm = kind(kind.CONFIG(**SMALL), discrete, seed=0)
    actions = algorithm.act(torch.randn(64, 3, generator=torch.Generator().manual_seed(0)) * 9)
    assert actions.dtype == torch.int64
    assert set(actions.tolist()) <= {2, 3, 4}
    assert len(set(actions.tolist())) > 1


@pytest.mark.parametrize("name", ["bc", "cql", "iql"])
def test_values_of_the_data_decide(discrete: Scaling, name: str) -> None:
    """One step: of three actions, the second is the commonest and the third is rewarded."""
    kind = find_algorithm(name, action_space=discrete.action_space)
    fast = {"hidden": [16], "learning_rate": 1e-2, "batch_size": 64}
    if name == "iql":
        fast |= {"expectile": 0.9, "inverse_temperature": 10.0, "target_rate": 0.1}
    algorithm = kind(make_config(kind, fast), discrete, seed=0)
    rng = np.random.default_rng(0)
    for _ in range(80):
        actions = torch.from_numpy(rng.choice(3, 64, p=[0.2, 0.5, 0.3]))
        batch = dataclasses.replace(
            make_batch(int(rng.integers(1000)), 64),
            actions=actions + FIRST,
            rewards=(actions == 2).float(),
            terminations=torch.ones(64),
        )
        algorithm.update(batch)
    chosen = algorithm.act(torch.randn(200, 3, generator=torch.Generator().manual_seed(1)))
    share = (chosen == FIRST + (1 if name == "bc" else 2)).float().mean()
    assert share > 0.9


def one_state_values(config: CQLDiscreteConfig, scaling: Scaling) -> list[float]:
    """Return what it learns in one state: actions with other rewards and chances of a termination."""
    rewards, chances = torch.tensor([1.5, 0.9]), torch.tensor([0.3, 0.02])
    algorithm, drawn = CQLDiscrete(config, scaling, seed=0), torch.Generator().manual_seed(0)
    here, rows = torch.ones(config.batch_size, 3), config.batch_size
    for _ in range(600):
        actions = torch.randint(2, (rows,), generator=drawn)
        ended = torch.rand(rows, generator=drawn) < chances[actions]
        algorithm.update(
            StructuredBatch(
                observations=here,
                actions=actions,
                rewards=rewards[actions],
                next_observations=here,
                terminations=ended.float(),
                truncations=torch.zeros(rows),
                discounts=torch.ones(rows),
            )
        )
    values: list[float] = algorithm.critic(algorithm.encoder(here[:1]))[0].tolist()
    return values


def test_cql_learns_what_terminations_cost(scaling: Scaling) -> None:
    none = torch.zeros(0)
    two = dataclasses.replace(
        scaling, action_low=none, action_high=none, action_space=gymnasium.spaces.Discrete(2)
    )
    fast: dict[str, Any] = {"hidden": (16,), "learning_rate": 0.03, "batch_size": 256}
    weightless = CQLDiscreteConfig(**fast, target_interval=5, conservative_weight=0.0)
    # The second action is worth 0.9 / (1 - 0.99 * 0.98), and the first 1.5 + 0.99 * 0.7 times that.
    best = 0.9 / (1 - 0.99 * 0.98)
    found = one_state_values(weightless, two)
    assert found == pytest.approx([1.5 + 0.99 * 0.7 * best, best], rel=0.05)
    first, second = one_state_values(CQLDiscreteConfig(**fast, target_interval=5), two)
    assert first < second < best
    first, second = one_state_values(dataclasses.replace(weightless, bellman_loss="huber"), two)
    assert second > 1.5 * best  # as if there were no terminations


def test_records_of_cql_that_name_no_loss_had_hubers() -> None:
    recorded = {"hidden": [64], "target_interval": 100}
    assert complete_config("cql", recorded)["bellman_loss"] == "huber"
    named = {**recorded, "bellman_loss": "square"}
    assert complete_config("cql", named)["bellman_loss"] == "square"


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (BCDiscreteConfig, {"log_penalty": -1}, "log_penalty must be >= 0, found -1"),
        (CQLDiscreteConfig, {"conservative_weight": -1}, "conservative_weight must be >= 0"),
        (CQLDiscreteConfig, {"target_interval": 0}, "target_interval must be >= 1, found 0"),
        (IQLDiscreteConfig, {"expectile": 1}, r"expectile must lie in \(0, 1\), found 1"),
        (IQLDiscreteConfig, {"random_shift": -1}, "random_shift must be >= 0, found -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    kind: type[Any], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**settings)


def test_an_unknown_encoder_is_refused_with_those_that_there_are() -> None:
    kind = find_algorithm("cql", action_space=gymnasium.spaces.Discrete(2))
    with pytest.raises(ValueError, match="cql: encoder must be nature or impala, found 'resnet'"):
        make_config(kind, {"encoder": "resnet"})
