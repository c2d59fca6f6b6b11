"""Sums of infos: of whole episodes, and from each step to the end of its episode, in windows of steps.

    infos["cost"]            1  0  0  1  0
    infos["cost_to_go"]      2  1  1  1  0      the sum from this step on, itself included
    info_sums(.., "cost")    2                  of the episode

As returns-to-go are for rewards, for what else is to be asked of an episode: `windows_with_sums`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Unpack

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from orlog.datasets.reading.opening import Given
from orlog.errors import SchemaError
from orlog.loaders.arrays.arrays import Arrays, as_arrays
from orlog.loaders.arrays.filling import Leaf
from orlog.loaders.batch import SequenceBatch
from orlog.loaders.sampling.options import StreamOptions, takes_stream_options
from orlog.loaders.sampling.streams import Batches
from orlog.loaders.sequences import sequences, sums_to_go
from orlog.loaders.weights import weighted, weights_by_episode

TO_GO = "_to_go"
"""End of the name under which batches give a sum from a step on."""


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


@takes_stream_options
def windows_with_sums(
    data: Given | Arrays,
    batch_size: int = 64,
    *,
    length: int,
    seed: int,
    to_go: Sequence[str] = (),
    cheaper: tuple[str, float] | None = None,
    **stream: Unpack[StreamOptions],
) -> Batches[SequenceBatch]:
    """Return windows of steps with infos, and with what is still to come of some of them.

    All other arguments, and errors, are those of `orlog.sequences`.

    Args:
        data: What to sample from.
        batch_size: Windows in a batch.
        length: Steps of a window.
        seed: Seed of the stream.
        to_go: Infos of which the sum from each step on is given, as `NAME_to_go`.
        cheaper: An info and a number: the chance of an episode grows with how far its sum of the info stays
            below the number, and those that reach it are left out, as OSRL draws for CDT. None draws all
            steps alike.
        stream: `start`, `infos`, `rank` and `ranks`.

    Raises ValueError besides if no episode stays below the number.
    """
    infos = stream.get("infos", ())
    summed = [*to_go, *(() if cheaper is None else cheaper[:1])]
    arrays = as_arrays(data, tuple(dict.fromkeys([*infos, *summed])))
    if cheaper is not None:
        name, most = cheaper
        sums = info_sums(arrays, name)
        left = np.maximum(most - sums, 0)
        if not left.any():
            raise ValueError(
                f"{arrays.name}: no episode has a {name} below {most:g}; the least is {sums.min():g}."
            )
        arrays = weighted(arrays, weights_by_episode(arrays, left, per="episode"))
    stream["infos"] = (*infos, *(f"{one}{TO_GO}" for one in to_go))
    return sequences(with_sums_to_go(arrays, to_go), batch_size, length=length, seed=seed, **stream)
