from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

import orlog
from orlog.algos.networks import Critics, Scaling, make_generator
from orlog.algos.rlpd import RLPD, RLPDConfig
from orlog.algos.training.metrics import read_metrics
from orlog.errors import NotFoundError
from orlog.loaders.batch import Batch
from tests.algos import plain
from tests.pendulum import pendulum

MakeBatch: TypeAlias = Callable[..., Batch]
SMALL: dict[str, Any] = {
    "hidden": (4,),
    "policy_learning_rate": 1e-3,
    "critic_learning_rate": 2e-3,
    "temperature_learning_rate": 3e-3,
    "target_rate": 0.1,
    "critics": 3,
    "smallest_of": 2,
    "updates": 2,
}


class PlainRLPD:
    """The updates of a step in NumPy, from the equations."""

    def __init__(self, algorithm: RLPD, seed: int) -> None:
        self.config, self.scaling = algorithm.config, algorithm.scaling
        self.generator = make_generator(seed, 1)
        self.critics = plain.parameters_of(algorithm.critic)
        self.targets = [one.copy() for one in self.critics]
        self.policy = plain.parameters_of(algorithm.policy)
        self.log_temperature = np.zeros(1)
        config = self.config
        self.critic_optimizer = plain.Adam(self.critics, config.critic_learning_rate)
        self.policy_optimizer = plain.Adam(self.policy, config.policy_learning_rate)
        self.temperature_optimizer = plain.Adam(
            [self.log_temperature], config.temperature_learning_rate
        )

    def sample(self, s: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        means, log_stds = np.split(plain.network(self.policy, s), 2, -1)
        raw = means + np.exp(np.clip(log_stds, -20, 2)) * noise
        normal = -(0.5 * noise**2 + np.clip(log_stds, -20, 2) + 0.5 * np.log(2 * np.pi)).sum(-1)
        return np.tanh(raw), normal - np.log(1 - np.tanh(raw) ** 2).sum(-1)

    def q(self, parameters: plain.Parameters, s: np.ndarray, a: np.ndarray) -> np.ndarray:
        """Return the values [critics, batch] of critics of one hidden layer with a norm."""
        weights, last, biases, last_bias, scale, shift = parameters
        hidden = np.concatenate([s, a], -1) @ weights + biases
        apart = hidden - hidden.mean(-1, keepdims=True)
        normal = apart / np.sqrt((apart**2).mean(-1, keepdims=True) + 1e-6)
        values: np.ndarray = np.maximum(normal * scale + shift, 0) @ last + last_bias
        return values[..., 0]

    def critic_loss(self, s: np.ndarray, a: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean((self.q(self.critics, s, a) - y) ** 2))

    def noise(self, shape: Any) -> np.ndarray:
        drawn: np.ndarray = torch.randn((1, *shape), generator=self.generator).numpy()[0]
        return drawn

    def update(self, batch: Batch) -> None:
        config, whole = self.config, plain.in_units(self.scaling, batch)
        one = whole
        for index in range(config.updates):
            one = {key: value[index :: config.updates] for key, value in whole.items()}
            next_a, density = self.sample(one["next_s"], self.noise(one["a"].shape))
            chosen = torch.randperm(config.critics, generator=self.generator)
            values = self.q(self.targets, one["next_s"], next_a)
            value = values[chosen[: config.smallest_of].numpy()].min(0)
            if config.backup_entropy:
                value = value - np.exp(self.log_temperature) * density
            y = one["r"] + config.discount * one["goes_on"] * value
            s, a = one["s"], one["a"]
            self.critic_optimizer.step(functools.partial(self.critic_loss, s, a, y))
            plain.move(self.targets, self.critics, config.target_rate)
        s, noise = one["s"], self.noise(one["a"].shape)
        temperature = float(np.exp(self.log_temperature)[0])
        entropy = -float(np.mean(self.sample(s, noise)[1]))

        def policy_loss() -> float:
            actions, density = self.sample(s, noise)
            return float(np.mean(temperature * density - self.q(self.critics, s, actions).mean(0)))

        self.policy_optimizer.step(policy_loss)
        self.temperature_optimizer.step(
            lambda: float(np.exp(self.log_temperature)[0]) * (entropy + 1.0)
        )


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("settings", [{}, {"backup_entropy": False, "smallest_of": 1}])
def test_updates_equal_a_plain_implementation(
    scaling: Scaling, make_batch: MakeBatch, settings: dict[str, Any]
) -> None:
    algorithm = RLPD(RLPDConfig(**{**SMALL, **settings}), plain.doubles(scaling), seed=3)
    expected = PlainRLPD(algorithm, 3)
    for index in range(3):
        batch = make_batch(index, rows=8).map(torch.Tensor.double)
        algorithm.update(batch)
        expected.update(batch)
    plain.check_equal(algorithm.critic, expected.critics)
    plain.check_equal(algorithm.target_critic, expected.targets)
    plain.check_equal(algorithm.policy, expected.policy)
    assert algorithm.log_temperature.item() == pytest.approx(expected.log_temperature[0])


@pytest.mark.usefixtures("in_float64")
def test_parameters_after_100_updates_are_the_authors() -> None:
    assert plain.difference_from_recorded(RLPD, "rlpd") < 1e-9


def test_some_of_the_critics_give_what_all_of_them_give() -> None:
    critics = Critics(4, 3, 2, (5, 5), generator=make_generator(0, 0), layer_norm=True)
    observations, actions = torch.randn(7, 3), torch.randn(7, 2)
    chosen = torch.tensor([2, 0])
    torch.testing.assert_close(
        critics(observations, actions, chosen), critics(observations, actions)[chosen]
    )


def test_training_starts_with_random_steps_in_the_environment(home: Path, tmp_path: Path) -> None:
    del home
    settings = {**SMALL, "batch_size": 8, "random_steps": 210}
    data = pendulum(episodes=2)
    folder = tmp_path / "run"
    run = orlog.train("rlpd", data, settings=settings, steps=5, evaluations=1, folder=folder)
    last = read_metrics(folder)[-1]
    assert last["online/steps"] == 215
    assert len(last["returns"]) == 20
    assert run.record.online is not None
    assert (run.record.online.run, run.record.online.prior) == ("", 0.5)
    assert orlog.evaluate(run, episodes=1).step == 5
    assert orlog.finetune(run, steps=2, evaluations=0, folder=tmp_path / "more").record.steps == 2
    nameless = pendulum("lab/nameless-v1", named=False)
    with pytest.raises(NotFoundError, match="names no environment"):
        orlog.train("rlpd", nameless, steps=1, evaluations=0, folder=tmp_path / "x")


def test_defaults_are_the_published_ones() -> None:
    # ikostrikov/rlpd, configs/rlpd_config.py and README
    assert dataclasses.asdict(RLPDConfig()) == {
        "encoder": "nature",
        "random_shift": 0,
        "hidden": (256, 256),
        "policy_learning_rate": 3e-4,
        "critic_learning_rate": 3e-4,
        "temperature_learning_rate": 3e-4,
        "batch_size": 256,
        "updates": 20,
        "discount": 0.99,
        "target_rate": 0.005,
        "critics": 10,
        "smallest_of": 2,
        "backup_entropy": True,
        "prior": 0.5,
        "random_steps": 5000,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [("smallest_of", 11), ("smallest_of", 0), ("updates", 0), ("random_steps", -1), ("prior", 1.5)],
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        RLPDConfig(**{name: value})
