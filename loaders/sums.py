"""Sums over steps: of rewards and of infos, within an episode.

infos["cost"]            1  0  0  1  0
infos["cost_to_go"]      2  1  1  1  0      the sum from this step on, itself included
info_sums(.., "cost")    2                  of the episode
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor

from orlog.datasets.columns.values import episode_blocks
from orlog.datasets.reading.opening import Given
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays, as_arrays
from orlog.loaders.filling import Leaf

TO_GO = "_to_go"
"""End of the name under which batches give a sum from a step on."""

_BLOCK_ROWS = 2**20  # summed at once, in float64


def sum_rewards(
    arrays: Arrays, steps: int, discount: float, dtype: type[np.floating[Any]] = np.float32
) -> Float[Tensor, " rows"]:
    """Return for each row the discounted sum of its next rewards, within its episode.

    Terms are added one by one, not taken as differences of running sums, so equal rewards have
    equal sums.
    """
    rewards = arrays.rows[:, arrays.columns["rewards"].start].cpu().numpy()
    total = np.empty(len(rewards), dtype)
    with arrays.in_order():
        for first in range(0, len(total), _BLOCK_ROWS):
            last = min(first + _BLOCK_ROWS, len(total))
            own = rewards[first : last + steps].astype(np.float64)
            begin, end = np.searchsorted(arrays.final_rows, [first, first + len(own)])
            ends = arrays.final_rows[begin:end] - first
            own[ends] = 0
            summed = own.copy()
            for _ in range(steps - 1):
                summed[:-1] = own[:-1] + discount * summed[1:]
                summed[ends] = 0
            total[first:last] = summed[: last - first]
    return torch.from_numpy(total)


def returns_to_go(arrays: Arrays, discount: float = 1.0) -> Float32[Tensor, " steps_and_episodes"]:
    """Return for each row of the matrix the discounted sum of rewards to its episode's end."""
    return sums_to_go(arrays, arrays.rows[:, arrays.columns["rewards"].start], discount)


def sums_to_go(
    arrays: Arrays, values: Float32[Tensor, " steps_and_episodes"], discount: float = 1.0
) -> Float32[Tensor, " steps_and_episodes"]:
    """Return for each row the discounted sum of some values of the rows to its episode's end.

    Sums are in float64 and never cross an episode. Each pass doubles their reach: the sum over 2^k
    steps plus the discounted sum over the next 2^k. That is as exact as adding backwards, in few
    passes.
    """
    numbers = values.cpu().numpy()
    found = np.empty(len(numbers), np.float32)
    # In blocks of episodes, since temporary arrays take many bytes a step.
    edges = episode_blocks(arrays.final_rows, _BLOCK_ROWS)
    with arrays.in_order():
        for episodes in itertools.starmap(slice, itertools.pairwise(edges)):
            lengths, final_rows = arrays.lengths[episodes], arrays.final_rows[episodes]
            rows = slice(final_rows[0] - lengths[0], final_rows[-1] + 1)
            total = numbers[rows].astype(np.float64)
            left = np.repeat(final_rows, lengths + 1) - np.arange(rows.start, rows.stop)
            reach, longest = 1, int(lengths.max())
            while reach < longest:
                inside = np.flatnonzero(left > reach)
                total[inside] += discount**reach * total[inside + reach]
                reach *= 2
            found[rows] = total
    return torch.from_numpy(found).to(arrays.rows.device)


def info_numbers(data: Given | Arrays, name: str) -> Float32[Tensor, " steps_and_episodes"]:
    """Return the values of an info of one number, for each row of the arrays: zeros at final observations.

    Raises NotFoundError if there is no such info; SchemaError if it is not one number, or not finite.
    """
    arrays = as_arrays(data, (name,))
    assert arrays.infos is not None
    infos = arrays.infos
    leaf = infos.observation_leaves[name]
    values = infos.others[leaf.column] if leaf.column else infos.rows[:, leaf.place]
    shape = values.shape[1:] if leaf.column else leaf.shape
    if tuple(shape) != () or leaf.column in infos.texts:
        found = "texts" if leaf.column in infos.texts else f"values of shape {list(shape)}"
        raise SchemaError(
            f"{arrays.name}: the info {name} has {found}, and one number for each step was expected; record "
            "its sum or one part of it as an info of its own."
        )
    numbers = values.reshape(-1).float()
    wrong = ~torch.isfinite(numbers)
    if bool(wrong.any()):
        row = int(wrong.int().argmax())
        episode = int(np.searchsorted(arrays.final_rows, row))
        raise SchemaError(
            f"{arrays.name}: the info {name} is {float(numbers[row])} in step {row - arrays.first_rows[episode]} of "
            f"episode {episode}; leave the episode out, or correct it."
        )
    return numbers


def info_sums(data: Given | Arrays, name: str) -> Float64[np.ndarray, " episodes"]:
    """Return the sum of an info over the steps of each episode. Errors are those of `info_numbers`."""
    arrays = as_arrays(data, (name,))
    values = info_numbers(arrays, name).cpu().numpy().astype(np.float64)
    found: np.ndarray = np.add.reduceat(values, arrays.first_rows)
    return found


def with_sums_to_go(arrays: Arrays, names: Sequence[str], *, discount: float = 1.0) -> Arrays:
    """Return arrays that have the sum from a step on of some infos as further infos, `NAME_to_go`.

    The stream stays as it is. All infos that are packed are copied.
    """
    for name in names:
        sums = sums_to_go(arrays, info_numbers(arrays, name), discount)
        infos = arrays.infos
        assert infos is not None
        leaf = Leaf(first=infos.obs_dim, shape=())
        infos = dataclasses.replace(
            infos,
            rows=torch.cat([infos.rows, sums[:, None].to(infos.rows.device)], 1),
            obs_dim=infos.obs_dim + 1,
            observation_leaves={**infos.observation_leaves, f"{name}{TO_GO}": leaf},
        )
        arrays = dataclasses.replace(arrays, infos=infos)
    return arrays
