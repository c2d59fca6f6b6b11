"""Hypervolume: how much of the space of objectives a policy reaches with all weights that it was asked for.

The episodes of a run with the same weights (metric `episode_weights`) have a mean vector of objectives. These are points, and the
hypervolume is the volume of all vectors that are at most as good as one of them in every objective, and at least as
good as a reference point (Zitzler and Thiele 1999). The reference point is `REFERENCES` of the dataset, else zeros.
Where the front is known (`orlog.datasets.environments.objectives`), its hypervolume, with the best policy for each of the
same weights, is said beside.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from orlog.datasets.environments import objectives
from orlog.normalize.metrics.metrics import Metric, Number, Played, mean_over

REFERENCES: dict[str, tuple[float, ...]] = {
    "objectives/treasure-v1": (0.0, -25.0),
    "objectives/gathering-v1": (-0.25, 0.0, 0.0),
}
"""Reference points: a little worse than all that the best policies come to."""


def hypervolume(
    points: Float[np.ndarray, "points objectives"], reference: Float[np.ndarray, " objectives"]
) -> float:
    """Return the volume between a reference point and the points, of which more is better in each objective.

    Points that are not above the reference in all objectives count nothing.
    """
    above = np.unique(points[(points > reference).all(1)], axis=0)
    if not len(above):
        return 0.0
    if above.shape[1] == 1:
        return float(above.max() - reference[0])
    # Slices along the last objective: between two levels, what reaches the upper one counts.
    volume, below = 0.0, float(reference[-1])
    for level in np.unique(above[:, -1]):
        reaching = above[above[:, -1] >= level, :-1]
        volume += (float(level) - below) * hypervolume(reaching, reference[:-1])
        below = float(level)
    return volume


def points_of(run: Played) -> Float[np.ndarray, "weights objectives"]:
    """Return the mean objectives of a run's episodes for each of their weights, in lexical order of these.

    Raises ValueError if there are more or fewer weights than objectives.
    """
    gained, weights = run.metrics["hypervolume"], run.metrics["episode_weights"]
    if gained.shape != weights.shape:
        raise ValueError(
            f"{run.dataset}: an episode has {gained.shape[-1]} objectives and {weights.shape[-1]} weights; "
            "let the environment tell as many of both."
        )
    which = np.unique(weights.round(6), axis=0, return_inverse=True)[1].ravel()
    return np.stack([gained[which == one].mean(0) for one in range(which.max() + 1)])


def known_hypervolume(dataset: str) -> float | None:
    """Return the hypervolume of the best policies for all weights of a world's grid, if they are known."""
    if dataset not in REFERENCES:
        return None
    world = dataset.rpartition("/")[2].removesuffix("-v1")
    return hypervolume(objectives.front(world), np.array(REFERENCES[dataset]))


def summarize(runs: Sequence[Played]) -> list[Number]:
    """Return the hypervolume, over several runs its mean; no number where no weights were told."""
    if any("episode_weights" not in one.metrics for one in runs):
        return []
    found = [_hypervolume_of(run) for run in runs]
    value, interval = mean_over([np.array([one]) for one in found])
    known = {known_hypervolume(one.dataset) for one in runs}
    whole = known.pop() if len(known) == 1 else None
    return [
        Number(
            metric="hypervolume",
            name="hypervolume",
            value=value,
            interval=interval,
            note="" if whole is None else f"{whole:z.3f} is that of the known front",
            digits=3,
        )
    ]


def _hypervolume_of(run: Played) -> float:
    points = points_of(run)
    return hypervolume(points, np.array(REFERENCES.get(run.dataset, np.zeros(points.shape[1]))))


def judge(run: Played) -> tuple[str, np.ndarray] | None:
    """Return the hypervolume in percent of the known front's; None where that or the weights are not known."""
    whole = known_hypervolume(run.dataset)
    if whole is None or "episode_weights" not in run.metrics:
        return None
    return "hypervolume in % of the front's", np.array([100 * _hypervolume_of(run) / whole])


METRIC = Metric(
    name="hypervolume", summarize=summarize, combine="sum", role="objectives", judge=judge
)
