"""Networks, gradients and Adam in plain float64 NumPy, to check the updates of algorithms against.

Gradients are numerical, so that a loss is written once, as its equation.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from orlog.algos.algorithms import takes_goals
from orlog.algos.cql_discrete import CQLDiscrete
from orlog.algos.networks import Scaling, TwinCritic
from orlog.loaders.batch import (
    Batch,
    ChunkBatch,
    NextActionBatch,
    StateSubgoalBatch,
    StructuredBatch,
)
from orlog.loaders.returns import with_returns

Parameters = list[np.ndarray]
RECORDED = Path(__file__).parent / "recorded"


def small_settings(name: str, *, width: int = 8, batch_size: int = 32) -> dict[str, Any]:
    """Return settings that make an algorithm small."""
    if name == "dt":
        sizes: dict[str, Any] = {"width": width, "layers": 1, "heads": 2, "length": 5}
        others = {
            "learning_rate": 1e-3,
            "warmup_steps": 1,
            "target_return": 1.0,
            "return_scale": 1.0,
        }
        return {**sizes, **others, "batch_size": batch_size}
    return {"hidden": [width, width], "batch_size": batch_size}


def parameters_of(module: nn.Module) -> Parameters:
    """Return a copy of a module's parameters."""
    return [one.detach().numpy().astype(np.float64, copy=True) for one in module.parameters()]


def network(parameters: Parameters, inputs: np.ndarray) -> np.ndarray:
    """Return the outputs of linear layers with ReLU between them."""
    for index in range(0, len(parameters), 2):
        inputs = inputs @ parameters[index].T + parameters[index + 1]
        if index < len(parameters) - 2:
            inputs = np.maximum(inputs, 0)
    return inputs


def smooth_network(
    parameters: Parameters, inputs: np.ndarray, layer_norm: bool = False
) -> np.ndarray:
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
    found: np.ndarray = inputs @ weight.T + bias
    return found


def q_value(parameters: Parameters, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return the values of a critic."""
    return network(parameters, np.concatenate([observations, actions], -1))[..., 0]


def gradients(loss: Callable[[], float], parameters: Parameters) -> Parameters:
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

    def __init__(self, parameters: Parameters, rate: float) -> None:
        self.parameters, self.rate, self.count = parameters, rate, 0
        self.first = [np.zeros_like(one) for one in parameters]
        self.second = [np.zeros_like(one) for one in parameters]

    def step(self, loss: Callable[[], float]) -> None:
        """Take one step down a loss."""
        self.count += 1
        for one, gradient, first, second in zip(
            self.parameters, gradients(loss, self.parameters), self.first, self.second, strict=True
        ):
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient**2 - second)
            root = np.sqrt(second / (1 - 0.999**self.count)) + 1e-8
            one -= self.rate * first / (1 - 0.9**self.count) / root


def move(target: Parameters, online: Parameters, rate: float) -> None:
    """Move target networks."""
    for one, other in zip(target, online, strict=True):
        one += rate * (other - one)


def in_units(scaling: Scaling, batch: Any) -> dict[str, np.ndarray]:
    """Return a batch with standardized observations and actions in [-1, 1]."""
    mean, std, low, high = (
        one.numpy()
        for one in (scaling.obs_mean, scaling.obs_std, scaling.action_low, scaling.action_high)
    )
    return {
        "s": (batch.observations.numpy() - mean) / std,
        "a": 2 * (batch.actions.numpy() - low) / (high - low) - 1,
        "r": batch.rewards.numpy(),
        "next_s": (batch.next_observations.numpy() - mean) / std,
        "goes_on": 1 - batch.terminations.numpy(),
    }


def act(algorithm: Any, observations: torch.Tensor) -> torch.Tensor:
    """Return the actions for observations, which serve as goals too if the algorithm takes goals."""
    actions: torch.Tensor = (
        algorithm.act(observations, observations)
        if takes_goals(type(algorithm))
        else algorithm.act(observations)
    )
    return actions


def doubles(scaling: Scaling) -> Scaling:
    """Return the same maps in float64."""
    changed: dict[str, Any] = {
        name: getattr(scaling, name).double()
        for name in ("obs_mean", "obs_std", "action_low", "action_high")
    }
    return dataclasses.replace(scaling, **changed)


def check_equal(module: nn.Module, expected: Parameters, tolerance: float = 1e-7) -> None:
    """Compare all parameters of a module."""
    for found, one in zip(parameters_of(module), expected, strict=True):
        np.testing.assert_allclose(found, one, rtol=0, atol=tolerance)


def check_critics(critic: TwinCritic, expected: list[Parameters]) -> None:
    """Compare all parameters of both critics."""
    check_equal(critic.first, expected[0])
    check_equal(critic.second, expected[1])


def recorded_batches(recorded: Any) -> Iterator[Batch | ChunkBatch | StateSubgoalBatch]:
    """Yield the batches that a recorded reference was trained on."""
    for rows in recorded["rows"]:
        if "valid" in recorded:
            chunks = {one.name for one in dataclasses.fields(ChunkBatch)} - {"truncations"}
            found = {name: torch.from_numpy(recorded[name][rows]) for name in chunks}
            yield ChunkBatch(**found, truncations=torch.zeros(len(rows)))
            continue
        if "value_goals" in recorded:
            names = [one.name for one in dataclasses.fields(StateSubgoalBatch)]
            found = {
                name: torch.from_numpy(recorded[name][rows]) for name in names if name in recorded
            }
            yield StateSubgoalBatch(**found, terminations=torch.zeros(len(rows)))
            continue
        fields = (
            "observations",
            "actions",
            "rewards",
            "next_observations",
            "terminations",
            "next_actions",
        )
        columns = {name: torch.from_numpy(recorded[name][rows]) for name in fields}
        none = torch.zeros(len(rows))
        batch = NextActionBatch(**columns, truncations=none, has_next_action=none + 1)
        if "returns_to_go" in recorded:
            yield with_returns(batch, torch.from_numpy(recorded["returns_to_go"][rows]))
        else:
            yield batch


UNIT = Scaling(
    obs_mean=torch.zeros(3, dtype=torch.float64),
    obs_std=torch.ones(3, dtype=torch.float64),
    action_low=-torch.ones(2, dtype=torch.float64),
    action_high=torch.ones(2, dtype=torch.float64),
)
"""The maps of the recorded references: none."""

DISCRETE = dataclasses.replace(
    UNIT,
    action_low=torch.zeros(0),
    action_high=torch.zeros(0),
    action_space=gymnasium.spaces.Discrete(3, start=2),
)
"""The same with three discrete actions, counted from 2."""


def settings(recorded: Any) -> dict[str, Any]:
    """Return the settings of a recorded reference."""
    found = json.loads(str(recorded["settings"]))
    return {**found, **({"hidden": tuple(found["hidden"])} if "hidden" in found else {})}


def tensors_of(algorithm: Any) -> dict[str, torch.Tensor]:
    """Return all parameters in the state of an algorithm, by name."""
    found: dict[str, torch.Tensor] = {}
    for name in algorithm.STATE:
        value = getattr(algorithm, name)
        if isinstance(value, nn.Module):
            found |= {f"{name}/{key}": one.detach() for key, one in value.named_parameters()}
        elif isinstance(value, nn.Parameter):
            found[name] = value.detach()
    return found


def load(algorithm: Any, recorded: Any) -> None:
    """Start from the recorded parameters."""
    for name, tensor in tensors_of(algorithm).items():
        tensor.copy_(torch.from_numpy(recorded[f"before/{name}"]))


def difference_from_recorded(kind: type[Any], name: str) -> float:
    """Return by how much parameters differ from a recorded reference's after the same updates."""
    recorded = np.load(RECORDED / f"{name}.npz")
    is_discrete = "discrete" in kind.ACTIONS
    before = getattr(kind.CONFIG, "RECORDED_BEFORE", {})
    config = kind.CONFIG(**{**before, **settings(recorded)})
    algorithm = kind(config, DISCRETE if is_discrete else UNIT, seed=1)
    load(algorithm, recorded)
    batches = recorded_discrete_batches if is_discrete else recorded_batches
    for batch in batches(recorded):
        algorithm.update(batch)
    return max(
        float(np.abs(tensor.numpy() - recorded[f"after/{key}"]).max())
        for key, tensor in tensors_of(algorithm).items()
    )


def recorded_discrete_batches(recorded: Any) -> Iterator[StructuredBatch]:
    """Yield the batches with discrete actions that a recorded reference was trained on."""
    for rows in recorded["rows"]:
        fields = ("observations", "actions", "rewards", "next_observations", "terminations")
        columns = {name: torch.from_numpy(recorded[name][rows]) for name in fields}
        none = torch.zeros(len(rows))
        yield StructuredBatch(**columns, truncations=none, discounts=none)


FRAMES_CQL: dict[str, Any] = {
    "hidden": (16,),
    "learning_rate": 1e-3,
    "adam_epsilon": 3e-4,
    "conservative_weight": 0.7,
    "bellman_loss": "huber",
    "target_interval": 3,
    "discount": 0.9,
}


def make_frames_cql() -> CQLDiscrete:
    """Return discrete CQL on frames, with the weights of its seed in float64."""
    space = gymnasium.spaces.Box(0, 255, (36, 36, 2), np.uint8)
    none = torch.zeros(0)
    scaling = dataclasses.replace(DISCRETE, obs_mean=none, obs_std=none, observation_space=space)
    return CQLDiscrete(CQLDiscrete.CONFIG(**FRAMES_CQL), scaling, seed=1)


def frames_batches() -> Iterator[StructuredBatch]:
    """Yield batches of random frames."""
    rng = np.random.default_rng(2)
    for _ in range(10):
        frames, following = (
            torch.from_numpy(rng.integers(0, 256, (4, 36, 36, 2), np.uint8)) for _ in range(2)
        )
        none = torch.zeros(4)
        yield StructuredBatch(
            observations=frames,
            next_observations=following,
            actions=torch.from_numpy(rng.integers(2, 5, 4)),
            rewards=torch.from_numpy(rng.normal(size=4)),
            terminations=torch.from_numpy((rng.random(4) < 0.3).astype(np.float64)),
            truncations=none,
            discounts=none,
        )


def difference_with_frames() -> float:
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
