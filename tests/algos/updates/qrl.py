from __future__ import annotations

from typing import Any

import numpy as np

from tests.algos import plain
from tests.algos.updates.gcbc import OfGoals


def union(starts: np.ndarray, ends: np.ndarray) -> float:
    """Return the length of a union of intervals, from the ends of those that overlap."""
    length, reached = 0.0, -np.inf
    for start, end in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        if end > max(start, reached):
            length += end - max(start, reached)
            reached = end
    return length


class Plain(OfGoals):
    SETTINGS = plain.chosen(learning_rate=2e-3, batch_size=4, representation=16, cloning_weight=0.3)
    UPDATES = 2

    def start(self) -> None:
        assert self.of("log_multiplier")[0] == self.of("distance/mixing")[0] == 0
        self.optimizer = self.adam("distance", "log_multiplier", "model")
        self.policy = self.adam("policy")

    def distance(self, here: np.ndarray, there: np.ndarray) -> plain.Array:
        mix = 1 / (1 + np.exp(-self.of("distance/mixing")[0]))
        found = []
        for x, y in zip(here, there, strict=True):
            groups = zip(x.reshape(-1, 8), y.reshape(-1, 8), strict=True)
            lengths = [union(starts, ends) for starts, ends in groups]
            found.append(mix * np.mean(lengths) + (1 - mix) * max(lengths))
        return np.array(found)

    def states(self, s: np.ndarray) -> plain.Array:
        return self.network("distance/states", s)

    def goals(self, goals: np.ndarray) -> plain.Array:
        return self.network("distance/goals", goals)

    def after(self, here: np.ndarray, a: np.ndarray) -> plain.Array:
        return here + self.network("model", here, a)

    def update(self, batch: Any) -> None:
        one, config = plain.in_units(self.scaling, batch), self.config
        width = one.value_goals.shape[1]
        achieved = (batch.observations[:, :width] - self.scaling.goal_mean) / self.scaling.goal_std

        def local() -> float:
            here, following = self.states(one.s), self.states(one.next_s)
            cost = np.maximum(self.distance(here, following) - 1, 0) ** 2
            reached = self.distance(here, self.goals(achieved.numpy())) ** 2
            return float((cost + reached).mean())

        log_multiplier, now = self.of("log_multiplier")[0], local()
        multiplier = float(np.exp(log_multiplier))

        def loss() -> float:
            here, following = self.states(one.s), self.states(one.next_s)
            far = self.distance(here, self.goals(one.value_goals))
            expected = self.after(here, one.a)
            ways = self.distance(following, expected) + self.distance(expected, following)
            dual = np.exp(log_multiplier) * (config.local_cost - now)
            pushed = 100 * np.log1p(np.exp(5 - far / 100)).mean()
            return float(pushed + multiplier * local() + dual + ways.mean() / 2)

        def left() -> plain.Array:
            actions = self.acts(one.s, one.actor_goals)
            return self.distance(
                self.after(self.states(one.s), actions), self.goals(one.actor_goals)
            )

        scale = np.abs(left()).mean() + 1e-6

        def policy_loss() -> float:
            return float(left().mean() / scale - config.cloning_weight * self.logs(one).mean())

        plain.step_together((self.optimizer, loss), (self.policy, policy_loss))
