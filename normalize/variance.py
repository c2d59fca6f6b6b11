"""Splits the variance of scores into that of seeds, of checkpoints and of episodes.

A score is the mean of everything, plus what its training seed adds, plus what its checkpoint adds
within the run, plus what its episode adds: a nested model of random effects. The estimates are those of
the analysis of variance (Searle, Casella and McCulloch 1992, "Variance Components", chapter 3), which
assume no distribution; an estimate below zero counts as zero.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jaxtyping import Float

from orlog.normalize.method_scores import check_finite


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VarianceSplit:
    """Variances of a score by where they come from.

    Attributes:
        seeds: Of training seeds.
        checkpoints: Of the checkpoints within a run; None if there is only one.
        episodes: Of the episodes of a policy.
    """

    seeds: float
    checkpoints: float | None
    episodes: float

    def shares(self) -> dict[str, float]:
        """Return the share of each source in the variance of one episode's score, in percent."""
        parts = {
            name: value for name, value in dataclasses.asdict(self).items() if value is not None
        }
        total = sum(parts.values())
        return {name: 100 * value / total if total else 0.0 for name, value in parts.items()}

    def standard_error(self, *, seeds: int, episodes: int, checkpoints: int = 1) -> float:
        """Return the standard error of a mean over so many seeds, checkpoints and episodes of each."""
        within = (self.checkpoints or 0.0) + self.episodes / episodes
        return math.sqrt((self.seeds + within / checkpoints) / seeds)


def split_variance(scores: Float[np.ndarray, "seeds checkpoints episodes"]) -> VarianceSplit:
    """Return how much of the variance of scores comes from seeds, checkpoints and episodes.

    Where episode i starts from the same state in every run, as in orlog's evaluations, what the
    states have in common counts as variance of episodes, and that of seeds is estimated too low by
    at most the variance of episodes over their number.

    Raises ValueError if there are fewer than two seeds or episodes, or a score is not finite.
    """
    seeds, checkpoints, episodes = scores.shape
    if seeds < 2 or episodes < 2:
        raise ValueError(
            "splitting the variance needs at least two seeds and two episodes of each, found "
            f"{seeds} and {episodes}."
        )
    check_finite(scores)
    of_checkpoints, of_seeds = scores.mean(2), scores.mean((1, 2))
    within = float(scores.var(2, ddof=1).mean())
    if checkpoints == 1:
        between = float(of_seeds.var(ddof=1)) - within / episodes
        return VarianceSplit(seeds=max(0.0, between), checkpoints=None, episodes=within)
    middle = float(of_checkpoints.var(1, ddof=1).mean())
    return VarianceSplit(
        seeds=max(0.0, float(of_seeds.var(ddof=1)) - middle / checkpoints),
        checkpoints=max(0.0, middle - within / episodes),
        episodes=within,
    )
