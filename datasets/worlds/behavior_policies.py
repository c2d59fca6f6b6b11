"""Policies that recipes record with: small networks in NumPy, which give the same bits each time.

A safetensors file holds several policies of one training, in the order of training: `steps`
[policies], `weights.0` [policies, in, out], `biases.0` [policies, out], `weights.1` and so on. A policy
is a Gaussian squashed by a tanh:

    means, log deviations = network(observation)        ReLU between layers, none behind the last
    action = tanh(mean + deviation noise)               noise: standard normal, one number a dimension

It is computed in double precision, each sum in the order of its terms, and without a BLAS, whose
sums depend on the processor. The action is rounded to single precision.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import blake3
import numpy as np
import safetensors.numpy
from jaxtyping import Float32, Float64

from orlog.base.files import replace_file, storage_errors
from orlog.errors import DivergedError, IntegrityError, NotFoundError

# Weights [in, out] and biases [out] of each layer.
Layers: TypeAlias = tuple[tuple[np.ndarray, np.ndarray], ...]

# Bounds of log deviations, here and in training.
LOG_DEVIATIONS = (-20.0, 2.0)

# The largest weight of a file.
LARGEST = float(np.finfo(np.float16).max)


_LOG_NORMAL = 0.5 * math.log(2 * math.pi)


class BehaviorPolicy:
    """A policy of observations that are vectors and of actions in [-1, 1]."""

    def __init__(self, layers: Layers) -> None:
        self.layers = layers

    def act(
        self, observation: Float64[np.ndarray, " obs"], noise: Float64[np.ndarray, " act"]
    ) -> tuple[Float32[np.ndarray, " act"], float]:
        """Return the action that the noise leads to, and its log density, the tanh's included."""
        outputs = self._outputs(observation)
        action, log_density = [], 0.0
        for mean, log_deviation, draw in zip(outputs[: len(noise)], outputs[len(noise) :], noise.tolist(), strict=True):
            bounded = min(max(log_deviation, LOG_DEVIATIONS[0]), LOG_DEVIATIONS[1])
            raw = mean + math.exp(bounded) * draw
            action.append(math.tanh(raw))
            log_density -= 0.5 * draw * draw + bounded + _LOG_NORMAL
            # log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)), exact where 1 - tanh^2 would be 0
            softplus = max(-2 * raw, 0.0) + math.log1p(math.exp(-2 * abs(raw)))
            log_density -= 2 * (math.log(2) - raw - softplus)
        return np.array(action, np.float32), log_density

    def mode(self, observation: Float64[np.ndarray, " obs"]) -> Float32[np.ndarray, " act"]:
        """Return the action without noise."""
        outputs = self._outputs(observation)
        return np.array([math.tanh(mean) for mean in outputs[: len(outputs) // 2]], np.float32)

    def _outputs(self, observation: Float64[np.ndarray, " obs"]) -> list[float]:
        """Return means and then log deviations."""
        values = observation
        last = len(self.layers) - 1
        for index, (weights, biases) in enumerate(self.layers):
            # Rows are added one after another: a sum along the first axis is not split.
            values = (weights * values[:, None]).sum(0) + biases
            if index < last:
                values = np.maximum(values, 0)
        outputs: list[float] = values.tolist()
        return outputs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPolicy:
    """A policy of a file.

    Attributes:
        steps: Steps in the environment that it was trained for.
        policy: The policy.
    """

    steps: int
    policy: BehaviorPolicy


def write_policies(path: Path, steps: Sequence[int], policies: Sequence[Layers]) -> str:
    """Write policies of one architecture, with the steps that each was trained for; return the digest.

    Weights are rounded to half precision: what is recorded with are the rounded ones.
    """
    for step, layers in zip(steps, policies, strict=True):
        check_weights(layers, step)
    tensors = {"steps": np.array(steps, np.int64)}
    for layer, parts in enumerate(zip(*policies, strict=True)):
        for name, arrays in zip(("weights", "biases"), zip(*parts, strict=True), strict=True):
            tensors[f"{name}.{layer}"] = np.ascontiguousarray(np.stack(arrays), np.float16)
    data = safetensors.numpy.save(tensors)
    with storage_errors(path):
        replace_file(path, data)
    return _digest(data)


def check_weights(layers: Layers, steps: int) -> None:
    """Check that half precision holds all weights of a policy that was trained for some steps."""
    for array in (part for layer in layers for part in layer):
        if not (np.abs(array) <= LARGEST).all():  # NaN is not
            raise DivergedError(
                f"the policy of {steps:,} steps has weights that are no number or above {LARGEST:,.0f}, "
                "which half precision does not hold; train with other settings, such as smaller "
                "steps, or stop earlier."
            )


def read_policies(path: Path, digest: str) -> list[TrainedPolicy]:
    """Return the policies of a file, in the order of training.

    Raises:
        NotFoundError: there is no such file.
        IntegrityError: the file has another digest.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"{path}: there is no such file of behavior policies; install orlog again.") from None
    if _digest(data) != digest:
        raise IntegrityError(
            f"{path}: the file of behavior policies has the digest {_digest(data)}, expected "
            f"{digest}; install orlog again, or train the policies that the digest names.",
            file=path.name,
            expected=digest,
            found=_digest(data),
        )
    tensors = safetensors.numpy.load(data)
    layers = [
        (tensors[f"weights.{layer}"].astype(np.float64), tensors[f"biases.{layer}"].astype(np.float64))
        for layer in range(len(tensors) // 2)
    ]
    return [
        TrainedPolicy(
            steps=steps, policy=BehaviorPolicy(tuple((weights[index], biases[index]) for weights, biases in layers))
        )
        for index, steps in enumerate(tensors["steps"].tolist())
    ]


def _digest(data: bytes) -> str:
    return f"blake3:{blake3.blake3(data).hexdigest()}"
