"""Conservative values: CQL in its forms, and Cal-QL."""

import math

import numpy as np
import torch

from tests.algos.updates import common as plain


class CQL(plain.Plain):
    SETTINGS = plain.chosen(sampled_actions=2, cloning_steps=0)
    CASES = (
        {},
        {"conservative_weight": 0.0},
        {"target_gap": 5.0, "conservative_weight": 2.0},
        {"cloning_steps": 2, "sampled_actions": 1},
    )
    MULTIPLIER, SHARE = 0.0, 0.5
    """The logarithm at the start, and its factor in its loss."""

    def start(self):
        assert self.of("log_temperature")[0] == 0
        assert self.of("log_multiplier")[0] == self.MULTIPLIER
        self.critics = self.adam("critic", rate="critic_learning_rate")
        self.policy = self.adam("policy", rate="policy_learning_rate")
        self.temperature = self.adam("log_temperature", rate="policy_learning_rate")
        self.multiplier = self.adam("log_multiplier", rate="critic_learning_rate")

    def sample(self, s, noise):
        return plain.squashed(plain.network(self.of("policy"), s), noise, (-20, 2), -1.0)

    def cloned(self, one):
        """Return the log densities of the data's actions."""
        means, log_stds = np.split(plain.network(self.of("policy"), one.s), 2, -1)
        logs = plain.normal_logs(np.arctanh(one.a) - means, np.clip(log_stds - 1, -20, 2))
        return logs - np.log(1 - one.a**2).sum(-1)

    def next_value(self, q_values):
        """Return the values of next states from those of several actions there."""
        return q_values[0]

    def own_values(self, values, one):  # noqa: ARG002
        """Return the values of the policy's actions in the conservative term."""
        return values

    def gaps(self, gaps):
        return gaps

    def update(self, batch):
        config, one = self.config, plain.in_units(self.scaling, batch)
        s, a, shape = one.s, one.a, (config.sampled_actions, *one.a.shape)
        noise = [self.normal(*shape) for _ in range(2)]
        uniform = torch.empty(shape).uniform_(-1, 1, generator=self.generator).numpy()
        fresh = self.normal(1, *a.shape)[0]
        proposals = [self.sample(s, noise[0]), self.sample(one.next_s, noise[1])]
        states, next_states = (np.broadcast_to(x, (*shape[:2], 3)) for x in (s, one.next_s))
        next_q = self.values("target_critic", next_states, proposals[1][0]).min(0)
        y = one.r + config.discount * one.goes_on * self.next_value(next_q)

        def gaps():
            parts = [self.values("critic", states, uniform) - 2 * np.log(0.5)]
            for actions, density in proposals:
                values = self.own_values(self.values("critic", states, actions), one)
                parts.append(values - density)
            total = np.log(np.exp(np.concatenate(parts, 1)).sum(1))
            return self.gaps(total - self.values("critic", s, a)).mean(1)

        log_multiplier, multiplier, goal = self.of("log_multiplier")[0], 1.0, 0.0
        if config.target_gap is not None:
            multiplier, goal = math.exp(log_multiplier), config.target_gap

        def excess():
            return float(config.conservative_weight * (gaps() - goal).sum())

        def critic_loss():
            errors = self.values("critic", s, a) - y
            return float(np.mean(errors**2, 1).sum() + multiplier * excess())

        metrics = {"critic/gap": float(gaps().mean())}
        log_temperature, excess_now = self.of("log_temperature")[0], excess()
        temperature, clones = math.exp(log_temperature), self.count < self.cloning_steps()

        def policy_loss():
            actions, density = self.sample(s, fresh)
            value = self.values("critic", s, actions).min(0)
            value = self.cloned(one) if clones else value
            return float(np.mean(temperature * density - value))

        entropy = -float(np.mean(self.sample(s, fresh)[1]))
        metrics |= {"policy/entropy": entropy, "policy/temperature": temperature}
        steps = [
            (self.critics, critic_loss),
            (self.policy, policy_loss),
            (self.temperature, lambda: float(log_temperature * (entropy + 2))),
        ]
        if config.target_gap is not None:
            factor = self.SHARE * excess_now
            steps.append((self.multiplier, lambda: -float(np.exp(log_multiplier) * factor)))
        plain.step_together(*steps)
        self.follow("target_critic", "critic")
        self.count += 1
        return metrics

    def cloning_steps(self):
        return self.config.cloning_steps
