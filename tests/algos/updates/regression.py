"""Regression: IQL in its forms, and RECAP."""

import math

import numpy as np

from tests.algos.updates import common as plain


class IQL(plain.Plain):
    """Equations 5 to 7 of the paper, for actions in a box."""

    SETTINGS = plain.chosen(hidden=(5, 4), steps=6)
    CASES = ({}, {"inverse_temperature": 30.0, "max_weight": 3.0, "expectile": 0.9}, {"steps": None}, {"steps": 2})
    UPDATES = 4
    CRITIC = "critic"
    POLICY: tuple[str, ...] = ("policy", "log_std")

    def start(self):
        self.critics = self.adam(self.CRITIC, "value")
        self.policy = self.adam(*self.POLICY)

    def logs(self, one):
        return plain.normal_logs(one.a - self.acts(one.s, one.s), self.of("log_std")[0])

    def update(self, batch):
        config, one = self.config, plain.in_units(self.scaling, batch)
        target_q = self.values(f"target_{self.CRITIC}", one.s, one.a).min(0)
        next_v = self.value("value", one.next_s)
        y = one.r + config.discount * one.goes_on * next_v

        def advantages():
            return target_q - self.value("value", one.s)

        exponents = config.inverse_temperature * advantages()
        weights = np.minimum(np.exp(exponents), config.max_weight)

        def values_loss():
            u = advantages()
            value_loss = np.mean(np.abs(config.expectile - (u < 0)) * u**2)
            errors = self.values(self.CRITIC, one.s, one.a) - y
            return float(value_loss + np.mean(errors**2, 1).sum())

        metrics = {
            "value/mean": float(np.mean(target_q - advantages())),
            "critic/mean": float(np.mean(self.values(self.CRITIC, one.s, one.a))),
        }
        if config.steps is not None:
            progress = 1 + math.cos(math.pi * min(self.count / config.steps, 1))
            self.policy.rate = config.learning_rate * progress / 2
        self.count += 1
        plain.step_together(
            (self.critics, values_loss), (self.policy, lambda: -float(np.mean(weights * self.logs(one))))
        )
        self.follow(f"target_{self.CRITIC}", self.CRITIC)
        return metrics


class IQLDiscrete(IQL):
    """The same for a number of actions."""

    CASES = ({}, {"max_weight": 1.1})
    CRITIC, TWINS = "critics", ("0", "1")
    POLICY = ("policy",)

    def values(self, name, *parts):
        s, actions = parts
        values = [plain.network(self.of(f"{name}/{twin}"), s) for twin in self.TWINS]
        return np.stack([plain.of_actions(value, actions) for value in values])

    def logs(self, one):
        log_pi = plain.log_softmax(plain.network(self.of("policy"), one.s))
        return plain.of_actions(log_pi, one.a)


class RECAP(plain.Plain):
    """Cloning that is told which actions are good, but for some of the steps."""

    SETTINGS = plain.chosen(hidden=(5, 4), threshold=0.5)
    CASES = ({}, {"interventions": True, "left_out": 0.6}, {"left_out": 0.0})

    def start(self):
        self.optimizer = self.adam("policy")

    def acts(self, s, _goals):
        return np.tanh(plain.network(self.of("policy"), np.c_[s, np.ones(len(s))]))

    def update(self, batch):
        one = plain.in_units(self.scaling, batch)
        good = batch.infos["advantage"].numpy() > 0.5
        if self.config.interventions:
            good |= batch.infos["intervention"].numpy() > 0
        told = np.where(good, 1.0, -1.0) * (self.uniform(len(good)) >= self.config.left_out)

        def loss():
            return float(np.mean((np.tanh(plain.network(self.of("policy"), np.c_[one.s, told])) - one.a) ** 2))

        plain.step_together((self.optimizer, loss))
        return {"policy/good": float(good.mean())}
