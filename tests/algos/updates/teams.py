"""Updates of algorithms for teams, from their equations: `plain.Plain` says how."""

import numpy as np
import torch

from tests.algos.updates import common as plain


class MABCQ(plain.Plain):
    """Discrete BCQ of agents that take no part at times, mixed by QMIX."""

    SETTINGS = plain.chosen(target_interval=2, mixer_width=3, hyper_width=2)
    CASES = ({}, {"threshold": 1.0}, {"threshold": 0.0})

    @staticmethod
    def prepare(algorithm):
        with torch.no_grad():
            for one in algorithm.imitation.parameters():
                one.mul_(2)

    def start(self):
        self.optimizer = self.adam("values", "mixer")
        self.imitator = self.adam("imitation")

    def seen(self, observations):
        which = np.broadcast_to(np.eye(2), (len(observations), 2, 2))
        return np.concatenate([observations, which], -1)

    def mixed(self, name, values, observations):
        s = observations.reshape(len(observations), -1)

        def given(part):
            return plain.network(self.of(f"{name}/{part}"), s)

        totals = []
        for row in range(len(s)):
            weights = np.abs(given("first_weights")[row].reshape(2, 3))
            x = values[row] @ weights + given("first_biases")[row]
            hidden = np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1)
            last = np.abs(given("last_weights")[row])
            totals.append(hidden @ last + given("last_bias")[row, 0])
        return np.array(totals)

    def update(self, batch):
        config, one = self.config, plain.in_units(self.scaling, batch)
        s, next_s = self.seen(one.s), self.seen(one.next_s)
        rows = range(len(s))
        likely = np.exp(plain.log_softmax(plain.network(self.of("imitation"), next_s)))
        q = plain.network(self.of("values"), next_s)
        target_q = plain.network(self.of("target_values"), next_s)
        next_values, targets = np.zeros((len(s), 2)), []
        for row in rows:
            for agent in range(2):
                may = [
                    action
                    for action in range(3)
                    if likely[row, agent, action] >= config.threshold * likely[row, agent].max()
                ]
                best = max(may, key=lambda action: q[row, agent, action])
                ended = one.acts[row, agent] and one.terminations[row, agent]
                alive = one.next_acts[row, agent] or (one.acts[row, agent] and not ended)
                next_values[row, agent] = target_q[row, agent, best] * alive
        next_total = self.mixed("target_mixer", next_values, one.next_s)
        for row in rows:
            acting = [agent for agent in range(2) if one.acts[row, agent]]
            reward = sum(one.r[row, agent] for agent in acting) / max(len(acting), 1)
            over = all(one.terminations[row, agent] for agent in acting)
            targets.append(reward + config.discount * (not over) * next_total[row])

        def loss():
            values = plain.network(self.of("values"), s)
            own = np.take_along_axis(values, one.a[..., None] * one.acts[..., None], -1)[..., 0]
            total = self.mixed("mixer", own * one.acts, one.s)
            return float(np.mean((np.array(targets) - total) ** 2) / 2)

        def imitation():
            logs = plain.log_softmax(plain.network(self.of("imitation"), s))
            found = [logs[row, agent, one.a[row, agent]] for row in rows for agent in range(2) if one.acts[row, agent]]
            return -float(np.mean(found))

        metrics = {"critic/loss": loss(), "imitation/loss": imitation()}
        plain.step_together((self.optimizer, loss), (self.imitator, imitation))
        if self.count % config.target_interval == 0:
            self.follow("target_values", "values", 1.0)
            self.follow("target_mixer", "mixer", 1.0)
        self.count += 1
        return metrics

    def acts(self, s, goals):  # noqa: ARG002
        """Return None: actions are those of several agents, which another test looks at."""
        return
