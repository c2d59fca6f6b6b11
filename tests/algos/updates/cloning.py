"""BC in its forms."""

import numpy as np

from tests.algos import plain


class BC(plain.Plain):
    def start(self):
        self.optimizer = self.adam("policy")

    def update(self, batch):
        one = plain.in_units(self.scaling, batch)

        def loss():
            return float(np.mean((self.acts(one.s, one.s) - one.a) ** 2))

        metrics = {"policy/loss": loss()}
        self.optimizer.step(loss)
        return metrics


class BCDiscrete(plain.Plain):
    SETTINGS = plain.chosen(log_penalty=0.2)

    def start(self):
        self.optimizer = self.adam("policy")

    def update(self, batch):
        one = plain.in_units(self.scaling, batch)

        def loss():
            log_pi = plain.log_softmax(plain.network(self.of("policy"), one.s))
            penalty = self.config.log_penalty * np.mean(log_pi**2)
            return float(penalty - np.mean(plain.of_actions(log_pi, one.a)))

        metrics = {"policy/loss": loss()}
        self.optimizer.step(loss)
        return metrics


class PercentBC(BC):
    """As BC, on other batches."""


class PercentBCDiscrete(BCDiscrete):
    """As BC, on other batches."""
