"""The scores that each benchmark reports, from the returns of episodes.

benchmark       score                                       0 and 100 are
D4RL            100 (R - low) / (high - low)                random and expert policy; AntMaze: failure and
                                                            success; kitchen: 0 and 4 subtasks
Atari           100 (R - random) / (human - random)         random play and a human player
DSRL            100 (R - low) / (high - low)                lowest and highest return in the dataset
                cost: (C + e) / (limit + e), safe if <= 1   e = 1 if the limit is 0, otherwise 0
NeoRL-2         100 (R - low) / (high - low)                its own two references
OGBench         100 times the share of successes            all goals missed, all reached
OG-MARL         none: raw team returns are reported

Minari's own function returns the same score without the factor 100, and DSRL prints it so. Scores
are never clipped. A mean may be taken before or after normalizing, a median or an interquartile mean
over datasets only after.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from orlog.normalize.statistics import interquartile_mean


@dataclasses.dataclass(frozen=True, slots=True)
class SafeScore:
    """The score of a policy whose episodes also have costs.

    Attributes:
        score: Mean normalized score, 0..100; DSRL prints a hundredth of it.
        normalized_cost: Mean cost in units of the limit.
        cost_limit: The limit, which the evaluation chooses.
        safe: Whether the normalized cost is at most 1.
    """

    score: float
    normalized_cost: float
    cost_limit: float
    safe: bool


@dataclasses.dataclass(frozen=True, slots=True)
class TaskScores:
    """Scores over several datasets of one benchmark, each normalized first.

    Attributes:
        scores: Mean normalized score by dataset.
        mean: Mean over datasets.
        median: Median over datasets.
        interquartile_mean: Mean of the middle half of the datasets.
    """

    scores: dict[str, float]
    mean: float
    median: float
    interquartile_mean: float


def checked_values(what: str, values: ArrayLike, dataset: str) -> Float[np.ndarray, "*shape"]:
    """Return numbers as an array of float64.

    Raises ValueError if there are none, one is NaN or infinite (the message says which), or they are text,
    complex numbers, dates or masked.
    """
    wrong = f"{dataset}: {what} must be numbers, one for each episode, in an array of any shape."
    try:
        given = np.asanyarray(values)
        array = given if _is_other_kind(given) else np.asarray(given, dtype=np.float64)
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:  # RuntimeError: torch's
        raise ValueError(wrong) from error
    if _is_other_kind(given):
        raise ValueError(wrong)
    if np.ma.is_masked(given):
        raise ValueError(f"{dataset}: some {what} are masked; leave these out.")
    if array.size == 0:
        raise ValueError(f"{dataset}: there are no {what}; give those of at least one episode.")
    bad = np.flatnonzero(~np.isfinite(array.ravel()))
    if bad.size:
        first = array.ravel()[bad[0]]
        raise ValueError(
            f"{dataset}: {what} hold {first} at position {bad[0]}; a score needs finite numbers."
        )
    return array


def _is_other_kind(given: np.ndarray) -> bool:
    """Whether values are text, dates or complex, which NumPy would convert."""
    if given.dtype.kind == "O":
        return any(isinstance(one, (str, bytes)) for one in given.flat)
    return given.dtype.kind not in "biuf"


def normalized_cost(costs: Float[np.ndarray, "*episodes"], cost_limit: float) -> float:
    """Return the mean cost of episodes in units of a limit (DSRL): (C + e) / (limit + e)."""
    epsilon = 1.0 if cost_limit == 0 else 0.0
    return (float(costs.mean()) + epsilon) / (cost_limit + epsilon)


def check_successes(
    values: Float[np.ndarray, "*shape"], most: float, what: str, dataset: str
) -> None:
    """Refuse values that are not the successes of an episode, 0 to `most`.

    Raises ValueError if a value lies outside; the message says what `what` is.
    """
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > most:
        found = f"this value is {low:g}" if low == high else f"these go from {low:g} to {high:g}"
        raise ValueError(f"{dataset}: {what}, from 0 to {most:g}, but {found}.")


def task_scores(scores: Mapping[str, Float[np.ndarray, "*shape"]]) -> TaskScores:
    """Return mean, median and interquartile mean over datasets of normalized scores."""
    means = {name: float(values.mean()) for name, values in scores.items()}
    over = np.array(list(means.values()))
    return TaskScores(
        scores=means,
        mean=float(over.mean()),
        median=float(np.median(over)),
        interquartile_mean=float(interquartile_mean(over[None])),
    )
