from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tests.algos import plain
from tests.algos.updates import iql


class Plain(iql.Plain):
    """The same for a number of actions."""

    CASES = ({}, {"max_weight": 1.1})
    CRITIC, TWINS = "critics", ("0", "1")
    POLICY = ("policy",)

    def values(self, name: str, *parts: np.ndarray) -> plain.Array:
        s, actions = parts
        values = [plain.network(self.of(f"{name}/{twin}"), s) for twin in self.TWINS]
        return np.stack([plain.of_actions(value, actions) for value in values])

    def logs(self, one: SimpleNamespace) -> plain.Array:
        log_pi = plain.log_softmax(plain.network(self.of("policy"), one.s))
        return plain.of_actions(log_pi, one.a)

    def acts(self, s: np.ndarray, *_: np.ndarray) -> plain.Array:
        return plain.network(self.of("policy"), s).argmax(-1)
