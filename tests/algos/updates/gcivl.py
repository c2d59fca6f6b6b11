from __future__ import annotations

from typing import Any

import numpy as np

from tests.algos import plain
from tests.algos.updates.gcbc import OfGoals


class Plain(OfGoals):
    SETTINGS = plain.chosen(
        **OfGoals.SETTINGS, target_rate=0.2, discount=0.9, expectile=0.8, inverse_temperature=4.0
    )
    CASES = ({"max_weight": 100.0}, {"max_weight": 1.1})

    def start(self) -> None:
        self.optimizer = self.adam("value", "policy")

    def update(self, batch: Any) -> None:
        config, one = self.config, plain.in_units(self.scaling, batch)
        next_v = self.values("target_value", one.next_s, one.value_goals)
        q = one.r + config.discount * one.masks * next_v
        mean = self.values("target_value", one.s, one.value_goals).mean(0)
        weights = abs(config.expectile - (q.min(0) - mean < 0))
        ahead = self.values("value", one.next_s, one.actor_goals).mean(0)
        here = self.values("value", one.s, one.actor_goals).mean(0)
        chances = np.minimum(np.exp(config.inverse_temperature * (ahead - here)), config.max_weight)

        def loss() -> float:
            errors = q - self.values("value", one.s, one.value_goals)
            values = float((weights * errors**2).mean(1).sum())
            return values - float((chances * self.logs(one)).mean())

        self.follow("target_value", "value")
        self.optimizer.step(loss)
