"""Normalized scores by the name of a dataset, with the formula and references of its benchmark.

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
import re
from collections.abc import Mapping
from typing import overload

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from orlog.datasets.reading.opening import Given
from orlog.errors import NotFoundError, wrong_type
from orlog.normalize.references import normalized_cost
from orlog.normalize.statistics import interquartile_mean
from orlog.runs.references import described, references_to


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


@overload
def normalized_score(
    dataset: Given, returns: ArrayLike, *, costs: None = None, cost_limit: None = None
) -> Float[np.ndarray, "*shape"]: ...


@overload
def normalized_score(dataset: Given, returns: ArrayLike, *, costs: ArrayLike, cost_limit: float) -> SafeScore: ...


def normalized_score(
    dataset: Given, returns: ArrayLike, *, costs: ArrayLike | None = None, cost_limit: float | None = None
) -> Float[np.ndarray, "*shape"] | SafeScore:
    """Return the normalized scores of returns, by the formula and references of the dataset.

    0 is the lower reference and 100 the upper one: a random policy and an expert in D4RL, random play
    and a human player in Atari, failure and success in AntMaze and OGBench (`orlog.references`
    says which, and in which simulator they were measured). Scores are never clipped.

    Args:
        dataset: An open dataset, or the name or path of one. The name of a benchmark's dataset is
            enough, such as `d4rl/hopper-medium-v2`.
        returns: Undiscounted return of each episode, in any shape; for OGBench 1 for each episode
            that reached its goal and 0 for the others.
        costs: Cost of each episode, as DSRL counts it.
        cost_limit: The cost that an episode may have on average; with `costs` only.

    Returns:
        The score of each return, in the same shape. With costs one `SafeScore`: mean score, cost in
        units of the limit, and whether the policy is safe.

    Raises:
        NotFoundError: no reference returns are known for the dataset.
        ValueError: there are no returns, one is not finite, or costs and limit do not fit.
        TypeError: the limit is not a number.
    """
    known = described(dataset)
    name, benchmark = known.name, known.benchmark
    values = _numbers("returns", returns, name)
    kind = "" if benchmark is None else benchmark.facts.get("family", benchmark.benchmark.key)
    if kind in _SUCCESSES:
        most, what = _SUCCESSES[kind]
        wrong = values[(values < 0) | (values > most)]
        if wrong.size:
            raise ValueError(f"{name}: {what}, from 0 to {most}; found {wrong[0]:g}.")
    with np.errstate(over="ignore"):
        scores = 100 * values if kind == "ogbench" else references_to(known).normalize(values)
    if not np.isfinite(scores).all():
        raise ValueError(f"{name}: returns are too large for a score: {np.abs(values).max():g}.")
    if costs is None and cost_limit is None:
        return scores
    if costs is None:
        raise ValueError(f"{name}: a cost limit was given without the costs of the episodes.")
    if benchmark is not None and benchmark.benchmark.key != "dsrl":
        raise ValueError(f"{name}: {benchmark.benchmark.title} has no costs; leave them out.")
    if cost_limit is None:
        limits = "" if benchmark is None else benchmark.facts["target_cost_thresholds"]
        usual = f", which OSRL sets to {', '.join(limits.split())} in turn" if limits else ""
        raise ValueError(f"{name}: costs were given without a cost limit; give cost_limit{usual}.")
    if isinstance(cost_limit, bool) or not isinstance(cost_limit, _NUMBERS):
        raise wrong_type("cost_limit", "a number", cost_limit)
    paid = _numbers("costs", costs, name)
    if paid.shape != values.shape:
        raise ValueError(
            f"{name}: {paid.size} costs were given for {values.size} returns; each episode has one of both."
        )
    if not 0 <= cost_limit < np.inf or paid.min() < 0:
        raise ValueError(f"{name}: costs and their limit must be finite numbers from 0 on.")
    limit = float(cost_limit)
    cost = normalized_cost(paid, limit)
    return SafeScore(float(scores.mean()), cost, limit, cost <= 1)


_NUMBERS = (int, float, np.integer, np.floating)
# Returns of these count successes: another value would come from other rewards or a longer episode.
_SUCCESSES = {
    "antmaze": (1, "AntMaze counts whether an episode reached the goal"),
    "franka-kitchen": (4, "the score of a kitchen episode counts finished subtasks"),
    "ogbench": (1, "OGBench counts whether an episode reached the goal"),
}


def _numbers(what: str, values: ArrayLike, dataset: str) -> Float[np.ndarray, "*shape"]:
    """Return numbers as an array of float64.

    Raises ValueError if there are none, one is NaN or infinite (the message says which) or masked, or they are
    no real numbers.
    """
    try:
        given = np.asanyarray(values)
    except (RuntimeError, TypeError, ValueError):  # RuntimeError: torch's
        given = np.empty(0, object)
    if given.dtype.kind not in "biuf":
        raise ValueError(f"{dataset}: {what} must be numbers, one for each episode.")
    if np.ma.is_masked(given):
        raise ValueError(f"{dataset}: some {what} are masked; leave these out.")
    array = np.asarray(given, np.float64)
    if array.size == 0:
        raise ValueError(f"{dataset}: there are no {what}; give those of at least one episode.")
    bad = np.flatnonzero(~np.isfinite(array.ravel()))
    if bad.size:
        first = array.ravel()[bad[0]]
        raise ValueError(f"{dataset}: {what} hold {first} at position {bad[0]}; a score needs finite numbers.")
    return array


def normalized_task_scores(returns: Mapping[str, ArrayLike]) -> TaskScores:
    """Return mean, median and interquartile mean of normalized scores over datasets.

    Each dataset's returns are normalized first: medians of returns of several datasets mean nothing.

    Args:
        returns: Undiscounted returns of episodes by name of the dataset, all of one benchmark, and of
            one version of D4RL's gym datasets.

    Raises:
        NotFoundError: no reference returns are known for a dataset.
        ValueError: there are none, or their scores may not share an average.
    """
    if not returns:
        raise ValueError("no returns were given: a summary needs at least one dataset.")
    kinds: dict[str, str] = {}
    names: dict[str, str] = {}
    for name in returns:
        benchmark = described(name).benchmark
        if benchmark is None:
            raise NotFoundError(f"{name}: only scores on datasets of a benchmark share an average.")
        differs = benchmark.facts.get("family") in ("gym-mujoco", "antmaze")
        version = benchmark.facts["version"] if differs else ""
        kinds[name] = f"{benchmark.benchmark.title} {version}".strip()
        same = names.setdefault(re.sub(r"-v\d+$", "", benchmark.name), name)
        if same != name and kinds[same] == kinds[name]:
            raise ValueError(
                f"{same} and {name} are the same dataset or versions of it, which would count twice in the "
                "average; leave one out."
            )
    if len(set(kinds.values())) > 1:
        shown = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
        raise ValueError(f"scores of different benchmarks or versions share no average: {shown}.")
    means = {name: float(normalized_score(name, values).mean()) for name, values in returns.items()}
    over = np.array(list(means.values()))
    middle = float(interquartile_mean(over[None]))
    return TaskScores(means, float(over.mean()), float(np.median(over)), middle)
