"""Values of goals: transitive RL. Derivatives are complex steps, which are exact where a formula is smooth."""

import numpy as np
import torch

from orlog.algos.networks import make_generator
from tests.algos.updates import common as plain


def network(parameters, inputs):
    """Return the outputs of linear layers; between them GELU (its tanh form), then layer normalization."""
    *hidden, weight, bias = parameters
    for place in range(0, len(hidden), 4):
        kernel, shift, gain, offset = hidden[place : place + 4]
        x = inputs @ kernel.T + shift
        x = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        x = x - x.mean(-1, keepdims=True)
        inputs = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gain + offset
    return inputs @ weight.T + bias


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def cross_entropy(x, y):
    return -y * np.log(sigmoid(x)) - (1 - y) * np.log(1 - sigmoid(x))


def clipped(x):
    """Return numbers clipped to [-1, 1], without a derivative where they are."""
    return np.where(np.abs(x.real) > 1, np.sign(x.real), x)


def smaller(first, second):
    return np.where(first.real < second.real, first, second)


def gradients(loss, parameters):
    found = [np.zeros(one.shape) for one in parameters]
    for one, gradient in zip(parameters, found, strict=True):
        for place in np.ndindex(one.shape):
            kept = one[place]
            one[place] = kept + 1e-30j
            gradient[place] = loss().imag / 1e-30
            one[place] = kept
    return found


class TRL(plain.Plain):
    """The data's way from state to goal, divided at a midpoint; goals are parts of states."""

    SETTINGS = plain.chosen(hidden=(4,), batch_size=6, discount=0.8)
    CASES = ({}, {"distance_weight": 0.0, "expectile": 0.9}, {"extraction": "frs"}, {"cloning_weight": 0.1})
    UPDATES = 50
    TOLERANCE = 1e-12

    def __init__(self, algorithm, seed):
        super().__init__(algorithm, seed)
        self.acting = make_generator(seed, 2)

    def start(self):
        self.parameters = {name: one.astype(np.complex128) for name, one in self.parameters.items()}
        self.optimizers = [self.adam(name) for name in ("critic", "goal_critic", "policy")]

    def logits(self, name, *parts):
        inputs = np.concatenate(parts, -1)
        return np.stack([network(self.of(f"{name}/{twin}"), inputs)[:, 0] for twin in self.TWINS])

    def acts(self, s, goals):
        if self.config.extraction == "rpg":
            return clipped(network(self.of("policy"), np.c_[s, goals])).real
        count, steps, best = self.config.sampled_actions, self.config.flow_steps, []
        noise = torch.randn((len(s), count, 2), generator=self.acting).numpy()
        for here, x in zip(np.c_[s, goals], noise, strict=True):
            inputs = np.tile(here, (count, 1))
            for step in range(steps):
                x = x + network(self.of("policy"), np.c_[inputs, x, np.full(count, step / steps)]).real / steps
            x = np.clip(x, -1, 1)
            best.append(x[self.logits("goal_critic", inputs, x).real.min(0).argmax()])
        return np.array(best)

    def update(self, batch):
        one, config = plain.in_units(self.scaling, batch), self.config
        w, g = one.midpoint_observations, one.value_goal_observations
        w_actions = self.scaling.actions_to_unit(batch.midpoint_actions).numpy()
        y = np.ones((2, len(one.s)))
        ways = (
            (one.midpoint_offsets, self.logits("target_critic", one.s, w, one.a)),
            (one.value_offsets - one.midpoint_offsets, self.logits("target_critic", w, g, w_actions)),
        )
        for steps, x in ways:
            for item, count in enumerate(steps):
                y[:, item] *= config.discount**count if count <= 1 else sigmoid(x[:, item]).real
        q = sigmoid(self.logits("critic", one.s, g, one.a)).real
        distances = np.log(y) / np.log(config.discount)
        weights = np.abs(config.expectile - (y < q)) / (1 + distances) ** config.distance_weight

        def of_states():
            return np.mean(weights * cross_entropy(self.logits("critic", one.s, g, one.a), y))

        def of_goals():
            return np.mean(cross_entropy(self.logits("goal_critic", one.s, one.value_goals, one.a), q))

        def followed(means):
            return smaller(*self.logits("goal_critic", one.s, one.actor_goals, clipped(means)))

        def rpg():
            means = network(self.of("policy"), np.c_[one.s, one.actor_goals])
            cloned = plain.normal_logs(one.a - means)
            return -followed(means).mean() / scale - config.cloning_weight * cloned.mean()

        def frs():
            found = network(self.of("policy"), np.c_[one.s, one.actor_goals, (1 - t) * z + t * one.a, t])
            return np.mean((found - (one.a - z)) ** 2)

        if config.extraction == "frs":
            z, t, of_policy = self.normal(*one.a.shape), self.uniform(len(one.s), 1), frs
        else:
            means, of_policy = network(self.of("policy"), np.c_[one.s, one.actor_goals]), rpg
            scale = np.abs(followed(means).real).mean() + 1e-6
        losses = (of_states, of_goals, of_policy)
        names = ("critic/loss", "critic/goal_loss", "policy/loss")
        metrics = {name: loss().real for name, loss in zip(names, losses, strict=True)}
        found = [gradients(loss, each.parameters) for each, loss in zip(self.optimizers, losses, strict=True)]
        self.follow("target_critic", "critic")
        for optimizer, each in zip(self.optimizers, found, strict=True):
            optimizer.move(each)
        return {**metrics, "critic/mean": q.mean()}
