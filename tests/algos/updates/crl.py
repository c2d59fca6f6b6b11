from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.algos import plain
from tests.algos.updates.gcbc import OfGoals


class Plain(OfGoals):
    SETTINGS = plain.chosen(learning_rate=2e-3, batch_size=4, representation=3, cloning_weight=0.3)
    UPDATES = 2

    def start(self) -> None:
        self.critic, self.policy = self.adam("critic"), self.adam("policy")

    def logits(self, s: np.ndarray, a: np.ndarray, goals: np.ndarray) -> plain.Array:
        found = [
            self.network(f"critic/phi.{one}", s, a) @ self.network(f"critic/psi.{one}", goals).T
            for one in range(2)
        ]
        return np.stack(found) / math.sqrt(self.config.representation)

    def update(self, batch: Any) -> None:
        one, config = plain.in_units(self.scaling, batch), self.config

        def critic_loss() -> float:
            likely = 1 / (1 + np.exp(-self.logits(one.s, one.a, one.value_goals)))
            right = np.where(np.eye(len(one.s)), likely, 1 - likely)
            return -float(np.log(right).mean())

        def values() -> plain.Array:
            actions = self.acts(one.s, one.actor_goals)
            found = self.logits(one.s, actions, one.actor_goals)
            return np.diagonal(found, axis1=1, axis2=2).min(0)

        scale = np.abs(values()).mean() + 1e-6

        def policy_loss() -> float:
            cloned = config.cloning_weight * self.logs(one)
            return float(-values().mean() / scale - cloned.mean())

        plain.step_together((self.critic, critic_loss), (self.policy, policy_loss))
