from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.algos import plain


class OfGoals(plain.Plain):
    """What those for goals have in common."""

    SETTINGS = plain.chosen(hidden=(5, 4), learning_rate=2e-3, batch_size=6)
    TOLERANCE = 1e-5  # Adam divides by gradients, and some of these are near 0

    def network(self, name: str, *parts: np.ndarray) -> plain.Array:
        inputs = np.concatenate(parts, 1)
        return plain.smooth_network(self.of(name), inputs, layer_norm=True)

    def value(self, name: str, *parts: np.ndarray) -> plain.Array:
        return self.network(name, *parts)[:, 0]

    def means(self, *parts: np.ndarray, name: str = "policy") -> plain.Array:
        return plain.smooth_network(self.of(name), np.concatenate(parts, 1))

    def logs(self, one: SimpleNamespace) -> plain.Array:
        return plain.normal_logs(one.a - self.means(one.s, one.actor_goals))

    def acts(self, s: np.ndarray, goals: np.ndarray) -> plain.Array:
        return self.means(s, goals).clip(-1, 1)


class Plain(OfGoals):
    def start(self) -> None:
        self.optimizer = self.adam("policy")

    def update(self, batch: Any) -> dict[str, float]:
        one = plain.in_units(self.scaling, batch)
        errors = self.means(one.s, one.actor_goals) - one.a
        metrics = {"policy/loss": -float(self.logs(one).mean())}
        metrics["policy/squared_error"] = float((errors**2).mean())
        self.optimizer.step(lambda: -float(self.logs(one).mean()))
        return metrics
