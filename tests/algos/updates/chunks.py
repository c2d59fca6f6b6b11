"""Chunks of actions: QAM in its forms, and DQC."""

import functools

import numpy as np

from tests.algos.updates import common as plain


def gelu(x):
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def network(parameters, inputs, *, normalized):
    """Return the outputs of linear layers with GELU, and perhaps layer normalization, between them."""
    parameters = iter(parameters)
    for weight in parameters:
        outputs = inputs @ weight.T + next(parameters)
        inputs = gelu(outputs)
        if normalized:
            inputs = (inputs - inputs.mean(-1, keepdims=True)) / np.sqrt(inputs.var(-1, keepdims=True) + 1e-6)
            scale = next(parameters, None)
            inputs = inputs if scale is None else inputs * scale + next(parameters)
    return outputs


def slopes(function, x, step=1e-5):
    """Return the derivatives [batch, n] of a function of each row by the row's numbers, by central differences."""
    moved = step * np.eye(x.shape[1])
    return np.stack([(function(x + one) - function(x - one)) / (2 * step) for one in moved], -1)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def logit(chance):
    return np.log(chance / (1 - chance))


class Chunks(plain.Plain):
    """What both have in common."""

    def net(self, name, *parts):
        return network(self.of(name), np.concatenate(parts, -1), normalized=name.startswith(self.NORMALIZED))

    def flow(self, name, s, noise, steps):
        x = noise
        for step in range(steps):
            x = x + self.net(name, s, x, np.full((len(s), 1), step / steps)) / steps
        return np.clip(x, -1, 1)

    def flow_points(self, a):
        noise, t = self.normal(*a.shape), self.uniform(len(a), 1)
        return (1 - t) * noise + t * a, t, a - noise

    def move_target(self, name, before):
        for target, online in zip(self.of(f"target_{name}"), before, strict=True):
            target += self.config.target_rate * (online - target)

    def acts(self, s, goals):  # noqa: ARG002
        return None


class QAM(Chunks):
    """The equations at the top of its file."""

    NORMALIZED = ("critic", "target_critic")
    SETTINGS = plain.chosen(hidden=(4,), chunk_length=2, critics=2, flow_steps=3, inverse_temperature=3.0)
    CASES = ({}, {"sampled_actions": 2}, {"edit_scale": 0.4}, {"distillation_weight": 2.0}, {"pessimism": 0.0})
    UPDATES = 2

    def start(self):
        refined = ["policy"] if "policy/0.weight" in self.parameters else []
        refined += ["log_temperature"] if "log_temperature" in self.parameters else []
        self.adams = {name: self.adam(name) for name in ["critic", "slow", "fast", *refined]}

    def critic(self, name, s, a):
        return np.stack([self.net(f"{name}/{k}", s, a)[:, 0] for k in range(self.config.critics)])

    def chosen(self, s):
        config, (rows, size) = self.config, (len(s), 4)
        s = np.repeat(s, config.sampled_actions, 0)
        noise = self.normal(len(s), size)
        if config.distillation_weight:
            a = self.net("policy", s, noise)
        else:
            a = self.flow("fast", s, noise, config.flow_steps)
        if config.edit_scale:
            a = a + config.edit_scale * self.edits(s, a)[0]
        a = np.clip(a, -1, 1)
        best = self.critic("critic", s, a).mean(0).reshape(rows, -1).argmax(1)
        return a.reshape(rows, -1, size)[np.arange(rows), best]

    def edits(self, s, a, noise=None):
        noise = self.normal(1, *a.shape)[0] if noise is None else noise
        return plain.squashed(self.net("policy", s, a), noise, (-20, 2))

    def matching(self, s):
        """Return the points, times and adjoints of paths."""
        config, steps = self.config, self.config.flow_steps
        h = 1 / steps
        times = [np.full((len(s), 1), k * h) for k in range(steps)]
        path = [self.normal(len(s), 4)]
        for k, t in enumerate(times):
            x = path[-1]
            if k == steps - 1:
                path.append(x + h * self.net("target_slow", s, x, t))
            else:
                sigma = np.sqrt(2 * (1 - t + h) / (t + h))
                drift = 2 * self.net("fast", s, x, t) - x / (t + h)
                path.append(x + h * drift + np.sqrt(h) * sigma * self.normal(len(s), 4))

        def value(x):
            return self.critic("target_critic", s, np.clip(x, -1, 1)).mean(0)

        def along(x, t, adjoint):
            return (adjoint * (2 * self.net("target_slow", s, x, t + h) - x / (t + h))).sum(-1)

        adjoints = [-config.inverse_temperature * slopes(value, path.pop())]
        for x, t in zip(path[::-1], times[::-1], strict=True):
            back = functools.partial(along, t=t, adjoint=adjoints[0])
            adjoints.insert(0, adjoints[0] + h * slopes(back, x))
        return path, times, adjoints[:-1]

    def update(self, batch):
        config = self.config
        valid = batch.valid.numpy()
        one = plain.in_units(self.scaling, batch)
        whole = valid[:, -1]
        a = (one.a * valid[:, :, None]).reshape(len(valid), -1)

        next_q = self.critic("target_critic", one.next_s, self.chosen(one.next_s))
        y = one.r + one.discounts * one.goes_on * (next_q.mean(0) - config.pessimism * next_q.std(0))
        x, t, direction = self.flow_points(a)
        path, times, adjoints = self.matching(one.s)
        base = [self.net("target_slow", one.s, *at) for at in zip(path, times, strict=True)]
        h = 1 / config.flow_steps

        def critic_loss():
            return float(np.mean((self.critic("critic", one.s, a) - y) ** 2 * whole))

        def slow_loss():
            return float(np.mean(np.mean((self.net("slow", one.s, x, t) - direction) ** 2, -1) * whole))

        def fast_loss():
            total = 0
            for point, time, adjoint, slow in zip(path, times, adjoints, base, strict=True):
                sigma = np.sqrt(2 * (1 - time + h) / (time + h))
                error = 2 / sigma * (self.net("fast", one.s, point, time) - slow) + sigma * adjoint
                total += np.mean(np.sum(error**2, -1))
            return float(total)

        losses = {"critic": critic_loss, "slow": slow_loss, "fast": fast_loss}
        shown = {"critic/loss": critic_loss(), "slow/loss": slow_loss(), "fast/loss": fast_loss()}
        if "policy" in self.adams:
            noise = self.normal(len(a), 4)
            carried = self.flow("fast", one.s, noise, config.flow_steps)
            edit_noise = self.normal(1, len(a), 4)[0] if config.edit_scale else None

            def policy_loss():
                if config.distillation_weight:
                    own = self.net("policy", one.s, noise)
                    more = config.distillation_weight * np.mean((own - carried) ** 2)
                else:
                    edit, log_density = self.edits(one.s, carried, edit_noise)
                    own = carried + config.edit_scale * edit
                    more = temperature * np.mean(log_density)
                return float(more - self.critic("critic", one.s, np.clip(own, -1, 1)).mean())

            losses["policy"] = policy_loss
        if config.edit_scale:
            temperature = float(np.exp(self.parameters["log_temperature"]))
            entropy = -self.edits(one.s, carried, edit_noise)[1].mean()
            losses["log_temperature"] = lambda: float(np.exp(self.parameters["log_temperature"]) * (entropy + 0.5 * 4))
        before = {name: [one.copy() for one in self.of(name)] for name in ("critic", "slow")}
        found = {name: plain.gradients(loss, self.adams[name].parameters) for name, loss in losses.items()}
        norm = np.sqrt(sum((one**2).sum() for its in found.values() for one in its))
        for name, its in found.items():
            self.adams[name].move([one / max(1, norm) for one in its])
        for name, its in before.items():
            self.move_target(name, its)
        return shown


class DQC(Chunks):
    """The equations at the top of its file."""

    NORMALIZED = ("",)
    SETTINGS = plain.chosen(hidden=(4,), horizon=3, policy_chunk=2, discount=0.9, learning_rate=1e-3)
    CASES = (
        {"kappa_d": 0.8},
        {"chunk_critic": False, "target": "smallest", "distillation": "quantile"},
        {"policy_chunk": 3, "chunk_critic": False, "backup": "expectile"},
    )

    def start(self):
        names = ["critic", "value", "flow", *(["chunk_critic"] if self.config.chunk_critic else [])]
        self.adams = {name: self.adam(name) for name in names}

    def values(self, name, *parts):
        return np.stack([self.net(f"{name}/{twin}", *parts)[:, 0] for twin in self.TWINS])

    def update(self, batch):
        config, valid = self.config, batch.valid.numpy()
        one = plain.in_units(self.scaling, batch)
        pairs, whole = np.concatenate([one.s, one.value_goals], -1), valid[:, -1]
        chunks = one.a * valid[:, :, None]
        taken = chunks[:, : config.policy_chunk].reshape(len(valid), -1)
        chunks = chunks.reshape(len(valid), -1)

        def entropy(logits, y):
            return -y * np.log(sigmoid(logits)) - (1 - y) * np.log(1 - sigmoid(logits))

        def error(logits, y, kappa, kind, start):
            weight = np.where(y >= sigmoid(start), kappa, 1 - kappa)
            return weight * (entropy(logits, y) if kind == "expectile" else np.abs(logits - logit(y)))

        next_v = sigmoid(self.net("value", one.next_s, one.value_goals)[:, 0])
        y = np.clip(one.r + one.discounts * one.masks * next_v, 0, 1)
        own = sigmoid(self.values("target_critic", pairs, taken))
        own = own.mean(0) if config.target == "mean" else own.min(0)
        x, t, direction = self.flow_points(taken)
        losses, distilled = {}, y
        if config.chunk_critic:
            distilled = sigmoid(self.values("chunk_critic", pairs, chunks))
            losses["chunk_critic"] = lambda: np.mean(entropy(self.values("chunk_critic", pairs, chunks), y) * whole)
        elif config.distillation == "quantile":
            distilled = np.clip(y, 1e-5, 1 - 1e-5)
        q, v = self.values("critic", pairs, taken), self.net("value", pairs)[:, 0]
        losses["critic"] = lambda: np.mean(
            error(self.values("critic", pairs, taken), distilled, config.kappa_d, config.distillation, q) * whole
        )
        losses["value"] = lambda: np.mean(
            error(self.net("value", pairs)[:, 0], own, config.kappa_b, config.backup, v) * whole
        )
        counts = valid[:, config.policy_chunk - 1]
        losses["flow"] = lambda: np.mean(np.mean((self.net("flow", one.s, x, t) - direction) ** 2, -1) * counts)
        shown = {f"{name}/loss": float(loss()) for name, loss in losses.items()}
        before = [one.copy() for one in self.of("critic")]
        plain.step_together(*((self.adams[name], lambda loss=loss: float(loss())) for name, loss in losses.items()))
        self.move_target("critic", before)
        return shown
