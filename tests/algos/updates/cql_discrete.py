from __future__ import annotations

from typing import Any

import numpy as np

from tests.algos import plain


class Plain(plain.Plain):
    SETTINGS = plain.chosen(hidden=(5, 4), learning_rate=0.01, target_interval=3)
    CASES = (
        {"conservative_weight": 0.0},
        {"conservative_weight": 2.0},
        {"conservative_weight": 2.0, "bellman_loss": "huber"},
    )
    UPDATES = 5

    def start(self) -> None:
        self.optimizer = self.adam("critic")

    def update(self, batch: Any) -> None:
        config, one = self.config, plain.in_units(self.scaling, batch)
        next_q = plain.network(self.of("target_critic"), one.next_s)
        y = one.r + config.discount * one.goes_on * plain.of_actions(next_q, self.acts(one.next_s))

        def loss() -> float:
            q = plain.network(self.of("critic"), one.s)
            error = np.abs(plain.of_actions(q, one.a) - y)
            losses = error**2 / 2
            if config.bellman_loss == "huber":
                losses = np.where(error < 1, losses, error - 0.5)
            gap = np.log(np.exp(q).sum(-1)) - plain.of_actions(q, one.a)
            return float(np.mean(losses) + config.conservative_weight * np.mean(gap))

        self.optimizer.step(loss)
        if self.count % config.target_interval == 0:
            self.follow("target_critic", "critic", 1.0)
        self.count += 1

    def acts(self, s: np.ndarray, *_: np.ndarray) -> plain.Array:
        return plain.network(self.of("critic"), s).argmax(-1)
