"""Rankings of methods over tasks: mean ranks, and Kemeny's consensus of the rankings of all tasks.

Scores are an array [methods, tasks]: the mean score of a method on each task. Only their order on
each task counts, so they need not be normalized.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from orlog.normalize.method_scores import check_finite

EXACT_METHODS = 15
"""Most methods for which the consensus is exact; its cost doubles with each further one."""


def mean_ranks(
    scores: Float[np.ndarray, "*resamples methods tasks"],
) -> Float[np.ndarray, "*resamples methods"]:
    """Return each method's rank, averaged over tasks; 1 is best, and equal scores share their ranks."""
    ranks = np.empty(scores.shape)
    for index in range(scores.shape[-2]):
        own = scores[..., index : index + 1, :]
        # Those above, and half of those that are equal, of which it is one itself.
        ranks[..., index, :] = (scores > own).sum(-2) + ((scores == own).sum(-2) + 1) / 2
    return np.asarray(ranks.mean(-1))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Consensus:
    """A ranking that disagrees least with the rankings of the tasks.

    Attributes:
        order: Positions of the methods in the scores, the best first.
        disagreements: Pairs of methods in the opposite order on a task, summed over tasks.
        rankings: Number of rankings with as few disagreements, of which this is one; None if it is
            not known.
        is_exact: Whether no ranking has fewer disagreements; False if there are too many methods to
            prove it.
    """

    order: list[int]
    disagreements: int
    rankings: int | None
    is_exact: bool


def kemeny_consensus(scores: Float[np.ndarray, "methods tasks"]) -> Consensus:
    """Return the ranking with the fewest disagreements with those of the tasks (Kemeny 1959).

    Equal scores of two methods on a task disagree with neither order. Up to `EXACT_METHODS` methods
    the ranking is exact, by dynamic programming over the sets of methods that come first (Betzler
    et al. 2009), in time and memory of 2^methods. With more, it starts from the mean ranks and moves
    one method at a time until no move helps; then a better ranking may exist.

    Raises ValueError if a score is not finite.
    """
    check_finite(scores)
    above = scores[:, None, :] > scores[None, :, :]
    wins = above.sum(-1)  # wins[i, j]: tasks on which i scores above j
    if len(scores) <= EXACT_METHODS:
        return _exact_consensus(wins)
    order = np.argsort(mean_ranks(scores), kind="stable").tolist()
    while (better := _best_move(wins, order)) != order:
        order = better
    return Consensus(
        order=order, disagreements=_disagreements(wins, order), rankings=None, is_exact=False
    )


def _disagreements(wins: Int[np.ndarray, "methods methods"], order: list[int]) -> int:
    ordered = wins[np.ix_(order, order)]
    return int(np.tril(ordered).sum())  # below the diagonal: the later method won


def _best_move(wins: Int[np.ndarray, "methods methods"], order: list[int]) -> list[int]:
    """Return the order after the move of one method that saves most; the same if none saves any."""
    best, fewest = order, _disagreements(wins, order)
    for start in range(len(order)):
        rest = order[:start] + order[start + 1 :]
        for place in range(len(order)):
            moved = [*rest[:place], order[start], *rest[place:]]
            count = _disagreements(wins, moved)
            if count < fewest:
                best, fewest = moved, count
    return best


def _exact_consensus(wins: Int[np.ndarray, "methods methods"]) -> Consensus:
    """Return the consensus by adding methods, best first; sets of methods are the bits of a number."""
    methods = len(wins)
    sets = np.arange(2**methods)
    members = (sets[:, None] >> np.arange(methods)) & 1
    # cost[s, m]: tasks lost by m against the methods outside of s, if m comes right after those in s
    cost = (1 - members) @ wins
    fewest = np.full(2**methods, np.iinfo(np.int64).max // 2)
    ways = np.zeros(2**methods, dtype=object)
    last = np.zeros(2**methods, dtype=np.int64)
    fewest[0], ways[0] = 0, 1
    sizes = members.sum(1)
    for size in range(1, methods + 1):
        chosen = sets[sizes == size]
        for method in range(methods):
            # A set is reached from the set without the method.
            reached = chosen[members[chosen, method] == 1]
            before = reached - (1 << method)
            count = fewest[before] + cost[before, method]
            equal = reached[count == fewest[reached]]
            ways[equal] += ways[equal - (1 << method)]
            fewer = count < fewest[reached]
            better = reached[fewer]
            fewest[better], last[better] = count[fewer], method
            ways[better] = ways[better - (1 << method)]
    order, left = [], 2**methods - 1
    while left:
        order.append(int(last[left]))
        left -= 1 << order[-1]
    return Consensus(
        order=order[::-1], disagreements=int(fewest[-1]), rankings=int(ways[-1]), is_exact=True
    )
