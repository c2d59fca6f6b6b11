"""What a method gives after tuning: its best setting as found by a number of evaluations.

A method is its code with the *range* of its settings, of which its user must choose one with few evaluations.
Scores of the best setting alone say nothing of that choice. Two answers:

- `tuning_curves`: a bandit chooses which policy to run for the next episode, and names the one that
  looks best so far (Jackson et al. 2025, "A Clean Slate for Offline Reinforcement Learning", with
  their code unifloral). An evaluation is one episode.
- `expected_online_performance`: the best of as many settings, each evaluated until its mean is known
  (Kurenkov and Kolesnikov 2022, "Showing Your Offline Reinforcement Learning Work: Online Evaluation
  Budget Matters"). An evaluation is one setting, with all its seeds and episodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from orlog.manifests.documents import canonical_json
from orlog.normalize.statistics import check_finite

EXPLORATION = 2.0
"""Weight of the bandit's exploration, as in unifloral: for scores where 100 is the expert's."""

MOST_EVALUATIONS = 10**8  # most evaluations of all trials together, whose scores are kept in memory
POLICIES = 8
"""Policies that a user trains, as in unifloral's plots: each trial of the bandit draws so many."""


def tuning_curves(
    scores: Float[np.ndarray, "policies episodes"],
    rng: np.random.Generator,
    *,
    evaluations: int = 200,
    policies: int = POLICIES,
    trials: int = 1000,
    exploration: float = EXPLORATION,
) -> Float[np.ndarray, "trials evaluations"]:
    """Return the mean score of the policy that a bandit names best after each evaluation.

    Each trial draws some of the policies without replacement (all if there are fewer). An evaluation draws
    one of a policy's episodes with replacement. Each policy is evaluated once, in random order, then that
    with the largest mean + sqrt(exploration ln(evaluations so far + 1) / its evaluations) (UCB; Auer et al.
    2002), `exploration` in squared units of the scores. As in
    EmptyJackson/unifloral@f2dc1278ea:evaluation.py, except that a policy without an evaluation is never named
    best; there its mean counts as 0.
    """
    check_finite(scores)
    if trials * evaluations > MOST_EVALUATIONS:
        raise ValueError(
            f"{trials:,} trials of {evaluations:,} evaluations are more than {MOST_EVALUATIONS:,} in all; choose fewer."
        )
    available, episodes = scores.shape
    arms = min(policies, available)
    rows = np.arange(trials)
    chosen = rng.permuted(np.tile(np.arange(available), (trials, 1)), axis=1)[:, :arms]
    true_means = scores.mean(1)[chosen]
    counts, totals = np.zeros((trials, arms)), np.zeros((trials, arms))
    curves = np.empty((trials, evaluations))
    for done in range(evaluations):
        if done < arms:
            arm = np.full(trials, done)  # the order of `chosen` is random
        else:
            bounds = totals / counts + np.sqrt(exploration * np.log(done + 1) / counts)
            arm = _largest(bounds, rng)
        totals[rows, arm] += scores[chosen[rows, arm], rng.integers(episodes, size=trials)]
        counts[rows, arm] += 1
        means = np.divide(totals, counts, out=np.full_like(totals, -np.inf), where=counts > 0)
        curves[:, done] = true_means[rows, means.argmax(1)]
    return curves


def _largest(values: Float[np.ndarray, "trials arms"], rng: np.random.Generator) -> np.ndarray:
    """Return the position of each row's largest value, at random among equals."""
    ties = values == values.max(1, keepdims=True)
    return np.asarray((ties * rng.random(values.shape)).argmax(1))


def expected_online_performance(scores: Float[np.ndarray, " settings"]) -> Float[np.ndarray, " settings"]:
    """Return the expected score of the best of 1, 2, .. settings, drawn at random with replacement.

    With N settings in order of their score, the best of n is at most the i-th with probability
    (i/N)^n, so that its expectation is the sum of score_i ((i/N)^n - ((i-1)/N)^n) (Dodge et al. 2019,
    whose estimate Kurenkov and Kolesnikov use). For n near N it is too low (Tang et al. 2020).
    """
    check_finite(scores)
    count = len(scores)
    budgets = np.arange(1, count + 1)[:, None]
    at_most = (np.arange(count + 1) / count) ** budgets
    return np.asarray(np.diff(at_most, axis=1) @ np.sort(scores))


def method_digest(method: str, settings: Sequence[dict[str, Any]], **others: object) -> str:
    """Return the identity of a method with the range of its settings, as `sha256:` and hex.

    It is the SHA-256 of the canonical JSON of the method's name, of the different settings in
    whatever order they are given, and of what else belongs to the method, such as its code's version.
    """
    distinct = {canonical_json(chosen): chosen for chosen in settings}
    ordered = [distinct[text] for text in sorted(distinct)]
    body = {**others, "method": method, "method_version": 1, "settings": ordered}
    return f"sha256:{hashlib.sha256(canonical_json(body)).hexdigest()}"
