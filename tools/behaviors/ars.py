"""ARS (Mania, Guy and Recht 2018, https://arxiv.org/abs/1803.07055): random search for a linear policy.

Version V2-t of the paper. Directions are drawn, the policy runs one episode a little to each side
along each of them, and moves along those of the best episodes:

    M  <-  M + step / (kept deviation) sum_k [ return(M + noise d_k) - return(M - noise d_k) ] d_k

The sum runs over the `kept` directions whose better side has the highest return; `deviation` is that
of their returns. Observations are standardized over all that were seen.

What differs from the paper: actions are tanh(M x + deviation noise) instead of M x, the same kind of
policy as SAC's. A policy that keeps a balance which any noise upsets returns little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import msgspec
import numpy as np
from jaxtyping import Float64

from orlog.algos.settings import Count, Positive
from orlog.datasets.worlds.behavior_policies import Layers


class ARSConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of ARS."""

    directions: Count = 8
    """Directions drawn for a step."""
    kept: Count = 4
    """Best directions that a step follows."""
    step: Positive = 0.02
    """Size of a step."""
    noise: Positive = 0.03
    """How far the policy moves along a direction to try it."""
    alive_bonus: float = 0.0
    """Part of each reward that does not count while searching. Without the bonus for not falling, 1 for
    hopper and walker2d, there is no reward for standing still."""
    deviation: Positive = 0.05
    """Standard deviation of the noise on actions, before the tanh."""

    def __post_init__(self) -> None:
        if not 1 <= self.kept <= self.directions:
            raise ValueError(f"kept must lie in [1, directions], found {self.kept} of {self.directions}.")


def ars(env: gymnasium.Env[Any, Any], config: ARSConfig, *, seed: int, every: int) -> Iterator[tuple[int, Layers]]:
    """Yield the number of steps taken and the policy, at the first update after each `every` steps."""
    rng = np.random.Generator(np.random.PCG64(seed))
    assert env.observation_space.shape is not None
    assert env.action_space.shape is not None
    width, actions = env.observation_space.shape[0], env.action_space.shape[0]
    matrix = np.zeros((actions, width))
    seen = Statistics(width)
    steps, wanted = 0, every
    while True:
        directions = rng.standard_normal((config.directions, actions, width))
        returns = np.empty((config.directions, 2))
        mean, scale = seen.mean.copy(), seen.scale()
        for index, direction in enumerate(directions):
            for side, sign in enumerate((1, -1)):
                tried = (matrix + sign * config.noise * direction) * scale
                returns[index, side], observations = _episode(env, tried, mean, config.deviation, rng)
                returns[index, side] -= config.alive_bonus * len(observations)
                seen.add(observations)
                steps += len(observations)
        best = np.argsort(-returns.max(1))[: config.kept]
        differences = returns[best, 0] - returns[best, 1]
        size = config.step / (config.kept * max(float(returns[best].std()), 1e-8))
        matrix += size * np.tensordot(differences, directions[best], 1)
        if steps >= wanted:
            wanted += every
            yield steps, _layers(matrix * seen.scale(), seen.mean, config.deviation)


class Statistics:
    """Running mean and deviation of each number of an observation (Welford)."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean = np.zeros(width)
        self.squares = np.zeros(width)

    def add(self, observations: Float64[np.ndarray, "steps obs"]) -> None:
        """Take note of observations."""
        count = len(observations)
        mean = observations.mean(0)
        apart = mean - self.mean
        total = self.count + count
        self.squares += ((observations - mean) ** 2).sum(0)
        self.squares += apart**2 * (self.count * count / total)
        self.mean += apart * (count / total)
        self.count = total

    def scale(self) -> Float64[np.ndarray, " obs"]:
        """Return one over the deviation; 1 where there is none yet."""
        if self.count == 0:
            return np.ones_like(self.mean)
        deviation = np.sqrt(self.squares / self.count)
        return np.asarray(1 / np.where(deviation < 1e-7, math.inf, deviation))


def _episode(
    env: gymnasium.Env[Any, Any],
    matrix: Float64[np.ndarray, "act obs"],
    mean: Float64[np.ndarray, " obs"],
    deviation: float,
    rng: np.random.Generator,
) -> tuple[float, Float64[np.ndarray, "steps obs"]]:
    """Return the return of an episode, and the observations that actions were chosen for."""
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    observations, total, ended = [], 0.0, False
    shift = matrix @ mean
    while not ended:
        observations.append(observation)
        noise = deviation * rng.standard_normal(len(matrix))
        action = np.tanh(matrix @ observation - shift + noise).astype(np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        ended = terminated or truncated
    return total, np.array(observations)


def _layers(matrix: Float64[np.ndarray, "act obs"], mean: Float64[np.ndarray, " obs"], deviation: float) -> Layers:
    """Return the policy as a network without hidden layers: means, and log deviations that are fixed."""
    weight = np.concatenate([matrix.T, np.zeros_like(matrix.T)], 1)
    bias = np.concatenate([-matrix @ mean, np.full(len(matrix), math.log(deviation))])
    return ((weight.astype(np.float32), bias.astype(np.float32)),)
