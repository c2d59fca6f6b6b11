from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

from orlog.algos.flows import ChunkActor
from orlog.algos.networks import Scaling, make_generator
from orlog.algos.qcfql import QCFQL, QCFQLConfig
from orlog.loaders.batch import Batch, ChunkBatch
from tests.algos import plain

MakeBatch: TypeAlias = Callable[..., Batch]
LENGTH = 2
SMALL: dict[str, Any] = {
    "chunk_length": LENGTH,
    "hidden": (3,),
    "learning_rate": 1e-3,
    "target_rate": 0.1,
    "distillation_weight": 0.5,
    "flow_steps": 2,
    "discount": 0.9,
}


def parameters(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in network.parameters()])


def chunks(make_batch: MakeBatch, seed: int, rows: int = 8, **given: Any) -> ChunkBatch:
    """Return random chunks of two actions; in some only the first is valid."""
    one, two = make_batch(seed, rows), make_batch(seed + 100, rows)
    valid = torch.ones(rows, LENGTH, dtype=torch.bool)
    valid[::3, 1] = False
    actions = torch.stack([one.actions, two.actions], 1) * valid[:, :, None]
    fields = {name: getattr(one, name) for name in ("observations", "rewards", "next_observations")}
    fields |= {name: getattr(one, name) for name in ("terminations", "truncations")}
    discounts = 0.9 ** valid.sum(1)
    return ChunkBatch(
        **{**fields, "actions": actions, "valid": valid, "discounts": discounts, **given}
    )


class PlainQCFQL:
    """The update in NumPy, from the equations."""

    def __init__(self, algorithm: QCFQL, seed: int) -> None:
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

    def update(self, batch: ChunkBatch) -> None:
        config, one = self.config, plain.in_units(self.scaling, batch)
        s, next_s, rows = one["s"], one["next_s"], len(one["s"])
        mask = np.repeat(batch.valid.numpy()[:, :, None], 2, 2).reshape(rows, -1).astype(float)
        a = one["a"].reshape(rows, -1) * mask
        whole = batch.valid.numpy()[:, -1].astype(float)
        next_z, x_0 = (torch.randn(a.shape, generator=self.generator).numpy() for _ in range(2))
        t = torch.rand((rows, 1), generator=self.generator).numpy()
        z = torch.randn(a.shape, generator=self.generator).numpy()

        next_a = plain.smooth_network(self.policy, np.concatenate([next_s, next_z], 1))
        next_q = self.q_values(self.target_critics, next_s, np.clip(next_a, -1, 1)).mean(0)
        y = one["r"] + config.discount**LENGTH * one["goes_on"] * next_q

        def critic_loss() -> float:
            return float(np.mean(whole * (self.q_values(self.critics, s, a) - y) ** 2))

        def flow_loss() -> float:
            inputs = np.concatenate([s, (1 - t) * x_0 + t * a, t], 1)
            errors = plain.smooth_network(self.flow, inputs) - (a - x_0)
            return float(np.mean(mask * errors**2))

        x = z
        for step in range(config.flow_steps):
            inputs = np.concatenate([s, x, np.full((rows, 1), step / config.flow_steps)], 1)
            x = x + plain.smooth_network(self.flow, inputs) / config.flow_steps
        carried = np.clip(x, -1, 1)
        before = [[one.copy() for one in critic] for critic in self.critics]

        def actor_loss() -> float:
            mu = plain.smooth_network(self.policy, np.concatenate([s, z], 1))
            distance = np.mean((mu - carried) ** 2)
            values = self.q_values(before, s, np.clip(mu, -1, 1))
            return float(config.distillation_weight * distance - np.mean(values))

        for target, online in zip(self.target_critics, before, strict=True):
            plain.move(target, online, config.target_rate)
        losses = (critic_loss, flow_loss, actor_loss)
        for optimizer, loss in zip(self.optimizers, losses, strict=True):
            optimizer.step(loss)


@pytest.mark.usefixtures("in_float64")
def test_updates_equal_a_plain_implementation(scaling: Scaling, make_batch: MakeBatch) -> None:
    algorithm = QCFQL(QCFQLConfig(**SMALL), plain.doubles(scaling), seed=3)
    expected = PlainQCFQL(algorithm, 3)
    for index in range(3):
        batch = chunks(make_batch, index)
        floats = {
            name: getattr(batch, name).double()
            for name in batch.__dataclass_fields__
            if name != "valid"
        }
        batch = dataclasses.replace(batch, **floats)
        algorithm.update(batch)
        expected.update(batch)
    plain.check_critics(algorithm.critic, expected.critics)
    plain.check_critics(algorithm.target_critic, expected.target_critics)
    plain.check_equal(algorithm.flow, expected.flow)
    plain.check_equal(algorithm.policy, expected.policy)


@pytest.mark.usefixtures("in_float64")
def test_parameters_after_100_updates_are_the_authors() -> None:
    assert plain.difference_from_recorded(QCFQL, "qcfql") < 1e-7


def after(scaling: Scaling, batch: ChunkBatch, steps: int) -> QCFQL:
    algorithm = QCFQL(QCFQLConfig(**SMALL), scaling, seed=0)
    for _ in range(steps):
        algorithm.update(batch)
    return algorithm


def test_what_follows_a_termination_or_a_chunk_that_is_not_whole_does_not_matter(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    zeros, ones = torch.zeros(8), torch.ones(8)
    ended = chunks(make_batch, 0, terminations=ones, truncations=zeros)
    cut = dataclasses.replace(ended, terminations=zeros, truncations=ones)
    short = dataclasses.replace(cut, valid=torch.tensor([[True, False]]).expand(8, 2))
    for batch, is_same in ((ended, True), (cut, False), (short, True)):
        assert isinstance(batch.next_observations, torch.Tensor)
        other = dataclasses.replace(batch, next_observations=batch.next_observations * -3 + 1)
        one, two = after(scaling, batch, 2), after(scaling, other, 2)
        assert torch.equal(parameters(one.critic), parameters(two.critic)) == is_same


def test_chunks_are_acted_out_in_full_in_each_environment() -> None:
    plans = iter(range(100))

    def plan(observations: Any, _generator: torch.Generator) -> torch.Tensor:
        step = next(plans)
        starts: torch.Tensor = 100 * observations[:, :1, None] + 10 * step
        return starts + torch.arange(3)[None, :, None]

    actor = ChunkActor(plan, 2, make_generator(0, 0))
    found = []
    for step in range(8):
        actor.begin(torch.tensor([step == 0, step in (0, 4)]))
        found.append(actor.act(torch.tensor([[1.0], [2.0]]))[:, 0].tolist())
        actor.reward(torch.zeros(2))
    first, second = zip(*found, strict=True)
    assert first == (100, 101, 102, 130, 131, 132, 160, 161)
    assert second == (200, 201, 202, 230, 240, 241, 242, 270)  # a new episode at step 4


def test_an_evaluation_repeats_and_begins_with_what_act_would_do(
    scaling: Scaling, make_batch: MakeBatch
) -> None:
    algorithm = after(scaling, chunks(make_batch, 0), 1)
    observations = make_batch(0).observations
    actors = [algorithm.actor(32) for _ in range(2)]
    for _ in range(3):
        one, two = (actor.act(observations) for actor in actors)
        assert torch.equal(one, two)
    algorithm.acting = make_generator(0, 3)
    expected = algorithm.act(observations)
    assert torch.equal(algorithm.actor(32).act(observations), expected)


def test_defaults_are_the_published_ones() -> None:
    # QC-FQL / official, ColinQiyangLi/qc@48283b4f66: common
    assert dataclasses.asdict(QCFQLConfig()) == {
        "encoder": "nature",
        "random_shift": 0,
        "chunk_length": 5,
        "hidden": (512, 512, 512, 512),
        "learning_rate": 3e-4,
        "batch_size": 256,
        "discount": 0.99,
        "target_rate": 0.005,
        "target": "mean",
        "distillation_weight": 100.0,
        "normalize_values": False,
        "flow_steps": 10,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [("chunk_length", 0), ("distillation_weight", -0.1), ("discount", math.nan), ("flow_steps", 0)],
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        QCFQLConfig(**{name: value})
