"""Networks, gradients and Adam in plain float64 NumPy, to check the updates of algorithms against.

Gradients are numerical, so that a loss is written once, as its equation.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from orlog.algos.algorithms import for_teams, takes_goals
from orlog.algos.cql_discrete import CQLDiscrete
from orlog.algos.networks import Scaling, make_generator
from orlog.loaders.arrays import Arrays, Leaf
from orlog.loaders.batch import Batch, GoalBatch, SequenceBatch
from orlog.loaders.teams import Team

Make = Callable[..., Any]
"""An array of NumPy; what its arithmetic gives has no type."""
RECORDED = Path(__file__).parent / "recorded"


def small_settings(name, *, width=8, batch_size=32):
    """Return settings that make an algorithm small."""
    more = {}
    if name in ("cpq", "cql_lagrangian"):
        more = {"episode_length": 10.0, "cost_limit": 2.0}
    if name == "cpq":
        more |= {"autoencoder_width": width}
    if name in ("dt", "cdt"):
        sizes = {"width": width, "layers": 1, "heads": 2, "length": 5}
        others = {"learning_rate": 1e-3, "warmup_steps": 1, "target_return": 1.0, "return_scale": 1.0}
        if name == "cdt":
            others |= {"cost_scale": 1.0}
        return {**sizes, **others, "batch_size": batch_size}
    return {"hidden": [width, width], "batch_size": batch_size, **more}


def fast_settings(names):
    """Return those settings, of the given names, that let a few updates of small networks show."""
    rates = {"learning_rate": 1e-3, "policy_learning_rate": 1e-3, "critic_learning_rate": 2e-3}
    more = {"temperature_learning_rate": 3e-3, "target_rate": 0.1, "hidden": (4,), "batch_size": 8}
    return {name: one for name, one in {**rates, **more}.items() if name in names}


def parameters_of(module):
    """Return a copy of a module's parameters."""
    return [one.detach().numpy().astype(np.float64, copy=True) for one in module.parameters()]


def network(parameters, inputs):
    """Return the outputs of linear layers with ReLU between them."""
    for index in range(0, len(parameters), 2):
        inputs = inputs @ parameters[index].T + parameters[index + 1]
        if index < len(parameters) - 2:
            inputs = np.maximum(inputs, 0)
    return inputs


def smooth_network(parameters, inputs, layer_norm=False):
    """Return the outputs of linear layers with GELU between them, and layer normalization if asked."""
    *hidden, weight, bias = parameters
    size = 4 if layer_norm else 2
    for index in range(0, len(hidden), size):
        x = inputs @ hidden[index].T + hidden[index + 1]
        inputs = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        if layer_norm:
            apart = inputs - inputs.mean(1, keepdims=True)
            deviation = np.sqrt((apart**2).mean(1, keepdims=True) + 1e-6)
            inputs = apart / deviation * hidden[index + 2] + hidden[index + 3]
    return inputs @ weight.T + bias


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

    SETTINGS: Mapping[str, Any] = chosen()
    CASES: tuple[dict[str, Any], ...] = ({},)
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


def goal_maps(scaling):
    """Return mean and deviation of goals, which are whole observations if there are no others."""
    if scaling.goal_mean is None or scaling.goal_std is None:
        return scaling.obs_mean, scaling.obs_std
    return scaling.goal_mean, scaling.goal_std


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


NAMES = {"observations": "s", "actions": "a", "rewards": "r", "next_observations": "next_s"}


def act(algorithm, observations):
    """Return the actions for observations, which serve as goals too if the algorithm takes goals."""
    if "text" in algorithm.ACTIONS:
        return algorithm.act(["A room. An exit to the east."] * len(observations))
    if for_teams(type(algorithm)):
        return algorithm.act(torch.stack([observations, observations * -1], 1))[:, 0]
    goals = observations[:, : width_of_goals(algorithm)]
    return algorithm.act(observations, *([goals] if takes_goals(type(algorithm)) else []))


def team_arrays(states, steps, lengths):
    """Return the arrays of two agents, of which one sees the states and one the opposite.

    Each takes part in four steps of five, and ends as the episode does.
    """
    rng = np.random.default_rng(1)
    count = len(states)
    rows = np.concatenate([states, -states, steps[:, 2:]], 1).astype(np.float32)
    acts = torch.from_numpy(rng.random((count, 2)) < 0.8)
    rewards = torch.from_numpy(rng.normal(size=(count, 2)).astype(np.float32))
    final_rows = np.cumsum(lengths + 1) - 1
    acts[final_rows], rewards[final_rows] = False, 0
    flags = torch.from_numpy(steps[:, [3, 4]] > 0)
    others = {
        "agents/*/acts": acts,
        "agents/*/terminations": acts & flags[:, :1],
        "agents/*/truncations": acts & flags[:, 1:],
    }
    leaves = {name: Leaf(column=name) for name in others}
    infos = Arrays(
        rows=rewards,
        lengths=lengths,
        obs_dim=2,
        action_dim=0,
        ends=0,
        others=others,
        observation_leaves={"agents/*/rewards": Leaf(shape=(2,)), **leaves},
    )
    team = Team(
        dataset="tests/team-v1",
        agents=("a", "b"),
        widths=(3, 3),
        action_spaces=(gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(3)),
        legal=(),
        next_legal=(),
        has=frozenset({"acts", "rewards", "terminations", "truncations"}),
    )
    actions = torch.from_numpy(rng.integers(2, 5, (count, 2)))
    return Arrays(
        rows=torch.from_numpy(rows),
        lengths=lengths,
        obs_dim=6,
        action_dim=0,
        others={"actions": actions},
        infos=infos,
        team=team,
    )


def width_of_goals(algorithm):
    """Return how many of the first numbers of an observation a goal has."""
    return len(goal_maps(algorithm.scaling)[0])


def doubles(scaling):
    """Return the same maps in float64."""
    changed = {
        name: getattr(scaling, name).double()
        for name in ("obs_mean", "obs_std", "action_low", "action_high", "goal_mean", "goal_std")
        if getattr(scaling, name) is not None
    }
    return dataclasses.replace(scaling, **changed)


BATCHES = {"timesteps": SequenceBatch, "value_goals": GoalBatch}


def recorded_batches(recorded):
    """Yield the batches that a recorded reference was trained on; what it lacks is 0."""
    kind = next((kind for name, kind in BATCHES.items() if name in recorded), Batch)
    for rows in recorded["rows"]:
        found = {}
        for field in dataclasses.fields(kind):
            if field.name in recorded:
                found[field.name] = torch.from_numpy(recorded[field.name][rows])
            elif field.default is field.default_factory is dataclasses.MISSING:
                found[field.name] = torch.zeros(recorded.get("mask", rows)[: len(rows)].shape)
        if "next_actions" in found:
            found["has_next_action"] = torch.ones(len(rows))
        yield kind(**found)


def toy_scaling(observations=1, *, std=1.0, bound=2.0):
    """Return the maps of a toy problem with one action."""
    return Scaling(
        obs_mean=torch.zeros(observations),
        obs_std=std * torch.ones(observations),
        action_low=-bound * torch.ones(1),
        action_high=bound * torch.ones(1),
    )


UNIT = Scaling(
    obs_mean=torch.zeros(3, dtype=torch.float64),
    obs_std=torch.ones(3, dtype=torch.float64),
    action_low=-torch.ones(2, dtype=torch.float64),
    action_high=torch.ones(2, dtype=torch.float64),
)
"""The maps of the recorded references: none."""

DISCRETE = dataclasses.replace(
    UNIT, action_low=torch.zeros(0), action_high=torch.zeros(0), action_space=gymnasium.spaces.Discrete(3, start=2)
)
"""The same with three discrete actions, counted from 2."""


def settings(recorded):
    """Return the settings of a recorded reference."""
    found = json.loads(str(recorded["settings"]))
    return {**found, **({"hidden": tuple(found["hidden"])} if "hidden" in found else {})}


def tensors_of(algorithm):
    """Return all parameters in the state of an algorithm, by name."""
    found = {}
    for name, value in vars(algorithm).items():
        if isinstance(value, nn.Module):
            found |= {f"{name}/{key}": one.detach() for key, one in value.named_parameters()}
        elif isinstance(value, nn.Parameter):
            found[name] = value.detach()
    return found


def trained_as_recorded(kind, name):
    """Return an algorithm after the updates of a recorded reference, and that."""
    recorded = np.load(RECORDED / f"{name}.npz")
    before = getattr(kind.CONFIG, "RECORDED_BEFORE", {})
    config = kind.CONFIG(**{**before, **settings(recorded)})
    algorithm = kind(config, DISCRETE if "discrete" in kind.ACTIONS else UNIT, seed=1)
    for key, tensor in tensors_of(algorithm).items():
        tensor.copy_(torch.from_numpy(recorded[f"before/{key}"]))
    for batch in recorded_batches(recorded):
        algorithm.update(batch)
    return algorithm, recorded


def difference_from_recorded(kind, name):
    """Return by how much parameters differ from a recorded reference's after the same updates."""
    algorithm, recorded = trained_as_recorded(kind, name)
    return max(
        float(np.abs(tensor.numpy() - recorded[f"after/{key}"]).max()) for key, tensor in tensors_of(algorithm).items()
    )


FRAMES_CQL = {
    "hidden": (16,),
    "learning_rate": 1e-3,
    "adam_epsilon": 3e-4,
    "conservative_weight": 0.7,
    "bellman_loss": "huber",
    "target_interval": 3,
    "discount": 0.9,
}


def make_frames_cql():
    """Return discrete CQL on frames, with the weights of its seed in float64."""
    space = gymnasium.spaces.Box(0, 255, (36, 36, 2), np.uint8)
    none = torch.zeros(0)
    scaling = dataclasses.replace(DISCRETE, obs_mean=none, obs_std=none, observation_space=space)
    return CQLDiscrete(CQLDiscrete.CONFIG(**FRAMES_CQL), scaling, seed=1)


def frames_batches():
    """Yield batches of random frames."""
    rng = np.random.default_rng(2)
    for _ in range(10):
        frames, following = (torch.from_numpy(rng.integers(0, 256, (4, 36, 36, 2), np.uint8)) for _ in range(2))
        none = torch.zeros(4)
        yield Batch(
            observations=frames,
            next_observations=following,
            actions=torch.from_numpy(rng.integers(2, 5, 4)),
            rewards=torch.from_numpy(rng.normal(size=4)),
            terminations=torch.from_numpy((rng.random(4) < 0.3).astype(np.float64)),
            truncations=none,
            discounts=none,
        )


def difference_with_frames():
    """Return by how much discrete CQL on frames differs from d3rlpy's after the same updates."""
    recorded = np.load(RECORDED / "cql_discrete_frames.npz")
    algorithm = make_frames_cql()
    for batch in frames_batches():
        algorithm.update(batch)
    found = tensors_of(algorithm)
    assert {f"after/{key}" for key in found} == {*recorded}
    return max(
        float(np.abs(tensor.numpy().reshape(-1)[::97] - recorded[f"after/{key}"]).max())
        for key, tensor in found.items()
    )
