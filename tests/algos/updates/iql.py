from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.algos import plain


class Plain(plain.Plain):
    """Equations 5 to 7 of the paper, for actions in a box."""

    SETTINGS = plain.chosen(hidden=(5, 4), steps=6)
    CASES: tuple[dict[str, Any], ...] = (
        {},
        {"inverse_temperature": 30.0, "max_weight": 3.0, "expectile": 0.9},
        {"steps": None},
        {"steps": 2},
    )
    UPDATES = 4
    CRITIC, TWINS = "critic", ("first", "second")
    POLICY: tuple[str, ...] = ("policy", "log_std")

    def start(self) -> None:
        self.values = self.adam(self.CRITIC, "value")
        self.policy = self.adam(*self.POLICY)

    def q_values(self, network: str, one: SimpleNamespace) -> plain.Array:
        critics = [self.of(f"{network}/{twin}") for twin in self.TWINS]
        return np.stack([plain.q_value(critic, one.s, one.a) for critic in critics])

    def logs(self, one: SimpleNamespace) -> plain.Array:
        return plain.normal_logs(one.a - self.acts(one.s), self.of("log_std")[0])

    def update(self, batch: Any) -> dict[str, float]:
        config, one = self.config, plain.in_units(self.scaling, batch)
        target_q = self.q_values(f"target_{self.CRITIC}", one).min(0)
        next_v = plain.network(self.of("value"), one.next_s)[:, 0]
        y = one.r + config.discount * one.goes_on * next_v

        def advantages() -> plain.Array:
            return target_q - plain.network(self.of("value"), one.s)[:, 0]

        exponents = config.inverse_temperature * advantages()
        weights = np.minimum(np.exp(exponents), config.max_weight)

        def values_loss() -> float:
            u = advantages()
            value_loss = np.mean(np.abs(config.expectile - (u < 0)) * u**2)
            errors = self.q_values(self.CRITIC, one) - y
            return float(value_loss + np.mean(errors**2, 1).sum())

        metrics = {
            "value/mean": float(np.mean(target_q - advantages())),
            "critic/mean": float(np.mean(self.q_values(self.CRITIC, one))),
        }
        if config.steps is not None:
            progress = 1 + math.cos(math.pi * min(self.count / config.steps, 1))
            self.policy.rate = config.learning_rate * progress / 2
        self.count += 1
        plain.step_together(
            (self.values, values_loss),
            (self.policy, lambda: -float(np.mean(weights * self.logs(one)))),
        )
        self.follow(f"target_{self.CRITIC}", self.CRITIC)
        return metrics

    def acts(self, s: np.ndarray, *_: np.ndarray) -> plain.Array:
        return np.tanh(plain.network(self.of("policy"), s))
