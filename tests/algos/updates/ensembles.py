"""Ensembles of critics: EDAC and RLPD."""

import functools
import math
from types import SimpleNamespace

import numpy as np
import torch

from tests.algos import plain


def cosines(gradients):
    """Return the mean over the batch of the sum over pairs i != j, divided by N - 1."""
    units = gradients / (np.linalg.norm(gradients, axis=-1, keepdims=True) + 1e-10)
    count, rows, _ = gradients.shape
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    total = sum(float((units[i] * units[j]).sum()) for i, j in pairs)
    return float(total / rows / (count - 1))


class Soft(plain.Plain):
    """With a temperature that is learned."""

    def start(self):
        assert self.of("log_temperature")[0] == 0
        self.critics = self.adam("critic", rate="critic_learning_rate")
        self.policy = self.adam("policy", rate="policy_learning_rate")
        self.temperature = self.adam("log_temperature", rate="temperature_learning_rate")


class EDAC(Soft):
    SETTINGS = plain.chosen(critics=3)
    CASES = ({}, {"diversity": 0.0, "critics": 2}, {"diversity": 5.0})

    @staticmethod
    def prepare(algorithm):
        """Enlarge the last layers, which start so small that a difference would hardly show."""
        with torch.no_grad():
            algorithm.critic.weights[-1].mul_(100)
            algorithm.target_critic.weights[-1].mul_(100)

    def judged(self, name, s, a):
        """Return the values of all critics, and their gradients with respect to the actions."""
        weights, biases = self.of(f"{name}/weights"), self.of(f"{name}/biases")
        values, active = np.concatenate([s, a], -1), []
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            values = np.maximum(values @ weight + bias, 0)
            active.append(values > 0)
        slope = np.broadcast_to(np.swapaxes(weights[-1], 1, 2), active[-1].shape)
        for weight, mask in zip(weights[-2::-1], active[::-1], strict=True):
            slope = (slope * mask) @ np.swapaxes(weight, 1, 2)
        return (values @ weights[-1] + biases[-1])[..., 0], slope[..., s.shape[1] :]

    def sample(self, s, noise):
        return plain.squashed(plain.network(self.of("policy"), s), noise, (-5, 2))

    def update(self, batch):
        config, one = self.config, plain.in_units(self.scaling, batch)
        here, there = (self.normal(*one.a.shape) for _ in range(2))
        log_pi, log_temperature = self.sample(one.s, here)[1], self.of("log_temperature")[0]
        self.temperature.step(lambda: float(np.mean(-log_temperature * (log_pi - 2))))
        temperature = math.exp(log_temperature)

        def policy_loss():
            action, log_density = self.sample(one.s, here)
            value = self.judged("critic", one.s, action)[0].min(0)
            return float(np.mean(temperature * log_density - value))

        self.policy.step(policy_loss)
        next_a, next_log_pi = self.sample(one.next_s, there)
        next_q = self.judged("target_critic", one.next_s, next_a)[0].min(0)
        y = one.r + config.discount * one.goes_on * (next_q - temperature * next_log_pi)

        def critic_loss():
            values, slopes = self.judged("critic", one.s, one.a)
            bellman = ((values - y) ** 2).mean(1).sum()
            return float(bellman + (config.diversity and config.diversity * cosines(slopes)))

        self.critics.step(critic_loss)
        self.follow("target_critic", "critic")


class RLPD(Soft):
    """All updates of a step."""

    SETTINGS = plain.chosen(critics=3, smallest_of=2, updates=2)
    CASES = ({}, {"backup_entropy": False, "smallest_of": 1})

    def sample(self, s, noise):
        return plain.squashed(plain.network(self.of("policy"), s), noise, (-20, 2))

    def q(self, name, s, a):
        """Return the values [critics, batch] of critics of one hidden layer with a norm."""
        weights, last, biases, last_bias, scale, shift = self.of(name)
        hidden = np.concatenate([s, a], -1) @ weights + biases
        apart = hidden - hidden.mean(-1, keepdims=True)
        normal = apart / np.sqrt((apart**2).mean(-1, keepdims=True) + 1e-6)
        values = np.maximum(normal * scale + shift, 0) @ last + last_bias
        return values[..., 0]

    def critic_loss(self, one, y):
        return float(np.mean((self.q("critic", one.s, one.a) - y) ** 2))

    def update(self, batch):
        config, whole = self.config, plain.in_units(self.scaling, batch)
        log_temperature, one = self.of("log_temperature")[0], whole
        for index in range(config.updates):
            parts = {name: value[index :: config.updates] for name, value in vars(whole).items()}
            one = SimpleNamespace(**parts)
            next_a, density = self.sample(one.next_s, self.normal(1, *one.a.shape)[0])
            chosen = torch.randperm(config.critics, generator=self.generator)
            values = self.q("target_critic", one.next_s, next_a)
            value = values[chosen[: config.smallest_of].numpy()].min(0)
            if config.backup_entropy:
                value = value - np.exp(log_temperature) * density
            y = one.r + config.discount * one.goes_on * value
            self.critics.step(functools.partial(self.critic_loss, one, y))
            self.follow("target_critic", "critic")
        noise = self.normal(1, *one.a.shape)[0]
        temperature = float(np.exp(log_temperature))
        entropy = -float(np.mean(self.sample(one.s, noise)[1]))

        def policy_loss():
            actions, density = self.sample(one.s, noise)
            values = self.q("critic", one.s, actions).mean(0)
            return float(np.mean(temperature * density - values))

        self.policy.step(policy_loss)
        self.temperature.step(lambda: float(np.exp(log_temperature) * (entropy + 1.0)))
