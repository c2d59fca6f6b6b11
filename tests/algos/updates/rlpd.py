from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.algos import plain


class Plain(plain.Plain):
    """All updates of a step."""

    SETTINGS = plain.chosen(critics=3, smallest_of=2, updates=2)
    CASES = ({}, {"backup_entropy": False, "smallest_of": 1})

    def start(self) -> None:
        assert self.of("log_temperature")[0] == 0
        self.critics = self.adam("critic", rate="critic_learning_rate")
        self.policy = self.adam("policy", rate="policy_learning_rate")
        self.temperature = self.adam("log_temperature", rate="temperature_learning_rate")

    def sample(self, s: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return plain.squashed(plain.network(self.of("policy"), s), noise, (-20, 2))

    def q(self, name: str, s: np.ndarray, a: np.ndarray) -> plain.Array:
        """Return the values [critics, batch] of critics of one hidden layer with a norm."""
        weights, last, biases, last_bias, scale, shift = self.of(name)
        hidden = np.concatenate([s, a], -1) @ weights + biases
        apart = hidden - hidden.mean(-1, keepdims=True)
        normal = apart / np.sqrt((apart**2).mean(-1, keepdims=True) + 1e-6)
        values = np.maximum(normal * scale + shift, 0) @ last + last_bias
        return values[..., 0]

    def critic_loss(self, one: SimpleNamespace, y: np.ndarray) -> float:
        return float(np.mean((self.q("critic", one.s, one.a) - y) ** 2))

    def update(self, batch: Any) -> None:
        config, whole = self.config, plain.in_units(self.scaling, batch)
        log_temperature, one = self.of("log_temperature")[0], whole
        for index in range(config.updates):
            parts = {name: value[index :: config.updates] for name, value in vars(whole).items()}
            one = SimpleNamespace(**parts)
            next_a, density = self.sample(one.next_s, self.normal(1, *one.a.shape)[0])
            chosen = torch.randperm(config.critics, generator=self.generator)
            values = self.q("target_critic", one.next_s, next_a)
            value = values[chosen[: config.smallest_of].numpy()].min(0)
            if config.backup_entropy:
                value = value - np.exp(log_temperature) * density
            y = one.r + config.discount * one.goes_on * value
            self.critics.step(functools.partial(self.critic_loss, one, y))
            self.follow("target_critic", "critic")
        noise = self.normal(1, *one.a.shape)[0]
        temperature = float(np.exp(log_temperature))
        entropy = -float(np.mean(self.sample(one.s, noise)[1]))

        def policy_loss() -> float:
            actions, density = self.sample(one.s, noise)
            values = self.q("critic", one.s, actions).mean(0)
            return float(np.mean(temperature * density - values))

        self.policy.step(policy_loss)
        self.temperature.step(lambda: float(np.exp(log_temperature) * (entropy + 1.0)))
