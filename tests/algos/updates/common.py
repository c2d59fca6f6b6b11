"""Networks, gradients and Adam in plain float64 NumPy, to check updates against that no other code recorded.

Gradients are numerical, so that a loss is written once, as its equation.
"""

import dataclasses
from types import MappingProxyType, SimpleNamespace

import gymnasium
import numpy as np
import torch

from orlog.algos.networks import make_generator
from tests.algos.plain import goal_maps, tensors_of

NAMES = {"observations": "s", "actions": "a", "rewards": "r", "next_observations": "next_s"}


def network(parameters, inputs):
    """Return the outputs of linear layers with ReLU between them."""
    for index in range(0, len(parameters), 2):
        inputs = inputs @ parameters[index].T + parameters[index + 1]
        if index < len(parameters) - 2:
            inputs = np.maximum(inputs, 0)
    return inputs


def gradients(loss, parameters):
    """Return the gradient of a loss by central differences."""
    found = [np.zeros_like(one) for one in parameters]
    for one, gradient in zip(parameters, found, strict=True):
        for place in np.ndindex(one.shape):
            kept = one[place]
            sides = []
            for step in (1e-5, -1e-5):
                one[place] = kept + step
                sides.append(loss())
            one[place] = kept
            gradient[place] = (sides[0] - sides[1]) / 2e-5
    return found


class Adam:
    """Adam with its usual constants; `step` changes the parameters in place."""

    def __init__(self, parameters, rate):
        self.parameters, self.rate, self.count = parameters, rate, 0
        self.first = [np.zeros_like(one) for one in parameters]
        self.second = [np.zeros_like(one) for one in parameters]

    def step(self, loss):
        """Take one step down a loss."""
        self.move(gradients(loss, self.parameters))

    def move(self, found):
        """Take one step along gradients."""
        self.count += 1
        for one, gradient, first, second in zip(self.parameters, found, self.first, self.second, strict=True):
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient**2 - second)
            root = np.sqrt(second / (1 - 0.999**self.count)) + 1e-8
            one -= self.rate * first / (1 - 0.9**self.count) / root


def step_together(*steps):
    """Take a step down each loss, all of them from the networks as they are."""
    found = [gradients(loss, optimizer.parameters) for optimizer, loss in steps]
    for (optimizer, _), one in zip(steps, found, strict=True):
        optimizer.move(one)


def log_softmax(logits):
    """Return the logarithms of probabilities."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def of_actions(values, actions):
    """Return the values of the actions that were taken."""
    return values[np.arange(len(actions)), actions]


def normal_logs(errors, log_std=0.0):
    """Return the log densities of independent normals at distances from their means."""
    logs = -((errors / np.exp(log_std)) ** 2) / 2 - log_std - np.log(2 * np.pi) / 2
    return logs.sum(-1)


def squashed(outputs, noise, bounds, offset=0.0):
    """Return samples of normals under a tanh and their log densities."""
    means, log_stds = np.split(outputs, 2, -1)
    log_stds = np.clip(log_stds + offset, *bounds)
    raw = means + np.exp(log_stds) * noise
    density = normal_logs(raw - means, log_stds) - np.log(1 - np.tanh(raw) ** 2).sum(-1)
    return np.tanh(raw), density


def chosen(**settings):
    """Return settings in a form that no class can change."""
    return MappingProxyType(settings)


class Plain:
    """The updates of an algorithm in NumPy, from its equations: what they have in common.

    The modules in `updates` have one of each algorithm, with its name, which `test_contract.py` finds.
    `parameters` are those in its state, by name, and `update` changes them in place.
    """

    SETTINGS = chosen()
    CASES = ({},)
    UPDATES = 3
    TOLERANCE = 1e-7
    ACTS, TWINS = "policy", ("first", "second")

    def __init__(self, algorithm, seed):
        self.config, self.scaling, self.count = algorithm.config, algorithm.scaling, 0
        self.generator = make_generator(seed, 1)
        self.parameters = {
            name: one.numpy().astype(np.float64, copy=True) for name, one in tensors_of(algorithm).items()
        }
        self.start()

    @staticmethod
    def prepare(algorithm):
        """Change the networks before the first update, so that every term of a loss counts."""

    def start(self):
        """Make the optimizers."""

    def of(self, *prefixes):
        """Return the parameters of networks, the same arrays as in `parameters`."""
        found = [
            one
            for prefix in prefixes
            for name, one in self.parameters.items()
            if name == prefix or name.startswith((f"{prefix}/", f"{prefix}."))
        ]
        assert found
        return found

    def value(self, name, *parts):
        """Return the values of one network for its inputs side by side."""
        return network(self.of(name), np.concatenate(parts, -1))[..., 0]

    def values(self, name, *parts):
        """Return the values [2, batch] of both networks of a pair."""
        return np.stack([self.value(f"{name}/{twin}", *parts) for twin in self.TWINS])

    def adam(self, *prefixes, rate="learning_rate"):
        """Return an optimizer of networks at the rate of a setting."""
        return Adam(self.of(*prefixes), getattr(self.config, rate))

    def follow(self, target, online, rate=None):
        """Move a target network."""
        rate = self.config.target_rate if rate is None else rate
        for one, other in zip(self.of(target), self.of(online), strict=True):
            one += rate * (other - one)

    def normal(self, *shape):
        """Return the noise that the algorithm draws next."""
        return torch.randn(shape, generator=self.generator).numpy()

    def uniform(self, *shape):
        """Return the times that the algorithm draws next."""
        return torch.rand(shape, generator=self.generator).numpy()

    def update(self, batch):
        """Take a step; what it returns are metrics."""
        raise NotImplementedError

    def actions(self, observations, goals):
        """Return the actions in the environment's unit, if they are not drawn."""
        scaling = self.scaling
        mean, std = goal_maps(scaling)
        s = (observations - scaling.obs_mean) / scaling.obs_std
        found = self.acts(s.numpy(), ((goals - mean) / std).numpy())
        if found is None or isinstance(scaling.action_space, gymnasium.spaces.Discrete):
            return None if found is None else found + scaling.action_space.start
        low, high = scaling.action_low.numpy(), scaling.action_high.numpy()
        return low + (high - low) * (found + 1) / 2

    def acts(self, s, goals):  # noqa: ARG002
        """Return the actions in [-1, 1] for standardized observations; None if they are drawn."""
        outputs = network(self.of(self.ACTS), s)
        is_discrete = isinstance(self.scaling.action_space, gymnasium.spaces.Discrete)
        return outputs.argmax(-1) if is_discrete else np.tanh(outputs[:, :2])


def in_units(scaling, batch):
    """Return a batch with standardized observations and goals, and actions in [-1, 1]."""
    space, read = scaling.action_space, {"goes_on": 1 - batch.terminations.numpy()}
    goal_mean, goal_std = goal_maps(scaling)
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if value is None:
            continue
        if "observations" in field.name:
            value = (value - scaling.obs_mean) / scaling.obs_std
        elif "goals" in field.name:
            value = (value - goal_mean) / goal_std
        elif "actions" in field.name and isinstance(space, gymnasium.spaces.Discrete):
            value = value - space.start
        elif field.name in ("actions", "next_actions"):
            width = scaling.action_high - scaling.action_low
            value = 2 * (value - scaling.action_low) / width - 1
        if isinstance(value, torch.Tensor):
            read[NAMES.get(field.name, field.name)] = value.numpy()
    return SimpleNamespace(**read)
