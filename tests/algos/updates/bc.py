from __future__ import annotations

from typing import Any

import numpy as np

from tests.algos import plain


class Plain(plain.Plain):
    def start(self) -> None:
        self.optimizer = self.adam("policy")

    def update(self, batch: Any) -> dict[str, float]:
        one = plain.in_units(self.scaling, batch)

        def loss() -> float:
            return float(np.mean((self.acts(one.s, one.s) - one.a) ** 2))

        metrics = {"policy/loss": loss()}
        self.optimizer.step(loss)
        return metrics
