"""What keeps costs below a limit: CPQ, CQL with a Lagrange multiplier, and the Constrained Decision Transformer."""

import math

import numpy as np
import torch
from scipy import special

from tests.algos.updates import common as plain
from tests.algos.updates.conservative import CQL
from tests.algos.updates.sequences import DT

LIMIT = 2.0 * (1 - 0.9**10) / (1 - 0.9) / 10
"""A limit of 2 for an episode of 10 steps, at a discount of 0.9."""


class CPQ(plain.Plain):
    SETTINGS = plain.chosen(
        cost_limit=2.0, discount=0.9, episode_length=10.0, sampled_actions=2, autoencoder_width=4, unsafe_weight=0.7
    )
    CASES = (
        {},
        {"cost_limit": 8.0, "multiplier_learning_rate": 0.5, "sampled_actions": 3},
        {"cloning_steps": 2, "cost_limit": 0.0},
        {"bounded_costs": True},
    )

    def start(self):
        assert self.of("log_multiplier")[0] == 0
        names = ("autoencoder", "critic", "cost_critic")
        self.optimizer = self.adam(*names, rate="critic_learning_rate")
        self.policy = self.adam("policy", rate="policy_learning_rate")

    def sample(self, s, noise):
        return plain.squashed(plain.network(self.of("policy"), s), noise, (-20, 2), 0.0)

    def latent(self, s, a):
        inputs = np.concatenate([s, a], -1)
        outputs = plain.network(self.of("autoencoder/encoder"), inputs)
        means, logs = np.split(outputs, 2, -1)
        logs = np.clip(logs, -4, 15)
        return means, logs, 0.5 * (means**2 + np.exp(2 * logs) - 1 - 2 * logs).mean(-1)

    def update(self, batch):
        config, one = self.config, plain.in_units(self.scaling, batch)
        s, a, costs = one.s, one.a, batch.infos["cost"].numpy()
        limit = LIMIT * config.cost_limit / 2.0
        next_a, _ = self.sample(one.next_s, self.normal(1, *a.shape)[0])
        next_c = self.values("target_cost_critic", one.next_s, next_a).max(0)
        next_q = self.values("target_critic", one.next_s, next_a).min(0)
        y = one.r + 0.9 * one.goes_on * (next_c <= limit) * next_q
        y_cost = costs + 0.9 * one.goes_on * next_c
        count = config.sampled_actions
        many = np.broadcast_to(s, (count, *s.shape))
        sampled, _ = self.sample(s, self.normal(count, *a.shape))
        z_noise, own_noise = self.normal(*a.shape[:1], 4), self.normal(1, *a.shape)[0]
        usual = self.latent(s, a)[2]
        unseen = self.latent(many, sampled)[2] > np.quantile(usual, 0.95)
        lowest, alpha = config.unseen_factor * limit, math.exp(self.of("log_multiplier")[0])

        def unseen_cost():
            judged = self.values("cost_critic", many, sampled).max(0)
            judged = np.minimum(judged, lowest) if config.bounded_costs else judged
            return float((judged * unseen).sum() / max(unseen.sum(), 1))

        def loss():
            means, logs, apart = self.latent(s, a)
            inputs = np.concatenate([s, means + np.exp(logs) * z_noise], -1)
            decoded = np.tanh(plain.network(self.of("autoencoder/decoder"), inputs))
            found = np.mean((decoded - a) ** 2) + config.divergence_weight * apart.mean()
            found += ((self.values("critic", s, a) - y) ** 2).mean(1).sum()
            found += ((self.values("cost_critic", s, a) - y_cost) ** 2).mean(1).sum()
            return float(found - alpha * (unseen_cost() - lowest))

        own, _ = self.sample(s, own_noise)
        is_safe = self.values("cost_critic", s, own).max(0) <= limit

        def policy_loss():
            if self.count < config.cloning_steps:
                outputs = plain.network(self.of("policy"), s)
                means, log_stds = np.split(outputs, 2, -1)
                logs = plain.normal_logs(np.arctanh(a) - means, np.clip(log_stds, -20, 2))
                return -float(np.mean(logs - np.log(1 - a**2).sum(-1)))
            actions, _ = self.sample(s, own_noise)
            q = self.values("critic", s, actions).min(0)
            cost = self.values("cost_critic", s, actions).max(0)
            return -float(np.mean(np.where(is_safe, q, -config.unsafe_weight * cost)))

        metrics = {"policy/safe": float(is_safe.mean()), "cost/unseen": unseen_cost()}
        gap = unseen_cost() - lowest
        plain.step_together((self.optimizer, loss), (self.policy, policy_loss))
        moved = self.of("log_multiplier")[0] - config.multiplier_learning_rate * alpha * gap
        self.of("log_multiplier")[0][...] = np.clip(moved, -5, 5)
        self.follow("target_critic", "critic")
        self.follow("target_cost_critic", "cost_critic")
        self.count += 1
        return metrics


class CQLLagrangian(CQL):
    SETTINGS = plain.chosen(cost_limit=2.0, discount=0.9, episode_length=10.0, sampled_actions=2, cloning_steps=0)
    CASES = (
        {"cost_weight": 0.7},
        {"cost_limit": 0.0, "controller": (0.5, 0.3, 0.2)},
        {"cloning_steps": 2, "sampled_actions": 1, "cost_limit": 0.0},
    )

    def start(self):
        self.critics = self.adam("critic", "cost_critic", rate="critic_learning_rate")
        self.policy = self.adam("policy", rate="policy_learning_rate")
        self.temperature = self.adam("log_temperature", rate="policy_learning_rate")
        self.total = self.last = 0.0

    def update(self, batch):
        config, one = self.config, plain.in_units(self.scaling, batch)
        s, a, costs = one.s, one.a, batch.infos["cost"].numpy()
        shape, limit = (config.sampled_actions, *a.shape), LIMIT * config.cost_limit / 2.0
        noise = [self.normal(*shape) for _ in range(2)]
        uniform = torch.empty(shape).uniform_(-1, 1, generator=self.generator).numpy()
        fresh = self.normal(1, *a.shape)[0]
        proposals = [self.sample(s, noise[0]), self.sample(one.next_s, noise[1])]
        states = np.broadcast_to(s, (*shape[:2], 3))
        next_a = proposals[1][0][0]
        next_q = self.values("target_critic", one.next_s, next_a).min(0)
        next_c = self.values("target_cost_critic", one.next_s, next_a).max(0)
        y = one.r + 0.9 * one.goes_on * next_q
        y_cost = costs + 0.9 * one.goes_on * next_c

        def gaps_of(name, sign):
            parts = [sign * self.values(name, states, uniform) - 2 * np.log(0.5)]
            parts += [sign * self.values(name, states, b) - logs for b, logs in proposals]
            total = special.logsumexp(np.concatenate(parts, 1), 1)
            return (total - sign * self.values(name, s, a)).mean(1)

        def critic_loss():
            found = ((self.values("critic", s, a) - y) ** 2).mean(1).sum()
            found += ((self.values("cost_critic", s, a) - y_cost) ** 2).mean(1).sum()
            found += config.conservative_weight * gaps_of("critic", 1.0).sum()
            return float(found + config.cost_weight * gaps_of("cost_critic", -1.0).sum())

        error = self.values("cost_critic", s, self.sample(s, fresh)[0]).max(0).mean() - limit
        gain = config.controller
        growth, self.total = max(0.0, error - self.last), max(0.0, self.total + error)
        self.last, clones = error, self.count < config.cloning_steps
        lagrange = gain[0] * max(0.0, error) + gain[1] * self.total + gain[2] * growth
        self.total = 0.0 if clones else self.total
        for name, value in (("total", self.total), ("last", self.last)):
            self.of(f"controller/{name}")[0][...] = value
        log_temperature = self.of("log_temperature")[0]
        temperature = math.exp(log_temperature)

        def policy_loss():
            actions, density = self.sample(s, fresh)
            worth = self.values("critic", s, actions).min(0)
            worth = worth - lagrange * self.values("cost_critic", s, actions).max(0)
            worth = self.cloned(one) if clones else worth
            return float(np.mean(temperature * density - worth))

        entropy = -float(np.mean(self.sample(s, fresh)[1]))
        metrics = {"cost/multiplier": float(lagrange), "policy/entropy": entropy}
        plain.step_together(
            (self.critics, critic_loss),
            (self.policy, policy_loss),
            (self.temperature, lambda: float(log_temperature * (entropy + 2))),
        )
        self.follow("target_critic", "critic")
        self.follow("target_cost_critic", "cost_critic")
        self.count += 1
        return metrics


class CDT(DT):
    SETTINGS = plain.chosen(
        length=3,
        width=4,
        layers=1,
        heads=2,
        dropout=0.0,
        longest_episode=3,
        learning_rate=1e-2,
        temperature_learning_rate=1e-2,
        warmup_steps=4,
        weight_decay=0.1,
        max_gradient_norm=0.1,
        return_scale=0.5,
        cost_scale=0.4,
        cost_prediction_weight=0.3,
        batch_size=6,
    )
    UPDATES = 2

    def start(self):
        self.optimizer = self.adam("policy", "cost_head")
        self.temperature = self.adam("log_temperature", rate="temperature_learning_rate")

    def outputs(self, one, batch):
        """Return what the head gives at observations, and the vectors at actions."""
        rows, length, _ = one.s.shape
        layer, time = "layers.layers.0", self.of("policy/times")[0][one.timesteps]
        tokens = np.empty((rows, 4 * length, time.shape[-1]))
        returns = one.returns_to_go[..., None] * self.config.return_scale
        costs = batch.infos["cost_to_go"].numpy()[..., None] * self.config.cost_scale
        tokens[:, 0::4] = self.linear("returns", returns) + time
        tokens[:, 1::4] = self.linear("other_wishes.0", costs) + time
        tokens[:, 2::4] = self.linear("observations", one.s) + time
        tokens[:, 3::4] = self.linear("actions", one.a) + time
        tokens = self.transformed(self.norm("norm", tokens), layer)
        return self.linear("head", tokens[:, 2::4]), tokens[:, 3::4]

    def update(self, batch):
        config, one = self.config, plain.in_units(self.scaling, batch)
        temperature, steps = math.exp(self.of("log_temperature")[0]), one.mask.sum()

        def spread():
            return self.outputs(one, batch)[0][..., 2:]

        def entropy():
            each = 0.5 * np.log(2 * np.pi * np.e) + spread()
            return float((each * one.mask[..., None]).sum() / (2 * steps))

        def loss():
            outputs, at_actions = self.outputs(one, batch)
            means, log_stds = outputs[..., :2], outputs[..., 2:]
            logs = plain.normal_logs((one.a - means)[..., None], log_stds[..., None])
            likelihood = (logs * one.mask[..., None]).sum() / (2 * steps)
            weight, bias = self.of("cost_head")
            guessed = plain.log_softmax(at_actions @ weight.T + bias)
            is_costly = (batch.infos["cost"].numpy() > 0)[..., None]
            told = np.where(is_costly, guessed[..., 1:], guessed[..., :1])[..., 0]
            found = -(likelihood + temperature * entropy())
            return float(found - config.cost_prediction_weight * (told * one.mask).mean())

        metrics, parameters = {"policy/entropy": entropy()}, self.optimizer.parameters
        found = [np.where(np.abs(g) < 1e-8, 0, g) for g in plain.gradients(loss, parameters)]
        norm = metrics["policy/gradient_norm"] = sum(float((g**2).sum()) for g in found) ** 0.5
        self.count += 1
        self.optimizer.rate = config.learning_rate * min(self.count / config.warmup_steps, 1)
        error = metrics["policy/entropy"] + 2
        for value in parameters:
            value *= 1 - self.optimizer.rate * config.weight_decay
        shrunk = min(config.max_gradient_norm / (norm + 1e-6), 1)
        self.optimizer.move([g * shrunk for g in found])
        self.temperature.step(lambda: float(np.exp(self.of("log_temperature")[0]) * error))
        return metrics
