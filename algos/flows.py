"""Flow policies: velocities that carry noise to actions (Lipman and others 2022, Liu and others 2022).

    x_t   = (1 - t) noise + t action,  noise ~ N(0, 1),  t uniform in [0, 1]
    loss  = E || v(s, x_t, t) - (action - noise) ||^2                                 (flow matching)
    Euler   x <- x + v(s, x, k / steps) / steps,  k = 0 .. steps - 1, from noise;     clipped to [-1, 1]

The velocity v is a network of the observation, the point x_t and the time t, in that order. Papers:
https://arxiv.org/abs/2210.02747 and https://arxiv.org/abs/2209.03003.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos.encoders import Observations
from orlog.algos.networks import TwinCritic


def flow_errors(
    velocity: nn.Module,
    observations: Float32[Tensor, "batch obs"],
    actions: Float32[Tensor, "batch act"],
    generator: torch.Generator,
) -> Float32[Tensor, "batch act"]:
    """Return the squared errors of the velocity at random points between noise and actions.

    Draws the noise first, then the times.
    """
    noise = torch.randn(actions.shape, generator=generator, device=actions.device)
    times = torch.rand((len(actions), 1), generator=generator, device=actions.device)
    points = torch.lerp(noise, actions, times)
    velocities: Tensor = velocity(torch.cat([observations, points, times], -1))
    return (velocities - (actions - noise)).square()


@torch.no_grad()
def flow_actions(
    velocity: nn.Module, observations: Float32[Tensor, "batch obs"], noise: Float32[Tensor, "batch act"], steps: int
) -> Float32[Tensor, "batch act"]:
    """Return the actions in [-1, 1] to which the velocity carries the noise, without a gradient."""
    inputs = torch.cat([observations, noise, torch.zeros_like(noise[:, :1])], -1)
    actions, times = inputs[:, observations.shape[1] : -1], inputs[:, -1]
    for step in range(steps):
        times.fill_(step / steps)
        actions.add_(velocity(inputs), alpha=1 / steps)
    return actions.clamp(-1, 1)


def best_flow_actions(
    velocity: nn.Module,
    critic: TwinCritic,
    observations: Float32[Tensor, "batch obs"],
    noise: Float32[Tensor, "batch count act"],
    steps: int,
) -> Float32[Tensor, "batch 1 act"]:
    """Return out of the actions to which the flow carries the noise that with the largest smaller value."""
    count = noise.shape[1]
    repeated = observations.repeat_interleave(count, 0)
    actions = flow_actions(velocity, repeated, noise.flatten(0, 1), steps)
    values: Tensor = critic(repeated, actions).view(2, -1, count)
    return actions.view(noise.shape).take_along_dim(values.amin(0).argmax(-1)[:, None, None], 1)


class ChunkActor:
    """Acts out chunks of actions, with noise from a generator of its own, so that training sees none of it.

    An `orlog.algos.algorithms.Actor` that looks at an environment only when the last chunk is used up. It plans for all
    environments in each step and takes up the plans of those that need one, so that an episode does not depend on those
    beside it.
    """

    def __init__(self, plan: Callable[..., Tensor], environments: int, generator: torch.Generator) -> None:
        self._plan, self._generator = plan, generator
        self._slots = torch.zeros(environments, dtype=torch.int64, device=generator.device)
        self._chunks: Tensor | None = None

    def begin(self, which: Tensor) -> None:
        """Drop what is left of the chunks of these environments."""
        self._slots[which.to(self._slots.device)] = 0

    def act(self, *given: Observations) -> Float32[Tensor, "batch act"]:
        """Return the next actions of the chunks, or the first ones of fresh chunks, for observations (and goals)."""
        chunks = self._plan(*given, self._generator)
        if self._chunks is not None:
            is_new = (self._slots == 0)[:, None, None]
            chunks = torch.where(is_new, chunks, self._chunks)
        self._chunks = chunks
        actions = chunks.take_along_dim(self._slots[:, None, None], 1).squeeze(1)
        self._slots = (self._slots + 1) % chunks.shape[1]
        return actions

    def reward(self, rewards: Float32[Tensor, " batch"]) -> None:
        """Do nothing."""
