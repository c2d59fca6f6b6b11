"""Deterministic policies near the data: TD3+BC and ReBRAC."""

import numpy as np

from tests.algos import plain


class TD3BC(plain.Plain):
    CASES = ({}, {"policy_interval": 3, "value_weight": 0.5, "target_noise": 2.0})
    UPDATES = 6

    def start(self):
        self.critics = self.adam("critic", rate="critic_learning_rate")
        self.policy = self.adam("policy", rate="policy_learning_rate")

    def smoothed(self, next_s):
        """Return the target policy's actions with noise."""
        config, actions = self.config, np.tanh(plain.network(self.of("target_policy"), next_s))
        noise = self.normal(*actions.shape) * config.target_noise
        noisy = actions + np.clip(noise, -config.noise_clip, config.noise_clip)
        return np.clip(noisy, -1, 1)

    def update(self, batch):
        config, one = self.config, plain.in_units(self.scaling, batch)
        next_q = self.values("target_critic", one.next_s, self.smoothed(one.next_s)).min(0)
        y = one.r + config.discount * one.goes_on * next_q
        self.critics.step(lambda: float(np.mean((self.values("critic", one.s, one.a) - y) ** 2, 1).sum()))
        self.count += 1
        if self.count % config.policy_interval:
            return

        def own_q():
            return self.values("critic", one.s, self.acts(one.s, one.s))[0]

        scale = config.value_weight / np.mean(np.abs(own_q()))
        self.policy.step(lambda: float(np.mean((self.acts(one.s, one.s) - one.a) ** 2) - scale * np.mean(own_q())))
        self.follow("target_critic", "critic")
        self.follow("target_policy", "policy")


class ReBRAC(TD3BC):
    SETTINGS = plain.chosen(policy_penalty=0.5, critic_penalty=0.5)
    CASES = ({}, {"policy_interval": 1, "critic_penalty": 3.0})
    UPDATES = 4

    def value(self, name, *parts):
        """Return the values of a critic with a layer normalization after each ReLU."""
        *hidden, weight, bias = self.of(name)
        values = np.concatenate(parts, 1)
        for index in range(0, len(hidden), 4):
            inner, offset, scale, shift = hidden[index : index + 4]
            values = np.maximum(values @ inner.T + offset, 0)
            apart = values - values.mean(1, keepdims=True)
            values = apart / np.sqrt((apart**2).mean(1, keepdims=True) + 1e-6) * scale + shift
        return (values @ weight.T + bias)[:, 0]

    def update(self, batch):
        config, one = self.config, plain.in_units(self.scaling, batch)
        next_a = self.smoothed(one.next_s)
        penalty = one.has_next_action * ((next_a - one.next_actions) ** 2).sum(1)
        next_q = self.values("target_critic", one.next_s, next_a).min(0)
        y = one.r + config.discount * one.goes_on * (next_q - config.critic_penalty * penalty)
        self.critics.step(lambda: float(np.mean((self.values("critic", one.s, one.a) - y) ** 2, 1).sum()))
        self.count += 1
        if (self.count - 1) % config.policy_interval:
            return
        self.follow("target_critic", "critic")
        self.follow("target_policy", "policy")

        def own_q():
            return self.values("critic", one.s, self.acts(one.s, one.s)).min(0)

        scale = 1 / np.mean(np.abs(own_q()))

        def loss():
            distance = ((self.acts(one.s, one.s) - one.a) ** 2).sum(1)
            return float(np.mean(config.policy_penalty * distance - scale * own_q()))

        self.policy.step(loss)
