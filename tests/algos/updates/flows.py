"""Flows: FQL, QC-FQL and IFQL."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.algos import plain


class FQL(plain.Plain):
    """Flow Q-learning of chunks of actions, which are of one action in FQL."""

    SETTINGS = plain.chosen(distillation_weight=0.5, flow_steps=3)
    CASES: tuple[dict[str, Any], ...] = ({}, {"target": "smallest", "normalize_values": True})
    UPDATES = 4

    def start(self):
        self.optimizers = [self.adam(name) for name in ("critic", "flow", "policy")]

    def value(self, name, *parts):
        inputs = np.concatenate(parts, 1)
        return plain.smooth_network(self.of(name), inputs, layer_norm=True)[:, 0]

    def acts(self, *_):
        """Draw the actions."""

    def policy(self, *inputs):
        return plain.smooth_network(self.of("policy"), np.concatenate(inputs, 1))

    def flow(self, *inputs):
        return plain.smooth_network(self.of("flow"), np.concatenate(inputs, 1))

    def update(self, batch):
        config, one = self.config, plain.in_units(self.scaling, batch)
        s, rows = one.s, len(one.s)
        valid = getattr(one, "valid", np.ones((rows, 1)))
        mask, whole = np.repeat(valid, 2, 1).astype(float), valid[:, -1].astype(float)
        a = one.a.reshape(rows, -1) * mask
        next_z, x_0 = (self.normal(*a.shape) for _ in range(2))
        t = self.uniform(rows, 1)
        z = self.normal(*a.shape)

        next_a = np.clip(self.policy(one.next_s, next_z), -1, 1)
        both_q = self.values("target_critic", one.next_s, next_a)
        next_q = both_q.mean(0) if config.target == "mean" else both_q.min(0)
        y = one.r + config.discount ** valid.shape[1] * one.goes_on * next_q

        def critic_loss():
            return float(np.mean(whole * (self.values("critic", s, a) - y) ** 2))

        def flow_loss():
            errors = self.flow(s, (1 - t) * x_0 + t * a, t) - (a - x_0)
            return float(np.mean(mask * errors**2))

        x = z
        for step in range(config.flow_steps):
            times = np.full((rows, 1), step / config.flow_steps)
            x = x + self.flow(s, x, times) / config.flow_steps
        carried = np.clip(x, -1, 1)

        def own_values():
            mu = self.policy(s, z)
            found = self.values("critic", s, np.clip(mu, -1, 1)).mean(0)
            return mu, found

        scale = np.mean(np.abs(own_values()[1])) if config.normalize_values else 1.0

        def actor_loss():
            mu, q = own_values()
            distance = np.mean((mu - carried) ** 2)
            return float(config.distillation_weight * distance - np.mean(q) / scale)

        losses = (critic_loss, flow_loss, actor_loss)
        names = ("critic/loss", "flow/loss", "policy/loss")
        metrics = {name: loss() for name, loss in zip(names, losses, strict=True)}
        self.follow("target_critic", "critic")
        plain.step_together(*zip(self.optimizers, losses, strict=True))
        return metrics


class QCFQL(FQL):
    SETTINGS = plain.chosen(chunk_length=2, hidden=(3,), distillation_weight=0.5, flow_steps=2, discount=0.9)
    UPDATES = 3


class IFQL(FQL):
    SETTINGS = plain.chosen()
    CASES = ({},)

    def start(self):
        self.optimizers = [self.adam(name) for name in ("critic", "value", "policy")]

    def update(self, batch):
        config, one = self.config, plain.in_units(self.scaling, batch)
        s, a = one.s, one.a
        z, t = self.normal(*a.shape), self.uniform(len(a), 1)
        target_q = self.values("target_critic", s, a).min(0)
        y = one.r + config.discount * one.goes_on * self.value("value", one.next_s)

        def critic_loss():
            return float(np.mean((self.values("critic", s, a) - y) ** 2, 1).sum())

        def value_loss():
            u = target_q - self.value("value", s)
            return float(np.mean(np.abs(config.expectile - (u < 0)) * u**2))

        def actor_loss():
            return float(np.mean((self.policy(s, (1 - t) * z + t * a, t) - (a - z)) ** 2))

        losses = (critic_loss, value_loss, actor_loss)
        names = ("critic/loss", "value/loss", "policy/loss")
        metrics = {name: loss() for name, loss in zip(names, losses, strict=True)}
        self.follow("target_critic", "critic")
        plain.step_together(*zip(self.optimizers, losses, strict=True))
        return metrics
