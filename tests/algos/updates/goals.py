"""Those for goals."""

import math

import numpy as np
import torch

from tests.algos import plain


class OfGoals(plain.Plain):
    """What those for goals have in common."""

    SETTINGS = plain.chosen(hidden=(5, 4), learning_rate=2e-3, batch_size=6)
    TOLERANCE = 1e-5  # Adam divides by gradients, and some of these are near 0

    def network(self, name, *parts):
        inputs = np.concatenate(parts, 1)
        return plain.smooth_network(self.of(name), inputs, layer_norm=True)

    def value(self, name, *parts):
        return self.network(name, *parts)[:, 0]

    def means(self, *parts, name="policy"):
        return plain.smooth_network(self.of(name), np.concatenate(parts, 1))

    def logs(self, one):
        return plain.normal_logs(one.a - self.means(one.s, one.actor_goals))

    def acts(self, s, goals):
        return self.means(s, goals).clip(-1, 1)


class GCBC(OfGoals):
    def start(self):
        self.optimizer = self.adam("policy")

    def update(self, batch):
        one = plain.in_units(self.scaling, batch)
        errors = self.means(one.s, one.actor_goals) - one.a
        metrics = {"policy/loss": -float(self.logs(one).mean())}
        metrics["policy/squared_error"] = float((errors**2).mean())
        self.optimizer.step(lambda: -float(self.logs(one).mean()))
        return metrics


class GCIVL(OfGoals):
    SETTINGS = plain.chosen(**OfGoals.SETTINGS, target_rate=0.2, discount=0.9, expectile=0.8, inverse_temperature=4.0)
    CASES = ({"max_weight": 100.0}, {"max_weight": 1.1})

    def start(self):
        self.optimizer = self.adam("value", "policy")

    def update(self, batch):
        config, one = self.config, plain.in_units(self.scaling, batch)
        next_v = self.values("target_value", one.next_s, one.value_goals)
        q = one.r + config.discount * one.masks * next_v
        mean = self.values("target_value", one.s, one.value_goals).mean(0)
        weights = abs(config.expectile - (q.min(0) - mean < 0))
        ahead = self.values("value", one.next_s, one.actor_goals).mean(0)
        here = self.values("value", one.s, one.actor_goals).mean(0)
        chances = np.minimum(np.exp(config.inverse_temperature * (ahead - here)), config.max_weight)

        def loss():
            errors = q - self.values("value", one.s, one.value_goals)
            values = float((weights * errors**2).mean(1).sum())
            return values - float((chances * self.logs(one)).mean())

        self.follow("target_value", "value")
        self.optimizer.step(loss)


class GCIQL(OfGoals):
    SETTINGS = plain.chosen(**OfGoals.SETTINGS, target_rate=0.2, discount=0.9, expectile=0.8, cloning_weight=0.2)

    @staticmethod
    def prepare(algorithm):
        """Let some of the policy's actions be clipped."""
        with torch.no_grad():
            list(algorithm.policy.parameters())[-1].add_(torch.tensor([1.5, 0.0]))

    def start(self):
        self.critics, self.policy = self.adam("critic", "value"), self.adam("policy")

    def update(self, batch):
        config, one = self.config, plain.in_units(self.scaling, batch)
        s, goals = one.s, one.value_goals
        next_v = self.value("value", one.next_s, goals)
        y = one.r + config.discount * one.masks * next_v
        q = self.values("target_critic", s, goals, one.a).min(0)

        def own_q():
            actions = self.acts(s, one.actor_goals)
            return self.values("critic", s, one.actor_goals, actions).min(0)

        scale = abs(own_q()).mean() + 1e-6

        def value_loss():
            errors = q - self.value("value", s, goals)
            weights = abs(config.expectile - (errors < 0))
            squares = (self.values("critic", s, goals, one.a) - y) ** 2
            return float((weights * errors**2).mean() + squares.mean(1).sum())

        def policy_loss():
            cloning = config.cloning_weight * self.logs(one).mean()
            return -float(own_q().mean() / scale + cloning)

        self.follow("target_critic", "critic")
        plain.step_together((self.critics, value_loss), (self.policy, policy_loss))


class HIQL(OfGoals):
    SETTINGS = plain.chosen(
        learning_rate=2e-3, batch_size=4, representation=3, expectile=0.8, max_weight=1.2, low_inverse_temperature=2.0
    )
    UPDATES = 2

    def start(self):
        trained = ("representation", "value", "low_policy", "high_policy")
        self.optimizer = self.adam(*trained)

    def to_length(self, z):
        unit = z / np.sqrt((z**2).sum(1, keepdims=True))
        return unit * math.sqrt(z.shape[1])

    def phi(self, s, g):
        return self.to_length(self.network("representation", s, g))

    def value(self, name, *parts):
        s, goals = parts
        return self.network(name, s, self.phi(s, goals))[:, 0]

    def update(self, batch):
        one, config = plain.in_units(self.scaling, batch), self.config
        next_v = self.values("target_value", one.next_s, one.value_goals)
        targets = one.r + config.discount * one.masks * next_v
        advantage = targets.min(0) - self.values("target_value", one.s, one.value_goals).mean(0)
        weight = np.where(advantage < 0, 1 - config.expectile, config.expectile)

        def chances(later, goal, temperature):
            found = self.values("value", later, goal) - self.values("value", one.s, goal)
            return np.minimum(np.exp(temperature * found.mean(0)), config.max_weight)

        low_weight = chances(one.next_s, one.low_goals, config.low_inverse_temperature)
        high_weight = chances(one.subgoal_observations, one.actor_goals, config.high_inverse_temperature)
        low_phi, high_phi = self.phi(one.s, one.low_goals), self.phi(one.s, one.subgoals)

        def loss():
            errors = targets - self.values("value", one.s, one.value_goals)
            low = self.means(one.s, low_phi, name="low_policy")
            high = self.means(one.s, one.actor_goals, name="high_policy")
            cloned = low_weight * plain.normal_logs(one.a - low)
            chosen = high_weight * plain.normal_logs(high_phi - high)
            return float((weight * errors**2).mean(1).sum() - cloned.mean() - chosen.mean())

        self.follow("target_value", "value")
        self.optimizer.step(loss)

    def acts(self, s, goals):
        chosen = self.to_length(self.means(s, goals, name="high_policy"))
        return self.means(s, chosen, name="low_policy").clip(-1, 1)


class CRL(OfGoals):
    SETTINGS = plain.chosen(learning_rate=2e-3, batch_size=4, representation=3, cloning_weight=0.3)
    UPDATES = 2

    def start(self):
        self.critic, self.policy = self.adam("critic"), self.adam("policy")

    def logits(self, s, a, goals):
        found = [
            self.network(f"critic/phi.{one}", s, a) @ self.network(f"critic/psi.{one}", goals).T for one in range(2)
        ]
        return np.stack(found) / math.sqrt(self.config.representation)

    def update(self, batch):
        one, config = plain.in_units(self.scaling, batch), self.config

        def critic_loss():
            likely = 1 / (1 + np.exp(-self.logits(one.s, one.a, one.value_goals)))
            right = np.where(np.eye(len(one.s)), likely, 1 - likely)
            return -float(np.log(right).mean())

        def values():
            actions = self.acts(one.s, one.actor_goals)
            found = self.logits(one.s, actions, one.actor_goals)
            return np.diagonal(found, axis1=1, axis2=2).min(0)

        scale = np.abs(values()).mean() + 1e-6

        def policy_loss():
            cloned = config.cloning_weight * self.logs(one)
            return float(-values().mean() / scale - cloned.mean())

        plain.step_together((self.critic, critic_loss), (self.policy, policy_loss))


def union(starts, ends):
    """Return the length of a union of intervals, from the ends of those that overlap."""
    length, reached = 0.0, -np.inf
    for start, end in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        if end > max(start, reached):
            length += end - max(start, reached)
            reached = end
    return length


class QRL(OfGoals):
    SETTINGS = plain.chosen(learning_rate=2e-3, batch_size=4, representation=16, cloning_weight=0.3)
    UPDATES = 2

    def start(self):
        assert self.of("log_multiplier")[0] == self.of("distance/mixing")[0] == 0
        self.optimizer = self.adam("distance", "log_multiplier", "model")
        self.policy = self.adam("policy")

    def distance(self, here, there):
        mix = 1 / (1 + np.exp(-self.of("distance/mixing")[0]))
        found = []
        for x, y in zip(here, there, strict=True):
            groups = zip(x.reshape(-1, 8), y.reshape(-1, 8), strict=True)
            lengths = [union(starts, ends) for starts, ends in groups]
            found.append(mix * np.mean(lengths) + (1 - mix) * max(lengths))
        return np.array(found)

    def states(self, s):
        return self.network("distance/states", s)

    def goals(self, goals):
        return self.network("distance/goals", goals)

    def after(self, here, a):
        return here + self.network("model", here, a)

    def update(self, batch):
        one, config = plain.in_units(self.scaling, batch), self.config
        width = one.value_goals.shape[1]
        achieved = (batch.observations[:, :width] - self.scaling.goal_mean) / self.scaling.goal_std

        def local():
            here, following = self.states(one.s), self.states(one.next_s)
            cost = np.maximum(self.distance(here, following) - 1, 0) ** 2
            reached = self.distance(here, self.goals(achieved.numpy())) ** 2
            return float((cost + reached).mean())

        log_multiplier, now = self.of("log_multiplier")[0], local()
        multiplier = float(np.exp(log_multiplier))

        def loss():
            here, following = self.states(one.s), self.states(one.next_s)
            far = self.distance(here, self.goals(one.value_goals))
            expected = self.after(here, one.a)
            ways = self.distance(following, expected) + self.distance(expected, following)
            dual = np.exp(log_multiplier) * (config.local_cost - now)
            pushed = 100 * np.log1p(np.exp(5 - far / 100)).mean()
            return float(pushed + multiplier * local() + dual + ways.mean() / 2)

        def left():
            actions = self.acts(one.s, one.actor_goals)
            return self.distance(self.after(self.states(one.s), actions), self.goals(one.actor_goals))

        scale = np.abs(left()).mean() + 1e-6

        def policy_loss():
            return float(left().mean() / scale - config.cloning_weight * self.logs(one).mean())

        plain.step_together((self.optimizer, loss), (self.policy, policy_loss))
