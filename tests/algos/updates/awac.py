from __future__ import annotations

from typing import Any

import numpy as np

from tests.algos import plain


class Plain(plain.Plain):
    CASES = ({}, {"temperature": 0.1, "max_weight": 2.0})
    UPDATES = 4

    def start(self) -> None:
        self.critics = self.adam("critic")
        self.policy = self.adam("policy", "log_std")

    def sample(self, s: np.ndarray) -> plain.Array:
        noise = np.exp(self.of("log_std")[0]) * self.normal(len(s), 2)
        return np.clip(plain.network(self.of("policy"), s) + noise, -1, 1)

    def update(self, batch: Any) -> None:
        config, one = self.config, plain.in_units(self.scaling, batch)
        next_q = self.values("target_critic", one.next_s, self.sample(one.next_s)).min(0)
        y = one.r + config.discount * one.goes_on * next_q

        def critic_loss() -> float:
            return float(np.mean((self.values("critic", one.s, one.a) - y) ** 2, 1).sum())

        self.critics.step(critic_loss)
        own_q = self.values("critic", one.s, self.sample(one.s)).min(0)
        advantage = self.values("critic", one.s, one.a).min(0) - own_q
        weight = np.minimum(np.exp(advantage / config.temperature), config.max_weight)

        def policy_loss() -> float:
            errors = one.a - plain.network(self.of("policy"), one.s)
            return -float(np.mean(weight * plain.normal_logs(errors, self.of("log_std")[0])))

        self.policy.step(policy_loss)
        self.follow("target_critic", "critic")

    def acts(self, s: np.ndarray, *_: np.ndarray) -> plain.Array:
        return plain.network(self.of("policy"), s).clip(-1, 1)
