"""Networks and helpers that several algorithms share.

Every network draws its initial weights from a generator that is passed in, never from a global one. Inside an
algorithm, observations are standardized and actions lie in [-1, 1]; `Scaling` holds the two maps, so that a policy
takes and gives the environment's own units.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn

from orlog.algos.relu_networks import precision_between_hidden_layers, relu_network, twin_relu_networks

if TYPE_CHECKING:
    import gymnasium


def make_generator(seed: int, purpose: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator whose stream depends on (seed, purpose) alone."""
    (state,) = np.random.SeedSequence((seed, purpose)).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(state >> np.uint64(1)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The maps between an environment's units and a network's.

    Attributes:
        obs_mean: Subtracted from observations.
        obs_std: Divides observations; positive.
        action_low: Action that a network's -1 stands for; empty where actions are integers.
        action_high: Action that a network's +1 stands for; empty where actions are integers.
        observation_space: That of observations, or of states where there are goals, for algorithms
            that take more than vectors.
        action_space: The dataset's, for algorithms that take more than continuous actions.
        goal_mean: Subtracted from goals; None where goals are whole observations.
        goal_std: Divides goals; positive.
        goal_space: Space of goals that are not vectors; None where goals are whole observations.
        legal: Where observations say which actions are legal, with a flag for each: the key of the part
            (empty where observations are one vector) and the place in it. None where they do not.
        agents: How many agents act at once; observations and actions are those of one of them.
    """

    obs_mean: Float32[Tensor, " obs"]
    obs_std: Float32[Tensor, " obs"]
    action_low: Float32[Tensor, " act"]
    action_high: Float32[Tensor, " act"]
    observation_space: gymnasium.Space[Any] | None = None
    action_space: gymnasium.Space[Any] | None = None
    goal_mean: Float32[Tensor, " goal"] | None = None
    goal_std: Float32[Tensor, " goal"] | None = None
    goal_space: gymnasium.Space[Any] | None = None
    legal: tuple[str, slice] | None = None
    agents: int = 1

    def __post_init__(self) -> None:
        if not bool((self.obs_std > 0).all()):
            raise ValueError("the standard deviations of observations must be positive.")
        width = self.action_high - self.action_low
        if not bool((torch.isfinite(width) & (width > 0)).all()):
            raise ValueError(
                "continuous-action algorithms need finite action bounds with low < high, found "
                f"low {self.action_low.tolist()}, high {self.action_high.tolist()}."
            )

    def observations(self, observations: Tensor) -> Tensor:
        """Standardize observations [batch, obs]."""
        return (observations - self.obs_mean) / self.obs_std

    def actions_to_unit(self, actions: Tensor) -> Tensor:
        """Map actions in the environment's unit to [-1, 1]."""
        return (actions - self.action_low) * (2 / (self.action_high - self.action_low)) - 1

    def actions_from_unit(self, actions: Tensor) -> Tensor:
        """Map actions in [-1, 1] to the environment's unit."""
        return self.action_low + (actions + 1) * ((self.action_high - self.action_low) / 2)

    def to(self, device: torch.device | str) -> Scaling:
        """Return the same maps on another device."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        moved: dict[str, Any] = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return dataclasses.replace(self, **moved)


def make_network(
    inputs: int,
    outputs: int,
    hidden: tuple[int, ...],
    *,
    generator: torch.Generator,
    last_bound: float | None = None,
    layer_norm: bool = False,
    style: Literal["relu", "gelu"] = "relu",
) -> nn.Sequential:
    """Return a network [batch, inputs] -> [batch, outputs] with a linear last layer.

    Weights and biases start uniform in +-1/sqrt(inputs of the layer), as `torch.nn.Linear` does. With
    `last_bound` they start as EDAC's do: the last layer uniform within this bound, biases of hidden
    layers 0.1. The style `gelu` has its tanh approximation, and starts with Glorot and Bengio's uniform
    weights and biases 0, as OGBench's and FQL's code. `layer_norm` normalizes after each activation,
    with a trained scale and shift, as ReBRAC does.
    """
    layers: list[nn.Module] = []
    sizes = (inputs, *hidden, outputs)
    for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        linear = Linear(fan_in, fan_out, device=generator.device)
        if style == "gelu":
            nn.init.xavier_uniform_(linear.weight, generator=generator)
            nn.init.zeros_(linear.bias)
        else:
            _draw(linear.weight, linear.bias, fan_in, generator, last_bound, index == len(hidden))
        layers += [linear, nn.GELU(approximate="tanh") if style == "gelu" else nn.ReLU(inplace=True)]
        if layer_norm:
            layers.append(nn.LayerNorm(fan_out, eps=1e-6, device=generator.device))
    if layer_norm:
        return Network(*layers[:-2])
    return Network(*layers[:-1]) if style == "gelu" else ReluNetwork(*layers[:-1])


class Linear(nn.Linear):
    """A linear layer without initial weights: its own would come from the global generator.

    `torch.nn.utils.skip_init` does the same, but imports SymPy on its way.
    """

    def reset_parameters(self) -> None:
        """Draw nothing."""


class Network(nn.Sequential):
    """Linear layers with others between them, one after another."""

    def forward(self, inputs: Float32[Tensor, "*batch inputs"]) -> Float32[Tensor, "*batch outputs"]:
        """Return the outputs of the last layer."""
        low = precision_between_hidden_layers()
        for index, layer in enumerate(self):
            if low is not None and 0 < index < len(self) - 1 and isinstance(layer, nn.Linear):
                inputs = (inputs.to(low) @ layer.weight.to(low).t()).to(inputs.dtype) + layer.bias
            else:
                inputs = layer(inputs)
        return inputs


class ReluNetwork(nn.Sequential):
    """Linear layers with ReLU between them, computed as one function of rows of numbers."""

    def forward(self, inputs: Float32[Tensor, "*batch inputs"]) -> Float32[Tensor, "*batch outputs"]:
        """Return what the chain of the layers does, to the bit."""
        rows = inputs if inputs.ndim == 2 else inputs.reshape(-1, inputs.shape[-1])
        outputs = relu_network(rows, self._weights())
        return outputs if inputs.ndim == 2 else outputs.view(*inputs.shape[:-1], -1)

    def _weights(self) -> list[Tensor]:
        # As `layer.parameters()` of all layers, which takes five times as long.
        of_layers = (layer._parameters.values() for layer in self.children())
        return [parameter for parameters in of_layers for parameter in parameters if parameter is not None]


@torch.no_grad()
def _draw(
    weight: Tensor, bias: Tensor, fan_in: int, generator: torch.Generator, last_bound: float | None, is_last: bool
) -> None:
    bound = last_bound if is_last and last_bound is not None else 1 / math.sqrt(fan_in)
    weight.uniform_(-bound, bound, generator=generator)
    if last_bound is None or is_last:
        bias.uniform_(-bound, bound, generator=generator)
    else:
        bias.fill_(0.1)


class TwinCritic(nn.Module):
    """Two Q functions of observations and actions.

    Two plain networks: on a CPU they were faster than one batched product over both (1.1 to 1.6
    times at 3,072 rows and more, equal at 256).
    """

    def __init__(self, obs_dim: int, action_dim: int, hidden: tuple[int, ...], **style: Any) -> None:
        """Draw the weights; the keywords are those of `make_network`."""
        super().__init__()
        self.first, self.second = (make_network(obs_dim + action_dim, 1, hidden, **style) for _ in range(2))

    def forward(
        self, observations: Float32[Tensor, "batch obs"], actions: Float32[Tensor, "batch act"]
    ) -> Float32[Tensor, "2 batch"]:
        """Return both Q values of each pair."""
        if isinstance(self.first, ReluNetwork) and isinstance(self.second, ReluNetwork):
            weights = [*self.first._weights(), *self.second._weights()]
            return twin_relu_networks(observations, actions, weights)
        pairs = torch.cat([observations, actions], -1)
        return torch.stack([self.first(pairs).squeeze(-1), self.second(pairs).squeeze(-1)])


class Critics(nn.Module):
    """Any number of Q functions of observations and actions, each layer one batched product."""

    def __init__(
        self,
        count: int,
        obs_dim: int,
        action_dim: int,
        hidden: tuple[int, ...],
        *,
        generator: torch.Generator,
        last_bound: float | None = None,
        layer_norm: bool = False,
    ) -> None:
        """Draw the weights, as `make_network` does; `layer_norm` normalizes before each ReLU."""
        super().__init__()
        sizes = (obs_dim + action_dim, *hidden, 1)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        if layer_norm:
            self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()
            for width in hidden:
                ones = torch.ones(count, 1, width, device=generator.device)
                self.scales.append(nn.Parameter(ones))
                self.shifts.append(nn.Parameter(torch.zeros_like(ones)))
        self.layer_norm = layer_norm
        for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            weight = torch.empty(count, fan_in, fan_out, device=generator.device)
            bias = torch.empty(count, 1, fan_out, device=generator.device)
            _draw(weight, bias, fan_in, generator, last_bound, index == len(hidden))
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(bias))

    def forward(
        self,
        observations: Float32[Tensor, "batch obs"],
        actions: Float32[Tensor, "*critics batch act"],
        which: Int64[Tensor, " chosen"] | None = None,
    ) -> Float32[Tensor, "critics batch"]:
        """Return the Q values of each pair; `actions` may hold a batch for each critic.

        `which` names the critics to ask, all by default.
        """
        if actions.ndim == 3:
            observations = observations.expand(len(actions), -1, -1)
        values = torch.cat([observations, actions], -1)
        if actions.ndim == 2:
            count = len(self.weights[0]) if which is None else len(which)
            values = values.expand(count, -1, -1)
        last = len(self.weights) - 1
        for index in range(last + 1):
            weight, bias = _of(self.weights[index], which), _of(self.biases[index], which)
            low = precision_between_hidden_layers() if 0 < index < last else None
            if low is None:
                values = torch.baddbmm(bias, values, weight)
            else:
                values = torch.bmm(values.to(low), weight.to(low)).to(bias.dtype) + bias
            if index < last:
                if self.layer_norm:
                    normal = nn.functional.layer_norm(values, values.shape[-1:], eps=1e-6)
                    scale, shift = _of(self.scales[index], which), _of(self.shifts[index], which)
                    values = normal * scale + shift
                values = torch.relu_(values)
        return values.squeeze(-1)


def _of(values: Tensor, which: Tensor | None) -> Tensor:
    return values if which is None else values.index_select(0, which)
