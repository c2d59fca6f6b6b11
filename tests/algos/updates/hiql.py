from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.algos import plain
from tests.algos.updates.gcbc import OfGoals


class Plain(OfGoals):
    SETTINGS = plain.chosen(
        learning_rate=2e-3,
        batch_size=4,
        representation=3,
        expectile=0.8,
        max_weight=1.2,
        low_inverse_temperature=2.0,
    )
    UPDATES = 2

    def start(self) -> None:
        trained = ("representation", "value", "low_policy", "high_policy")
        self.optimizer = self.adam(*trained)

    def to_length(self, z: np.ndarray) -> plain.Array:
        unit = z / np.sqrt((z**2).sum(1, keepdims=True))
        return unit * math.sqrt(z.shape[1])

    def phi(self, s: np.ndarray, g: np.ndarray) -> plain.Array:
        return self.to_length(self.network("representation", s, g))

    def value(self, name: str, *parts: np.ndarray) -> plain.Array:
        s, goals = parts
        return self.network(name, s, self.phi(s, goals))[:, 0]

    def update(self, batch: Any) -> None:
        one, config = plain.in_units(self.scaling, batch), self.config
        next_v = self.values("target_value", one.next_s, one.value_goals)
        targets = one.r + config.discount * one.masks * next_v
        advantage = targets.min(0) - self.values("target_value", one.s, one.value_goals).mean(0)
        weight = np.where(advantage < 0, 1 - config.expectile, config.expectile)

        def chances(later: np.ndarray, goal: np.ndarray, temperature: float) -> plain.Array:
            found = self.values("value", later, goal) - self.values("value", one.s, goal)
            return np.minimum(np.exp(temperature * found.mean(0)), config.max_weight)

        low_weight = chances(one.next_s, one.low_goals, config.low_inverse_temperature)
        high_weight = chances(
            one.subgoal_observations, one.actor_goals, config.high_inverse_temperature
        )
        low_phi, high_phi = self.phi(one.s, one.low_goals), self.phi(one.s, one.subgoals)

        def loss() -> float:
            errors = targets - self.values("value", one.s, one.value_goals)
            low = self.means(one.s, low_phi, name="low_policy")
            high = self.means(one.s, one.actor_goals, name="high_policy")
            cloned = low_weight * plain.normal_logs(one.a - low)
            chosen = high_weight * plain.normal_logs(high_phi - high)
            return float((weight * errors**2).mean(1).sum() - cloned.mean() - chosen.mean())

        self.follow("target_value", "value")
        self.optimizer.step(loss)

    def acts(self, s: np.ndarray, goals: np.ndarray) -> plain.Array:
        chosen = self.to_length(self.means(s, goals, name="high_policy"))
        return self.means(s, chosen, name="low_policy").clip(-1, 1)
