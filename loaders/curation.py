"""Which episodes to learn from: a score of each, to keep the best by, or to weigh steps by.

    scores = orlog.loaders.curation.episode_scores(ds, by="mutual_information")
    layered = ds.with_columns("episodes/quality", scores, role="quality")
    kept = layered.top_episodes(50, by="quality")

A score says nothing by itself: see what a policy reaches that is trained on what it keeps, beside one that is trained
on all (docs/layers.md has both numbers for data with planted bad episodes).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import digamma

from orlog.datasets.reading.opening import Given, as_dataset
from orlog.errors import SchemaError
from orlog.loaders.places import load_arrays
from orlog.loaders.streams import check_choice

By: TypeAlias = Literal["return", "mutual_information"]
NEIGHBORS = (5, 6, 7)
BATCH = 1024
ROUNDS = 4


def episode_scores(
    data: Given,
    by: By = "mutual_information",
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> np.ndarray:
    """Return a score of each episode, (episodes,) float64; the larger, the better.

    `return` is the sum of rewards. `mutual_information` needs none: it is how much the actions of an episode depend on
    its states, as in DemInf (Hejna and others 2025, https://arxiv.org/abs/2502.08623), by the estimator of Kraskov and
    others 2004 (https://arxiv.org/abs/cond-mat/0305641), in nats, and the mean over the episode's steps. It is computed
    among random batches of 1,024 steps, each step in four of them, with 5 to 7 neighbors. DemInf measures in the latent spaces of
    autoencoders; here states and actions are standardized numbers, so it is for states, not for frames.

    Args:
        data: The dataset.
        by: Which score.
        seed: Of the batches.
        progress: Called with batches done and in all.

    Raises:
        SchemaError: observations or actions are not plain numbers, or there are fewer than eight steps.
    """
    check_choice("by", by, ("return", "mutual_information"))
    dataset = as_dataset(data)
    if by == "return":
        return np.asarray(dataset.column("episodes/returns"), np.float64)
    arrays = load_arrays(dataset, "ram")
    if arrays.observation_leaves or not arrays.obs_dim or not arrays.action_dim:
        raise SchemaError(
            f"{dataset.name}: mutual_information is for vectors of observations and actions; use by='return'."
        )
    rows = arrays.rows[arrays.step_rows()].double().numpy()
    states, actions = rows[:, : arrays.obs_dim], rows[:, arrays.columns["actions"]].reshape(len(rows), -1)
    if len(rows) <= max(NEIGHBORS):
        raise SchemaError(f"{dataset.name}: {len(rows)} steps are too few to estimate from.")
    states, actions = (part / np.maximum(part.std(0), 1e-9) for part in (states, actions))
    sums, rng = np.zeros(len(rows)), np.random.default_rng(seed)
    each = max(1, len(rows) // BATCH)
    batches = [batch for _ in range(ROUNDS) for batch in np.array_split(rng.permutation(len(rows)), each)]
    for done, batch in enumerate(batches, 1):
        sums[batch] += information(states[batch], actions[batch]) / ROUNDS
        progress(done, len(batches))
    ends = arrays.lengths.cumsum()
    scores: np.ndarray = np.add.reduceat(sums, ends - arrays.lengths) / arrays.lengths
    return scores


def information(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return what each step adds to the estimate of the mutual information, whose mean is the estimate, (steps,) nats.

    The first estimator of Kraskov and others: psi(k) + psi(n) - psi(n_s + 1) - psi(n_a + 1), where n_s and n_a count the steps
    that are nearer than the k-th neighbor in both, in the largest difference of a number.
    """
    count = len(states)
    apart = [cdist(part, part, "chebyshev") for part in (states, actions)]
    farther = np.maximum(*apart)
    np.fill_diagonal(farther, np.inf)
    nearest = np.partition(farther, [k - 1 for k in NEIGHBORS], axis=1)
    total = np.zeros(count)
    for k in NEIGHBORS:
        radius = nearest[:, k - 1, None]
        near = [np.maximum((part < radius).sum(1), 1) for part in apart]  # the step itself is one of them
        total += digamma(k) + digamma(count) - sum(digamma(number) for number in near)
    return total / len(NEIGHBORS)
