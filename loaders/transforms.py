"""Transforms that papers apply before training, made once on a dataset in memory, one line each.

    arrays = normalize_observations(arrays)                      TD3+BC, ReBRAC, CORL
    arrays = clip_actions(arrays, limit=1 - 1e-5)                IQL, for policies with a tanh
    arrays = scale_rewards_by_return_range(arrays)               IQL on MuJoCo: 1000 / (best - worst)
    arrays = scale_rewards(arrays, shift=-1.0)                   IQL on AntMaze
    arrays = scalarize(arrays, weights=(0.7, 0.3))               rewards of several objectives as one

A transform returns new arrays, whose digest depends on what was done, and does not change its
input: that takes a second matrix (as many bytes as `arrays.rows`) while both are in use. With
`in_place=True` it overwrites the given matrix; do not use the old `Arrays` afterwards. To pass a
transform with settings, use `functools.partial`. Images are converted batch by batch, by
`images_to_float`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Float32, Float64

from orlog.datasets.columns.values import metres_of
from orlog.datasets.reading.opening import Given
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays, as_arrays, check_arrays
from orlog.loaders.batch import Tensors
from orlog.loaders.statistics import Moments, derived_digest, finite_returns, load_statistics
from orlog.loaders.streams import canonical_number
from orlog.loaders.tensors import Tensor, torch
from orlog.manifests.names import counted

Transform: TypeAlias = Callable[[Arrays], Arrays]
BatchT = TypeVar("BatchT")

OBJECTIVES, WEIGHTS = "objectives", "weights"
_BLOCK_ROWS = 65536


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Normalizer:
    """Maps numbers to mean 0 and standard deviation 1, and back; also observations at run time.

    Attributes:
        mean: Subtracted from each number, float64.
        std: Divides each number after that, float64.
    """

    mean: Float64[np.ndarray, " numbers"]
    std: Float64[np.ndarray, " numbers"]

    def normalize(self, values: np.ndarray) -> Float32[np.ndarray, "*batch numbers"]:
        """Return normalized numbers, computed in float64 and rounded once."""
        normalized: np.ndarray = ((values - self.mean) / self.std).astype(np.float32)
        return normalized

    def restore(self, values: np.ndarray) -> Float32[np.ndarray, "*batch numbers"]:
        """Undo `normalize`, up to rounding."""
        restored: np.ndarray = (values * self.std + self.mean).astype(np.float32)
        return restored


def observation_normalizer(arrays: Arrays, *, epsilon: float = 1e-3) -> Normalizer:
    """Return the normalizer of observations; make it before the arrays are normalized.

    Args:
        arrays: The steps to take mean and standard deviation from; see `load_statistics`.
        epsilon: Added to the standard deviation, as in TD3+BC, so that constants stay finite.

    Raises:
        SchemaError: no observation is packed, or one is not finite.
        ValueError: the epsilon is negative or infinite, or 0 where an observation never changes.
        TypeError: no arrays.
    """
    check_arrays(arrays)
    if not arrays.obs_dim:
        raise SchemaError(
            f"{arrays.name}: no part of the observations holds floats to normalize; for images use images_to_float."
        )
    moments: Moments = load_statistics(arrays).observations
    if not 0 <= epsilon < np.inf or not (moments.std + epsilon > 0).all():
        raise ValueError(
            f"{arrays.name}: epsilon must be finite and >= 0, and > 0 if a number of the "
            f"observations never changes, found {epsilon}."
        )
    return Normalizer(mean=moments.mean, std=moments.std + epsilon)


def normalize_observations(
    arrays: Arrays, *, epsilon: float = 1e-3, normalizer: Normalizer | None = None, in_place: bool = False
) -> Arrays:
    """Return arrays whose packed observations have mean 0 and standard deviation 1, not images.

    Args:
        arrays: The steps.
        epsilon: See `observation_normalizer`.
        normalizer: Used instead of the one of these arrays, such as that of a training split.
        in_place: Write into the given matrix.

    Raises:
        SchemaError: no observation is packed, or one is not finite.
        ValueError: the epsilon is out of range, or the normalizer does not fit these observations
            or has a standard deviation that is not positive.
        TypeError: no arrays.
    """
    check_arrays(arrays)
    moments = normalizer or observation_normalizer(arrays, epsilon=epsilon)
    if not moments.mean.shape == moments.std.shape == (arrays.obs_dim,):
        raise ValueError(
            f"{arrays.name}: the normalizer has {len(moments.mean)} numbers, but observations have "
            f"{arrays.obs_dim} (mean {moments.mean.shape}, std {moments.std.shape})."
        )
    if not (np.isfinite(moments.mean) & np.isfinite(moments.std) & (moments.std > 0)).all():
        raise ValueError(
            f"{arrays.name}: the normalizer's mean must be finite, and its std finite and > 0, found "
            f"{moments.mean} and {moments.std}."
        )
    mean = torch.from_numpy(moments.mean).to(arrays.rows.device)
    std = torch.from_numpy(moments.std).to(arrays.rows.device)
    mean_numbers, std_numbers = (
        [canonical_number(number) for number in numbers.tolist()] for numbers in (moments.mean, moments.std)
    )
    operation = f"normalize_observations 1 {mean_numbers} {std_numbers}"
    changed = _changed(arrays, operation, in_place=in_place)
    for first in range(0, len(changed.rows), _BLOCK_ROWS):
        block = changed.rows[first : first + _BLOCK_ROWS, : arrays.obs_dim]
        block[:] = (block.double() - mean) / std
    return changed


def clip_actions(arrays: Arrays, *, limit: float = 1 - 1e-5, in_place: bool = False) -> Arrays:
    """Return arrays whose actions lie in [-limit, limit], as float32 numbers.

    Args:
        arrays: The steps.
        limit: Largest absolute value of a number in an action.
        in_place: Write into the given matrix.

    Raises:
        SchemaError: actions are integers.
        ValueError: the limit is not positive.
        TypeError: no arrays.
    """
    check_arrays(arrays)
    if not arrays.action_dim:
        raise SchemaError(f"{arrays.name}: actions are integers, which cannot be clipped.")
    if not limit > 0:
        raise ValueError(f"limit must be positive, found {limit}.")
    limit = canonical_number(limit)
    changed = _changed(arrays, f"clip_actions 1 {limit!r}", in_place=in_place)
    place = arrays.columns["actions"]
    changed.rows[:, place] = changed.rows[:, place].clip(-limit, limit)
    return changed


def scale_rewards(arrays: Arrays, *, scale: float = 1.0, shift: float = 0.0, in_place: bool = False) -> Arrays:
    """Return arrays with rewards `scale * reward + shift`, computed in float64 and rounded once.

    Args:
        arrays: The steps.
        scale: Factor.
        shift: Added after that; -1 turns AntMaze's 0 and 1 into -1 and 0.
        in_place: Write into the given matrix.

    Raises:
        ValueError: a number is not finite, or makes a reward too large for float32.
        TypeError: no arrays.
    """
    check_arrays(arrays)
    if not np.isfinite([scale, shift]).all():
        raise ValueError(f"scale and shift must be finite, found {scale} and {shift}.")
    scale, shift = canonical_number(scale), canonical_number(shift)
    # Only rows of steps; those of final observations hold zeros, which stay.
    steps = torch.from_numpy(arrays.step_rows()).to(arrays.rows.device)
    place = arrays.columns["rewards"].start
    before = arrays.rows[steps, place]
    after = (before.double() * scale + shift).float()
    if (torch.isfinite(after) != torch.isfinite(before)).any():
        raise ValueError(f"{arrays.name}: scale {scale} and shift {shift} make rewards too large for float32.")
    operation = f"scale_rewards 1 {scale!r} {shift!r}"
    changed = _changed(arrays, operation, in_place=in_place)
    changed.rows[steps, place] = after
    return changed


def scale_rewards_by_return_range(arrays: Arrays, *, total: float = 1000.0, in_place: bool = False) -> Arrays:
    """Return arrays with rewards times `total / (highest return - lowest return)`.

    As IQL (Kostrikov et al. 2022) does on MuJoCo, and CORL's `modify_reward`. Returns are those of
    the dataset's episodes. D4RL's files do not mark episodes, so the authors' code cuts them by its
    own rules, and may or may not count an episode that the end of a file cuts off.

    Args:
        arrays: The steps.
        total: Resulting range of returns.
        in_place: Write into the given matrix.

    Raises:
        SchemaError: all episodes have the same return, or one is not finite.
        ValueError: the total is not positive.
    """
    if not 0 < total < np.inf:
        raise ValueError(f"total must be positive and finite, found {total}.")
    returns = finite_returns(arrays)
    spread = float(returns.max() - returns.min())
    if not spread > 0:
        raise SchemaError(
            f"{arrays.name}: the returns of {counted(len(returns), 'episode')} have a range of {spread:g}, "
            "which cannot be scaled; choose a factor yourself with scale_rewards."
        )
    return scale_rewards(arrays, scale=total / spread, in_place=in_place)


def scalarize(arrays: Given | Arrays, *, weights: Sequence[float], objectives: str = OBJECTIVES) -> Arrays:
    """Return the same steps with rewards that are the weighted sum of several objectives.

    Where observations have a part that is called `weights`, of as many numbers, it is set to these weights, so
    that a policy that sees weights learns what they mean. The matrix of the steps is copied; the digest changes
    with the weights, and with it the stream.

    Args:
        arrays: The steps, loaded with the info: `orlog.load_arrays(ds, infos=("objectives",))`; those of a
            dataset are read first.
        weights: One number >= 0 for each objective; they sum to 1.
        objectives: Name of the info that holds the reward of each objective.

    Raises:
        ValueError: weights that do not sum to 1, or another number of them than of objectives.
        NotFoundError: there is no such info.
        SchemaError: the info is not one vector for each step, or an objective is not finite.
        TypeError: neither arrays nor a dataset.
    """
    arrays = as_arrays(arrays, (objectives,))
    where = arrays.name or "these arrays"
    given = np.asarray(weights, np.float64)
    if given.ndim != 1 or not np.isfinite(given).all() or (given < 0).any():
        raise ValueError(f"{where}: weights must be numbers >= 0, found {weights!r:.80}.")
    if abs(float(given.sum()) - 1) > 1e-6:
        raise ValueError(
            f"{where}: weights must sum to 1, found {given.tolist()}, which sum to {given.sum():g}; divide them "
            "by their sum."
        )
    assert arrays.infos is not None  # asked for above
    rows = torch.arange(len(arrays.rows), device=arrays.rows.device)
    values = arrays.infos.leaf(arrays.infos.observation_leaves[objectives], rows)
    if values.ndim != 2:
        raise SchemaError(
            f"{where}: infos/{objectives} holds {'one number' if values.ndim == 1 else 'arrays'} for each step, "
            "expected a vector with the reward of each objective."
        )
    if values.shape[1] != len(given):
        raise ValueError(
            f"{where}: infos/{objectives} has {counted(values.shape[1], 'objective')}, and there are "
            f"{counted(len(given), 'weight')}; give one for each."
        )
    values = values.double()
    if not bool(torch.isfinite(values).all()):
        row = int((~torch.isfinite(values)).any(1).int().argmax())
        episode = int(np.searchsorted(arrays.first_rows, row, "right")) - 1
        raise SchemaError(
            f"{where}: infos/{objectives} is not finite in episode {episode}, step "
            f"{row - int(arrays.first_rows[episode])}; leave the episode out (ds.filter_episodes)."
        )
    changed = arrays.rows.clone()
    factors = torch.from_numpy(given).to(values.device)
    changed[:, arrays.columns["rewards"]] = (values @ factors).float().unsqueeze(1)
    part = {**arrays.parts, **arrays.observation_leaves}.get(WEIGHTS)
    if part is not None and not part.column and part.shape == given.shape:
        changed[:, part.place] = factors.float()
    text = " ".join(float(factor).hex() for factor in given.tolist())
    digest = derived_digest(arrays, f"scalarize 1 {objectives} {text}")
    return dataclasses.replace(arrays, rows=changed, digest=digest)


def images_to_float(batch: BatchT, *, channels_first: bool = False) -> BatchT:
    """Return a batch whose uint8 tensors are float32 in [0, 1]: 4 bytes a number instead of 1.

    Do this as late as possible, on the device that trains, since it makes images four times larger.

    Args:
        batch: A batch of any kind, a dict of tensors, or one tensor.
        channels_first: Move the last axis before height and width, as convolutions take it; for
            images with an axis of channels, `[.., height, width, channels]`.

    Raises:
        ValueError: `channels_first`, and an image with fewer than three axes besides the batch's.
        TypeError: no batch.
    """
    change = functools.partial(_to_float, channels_first=channels_first)
    changed: Any
    if isinstance(batch, Tensors):
        changed = batch.map(change)
    elif isinstance(batch, dict):
        changed = {key: change(value) for key, value in batch.items()}
    elif isinstance(batch, Tensor):
        changed = change(batch)
    else:
        raise TypeError(f"expected a batch or a tensor, found {type(batch).__name__}.")
    return changed  # type: ignore[no-any-return]  # of the type it was given


def _to_float(value: Tensor, channels_first: bool) -> Tensor:
    if value.dtype != torch.uint8:
        return value
    if channels_first:
        if value.ndim < 4:
            raise ValueError(
                f"channels_first takes images [batch, .., height, width, channels], found shape {tuple(value.shape)}."
            )
        value = value.movedim(-1, -3)
    return value.to(torch.float32, memory_format=torch.contiguous_format).div_(255)


def depth_to_metres(depth: Any, parameters: Any) -> Any:
    """Return maps of depth in metres, float32, of the same shape, as an array or a tensor, whichever was given.

        metres = depth_to_metres(episode.observations["images.depth"], episode.metadata["depth/images.depth"])

    In a batch the parameters are infos: `infos=("episodes/depth/images.depth",)`.

    Args:
        depth: Numbers as they are stored, `[.., height, width, 1]`.
        parameters: Of the role `depth`, `[5]` or `[batch, 5]`: depth of the number 0 and of the greatest one in metres,
            shift in metres, whether steps are equal in the logarithm of depth plus shift, and the greatest number.

    Raises:
        ValueError: there are not five parameters, or more axes of them than of the depth.
    """
    if parameters.shape[-1:] != (5,) or parameters.ndim > depth.ndim:
        raise ValueError(
            f"expected five parameters for each map of depth, found the shapes {tuple(parameters.shape)} and "
            f"{tuple(depth.shape)}."
        )
    library: Any = np if isinstance(depth, np.ndarray) else torch
    shape = (*parameters.shape[:-1], *[1] * (depth.ndim - parameters.ndim + 1))
    return metres_of(depth, [parameters[..., number].reshape(shape) for number in range(5)], library)


def _changed(arrays: Arrays, operation: str, *, in_place: bool) -> Arrays:
    """Return arrays to write into, with a digest that depends on the operation."""
    rows = arrays.rows if in_place else arrays.rows.clone()
    return dataclasses.replace(arrays, rows=rows, digest=derived_digest(arrays, operation))
