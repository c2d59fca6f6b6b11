"""Compares methods with no more seeds than needed, by the library adastop.

AdaStop (Mathieu et al. 2023, "AdaStop: adaptive statistical testing for sound comparisons of Deep RL
agents") adds seeds in groups. After each group a permutation test decides which pairs of methods differ.
It assumes no distribution, and bounds the probability that any of its decisions, over all pairs and
groups, calls two equal methods different.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from orlog.errors import needing
from orlog.normalize.statistics import check_finite

Decision = Literal["above", "below", "not told apart", "needs seeds"]

_DECISIONS: Mapping[str, Decision] = {
    "larger": "above",
    "smaller": "below",
    "equal": "not told apart",
    "continue": "needs seeds",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SequentialComparison:
    """The decisions of a sequential comparison so far."""

    decisions: dict[tuple[str, str], Decision]  # whether the first of a pair scores above the second
    groups: int  # groups of seeds that were looked at
    missing: dict[str, int]  # seeds that a method lacks for the next group; empty when all is decided


def compare_sequentially(
    scores: Mapping[str, Float[np.ndarray, " seeds"]], *, group: int = 5, groups: int = 5, error_rate: float = 0.05
) -> SequentialComparison:
    """Return which methods differ, as far as their seeds decide it, and which need more seeds.

    Call it again with all scores, in the order in which seeds were run, when more seeds are there: equal
    scores give equal decisions. Group (seeds of each method), most groups and error rate must be chosen
    before the first look and stay as they are. The error rate bounds the probability that any decision calls
    equal methods different; pairs still undecided after all groups were not told apart.

    adastop 0.1.3 compares the size of a difference with the quantile of signed differences, so that it errs
    twice as often as it is asked to; it is therefore asked for half the error rate.
    """
    if len(scores) < 2 or group < 2 or groups < 1 or not 0 < error_rate < 1:
        raise ValueError(
            "a sequential comparison needs two methods, groups of at least two seeds and an error "
            f"rate between 0 and 1; found {len(scores)} methods, {groups} groups of {group} and "
            f"{error_rate}."
        )
    for method, of_seeds in scores.items():
        check_finite(of_seeds, method)
    test = _comparator()(n=group, K=groups, B=10_000, alpha=error_rate / 2, beta=0, seed=0)
    methods, done = list(scores), 0
    active, missing = set(methods), dict[str, int]()
    while active:
        needed = (done + 1) * group
        lacking = {name: needed - len(scores[name]) for name in methods if name in active}
        missing = {name: count for name, count in lacking.items() if count > 0}
        if missing:
            break
        test.partial_compare({name: scores[name][:needed] for name in methods}, verbose=False)
        done += 1
        open_pairs = () if test.is_finished else np.ravel(test.current_comparisons)
        active = {methods[index] for index in open_pairs}
    decisions_made = dict(test.decisions) if done else {}
    return SequentialComparison(
        decisions={
            (methods[first], methods[second]): _DECISIONS[
                decisions_made.get(str(np.array([first, second])), "continue")
            ]
            for first, second in itertools.combinations(range(len(methods)), 2)
        },
        groups=done,
        missing=missing,
    )


def _comparator() -> Any:
    with needing("a sequential comparison needs adastop", "adastop"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of text in its plots
        from adastop import MultipleAgentsComparator
    return MultipleAgentsComparator
