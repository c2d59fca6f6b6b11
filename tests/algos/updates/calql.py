from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tests.algos import plain
from tests.algos.updates import cql


class Plain(cql.Plain):
    SETTINGS = plain.chosen(sampled_actions=2)
    CASES = ({}, {"target_gap": None, "smallest_gap": 1.5})
    MULTIPLIER, SHARE = 1.0, 1.0

    def next_value(self, q_values: np.ndarray) -> plain.Array:
        return q_values.max(0)

    def own_values(self, values: np.ndarray, one: SimpleNamespace) -> plain.Array:
        return np.maximum(values, one.returns_to_go)

    def gaps(self, gaps: np.ndarray) -> plain.Array:
        return np.maximum(gaps, self.config.smallest_gap)

    def cloning_steps(self) -> int:
        return 0
