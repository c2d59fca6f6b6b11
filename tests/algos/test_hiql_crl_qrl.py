"""HIQL, CRL and QRL against float64 NumPy, against OGBench's code, and on a tiny problem."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from orlog.algos.crl import CRL, CRLConfig, contrastive_loss
from orlog.algos.gcbc import GCBC
from orlog.algos.hiql import HIQL, HIQLConfig, to_length
from orlog.algos.networks import Scaling
from orlog.algos.qrl import QRL, QRLConfig, far_loss, interval_lengths, local_loss
from orlog.loaders.arrays.arrays import Arrays, Leaf
from orlog.loaders.batch import StateSubgoalBatch
from orlog.loaders.states_and_goals import states_and_subgoals
from orlog.manifests.published_settings import published_file
from tests.algos import plain

SMALL: dict[str, Any] = {"hidden": (4,), "learning_rate": 2e-3}
# Adam divides by gradients, and some of these are near 0.
TOLERANCE = 1e-5
GRID = torch.linspace(-1, 1, 21)


@pytest.fixture
def scaling(scaling: Scaling) -> Scaling:
    """Return maps of three observations, two actions, and goals of two numbers.

    In the recorded references, goals are whole observations.
    """
    with_goals = dataclasses.replace(
        scaling, goal_mean=torch.tensor([0.5, 2.0]), goal_std=torch.tensor([3.0, 0.7])
    )
    changed: dict[str, Any] = {
        name: getattr(with_goals, name).double() for name in ("goal_mean", "goal_std")
    }
    return dataclasses.replace(plain.doubles(with_goals), **changed)


def standardized(scaling: Scaling, goals: torch.Tensor) -> torch.Tensor:
    if scaling.goal_mean is None or scaling.goal_std is None:
        return scaling.observations(goals)
    return (goals - scaling.goal_mean) / scaling.goal_std


def make_batch(seed: int, scaling: Scaling, rows: int = 4) -> StateSubgoalBatch:
    rng = np.random.default_rng((seed, 7))

    def normal(width: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=(rows, width)))

    masks = torch.from_numpy((rng.random(rows) < 0.7).astype(float))
    goals = {
        name: normal(len(scaling.obs_mean if scaling.goal_mean is None else scaling.goal_mean))
        for name in ("value_goals", "actor_goals", "low_goals", "subgoals")
    }
    return StateSubgoalBatch(
        observations=normal(3),
        next_observations=normal(3),
        subgoal_observations=normal(3),
        actions=scaling.actions_from_unit(torch.from_numpy(rng.uniform(-0.95, 0.95, (rows, 2)))),
        rewards=masks - 1,
        masks=masks,
        terminations=torch.zeros(rows),
        **goals,
    )


def smooth(parameters: plain.Parameters, *parts: np.ndarray) -> np.ndarray:
    return plain.smooth_network(parameters, np.concatenate(parts, 1), layer_norm=True)


def log_likelihood(means: np.ndarray, taken: np.ndarray) -> np.ndarray:
    density = np.exp(-((taken - means) ** 2) / 2) / math.sqrt(2 * math.pi)
    logs: np.ndarray = np.log(density).sum(1)
    return logs


class Read:
    """A batch in the units of networks, in NumPy."""

    def __init__(self, scaling: Scaling, batch: Any) -> None:
        one = plain.in_units(scaling, batch)
        self.s, self.a, self.next_s, self.r = one["s"], one["a"], one["next_s"], one["r"]
        self.mask = batch.masks.numpy()
        self.later_s = scaling.observations(batch.subgoal_observations).numpy()
        width = batch.value_goals.shape[1]
        self.achieved = standardized(scaling, batch.observations[:, :width]).numpy()
        self.value_goal, self.goal, self.low_goal, self.subgoal = (
            standardized(scaling, getattr(batch, name)).numpy()
            for name in ("value_goals", "actor_goals", "low_goals", "subgoals")
        )


class PlainHIQL:
    def __init__(self, algorithm: HIQL) -> None:
        self.config, self.scaling = algorithm.config, algorithm.scaling
        read = plain.parameters_of
        self.representation = read(algorithm.representation)
        self.values = [read(algorithm.value.first), read(algorithm.value.second)]
        self.targets = [[part.copy() for part in one] for one in self.values]
        self.low, self.high = read(algorithm.low_policy), read(algorithm.high_policy)
        trained = [self.representation, *self.values, self.low, self.high]
        self.optimizer = plain.Adam(list(itertools.chain(*trained)), self.config.learning_rate)

    def phi(self, s: np.ndarray, g: np.ndarray) -> np.ndarray:
        z = smooth(self.representation, s, g)
        lengths: np.ndarray = np.sqrt((z**2).sum(1, keepdims=True))
        unit: np.ndarray = z / lengths
        return unit * math.sqrt(z.shape[1])

    def value(self, which: list[plain.Parameters], s: np.ndarray, g: np.ndarray) -> np.ndarray:
        return np.stack([smooth(one, s, self.phi(s, g))[:, 0] for one in which])

    def update(self, batch: StateSubgoalBatch) -> None:
        one, config = Read(self.scaling, batch), self.config
        targets = one.r + config.discount * one.mask * self.value(
            self.targets, one.next_s, one.value_goal
        )
        advantage = targets.min(0) - self.value(self.targets, one.s, one.value_goal).mean(0)
        weight = np.where(advantage < 0, 1 - config.expectile, config.expectile)

        def advance(later: np.ndarray, goal: np.ndarray) -> np.ndarray:
            found = self.value(self.values, later, goal) - self.value(self.values, one.s, goal)
            means: np.ndarray = found.mean(0)
            return means

        low_weight, high_weight = (
            np.minimum(np.exp(temperature * found), config.max_weight)
            for temperature, found in (
                (config.low_inverse_temperature, advance(one.next_s, one.low_goal)),
                (config.high_inverse_temperature, advance(one.later_s, one.goal)),
            )
        )
        low_phi, high_phi = self.phi(one.s, one.low_goal), self.phi(one.s, one.subgoal)
        old = [[part.copy() for part in value] for value in self.values]

        def loss() -> float:
            errors = targets - self.value(self.values, one.s, one.value_goal)
            low = plain.smooth_network(self.low, np.concatenate([one.s, low_phi], 1))
            high = plain.smooth_network(self.high, np.concatenate([one.s, one.goal], 1))
            cloned = low_weight * log_likelihood(low, one.a)
            chosen = high_weight * log_likelihood(high, high_phi)
            return float((weight * errors**2).mean(1).sum() - cloned.mean() - chosen.mean())

        self.optimizer.step(loss)
        for target, before in zip(self.targets, old, strict=True):
            plain.move(target, before, config.target_rate)


class PlainCRL:
    def __init__(self, algorithm: CRL) -> None:
        self.config, self.scaling = algorithm.config, algorithm.scaling
        self.phi, self.psi = (
            [plain.parameters_of(one) for one in part]
            for part in (algorithm.critic.phi, algorithm.critic.psi)
        )
        self.policy = plain.parameters_of(algorithm.policy)
        parts = list(itertools.chain(*self.phi, *self.psi))
        self.critic_optimizer = plain.Adam(parts, self.config.learning_rate)
        self.policy_optimizer = plain.Adam(self.policy, self.config.learning_rate)

    def update(self, batch: StateSubgoalBatch) -> None:
        one, config = Read(self.scaling, batch), self.config

        def logits(a: np.ndarray, g: np.ndarray) -> np.ndarray:
            return np.stack(
                [
                    smooth(phi, one.s, a) @ smooth(psi, g).T / math.sqrt(config.representation)
                    for phi, psi in zip(self.phi, self.psi, strict=True)
                ]
            )

        def critic_loss() -> float:
            likely = 1 / (1 + np.exp(-logits(one.a, one.value_goal)))
            right = np.where(np.eye(len(one.s)), likely, 1 - likely)
            return -float(np.log(right).mean())

        def values_and_means() -> tuple[np.ndarray, np.ndarray]:
            inputs = np.concatenate([one.s, one.goal], 1)
            means = plain.smooth_network(self.policy, inputs)
            found = logits(np.clip(means, -1, 1), one.goal)
            return np.diagonal(found, axis1=1, axis2=2).min(0), means

        scale = np.abs(values_and_means()[0]).mean() + 1e-6

        def policy_loss() -> float:
            values, means = values_and_means()
            cloned = config.cloning_weight * log_likelihood(means, one.a)
            return float(-values.mean() / scale - cloned.mean())

        found = plain.gradients(policy_loss, self.policy)
        self.critic_optimizer.step(critic_loss)
        step_with(self.policy_optimizer, found)


def step_with(optimizer: plain.Adam, found: plain.Parameters) -> None:
    """Take a step with gradients that are known."""
    optimizer.step(
        lambda: sum(
            float((gradient * one).sum())
            for gradient, one in zip(found, optimizer.parameters, strict=True)
        )
    )


def union(starts: np.ndarray, ends: np.ndarray) -> float:
    """Return the length of a union of intervals, from the ends of those that overlap."""
    length, reached = 0.0, -np.inf
    for start, end in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        if end > max(start, reached):
            length += end - max(start, reached)
            reached = end
    return length


class PlainQRL:
    def __init__(self, algorithm: QRL) -> None:
        self.config, self.scaling = algorithm.config, algorithm.scaling
        read, distance = plain.parameters_of, algorithm.distance
        assert distance.goals is not None
        self.states = read(distance.states)
        self.goals = read(distance.goals)
        self.mixing, self.log_multiplier = np.zeros(()), np.zeros(())
        self.model, self.policy = read(algorithm.model), read(algorithm.policy)
        trained = [self.mixing, self.log_multiplier, *self.states, *self.goals, *self.model]
        self.optimizer = plain.Adam(trained, self.config.learning_rate)
        self.policy_optimizer = plain.Adam(self.policy, self.config.learning_rate)

    def distance(self, here: np.ndarray, there: np.ndarray) -> np.ndarray:
        mix = 1 / (1 + np.exp(-self.mixing))
        found = []
        for x, y in zip(here, there, strict=True):
            groups = zip(x.reshape(-1, 8), y.reshape(-1, 8), strict=True)
            lengths = [union(starts, ends) for starts, ends in groups]
            found.append(mix * np.mean(lengths) + (1 - mix) * max(lengths))
        return np.array(found)

    def after(self, here: np.ndarray, a: np.ndarray) -> np.ndarray:
        found: np.ndarray = here + smooth(self.model, here, a)
        return found

    def update(self, batch: StateSubgoalBatch) -> None:
        one, config = Read(self.scaling, batch), self.config
        known: dict[str, Any] = {}

        def local() -> float:
            here, following = smooth(self.states, one.s), smooth(self.states, one.next_s)
            cost = np.maximum(self.distance(here, following) - 1, 0) ** 2
            reached = self.distance(here, smooth(self.goals, one.achieved)) ** 2
            return float((cost + reached).mean())

        known["local"], known["multiplier"] = local(), np.exp(self.log_multiplier)

        def loss() -> float:
            here, following = smooth(self.states, one.s), smooth(self.states, one.next_s)
            far = self.distance(here, smooth(self.goals, one.value_goal))
            expected = self.after(here, one.a)
            ways = self.distance(following, expected) + self.distance(expected, following)
            dual = np.exp(self.log_multiplier) * (config.local_cost - known["local"])
            pushed = 100 * np.log1p(np.exp(5 - far / 100)).mean()
            return float(pushed + known["multiplier"] * local() + dual + ways.mean() / 2)

        def left_and_means() -> tuple[np.ndarray, np.ndarray]:
            here, goal = smooth(self.states, one.s), smooth(self.goals, one.goal)
            inputs = np.concatenate([one.s, one.goal], 1)
            means = plain.smooth_network(self.policy, inputs)
            return self.distance(self.after(here, np.clip(means, -1, 1)), goal), means

        scale = np.abs(left_and_means()[0]).mean() + 1e-6

        def policy_loss() -> float:
            left, means = left_and_means()
            cloned = config.cloning_weight * log_likelihood(means, one.a)
            return float(left.mean() / scale - cloned.mean())

        found = plain.gradients(policy_loss, self.policy)
        self.optimizer.step(loss)
        step_with(self.policy_optimizer, found)


def check_hiql(found: HIQL, expected: PlainHIQL) -> None:
    plain.check_equal(found.representation, expected.representation, TOLERANCE)
    for network, values in ((found.value, expected.values), (found.target_value, expected.targets)):
        plain.check_equal(network.first, values[0], TOLERANCE)
        plain.check_equal(network.second, values[1], TOLERANCE)
    plain.check_equal(found.low_policy, expected.low, TOLERANCE)
    plain.check_equal(found.high_policy, expected.high, TOLERANCE)


def check_crl(found: CRL, expected: PlainCRL) -> None:
    for networks, parts in ((found.critic.phi, expected.phi), (found.critic.psi, expected.psi)):
        for network, part in zip(networks, parts, strict=True):
            plain.check_equal(network, part, TOLERANCE)
    plain.check_equal(found.policy, expected.policy, TOLERANCE)


def check_qrl(found: QRL, expected: PlainQRL) -> None:
    plain.check_equal(found.distance.states, expected.states, TOLERANCE)
    assert found.distance.goals is not None
    plain.check_equal(found.distance.goals, expected.goals, TOLERANCE)
    plain.check_equal(found.model, expected.model, TOLERANCE)
    plain.check_equal(found.policy, expected.policy, TOLERANCE)
    assert found.distance.mixing.item() == pytest.approx(float(expected.mixing), abs=TOLERANCE)
    assert found.log_multiplier.item() == pytest.approx(float(expected.log_multiplier), abs=1e-8)


Check = Callable[[Any, Any], None]
CASES: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "hiql": (
        HIQL,
        PlainHIQL,
        check_hiql,
        {
            "representation": 3,
            "expectile": 0.8,
            "target_rate": 0.1,
            "max_weight": 1.2,
            "low_inverse_temperature": 2.0,
        },
    ),
    "crl": (CRL, PlainCRL, check_crl, {"representation": 3, "cloning_weight": 0.3}),
    "qrl": (QRL, PlainQRL, check_qrl, {"representation": 16, "cloning_weight": 0.3}),
}


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", CASES)
def test_updates_equal_a_plain_implementation(name: str, scaling: Scaling) -> None:
    kind, plain_kind, check, settings = CASES[name]
    algorithm = kind(kind.CONFIG(**{**SMALL, **settings}), scaling, seed=3)
    expected = plain_kind(algorithm)
    for index in range(2):
        batch = make_batch(index, scaling)
        metrics = algorithm.update(batch)
        expected.update(batch)
        assert not any(value.requires_grad for value in metrics.values())
    check(algorithm, expected)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", CASES)
def test_parameters_after_100_updates_are_ogbenchs(name: str) -> None:
    assert plain.difference_from_recorded(CASES[name][0], name) < 1e-9


def test_an_interval_distance_is_the_length_of_unions_and_a_quasimetric() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y, z = torch.randn((3, 50, 16), generator=generator, dtype=torch.float64)
    found = interval_lengths(x, y)
    for item, group in itertools.product(range(50), range(2)):
        numbers = slice(8 * group, 8 * group + 8)
        expected = union(x[item, numbers].numpy(), y[item, numbers].numpy())
        assert found[item, group].item() == pytest.approx(expected)
    assert (found <= interval_lengths(x, z) + interval_lengths(z, y) + 1e-12).all()
    assert (found - interval_lengths(y, x)).abs().max() > 0.1
    same = x.clone().requires_grad_()
    nothing = interval_lengths(same, same)
    assert not nothing.any()
    nothing.sum().backward()  # type: ignore[no-untyped-call]  # torch has no types for it
    assert same.grad is not None
    assert not same.grad.any()


def test_losses_are_those_of_the_equations() -> None:
    logits = torch.tensor([[[2.0, -1.0], [0.5, 0.0]]])
    likely = 1 / (1 + np.exp([-2.0, 1.0, -0.5, 0.0]))
    expected = -np.log([likely[0], 1 - likely[1], 1 - likely[2], likely[3]]).mean()
    assert contrastive_loss(logits).item() == pytest.approx(expected)
    assert far_loss(torch.tensor([500.0, 500.0])).item() == pytest.approx(100 * math.log(2))
    assert local_loss(torch.tensor([0.5, 3.0])).item() == pytest.approx(2.0)
    lengths = torch.linalg.vector_norm(to_length(torch.randn(5, 9)), dim=1)
    torch.testing.assert_close(lengths, torch.full((5,), 3.0))


def test_defaults_are_ogbenchs() -> None:
    body = json.loads(published_file().read_text("utf-8"))["goal_conditioned"]["algorithms"]
    for kind, more in (
        (HIQLConfig, {"representation": "rep_dim", "subgoal_steps": "subgoal_steps"}),
        (CRLConfig, {"representation": "latent_dim", "cloning_weight": "alpha"}),
        (
            QRLConfig,
            {"representation": "latent_dim", "cloning_weight": "alpha", "local_cost": "eps"},
        ),
    ):
        defaults = body[kind.__name__.removesuffix("Config")]["defaults"]
        names = {"learning_rate": "lr", "batch_size": "batch_size", "discount": "discount", **more}
        config: Any = kind()
        for ours, theirs in names.items():
            assert getattr(config, ours) == defaults[theirs], ours
        assert list(config.hidden) == defaults["actor_hidden_dims"] == defaults["value_hidden_dims"]
        for ours, theirs in (("value_goals", "value"), ("policy_goals", "actor")):
            shares = [defaults[f"{theirs}_p_{one}goal"] for one in ("cur", "traj", "random")]
            assert list(getattr(config, ours)) == shares
    hiql, published = HIQLConfig(), body["HIQL"]["defaults"]
    assert hiql.target_rate == published["tau"]
    assert hiql.expectile == published["expectile"]
    assert hiql.low_inverse_temperature == published["low_alpha"]
    assert hiql.high_inverse_temperature == published["high_alpha"]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (HIQLConfig, {"expectile": 1.0}),
        (HIQLConfig, {"subgoal_steps": 0}),
        (HIQLConfig, {"representation": 0}),
        (HIQLConfig, {"high_inverse_temperature": -1.0}),
        (HIQLConfig, {"max_weight": 0.0}),
        (HIQLConfig, {"policy_goals": (0.5, 0.0, 0.0)}),
        (CRLConfig, {"representation": 0}),
        (CRLConfig, {"cloning_weight": -0.1}),
        (QRLConfig, {"representation": 12}),
        (QRLConfig, {"local_cost": 0.0}),
        (QRLConfig, {"cloning_weight": -0.1}),
    ],
)
def test_settings_out_of_range_are_refused(kind: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        kind(**settings)


def test_states_and_subgoals_are_those_of_goal_environments() -> None:
    """Observations are achieved_goal (2), desired_goal (2) and observation (1), in this order."""
    rows = torch.arange(12.0)[:, None] + torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0, 0, 0])
    parts = {
        "achieved_goal": Leaf(first=0, shape=(2,)),
        "desired_goal": Leaf(first=2, shape=(2,)),
        "observation": Leaf(first=4, shape=(1,)),
    }
    arrays = Arrays(rows=rows, lengths=np.array([11]), obs_dim=5, action_dim=1, parts=parts)
    settings: dict[str, Any] = {"value_goals": (0, 1, 0), "policy_goals": (0, 1, 0), "steps": 3}
    batch: Any = next(iter(states_and_subgoals(arrays, 8, seed=0, **settings)))
    assert batch.observations.shape == batch.subgoal_observations.shape == (8, 3)
    assert batch.low_goals.shape == batch.subgoals.shape == (8, 2)
    torch.testing.assert_close(batch.subgoal_observations[:, :2], batch.subgoals)
    torch.testing.assert_close(batch.subgoal_observations[:, 2], batch.subgoals[:, 0] + 0.4)
    assert (batch.low_goals[:, 0] - batch.observations[:, 0] <= 3).all()


@pytest.fixture(scope="module")
def line() -> Arrays:
    """Return short random walks on a line: a step is a tenth of the action."""
    rng = np.random.default_rng(0)
    rows = np.zeros((400, 11, 1 + 1 + 3), np.float32)
    rows[:, :10, 1] = rng.uniform(-1, 1, (400, 10))
    rows[:, 0, 0] = rng.uniform(-1, 1, 400)
    rows[:, 1:, 0] = rows[:, :1, 0] + 0.1 * rows[:, :10, 1].cumsum(1)
    flat = torch.from_numpy(rows.reshape(-1, 5))
    return Arrays(rows=flat, lengths=np.full(400, 10), obs_dim=1, action_dim=1)


LEARNING: list[tuple[type[Any], dict[str, Any]]] = [
    (HIQL, {"target_rate": 0.1, "discount": 0.9, "subgoal_steps": 3}),
    (CRL, {"representation": 16, "cloning_weight": 0.03}),
    (QRL, {"representation": 32, "cloning_weight": 0.03}),
]


def steps_toward_far_goals(data: Arrays, kind: type[Any], settings: dict[str, Any]) -> float:
    """Return how far trained actions lead toward goals farther than most episodes go."""
    scaling = Scaling(
        obs_mean=torch.zeros(1),
        obs_std=0.6 * torch.ones(1),
        action_low=-torch.ones(1),
        action_high=torch.ones(1),
    )
    # Half of the goals have nothing to do with the action.
    fast = {"hidden": (32, 32), "learning_rate": 3e-3, "policy_goals": (0.0, 0.5, 0.5)}
    algorithm = kind(kind.CONFIG(**fast, batch_size=128, **settings), scaling, seed=0)
    path, arguments = kind.loader(algorithm.config)
    module, _, function = path.partition(":")
    batches = getattr(importlib.import_module(module), function)(data, seed=0, **arguments)
    for batch in itertools.islice(batches, 200):
        algorithm.update(batch)
    pairs = torch.cartesian_prod(GRID, GRID)
    states, goals = pairs[:, :1], pairs[:, 1:]
    steps = algorithm.act(states, goals) * torch.sign(goals - states)
    return float(steps[(goals - states).abs() > 0.6].mean())


def test_cloning_averages_out_what_leads_to_goals(line: Arrays) -> None:
    assert steps_toward_far_goals(line, GCBC, {}) < 0.2


@pytest.mark.parametrize(("kind", "settings"), LEARNING)
def test_values_go_toward_goals_that_cloning_averages_out(
    line: Arrays, kind: type[Any], settings: dict[str, Any]
) -> None:
    assert steps_toward_far_goals(line, kind, settings) > 0.5
