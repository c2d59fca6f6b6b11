"""Weights of steps, for any kind of sample: by step, by episode, by return.

    arrays = weighted(arrays, weights_by_return(arrays, temperature=0.1))
    for batch in orlog.transitions(arrays, 256, seed=0): ...

A mixture of datasets has its own weights (`orlog.combine_datasets`), which these multiply. If an
item is more than a step (a window, a goal), the weight of the step that it is chosen by counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float64

from orlog.datasets.reading.opening import Given, as_dataset
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays, as_arrays
from orlog.loaders.choices import AliasTable, Mixture, alias_table, check_weights
from orlog.loaders.statistics import derived_digest, finite_returns, step_numbers
from orlog.loaders.streams import check_choice

Per: TypeAlias = Literal["episode", "step"]


def weighted(arrays: Given | Arrays, weights: Float64[np.ndarray, " steps"], *, infos: Sequence[str] = ()) -> Arrays:
    """Return the same steps, drawn in proportion to weights; nothing is copied.

    The probability of a step is its previous one (from a mixture, or from earlier weights) times
    its weight, normalized to sum to 1. Choosing costs the same for any weights (an alias table, 16
    bytes a step). The digest changes with the weights, and with it the stream.

    Args:
        arrays: The steps; those of a dataset are read first, so for several calls pass the
            result of `orlog.load_arrays`.
        weights: One number a step, >= 0. Only their ratios to the largest count, rounded to
            float32. So `3 * weights` has the same digest and stream (except for about one weight in
            10^8, whose ratio is rounded the other way).
        infos: As in `orlog.load_arrays`, where a dataset is given.

    Raises:
        ValueError: a wrong number of weights; one that is negative, NaN or infinite; or no step
            has a chance left.
        TypeError: neither arrays nor a dataset.
    """
    arrays = as_arrays(arrays, infos)
    steps = arrays.total_steps
    values = np.asarray(weights)
    if values.shape != (steps,):
        raise ValueError(
            f"{arrays.name}: expected a weight for each of the {steps} steps, found shape "
            f"{values.shape}; for weights of episodes use weights_by_episode."
        )
    values = check_weights(values, f"{arrays.name}: ")
    values = (values / values.max()).astype(np.float32).astype(np.float64)
    if arrays.mixture is not None:
        values *= step_probabilities(arrays)
        if not values.any():
            raise ValueError(f"{arrays.name}: every step of positive weight has probability 0 in the mixture.")
    table = alias_table(values)
    digest = derived_digest(arrays, f"weights 2 {table.digest}")
    return dataclasses.replace(arrays, mixture=table, digest=digest)


def weighted_by(data: Given | Arrays, column: str, infos: Sequence[str] = (), arrays: Arrays | None = None) -> Arrays:
    """Return the same steps, drawn in proportion to a column: see `weighted`.

    Args:
        data: The steps.
        column: `infos/NAME`, which has a weight for each step, or `episodes/NAME`: one for each episode, which all of
            its steps get.
        infos: As in `orlog.load_arrays`, where a dataset is given.
        arrays: The steps of that dataset, where they have been read already, with the info of the column.
    """
    if not column.startswith("episodes/"):
        name = column.removeprefix("infos/")
        arrays = as_arrays(data, tuple(dict.fromkeys([*infos, name]))) if arrays is None else arrays
        return weighted(arrays, step_numbers(arrays, name))
    if isinstance(data, Arrays):
        raise TypeError(f"weights={column!r}: arrays have no columns of episodes; give the dataset itself.")
    dataset = as_dataset(data)
    values = np.asarray(dataset.column(column))
    if values.dtype.kind not in "biuf":
        raise SchemaError(f"{dataset.name}: weights are numbers, and {column} holds {values.dtype}.")
    arrays = as_arrays(dataset, infos) if arrays is None else arrays
    return weighted(arrays, weights_by_episode(arrays, values, per="step"))


def weights_by_episode(
    arrays: Given | Arrays, weights: np.ndarray | None = None, *, per: Per = "episode"
) -> Float64[np.ndarray, " steps"]:
    """Return weights of steps from weights of episodes; by default, episodes weigh the same.

    Args:
        arrays: The steps.
        weights: One number an episode, >= 0.
        per: What a weight applies to. `episode`: to the episode as a whole, so its steps share it,
            and a long episode is as likely as a short one of the same weight. `step`: to each step
            of the episode, so a longer one is more likely.

    Raises:
        ValueError: a wrong number of weights, or one that is negative, NaN or infinite.
        TypeError: neither arrays nor a dataset.
    """
    arrays = as_arrays(arrays)
    lengths = arrays.lengths
    values = np.ones(len(lengths)) if weights is None else np.asarray(weights)
    if values.shape != lengths.shape:
        raise ValueError(
            f"{arrays.name}: expected a weight for each of the {len(lengths)} episodes, found "
            f"shape {values.shape} of {values.dtype}."
        )
    values = check_weights(values, f"{arrays.name}: episodes: ")
    check_choice("per", per, ("episode", "step"))
    return np.repeat(values / lengths if per == "episode" else values, lengths)


def weights_by_return(
    arrays: Given | Arrays, *, temperature: float = 0.1, by: Literal["return", "rank"] = "return", per: Per = "step"
) -> Float64[np.ndarray, " steps"]:
    """Return weights of steps that grow with the return of their episode.

    An episode weighs exp(value / temperature), where its value is 0 for the lowest return and 1
    for the highest, as in the return weighting of Hong et al. 2023 ("Harnessing Mixed Offline
    Reinforcement Learning Datasets via Trajectory Weighting").

    Args:
        arrays: The steps.
        temperature: The lower, the more the best episodes count; infinity makes all weights equal.
        by: What the value grows linearly with: the return, or its rank (equal returns share the
            mean of their ranks), which a few extreme returns hardly change.
        per: See `weights_by_episode`.

    Raises:
        ValueError: the temperature is not positive.
        SchemaError: a return is not finite.
        TypeError: neither arrays nor a dataset.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, found {temperature}.")
    check_choice("by", by, ("return", "rank"))
    arrays = as_arrays(arrays)
    values = finite_returns(arrays)
    if by == "rank":
        _, same, counts = np.unique(values, return_inverse=True, return_counts=True)
        values = (counts.cumsum() - (counts - 1) / 2)[same]
    spread = values.max() - values.min()
    # Relative to the best, so that no temperature makes them infinite.
    behind = (values - values.max()) / (spread or 1.0)
    with np.errstate(over="ignore"):  # very low values get weight 0
        return weights_by_episode(arrays, np.exp(behind / temperature), per=per)


def step_probabilities(arrays: Given | Arrays) -> Float64[np.ndarray, " steps"]:
    """Return how likely each step is to be chosen."""
    arrays = as_arrays(arrays)
    choice = arrays.mixture
    match choice:
        case AliasTable():
            return choice.probabilities
        case Mixture():
            shares = np.diff(choice.up_to, prepend=0.0) / np.maximum(choice.sizes, 1)
            probabilities = np.empty(arrays.total_steps)
            probabilities[choice.steps] = np.repeat(shares, choice.sizes)
            return probabilities
    return np.full(arrays.total_steps, 1 / arrays.total_steps)
