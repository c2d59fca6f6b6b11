"""GCBC, GCIVL and GCIQL against float64 NumPy, against OGBench's code, and on a tiny problem."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from orlog.algos.gcbc import GCBC, GCBCConfig
from orlog.algos.gciql import GCIQL, GCIQLConfig
from orlog.algos.gcivl import GCIVL, GCIVLConfig
from orlog.algos.networks import Scaling
from orlog.loaders.arrays.arrays import Arrays
from orlog.loaders.batch import StateGoalBatch
from orlog.loaders.states_and_goals import states_and_goals
from orlog.manifests.published_settings import published_file
from tests.algos import plain

# Adam divides by gradients, and some of these are near 0: a step is 2e-3, and was 2e-6 apart.
TOLERANCE = 1e-5
SMALL: dict[str, Any] = {"hidden": (5, 4), "learning_rate": 2e-3}


@pytest.fixture
def scaling(scaling: Scaling) -> Scaling:
    """Return maps of three observations, two actions and goals of two numbers, in float64."""
    with_goals = dataclasses.replace(
        scaling, goal_mean=torch.tensor([0.5, 2.0]), goal_std=torch.tensor([3.0, 0.7])
    )
    changed: dict[str, Any] = {
        name: getattr(with_goals, name).double() for name in ("goal_mean", "goal_std")
    }
    return dataclasses.replace(plain.doubles(with_goals), **changed)


def make_batch(seed: int, scaling: Scaling, rows: int = 6) -> StateGoalBatch:
    rng = np.random.default_rng((seed, 7))

    def normal(width: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=(rows, width)))

    masks = torch.from_numpy((rng.random(rows) < 0.7).astype(float))
    return StateGoalBatch(
        observations=normal(3),
        next_observations=normal(3),
        actions=scaling.actions_from_unit(torch.from_numpy(rng.uniform(-0.95, 0.95, (rows, 2)))),
        value_goals=normal(2),
        actor_goals=normal(2),
        rewards=masks - 1 if seed % 2 else -masks,
        masks=masks,
        terminations=torch.zeros(rows),
    )


class Plain:
    """What the three have in common, in NumPy."""

    def __init__(self, algorithm: Any) -> None:
        self.config, self.scaling = algorithm.config, algorithm.scaling
        self.policy = plain.parameters_of(algorithm.policy)

    def read(self, batch: Any) -> None:
        """Standardize a batch."""
        one, scaling = plain.in_units(self.scaling, batch), self.scaling
        mean, std = scaling.goal_mean.numpy(), scaling.goal_std.numpy()
        self.s, self.a, self.next_s, self.r = one["s"], one["a"], one["next_s"], one["r"]
        self.goal = (batch.value_goals.numpy() - mean) / std
        self.policy_goal = (batch.actor_goals.numpy() - mean) / std
        self.mask = batch.masks.numpy()

    def means(self) -> np.ndarray:
        pairs = np.concatenate([self.s, self.policy_goal], 1)
        return plain.smooth_network(self.policy, pairs)

    def log_likelihoods(self) -> np.ndarray:
        normal = np.exp(-0.5 * (self.a - self.means()) ** 2) / math.sqrt(2 * math.pi)
        logs: np.ndarray = np.log(normal).sum(1)
        return logs


def value(parameters: plain.Parameters, *parts: np.ndarray) -> np.ndarray:
    inputs = np.concatenate(parts, 1)
    found: np.ndarray = plain.smooth_network(parameters, inputs, layer_norm=True)[:, 0]
    return found


class PlainGCBC(Plain):
    def __init__(self, algorithm: GCBC) -> None:
        super().__init__(algorithm)
        self.optimizer = plain.Adam(self.policy, self.config.learning_rate)

    def update(self, batch: StateGoalBatch) -> None:
        self.read(batch)
        self.optimizer.step(lambda: -float(self.log_likelihoods().mean()))


class PlainGCIVL(Plain):
    def __init__(self, algorithm: GCIVL) -> None:
        super().__init__(algorithm)
        twins = (algorithm.value.first, algorithm.value.second)
        self.values = [plain.parameters_of(one) for one in twins]
        self.targets = [plain.parameters_of(one) for one in twins]
        trained = [*self.values[0], *self.values[1], *self.policy]
        self.optimizer = plain.Adam(trained, self.config.learning_rate)

    def update(self, batch: StateGoalBatch) -> None:
        self.read(batch)
        config = self.config
        q = [
            self.r + config.discount * self.mask * value(one, self.next_s, self.goal)
            for one in self.targets
        ]
        mean = sum(value(one, self.s, self.goal) for one in self.targets) / 2
        weights = abs(config.expectile - (np.minimum(*q) - mean < 0))
        ahead = sum(value(one, self.next_s, self.policy_goal) for one in self.values) / 2
        here = sum(value(one, self.s, self.policy_goal) for one in self.values) / 2
        chances = np.minimum(np.exp(config.inverse_temperature * (ahead - here)), config.max_weight)

        def loss() -> float:
            errors = [
                target - value(one, self.s, self.goal)
                for target, one in zip(q, self.values, strict=True)
            ]
            values = sum(float((weights * error**2).mean()) for error in errors)
            return values - float((chances * self.log_likelihoods()).mean())

        before = [[one.copy() for one in network] for network in self.values]
        self.optimizer.step(loss)
        for target, online in zip(self.targets, before, strict=True):
            plain.move(target, online, config.target_rate)


class PlainGCIQL(Plain):
    def __init__(self, algorithm: GCIQL) -> None:
        super().__init__(algorithm)
        twins = (algorithm.critic.first, algorithm.critic.second)
        self.critics = [plain.parameters_of(one) for one in twins]
        self.targets = [plain.parameters_of(one) for one in twins]
        self.value = plain.parameters_of(algorithm.value)
        rate = self.config.learning_rate
        self.value_optimizer = plain.Adam([*self.critics[0], *self.critics[1], *self.value], rate)
        self.policy_optimizer = plain.Adam(self.policy, rate)

    def own_q(self, critics: list[plain.Parameters]) -> np.ndarray:
        actions = self.means().clip(-1, 1)
        both = [value(one, self.s, self.policy_goal, actions) for one in critics]
        smaller: np.ndarray = np.minimum(*both)
        return smaller

    def update(self, batch: StateGoalBatch) -> None:
        self.read(batch)
        config = self.config
        y = self.r + config.discount * self.mask * value(self.value, self.next_s, self.goal)
        q = np.minimum(*(value(one, self.s, self.goal, self.a) for one in self.targets))
        before = [[one.copy() for one in critic] for critic in self.critics]
        scale = abs(self.own_q(before)).mean() + 1e-6

        def value_loss() -> float:
            errors = q - value(self.value, self.s, self.goal)
            weights = abs(config.expectile - (errors < 0))
            found = float((weights * errors**2).mean())
            for one in self.critics:
                found += float(((value(one, self.s, self.goal, self.a) - y) ** 2).mean())
            return found

        def policy_loss() -> float:
            cloning = config.cloning_weight * self.log_likelihoods().mean()
            return -float(self.own_q(before).mean() / scale + cloning)

        self.value_optimizer.step(value_loss)
        self.policy_optimizer.step(policy_loss)
        for target, online in zip(self.targets, before, strict=True):
            plain.move(target, online, config.target_rate)


PUSHED: dict[str, Any] = {"target_rate": 0.2, "discount": 0.9, "expectile": 0.8}


@pytest.mark.usefixtures("in_float64")
def test_updates_of_gcbc_equal_a_plain_implementation(scaling: Scaling) -> None:
    algorithm = GCBC(GCBCConfig(**SMALL), scaling, seed=3)
    expected = PlainGCBC(algorithm)
    for index in range(3):
        batch = make_batch(index, scaling)
        algorithm.update(batch)
        expected.update(batch)
    plain.check_equal(algorithm.policy, expected.policy, TOLERANCE)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("max_weight", [100.0, 1.1])
def test_updates_of_gcivl_equal_a_plain_implementation(scaling: Scaling, max_weight: float) -> None:
    config = GCIVLConfig(**SMALL, **PUSHED, max_weight=max_weight, inverse_temperature=4.0)
    algorithm = GCIVL(config, scaling, seed=3)
    expected = PlainGCIVL(algorithm)
    for index in range(3):
        batch = make_batch(index, scaling)
        algorithm.update(batch)
        expected.update(batch)
    for found, one in (
        (algorithm.policy, expected.policy),
        (algorithm.value.first, expected.values[0]),
        (algorithm.value.second, expected.values[1]),
        (algorithm.target_value.first, expected.targets[0]),
        (algorithm.target_value.second, expected.targets[1]),
    ):
        plain.check_equal(found, one, TOLERANCE)


@pytest.mark.usefixtures("in_float64")
def test_updates_of_gciql_equal_a_plain_implementation(scaling: Scaling) -> None:
    algorithm = GCIQL(GCIQLConfig(**SMALL, **PUSHED, cloning_weight=0.2), scaling, seed=3)
    with torch.no_grad():
        list(algorithm.policy.parameters())[-1].add_(torch.tensor([1.5, 0.0]))  # some are clipped
    expected = PlainGCIQL(algorithm)
    for index in range(3):
        batch = make_batch(index, scaling)
        algorithm.update(batch)
        expected.update(batch)
    for found, one in (
        (algorithm.policy, expected.policy),
        (algorithm.value, expected.value),
        (algorithm.critic.first, expected.critics[0]),
        (algorithm.critic.second, expected.critics[1]),
        (algorithm.target_critic.first, expected.targets[0]),
        (algorithm.target_critic.second, expected.targets[1]),
    ):
        plain.check_equal(found, one, TOLERANCE)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(("kind", "name"), [(GCBC, "gcbc"), (GCIVL, "gcivl"), (GCIQL, "gciql")])
def test_parameters_after_100_updates_are_ogbenchs(kind: type[Any], name: str) -> None:
    assert plain.difference_from_recorded(kind, name) < 1e-12


def test_defaults_are_ogbenchs() -> None:
    published = json.loads(published_file().read_bytes())["goal_conditioned"]["algorithms"]
    gcbc, gcivl, gciql = GCBCConfig(), GCIVLConfig(), GCIQLConfig()
    kinds = ("curgoal", "trajgoal", "randomgoal")
    config: Any
    for config, name in ((gcbc, "GCBC"), (gcivl, "GCIVL"), (gciql, "GCIQL")):
        body = published[name]["defaults"]
        assert list(config.hidden) == body["actor_hidden_dims"]
        assert (config.learning_rate, config.batch_size) == (body["lr"], body["batch_size"])
        assert config.policy_goals == tuple(body[f"actor_p_{one}"] for one in kinds)
    for config, name in ((gcivl, "GCIVL"), (gciql, "GCIQL")):
        body = published[name]["defaults"]
        assert (config.discount, config.target_rate) == (body["discount"], body["tau"])
        assert config.expectile == body["expectile"]
        assert config.value_goals == tuple(body[f"value_p_{one}"] for one in kinds)
    assert gcivl.inverse_temperature == published["GCIVL"]["defaults"]["alpha"]
    assert gciql.cloning_weight == published["GCIQL"]["defaults"]["alpha"]


# a goes up to b or down to d; other episodes start there: b leads to c, and d to e.
#     b   e         The lines cross, so that a policy which goes where its goal
#    / \ /          seems to be goes the wrong way from a to c and to e.
#   a   x
#    \ / \
#     d   c
A, B, C, D, E = (0.0, 0.0), (1.0, 1.0), (2.0, -1.0), (1.0, -1.0), (2.0, 1.0)
# The sign of the action decides where a leads; elsewhere it makes no difference.
PIECES = [(A, B, (0, 2)), (A, D, (-2, 0)), (B, C, (-2, 2)), (D, E, (-2, 2))]


@pytest.fixture(scope="module")
def pieces() -> Arrays:
    """Return episodes of two steps: from one state to another, where they stay."""
    rng = np.random.default_rng(0)
    rows = np.zeros((3 * 400, 2 + 1 + 3), np.float32)
    for first, (start, end, actions) in zip(
        range(0, len(rows), 3), itertools.cycle(PIECES), strict=False
    ):
        rows[first : first + 3, :2] = [start, end, end]
        rows[first : first + 2, 2] = rng.uniform(*actions), rng.uniform(-2, 2)
        rows[first + 1, 5] = 1
    rows[:, :2] += rng.normal(0, 0.02, (len(rows), 2))
    lengths = np.full(400, 2)
    return Arrays(rows=torch.from_numpy(rows), lengths=lengths, obs_dim=2, action_dim=1)


def first_actions(algorithm: Any, goals: list[tuple[float, float]]) -> list[float]:
    """Return what an algorithm does at a for each goal."""
    states = torch.tensor([A] * len(goals))
    found: list[float] = algorithm.act(states, torch.tensor(goals)).squeeze(1).tolist()
    return found


def trained(kind: type[Any], data: Arrays, updates: int, **settings: Any) -> Any:
    config = kind.CONFIG(hidden=(32, 32), batch_size=128, **settings)
    scaling = Scaling(
        obs_mean=torch.zeros(data.obs_dim),
        obs_std=torch.ones(data.obs_dim),
        action_low=-2 * torch.ones(1),
        action_high=2 * torch.ones(1),
    )
    algorithm = kind(config, scaling, seed=0)
    _, arguments = kind.loader(config)
    for batch in itertools.islice(states_and_goals(data, seed=0, **arguments), updates):
        algorithm.update(batch)
    return algorithm


def test_values_put_pieces_together_and_cloning_does_not(pieces: Arrays) -> None:
    cloned = trained(GCBC, pieces, 150, learning_rate=3e-3)
    valued = trained(
        GCIVL,
        pieces,
        600,
        learning_rate=3e-3,
        target_rate=0.3,
        discount=0.8,
        value_goals=(0.2, 0.3, 0.5),
        policy_goals=(0.0, 0.5, 0.5),
    )
    for algorithm in (cloned, valued):
        to_b, to_d = first_actions(algorithm, [B, D])
        assert to_b > 0.5 > -0.5 > to_d
    to_c, to_e = first_actions(cloned, [C, E])
    assert to_c < 0 < to_e
    to_c, to_e = first_actions(valued, [C, E])
    assert to_c > 0.3 > -0.3 > to_e


@pytest.mark.thorough
@pytest.mark.slow
def test_critics_find_the_fastest_way_where_the_data_wander() -> None:
    rng = np.random.default_rng(0)
    walks, length = 200, 20
    rows = np.zeros((walks, length + 1, 1 + 1 + 3), np.float32)
    actions = rng.uniform(-2, 2, (walks, length))
    states = rng.uniform(-1, 1, walks)
    for step in range(length):
        rows[:, step, 0], rows[:, step, 1] = states, actions[:, step]
        states = (states + 0.1 * actions[:, step]).clip(-1, 1)
    rows[:, length, 0] = states
    rows[:, length - 1, 4] = 1
    data = Arrays(
        rows=torch.from_numpy(rows.reshape(-1, 5)),
        lengths=np.full(walks, length),
        obs_dim=1,
        action_dim=1,
    )
    algorithm = trained(GCIQL, data, 900, learning_rate=1e-3, target_rate=0.1, discount=0.9)
    ends = torch.tensor([[-0.8], [0.8]])
    there, back = algorithm.act(ends, -ends).squeeze(1).tolist()
    assert there > 1.5 > -1.5 > back
