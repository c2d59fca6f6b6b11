"""Normalized scores by the name of a dataset, with the formula and references of its benchmark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import overload

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from orlog.datasets.reading.given import Given
from orlog.errors import NotFoundError, wrong_type
from orlog.manifests.benchmarks import BenchmarkDataset
from orlog.normalize.formulas import (
    SafeScore,
    TaskScores,
    check_successes,
    checked_values,
    normalized_cost,
    task_scores,
)
from orlog.scoring.references import described, references_to


@overload
def normalized_score(
    dataset: Given, returns: ArrayLike, *, costs: None = None, cost_limit: None = None
) -> Float[np.ndarray, "*shape"]: ...


@overload
def normalized_score(
    dataset: Given, returns: ArrayLike, *, costs: ArrayLike, cost_limit: float
) -> SafeScore: ...


def normalized_score(
    dataset: Given,
    returns: ArrayLike,
    *,
    costs: ArrayLike | None = None,
    cost_limit: float | None = None,
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
    values = checked_values("returns", returns, name)
    group = _group(benchmark)
    if group in _SUCCESSES:
        check_successes(values, *_SUCCESSES[group], name)
    with np.errstate(over="ignore"):
        scores = 100 * values if group == "ogbench" else references_to(known).normalize(values)
    if not np.isfinite(scores).all():
        raise ValueError(f"{name}: returns are too large for a score: {np.abs(values).max():g}.")
    if costs is None:
        if cost_limit is not None:
            raise ValueError(f"{name}: a cost limit was given without the costs of the episodes.")
        return scores
    if cost_limit is None:
        raise ValueError(f"{name}: costs were given without a cost limit{_thresholds(benchmark)}.")
    if benchmark is not None and benchmark.benchmark.key != "dsrl":
        raise ValueError(f"{name}: {benchmark.benchmark.title} has no costs; leave them out.")
    if isinstance(cost_limit, bool) or not isinstance(cost_limit, _NUMBERS):
        raise wrong_type("cost_limit", "a number", cost_limit)
    paid = checked_values("costs", costs, name)
    if paid.shape != values.shape:
        raise ValueError(
            f"{name}: {paid.size} costs were given for {values.size} returns; each episode has one "
            "of both."
        )
    if not 0 <= cost_limit < np.inf or paid.min() < 0:
        raise ValueError(f"{name}: costs and their limit must be finite numbers from 0 on.")
    cost = normalized_cost(paid, float(cost_limit))
    return SafeScore(
        score=float(scores.mean()),
        normalized_cost=cost,
        cost_limit=float(cost_limit),
        safe=cost <= 1,
    )


_NUMBERS = (int, float, np.integer, np.floating)


def _group(benchmark: BenchmarkDataset | None) -> str:
    """Return the family of a D4RL dataset, the key of another benchmark, or nothing."""
    if benchmark is None:
        return ""
    return benchmark.facts.get("family", benchmark.benchmark.key)


# Returns of these count successes: another value would come from other rewards or a longer episode.
_SUCCESSES = {
    "antmaze": (1, "AntMaze counts whether an episode reached the goal"),
    "franka-kitchen": (4, "the score of a kitchen episode counts finished subtasks"),
    "ogbench": (1, "OGBench counts whether an episode reached the goal"),
}


def _thresholds(benchmark: BenchmarkDataset | None) -> str:
    if benchmark is None or benchmark.benchmark.key != "dsrl":
        return ""
    limits = ", ".join(benchmark.facts["target_cost_thresholds"].split())
    return f"; give cost_limit, which OSRL sets to {limits} in turn"


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
    kinds = {name: _kind(name) for name in returns}
    if len(set(kinds.values())) > 1:
        shown = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
        raise ValueError(f"scores of different benchmarks or versions share no average: {shown}.")
    _check_counted_once(returns)
    return task_scores({name: normalized_score(name, values) for name, values in returns.items()})


def _check_counted_once(names: Iterable[str]) -> None:
    """Refuse a dataset that is named twice, or in two versions, since it would count twice."""
    seen: dict[str, str] = {}
    for name in names:
        benchmark = described(name).benchmark
        plain = name if benchmark is None else re.sub(r"-v\d+$", "", benchmark.name)
        if plain in seen:
            raise ValueError(
                f"{seen[plain]} and {name} are the same dataset or versions of it, which would count "
                "twice in the average; leave one out."
            )
        seen[plain] = name


def _kind(name: str) -> str:
    """Return what datasets must have in common to share an average."""
    benchmark = described(name).benchmark
    if benchmark is None:
        raise NotFoundError(f"{name}: only scores on datasets of a benchmark share an average.")
    differs = _group(benchmark) in {"gym-mujoco", "antmaze"}
    version = benchmark.facts["version"] if differs else ""
    return f"{benchmark.benchmark.title} {version}".strip()
