from __future__ import annotations

from typing import Any

import torch

from tests.algos import plain
from tests.algos.updates.gcbc import OfGoals


class Plain(OfGoals):
    SETTINGS = plain.chosen(
        **OfGoals.SETTINGS, target_rate=0.2, discount=0.9, expectile=0.8, cloning_weight=0.2
    )

    @staticmethod
    def prepare(algorithm: Any) -> None:
        """Let some of the policy's actions be clipped."""
        with torch.no_grad():
            list(algorithm.policy.parameters())[-1].add_(torch.tensor([1.5, 0.0]))

    def start(self) -> None:
        self.critics, self.policy = self.adam("critic", "value"), self.adam("policy")

    def update(self, batch: Any) -> None:
        config, one = self.config, plain.in_units(self.scaling, batch)
        s, goals = one.s, one.value_goals
        next_v = self.value("value", one.next_s, goals)
        y = one.r + config.discount * one.masks * next_v
        q = self.values("target_critic", s, goals, one.a).min(0)

        def own_q() -> plain.Array:
            actions = self.acts(s, one.actor_goals)
            return self.values("critic", s, one.actor_goals, actions).min(0)

        scale = abs(own_q()).mean() + 1e-6

        def value_loss() -> float:
            errors = q - self.value("value", s, goals)
            weights = abs(config.expectile - (errors < 0))
            squares = (self.values("critic", s, goals, one.a) - y) ** 2
            return float((weights * errors**2).mean() + squares.mean(1).sum())

        def policy_loss() -> float:
            cloning = config.cloning_weight * self.logs(one).mean()
            return -float(own_q().mean() / scale + cloning)

        self.follow("target_critic", "critic")
        plain.step_together((self.critics, value_loss), (self.policy, policy_loss))
