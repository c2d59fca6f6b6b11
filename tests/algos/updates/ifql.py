from __future__ import annotations

from typing import Any

import numpy as np

from tests.algos import plain
from tests.algos.updates import fql


class Plain(fql.Plain):
    SETTINGS = plain.chosen()
    CASES = ({},)

    def start(self) -> None:
        self.optimizers = [self.adam(name) for name in ("critic", "value", "policy")]

    def update(self, batch: Any) -> dict[str, float]:
        config, one = self.config, plain.in_units(self.scaling, batch)
        s, a = one.s, one.a
        z, t = self.normal(*a.shape), self.uniform(len(a), 1)
        target_q = self.values("target_critic", s, a).min(0)
        y = one.r + config.discount * one.goes_on * self.value("value", one.next_s)

        def critic_loss() -> float:
            return float(np.mean((self.values("critic", s, a) - y) ** 2, 1).sum())

        def value_loss() -> float:
            u = target_q - self.value("value", s)
            return float(np.mean(np.abs(config.expectile - (u < 0)) * u**2))

        def actor_loss() -> float:
            return float(np.mean((self.policy(s, (1 - t) * z + t * a, t) - (a - z)) ** 2))

        losses = (critic_loss, value_loss, actor_loss)
        names = ("critic/loss", "value/loss", "policy/loss")
        metrics = {name: loss() for name, loss in zip(names, losses, strict=True)}
        self.follow("target_critic", "critic")
        plain.step_together(*zip(self.optimizers, losses, strict=True))
        return metrics
